"""Decisions of the controller about settings: AlterConfigs and IncrementalAlterConfigs (KIP-339). Pure functions."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.java_text import split_at_commas
from tidelog.config.key import Key, Type
from tidelog.config.keys import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS, broker_key
from tidelog.config.topic_config import InvalidTopicConfig, check_topic_config, default_text
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.eligible_replicas import check_min_isr_of_brokers, clear_elr_after
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.records import (
    BrokerConfigChanged,
    ClientMetricsConfigChanged,
    GroupConfigChanged,
    JournalRecord,
    TopicConfigChanged,
)
from tidelog.metadata.setting_checks import check_broker_settings, check_client_metrics, check_group_settings
from tidelog.metadata.topic_names import name_refusal
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
LOGGER_RESOURCE = 8
"""The resource type of loggers. Loggers belong to one process, so the controller does not know them."""
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32
CHANGES_MAX = 10_000
"""Maximum number of changes of one resource in a request. A resource has fewer settings than this, so a request with
more changes repeats names or contains unknown names."""
GROUPS_WITH_SETTINGS_MAX = 10_000
"""Maximum number of groups that have settings of their own."""
SUBSCRIPTIONS_MAX = 10_000
"""Maximum number of client metrics subscriptions."""


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    setting: str
    operation: int
    value: str | None


class Alteration(NamedTuple):
    """Changes to the settings of one topic, broker, group or client metrics subscription."""

    resource_type: int
    resource_name: str
    changes: Sequence[Change] = ()
    replace: bool = False
    """Whether settings that `changes` do not set are reset to their defaults (AlterConfigs)."""


class AlterationResult(NamedTuple):
    resource_type: int
    resource_name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def alter_configs(
    image: MetadataImage,
    alterations: Sequence[Alteration],
    config: BrokerConfig,
    *,
    asked_node_id: int | None = None,
    validate_only: bool = False,
) -> Steps[JournalDecision[list[AlterationResult]]]:
    """Alter settings of resources. Each resource succeeds or fails on its own, with all of its changes.

    `config` has the settings of this broker. `asked_node_id` is the broker to which the client sent the request; None
    means this broker.
    """
    records: list[JournalRecord] = []
    results: list[AlterationResult] = []
    counts: dict[tuple[int, str], int] = {}
    for alteration in alterations:
        resource = (alteration.resource_type, alteration.resource_name)
        counts[resource] = counts.get(resource, 0) + 1
        yield
    for alteration in alterations:
        yield
        resource = (alteration.resource_type, alteration.resource_name)
        try:
            if counts[resource] > 1:
                raise ApiError("the request has this resource more than once", ErrorCode.INVALID_REQUEST)
            node_id = config.node_id if asked_node_id is None else asked_node_id
            setting_records = _alter(image, alteration, config, node_id)
            check_min_isr_of_brokers(image, setting_records)
            records += setting_records
        except ApiError as error:
            results.append(AlterationResult(*resource, error.code, error.message))
        else:
            results.append(AlterationResult(*resource))
    records += clear_elr_after(image, records, config)
    return JournalDecision([] if validate_only else records, results)


def _alter(
    image: MetadataImage, alteration: Alteration, config: BrokerConfig, asked_node_id: int
) -> list[JournalRecord]:
    if len(alteration.changes) > CHANGES_MAX:
        raise ApiError(f"the request has more than {CHANGES_MAX} changes of this resource", ErrorCode.INVALID_REQUEST)
    settings = [change.setting for change in alteration.changes]
    if len(dict.fromkeys(settings)) != len(settings):
        raise ApiError("the request has a setting more than once", ErrorCode.INVALID_REQUEST)
    if alteration.resource_type == TOPIC_RESOURCE:
        return _alter_topic(image, alteration, config)
    if alteration.resource_type == BROKER_RESOURCE:
        return _alter_broker(image, alteration, config, asked_node_id)
    if alteration.resource_type == GROUP_RESOURCE:
        return _alter_group(image, alteration, config)
    if alteration.resource_type == CLIENT_METRICS_RESOURCE:
        return _alter_client_metrics(image, alteration)
    raise ApiError(f"unknown resource type {alteration.resource_type}", ErrorCode.INVALID_REQUEST)


def _alter_topic(image: MetadataImage, alteration: Alteration, config: BrokerConfig) -> list[JournalRecord]:
    name = alteration.resource_name
    if not name:
        raise ApiError(
            "the topic has no name: to set a default for all topics, alter a setting of the broker",
            ErrorCode.INVALID_REQUEST,
        )
    refusal = name_refusal(name)
    if refusal is not None:
        raise ApiError(refusal, ErrorCode.INVALID_TOPIC_EXCEPTION)
    topic = image.topics.get(name)
    before: Mapping[str, str] = topic.config if topic is not None else {}
    after = _settings_after(alteration, before, TOPIC_KEYS, lambda key: default_text(key, config))
    try:
        check_topic_config(after, config)
    except InvalidTopicConfig as error:
        raise ApiError(str(error), ErrorCode.INVALID_CONFIG) from None
    if topic is None:
        raise ApiError(f"there is no topic {name!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return [TopicConfigChanged(topic.topic_id, setting, value) for setting, value in _changed_settings(before, after)]


def _alter_broker(
    image: MetadataImage, alteration: Alteration, config: BrokerConfig, asked_node_id: int
) -> list[JournalRecord]:
    broker = broker_name(alteration.resource_name, asked_node_id)
    before = image.broker_configs.get(broker, {})
    after = _settings_after(alteration, before, BROKER_KEYS, lambda key: _static_text(key, config))
    changed = _changed_settings(before, after)
    configs_after = {**image.broker_configs, broker: after}
    config_after = config.with_dynamic(configs_after.get("", {}), configs_after.get(str(asked_node_id), {}))
    check_broker_settings(broker, dict(changed), config, config_after)
    # A secret that is set again is a changed setting, but its stored text is the same as before: no record is needed.
    stored = [(setting, _stored_text(setting, value)) for setting, value in changed]
    return [BrokerConfigChanged(broker, setting, value) for setting, value in stored if before.get(setting) != value]


def _stored_text(setting: str, value: str | None) -> str | None:
    """Return the value to store in the journal. Secrets have no effect yet, so an empty text is stored for them."""
    key = broker_key(setting)
    return "" if value is not None and key is not None and key.sensitive else value


def _alter_group(image: MetadataImage, alteration: Alteration, config: BrokerConfig) -> list[JournalRecord]:
    group = alteration.resource_name
    if not group:
        raise ApiError(
            "the group has no name: to set a default for all groups, alter a setting of the broker",
            ErrorCode.INVALID_REQUEST,
        )
    before = image.group_configs.get(group, {})
    after = _settings_after(alteration, before, GROUP_KEYS, lambda key: _static_text(key, config))
    check_group_settings(after, config)
    if after and not before and len(image.group_configs) >= GROUPS_WITH_SETTINGS_MAX:
        message = (
            f"there can be at most {GROUPS_WITH_SETTINGS_MAX} groups with settings: "
            "remove all settings of another group first"
        )
        raise ApiError(message, ErrorCode.POLICY_VIOLATION)
    return [GroupConfigChanged(group, setting, value) for setting, value in _changed_settings(before, after)]


def _alter_client_metrics(image: MetadataImage, alteration: Alteration) -> list[JournalRecord]:
    name = alteration.resource_name
    if not name:
        raise ApiError("the client metrics subscription has no name", ErrorCode.INVALID_REQUEST)
    before = image.client_metrics_configs.get(name, {})
    # As in Kafka, items cannot be appended to a setting of client metrics.
    after = _settings_after(alteration, before, {}, lambda key: key.default)
    check_client_metrics(after)
    if after and not before and len(image.client_metrics_configs) >= SUBSCRIPTIONS_MAX:
        message = f"there can be at most {SUBSCRIPTIONS_MAX} client metrics subscriptions: remove another one first"
        raise ApiError(message, ErrorCode.POLICY_VIOLATION)
    return [ClientMetricsConfigChanged(name, setting, value) for setting, value in _changed_settings(before, after)]


def broker_name(resource_name: str, node_id: int) -> str:
    """Return `node_id` as text if the resource names the broker `node_id`, or "" if it means all brokers. Raises
    ApiError for another broker.
    """
    if not resource_name:
        return ""
    check_node(resource_name, node_id)
    return str(node_id)


def check_node(resource_name: str, node_id: int) -> None:
    """Raise ApiError unless `resource_name` is the number `node_id`."""
    digits = resource_name.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 10:
        raise ApiError(f"a broker must be named by its number, not {resource_name[:100]!r}", ErrorCode.INVALID_REQUEST)
    if int(resource_name) != node_id:
        raise ApiError(
            f"the request is for broker {int(resource_name)}, but was sent to broker {node_id}",
            ErrorCode.INVALID_REQUEST,
        )


def _settings_after(
    alteration: Alteration,
    before: Mapping[str, str],
    keys: Mapping[str, Key],
    default: Callable[[Key], str | None],
) -> dict[str, str]:
    """Return a resource's own settings after the changes. Their values are not checked yet."""
    after = {} if alteration.replace else dict(before)
    for change in alteration.changes:
        setting = change.setting
        if change.operation == Operation.DELETE:
            after.pop(setting, None)
            continue
        if change.operation not in (Operation.SET, Operation.APPEND, Operation.SUBTRACT):
            raise ApiError(f"operation {change.operation} on settings is not known", ErrorCode.INVALID_REQUEST)
        if change.value is None:
            raise ApiError(f"{setting} has no value", ErrorCode.INVALID_REQUEST)
        if change.operation == Operation.SET:
            after[setting] = change.value
            continue
        key = keys.get(setting)
        if key is None or key.type is not Type.LIST:
            raise ApiError(f"{setting} is not a list: nothing can be appended or subtracted", ErrorCode.INVALID_CONFIG)
        text = before[setting] if setting in before else default(key)
        after[setting] = _edited_list(text or "", change)
    return after


def _edited_list(text: str, change: Change) -> str:
    """Return the list in `text` after the change. APPEND adds the items that are not in the list yet. SUBTRACT
    removes one occurrence of each item.

    As in Kafka, white space belongs to the items.
    """
    items = split_at_commas(text) if text else []
    changed_items = split_at_commas(change.value or "")
    # Both lists may be long, so look items up in a set and a Counter.
    if change.operation == Operation.APPEND:
        existing_items = set(items)
        return ",".join([*items, *(item for item in dict.fromkeys(changed_items) if item not in existing_items)])
    to_remove = Counter(changed_items)
    remaining = []
    for item in items:
        if to_remove[item]:
            to_remove[item] -= 1
        else:
            remaining.append(item)
    return ",".join(remaining)


def _static_text(key: Key, config: BrokerConfig) -> str | None:
    """Return the text that a broker's setting has while nobody has altered the setting."""
    return config.static.get(key.name, key.default)


def _changed_settings(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Return each setting whose text differs, with its new text, or with None if the setting is removed."""
    changed: list[tuple[str, str | None]] = [(name, text) for name, text in after.items() if before.get(name) != text]
    return changed + [(name, None) for name in before if name not in after]
