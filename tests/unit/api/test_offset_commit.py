from collections.abc import Iterator
from typing import Any

import pytest

from group_harness.virtual_broker import VirtualBroker, topic_id
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

VERSIONS = range(2, 11)


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    broker = VirtualBroker()
    broker.start_coordinators()
    yield broker
    broker.groups.close()
    broker.loop.close()


def request(version: int, *topics: tuple[str, list[int]], **fields: Any) -> OffsetCommitRequest:
    told = []
    for name, partitions in topics:
        parts = [OffsetCommitRequestPartition(index, 7, 3 if version >= 6 else -1, "note") for index in partitions]
        topic = {"topic_id": topic_id(name)} if version >= 10 else {"name": name}
        told.append(OffsetCommitRequestTopic(**topic, partitions=parts))  # type: ignore[arg-type]
    return OffsetCommitRequest(group_id=fields.pop("group", "g"), topics=told, **fields)


def codes(response: Any) -> list[tuple[Any, list[tuple[int, int]]]]:
    return [(t.name or t.topic_id, [(p.partition_index, p.error_code) for p in t.partitions]) for t in response.topics]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_commit(broker: VirtualBroker, version: int) -> None:
    name: Any = topic_id("t") if version >= 10 else "t"
    response = broker.call("OffsetCommit", version, request(version, ("t", [0, 2])))
    assert codes(response) == [(name, [(0, ErrorCode.NONE), (2, ErrorCode.NONE)])]
    durable = broker.groups.host.coordinator("g").core.durable.by_id["g"]
    value = durable.committed_offset("t", 2)
    assert value is not None
    assert (value.offset, value.leader_epoch, value.metadata) == (7, 3 if version >= 6 else -1, "note")
    assert value.topic_id == topic_id("t")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_does_not_exist_is_refused_first_as_from_kafka(broker: VirtualBroker, version: int) -> None:
    asked = request(version, ("t", [0, 9]), ("nosuch", [0]), ("t", [-1, 1]), ("u", []))
    t: Any = topic_id("t") if version >= 10 else "t"
    nosuch: Any = topic_id("nosuch") if version >= 10 else "nosuch"
    missing = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(broker.call("OffsetCommit", version, asked)) == [
        (t, [(9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (0, 0), (1, 0)]),
        (nosuch, [(0, missing)]),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_entry_has_its_answer_and_the_last_offset_counts(broker: VirtualBroker, version: int) -> None:
    asked = request(version, ("t", [0, 1]), ("u", [0]), ("t", [0]), ("t", [1, 1]))
    asked.topics[2].partitions[0].committed_offset = 8
    asked.topics[3].partitions[1].committed_offset = 9
    t, u = (topic_id("t"), topic_id("u")) if version >= 10 else ("t", "u")
    response = broker.call("OffsetCommit", version, asked)
    assert codes(response) == [(t, [(0, 0), (1, 0)]), (u, [(0, 0)]), (t, [(0, 0)]), (t, [(1, 0), (1, 0)])]
    durable = broker.groups.host.coordinator("g").core.durable.by_id["g"]
    assert [
        value and value.offset for value in (durable.committed_offset("t", 0), durable.committed_offset("t", 1))
    ] == [8, 9]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_that_does_not_exist_is_refused_without_partitions_too(broker: VirtualBroker, version: int) -> None:
    nosuch: Any = topic_id("nosuch") if version >= 10 else "nosuch"
    assert codes(broker.call("OffsetCommit", version, request(version, ("nosuch", []), ("t", [])))) == [(nosuch, [])]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_refused_committer_has_the_error_at_each_partition(broker: VirtualBroker, version: int) -> None:
    asked = request(version, ("t", [0, 1]), generation_id_or_member_epoch=5, member_id="m")
    error = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    ((_, partitions),) = codes(broker.call("OffsetCommit", version, asked))
    assert partitions == [(0, error), (1, error)]


def test_nothing_to_commit_asks_no_coordinator() -> None:
    broker = VirtualBroker()
    assert broker.call("OffsetCommit", 8, request(8)).topics == []
    ((_, partitions),) = codes(broker.call("OffsetCommit", 8, request(8, ("nosuch", [0]))))
    assert partitions == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    ((_, partitions),) = codes(broker.call("OffsetCommit", 8, request(8, ("t", [0]))))
    assert partitions == [(0, ErrorCode.NOT_COORDINATOR)]
    broker.loop.close()


def test_metadata_may_be_null_and_may_be_too_long(broker: VirtualBroker) -> None:
    asked = request(8, ("t", [0, 1, 2]))
    asked.topics[0].partitions[0].committed_metadata = None
    asked.topics[0].partitions[1].committed_metadata = "x" * 4097
    ((_, partitions),) = codes(broker.call("OffsetCommit", 8, asked))
    assert partitions == [(0, 0), (1, ErrorCode.OFFSET_METADATA_TOO_LARGE), (2, 0)]


def test_the_setting_for_metadata() -> None:
    broker = VirtualBroker({"offset.metadata.max.bytes": 3})
    broker.start_coordinators()
    ((_, partitions),) = codes(broker.call("OffsetCommit", 8, request(8, ("t", [0]))))
    assert partitions == [(0, ErrorCode.OFFSET_METADATA_TOO_LARGE)]
    broker.groups.close()
    broker.loop.close()


def test_a_commit_is_acknowledged_once_it_is_committed(broker: VirtualBroker) -> None:
    broker.offsets_log("g").hold_commits = True
    sent = broker.send("OffsetCommit", 8, request(8, ("t", [0])))
    assert not sent.answered
    broker.offsets_log("g").commit_all()
    assert codes(sent.response) == [("t", [(0, ErrorCode.NONE)])]


def test_a_commit_that_is_never_committed(broker: VirtualBroker) -> None:
    broker.offsets_log("g").hold_commits = True
    sent = broker.send("OffsetCommit", 8, request(8, ("t", [0]), ("nosuch", [0])))
    broker.offsets_log("g").go_offline("I/O error")
    assert codes(sent.response) == [
        ("nosuch", [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
        ("t", [(0, ErrorCode.NOT_COORDINATOR)]),
    ]
