from collections.abc import Iterator
from typing import Any

import pytest

from group_harness.virtual_broker import VirtualBroker, topic_id
from tidelog.api.offset_fetch import OFFSET_BYTES, TOPIC_BYTES, TopicQuery, _Fetch
from tidelog.metadata.image import CONSUMER_OFFSETS
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

VERSIONS = range(1, 11)
Told = list[tuple[Any, list[tuple[int, int, int, str, int]]]]


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    broker = VirtualBroker()
    broker.start_coordinators()
    yield broker
    broker.groups.close()
    broker.loop.close()


def commit(broker: VirtualBroker, group: str = "g", topic: str = "t", offset: int = 7) -> Any:
    partition = OffsetCommitRequestPartition(0, offset, 3, "note")
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(topic, partitions=[partition])])
    return broker.send("OffsetCommit", 8, request)


def request(version: int, topics: list[tuple[str, list[int]]] | None, *groups: str) -> OffsetFetchRequest:
    groups = groups or ("g",)
    if version < 8:
        asked = None if topics is None else [OffsetFetchRequestTopic(name, parts) for name, parts in topics]
        return OffsetFetchRequest(group_id=groups[0], topics=asked)
    several = None
    if topics is not None:
        several = [
            OffsetFetchRequestTopics(topic_id=topic_id(name), partition_indexes=parts)
            if version >= 10
            else OffsetFetchRequestTopics(name=name, partition_indexes=parts)
            for name, parts in topics
        ]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=several) for group in groups])


def told(version: int, group: Any) -> Told:
    return [
        (
            topic.topic_id if version >= 10 else topic.name,
            [
                (p.partition_index, p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code)
                for p in topic.partitions
            ],
        )
        for topic in group.topics
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_committed_and_not_committed(broker: VirtualBroker, version: int) -> None:
    commit(broker)
    response = broker.call("OffsetFetch", version, request(version, [("t", [0, 1, 99])]))
    (group,) = response.groups if version >= 8 else [response]
    epoch = 3 if version >= 5 else -1
    name: Any = topic_id("t") if version >= 10 else "t"
    assert group.error_code == ErrorCode.NONE
    assert told(version, group) == [(name, [(0, 7, epoch, "note", 0), (1, -1, -1, "", 0), (99, -1, -1, "", 0)])]


@pytest.mark.parametrize("version", range(2, 11))
def test_all_topics(broker: VirtualBroker, version: int) -> None:
    commit(broker, topic="t")
    commit(broker, topic="u", offset=8)
    response = broker.call("OffsetFetch", version, request(version, None))
    (group,) = response.groups if version >= 8 else [response]
    epoch = 3 if version >= 5 else -1
    names: list[Any] = [topic_id("t"), topic_id("u")] if version >= 10 else ["t", "u"]
    assert told(version, group) == [(names[0], [(0, 7, epoch, "note", 0)]), (names[1], [(0, 8, epoch, "note", 0)])]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_group_that_does_not_exist_has_committed_nothing(broker: VirtualBroker, version: int) -> None:
    response = broker.call("OffsetFetch", version, request(version, [("t", [0])], "other"))
    (group,) = response.groups if version >= 8 else [response]
    assert told(version, group)[0][1] == [(0, -1, -1, "", 0)]
    if version >= 2:
        response = broker.call("OffsetFetch", version, request(version, None, "other"))
        (group,) = response.groups if version >= 8 else [response]
        assert group.topics == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_coordinator_that_is_not_here(version: int) -> None:
    broker = VirtualBroker()
    response = broker.call("OffsetFetch", version, request(version, [("t", [0])]))
    (group,) = response.groups if version >= 8 else [response]
    if version == 1:
        assert told(version, group) == [("t", [(0, -1, -1, "", ErrorCode.NOT_COORDINATOR)])]
    else:
        assert group.error_code == ErrorCode.NOT_COORDINATOR
        assert group.topics == []
    broker.loop.close()


@pytest.mark.parametrize("version", [8, 9, 10])
def test_several_groups_come_in_their_order(broker: VirtualBroker, version: int) -> None:
    for number in range(6):
        commit(broker, f"g{number}", offset=number)
    names = ["g3", "none", "g0", "g5", "g3"]
    response = broker.call("OffsetFetch", version, request(version, [("t", [0])], *names))
    assert [group.group_id for group in response.groups] == names
    assert [group.topics[0].partitions[0].committed_offset for group in response.groups] == [3, -1, 0, 5, 3]


def test_a_topic_id_that_is_not_known_comes_last(broker: VirtualBroker) -> None:
    commit(broker)
    response = broker.call("OffsetFetch", 10, request(10, [("nosuch", [0, 1]), ("t", [0])]))
    assert told(10, response.groups[0]) == [
        (topic_id("t"), [(0, 7, 3, "note", 0)]),
        (
            topic_id("nosuch"),
            [(0, -1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID), (1, -1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID)],
        ),
    ]


def test_each_topic_id_that_is_not_known_is_told_of(broker: VirtualBroker) -> None:
    response = broker.call("OffsetFetch", 10, request(10, [("nosuch", [0]), ("nor this", [0, 1])]))
    assert told(10, response.groups[0]) == [
        (topic_id("nosuch"), [(0, -1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID)]),
        (topic_id("nor this"), [(index, -1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID) for index in (0, 1)]),
    ]


def test_an_answer_waits_until_what_it_tells_is_committed(broker: VirtualBroker) -> None:
    broker.offsets_log("g").hold_commits = True
    commit(broker)
    sent = broker.send("OffsetFetch", 5, request(5, [("t", [0])]))
    assert not sent.answered
    broker.offsets_log("g").commit_all()
    assert told(5, sent.response) == [("t", [(0, 7, 3, "note", 0)])]


def test_groups_of_several_coordinators_are_answered_together(broker: VirtualBroker) -> None:
    names = [f"g{number}" for number in range(8)]
    for name in names:
        commit(broker, name)
    slow = broker.offsets_log("g0")
    slow.hold_commits = True
    commit(broker, "g0", offset=9)
    sent = broker.send("OffsetFetch", 8, request(8, [("t", [0])], *names))
    assert not sent.answered
    slow.commit_all()
    assert [group.topics[0].partitions[0].committed_offset for group in sent.response.groups] == [9] + [7] * 7


def test_offsets_of_an_earlier_topic_of_the_name_are_not_told(broker: VirtualBroker) -> None:
    """They can be in the log: the broker may have died between the topic's deletion and their tombstones."""
    commit(broker, topic="t")
    commit(broker, topic="u")
    again = VirtualBroker(topics={}, partitions=broker.partitions)
    again.change_topics({"t": 3, "u": 1, CONSUMER_OFFSETS: 2}, ids={"t": topic_id("made anew")})
    for version in (1, 5, 8):
        response = again.call("OffsetFetch", version, request(version, [("t", [0]), ("u", [0])]))
        (group,) = response.groups if version >= 8 else [response]
        assert [partitions[0][1] for _, partitions in told(version, group)] == [-1, 7]
    assert [name for name, _ in told(5, again.call("OffsetFetch", 5, request(5, None)))] == ["u"]
    again.groups.close()
    again.loop.close()


def test_stable_offsets_are_all_there_are(broker: VirtualBroker) -> None:
    commit(broker)
    asked = request(7, [("t", [0])])
    asked.require_stable = True
    assert told(7, broker.call("OffsetFetch", 7, asked)) == [("t", [(0, 7, 3, "note", 0)])]


def test_no_topics_and_no_groups(broker: VirtualBroker) -> None:
    assert broker.call("OffsetFetch", 5, request(5, [])).topics == []
    assert broker.call("OffsetFetch", 8, OffsetFetchRequest(groups=[])).groups == []


@pytest.mark.parametrize("version", VERSIONS)
def test_an_offset_is_told_as_often_as_it_is_named(broker: VirtualBroker, version: int) -> None:
    commit(broker)
    broker.settle()
    asked = request(version, [("t", [0, 1, 0, 0]), ("t", [0, 2])])
    answer = broker.call("OffsetFetch", version, asked)
    group = answer.groups[0] if version >= 8 else answer
    topic = topic_id("t") if version >= 10 else "t"
    epoch = 3 if version >= 5 else -1
    zero, none = (0, 7, epoch, "note", 0), (-1, -1, "", 0)
    assert told(version, group) == [(topic, [zero, (1, *none), zero, zero]), (topic, [zero, (2, *none)])]


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata_is_told_again_while_there_is_room(
    broker: VirtualBroker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four bytes name it, and KB of metadata may stand with it."""
    monkeypatch.setattr("tidelog.api.repeats.REPEATED_BYTES_MAX", 3 * len("note"))
    commit(broker)
    broker.settle()
    answer = broker.call("OffsetFetch", version, request(version, [("t", [0] * 4 + [1] * 20)]))
    group = answer.groups[0] if version >= 8 else answer
    assert group.error_code == 0
    assert [len(topic.partitions) for topic in group.topics] == [24]
    answer = broker.call("OffsetFetch", version, request(version, [("t", [0] * 3), ("t", [1, 0, 0])]))
    group = answer.groups[0] if version >= 8 else answer
    if version == 1:
        assert {p.error_code for topic in group.topics for p in topic.partitions} == {ErrorCode.INVALID_REQUEST}
        assert [len(topic.partitions) for topic in group.topics] == [3, 3]
    else:
        assert (group.error_code, group.topics) == (ErrorCode.INVALID_REQUEST, [])


@pytest.mark.parametrize("version", [8, 9, 10])
def test_a_group_is_told_of_again_while_there_is_room(
    broker: VirtualBroker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(broker)
    broker.settle()
    answer = broker.call("OffsetFetch", version, request(version, None, *["g"] * 100))
    assert [(group.error_code, len(group.topics)) for group in answer.groups] == [(0, 1)] * 100
    monkeypatch.setattr("tidelog.api.repeats.REPEATED_BYTES_MAX", 2 * (TOPIC_BYTES + 1 + OFFSET_BYTES + len("note")))
    answer = broker.call("OffsetFetch", version, request(version, None, *["g"] * 4, "other", "other"))
    assert [(group.group_id, group.error_code, len(group.topics)) for group in answer.groups] == [
        *[("g", ErrorCode.NONE, 1)] * 3,
        ("g", ErrorCode.INVALID_REQUEST, 0),
        *[("other", ErrorCode.NONE, 0)] * 2,
    ]


@pytest.mark.parametrize("version", [8, 9, 10])
def test_a_group_that_is_named_for_some_topics_for_all_and_for_others(broker: VirtualBroker, version: int) -> None:
    for topic in ("t", "u"):
        commit(broker, topic=topic)
    broker.settle()
    name = topic_id if version >= 10 else str
    asked = request(version, [("t", [0])])
    for others in (None, [("u", [0]), ("t", [0])], []):
        asked.groups += request(version, others).groups
    assert [
        [(topic, [p[1] for p in partitions]) for topic, partitions in told(version, group)]
        for group in broker.call("OffsetFetch", version, asked).groups
    ] == [[(name("t"), [7])], [(name("t"), [7]), (name("u"), [7])], [(name("u"), [7]), (name("t"), [7])], []]


def test_a_group_that_is_named_a_thousand_times_is_copied_once(broker: VirtualBroker) -> None:
    commit(broker)
    broker.settle()
    fetch = _Fetch(8, broker.metadata.image, require_stable=False)
    durable = broker.groups.host.coordinator("g").core.durable.by_id["g"]
    everything = [fetch._copy_offsets("g", None, durable, []) for _ in range(1000)]
    some = fetch._copy_offsets("g", [TopicQuery("t", b"", [0], ErrorCode.NONE)], durable, [])
    assert all(copied is some for copied in everything)
    assert some == durable.offsets
    assert some["t"] is not durable.offsets["t"]
