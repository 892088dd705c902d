"""Settings in DescribeConfigs and CreateTopics. The expectations are answers of Kafka 4.3.1."""

import pytest

from tidelog.config.broker_config import BrokerConfig, Setting
from tidelog.config.describe import (
    SettingDescription,
    Source,
    Synonym,
    describe_broker,
    describe_brokers_default,
    describe_created_topic,
    describe_group,
    describe_topic,
)
from tidelog.config.key import normal_text, parse
from tidelog.config.keys import BROKER_KEYS, TOPIC_KEYS

LISTENER = "listener.name.plaintext"


def broker(static: dict[str, str]) -> BrokerConfig:
    return BrokerConfig({name: Setting(text, "test") for name, text in static.items()})


def only(described: list[SettingDescription]) -> SettingDescription:
    (one,) = described
    return one


def told(described: SettingDescription) -> tuple[str | None, int, list[tuple[str, str | None, int]]]:
    return described.value, described.source, [(s.name, s.value, s.source) for s in described.synonyms]


@pytest.mark.parametrize(
    ("static", "cluster", "own", "topic", "name", "expected"),
    [
        ({}, {}, {}, {}, "retention.ms", ("604800000", 5, [])),
        ({}, {}, {}, {"retention.ms": "5000"}, "retention.ms", ("5000", 1, [("retention.ms", "5000", 1)])),
        (
            {},
            {},
            {},
            {"cleanup.policy": "compact, delete"},
            "cleanup.policy",
            ("compact,delete", 1, [("cleanup.policy", "compact,delete", 1), ("log.cleanup.policy", "delete", 5)]),
        ),
        (
            {},
            {},
            {},
            {"preallocate": "TRUE"},
            "preallocate",
            ("true", 1, [("preallocate", "true", 1), ("log.preallocate", "false", 5)]),
        ),
        (
            {},
            {},
            {},
            {},
            "segment.bytes",
            ("1073741824", 5, [("log.segment.bytes", "1073741824", 5)]),
        ),
        ({"log.retention.hours": "100"}, {}, {}, {}, "retention.ms", ("360000000", 5, [])),
        (
            {"log.roll.jitter.ms": "5"},
            {},
            {},
            {},
            "segment.jitter.ms",
            ("5", 4, [("log.roll.jitter.ms", "5", 4), ("log.roll.jitter.hours", "0", 5)]),
        ),
        (
            {"log.segment.bytes": "2097152"},
            {},
            {},
            {},
            "segment.bytes",
            ("2097152", 4, [("log.segment.bytes", "2097152", 4), ("log.segment.bytes", "1073741824", 5)]),
        ),
        (
            {},
            {"log.retention.ms": "600000"},
            {"log.retention.ms": "500000"},
            {},
            "retention.ms",
            (
                "500000",
                2,
                [
                    ("log.retention.ms", "500000", 2),
                    ("log.retention.ms", "600000", 3),
                    ("log.retention.hours", "168", 5),
                ],
            ),
        ),
        (
            {},
            {"log.retention.ms": "600000"},
            {},
            {"retention.ms": "5"},
            "retention.ms",
            (
                "5",
                1,
                [
                    ("retention.ms", "5", 1),
                    ("log.retention.ms", "600000", 3),
                    ("log.retention.hours", "168", 5),
                ],
            ),
        ),
        ({}, {}, {}, {}, "leader.replication.throttled.replicas", ("", 5, [])),
    ],
)
def test_a_topics_setting(
    static: dict[str, str],
    cluster: dict[str, str],
    own: dict[str, str],
    topic: dict[str, str],
    name: str,
    expected: tuple[str, int, list[tuple[str, str, int]]],
) -> None:
    config = broker(static)
    config.apply_dynamic(cluster, own)
    assert told(only(describe_topic(topic, config, [name]))) == expected


@pytest.mark.parametrize(
    ("static", "cluster", "own", "name", "expected"),
    [
        ({}, {}, {}, "log.retention.ms", (None, 5, [])),
        ({}, {}, {}, "log.retention.hours", ("168", 5, [("log.retention.hours", "168", 5)])),
        (
            {"log.retention.hours": "100"},
            {},
            {},
            "log.retention.hours",
            ("100", 4, [("log.retention.hours", "100", 4), ("log.retention.hours", "168", 5)]),
        ),
        ({"log.retention.hours": "100"}, {}, {}, "log.retention.ms", (None, 5, [])),
        (
            {},
            {},
            {"log.retention.ms": "500000"},
            "log.retention.ms",
            ("500000", 2, [("log.retention.ms", "500000", 2), ("log.retention.hours", "168", 5)]),
        ),
        (
            {},
            {},
            {"log.retention.ms": "500000"},
            "log.retention.hours",
            ("168", 5, [("log.retention.hours", "168", 5)]),
        ),
        (
            {"log.roll.jitter.ms": "5"},
            {},
            {},
            "log.roll.jitter.ms",
            ("5", 4, [("log.roll.jitter.ms", "5", 4), ("log.roll.jitter.hours", "0", 5)]),
        ),
        ({"node.id": "1"}, {}, {}, "node.id", ("1", 4, [("node.id", "1", 4)])),
        ({}, {}, {}, "node.id", ("1", 5, [("node.id", "1", 5)])),
        ({"process.roles": "broker"}, {}, {}, "process.roles", ("broker", 4, [("process.roles", "broker", 4)])),
        ({}, {}, {}, "process.roles", ("broker,controller", 5, [("process.roles", "broker,controller", 5)])),
        ({}, {}, {}, "advertised.listeners", (None, 5, [])),
        ({}, {}, {}, "controller.listener.names", (None, 5, [])),
        (
            {"controller.listener.names": "CONTROLLER"},
            {},
            {},
            "controller.listener.names",
            ("CONTROLLER", 4, [("controller.listener.names", "CONTROLLER", 4)]),
        ),
        (
            {"log.cleanup.policy": "delete , delete"},
            {},
            {"log.cleanup.policy": " compact ,delete"},
            "log.cleanup.policy",
            (
                "compact,delete",
                2,
                [
                    ("log.cleanup.policy", " compact ,delete", 2),
                    ("log.cleanup.policy", "delete , delete", 4),
                    ("log.cleanup.policy", "delete", 5),
                ],
            ),
        ),
        (
            {"max.connections": "6"},
            {f"{LISTENER}.max.connections": " 5"},
            {f"{LISTENER}.max.connections": "+4"},
            f"{LISTENER}.max.connections",
            (
                "+4",
                2,
                [
                    (f"{LISTENER}.max.connections", "+4", 2),
                    (f"{LISTENER}.max.connections", " 5", 3),
                    ("max.connections", "6", 4),
                    ("max.connections", "2147483647", 5),
                ],
            ),
        ),
        (
            {},
            {},
            {f"{LISTENER}.ssl.keystore.password": "hush"},
            f"{LISTENER}.ssl.keystore.password",
            (None, 2, [(f"{LISTENER}.ssl.keystore.password", None, 2)]),
        ),
        ({"broker.id": "1"}, {}, {}, "broker.id", ("1", 4, [("broker.id", "1", 4), ("broker.id", "-1", 5)])),
        ({"ssl.key.password": "secret"}, {}, {}, "ssl.key.password", (None, 4, [("ssl.key.password", None, 4)])),
        (
            {},
            {"max.connections": "5"},
            {"max.connections": "9"},
            "max.connections",
            ("9", 2, [("max.connections", "9", 2), ("max.connections", "5", 3), ("max.connections", "2147483647", 5)]),
        ),
    ],
)
def test_a_brokers_setting(
    static: dict[str, str],
    cluster: dict[str, str],
    own: dict[str, str],
    name: str,
    expected: tuple[str | None, int, list[tuple[str, str | None, int]]],
) -> None:
    config = broker(static)
    config.apply_dynamic(cluster, own)
    assert told(only(describe_broker(config, [name]))) == expected


def test_all_settings_are_listed_but_hidden_ones() -> None:
    config = broker({})
    assert len(describe_topic({}, config, None)) == len(TOPIC_KEYS) - 1
    assert len(describe_broker(config, None)) == len(BROKER_KEYS) - 4
    hidden = "leader.replication.throttled.rate"
    assert describe_broker(config, [hidden]) == []
    config.apply_dynamic({}, {hidden: "5"})
    assert told(only(describe_broker(config, [hidden]))) == ("5", 2, [(hidden, "5", 2)])
    assert len(describe_broker(config, None)) == len(BROKER_KEYS) - 3
    assert describe_topic({}, config, ["internal.segment.bytes"]) == []
    small = only(describe_topic({"internal.segment.bytes": "500"}, config, ["internal.segment.bytes"]))
    assert told(small) == ("500", 1, [("internal.segment.bytes", "500", 1)])


def test_settings_of_single_listeners_are_described_where_they_are_set() -> None:
    config = broker({})
    name = f"{LISTENER}.ssl.client.auth"
    assert describe_broker(config, [name, f"{LISTENER}.nope"]) == []
    config.apply_dynamic({}, {name: "required"})
    described = only(describe_broker(config, [name]))
    assert (described.read_only, described.key.effect, described.key.type.name) == (True, False, "STRING")
    assert name in [each.key.name for each in describe_broker(config, None)]
    assert told(only(describe_brokers_default({name: "none"}, None))) == ("none", 3, [(name, "none", 3)])


def test_a_group_has_the_brokers_value_as_it_is_read() -> None:
    config = broker({"group.consumer.session.timeout.ms": " +50000"})
    described = only(describe_group({}, config, ["consumer.session.timeout.ms"]))
    assert told(described)[:2] == ("50000", 4)
    assert described.synonyms[0].value == " +50000"


def test_names_are_picked_once_and_unknown_ones_left_out() -> None:
    names = ["retention.ms", "nope", "retention.ms", "segment.ms"]
    assert [d.key.name for d in describe_topic({}, broker({}), names)] == ["retention.ms", "segment.ms"]
    assert describe_topic({}, broker({}), []) == []


def test_what_is_altered_for_all_brokers() -> None:
    altered = {"log.retention.ms": "600000"}
    one = only(describe_brokers_default(altered, None))
    assert told(one) == ("600000", 3, [("log.retention.ms", "600000", 3)])
    assert describe_brokers_default(altered, ["num.partitions"]) == []


def test_no_secret_is_shown_anywhere() -> None:
    config = broker({"ssl.key.password": "secret"})
    for described in describe_broker(config, None):
        assert "secret" not in (described.value or "")
        assert all("secret" not in (s.value or "") for s in described.synonyms)


def test_a_created_topics_settings() -> None:
    config = broker({"log.retention.hours": "100"})
    own = {"cleanup.policy": "compact, delete", "preallocate": "TRUE", "segment.bytes": " 5000000 "}
    described = describe_created_topic(own, config)
    assert [d.key.name for d in described] == sorted(d.key.name for d in described)
    found = {d.key.name: (d.value, d.source) for d in described}
    assert found["cleanup.policy"] == ("compact, delete", Source.TOPIC)
    assert found["preallocate"] == ("TRUE", Source.TOPIC)
    assert found["segment.bytes"] == (" 5000000 ", Source.TOPIC)
    assert found["retention.ms"] == ("360000000", Source.STATIC)
    assert found["segment.ms"] == ("604800000", Source.DEFAULT)
    assert all(d.synonyms == [] for d in described)
    assert "internal.segment.bytes" not in found
    with_hidden = describe_created_topic({"internal.segment.bytes": "100"}, config)
    assert "internal.segment.bytes" in [d.key.name for d in with_hidden]


def test_every_default_is_shown_in_its_normal_form() -> None:
    for key in [*TOPIC_KEYS.values(), *BROKER_KEYS.values()]:
        if key.default is not None:
            assert normal_text(parse(key, key.default)) == key.default, key.name


def test_a_synonym_names_layer_and_value() -> None:
    assert Synonym("a", "1", Source.STATIC).source == 4
