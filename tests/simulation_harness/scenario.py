"""One life of a broker: produce, fetch, a rebalance, a power cut, a recovery."""

import asyncio

from simulation_harness import boot, connect
from tidelog.simulation.client import SimClient
from tidelog.simulation.member import SimMember
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.records import Record

TOPIC = "orders"
GROUP = "billing"
PARTITIONS = 2


class Account:
    """The acknowledged records, the committed offsets and the assignments that the clients received."""

    def __init__(self) -> None:
        self.produced: dict[tuple[int, int], bytes] = {}
        self.committed: dict[int, int] = {}
        self.assignments: list[dict[str, dict[str, list[int]]]] = []


async def produce(world: World, account: Account, count: int) -> None:
    client = await connect(world.host("producer"), world.host("broker"))
    identity = await client.init_producer()
    sequences = dict.fromkeys(range(PARTITIONS), 0)
    for number in range(count):
        partition = number % PARTITIONS
        values = [b"%d-%d" % (number, item) for item in range(1 + number % 3)]
        producer = (identity.producer_id, identity.producer_epoch, sequences[partition])
        records = [Record(key=b"k", value=value, timestamp=number) for value in values]
        answer = await client.produce(TOPIC, partition, records, producer=producer)
        assert answer.error_code == ErrorCode.NONE, answer
        sequences[partition] += len(values)
        for item, value in enumerate(values):
            account.produced[partition, answer.base_offset + item] = value
    client.close()


async def coordinator_ready(client: SimClient) -> None:
    """Wait until the coordinator is ready: its internal topic is created at the first request, and replayed after a
    start.
    """
    while (await client.find_coordinator(GROUP)).error_code != ErrorCode.NONE:
        await asyncio.sleep(0.1)
    reader = SimMember(client, GROUP, [TOPIC])
    while (await reader.committed(TOPIC, 0))[1] != ErrorCode.NONE:
        await asyncio.sleep(0.1)


async def consume_in_turns(world: World, account: Account) -> None:
    """Let two members share the partitions. Then one leaves, and the other one gets all partitions."""
    consumers = [await connect(world.host(name), world.host("broker")) for name in ("consumer-1", "consumer-2")]
    await coordinator_ready(consumers[0])
    members = [SimMember(client, GROUP, [TOPIC]) for client in consumers]
    assert await asyncio.gather(*(member.join() for member in members)) == [ErrorCode.NONE] * 2
    assert await asyncio.gather(*(member.sync({TOPIC: PARTITIONS}) for member in members)) == [ErrorCode.NONE] * 2
    account.assignments.append({member.member_id: member.assignment for member in members})
    for member in members:
        for partition in member.assignment[TOPIC]:
            _, records = await member.client.fetch(TOPIC, partition, 0)
            assert await member.commit(TOPIC, partition, records[-1].offset + 1) == ErrorCode.NONE
            account.committed[partition] = records[-1].offset + 1
    leaver, stayer = members
    assert await leaver.leave() == ErrorCode.NONE
    while (code := await stayer.heartbeat()) != ErrorCode.REBALANCE_IN_PROGRESS:
        assert code == ErrorCode.NONE
        await asyncio.sleep(0.1)
    assert await stayer.join() == ErrorCode.NONE
    assert await stayer.sync({TOPIC: PARTITIONS}) == ErrorCode.NONE
    account.assignments.append({stayer.member_id: stayer.assignment})


async def check(world: World, account: Account) -> None:
    """Check that all acknowledged records and committed offsets exist."""
    client = await connect(world.host("checker"), world.host("broker"))
    for (partition, offset), value in account.produced.items():
        _, records = await client.fetch(TOPIC, partition, offset)
        assert (records[0].offset, records[0].value) == (offset, value)
    await coordinator_ready(client)
    reader = SimMember(client, GROUP, [TOPIC])
    for partition, offset in account.committed.items():
        assert await reader.committed(TOPIC, partition) == (offset, ErrorCode.NONE)
    client.close()


async def live(world: World, account: Account) -> None:
    broker = world.host("broker")
    await boot(broker, durability="fsync")
    admin = await connect(world.host("admin"), broker)
    assert (await admin.create_topic(TOPIC, PARTITIONS)).error_code == ErrorCode.NONE
    await produce(world, account, 20)
    waiting = asyncio.ensure_future(admin.fetch(TOPIC, 0, _end(account, 0), wait_ms=60_000))
    await asyncio.sleep(1)
    assert not waiting.done()  # a long poll
    await produce(world, account, 2)
    assert (await waiting)[1]
    await consume_in_turns(world, account)
    broker.cut_power()
    await asyncio.sleep(3)
    await boot(broker, durability="fsync")
    await check(world, account)
    await produce(world, account, 10)
    broker.kill()
    restarted = await boot(broker, durability="fsync")
    await check(world, account)
    await broker.runtime.tasks.spawn(restarted.stop(), name="stop")
    broker.kill()
    await boot(broker, durability="fsync")
    await check(world, account)


def _end(account: Account, partition: int) -> int:
    return 1 + max(offset for place, offset in account.produced if place == partition)


def run(seed: int) -> tuple[str, Account]:
    """Run a whole life. Returns the trace and the account."""
    account = Account()
    with simulated(seed) as world:
        world.run(live(world, account))
        return world.trace.text(), account
