"""Random histories of a broker, power cuts after operations of its disk, and checks of the data that survived each
cut.
"""

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from simulation_harness import boot, connect
from simulation_harness.checkers import (
    AcknowledgedRecord,
    Checker,
    CommitsNotAhead,
    CommitsStay,
    InOrderOnce,
    MonotonicHighWatermark,
    NoAckedLoss,
    Promises,
    SurvivingData,
    TopicPartition,
    TopicsStay,
    check_all,
)
from tidelog.simulation.client import SimClient
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.member import SimMember
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.records import Record

GROUP = "billing"
CLIENTS = 3


class Cut(NamedTuple):
    at: float
    after: str
    disk: SimDisk
    promised: Promises


async def record_history(
    world: World, steps: int, wants_cut: Callable[[int], bool], promises: Promises, cuts: list[Cut], **settings: object
) -> None:
    """Let clients do random operations for `steps` steps. For each disk operation for which `wants_cut` returns
    True, the disk as it would be after a power cut is added to `cuts`.
    """
    broker = world.host("broker")

    def cut(operation: str, path: str) -> None:
        number = broker.disk.operations
        if wants_cut(number):
            disk = broker.disk.power_cut(random.Random(f"{world.seed} {number}"))
            cuts.append(Cut(world.loop.time(), f"{number}: {operation} {path}", disk, promises.copy()))

    broker.disk.on_operation = cut
    broker.disk.cold_chance = 0.2
    await boot(broker, **settings)
    client = await connect(world.host("client"), broker)
    lives = [Life(world, promises, number) for number in range(CLIENTS)]
    await lives[0].create_topic(client, 0)
    await coordinator_ready(client)
    await asyncio.gather(*(life.live(steps) for life in lives))


class Life:
    """The operations of one client. Only the first client commits."""

    def __init__(self, world: World, promises: Promises, number: int) -> None:
        self._world = world
        self._promises = promises
        self._number = number
        self._rng = world.rng(f"client {number}")
        self._sequences: dict[TopicPartition, int] = {}
        self._written: dict[TopicPartition, int] = {}

    async def live(self, steps: int) -> None:
        client = await connect(self._world.host(f"client-{self._number}"), self._world.host("broker"))
        producer = await client.init_producer()
        rng = self._rng
        for _ in range(steps):
            draw = rng.random()
            topic = rng.choice(list(self._promises.topics))
            partition = rng.randrange(self._promises.topics[topic])
            if draw < 0.6:
                await self._produce(client, topic, partition, producer.producer_id, producer.producer_epoch)
            elif draw < 0.7 and len(self._promises.topics) < 4:
                await self.create_topic(client, rng.randrange(1000))
            elif draw < 0.9:
                await self._consume(client, topic, partition)
            else:
                await asyncio.sleep(rng.choice((0.001, 0.1, 1.0)))

    async def create_topic(self, client: SimClient, number: int) -> None:
        name, partitions = f"topic-{number}", 1 + number % 2
        if (await client.create_topic(name, partitions)).error_code == ErrorCode.NONE:
            self._promises.topics[name] = partitions

    async def _produce(self, client: SimClient, topic: str, partition: int, producer_id: int, epoch: int) -> None:
        """Produce an idempotent batch, or a batch with acks=1 that is not idempotent."""
        rng, key = self._rng, (topic, partition)
        count = rng.choice((1, 1, 2, 40))
        first = self._written.get(key, 0)
        self._written[key] = first + count
        values = [b"%d:%d:%s" % (self._number, first + n, bytes(rng.randrange(200))) for n in range(count)]
        records = [Record(value=value, timestamp=1) for value in values]
        if rng.random() < 0.3:
            answer = await client.produce(topic, partition, records, acks=1)
        else:
            sequence = self._sequences.get(key, 0)
            self._sequences[key] = sequence + count
            answer = await client.produce(topic, partition, records, producer=(producer_id, epoch, sequence))
        assert answer.error_code == ErrorCode.NONE, answer
        acknowledged = self._promises.records.setdefault(key, [])
        now = self._world.loop.time()
        acknowledged += [AcknowledgedRecord(now, answer.base_offset + n, value) for n, value in enumerate(values)]

    async def _consume(self, client: SimClient, topic: str, partition: int) -> None:
        """Fetch the end of the log. The first client commits the offset that it has read."""
        promises, key = self._promises, (topic, partition)
        last = promises.watermarks.get(key, [(0.0, 0)])[-1][1]
        data, records = await client.fetch(topic, partition, last)
        assert data.error_code == ErrorCode.NONE, data
        assert all(record.offset < data.high_watermark for record in records), "records past the high watermark"
        if not records:
            return
        # Two clients may fetch at the same time. Responses may be processed in another order than the broker made
        # them.
        seen = promises.watermarks.setdefault(key, [])
        if not seen or data.high_watermark > seen[-1][1]:
            seen.append((self._world.loop.time(), data.high_watermark))
        if self._number == 0:
            offset = records[-1].offset + 1
            promises.tried[key] = max(offset, promises.tried.get(key, 0))
            if await SimMember(client, GROUP, [topic]).commit(topic, partition, offset) == ErrorCode.NONE:
                promises.commits[key] = (self._world.loop.time(), offset)


async def coordinator_ready(client: SimClient) -> None:
    while (await client.find_coordinator(GROUP)).error_code != ErrorCode.NONE:
        await asyncio.sleep(0.1)
    while (await SimMember(client, GROUP, []).committed("topic-0", 0))[1] != ErrorCode.NONE:
        await asyncio.sleep(0.1)


async def find(world: World, cut: Cut, **settings: object) -> SurvivingData:
    """Start a broker with the disk that survived, and read all its data."""
    broker = world.host("broker")
    broker.insert(cut.disk)
    broker.disk.cold_chance = 0.2
    await boot(broker, **settings)
    client = await connect(world.host("checker"), broker)
    answered = {topic.name or "": topic for topic in (await client.metadata()).topics}
    topics = {name: [part.error_code for part in topic.partitions] for name, topic in answered.items()}
    found = SurvivingData(topics, {}, {}, {})
    for name, partitions in cut.promised.topics.items():
        for index in range(partitions if name in topics else 0):
            found.values[name, index] = await read_all(client, name, index)
            data, _ = await client.fetch(name, index, 0)
            found.high_watermarks[name, index] = data.high_watermark
    if cut.promised.commits:
        await coordinator_ready(client)
        for topic, partition in cut.promised.commits:
            committed, code = await SimMember(client, GROUP, []).committed(topic, partition)
            assert code == ErrorCode.NONE
            found.committed[topic, partition] = committed
    return found


async def read_all(client: SimClient, topic: str, partition: int) -> list[bytes]:
    """Return the values from offset 0 on. Offsets must have no gaps."""
    values: list[bytes] = []
    while True:
        data, records = await client.fetch(topic, partition, len(values))
        assert data.error_code == ErrorCode.NONE, f"{topic}-{partition} at {len(values)}: {data}"
        if not records:
            return values
        for record in records:
            assert record.offset == len(values), "a gap or a repetition"
            values.append(record.value or b"")


def run_history(seed: int, steps: int, wants_cut: Callable[[int], bool], window_s: float, **settings: object) -> int:
    """Run a history, then restart and check after each power cut. Returns the number of cuts. A failure gets a note
    with the seed and the cut.

    `window_s` is the time, in seconds, until a confirmed change is safe from a power cut. With 0 it is safe when it
    is confirmed.
    """
    promises = Promises()
    cuts: list[Cut] = []
    with simulated(seed) as world:
        world.run(record_history(world, steps, wants_cut, promises, cuts, **settings))
    for cut in cuts:
        safe_until = cut.at - window_s if window_s else float("inf")
        checkers: list[Checker] = [
            TopicsStay(),
            NoAckedLoss(safe_until),
            InOrderOnce(),
            CommitsStay(safe_until),
            MonotonicHighWatermark(safe_until),
        ]
        if not window_s:
            # Within the window, a commit may become durable before the records up to its offset.
            checkers.append(CommitsNotAhead(promises.tried))
        with simulated(seed) as world:
            try:
                check_all(checkers, cut.promised, world.run(find(world, cut, **settings)))
            except BaseException as error:
                error.add_note(f"power cut at {cut.at:.6f} after operation {cut.after}")
                raise
    return len(cuts)
