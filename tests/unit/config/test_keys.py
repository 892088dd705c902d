"""The table of settings, compared with the answers of a running Kafka 4.3.1 about its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tidelog.config.key import (
    AtLeast,
    Between,
    BetweenOrEqualTo,
    Key,
    ListOf,
    NonEmptyText,
    OneOf,
    OneOfIgnoringCase,
    ThrottledReplicas,
    Validator,
    default_value,
)
from tidelog.config.keys import (
    BROKER_KEYS,
    TOPIC_KEYS,
    ChangeMode,
    attribute_name,
    broker_key,
    broker_synonyms,
    change_mode,
    environment_name,
    nearest,
    strip_listener_prefix,
)

GOLDEN = Path(__file__).parents[2] / "golden/settings/kafka-4.3.1.tsv"

OWN_TOPIC_KEYS = {"durability", "record.validation", "internal.segment.bytes"}
OWN_BROKER_KEYS = {"durability", "durability.interval.ms", "metadata.store", "record.validation"}
DYNAMIC_BROKER_KEYS = {
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
"""Kafka lists them only where they are set."""
INTERNAL_BROKER_KEYS = {"log.initial.task.delay.ms"}
"""Kafka takes them and never lists them."""
OWN_DEFAULTS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092",  # nobody else's machine is served unasked
    "log.dir": "tidelog-data",
    "node.id": "1",  # Kafka has to be told
    "process.roles": "broker,controller",  # Kafka has to be told
}
READ_ONLY_HERE = {"listeners", "listener.security.protocol.map"}
"""Kafka opens and closes listeners while it runs."""
OF_LISTENERS = {
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
}
"""Kafka says that they are not read-only, and then refuses them without the prefix of a listener."""


class Recorded(NamedTuple):
    scope: str
    name: str
    type: str
    default: str
    valid: str
    read_only: str
    sensitive: str
    synonyms: str


def recorded() -> Iterator[Recorded]:
    for line in GOLDEN.read_text().splitlines():
        if not line.startswith("#"):
            yield Recorded(*line.split("\t"))


def shown(valid: Validator | None) -> str:
    """As Kafka shows its validators."""
    match valid:
        case OneOfIgnoringCase():
            return f"(case insensitive) [{', '.join(valid.values)}]"
        case OneOf() | ListOf():
            return f"[{', '.join(valid.values)}]"
        case AtLeast():
            return f"[{valid.minimum},...]"
        case Between():
            return f"[{valid.minimum},...,{valid.maximum}]"
        case BetweenOrEqualTo():
            return f"[{valid.minimum},...,{valid.maximum}] or {valid.alternative}"
        case NonEmptyText():
            return "non-empty string"
        case ThrottledReplicas():
            return "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    return "-"


NOT_CHECKED_HERE = {"authorizer.class.name", "controller.quorum.voters", "controller.quorum.bootstrap.servers"}
"""Kafka wants a value that is not null, or not an empty list: neither can be written in a file."""


def test_every_setting_of_kafka_is_there_and_no_other() -> None:
    names: dict[str, set[str]] = {"topic": set(), "broker": set()}
    for row in recorded():
        names[row.scope].add(row.name)
    assert set(TOPIC_KEYS) == names["topic"] | OWN_TOPIC_KEYS
    assert set(BROKER_KEYS) == names["broker"] | OWN_BROKER_KEYS | DYNAMIC_BROKER_KEYS | INTERNAL_BROKER_KEYS
    assert len(names["topic"]) == 33
    assert len(names["broker"]) == 340


def test_types_defaults_and_flags_are_kafkas() -> None:
    for row in recorded():
        key = (TOPIC_KEYS if row.scope == "topic" else BROKER_KEYS)[row.name]
        default = "\\N" if key.default is None else key.default
        if row.scope == "broker" and row.name in OWN_DEFAULTS:
            row = row._replace(default=OWN_DEFAULTS[row.name])
        if row.name in READ_ONLY_HERE | OF_LISTENERS:
            assert row.read_only == "no"
            row = row._replace(read_only="yes")
        ours = (key.type.name, default, "yes" if key.read_only else "no", "yes" if key.sensitive else "no")
        assert ours == (row.type, row.default, row.read_only, row.sensitive), row.name
        synonyms = ",".join(f"{name}*{factor}" for name, factor in key.synonyms)
        assert synonyms == row.synonyms.strip("-"), row.name


def test_ranges_are_kafkas() -> None:
    for row in recorded():
        if row.name not in NOT_CHECKED_HERE:
            key = (TOPIC_KEYS if row.scope == "topic" else BROKER_KEYS)[row.name]
            assert shown(key.validator) == row.valid, row.name


@pytest.mark.parametrize("key", [*TOPIC_KEYS.values(), *BROKER_KEYS.values()], ids=lambda key: key.name)
def test_defaults_are_legal(key: Key) -> None:
    assert (default_value(key) is None) == (key.default is None)


def test_what_is_altered_of_one_listener_only_is_told_as_read_only() -> None:
    """So that nothing that DescribeConfigs calls alterable is refused."""
    for key in BROKER_KEYS.values():
        when = change_mode(key.name)
        assert (when is ChangeMode.LIVE_FOR_ONE_LISTENER) == (key.name in OF_LISTENERS)
        assert key.read_only == (when in (ChangeMode.AT_RESTART, ChangeMode.LIVE_FOR_ONE_LISTENER)), key.name


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("listener.name.plaintext.ssl.keystore.location", "ssl.keystore.location"),
        ("listener.name.PLAINTEXT.max.connections", "max.connections"),
        ("listener.name..ssl.protocol", "ssl.protocol"),
        ("listener.name.sasl_ssl.plain.sasl.jaas.config", "sasl.jaas.config"),
        ("listener.name.x.scram-sha-256.connections.max.reauth.ms", "connections.max.reauth.ms"),
        ("listener.name.a.b.ssl.protocol", None),
        ("listener.name.a.plainsasl.jaas.config", None),
        ("listener.name.a.no.such", None),
        ("listener.name.a.", None),
        ("listener.name.a", None),
        ("LISTENER.NAME.a.ssl.protocol", None),
        ("ssl.protocol", None),
    ],
)
def test_settings_of_single_listeners(name: str, base: str | None) -> None:
    assert strip_listener_prefix(name) == base
    key = broker_key(name)
    if base is None:
        assert key == BROKER_KEYS.get(name)
    else:
        assert key == BROKER_KEYS[base]._replace(name=name, default=None, effect=False, read_only=True, hidden=True)


def test_topic_settings_take_their_defaults_from_settings_of_the_broker() -> None:
    for key in TOPIC_KEYS.values():
        for name, factor in key.synonyms:
            assert name in BROKER_KEYS
            assert factor >= 1


def test_settings_with_effect_and_those_of_topics_are_explained() -> None:
    unexplained = [k.name for k in BROKER_KEYS.values() if k.effect and not k.doc]
    unexplained += [k.name for k in TOPIC_KEYS.values() if not k.doc]
    assert not unexplained


def test_names_stay_apart_as_attributes_and_in_the_environment() -> None:
    assert len({attribute_name(name) for name in BROKER_KEYS}) == len(BROKER_KEYS)
    assert len({environment_name(name) for name in BROKER_KEYS}) == len(BROKER_KEYS)
    assert environment_name("log.retention.ms") == "TIDELOG_LOG_RETENTION_MS"


def test_settings_in_several_units_are_one_group() -> None:
    expected = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
    assert all(broker_synonyms(name) == expected for name in expected)
    assert broker_synonyms("num.partitions") == ("num.partitions",)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("log.retenton.ms", "log.retention.ms"), ("num.partition", "num.partitions"), ("durabilty", "durability")],
)
def test_the_nearest_name_is_found(wrong: str, right: str) -> None:
    assert nearest(wrong, BROKER_KEYS) == right


def test_nothing_is_near_to_nonsense() -> None:
    assert nearest("zzzzzz", BROKER_KEYS) is None
