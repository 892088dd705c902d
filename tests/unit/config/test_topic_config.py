"""The effective settings of topics, and the settings that a topic may have."""

import pytest

from tidelog.config.broker_config import BrokerConfig, Setting
from tidelog.config.key import Value
from tidelog.config.keys import TOPIC_KEYS
from tidelog.config.topic_config import (
    InvalidTopicConfig,
    TopicSettings,
    check_topic_config,
    topic_settings_without_effect,
    topic_values,
)
from tidelog.log.config import LogConfig

HOUR_MS = 3_600_000


def broker(**settings: str) -> BrokerConfig:
    return BrokerConfig({name.replace("_", "."): Setting(text, "test") for name, text in settings.items()})


@pytest.mark.parametrize(
    ("static", "own", "name", "value"),
    [
        ({}, {}, "retention.ms", 168 * HOUR_MS),
        ({"log_retention_hours": "2"}, {}, "retention.ms", 2 * HOUR_MS),
        ({"log_retention_hours": "2", "log_retention_minutes": "5"}, {}, "retention.ms", 300_000),
        ({"log_retention_hours": "2", "log_retention_minutes": "5", "log_retention_ms": "7"}, {}, "retention.ms", 7),
        ({"log_retention_hours": "2"}, {"retention.ms": "9"}, "retention.ms", 9),
        ({"log_retention_hours": "-1"}, {}, "retention.ms", -1),
        ({"log_retention_ms": "-7"}, {}, "retention.ms", -1),
        ({"log_retention_bytes": "-5"}, {}, "retention.bytes", -5),
        ({"log_roll_hours": "1"}, {}, "segment.ms", HOUR_MS),
        ({"log_flush_scheduler_interval_ms": "70"}, {}, "flush.ms", 70),
        ({"log_flush_scheduler_interval_ms": "70", "log_flush_interval_ms": "60"}, {}, "flush.ms", 60),
        ({"message_max_bytes": "5000"}, {}, "max.message.bytes", 5000),
        ({"log_cleanup_policy": "compact"}, {}, "cleanup.policy", ["compact"]),
        ({"durability": "fsync"}, {}, "durability", "fsync"),
        ({"durability": "fsync"}, {"durability": "os"}, "durability", "os"),
        ({}, {"retention.ms": "not any more a number"}, "retention.ms", 168 * HOUR_MS),
    ],
)
def test_own_settings_then_the_brokers_then_the_default(
    static: dict[str, str], own: dict[str, str], name: str, value: Value
) -> None:
    assert topic_values(own, broker(**static))[name] == value


def test_altered_settings_of_the_broker_reach_its_topics() -> None:
    config = broker(log_retention_hours="2")
    settings = TopicSettings(config)
    before = settings.of({})
    assert before["retention.ms"] == 2 * HOUR_MS
    assert settings.of({}) is before
    config.apply_dynamic({"log.retention.ms": "5"}, {})
    assert settings.of({})["retention.ms"] == 5
    assert settings.of({"retention.ms": "6"})["retention.ms"] == 6


def test_settings_for_a_log() -> None:
    settings = TopicSettings(broker(producer_id_expiration_ms="5000", log_cleanup_policy="delete,compact"))
    log = LogConfig.from_settings(settings.of({"segment.bytes": "2000000", "durability": "fsync"}))
    assert (log.segment_bytes, log.durability, log.producer_id_expiration_ms) == (2_000_000, "fsync", 5000)
    assert (log.compacts, log.deletes) == (True, True)
    small = LogConfig.from_settings(settings.of({"internal.segment.bytes": "500"}))
    assert small.segment_bytes == 500


def test_defaults_of_a_log_are_those_of_the_table() -> None:
    in_force = LogConfig.from_settings(TopicSettings(broker()).of({}))
    assert {name: getattr(in_force, name) for name in LogConfig.__slots__} == {
        name: getattr(LogConfig(), name) for name in LogConfig.__slots__
    }


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"nope": "1"}, "Unknown topic config name: nope"),
        ({"retention.ms": "abc", "nope": "1"}, "Unknown topic config name: nope"),
        ({"retention.ms": "abc"}, "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
        ({"segment.bytes": "13"}, "Invalid value 13 for configuration segment.bytes: Value must be at least 1048576"),
        (
            {"cleanup.policy": "delete,none"},
            "Invalid value none for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
            "min.compaction.lag.ms (10) is more than max.compaction.lag.ms (5)",
        ),
        ({"remote.storage.enable": "true"}, "remote.storage.enable cannot be true: Tidelog has no remote storage"),
        ({"log.retention.ms": "5"}, "Unknown topic config name: log.retention.ms; did you mean retention.ms?"),
        ({"retention.m": "5"}, "Unknown topic config name: retention.m; did you mean retention.ms?"),
    ],
)
def test_what_no_topic_can_have(own: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidTopicConfig) as caught:
        check_topic_config(own, broker())
    assert str(caught.value) == message


def test_what_a_topic_can_have() -> None:
    check_topic_config({key.name: key.default for key in TOPIC_KEYS.values() if key.default is not None}, broker())
    check_topic_config({"cleanup.policy": "", "retention.ms": " 5 ", "internal.segment.bytes": "100"}, broker())


def test_settings_without_effect_are_told() -> None:
    assert topic_settings_without_effect({"retention.ms": "5", "preallocate": "true"}) == ["preallocate"]
