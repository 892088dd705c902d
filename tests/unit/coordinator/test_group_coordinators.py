import asyncio
from collections.abc import Iterator
from types import CoroutineType
from typing import Any

import pytest

from group_harness.virtual_broker import VirtualBroker, topic_id
from tidelog.coordinator.group.core import SWEEP_RECORDS_MAX
from tidelog.coordinator.group.offsets import OffsetCommit, OffsetToCommit
from tidelog.coordinator.groups import hyphenated_uuid
from tidelog.metadata.image import CONSUMER_OFFSETS, MetadataImage
from tidelog.model.steps import run_all
from tidelog.wire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidGroupId,
    InvalidRequest,
    NotCoordinator,
)
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    broker = VirtualBroker(offsets_partitions=4)
    yield broker
    broker.groups.close()
    broker.loop.close()


def commit(broker: VirtualBroker, group: str, offset: int = 5, topic: str = "t") -> int:
    partition = OffsetCommitRequestPartition(0, offset, -1, "")
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(topic, partitions=[partition])])
    response = broker.call("OffsetCommit", 8, request)
    code: int = response.topics[0].partitions[0].error_code
    return code


def committed(broker: VirtualBroker, group: str, topic: str = "t") -> int | None:
    told: list[Any] = []

    def read(durable: Any, _pending: object) -> int | None:
        value = durable.committed_offset(topic, 0) if durable else None
        return value.offset if value else None

    broker.groups.read_offsets(group, read, told.append)
    broker.settle()
    (answer,) = told
    return answer  # type: ignore[no-any-return]


def test_without_the_topic_no_group_is_here(broker: VirtualBroker) -> None:
    with pytest.raises(NotCoordinator):
        broker.groups.heartbeat(HeartbeatRequest("g", 1, "m"))
    assert list(broker.groups.listing()) == []
    with pytest.raises(CoordinatorNotAvailable):
        broker.groups.host.address_of("g", "")
    assert not broker.groups.host.has_topic


def test_the_topic_is_made_once_and_its_coordinators_are_ready(broker: VirtualBroker) -> None:
    broker.loop.run_until_complete(broker.groups.host.make_topic())
    assert broker.made_topics == [CONSUMER_OFFSETS]
    assert broker.groups.host.has_topic
    assert broker.groups.host.address_of("g", "")[1].host == "broker.example"
    assert broker.groups.heartbeat(HeartbeatRequest("g", 1, "m")) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_topic_that_cannot_be_made(broker: VirtualBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.refuse_topics = ErrorCode.POLICY_VIOLATION
    with pytest.raises(CoordinatorNotAvailable, match="refused by the test"):
        broker.loop.run_until_complete(broker.groups.host.make_topic())
    assert _lines_of_tidelog(caplog) == [("ERROR", "cannot create topic")]


@pytest.mark.parametrize("error", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT])
def test_a_topic_that_cannot_be_made_at_present(
    broker: VirtualBroker, error: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    """While the cluster has no controller, nobody needs to act: the line is a warning."""
    broker.refuse_topics = error
    with pytest.raises(CoordinatorNotAvailable, match="refused by the test"):
        broker.loop.run_until_complete(broker.groups.host.make_topic())
    assert _lines_of_tidelog(caplog) == [("WARNING", "cannot create topic")]


def _lines_of_tidelog(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and first words. asyncio may log at any time that a task of an earlier test was destroyed."""
    return [(line.levelname, line.message[:19]) for line in caplog.records if line.name.startswith("tidelog")]


def test_groups_are_spread_by_their_hash(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    for number in range(40):
        assert commit(broker, f"group-{number}") == ErrorCode.NONE
    logs = [broker.partitions.table[CONSUMER_OFFSETS, index].log for index in range(4)]
    assert all(log.log_end_offset > 0 for log in logs)
    assert sum(log.log_end_offset for log in logs) == 40
    assert sorted(group.group_id for group in broker.groups.listing()) == sorted(f"group-{n}" for n in range(40))


def test_a_new_broker_on_the_same_logs_knows_every_commit(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    for number in range(40):
        commit(broker, f"group-{number}", number)
    again = VirtualBroker(offsets_partitions=4, partitions=broker.partitions)
    again.start_coordinators()
    assert [committed(again, f"group-{number}") for number in range(40)] == list(range(40))


def test_while_loading(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    commit(broker, "g")
    again = VirtualBroker(offsets_partitions=4, partitions=broker.partitions)
    for partition in broker.partitions.table.values():
        partition.log.file.cold = True
    again.tasks.run_blocking = lambda *_, lane="": again.tasks.future()  # type: ignore[method-assign]
    again.start_coordinators()
    assert again.groups.heartbeat(HeartbeatRequest("g", 1, "m")) == ErrorCode.NONE
    with pytest.raises(CoordinatorLoadInProgress):
        list(again.groups.listing())
    with pytest.raises(CoordinatorLoadInProgress):
        again.groups.read_offsets("g", lambda durable, pending: None, print)


def test_while_a_load_fails_clients_are_told_and_no_list_is_short(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    commit(broker, "g")
    for partition in broker.partitions.table.values():
        partition.log.read_error = OSError(5, "Input/output error")
    again = VirtualBroker(offsets_partitions=4, partitions=broker.partitions)
    again.start_coordinators()
    with pytest.raises(CoordinatorNotAvailable):
        again.groups.heartbeat(HeartbeatRequest("g", 1, "m"))
    with pytest.raises(CoordinatorNotAvailable):
        list(again.groups.listing())
    for partition in broker.partitions.table.values():
        partition.log.read_error = None
    again.advance(1)
    assert [group.group_id for group in again.groups.listing()] == ["g"]


def test_a_group_that_members_join_needs_a_name(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    with pytest.raises(InvalidGroupId):
        broker.groups.heartbeat(HeartbeatRequest("", 1, "m"))
    with pytest.raises(InvalidGroupId):
        broker.groups.join(JoinGroupRequest(""), "c", "/h", 3, print)
    assert commit(broker, "") == ErrorCode.NONE, "a consumer that assigns its partitions itself does not"


def test_offsets_of_a_deleted_topic_are_forgotten(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    commit(broker, "g", 5, "t")
    commit(broker, "g", 6, "u")
    broker.change_topics({"u": 1, CONSUMER_OFFSETS: 4})
    assert committed(broker, "g", "t") is None
    assert committed(broker, "g", "u") == 6


def test_offsets_of_a_topic_that_was_made_anew_are_forgotten(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    commit(broker, "g", 5, "t")
    broker.change_topics({"t": 3, "u": 1, CONSUMER_OFFSETS: 4}, ids={"t": topic_id("another")})
    assert committed(broker, "g", "t") is None


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("version", [8, 10])
def test_a_commit_that_a_deletion_overtakes_brings_no_offset_back(
    broker: VirtualBroker, anew: bool, version: int
) -> None:
    broker.start_coordinators()
    assert commit(broker, "g") == ErrorCode.NONE
    offsets = [OffsetToCommit(name, topic_id(name), 0, 7, -1, "") for name in ("u", "t", "u", "t")]
    told: list[Any] = []
    steps = broker.groups.commit(OffsetCommit("g", "", None, -1, -1, version, offsets), told.append)
    for _ in range(3):
        next(steps)
    there = {"u": 1, CONSUMER_OFFSETS: 4}
    broker.change_topics({"t": 3, **there} if anew else there, ids={"t": topic_id("another")} if anew else {})
    assert committed(broker, "g") is None
    run_all(steps)
    broker.settle()
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert told == [[ErrorCode.NONE, unknown, ErrorCode.NONE, unknown]]
    assert committed(broker, "g") is None
    assert committed(broker, "g", "u") == 7


def without_t(image: MetadataImage) -> MetadataImage:
    topics = {name: topic for name, topic in image.topics.items() if name != "t"}
    return MetadataImage(
        brokers=image.brokers, topics=topics, topics_by_id={topic.topic_id: topic for topic in topics.values()}
    )


def test_others_are_served_while_many_groups_forget_a_topic() -> None:
    broker = VirtualBroker(offsets_partitions=1)
    broker.start_coordinators()
    groups = [f"g{number}" for number in range(SWEEP_RECORDS_MAX + 100)]
    for group in groups:
        commit(broker, group)
    answer = broker.groups.on_image(broker.metadata.image, without_t(broker.metadata.image))
    assert isinstance(answer, CoroutineType)
    answer.send(None)
    left = [group for group in groups if committed(broker, group) is not None]
    assert left == groups[SWEEP_RECORDS_MAX:]
    assert commit(broker, "other", topic="u") == ErrorCode.NONE
    for group in (groups[0], groups[-1]):
        assert commit(broker, group, 6) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the image has it still"
    assert broker.call("DeleteGroups", 2, DeleteGroupsRequest([groups[-2]])).results[0].error_code == ErrorCode.NONE
    with pytest.raises(StopIteration):
        for _ in groups:
            answer.send(None)
    assert [group for group in groups if committed(broker, group) is not None] == []
    assert committed(broker, "other", "u") == 5
    broker.groups.close()
    broker.loop.close()


def test_a_stop_ends_the_forgetting() -> None:
    broker = VirtualBroker(offsets_partitions=1)
    broker.start_coordinators()
    for number in range(SWEEP_RECORDS_MAX + 1):
        commit(broker, f"g{number}")
    log = broker.offsets_log("g0")
    answer = broker.groups.on_image(broker.metadata.image, without_t(broker.metadata.image))
    assert isinstance(answer, CoroutineType)
    answer.send(None)
    end = log.log.log_end_offset
    broker.groups.close()
    with pytest.raises(StopIteration):
        answer.send(None)
    assert log.log.log_end_offset == end
    broker.loop.close()


def test_a_topic_that_grows_keeps_its_offsets(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    commit(broker, "g", 5, "t")
    broker.change_topics({"t": 9, "u": 1, CONSUMER_OFFSETS: 4})
    assert committed(broker, "g", "t") == 5


def test_partitions_that_are_no_longer_led_are_laid_down(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    commit(broker, "g")
    broker.change_topics({"t": 3, "u": 1})
    with pytest.raises(NotCoordinator):
        broker.groups.heartbeat(HeartbeatRequest("g", 1, "m"))


def test_a_partition_that_comes_back_is_loaded_from_its_log(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    commit(broker, "g", 8)
    broker.change_topics({"t": 3, "u": 1})
    broker.start_coordinators()
    assert committed(broker, "g") == 8


def test_a_partition_that_is_opened_late_is_served_from_then_on(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    commit(broker, "g")
    (key,) = [key for key, partition in broker.partitions.table.items() if partition.log.log_end_offset]
    partition = broker.partitions.take_out(key)
    with pytest.raises(CoordinatorNotAvailable):
        broker.groups.host.address_of("g", "")
    assert list(broker.groups.listing()) == []
    broker.partitions.put_back(key, partition)
    broker.settle()
    assert broker.groups.host.address_of("g", "")[1].host == "broker.example"
    assert committed(broker, "g") == 5


def test_old_offsets_are_swept_by_the_clock() -> None:
    broker = VirtualBroker(
        {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 10_000}, offsets_partitions=4
    )
    broker.start_coordinators()
    broker.loop.call_soon(broker.groups.start)
    for number in range(500):
        commit(broker, f"group-{number}")
    broker.advance(55)
    assert len(list(broker.groups.listing())) == 500
    broker.advance(20)
    assert list(broker.groups.listing()) == []
    broker.groups.close()
    broker.settle()


def test_a_sweep_leaves_the_loop_its_turns(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    for number in range(1000):
        commit(broker, f"group-{number}")
    turns = 0

    async def count() -> None:
        nonlocal turns
        sweep = asyncio.ensure_future(broker.groups.sweep())
        while not sweep.done():
            turns += 1
            await asyncio.sleep(0)

    broker.loop.run_until_complete(count())
    assert turns >= 5


def test_closing_refuses_what_comes_later(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    broker.groups.close()
    with pytest.raises(NotCoordinator):
        broker.groups.heartbeat(HeartbeatRequest("g", 1, "m"))


def test_the_form_of_a_random_id() -> None:
    assert hyphenated_uuid(bytes(range(16))) == "00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.mark.parametrize("letter", ["x", "ä"])
@pytest.mark.parametrize("what", ["client id", "group instance id"])
def test_a_member_id_that_no_record_can_hold_is_not_given(broker: VirtualBroker, letter: str, what: str) -> None:
    """It begins with a name of the client's, which may be as long as a record's alone."""
    broker.start_coordinators()
    told: list[Any] = []

    def join(name: str) -> None:
        client_id, instance_id = (name, None) if what == "client id" else ("c", name)
        protocols = [JoinGroupRequestProtocol("range", b"")]
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            group_instance_id=instance_id,
            protocol_type="consumer",
            protocols=protocols,
        )
        broker.groups.join(request, client_id, "/h", 9, told.append)
        broker.settle()

    longest = letter * (32_730 // len(letter.encode()))
    with pytest.raises(InvalidRequest, match=f"the {what}.* longer than 32730 bytes"):
        join(longest + letter)
    assert list(broker.groups.listing()) == []
    join(longest)
    if what == "client id":
        assert told[0].error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert len(told[0].member_id.encode()) == 32_767
