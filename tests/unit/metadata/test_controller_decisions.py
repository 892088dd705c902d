"""Decisions about topics and brokers: tables of requests and results. Errors are Kafka 4.3.1's answers."""

from collections.abc import Sequence
from typing import Any

import pytest

from metadata_harness.builders import ids, image, settings, topic, topic_id
from tidelog.metadata import controller
from tidelog.metadata.controller import (
    PARTITIONS_PER_REQUEST_MAX,
    SETTINGS_MAX,
    MorePartitions,
    NewTopic,
    TopicChoice,
    TopicResult,
    allocate_producer_ids,
    register_broker,
    renew_leadership,
)
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.records import (
    BrokerRegistered,
    JournalRecord,
    LeadershipRenewed,
    PartitionsAdded,
    PartitionState,
    ProducerIdsAllocated,
    TopicCreated,
    TopicDeleted,
    new_partition,
)
from tidelog.model.steps import run_all
from tidelog.wire.errors import ErrorCode

TWO_BROKERS = image(brokers=[1, 2])


def create_topics(*arguments: Any, **options: Any) -> controller.JournalDecision[list[TopicResult]]:
    return run_all(controller.create_topics(*arguments, **options))


def delete_topics(*arguments: Any) -> controller.JournalDecision[list[TopicResult]]:
    return run_all(controller.delete_topics(*arguments))


def create_partitions(*arguments: Any, **options: Any) -> controller.JournalDecision[list[TopicResult]]:
    return run_all(controller.create_partitions(*arguments, **options))


def made(name: str, replicas: Sequence[Sequence[int]], number: int = 100, **config: str) -> TopicCreated:
    return topic(name, number, replicas, **config)


def codes(results: Sequence[TopicResult]) -> list[tuple[str | None, str]]:
    return [(r.name, r.error.name) for r in results]


@pytest.mark.parametrize(
    ("before", "request_", "record"),
    [
        (image(), NewTopic("t", 3, 1), made("t", [(1,)] * 3)),
        (image(), NewTopic("t"), made("t", [(1,)] * 4)),
        (image(), NewTopic("t", -1, 1), made("t", [(1,)] * 4)),
        (image(), NewTopic("t", 2, -1), made("t", [(1,)] * 2)),
        (image(), NewTopic("x" * 249, 1, 1), made("x" * 249, [(1,)])),
        (image(), NewTopic("__consumer_offsets", 1, 1), made("__consumer_offsets", [(1,)])),
        (TWO_BROKERS, NewTopic("t", 2, 2), made("t", [(1, 2), (2, 1)])),
        (TWO_BROKERS, NewTopic("t", assignments=[(1, [1, 2]), (0, [2, 1])]), made("t", [(2, 1), (1, 2)])),
        (image(), NewTopic("t", 1, 1, config=[("retention.ms", " 5 ")]), made("t", [(1,)], retention_ms=" 5 ")),
        (
            image(), NewTopic("t", 1, 1, config=[("retention.ms", "5"), ("retention.ms", "6")]),
            made("t", [(1,)], retention_ms="6"),
        ),
        (image(topic("a-b", 1)), NewTopic("a.b", 1, 1), made("a.b", [(1,)])),
    ],
)  # fmt: skip
def test_a_topic_is_made(before: MetadataImage, request_: NewTopic, record: TopicCreated) -> None:
    decision = create_topics(before, [request_], settings(num_partitions="4"), ids())
    assert decision.records == [record]
    (result,) = decision.reply
    assert (result.name, result.topic_id, result.error, result.message) == (record.name, topic_id(100), 0, None)
    assert (result.partitions, result.replication_factor) == (
        len(record.partitions),
        len(record.partitions[0].replicas),
    )
    assert result.config == record.config


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (NewTopic("", 1, 1), "INVALID_TOPIC_EXCEPTION"),
        (NewTopic("a b", 1, 1), "INVALID_TOPIC_EXCEPTION"),
        (NewTopic("here", 1, 1), "TOPIC_ALREADY_EXISTS"),
        (NewTopic("dot_ted", 1, 1), "INVALID_TOPIC_EXCEPTION"),
        (NewTopic("__cluster_metadata", 1, 1), "INVALID_REQUEST"),
        (NewTopic("t", 0, 1), "INVALID_PARTITIONS"),
        (NewTopic("t", -2, 1), "INVALID_PARTITIONS"),
        (NewTopic("t", 1, 0), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("t", 1, -2), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("t", 1, 3), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("t", 0, 0), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("t", PARTITIONS_PER_REQUEST_MAX + 1, 1), "POLICY_VIOLATION"),
        (NewTopic("t", 2, 1, [(0, [1]), (1, [1])]), "INVALID_REQUEST"),
        (NewTopic("t", 2, -1, [(0, [1]), (1, [1])]), "INVALID_REQUEST"),
        (NewTopic("t", -1, 1, [(0, [1]), (1, [1])]), "INVALID_REQUEST"),
        (NewTopic("t", assignments=[(0, [1]), (2, [1])]), "INVALID_REPLICA_ASSIGNMENT"),
        (NewTopic("t", assignments=[(1, [1])]), "INVALID_REPLICA_ASSIGNMENT"),
        (NewTopic("t", assignments=[(-1, [1])]), "INVALID_REPLICA_ASSIGNMENT"),
        (NewTopic("t", assignments=[(0, [1]), (0, [1])]), "INVALID_REPLICA_ASSIGNMENT"),
        (NewTopic("t", assignments=[(0, [])]), "INVALID_REPLICA_ASSIGNMENT"),
        (NewTopic("t", assignments=[(0, [3])]), "INVALID_REPLICA_ASSIGNMENT"),
        (NewTopic("t", assignments=[(0, [1, 1])]), "INVALID_REPLICA_ASSIGNMENT"),
        (NewTopic("t", assignments=[(0, [1, 2, 1])]), "INVALID_REPLICA_ASSIGNMENT"),
        (NewTopic("t", assignments=[(0, [1, 2]), (1, [1])]), "INVALID_REPLICA_ASSIGNMENT"),
        (NewTopic("t", 1, 1, config=[("nope", "1")]), "INVALID_CONFIG"),
        (NewTopic("t", 1, 1, config=[("retention.ms", "abc")]), "INVALID_CONFIG"),
        (NewTopic("t", 1, 1, config=[("retention.ms", None)]), "INVALID_CONFIG"),
        (NewTopic("t", 1, 1, config=[("retention.ms", None), ("retention.ms", "1")]), "INVALID_CONFIG"),
        (NewTopic("t", 1, 1, config=[("retention.ms", "1")] * (SETTINGS_MAX + 1)), "INVALID_CONFIG"),
        # What is looked at first: the name, the settings, then the partitions.
        (NewTopic("a b", 0, 9, config=[("retention.ms", "abc")]), "INVALID_TOPIC_EXCEPTION"),
        (NewTopic("here", 0, 9, config=[("retention.ms", "abc")]), "TOPIC_ALREADY_EXISTS"),
        (NewTopic("t", 0, 9, config=[("retention.ms", "abc")]), "INVALID_CONFIG"),
    ],
)
def test_a_topic_is_refused(request_: NewTopic, error: str) -> None:
    before = image(topic("here", 1), topic("dot.ted", 2), brokers=[1, 2])
    decision = create_topics(before, [request_], settings(), ids())
    assert decision.records == []
    (result,) = decision.reply
    assert (result.name, result.error.name) == (request_.name, error)
    assert result.message
    assert (result.partitions, result.replication_factor, result.topic_id) == (-1, -1, bytes(16))


def test_each_topic_of_a_request_stands_alone() -> None:
    requests = [NewTopic(name, 1, 1) for name in ("bad name", "o1", "here", "o2", "o2", "o0")]
    decision = create_topics(image(topic("here", 1)), requests, settings(), ids())
    assert codes(decision.reply) == [
        ("bad name", "INVALID_TOPIC_EXCEPTION"),
        ("o1", "NONE"),
        ("here", "TOPIC_ALREADY_EXISTS"),
        ("o0", "NONE"),
        ("o2", "INVALID_REQUEST"),
    ]
    assert decision.records == [made("o1", [(1,)], 100), made("o0", [(1,)], 101)]


def test_validation_alone_gives_the_same_results_and_no_records() -> None:
    requests = [NewTopic("o1", 3, 1), NewTopic("o2", 0, 1)]
    decision = create_topics(image(), requests, settings(), ids(), validate_only=True)
    assert codes(decision.reply) == [("o1", "NONE"), ("o2", "INVALID_PARTITIONS")]
    assert decision.reply[0].partitions == 3
    assert decision.records == []


def test_partitions_of_one_request_are_bounded_together() -> None:
    requests = [NewTopic("a", 6000, 1), NewTopic("b", 5000, 1), NewTopic("bad name", 1, 1)]
    decision = create_topics(image(), requests, settings(), ids())
    assert codes(decision.reply) == [(name, "POLICY_VIOLATION") for name in ("a", "b", "bad name")]
    assert decision.records == []
    assert create_topics(image(), [NewTopic("a", PARTITIONS_PER_REQUEST_MAX, 1)], settings(), ids()).records


def test_no_topic_is_made_before_a_broker_is_there() -> None:
    decision = create_topics(image(brokers=[]), [NewTopic("t")], settings(), ids())
    assert codes(decision.reply) == [("t", "INVALID_REPLICATION_FACTOR")]


ONE, TWO, NINE = topic_id(1), topic_id(2), topic_id(9)


@pytest.mark.parametrize(
    ("choices", "results", "deleted"),
    [
        ([], [], []),
        ([TopicChoice("a")], [("a", ONE, "NONE")], [ONE]),
        ([TopicChoice(None, TWO)], [("b", TWO, "NONE")], [TWO]),
        (
            [TopicChoice("nope"), TopicChoice("b")],
            [("nope", None, "UNKNOWN_TOPIC_OR_PARTITION"), ("b", TWO, "NONE")], [TWO],
        ),
        ([TopicChoice("")], [("", None, "UNKNOWN_TOPIC_OR_PARTITION")], []),
        ([TopicChoice(None, NINE)], [(None, NINE, "UNKNOWN_TOPIC_ID")], []),
        ([TopicChoice(None)], [(None, None, "INVALID_REQUEST")], []),
        ([TopicChoice(None), TopicChoice(None)], [(None, None, "INVALID_REQUEST")] * 2, []),
        ([TopicChoice("a", ONE)], [("a", ONE, "INVALID_REQUEST")], []),
        ([TopicChoice("x", ONE)], [("x", ONE, "INVALID_REQUEST")], []),
        ([TopicChoice("a"), TopicChoice("a")], [("a", None, "INVALID_REQUEST")], []),
        ([TopicChoice("nope"), TopicChoice("nope")], [("nope", None, "INVALID_REQUEST")], []),
        ([TopicChoice(None, ONE), TopicChoice(None, ONE)], [(None, ONE, "INVALID_REQUEST")], []),
        ([TopicChoice("a"), TopicChoice(None, ONE)], [("a", ONE, "INVALID_REQUEST")], []),
        ([TopicChoice("a", ONE), TopicChoice("b")], [("a", ONE, "INVALID_REQUEST"), ("b", TWO, "NONE")], [TWO]),
    ],
)  # fmt: skip
def test_topics_are_deleted_by_name_or_id(
    choices: list[TopicChoice], results: list[tuple[str | None, bytes | None, str]], deleted: list[bytes]
) -> None:
    decision = delete_topics(image(topic("a", 1), topic("b", 2)), choices)
    assert [(r.name, r.topic_id, r.error.name) for r in decision.reply] == [
        (name, found or bytes(16), error) for name, found, error in results
    ]
    assert decision.records == [TopicDeleted(topic_id(int.from_bytes(d, "big"))) for d in deleted]
    assert all((r.message is None) == (r.error == ErrorCode.NONE) for r in decision.reply)


@pytest.mark.parametrize(
    ("requests", "results", "records"),
    [
        ([MorePartitions("a", 4)], [("a", "NONE")], [PartitionsAdded(ONE, 2, ((2, 1), (1, 2)))]),
        ([MorePartitions("a", 3, [[2, 1]])], [("a", "NONE")], [PartitionsAdded(ONE, 2, ((2, 1),))]),
        ([MorePartitions("a", 2)], [("a", "INVALID_PARTITIONS")], []),
        ([MorePartitions("a", 1)], [("a", "INVALID_PARTITIONS")], []),
        ([MorePartitions("a", 0)], [("a", "INVALID_PARTITIONS")], []),
        ([MorePartitions("a", -1)], [("a", "INVALID_PARTITIONS")], []),
        ([MorePartitions("a", 2 + PARTITIONS_PER_REQUEST_MAX + 1)], [("a", "INVALID_PARTITIONS")], []),
        ([MorePartitions("a", 3, [])], [("a", "INVALID_REPLICA_ASSIGNMENT")], []),
        ([MorePartitions("a", 3, [[1, 2], [1, 2]])], [("a", "INVALID_REPLICA_ASSIGNMENT")], []),
        ([MorePartitions("a", 3, [[1]])], [("a", "INVALID_REPLICA_ASSIGNMENT")], []),
        ([MorePartitions("a", 3, [[1, 3]])], [("a", "INVALID_REPLICA_ASSIGNMENT")], []),
        ([MorePartitions("a", 3, [[1, 1]])], [("a", "INVALID_REPLICA_ASSIGNMENT")], []),
        ([MorePartitions("a", 2, [])], [("a", "INVALID_PARTITIONS")], []),
        ([MorePartitions("a", 3), MorePartitions("a", 4)], [("a", "INVALID_REQUEST")], []),
        (
            [MorePartitions("a", 2), MorePartitions("nope", 4), MorePartitions("b", 2)],
            [("nope", "UNKNOWN_TOPIC_OR_PARTITION"), ("a", "INVALID_PARTITIONS"), ("b", "NONE")],
            [PartitionsAdded(TWO, 1, ((2,),))],
        ),
    ],
)  # fmt: skip
def test_partitions_are_added(
    requests: list[MorePartitions], results: list[tuple[str, str]], records: list[JournalRecord]
) -> None:
    before = image(topic("a", 1, [(1, 2), (2, 1)]), topic("b", 2, [(1,)]), brokers=[1, 2])
    decision = create_partitions(before, requests)
    assert codes(decision.reply) == results
    assert decision.records == records
    validated = create_partitions(before, requests, validate_only=True)
    assert validated.reply == decision.reply
    assert validated.records == []


@pytest.mark.parametrize(("assignments", "code"), [(None, "INVALID_REPLICATION_FACTOR"), ([[1]], "NONE")])
def test_only_an_administrator_places_partitions_in_cordoned_directories(
    assignments: list[list[int]] | None, code: str
) -> None:
    """Kafka 4.3.1 with cordoned.log.dirs=* gives the same answers."""
    request = MorePartitions("a", 2, assignments)
    decision = create_partitions(image(topic("a", 1, [(1,)])), [request], cordoned=True)
    assert codes(decision.reply) == [("a", code)]


def test_a_partition_whose_directory_could_have_no_name_is_refused() -> None:
    name = "t" * 249
    (result,) = create_partitions(image(topic(name, 1, [(1,)])), [MorePartitions(name, 100_001)]).reply
    assert result.error == ErrorCode.INVALID_PARTITIONS
    assert result.message == f"{name}-100000 is too long for a directory's name"
    (result,) = create_partitions(image(topic(name, 1, [(1,)])), [MorePartitions(name, 100_000)]).reply
    assert "but can add at most" in (result.message or "")


def test_an_unknown_topic_gets_no_partitions_and_no_message() -> None:
    (result,) = create_partitions(image(), [MorePartitions("nope", 4)]).reply
    assert result.message is None


def test_a_broker_registers() -> None:
    before = image()
    decision = register_broker(before, 3, "run", before.brokers[1].endpoints, "r1")
    assert decision.records == [BrokerRegistered(3, before.position, "run", before.brokers[1].endpoints, "r1")]


def test_leadership_is_renewed_only_where_there_is_some() -> None:
    assert renew_leadership(image(), 1) == []
    before = image(topic("a", 1, [(2, 1)]), brokers=[1, 2])
    assert renew_leadership(before, 1) == []
    assert renew_leadership(before, 2) == [LeadershipRenewed(2)]


def test_producer_ids_come_in_blocks() -> None:
    before = image(ProducerIdsAllocated(1, 5000))
    decision = allocate_producer_ids(before, 1)
    assert decision.reply == range(5000, 6000)
    assert decision.records == [ProducerIdsAllocated(1, 6000)]


def test_a_new_partition_is_led_by_its_first_replica() -> None:
    assert new_partition((2, 1)) == PartitionState(2, 0, (2, 1), (2, 1), 0)
