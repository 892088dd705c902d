"""The broker's log lines about groups that are far behind, with real logs on a simulated disk, in virtual time."""

import asyncio
import errno
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import pytest

from group_harness.memory import EPOCH_MS, LoopClock
from log_harness import LogOnDisk, leads_alone
from tidelog.coordinator import lag
from tidelog.coordinator.consumer.member import Member
from tidelog.coordinator.consumer.state import ConsumerGroup
from tidelog.coordinator.group.durable import DurableGroup
from tidelog.coordinator.lag import GroupLags
from tidelog.replication.partition import Partition
from tidelog.runtime.tasks import LoopTasks
from tidelog.simulation.loop import SimLoop
from tidelog.wire.messages.group_records import GroupMetadataValue, MemberMetadata, OffsetCommitValue
from tidelog.wire.primitives import NO_UUID
from tidelog.wire.records import Record, encode_batch

TOPIC_ID = bytes(range(16))


class NoFlush:
    def __init__(self) -> None:
        self.dirty: dict[Partition, None] = {}

    def request(self, partition: Partition) -> None: ...


class Bench:
    """Partitions of topic t, and groups that have committed in them."""

    def __init__(self, partitions: int = 1, loop: SimLoop | None = None, **settings: Any) -> None:
        self.loop = loop or SimLoop()
        clock, tasks = LoopClock(self.loop), LoopTasks(self.loop)
        self.disks = [LogOnDisk(**settings) for _ in range(partitions)]
        self.partitions = [
            Partition(
                "t", TOPIC_ID, index, disk.log,
                replica=leads_alone(disk.log), internal=False, clock=clock, tasks=tasks, flusher=cast(Any, NoFlush()),
            )
            for index, disk in enumerate(self.disks)
        ]  # fmt: skip
        self.groups: dict[str, DurableGroup] = {}
        self.lags = GroupLags(cast(Any, self), clock, tasks, lambda: list(self.groups.items()))

    def find(self, topic: str, index: int) -> Partition | None:
        return self.partitions[index] if topic == "t" and index < len(self.partitions) else None

    def append(self, *times_ms: int, index: int = 0, appended_ms: int | None = None) -> None:
        records = [Record(offset=i, timestamp=t, value=b"v" * 100) for i, t in enumerate(times_ms)]
        batch = encode_batch(records, log_append_time_ms=appended_ms)
        self.partitions[index].append_batch(batch)

    @property
    def now_ms(self) -> int:
        return self.lags._clock.now_ms()

    def commit(self, offset: int, group: str = "g", index: int = 0, topic_id: bytes = TOPIC_ID) -> None:
        durable = self.groups.setdefault(group, DurableGroup())
        value = OffsetCommitValue(offset=offset, topic_id=topic_id, commit_timestamp=self.now_ms)
        durable.offsets.setdefault("t", {})[index] = value

    def look(self) -> None:
        self.loop.run_until_complete(self.lags.run_round())

    def oldest(self) -> dict[tuple[int, int], int]:
        """Partition and offset at which a group stands -> when the record there was appended, since the epoch."""
        return {(index, offset): at_ms - EPOCH_MS for (_, index, offset), at_ms in self.lags._append_times_ms.items()}

    def keep(self, *steps: tuple[float, Callable[[], None]]) -> None:
        """Let the lags be kept, while each step is done after so many seconds more."""

        async def run() -> None:
            task = asyncio.ensure_future(self.lags.run())
            for seconds, step in steps:
                await asyncio.sleep(seconds)
                step()
            task.cancel()

        self.loop.run_until_complete(run())


BEFORE_MS = -60_000


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines of the log that say which groups are behind."""
    caplog.set_level(logging.WARNING, "tidelog.coordinator")
    return lambda: [record.getMessage() for record in caplog.records]


def nothing() -> None: ...


def test_the_time_is_that_of_the_batch_at_which_the_group_stands() -> None:
    bench = Bench()
    bench.append(EPOCH_MS - 5, EPOCH_MS - 4)
    bench.append(EPOCH_MS - 3)
    bench.commit(0)
    assert bench.oldest() == {}
    bench.look()
    assert bench.oldest() == {(0, 0): -5}
    bench.commit(2)
    bench.look()
    assert bench.oldest() == {(0, 2): -3}
    bench.commit(3)
    bench.look()
    assert bench.oldest() == {}


def test_what_is_deleted_is_no_lag() -> None:
    bench = Bench()
    for number in range(4):
        bench.append(EPOCH_MS - 10 + number)
    bench.commit(1)
    bench.partitions[0].log.delete_before(3)
    bench.look()
    assert bench.oldest() == {(0, 3): -7}
    bench.commit(-5)
    bench.look()
    assert bench.oldest() == {(0, 3): -7}
    bench.commit(99)
    bench.look()
    assert bench.oldest() == {}


def test_what_cannot_be_read_now_is_read_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.append(EPOCH_MS - 5)
    bench.commit(0)

    def out_of_descriptors(*args: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(type(bench.partitions[0].log), "read", out_of_descriptors)
        bench.look()
        assert bench.oldest() == {}
    bench.look()
    assert bench.oldest() == {(0, 0): -5}


def test_a_topic_that_takes_the_time_of_the_append() -> None:
    bench = Bench()
    bench.append(5, appended_ms=EPOCH_MS - 9)
    bench.commit(0)
    bench.look()
    assert bench.oldest() == {(0, 0): -9}


NO_TIMES = {
    "none": -1,
    "zero": 0,
    "1970": 86_400_000,
    "seconds for milliseconds": EPOCH_MS // 1000,
    "before Kafka": lag.EARLIEST_APPEND_MS - 1,
    "microseconds for milliseconds": EPOCH_MS * 1000,
    "the clock is ahead": EPOCH_MS + 3_600_000,
    "the largest": (1 << 63) - 1,
}


@pytest.mark.parametrize("timestamp_ms", NO_TIMES.values(), ids=NO_TIMES)
def test_a_timestamp_that_is_no_time_of_the_append_is_no_age(said: Callable[[], list[str]], timestamp_ms: int) -> None:
    """The broker knows since when the record has been there, and says that."""
    bench = Bench(message_timestamp_after_max_ms=(1 << 63) - 1)
    bench.append(timestamp_ms)
    bench.commit(0)

    def says_nothing_yet() -> None:
        assert said() == []

    bench.keep((599, says_nothing_yet), (20, nothing))
    assert said() == ["group has a long lag group=g partition=t-0 offset=0 records=1 seconds=600"]


def test_events_of_last_year_are_as_old_as_the_log_says(said: Callable[[], list[str]]) -> None:
    """They come while the broker looks, so their timestamps cannot be the time when they were appended."""
    bench = Bench()
    year_ms = 365 * 86_400_000
    bench.commit(0)

    def says_nothing_yet() -> None:
        assert said() == []

    bench.keep((7, lambda: bench.append(EPOCH_MS - year_ms)), (600, says_nothing_yet), (10, nothing))
    assert said() == ["group has a long lag group=g partition=t-0 offset=0 records=1 seconds=600"]


def test_a_group_that_keeps_up_with_events_of_last_year_is_not_behind(said: Callable[[], list[str]]) -> None:
    bench = Bench()
    year_ms = 365 * 86_400_000
    bench.commit(0)

    def one_more() -> None:
        bench.append(EPOCH_MS - year_ms)
        bench.commit(bench.partitions[0].high_watermark - 1)

    bench.keep(*[(20, one_more)] * 200)
    assert said() == []


def test_a_group_that_crawls_through_events_of_last_year_is_behind(said: Callable[[], list[str]]) -> None:
    """It stands at another record at each look, and at each of them there was a backlog of 1000 records before it."""
    bench = Bench()
    year_ms = 365 * 86_400_000
    bench.commit(0)

    def much_more_than_is_read() -> None:
        for _ in range(10):
            bench.append(EPOCH_MS - year_ms)
        bench.commit(bench.groups["g"].offsets["t"][0].offset + 1)

    bench.keep(*[(20, much_more_than_is_read)] * 100)
    [line] = said()
    seconds = int(line.rpartition("=")[2])
    assert 600 <= seconds <= 2000


def test_partitions_that_are_gone_or_offline_or_made_anew() -> None:
    bench = Bench(partitions=2)
    bench.append(1)
    bench.append(1, index=1)
    bench.commit(0, topic_id=bytes(16 * [9]))
    bench.commit(0, index=1)
    bench.commit(0, index=2)
    bench.partitions[1].log.fail("the test says so")
    bench.look()
    assert bench.oldest() == {}
    bench.commit(0, topic_id=NO_UUID)  # of an old record, which does not say
    bench.look()
    assert list(bench.oldest()) == [(0, 0)]


def test_a_log_that_cannot_be_read_stops_nothing() -> None:
    bench = Bench(partitions=2)
    for index in range(2):
        bench.append(EPOCH_MS, index=index)
        bench.commit(0, index=index)
    bench.disks[0].disk.fail("read", "*.log", errno.EIO, times=100)
    bench.look()
    assert bench.oldest() == {(1, 0): 0}, "the first is offline by now, as for any reader"


DAY_S = 86_400


def classic(members: int, since_ms: int) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type="consumer",
        generation=1,
        current_state_timestamp=since_ms,
        members=[MemberMetadata(member_id=str(number)) for number in range(members)],
    )


def test_a_group_that_nobody_has_used_for_long_is_not_said_to_be_behind(said: Callable[[], list[str]]) -> None:
    bench = Bench()
    bench.append(EPOCH_MS + BEFORE_MS)
    bench.commit(0)
    bench.keep((700, nothing))
    assert len(said()) == 1, "soon after its last commit it is"

    bench.loop.run_until_complete(asyncio.sleep(2 * DAY_S))
    after_a_start = Bench(loop=bench.loop)
    after_a_start.groups = bench.groups
    after_a_start.append(EPOCH_MS + BEFORE_MS)
    after_a_start.keep((700, nothing), (DAY_S, nothing))
    assert len(said()) == 1

    after_a_start.commit(0)  # somebody uses it again
    after_a_start.keep((700, nothing))
    assert len(said()) == 2


@pytest.mark.parametrize(
    ("members", "empty_since_s", "lines"),
    [
        pytest.param(1, 0, 1, id="members"),
        pytest.param(0, 3600, 1, id="left"),
        pytest.param(0, 2 * DAY_S, 0, id="long"),
    ],
)
def test_a_group_with_members_is_used_though_it_commits_nothing(
    said: Callable[[], list[str]], members: int, empty_since_s: int, lines: int
) -> None:
    bench = Bench()
    bench.append(EPOCH_MS + BEFORE_MS)
    bench.commit(0)
    bench.loop.run_until_complete(asyncio.sleep(10 * DAY_S))
    bench.groups["g"].metadata = classic(members, bench.now_ms - empty_since_s * 1000)
    bench.keep((700, nothing))
    assert len(said()) == lines


def test_a_group_of_the_consumer_protocol_with_members_is_used(said: Callable[[], list[str]]) -> None:
    bench = Bench()
    bench.append(EPOCH_MS + BEFORE_MS)
    bench.commit(0)
    bench.loop.run_until_complete(asyncio.sleep(10 * DAY_S))
    bench.groups["g"].consumer = group = ConsumerGroup("g")
    bench.keep((700, nothing))
    assert said() == []
    group.replay(Member("m").metadata_record("g"))
    bench.keep((700, nothing))
    assert len(said()) == 1


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets whose batches are read from logs from now on."""
    read = lag._timestamp_at
    asked: list[int] = []

    async def noted(partition: Partition, offset: int, tasks: Any) -> int | None:
        asked.append(offset)
        return await read(partition, offset, tasks)

    monkeypatch.setattr(lag, "_timestamp_at", noted)
    return asked


def test_a_batch_is_read_once_however_many_groups_wait_there(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.append(EPOCH_MS)
    for number in range(50):
        bench.commit(0, group=f"group-{number}")
    asked = counted(monkeypatch)
    bench.look()
    bench.look()
    assert asked == [0]
    assert bench.oldest() == {(0, 0): 0}


def test_a_round_reads_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "HEADER_READS_MAX", 10)
    bench = Bench()
    for number in range(25):
        bench.append(EPOCH_MS + number)
        bench.commit(number, group=f"group-{number}")
    asked = counted(monkeypatch)
    for round_, seen in enumerate((10, 20, 25, 25)):
        bench.look()
        assert len(asked) == seen, round_
    assert sorted(asked) == list(range(25))


def test_a_round_leaves_the_loop_its_turns() -> None:
    bench = Bench()
    bench.append(EPOCH_MS)
    for number in range(1000):
        bench.commit(0, group=f"group-{number}")
    turns = 0

    async def count() -> None:
        nonlocal turns
        look = asyncio.ensure_future(bench.lags.run_round())
        while not look.done():
            turns += 1
            await asyncio.sleep(0)

    bench.loop.run_until_complete(count())
    assert turns >= 1000 // lag.OFFSETS_PER_TURN


def test_a_group_that_falls_behind_is_told_of_once(said: Callable[[], list[str]]) -> None:
    bench = Bench(partitions=2)
    bench.append(EPOCH_MS)
    bench.append(EPOCH_MS - 60_000, index=1)
    bench.commit(1)
    bench.commit(0, index=1)

    def catch_up() -> None:
        bench.commit(1, index=1)

    def fall_back() -> None:
        bench.commit(0)

    bench.keep((650, catch_up), (10, fall_back), (10, nothing))
    assert said() == [
        "group has a long lag group=g partition=t-1 offset=0 records=1 seconds=600",
        "group has a long lag group=g partition=t-0 offset=0 records=1 seconds=660",
    ]


def test_the_rest_after_a_long_round_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    began: list[float] = []

    async def look() -> None:
        began.append(bench.loop.time())
        await asyncio.sleep(2 if len(began) == 2 else 0)

    monkeypatch.setattr(bench.lags, "run_round", look)

    async def keep() -> None:
        task = asyncio.ensure_future(bench.lags.run())
        await asyncio.sleep(100)
        task.cancel()

    bench.loop.run_until_complete(keep())
    rests = [after - before for before, after in pairwise(began)]
    assert rests[:3] == pytest.approx([lag.ROUND_INTERVAL_MIN_S, 2 + 2 * lag.PAUSE_FACTOR, lag.ROUND_INTERVAL_MIN_S])


def test_a_round_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.append(EPOCH_MS)
    bench.commit(0)
    groups = bench.lags._groups
    calls = 0

    def sometimes() -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("for once")
        return groups()

    monkeypatch.setattr(bench.lags, "_groups", sometimes)

    async def keep() -> None:
        task = asyncio.ensure_future(bench.lags.run())
        await asyncio.sleep(11)
        task.cancel()

    with caplog.at_level(logging.ERROR, "tidelog.coordinator"):
        bench.loop.run_until_complete(keep())
    assert "group lag check failed" in caplog.text
    assert bench.oldest() == {(0, 0): 0}
