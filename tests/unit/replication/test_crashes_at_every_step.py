"""The broker is killed, or the power is cut, at random steps of a move or of the deletion of a topic, and often again
during the next start.
"""

import asyncio
import errno
import random
from typing import Any, NamedTuple

import pytest

from log_harness import make_batch
from replication_harness.lone_broker import PATHS, LoneBroker, append, records
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.medium import PowerCutOdds
from tidelog.simulation.world import World, simulated

KEPT = PowerCutOdds(keep=1.0, torn=0.0, wrong_size=0.0)
PRODUCER = 7
CRASHES_MAX = 12
"""How many of the crashes of one history are checked."""


class Crash(NamedTuple):
    """What a crash leaves, and what must be there after the next start."""

    step: str
    disk: SimDisk
    topics: dict[str, tuple[int, int]]
    values: list[bytes]
    """The values of partition 0 of topic t by offset, also those that were appended after the crash."""
    acknowledged_end: int
    start_offset: int


class History:
    """The life of a broker, and the crashes that may end it."""

    def __init__(self, world: World, seed: int) -> None:
        self.rng = random.Random(seed)
        settings = {"segment_bytes": self.rng.choice([150, 300, 1 << 20]), "file_delete_delay_ms": 0}
        self.broker = LoneBroker(world.host("broker"), durability="fsync", **settings)
        self.topics: dict[str, tuple[int, int]] = {"t": (1, 2)}
        self.values: list[bytes] = []
        self.start_offset = 0
        self.crashes: list[Crash] = []
        self.writer: asyncio.Future[None] | None = None

    async def begin(self) -> None:
        await self.broker.start(self.topics)
        for _ in range(self.rng.randrange(4, 14)):
            self.write()
        await asyncio.sleep(0.5)
        await self.delete_records(3)
        if self.rng.random() < 0.5:
            await self.broker.partitions.enforce_retention()
        self.writer = asyncio.ensure_future(self.keep_writing())
        self.broker.disk.on_operation = self.note

    def write(self) -> None:
        partition = self.broker.partitions.find("t", 0)
        if partition is None or partition.deleted or partition.topic_deleted or not self.topics:
            return
        value = b"%d of topic %d" % (len(self.values), self.topics["t"][0])
        fields = {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": len(self.values)}
        partition.append_batch(make_batch(value, **fields))
        self.values.append(value)

    async def keep_writing(self) -> None:
        while True:
            if self.rng.random() < 0.5:
                self.write()
            busy = self.broker.partitions.find("t", 1)
            if busy is not None and not (busy.deleted or busy.topic_deleted):
                append(busy, b"so that checkpoints are written")
            await asyncio.sleep(self.rng.choice([0.004, 0.03]))

    async def delete_records(self, count: int) -> None:
        partition = self.broker.partition()
        offset = min(partition.log.log_start_offset + count, partition.high_watermark)
        partition.log.delete_before(offset)
        if await self.broker.partitions.persist_start_offsets([partition]) == []:
            self.start_offset = max(self.start_offset, offset)

    def note(self, operation: str, path: str) -> None:
        """Remember what a crash after this step would leave."""
        partition = self.broker.partitions.find("t", 0)
        is_there = partition is not None and bool(self.values) and not partition.topic_deleted
        end = partition.high_watermark if partition is not None and is_there else 0
        for odds in (None, KEPT):
            if self.rng.random() < 0.15:
                disk = self.broker.disk.power_cut(self.rng, odds)
                step = f"{'kill' if odds else 'power cut'} after {operation} {path}"
                self.crashes.append(Crash(step, disk, self.topics, self.values, end, self.start_offset))

    async def end(self) -> None:
        """Check some of the crashes."""
        self.broker.disk.on_operation = None
        assert self.writer is not None
        self.writer.cancel()
        self.broker.kill()
        self.rng.shuffle(self.crashes)
        for crash in self.crashes[:CRASHES_MAX]:
            await self.check(crash)
            self.broker.kill()

    async def check(self, crash: Crash) -> None:
        broker, rng, disk = self.broker, self.rng, crash.disk
        for _ in range(rng.randrange(3)):  # crashes during the next start, or shortly after it
            disk = await self.left_by_a_start(crash, disk)
        await broker.start(crash.topics, disk)
        if not crash.topics:
            await broker.apply({"t": (9, 2)})  # a new topic of this name begins empty
        assert dict(broker.partitions.unopened) == {}, crash.step
        log = broker.partition().log
        expected = list(enumerate(crash.values))[log.log_start_offset : log.log_end_offset]
        assert records(broker.partition()) == expected, crash.step
        assert log.log_end_offset >= crash.acknowledged_end, crash.step
        assert log.log_start_offset >= crash.start_offset, crash.step
        if log.log_end_offset:
            assert log.producers.entries[PRODUCER].next_sequence == log.log_end_offset, crash.step
        append(broker.partition(), b"the log can be written")
        while broker.partition() in broker.partitions.moves:  # the start has begun the move again
            await asyncio.sleep(0.01)
        assert [name for path in PATHS for name in broker.disk.list(path) if name == "t-0"] == ["t-0"], crash.step

    async def left_by_a_start(self, crash: Crash, disk: SimDisk) -> SimDisk:
        broker, rng = self.broker, self.rng
        steps, left = rng.randrange(60), []

        def note(_operation: str, _path: str) -> None:
            nonlocal steps
            steps -= 1
            if steps == 0:
                left.append(broker.disk.power_cut(rng, rng.choice([None, KEPT])))

        broker.host.insert(disk)
        broker.disk.on_operation = note
        await broker.start(crash.topics)
        await asyncio.sleep(rng.choice([0, 0.3]))
        broker.disk.on_operation = None
        after = left[0] if left else broker.disk.power_cut(rng, KEPT)
        broker.kill()
        return after


def run(scenario: Any, seed: int) -> None:
    async def whole(world: World) -> None:
        history = History(world, seed)
        await history.begin()
        await scenario(history)
        await history.end()

    with simulated(seed) as world:
        world.run(whole(world), virtual_s=100_000)


@pytest.mark.parametrize("seed", range(8))
def test_a_move(seed: int) -> None:
    """With or without an error of the rename that ends it. Records are deleted in the meantime."""

    async def scenario(history: History) -> None:
        broker, rng = history.broker, history.rng
        partition = broker.partition()
        if rng.random() < 0.5:
            pattern = f"{broker.directory_of(partition)}/t-0"
            broker.disk.fail("rename", pattern, rng.choice([errno.EMFILE, errno.ENOSPC]), times=rng.randrange(1, 3))
        broker.begin_move(partition)
        while partition in broker.partitions.moves:
            await asyncio.sleep(0.005)
            await history.delete_records(rng.randrange(3))
        await asyncio.sleep(0.05)

    run(scenario, seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_topic_is_deleted_and_made_anew(seed: int) -> None:
    """Often while the partition moves."""

    async def scenario(history: History) -> None:
        broker, rng = history.broker, history.rng
        for number in (2, 3):
            if rng.random() < 0.7:
                broker.begin_move(broker.partition())
                await asyncio.sleep(rng.random() * 0.02)
            history.topics, history.values, history.start_offset = {}, [], 0
            await broker.apply(history.topics)
            await asyncio.sleep(rng.choice([0, 0.1]))
            history.topics = {"t": (number, 2)}
            await broker.apply(history.topics)
            await asyncio.sleep(rng.random() * 0.2)
            await history.delete_records(1)

    run(scenario, seed)
