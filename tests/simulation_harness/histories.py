"""Random histories of a broker, the power cut after steps of its disk, and what must have survived each cut."""

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from simulation_harness import boot, connect
from tidelog.simulation.client import SimClient
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.member import SimMember
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.records import Record

GROUP = "billing"


class Promise(NamedTuple):
    """A record that was acknowledged."""

    at: float
    topic: str
    partition: int
    offset: int
    value: bytes


class Promises:
    """What clients were told, as far as they know it at this moment."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.records: list[Promise] = []
        self.commits: dict[tuple[str, int], int] = {}
        self.tried: dict[tuple[str, int], int] = {}
        """The highest offset that a commit was asked for."""

    def copy(self) -> "Promises":
        copied = Promises()
        copied.topics = dict(self.topics)
        copied.records = list(self.records)
        copied.commits = dict(self.commits)
        return copied


class Cut(NamedTuple):
    at: float
    after: str
    disk: SimDisk
    promised: Promises


async def record_history(
    world: World, steps: int, wants_cut: Callable[[int], bool], promises: Promises, cuts: list[Cut], **settings: object
) -> None:
    """Clients do random things for `steps` steps; `cuts` gets the survivors of the disk operations that are wanted."""
    broker = world.host("broker")
    rng = world.rng("history")

    def cut(operation: str, path: str) -> None:
        number = broker.disk.operations
        if wants_cut(number):
            disk = broker.disk.power_cut(random.Random(f"{world.seed} {number}"))
            cuts.append(Cut(world.loop.time(), f"{number}: {operation} {path}", disk, promises.copy()))

    broker.disk.on_operation = cut
    broker.disk.cold = 0.2
    await boot(broker, **settings)
    client = await connect(world.host("client"), broker)
    await create_topic(client, promises, 0)
    await coordinator_ready(client)
    await asyncio.gather(*(clients_life(world, promises, rng, number, steps) for number in range(3)))


async def clients_life(world: World, promises: Promises, rng: random.Random, number: int, steps: int) -> None:
    client = await connect(world.host(f"client-{number}"), world.host("broker"))
    identity = await client.init_producer()
    sequences: dict[tuple[str, int], int] = {}
    for _ in range(steps):
        draw = rng.random()
        topic = rng.choice(list(promises.topics))
        partition = rng.randrange(promises.topics[topic])
        if draw < 0.7:
            count = rng.choice((1, 1, 2, 40))
            sequence = sequences.get((topic, partition), 0)
            producer = (identity.producer_id, identity.producer_epoch, sequence)
            await produce(
                world, client, promises, topic, partition, [rng.randbytes(rng.randrange(200))] * count, producer
            )
            sequences[topic, partition] = sequence + count
        elif draw < 0.8 and len(promises.topics) < 4:
            await create_topic(client, promises, rng.randrange(1000))
        elif number == 0:
            await commit(client, promises, topic, partition)
        else:
            await asyncio.sleep(rng.choice((0.001, 0.1, 1.0)))


async def create_topic(client: SimClient, promises: Promises, number: int) -> None:
    name, partitions = f"topic-{number}", 1 + number % 2
    if (await client.create_topic(name, partitions)).error_code == ErrorCode.NONE:
        promises.topics[name] = partitions


async def produce(
    world: World,
    client: SimClient,
    promises: Promises,
    topic: str,
    partition: int,
    values: list[bytes],
    producer: tuple[int, int, int],
) -> None:
    records = [Record(value=value, timestamp=1) for value in values]
    answer = await client.produce(topic, partition, records, producer=producer)
    assert answer.error_code == ErrorCode.NONE, answer
    for item, value in enumerate(values):
        promises.records.append(Promise(world.loop.time(), topic, partition, answer.base_offset + item, value))


async def commit(client: SimClient, promises: Promises, topic: str, partition: int) -> None:
    offset = promises.tried.get((topic, partition), 0) + 1
    promises.tried[topic, partition] = offset
    if await SimMember(client, GROUP, [topic]).commit(topic, partition, offset) == ErrorCode.NONE:
        promises.commits[topic, partition] = offset


async def coordinator_ready(client: SimClient) -> None:
    while (await client.find_coordinator(GROUP)).error_code != ErrorCode.NONE:
        await asyncio.sleep(0.1)
    while (await SimMember(client, GROUP, []).committed("topic-0", 0))[1] != ErrorCode.NONE:
        await asyncio.sleep(0.1)


async def check_survivor(world: World, cut: Cut, promises: Promises, window_s: float, **settings: object) -> None:
    """Start a broker on what survived and hold it to what was promised before the cut, less the last `window_s`."""
    broker = world.host("broker")
    broker.insert(cut.disk)
    broker.disk.cold = 0.2
    await boot(broker, **settings)
    client = await connect(world.host("checker"), broker)
    found = {topic.name: topic for topic in (await client.metadata()).topics}
    for name, partitions in cut.promised.topics.items():
        assert name in found, f"{name} is lost"
        assert [part.error_code for part in found[name].partitions] == [ErrorCode.NONE] * partitions
    kept = {
        (name, index): await read_all(client, name, index)
        for name, partitions in cut.promised.topics.items()
        for index in range(partitions)
    }
    for promise in cut.promised.records:
        values = kept[promise.topic, promise.partition]
        if promise.offset < len(values):
            assert values[promise.offset] == promise.value, f"{promise} became {values[promise.offset]!r}"
        else:
            assert promise.at > cut.at - window_s, f"{promise} is lost"
    if cut.promised.commits:
        await coordinator_ready(client)
        reader = SimMember(client, GROUP, [])
        for (topic, partition), offset in cut.promised.commits.items():
            committed, code = await reader.committed(topic, partition)
            assert code == ErrorCode.NONE
            assert committed <= promises.tried[topic, partition], "a commit that nobody made"
            if not window_s:
                assert committed >= offset, f"the commit of {topic}-{partition} at {offset} is lost: {committed}"


async def read_all(client: SimClient, topic: str, partition: int) -> list[bytes]:
    """The values from offset 0 on, which must follow each other without a gap."""
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
    """Cut, restart and check as often as wanted; returns how often. A failure names the seed and the cut."""
    promises = Promises()
    cuts: list[Cut] = []
    with simulated(seed) as world:
        world.run(record_history(world, steps, wants_cut, promises, cuts, **settings))
    for cut in cuts:
        with simulated(seed) as world:
            try:
                world.run(check_survivor(world, cut, promises, window_s, **settings))
            except BaseException as error:
                error.add_note(f"power cut at {cut.at:.6f} after operation {cut.after}")
                raise
    return len(cuts)
