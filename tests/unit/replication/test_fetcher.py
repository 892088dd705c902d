"""A follower against a scripted leader, on virtual time: sessions, errors of partitions, cuts, syncs, faults."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from follower_harness import LEADER_ID, SETTINGS, TOPIC_ID, FollowerScene, storage_error
from scripted_harness import Asked
from tidelog.client.operations import LATEST
from tidelog.config.broker_config import BrokerConfig
from tidelog.replication.followed import FetchSettings
from tidelog.simulation.world import simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.wire.messages.list_offsets import ListOffsetsRequest

Scenario = Callable[[FollowerScene], Coroutine[Any, Any, None]]


def run(scenario: Scenario, partitions: int = 1, **options: Any) -> None:
    async def whole(scene: FollowerScene) -> None:
        await scene.start()
        await scenario(scene)
        await scene.fetcher.stop()
        assert len(scene.fetcher) == 0

    for seed in range(3):
        with simulated(seed) as world:
            world.run(whole(FollowerScene(world, partitions, **options)))


def named_in(request: FetchRequest) -> dict[int, FetchPartition]:
    assert all(topic.topic_id == TOPIC_ID for topic in request.topics)
    return {item.partition: item for topic in request.topics for item in topic.partitions}


def forgotten_in(request: FetchRequest) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


def test_records_are_copied_and_the_session_names_changes_only() -> None:
    async def scenario(scene: FollowerScene) -> None:
        leader = scene.leader
        for log in leader.logs:
            log.append(b"a", b"b")
            log.high_watermark = 1
        for index in range(3):
            scene.follow(index)
        await scene.until(lambda: all(scene.has_caught_up(index) for index in range(3)))
        await scene.until(lambda: len(leader.fetches) > 1)
        first, second = leader.fetches[:2]
        assert (first.session_id, first.session_epoch, sorted(named_in(first))) == (0, 0, [0, 1, 2])
        assert (first.min_bytes, first.max_wait_ms, first.max_bytes) == (1, 500, 10 << 20)
        assert (second.session_id, second.session_epoch, sorted(named_in(second))) == (101, 1, [0, 1, 2])
        assert {(item.fetch_offset, item.last_fetched_epoch) for item in named_in(second).values()} == {(2, 0)}
        assert [replica.high_watermark for replica in scene.replicas] == [1, 1, 1]
        await asyncio.sleep(2)
        assert len(leader.fetches) <= 7, "an idle follower waits at its leader"
        assert all(not request.topics for request in leader.fetches[2:])
        leader.logs[1].append(b"c")
        await scene.until(lambda: scene.has_caught_up(1))
        await asyncio.sleep(1)
        named = [named_in(request) for request in leader.fetches[2:] if request.topics]
        assert [sorted(items) for items in named] == [[1]]
        assert (named[0][1].fetch_offset, named[0][1].log_start_offset) == (3, 0)
        assert scene.syncs == []

    run(scenario, partitions=3)


def test_partitions_join_and_leave_without_a_new_session() -> None:
    async def scenario(scene: FollowerScene) -> None:
        leader = scene.leader
        scene.follow(0)
        await asyncio.sleep(1)
        scene.follow(1)
        leader.logs[1].append(b"x")
        await scene.until(lambda: scene.has_caught_up(1))
        scene.unfollow(0)
        await asyncio.sleep(1)
        leader.logs[0].append(b"not followed")
        await asyncio.sleep(1)
        assert scene.replicas[0].entries() == []
        assert [request.session_epoch for request in leader.fetches].count(0) == 1
        assert [forgotten_in(request) for request in leader.fetches if forgotten_in(request)] == [[0]]
        scene.follow(0)
        await scene.until(lambda: scene.has_caught_up(0))
        scene.unfollow(0)
        scene.unfollow(1)
        count = len(leader.fetches)
        await asyncio.sleep(3)
        assert len(leader.fetches) <= count + 1, "there is nothing to fetch"

    run(scenario, partitions=2)


def test_an_answer_for_an_earlier_epoch_is_dropped_and_asked_for_again() -> None:
    async def scenario(scene: FollowerScene) -> None:
        leader, log = scene.leader, scene.leader.logs[0]
        held: list[Asked] = []

        def hold(asked: Asked) -> None:
            held.append(asked)
            asked.connection.stuck = True  # type: ignore[attr-defined]

        leader.intercept = lambda asked: hold(asked) or FetchResponse(session_id=-1)  # type: ignore[func-returns-value]
        original = leader.broker.answer
        leader.broker.answer = lambda asked: hold(asked) if not held else original(asked)
        leader.intercept = None
        log.append(b"old")
        scene.follow(0)
        await scene.until(lambda: bool(held))
        log.begin_epoch(1)
        log.append(b"new")
        scene.follow(0)
        data = PartitionData(0, 0, 2, -1, 0, records=log.batches[0])
        held[0].answer(FetchResponse(session_id=5, responses=[FetchableTopicResponse("", TOPIC_ID, [data])]))
        await scene.until(scene.has_caught_up)
        assert leader.fetches[0].session_epoch == 0, "the leader must state everything again"

    run(scenario)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        12_345,
    ],
)
def test_a_refused_partition_pauses_alone_and_is_logged_once(code: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(scene: FollowerScene) -> None:
        leader = scene.leader
        leader.errors[0] = code
        scene.follow(0)
        scene.follow(1)
        for number in range(20):
            leader.logs[1].append(b"%d" % number)
            await scene.until(lambda: scene.has_caught_up(1), 0.7)
            await asyncio.sleep(0.1)
        tries = sum(0 in named_in(request) for request in leader.fetches)
        assert 3 <= tries <= 10, "one attempt for each pause of 300 ms"
        del leader.errors[0]
        leader.logs[0].append(b"at last")
        await scene.until(lambda: scene.has_caught_up(0), 1.5)
        assert scene.replicas[0].ended == []

    run(scenario, partitions=2)
    lines = [record.getMessage() for record in caplog.records if record.name == "tidelog.fetcher"]
    assert sum(line.startswith("partition not fetched, trying again partition=orders-0") for line in lines) == 3
    assert sum(line.startswith("partition followed again partition=orders-0") for line in lines) == 3
    assert len(lines) == 6


@pytest.mark.parametrize("delay_s", [0.01, 0.1, 2.0])
def test_a_partition_is_fetched_soon_after_its_leader_knows_the_new_epoch(
    delay_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The follower learns of the election before the leader. All partitions are named in the same requests again. No
    line is logged if the leader learns of it soon.
    """
    caplog.set_level(logging.INFO)
    count = 50

    async def scenario(scene: FollowerScene) -> None:
        logs = scene.leader.logs
        for index in range(count):
            scene.follow(index, epoch=1)
        await asyncio.sleep(delay_s)
        for log in logs:
            log.begin_epoch(1)
            log.append(b"x")
        caught_up = await scene.until(lambda: all(scene.has_caught_up(index) for index in range(count)), 1.5)
        assert caught_up < max(0.15, 1.5 * delay_s)
        assert len(scene.leader.fetches) < 20

    run(scenario, partitions=count, settings=SETTINGS._replace(backoff_ms=1_000))
    assert any(record.name == "tidelog.fetcher" for record in caplog.records) == (delay_s > 1)


def test_a_fenced_partition_ends_until_it_is_followed_in_a_new_epoch() -> None:
    async def scenario(scene: FollowerScene) -> None:
        scene.leader.logs[0].begin_epoch(4)
        scene.leader.logs[0].append(b"x")
        scene.follow(0, epoch=3)
        await scene.until(lambda: bool(scene.replicas[0].ended))
        assert [error.code for error in scene.replicas[0].ended] == [ErrorCode.FENCED_LEADER_EPOCH]
        count = len(scene.leader.fetches)
        await asyncio.sleep(2)
        assert len(scene.leader.fetches) == count
        scene.follow(0, epoch=4)
        await scene.until(scene.has_caught_up)

    run(scenario)


def test_a_broken_log_of_the_follower_ends_its_partition_alone() -> None:
    async def scenario(scene: FollowerScene) -> None:
        for log in scene.leader.logs:
            log.append(b"x")
        scene.replicas[0].refuse_append = storage_error()
        scene.follow(0)
        scene.follow(1)
        await scene.until(lambda: scene.has_caught_up(1))
        await asyncio.sleep(1)
        assert [error.code for error in scene.replicas[0].ended] == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert [index for request in scene.leader.fetches for index in named_in(request)].count(0) == 1

    run(scenario, partitions=2)


@pytest.mark.parametrize(("damage", "kept"), [(0, 0), (1, 1)])
def test_damaged_batches_are_fetched_again(damage: int, kept: int) -> None:
    async def scenario(scene: FollowerScene) -> None:
        log = scene.leader.logs[0]
        log.append(b"first")
        log.append(b"second")
        whole = [*log.batches]
        broken = bytearray(whole[damage])
        broken[-1] ^= 1
        log.batches[damage] = bytes(broken)
        scene.follow(0)
        await asyncio.sleep(1)
        assert scene.replicas[0].log_end_offset == kept
        log.batches[:] = whole
        await scene.until(scene.has_caught_up)

    run(scenario)


def test_diverging_logs_are_cut_by_epoch() -> None:
    """The histories of KIP-101 and KIP-279: both sides have records that the other has not, in several epochs."""

    async def scenario(scene: FollowerScene) -> None:
        log, replica = scene.leader.logs[0], scene.replicas[0]
        own = type(log)()
        for both in (log, own):
            both.append(b"0", b"1", epoch=0)
            both.append(b"2", epoch=1)
        for value, epoch in ((b"f3", 2), (b"f4", 4)):
            own.append(value, epoch=epoch)
        log.append(b"l3", b"l4", epoch=3)
        log.append(b"l5", epoch=5)
        replica.on.log.append_as_follower(memoryview(b"".join(own.batches)))
        replica.high_watermark = 3
        scene.follow(0)
        await scene.until(scene.has_caught_up)
        # Epoch 4 is unknown to the leader, and epoch 3 to the follower, which therefore goes back to its epoch 2; the
        # leader does not know that one either.
        assert replica.cuts == [4, 3]
        assert replica.on.log.epochs.entries() == log.epochs

    run(scenario)


def test_an_epoch_without_records_is_cut_too() -> None:
    """The follower led in epoch 3 and appended nothing. The leader does not know this epoch."""

    async def scenario(scene: FollowerScene) -> None:
        log, replica = scene.leader.logs[0], scene.replicas[0]
        log.append(b"0", epoch=2)
        replica.on.log.append_as_follower(memoryview(log.batches[0]))
        replica.on.log.epochs.assign(3, 1)
        log.append(b"1", epoch=4)
        scene.follow(0)
        await scene.until(scene.has_caught_up)
        assert replica.cuts == [1]
        assert replica.on.log.epochs.entries() == [(2, 0), (4, 1)]

    run(scenario)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_leader_that_reports_differences_without_end_is_not_asked_without_pause(
    epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(scene: FollowerScene) -> None:
        leader, log = scene.leader, scene.leader.logs[0]
        log.append(b"x", epoch=1)
        scene.replicas[0].on.log.append_as_follower(memoryview(log.batches[0]))
        original = leader.answer_partition

        def differ(index: int, item: FetchPartition) -> PartitionData:
            data = PartitionData(index, 0, 0, -1, 0, records=b"")
            data.diverging_epoch = EpochEndOffset(epoch, 9)
            return data

        leader.answer_partition = differ  # type: ignore[method-assign]
        scene.follow(0)
        await asyncio.sleep(6)
        assert 3 <= len(leader.fetches) <= 60
        leader.answer_partition = original  # type: ignore[method-assign]
        await scene.until(scene.has_caught_up)

    run(scenario)
    assert ("after 1 cut, " if epoch else "after 2 cuts, ") in caplog.text


def test_a_partition_that_is_cut_does_not_hold_the_others_up() -> None:
    async def scenario(scene: FollowerScene) -> None:
        own = type(scene.leader.logs[0])()
        own.append(b"mine", epoch=1)
        scene.replicas[0].on.log.append_as_follower(memoryview(own.batches[0]))
        scene.replicas[0].cut_s = 5.0
        scene.leader.logs[0].append(b"theirs", epoch=2)
        scene.follow(0)
        scene.follow(1)
        await asyncio.sleep(1)
        scene.leader.logs[1].append(b"x")
        await scene.until(lambda: scene.has_caught_up(1), 1)
        assert not scene.has_caught_up(0)
        await scene.until(lambda: scene.has_caught_up(0), 10)

    run(scenario, partitions=2)


def test_a_cut_that_a_new_epoch_overtakes_changes_nothing_for_it() -> None:
    async def scenario(scene: FollowerScene) -> None:
        log, replica = scene.leader.logs[0], scene.replicas[0]
        own = type(log)()
        own.append(b"mine", epoch=1)
        replica.on.log.append_as_follower(memoryview(own.batches[0]))
        replica.cut_s = 1.0
        log.append(b"theirs", epoch=2)
        scene.follow(0)
        await asyncio.sleep(0.5)
        log.begin_epoch(3)
        scene.follow(0)
        await scene.until(scene.has_caught_up, 10)
        assert replica.cuts == [0]

    run(scenario)


def test_a_follower_below_the_leaders_log_begins_there_anew() -> None:
    async def scenario(scene: FollowerScene) -> None:
        for log in scene.leader.logs:
            for number in range(10):
                log.append(b"%d" % number)
        for replica in scene.replicas:
            replica.on.log.append_as_follower(memoryview(scene.leader.logs[0].batches[0]))
        for log in scene.leader.logs:
            log.delete_before(6)
        for index in range(3):
            scene.follow(index)
        await scene.until(lambda: all(scene.has_caught_up(index) for index in range(3)))
        assert [replica.log_start_offset for replica in scene.replicas] == [6, 6, 6]
        asked = [request for request in scene.leader.broker.requests if isinstance(request, ListOffsetsRequest)]
        assert len(asked) == 2, "one request for the ends and one for the starts of all partitions"
        for log in scene.leader.logs:
            log.delete_before(8)
        await scene.until(lambda: all(replica.log_start_offset == 8 for replica in scene.replicas))

    run(scenario, partitions=3)


def test_a_follower_that_ends_where_the_leaders_log_begins_keeps_nothing_that_the_leader_cannot_confirm() -> None:
    async def scenario(scene: FollowerScene) -> None:
        log, replica = scene.leader.logs[0], scene.replicas[0]
        own = type(log)()
        own.append(b"0", epoch=0)
        own.append(b"mine", epoch=0)
        log.append(b"0", epoch=0)
        log.append(b"theirs", epoch=1)
        replica.on.log.append_as_follower(memoryview(b"".join(own.batches)))
        log.begin_epoch(2)
        log.delete_before(2)
        log.high_watermark = 2
        seen = []
        answer = scene.leader.answer_partition

        def refuse(index: int, item: FetchPartition) -> PartitionData:
            seen.append((replica.high_watermark, replica.entries()))
            if item.last_fetched_epoch == 0 and item.fetch_offset == log.start:
                return PartitionData(index, ErrorCode.OFFSET_OUT_OF_RANGE, -1, records=b"")
            return answer(index, item)

        scene.leader.answer_partition = refuse  # type: ignore[method-assign]
        scene.follow(0)
        await scene.until(lambda: replica.log_start_offset == 2)
        assert (replica.log_end_offset, replica.entries(), replica.cuts) == (2, [], [])
        assert all(high_watermark < 2 for high_watermark, entries in seen if entries)
        log.append(b"next", epoch=2)
        await scene.until(scene.has_caught_up)

    run(scenario)


def test_a_follower_behind_the_leaders_end_without_epochs_is_cut() -> None:
    async def scenario(scene: FollowerScene) -> None:
        log = scene.leader.logs[0]
        own = type(log)()
        own.append(b"0", b"1", epoch=0)
        own.append(b"2", epoch=0)
        log.append(b"0", b"1", epoch=0)
        scene.replicas[0].on.log.append_as_follower(memoryview(b"".join(own.batches)))
        scene.replicas[0].on.log.epochs.truncate_from_end(0)
        scene.follow(0)
        await scene.until(scene.has_caught_up)
        assert scene.replicas[0].cuts == [2]

    run(scenario)


@pytest.mark.parametrize("failing", ["offsets", "error", "silence"])
def test_a_leader_that_does_not_tell_its_range_is_asked_again_after_a_pause(failing: str) -> None:
    async def scenario(scene: FollowerScene) -> None:
        leader, log = scene.leader, scene.leader.logs[0]
        log.append(b"0")
        log.append(b"1")
        log.delete_before(1)
        answer = leader.broker.answer

        def fail(asked: Asked) -> Any:
            request = asked.request
            if isinstance(request, ListOffsetsRequest) and asks_too_much < 2:
                nonlocal_count()
                if failing == "silence":
                    asked.connection.stream.abort()
                    return None
                if failing == "offsets" and request.topics[0].partitions[0].timestamp != LATEST:
                    return answer(asked)
                leader.errors[0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
                response = answer(asked)
                leader.errors.clear()
                return response
            return answer(asked)

        asks_too_much = 0

        def nonlocal_count() -> None:
            nonlocal asks_too_much
            asks_too_much += 1

        leader.broker.answer = fail
        scene.follow(0)
        await scene.until(scene.has_caught_up)

    run(scenario)


def test_one_sync_for_all_partitions_of_an_answer_before_new_offsets_are_named() -> None:
    async def scenario(scene: FollowerScene) -> None:
        leader = scene.leader
        original = leader.answer_partition

        def check(index: int, item: FetchPartition) -> PartitionData:
            assert item.fetch_offset <= scene.replicas[index].synced_end, "it named records that are not durable"
            return original(index, item)

        leader.answer_partition = check  # type: ignore[method-assign]
        for index in range(3):
            scene.follow(index)
        await asyncio.sleep(1)
        assert scene.syncs == [[0, 1, 2]], "records from an earlier role are synced first"
        for log in leader.logs:
            log.append(b"x")
        await scene.until(lambda: all(scene.has_caught_up(index) for index in range(3)))
        await asyncio.sleep(1)
        assert scene.syncs == [[0, 1, 2], [0, 1, 2]]
        scene.failing_syncs = [1]
        for log in leader.logs:
            log.append(b"y")
        await asyncio.sleep(2)
        assert [len(replica.ended) for replica in scene.replicas] == [0, 1, 0]
        scene.failing_syncs = []
        leader.logs[0].append(b"z")
        await scene.until(lambda: scene.has_caught_up(0))

    run(scenario, partitions=3, must_sync=True)


def test_a_frozen_log_appends_records_but_its_new_end_is_named_only_after_the_thaw() -> None:
    """A move to another data directory ends: after a kill the old log would be used, which lacks the new records."""

    async def scenario(scene: FollowerScene) -> None:
        leader, frozen = scene.leader, scene.replicas[0]
        original = leader.answer_partition
        named: list[tuple[int, int]] = []

        def note(index: int, item: FetchPartition) -> PartitionData:
            named.append((index, item.fetch_offset))
            return original(index, item)

        leader.answer_partition = note  # type: ignore[method-assign]
        for index in range(2):
            scene.follow(index)
        await asyncio.sleep(1)
        frozen.is_frozen = True
        for log in leader.logs:
            log.append(b"x")
        await scene.until(lambda: scene.has_caught_up(0) and scene.has_caught_up(1))
        leader.logs[1].append(b"y")
        await scene.until(lambda: scene.has_caught_up(1))
        assert {offset for index, offset in named if index == 0} == {0}
        assert max(offset for index, offset in named if index == 1) >= 1, "the other partition is fetched on"
        frozen.is_frozen = False
        await scene.until(lambda: (0, 1) in named)

    run(scenario, partitions=2)


def test_records_before_a_damaged_batch_are_synced_too() -> None:
    async def scenario(scene: FollowerScene) -> None:
        log = scene.leader.logs[0]
        scene.follow(0)
        await asyncio.sleep(1)
        log.append(b"good")
        log.append(b"bad")
        log.batches[1] = log.batches[1][:-1] + b"?"
        await asyncio.sleep(2)
        assert scene.replicas[0].synced_end == 1

    run(scenario, must_sync=True)


def test_a_fault_while_an_answer_is_applied_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: FollowerScene) -> None:
        leader = scene.leader
        original = leader.answer_partition

        def check(index: int, item: FetchPartition) -> PartitionData:
            assert item.fetch_offset <= scene.replicas[index].synced_end, "it named records that are not durable"
            return original(index, item)

        leader.answer_partition = check  # type: ignore[method-assign]
        append, faults = scene.replicas[1].append_as_follower, [RuntimeError("a fault")]

        def append_or_fail(data: memoryview, leader_epoch: int) -> None:
            if faults:
                raise faults.pop()
            append(data, leader_epoch)

        scene.replicas[1].append_as_follower = append_or_fail  # type: ignore[method-assign]
        for index in range(3):
            leader.logs[index].append(b"x")
            scene.follow(index)
        await scene.until(lambda: all(scene.has_caught_up(index) for index in range(3)), 3)
        assert not any(replica.ended for replica in scene.replicas)

    run(scenario, partitions=3, must_sync=True)
    assert sum("fetcher failed" in record.getMessage() for record in caplog.records) == 3


@pytest.mark.parametrize("how", ["forgotten", "ended", "none", "wrong"])
def test_a_lost_session_is_replaced(how: str) -> None:
    async def scenario(scene: FollowerScene) -> None:
        leader = scene.leader
        leader.gives_sessions = how != "none"
        leader.logs[0].append(b"a")
        scene.follow(0)
        scene.follow(1)
        await scene.until(lambda: scene.has_caught_up(0))
        if how == "forgotten":
            leader.forget_sessions()
        elif how == "ended":
            leader.intercept = lambda asked: (
                FetchResponse() if getattr(asked.request, "session_epoch", 0) and not fulls() > 1 else None
            )

        def fulls() -> int:
            return [request.session_epoch for request in leader.fetches].count(0)

        if how == "wrong":
            wrong = [FetchableTopicResponse("", TOPIC_ID, [PartitionData(partition_index=9)])]
            leader.intercept = lambda asked: (
                FetchResponse(session_id=101, responses=wrong)
                if getattr(asked.request, "session_epoch", 0) and fulls() == 1
                else None
            )
        leader.logs[1].append(b"b")
        await scene.until(lambda: scene.has_caught_up(1))
        await asyncio.sleep(2)
        leader.logs[0].append(b"c")
        await scene.until(lambda: scene.has_caught_up(0))
        if how == "none":
            assert fulls() == len(leader.fetches)
            assert len(leader.fetches) < 20
        else:
            assert fulls() == 2

    run(scenario, partitions=2)


def test_after_a_lost_answer_every_partition_is_named_again() -> None:
    """The leader may have processed the request or not, so the follower does not know what the session holds."""

    async def scenario(scene: FollowerScene) -> None:
        leader = scene.leader
        scene.follow(0)
        scene.follow(1)
        await asyncio.sleep(2)
        session_id, count = leader.fetches[-1].session_id, len(leader.fetches)
        leader.broker.cut()
        await scene.until(lambda: len(leader.fetches) > count)
        request = leader.fetches[count]
        assert (request.session_id, request.session_epoch, sorted(named_in(request))) == (session_id, 0, [0, 1])

    run(scenario, partitions=2)


def test_an_unusable_leader_is_not_asked_without_pause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(scene: FollowerScene) -> None:
        leader = scene.leader
        seen: list[Asked] = []

        def nonsense(asked: Asked) -> FetchResponse:
            seen.append(asked)
            if len(seen) % 3 == 0:
                return FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
            if len(seen) % 3 == 1:
                return FetchResponse()  # not even the partitions that a full request names
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

        leader.intercept = nonsense
        scene.follow(0)
        await asyncio.sleep(6)
        assert 10 <= len(seen) <= 6 / 0.24 + 2
        leader.intercept = None
        leader.logs[0].append(b"x")
        await scene.until(scene.has_caught_up)

    run(scenario)
    lines = [record.getMessage() for record in caplog.records if record.name == "tidelog.fetcher"]
    assert [line.partition(" leader=")[0] for line in lines] == 3 * [
        "fetch from leader failed, trying again",
        "fetching from leader again",
    ]


def test_a_leader_that_answers_early_without_news_is_not_asked_without_pause() -> None:
    async def scenario(scene: FollowerScene) -> None:
        leader = scene.leader
        scene.follow(0)
        await asyncio.sleep(1)
        leader.intercept = lambda asked: FetchResponse(session_id=101)
        count = len(leader.broker.requests)
        await asyncio.sleep(5)
        assert len(leader.broker.requests) - count <= 11

    run(scenario)


def test_a_leader_that_restarts_is_followed_again() -> None:
    async def scenario(scene: FollowerScene) -> None:
        leader = scene.leader
        leader.logs[0].append(b"a")
        scene.follow(0)
        await scene.until(scene.has_caught_up)
        leader.broker.stop()
        leader.broker.cut()
        leader.forget_sessions()
        leader.logs[0].append(b"b")
        await asyncio.sleep(5)
        await leader.listen()
        assert await scene.until(scene.has_caught_up) < 1.0
        leader.logs[0].append(b"c")
        await scene.until(scene.has_caught_up)

    run(scenario)


def test_stopping_waits_for_the_cut_that_is_running() -> None:
    async def scenario(scene: FollowerScene) -> None:
        log, replica = scene.leader.logs[0], scene.replicas[0]
        own = type(log)()
        own.append(b"mine", epoch=1)
        replica.on.log.append_as_follower(memoryview(own.batches[0]))
        replica.cut_s = 3.0
        log.append(b"theirs", epoch=2)
        scene.follow(0)
        await asyncio.sleep(1)
        began = scene.world.loop.time()
        await scene.fetcher.stop()
        assert 1.5 < scene.world.loop.time() - began < 3
        assert replica.cuts == [0]
        count = len(scene.leader.fetches)
        await asyncio.sleep(2)
        assert len(scene.leader.fetches) == count

    run(scenario)


class Brake:
    """A throttle that lets a partition fetch for `burst` bytes, and then pauses it for 2 s."""

    def __init__(self) -> None:
        self.fetched = 0
        self.paused: list[int] = []

    def pause_s(self, partition: Any) -> float:
        if partition.index == 0 and self.fetched > 200:
            self.fetched = 0
            self.paused.append(partition.index)
            return 2.0
        return 0.0

    def record(self, partition: Any, byte_count: int) -> None:
        if partition.index == 0:
            self.fetched += byte_count


def test_a_throttled_partition_pauses_alone() -> None:
    async def scenario(scene: FollowerScene) -> None:
        for number in range(6):
            for log in scene.leader.logs:
                log.append(b"%d" % number + bytes(100))
        scene.follow(0)
        scene.follow(1)
        assert await scene.until(lambda: scene.has_caught_up(1)) < 1
        assert not scene.has_caught_up(0)
        assert await scene.until(lambda: scene.has_caught_up(0)) > 2 * 1.9

    run(scenario, partitions=2, throttle=Brake(), settings=SETTINGS._replace(partition_bytes_max=350))


def test_settings_are_those_of_kafka() -> None:
    config = BrokerConfig.load(None, {}, {"replica.fetch.max.bytes": "5", "replica.fetch.backoff.ms": "7"})
    assert FetchSettings.of(config) == FetchSettings()._replace(partition_bytes_max=5, backoff_ms=7)
    assert FetchSettings.of(BrokerConfig.load(None, {}, {})) == FetchSettings()
    assert LEADER_ID == 1
