"""DescribeConfigs (key 32), v1-4. v1: sources and synonyms (KIP-226); v3: types and documentation (KIP-569).

Describes topics, groups, subscriptions to client metrics, this broker, its loggers, and the default settings of all
brokers. If there is no error, the error message is empty, not null.
"""

from typing import TYPE_CHECKING

from tidelog.api.services import RequestContext, Services
from tidelog.config.describe import (
    SettingDescription,
    Source,
    describe_broker,
    describe_brokers_default,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from tidelog.config.keys import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS, is_broker_setting
from tidelog.metadata.alterations import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    LOGGER_RESOURCE,
    TOPIC_RESOURCE,
    broker_name,
    check_node,
)
from tidelog.metadata.topic_names import name_refusal
from tidelog.model.steps import Steps
from tidelog.runtime import loggers
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tidelog.metadata.image import MetadataImage

NAMES_PER_STEP = 200
NO_EFFECT = "No effect yet."
SET_AT_START = "Set at the start by"
"""Words in the documentation of a setting. They are followed by the origin of its value, such as a file and line."""
UNKNOWN_TYPE = 0
SETTINGS_MAX = 100_000
"""When a response has this many settings, the remaining resources get an error. The limit is large enough to describe
two thousand topics at once. Without it, a request that names one topic a million times would exhaust the memory."""
CHARS_PER_SETTING = 500
"""For the limit SETTINGS_MAX, this many characters of values count as one additional setting."""


def handle(
    services: Services, context: RequestContext, request: DescribeConfigsRequest
) -> Steps[DescribeConfigsResponse]:
    image = services.metadata.image
    results: list[DescribeConfigsResult] = []
    settings_left = SETTINGS_MAX
    for resource in request.resources:
        result = DescribeConfigsResult(
            error_message="", resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            if settings_left <= 0:
                message = (
                    f"the response has reached the limit of {SETTINGS_MAX} settings (a long value counts as several "
                    "settings); name fewer resources"
                )
                raise ApiError(message, ErrorCode.INVALID_REQUEST)
            if resource.resource_type == LOGGER_RESOURCE:
                result.configs = yield from _logger_levels(services, resource)
            else:
                has_setting = _HAS_SETTING.get(resource.resource_type, _has_no_setting)
                described = _describe(services, image, resource, (yield from _requested_names(resource, has_setting)))
                result.configs = [_config(each, request) for each in described]
        except ApiError as error:
            result.error_code = error.code
            result.error_message = error.message
        else:
            settings_left -= len(result.configs) + sum(map(_value_chars, result.configs)) // CHARS_PER_SETTING
        results.append(result)
        yield
    return DescribeConfigsResponse(results=results)


def _value_chars(config: DescribeConfigsResourceResult) -> int:
    return len(config.value or "") * (1 + len(config.synonyms))


def _has_no_setting(name: str) -> bool:
    return False


_HAS_SETTING: "Mapping[int, Callable[[str], bool]]" = {
    TOPIC_RESOURCE: TOPIC_KEYS.__contains__,
    BROKER_RESOURCE: is_broker_setting,
    GROUP_RESOURCE: GROUP_KEYS.__contains__,
    CLIENT_METRICS_RESOURCE: CLIENT_METRICS_KEYS.__contains__,
}
"""For each resource type, a function that returns whether such a resource can have a setting with a given name."""


def _requested_names(
    resource: DescribeConfigsResource, has_setting: "Callable[[str], bool]"
) -> Steps[list[str] | None]:
    """Return the requested settings that the resource can have; None if the request asks for all settings."""
    names = resource.configuration_keys
    if not names:
        return None
    known_names: dict[str, None] = {}
    for start in range(0, len(names), NAMES_PER_STEP):
        chunk = names[start : start + NAMES_PER_STEP]
        known_names.update((name, None) for name in chunk if has_setting(name))
        yield
    return list(known_names)


def _describe(
    services: Services, image: "MetadataImage", resource: DescribeConfigsResource, names: list[str] | None
) -> list[SettingDescription]:
    """Return the settings of a resource that is not a logger. Raises ApiError."""
    if resource.resource_type == TOPIC_RESOURCE:
        refusal = name_refusal(resource.resource_name)
        if refusal is not None:
            raise ApiError(refusal, ErrorCode.INVALID_TOPIC_EXCEPTION)
        topic = image.topics.get(resource.resource_name)
        if topic is None:
            raise ApiError("", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return describe_topic(topic.config, services.config, names)
    if resource.resource_type == BROKER_RESOURCE:
        broker = broker_name(resource.resource_name, services.config.node_id)
        if not broker:
            return describe_brokers_default(image.broker_configs.get("", {}), names)
        return describe_broker(services.config, names)
    if resource.resource_type == GROUP_RESOURCE:
        if not resource.resource_name:
            raise ApiError("the group has no name", ErrorCode.INVALID_REQUEST)
        return describe_group(image.group_configs.get(resource.resource_name, {}), services.config, names)
    if resource.resource_type == CLIENT_METRICS_RESOURCE:
        if not resource.resource_name:
            raise ApiError("the client metrics subscription has no name", ErrorCode.INVALID_REQUEST)
        return describe_client_metrics(image.client_metrics_configs.get(resource.resource_name, {}), names)
    raise ApiError(f"unknown resource type {resource.resource_type}", ErrorCode.INVALID_REQUEST)


def _logger_levels(services: Services, resource: DescribeConfigsResource) -> Steps[list[DescribeConfigsResourceResult]]:
    """Return the levels of this broker's loggers. Raises ApiError."""
    check_node(resource.resource_name, services.config.node_id)
    levels = loggers.levels()
    names = yield from _requested_names(resource, levels.__contains__)
    return [
        DescribeConfigsResourceResult(
            name=name, value=levels[name], config_source=Source.BROKER_LOGGER, config_type=UNKNOWN_TYPE
        )
        for name in (levels if names is None else names)
    ]


def _config(described: SettingDescription, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    key = described.key
    result = DescribeConfigsResourceResult(
        name=key.name,
        value=described.value,
        read_only=described.read_only,
        config_source=described.source,
        is_sensitive=key.sensitive,
        config_type=key.type,
        documentation=None,
    )
    if request.include_synonyms:
        result.synonyms = [DescribeConfigsSynonym(name=n, value=v, source=s) for n, v, s in described.synonyms]
    if request.include_documentation:
        # In the protocol, all settings that were set at the start have the same source. Tidelog's command line reads
        # from this text which file or option set the value.
        origin = f"{SET_AT_START} {described.origin}." if described.origin else ""
        parts = (key.doc, "" if key.effect else NO_EFFECT, origin)
        result.documentation = " ".join(part for part in parts if part)
    return result
