"""What the broker keeps of groups' lags, on real logs on a simulated disk, in virtual time."""

import asyncio
import errno
import logging
from itertools import pairwise
from typing import Any, cast

import pytest

from group_harness.memory import EPOCH_MS, LoopClock
from log_harness import LogOnDisk
from tidelog.coordinator import lag
from tidelog.coordinator.group.durable import DurableGroup
from tidelog.coordinator.lag import UNKNOWN_MS, GroupLags, PartitionLag
from tidelog.replication.partition import Partition
from tidelog.runtime.tasks import LoopTasks
from tidelog.simulation.loop import SimLoop
from tidelog.wire.messages.group_records import OffsetCommitValue
from tidelog.wire.primitives import NO_UUID
from tidelog.wire.records import Record, encode_batch

TOPIC_ID = bytes(range(16))


class NoFlush:
    def __init__(self) -> None:
        self.dirty: dict[Partition, None] = {}

    def request(self, partition: Partition) -> None: ...


class Bench:
    """Partitions of topic t, and groups that have committed in them."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        self.loop = SimLoop()
        clock, tasks = LoopClock(self.loop), LoopTasks(self.loop)
        self.disks = [LogOnDisk(**settings) for _ in range(partitions)]
        self.partitions = [
            Partition(
                "t", TOPIC_ID, index, disk.log,
                leader_epoch=0, internal=False, clock=clock, tasks=tasks, flusher=cast(Any, NoFlush()),
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

    def commit(self, offset: int, group: str = "g", index: int = 0, topic_id: bytes = TOPIC_ID) -> None:
        durable = self.groups.setdefault(group, DurableGroup())
        durable.offsets.setdefault("t", {})[index] = OffsetCommitValue(offset=offset, topic_id=topic_id)

    def look(self) -> None:
        self.loop.run_until_complete(self.lags.look())

    def of(self, group: str = "g") -> dict[Any, PartitionLag]:
        return self.lags.of(self.groups[group])


def test_records_behind_are_known_at_once_and_time_after_a_look() -> None:
    bench = Bench()
    bench.append(EPOCH_MS + 5, EPOCH_MS + 6)
    bench.append(EPOCH_MS + 7)
    bench.commit(0)
    assert bench.of() == {("t", 0): PartitionLag(3, UNKNOWN_MS)}
    bench.look()
    assert bench.of() == {("t", 0): PartitionLag(3, EPOCH_MS + 5)}
    bench.commit(2)
    assert bench.of() == {("t", 0): PartitionLag(1, UNKNOWN_MS)}
    bench.look()
    assert bench.of() == {("t", 0): PartitionLag(1, EPOCH_MS + 7)}
    bench.commit(3)
    bench.look()
    assert bench.of() == {("t", 0): PartitionLag(0, UNKNOWN_MS)}
    assert bench.lags._times == {}


def test_what_is_deleted_is_no_lag() -> None:
    bench = Bench()
    for number in range(4):
        bench.append(EPOCH_MS + number)
    bench.commit(1)
    bench.partitions[0].log.delete_before(3)
    bench.look()
    assert bench.of() == {("t", 0): PartitionLag(1, EPOCH_MS + 3)}
    bench.commit(-5)
    assert bench.of() == {("t", 0): PartitionLag(1, EPOCH_MS + 3)}
    bench.commit(99)
    assert bench.of() == {("t", 0): PartitionLag(0, UNKNOWN_MS)}


def test_what_cannot_be_read_now_is_read_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.append(EPOCH_MS + 5)
    bench.commit(0)

    def out_of_descriptors(*args: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(type(bench.partitions[0].log), "read", out_of_descriptors)
        bench.look()
        assert bench.of() == {("t", 0): PartitionLag(1, UNKNOWN_MS)}
    bench.look()
    assert bench.of() == {("t", 0): PartitionLag(1, EPOCH_MS + 5)}


def test_a_topic_that_takes_the_time_of_the_append() -> None:
    bench = Bench()
    bench.append(5, appended_ms=EPOCH_MS + 9)
    bench.commit(0)
    bench.look()
    assert bench.of() == {("t", 0): PartitionLag(1, EPOCH_MS + 9)}


def test_records_without_a_time() -> None:
    bench = Bench()
    bench.append(-1)
    bench.commit(0)
    bench.look()
    assert bench.of() == {("t", 0): PartitionLag(1, UNKNOWN_MS)}


def test_partitions_that_are_gone_or_offline_or_made_anew() -> None:
    bench = Bench(partitions=2)
    bench.append(1)
    bench.append(1, index=1)
    bench.commit(0, topic_id=bytes(16 * [9]))
    bench.commit(0, index=1)
    bench.commit(0, index=2)
    bench.partitions[1].log.fail("the test says so")
    bench.look()
    assert bench.of() == {}
    bench.commit(0, topic_id=NO_UUID)  # of an old record, which does not say
    assert list(bench.of()) == [("t", 0)]


def test_a_log_that_cannot_be_read_stops_nothing() -> None:
    bench = Bench(partitions=2)
    for index in range(2):
        bench.append(EPOCH_MS, index=index)
        bench.commit(0, index=index)
    bench.disks[0].disk.fail("read", "*.log", errno.EIO, times=100)
    bench.look()
    assert bench.of() == {("t", 1): PartitionLag(1, EPOCH_MS)}, "the first is offline by now, as for any reader"


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
    assert all(bench.of(group) == {("t", 0): PartitionLag(1, EPOCH_MS)} for group in bench.groups)


def test_a_round_reads_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "READS_MAX", 10)
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
        look = asyncio.ensure_future(bench.lags.look())
        while not look.done():
            turns += 1
            await asyncio.sleep(0)

    bench.loop.run_until_complete(count())
    assert turns >= 1000 // lag.PLACES_PER_TURN


def test_a_group_that_falls_behind_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(partitions=2)
    bench.append(EPOCH_MS)
    bench.append(EPOCH_MS + 60_000, index=1)
    bench.commit(0)
    bench.commit(0, index=1)

    async def keep() -> None:
        task = asyncio.ensure_future(bench.lags.keep())
        await asyncio.sleep(650)
        bench.commit(1)
        bench.commit(1, index=1)
        await asyncio.sleep(10)
        bench.commit(0)
        await asyncio.sleep(10)
        task.cancel()

    with caplog.at_level(logging.WARNING, "tidelog.coordinator"):
        bench.loop.run_until_complete(keep())
    assert [record.getMessage() for record in caplog.records] == [
        "group is behind group=g partition=t-0 offset=0 records=1 seconds=600",
        "group is behind group=g partition=t-0 offset=0 records=1 seconds=660",
    ]


def test_the_rest_after_a_long_round_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    began: list[float] = []

    async def look() -> None:
        began.append(bench.loop.time())
        await asyncio.sleep(2 if len(began) == 2 else 0)

    monkeypatch.setattr(bench.lags, "look", look)

    async def keep() -> None:
        task = asyncio.ensure_future(bench.lags.keep())
        await asyncio.sleep(100)
        task.cancel()

    bench.loop.run_until_complete(keep())
    rests = [after - before for before, after in pairwise(began)]
    assert rests[:3] == pytest.approx([lag.LOOK_S, 2 + 2 * lag.REST_TIMES, lag.LOOK_S])


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
        task = asyncio.ensure_future(bench.lags.keep())
        await asyncio.sleep(11)
        task.cancel()

    with caplog.at_level(logging.ERROR, "tidelog.coordinator"):
        bench.loop.run_until_complete(keep())
    assert "lag is not known" in caplog.text
    assert bench.of() == {("t", 0): PartitionLag(1, EPOCH_MS)}
