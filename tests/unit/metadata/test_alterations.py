"""Decisions about settings. Error codes are Kafka 4.3.1's answers, except where a case is marked."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from metadata_harness.builders import image, settings, topic, topic_id
from tidelog.config.describe import Source, Synonym, describe_broker, describe_group, describe_topic
from tidelog.config.key import TEXT_BYTES_MAX, Type
from tidelog.metadata import alterations
from tidelog.metadata.alterations import Alteration, AlterationResult, Change, Operation
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.image import ImageBuilder, MetadataImage
from tidelog.metadata.records import BrokerConfigChanged, JournalRecord, TopicConfigChanged
from tidelog.model.steps import run_all

REPLICAS = "leader.replication.throttled.replicas"
SET, DELETE, APPEND, SUBTRACT = Operation.SET, Operation.DELETE, Operation.APPEND, Operation.SUBTRACT
TOPIC, BROKER = 2, 4
LISTENER = "listener.name.plaintext"


def alter_configs(*arguments: Any, **options: Any) -> JournalDecision[list[AlterationResult]]:
    return run_all(alterations.alter_configs(*arguments, **options))


def cluster() -> MetadataImage:
    return image(
        topic("a", 1, retention_ms="5", cleanup_policy="delete"),
        topic("b", 2),
        topic("c", 3, **{REPLICAS: "3:3,4:4,3:3,3:3"}),
        BrokerConfigChanged("1", "log.retention.ms", "700000"),
        BrokerConfigChanged("", "log.retention.ms", "600000"),
    )


def on(resource_type: int, name: str, *changes: tuple[str, int, str | None]) -> Alteration:
    return Alteration(resource_type, name, [Change(*change) for change in changes])


def instead(resource_type: int, name: str, **settings: str | None) -> Alteration:
    changes = [Change(setting.replace("_", "."), SET, value) for setting, value in settings.items()]
    return Alteration(resource_type, name, changes, replace=True)


def changed(number: int, setting: str, value: str | None) -> TopicConfigChanged:
    return TopicConfigChanged(topic_id(number), setting, value)


@pytest.mark.parametrize(
    ("alteration", "records"),
    [
        (on(TOPIC, "a", ("retention.ms", SET, "6")), [changed(1, "retention.ms", "6")]),
        (on(TOPIC, "a", ("retention.ms", SET, "5")), []),
        (on(TOPIC, "a", ("retention.ms", DELETE, None)), [changed(1, "retention.ms", None)]),
        (on(TOPIC, "a", ("retention.ms", DELETE, "whatever")), [changed(1, "retention.ms", None)]),
        (on(TOPIC, "b", ("retention.ms", DELETE, None)), []),
        (on(TOPIC, "b", ("nope", DELETE, None)), []),
        (on(TOPIC, "b"), []),
        (on(TOPIC, "a", ("cleanup.policy", APPEND, "compact")), [changed(1, "cleanup.policy", "delete,compact")]),
        (on(TOPIC, "b", ("cleanup.policy", APPEND, "compact")), [changed(2, "cleanup.policy", "delete,compact")]),
        (on(TOPIC, "a", ("cleanup.policy", APPEND, "delete")), []),
        (on(TOPIC, "a", ("cleanup.policy", APPEND, "delete, compact")), [
            changed(1, "cleanup.policy", "delete, compact"),
        ]),
        (on(TOPIC, "a", ("cleanup.policy", APPEND, ",")), []),
        (on(TOPIC, "a", ("cleanup.policy", SUBTRACT, " delete ")), []),
        (on(TOPIC, "a", ("cleanup.policy", SUBTRACT, "compact,,delete")), [changed(1, "cleanup.policy", "")]),
        (on(TOPIC, "b", (REPLICAS, APPEND, "1:1,2:2,1:1")), [changed(2, REPLICAS, "1:1,2:2")]),
        (on(TOPIC, "a", ("cleanup.policy", SUBTRACT, "delete")), [changed(1, "cleanup.policy", "")]),
        (on(TOPIC, "a", ("cleanup.policy", SUBTRACT, "nope")), []),
        (instead(TOPIC, "a", segment_ms="9"), [
            changed(1, "segment.ms", "9"), changed(1, "retention.ms", None), changed(1, "cleanup.policy", None),
        ]),
        (instead(TOPIC, "a"), [changed(1, "retention.ms", None), changed(1, "cleanup.policy", None)]),
        (on(BROKER, "1", ("message.max.bytes", SET, "2000")), [BrokerConfigChanged("1", "message.max.bytes", "2000")]),
        (on(BROKER, "01", ("message.max.bytes", SET, "2000")), [BrokerConfigChanged("1", "message.max.bytes", "2000")]),
        (on(BROKER, "", ("message.max.bytes", SET, "2000")), [BrokerConfigChanged("", "message.max.bytes", "2000")]),
        (on(BROKER, "1", ("log.retention.ms", DELETE, None)), [BrokerConfigChanged("1", "log.retention.ms", None)]),
        (on(BROKER, "1", ("node.id", DELETE, None)), []),
        (on(BROKER, "1", ("log.cleanup.policy", APPEND, "compact")), [
            BrokerConfigChanged("1", "log.cleanup.policy", "delete,compact"),
        ]),
        (instead(BROKER, ""), [BrokerConfigChanged("", "log.retention.ms", None)]),
        (on(BROKER, "1", ("leader.replication.throttled.rate", SET, "5")), [
            BrokerConfigChanged("1", "leader.replication.throttled.rate", "5"),
        ]),
        (on(BROKER, "1", ("num.io.threads", SET, "4")), [BrokerConfigChanged("1", "num.io.threads", "4")]),
        (on(BROKER, "1", ("ssl.protocol", SET, "TLSv1.2")), [BrokerConfigChanged("1", "ssl.protocol", "TLSv1.2")]),
        (on(BROKER, "1", ("sasl.enabled.mechanisms", APPEND, "PLAIN")), [
            BrokerConfigChanged("1", "sasl.enabled.mechanisms", "GSSAPI,PLAIN"),
        ]),
        (on(BROKER, "1", (f"{LISTENER}.ssl.keystore.location", SET, "/k")), [
            BrokerConfigChanged("1", f"{LISTENER}.ssl.keystore.location", "/k"),
        ]),
        (on(BROKER, "1", (f"{LISTENER}.ssl.keystore.location", DELETE, None)), []),
        (on(BROKER, "", (f"{LISTENER}.max.connections", SET, "5")), [
            BrokerConfigChanged("", f"{LISTENER}.max.connections", "5"),
        ]),
    ],
)  # fmt: skip
def test_settings_are_changed(alteration: Alteration, records: list[JournalRecord]) -> None:
    before = cluster()
    decision = alter_configs(before, [alteration], settings())
    (result,) = decision.reply
    assert (result.error, result.message) == (0, None)
    assert (result.resource_type, result.resource_name) == alteration[:2]
    assert decision.records == records
    after = ImageBuilder(before).apply(records).build()
    assert alter_configs(after, [alteration], settings()).records == []
    assert alter_configs(before, [alteration], settings(), validate_only=True).records == []


def test_each_item_that_is_subtracted_goes_once() -> None:
    decision = alter_configs(cluster(), [on(TOPIC, "c", (REPLICAS, SUBTRACT, "3:3,4:4,4:4,3:3"))], settings())
    assert decision.records == [changed(3, REPLICAS, "3:3")]


@pytest.mark.parametrize(
    ("alteration", "error"),
    [
        (on(TOPIC, "a", ("retention.ms", SET, "x")), "INVALID_CONFIG"),
        (on(TOPIC, "a", ("retention.ms", SET, "")), "INVALID_CONFIG"),
        (on(TOPIC, "a", ("nope", SET, "5")), "INVALID_CONFIG"),
        (on(TOPIC, "a", ("retention.ms", SET, None)), "INVALID_REQUEST"),
        (on(TOPIC, "a", ("cleanup.policy", APPEND, None)), "INVALID_REQUEST"),
        (on(TOPIC, "a", ("cleanup.policy", APPEND, "bad")), "INVALID_CONFIG"),
        (on(TOPIC, "a", ("cleanup.policy", APPEND, "")), "INVALID_CONFIG"),
        (on(TOPIC, "a", ("cleanup.policy", SET, "delete,,compact")), "INVALID_CONFIG"),
        (on(BROKER, "1", ("log.roll.ms", SET, "-5")), "INVALID_REQUEST"),
        (on(BROKER, "1" * 5000, ("log.roll.ms", SET, "5")), "INVALID_REQUEST"),
        (on(BROKER, "1", ("max.connections.per.ip", SET, "0")), "INVALID_REQUEST"),
        (on(TOPIC, "a", ("retention.ms", APPEND, "5")), "INVALID_CONFIG"),
        (on(TOPIC, "a", ("retention.ms", SUBTRACT, "5")), "INVALID_CONFIG"),
        (on(TOPIC, "a", ("nope", APPEND, "5")), "INVALID_CONFIG"),
        (on(TOPIC, "a", ("retention.ms", 9, "5")), "INVALID_REQUEST"),  # Kafka: UNKNOWN_SERVER_ERROR
        (on(TOPIC, "a", ("retention.ms", SET, "5"), ("retention.ms", DELETE, None)), "INVALID_REQUEST"),
        (on(TOPIC, "a", ("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")), "INVALID_CONFIG"),
        (on(TOPIC, "nope", ("retention.ms", SET, "5")), "UNKNOWN_TOPIC_OR_PARTITION"),
        (on(TOPIC, "nope", ("retention.ms", SET, "x")), "INVALID_CONFIG"),
        (on(TOPIC, "nope"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (on(TOPIC, "", ("retention.ms", SET, "5")), "INVALID_REQUEST"),
        (on(TOPIC, "a b", ("retention.ms", SET, "5")), "INVALID_TOPIC_EXCEPTION"),
        (instead(TOPIC, "a", retention_ms=None), "INVALID_REQUEST"),
        (instead(TOPIC, "a", nope="1"), "INVALID_CONFIG"),
        (on(BROKER, "2", ("log.retention.ms", SET, "5")), "INVALID_REQUEST"),
        (on(BROKER, "-1", ("log.retention.ms", SET, "5")), "INVALID_REQUEST"),
        (on(BROKER, "one", ("log.retention.ms", SET, "5")), "INVALID_REQUEST"),
        (on(BROKER, "1", ("log.retention.ms", SET, "x")), "INVALID_REQUEST"),
        (on(BROKER, "1", ("node.id", SET, "5")), "INVALID_REQUEST"),
        (on(BROKER, "", ("num.partitions", SET, "5")), "INVALID_REQUEST"),
        (on(BROKER, "1", ("listeners", SET, "PLAINTEXT://h:1")), "INVALID_REQUEST"),
        (on(BROKER, "1", ("ssl.keystore.location", SET, "x")), "INVALID_REQUEST"),
        (on(BROKER, "", ("ssl.protocol", SET, "TLSv1.2")), "INVALID_REQUEST"),
        (on(BROKER, "", ("sasl.jaas.config", SET, "x")), "INVALID_REQUEST"),
        (on(BROKER, "", ("principal.builder.class", SET, "a.B")), "INVALID_REQUEST"),
        (on(BROKER, "1", ("principal.builder.class", SET, "a/B")), "INVALID_REQUEST"),
        (on(BROKER, "1", ("ssl.client.auth", SET, "some")), "INVALID_REQUEST"),
        (on(BROKER, "1", ("ssl.client.auth", APPEND, "none")), "INVALID_CONFIG"),
        (on(BROKER, "", (f"{LISTENER}.ssl.keystore.location", SET, "/k")), "INVALID_REQUEST"),
        (on(BROKER, "1", (f"{LISTENER}.ssl.client.auth", SET, "some")), "INVALID_REQUEST"),
        (on(BROKER, "1", (f"{LISTENER}.ssl.cipher.suites", APPEND, "a")), "INVALID_CONFIG"),
        (on(BROKER, "1", (f"{LISTENER}.nope", SET, "5")), "INVALID_CONFIG"),  # Kafka takes and keeps it
        (on(BROKER, "1", (f"listener.name.{'x' * 300}.ssl.protocol", SET, "x")), "INVALID_CONFIG"),  # Kafka keeps it
        (on(BROKER, "1", *((f"listener.name.{i}.ssl.protocol", SET, "x") for i in range(1001))), "POLICY_VIOLATION"),
        (on(BROKER, "1", ("max.connections", SET, "0")), "INVALID_REQUEST"),
        (on(BROKER, "1", ("nope", SET, "5")), "INVALID_CONFIG"),  # Kafka takes and keeps it
        (on(BROKER, "1", ("retention.ms", SET, "5")), "INVALID_CONFIG"),  # Kafka takes and keeps it
        (on(8, "1", ("root", SET, "DEBUG")), "INVALID_REQUEST"),
        (on(64, "x", ("a", SET, "5")), "INVALID_REQUEST"),
    ],
)
def test_settings_are_refused(alteration: Alteration, error: str) -> None:
    decision = alter_configs(cluster(), [alteration], settings())
    (result,) = decision.reply
    assert result.error.name == error
    assert result.message
    assert decision.records == []


def test_a_resource_is_changed_as_a_whole_or_not_at_all() -> None:
    mixed = on(TOPIC, "a", ("segment.ms", SET, "9"), ("retention.ms", SET, "x"))
    decision = alter_configs(cluster(), [mixed, on(TOPIC, "b", ("segment.ms", SET, "8"))], settings())
    assert [r.error.name for r in decision.reply] == ["INVALID_CONFIG", "NONE"]
    assert decision.records == [changed(2, "segment.ms", "8")]


def test_a_resource_comes_once() -> None:
    twice: Sequence[Alteration] = [on(TOPIC, "a", ("segment.ms", SET, "9")), on(TOPIC, "a", ("retention.ms", SET, "7"))]
    decision = alter_configs(cluster(), [*twice, on(TOPIC, "b")], settings())
    assert [r.error.name for r in decision.reply] == ["INVALID_REQUEST", "INVALID_REQUEST", "NONE"]
    assert decision.records == []


def test_a_misspelt_setting_of_a_broker_is_answered_with_the_nearest() -> None:
    (result,) = alter_configs(cluster(), [on(BROKER, "1", ("log.retenton.ms", SET, "5"))], settings()).reply
    assert result.message == "there is no broker setting log.retenton.ms; did you mean log.retention.ms?"


SECRETS = ("sasl.jaas.config", f"{LISTENER}.ssl.keystore.password", f"{LISTENER}.plain.sasl.jaas.config")


@pytest.mark.parametrize("name", SECRETS)
def test_of_a_secret_only_that_it_was_set_is_kept(name: str) -> None:
    before = cluster()
    decision = alter_configs(before, [on(BROKER, "1", (name, SET, "hush"))], settings())
    assert decision.reply[0].error.name == "NONE"
    assert decision.records == [BrokerConfigChanged("1", name, "")]
    after = ImageBuilder(before).apply(decision.records).build()
    config = settings()
    config.apply_dynamic({}, after.broker_configs["1"])
    (described,) = describe_broker(config, [name])
    assert (described.value, described.source, described.key.sensitive) == (None, Source.DYNAMIC_BROKER, True)
    assert described.synonyms == [Synonym(name, None, Source.DYNAMIC_BROKER)]
    assert alter_configs(after, [on(BROKER, "1", (name, SET, "hush again"))], config).records == []
    undone = alter_configs(after, [on(BROKER, "1", (name, DELETE, None))], config)
    assert undone.records == [BrokerConfigChanged("1", name, None)]


SAMPLES = {
    Type.BOOLEAN: "true",
    Type.STRING: "x",
    Type.INT: "5",
    Type.SHORT: "100",
    Type.LONG: "5",
    Type.DOUBLE: "0.5",
    Type.LIST: "a,b",
    Type.CLASS: "org.example.Builder",
    Type.PASSWORD: "hush",
}


def test_what_is_described_as_alterable_is_altered() -> None:
    """Every setting of the broker that is not read-only, by its own value and by another where any would do."""
    config, known = settings(), cluster()
    taken = []
    for described in describe_broker(config, None):
        if described.read_only:
            continue
        name, key = described.key.name, described.key
        values = [described.value] if described.value is not None else []
        if key.validator is None and name not in ("cordoned.log.dirs", "log.cleaner.dedupe.buffer.size"):
            values.append(SAMPLES[key.type])
        for value in values:
            (result,) = alter_configs(known, [on(BROKER, "1", (name, SET, value))], config).reply
            assert result.error.name == "NONE", (name, value, result.message)
        taken += [name] if values else []
    assert len(taken) == len([each for each in describe_broker(config, None) if not each.read_only])
    assert {"sasl.jaas.config", "ssl.provider", "principal.builder.class", "log.retention.ms"} <= set(taken)


def test_what_is_described_as_alterable_is_altered_of_topics_and_groups() -> None:
    config, known = settings(), cluster()
    for resource, name, found in (
        (TOPIC, "b", describe_topic({}, config, None)),
        (32, "g", describe_group({}, config, None)),
    ):
        for described in found:
            assert not described.read_only
            if described.value is not None:
                (result,) = alter_configs(
                    known, [on(resource, name, (described.key.name, SET, described.value))], config
                ).reply
                assert result.error.name == "NONE", (described, result.message)


def test_a_secret_is_in_no_message() -> None:
    alteration = on(BROKER, "1", ("delegation.token.secret.key", SET, "hush"))
    (result,) = alter_configs(cluster(), [alteration], settings()).reply
    assert "hush" not in (result.message or "")


REPLICAS = "leader.replication.throttled.replicas"


def test_long_lists_are_edited_in_linear_time() -> None:
    """Nothing else runs meanwhile: tens of thousands of items against as many would hold the broker for a minute."""
    count = 30_000
    pairs = ",".join(f"{number}:1" for number in range(count))
    others = ",".join(f"{number}:2" for number in range(count))
    began = time.process_time()
    for operation, value in ((APPEND, others), (SUBTRACT, pairs)):
        alter_configs(
            image(topic("a", 1, **{REPLICAS: pairs})), [on(TOPIC, "a", (REPLICAS, operation, value))], settings()
        )
    assert time.process_time() - began < 2


def test_a_list_grows_no_longer_than_can_be_told() -> None:
    """One request carries no longer value, but several append to it."""
    half = ",".join(f"{number}:1" for number in range(2500))
    assert TEXT_BYTES_MAX // 2 < len(half) < TEXT_BYTES_MAX
    known = image(topic("a", 1, **{REPLICAS: half}))
    (result,) = alter_configs(known, [on(TOPIC, "a", (REPLICAS, APPEND, half.replace(":1", ":2")))], settings()).reply
    assert result.error.name == "INVALID_CONFIG"
    assert result.message == f"Invalid value {half[:20]}... for configuration {REPLICAS}: it is longer than 32767 bytes"
    # What was stored by a version that took it can be put right.
    known = image(topic("a", 1, **{REPLICAS: half + ",7:7" * 50_000}))
    assert alter_configs(known, [on(TOPIC, "a", (REPLICAS, SET, half))], settings()).reply[0].error.name == "NONE"


@pytest.mark.parametrize("replace", [False, True])
def test_a_resource_is_changed_in_a_bounded_number_of_settings(*, replace: bool) -> None:
    changes = [Change("retention.ms", SET, "6")] * (alterations.CHANGES_MAX + 1)
    decision = alter_configs(image(topic("a", 1)), [Alteration(TOPIC, "a", changes, replace)], settings())
    (result,) = decision.reply
    assert (result.error, decision.records) == (42, [])
    assert str(alterations.CHANGES_MAX) in str(result.message)
