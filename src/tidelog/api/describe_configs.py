"""DescribeConfigs (key 32), v1-4. v1: sources and synonyms (KIP-226); v3: types and documentation (KIP-569).

Of topics, of this broker and of groups. The message is empty, not null, where nothing is wrong.
"""

from typing import TYPE_CHECKING

from tidelog.api.services import RequestContext, Services
from tidelog.config.describe import Described, describe_broker, describe_brokers_default, describe_group, describe_topic
from tidelog.config.keys import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS
from tidelog.metadata.alterations import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE, broker_name
from tidelog.metadata.topic_names import name_refusal
from tidelog.model.steps import Steps
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
    from tidelog.metadata.image import MetadataImage

NAMES_PER_STEP = 200
NO_EFFECT = "No effect yet."
SETTINGS_MAX = 100_000
"""In one answer: two thousand topics with all of theirs. One topic named a million times would fill the memory."""


def handle(
    services: Services, context: RequestContext, request: DescribeConfigsRequest
) -> Steps[DescribeConfigsResponse]:
    image = services.metadata.image
    results: list[DescribeConfigsResult] = []
    left = SETTINGS_MAX
    for resource in request.resources:
        result = DescribeConfigsResult(
            error_message="", resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            if left <= 0:
                raise ApiError(f"one answer holds at most {SETTINGS_MAX} settings", ErrorCode.INVALID_REQUEST)
            described = _describe(services, image, resource, (yield from _names(resource)))
        except ApiError as error:
            result.error_code = error.code
            result.error_message = error.message
        else:
            result.configs = [_config(each, request) for each in described]
            left -= len(described)
        results.append(result)
        yield
    return DescribeConfigsResponse(results=results)


def _names(resource: DescribeConfigsResource) -> Steps[list[str] | None]:
    """The settings that are asked for, without those that nobody has; None for all."""
    asked = resource.configuration_keys
    if not asked:
        return None
    known: dict[str, None] = {}
    for start in range(0, len(asked), NAMES_PER_STEP):
        some = asked[start : start + NAMES_PER_STEP]
        known.update((name, None) for name in some if name in TOPIC_KEYS or name in BROKER_KEYS or name in GROUP_KEYS)
        yield
    return list(known)


def _describe(
    services: Services, image: "MetadataImage", resource: DescribeConfigsResource, names: list[str] | None
) -> list[Described]:
    """Raises ApiError."""
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
    raise ApiError(f"resource type {resource.resource_type} is not known here", ErrorCode.INVALID_REQUEST)


def _config(described: Described, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
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
        result.documentation = key.doc if key.effect else f"{key.doc} {NO_EFFECT}".lstrip()
    return result
