"""A disk without space, from each write on: the answers to producers, consumers and admins, and the data on the
disk.
"""

import asyncio
import errno
from typing import NamedTuple

import pytest

from process_harness import amount, note
from simulation_harness import boot, connect
from tidelog.broker.broker import BrokerServer
from tidelog.simulation.client import SimClient
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.produce import PartitionProduceResponse
from tidelog.wire.records import Record

VALUE = b"v" * 5000
SEGMENT = {"log_segment_bytes": 1 << 20}
FULL_FOR_S = 4
STEP = amount(5, 1)
"""In the slice the disk fills up at every fifth write."""


class Account:
    """What was acknowledged, by partition and offset."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.refused: dict[int, int] = {}
        self.topics: list[str] = []

    def take(self, partition: int, value: bytes, answer: PartitionProduceResponse) -> None:
        if answer.error_code == ErrorCode.NONE:
            assert (partition, answer.base_offset) not in self.acknowledged, "an offset was given twice"
            self.acknowledged[partition, answer.base_offset] = value
        else:
            self.refused[answer.error_code] = self.refused.get(answer.error_code, 0) + 1


async def write(client: SimClient, account: Account, records: int) -> None:
    """Write some records to each partition, create one more topic, and note every answer."""
    for number in range(records):
        value = b"%d " % number + VALUE * (1 + number % 40)
        for partition in (0, 1):
            account.take(partition, value, await client.produce("t", partition, [Record(b"k", value, 1)]))
        if number % 10 == 5:
            name = f"more-{len(account.topics)}-{number}"
            created = await client.create_topic(name, 1)
            if created.error_code == ErrorCode.NONE:
                account.topics.append(name)
            else:
                assert created.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.sleep(0.1)


async def check(client: SimClient, account: Account) -> None:
    """Check that each acknowledged record exists once, in order and in a whole batch, and that all other records are
    those whose requests got no answer.
    """
    for partition in (0, 1):
        found: dict[int, bytes | None] = {}
        start = 0
        while True:
            answer, records = await client.fetch("t", partition, start)
            assert answer.error_code == ErrorCode.NONE
            if not records:
                break
            found |= {record.offset: record.value for record in records}
            start = records[-1].offset + 1
        assert list(found) == list(range(len(found)))
        wanted = {offset: value for (place, offset), value in account.acknowledged.items() if place == partition}
        assert found == wanted
    topics = {topic.name for topic in (await client.metadata(None)).topics}
    assert set(account.topics) <= topics


async def life(world: World, fill_at: int, durability: str, caplog: pytest.LogCaptureFixture) -> tuple[int, Account]:
    """Run a broker whose disk is full for some time, beginning with the operation number `fill_at` (writes and
    creations). Return the number of these operations.
    """
    host = world.host("broker")
    broker = await boot(host, **SEGMENT, durability=durability)
    client = await connect(world.host("client"), host)
    await client.create_topic("t", 2)
    account = Account()
    disk = host.disk
    done = 0
    full = False

    def step(operation: str, path: str) -> None:
        nonlocal done, full
        if operation in ("create", "write", "make_dir"):
            done += 1
            if done == fill_at:
                full = True
                disk.limit_space(0)
                for kind in ("create", "write", "make_dir"):
                    disk.fail(kind, "*", errno.ENOSPC, times=1 << 30)

    disk.on_operation = step
    writing = asyncio.ensure_future(write(client, account, 30))
    while not (full or writing.done()):
        await asyncio.sleep(0.05)
    await asyncio.sleep(FULL_FOR_S)
    if full:
        reader = await connect(world.host("reader"), host)
        for partition in (0, 1):
            answer, _ = await reader.fetch("t", partition, 0)
            assert answer.error_code == ErrorCode.NONE, "reads go on"
    disk.repair()
    disk.limit_space(None)
    await writing
    disk.on_operation = None
    await asyncio.sleep(3)
    for partition in (0, 1):
        value = b"space again"
        answer = await client.produce("t", partition, [Record(b"k", value, 1)])
        assert answer.error_code == ErrorCode.NONE, "it takes writes again, without a restart"
        account.take(partition, value, answer)
    assert set(account.refused) <= {ErrorCode.KAFKA_STORAGE_ERROR}
    assert broker.services.partitions.offline_count == 0
    await check(client, account)
    said = [record.message.split()[1] for record in caplog.records if record.message.startswith("appends ")]
    assert said in ([], ["refused", "accepted"]), said
    assert bool(said) == bool(account.refused)
    host.kill()
    await boot(host, **SEGMENT, durability=durability)
    client = await connect(world.host("client"), host)
    await check(client, account)
    return done, account


@pytest.mark.parametrize("durability", ["interval", "fsync"])
def test_full_from_any_write_on(durability: str, caplog: pytest.LogCaptureFixture) -> None:
    with simulated(1) as world:
        writes, _ = world.run(life(world, 0, durability, caplog))
    assert writes > 100
    refusals = 0
    for fill_at in range(1, writes, STEP):
        caplog.clear()
        with simulated(fill_at) as world:
            try:
                _, account = world.run(life(world, fill_at, durability, caplog))
            except BaseException as error:
                error.add_note(f"full from write {fill_at} on")
                raise
        refusals += sum(account.refused.values())
    assert refusals > writes / STEP
    note(f"full disk: {len(range(1, writes, STEP))} runs with durability={durability}, {refusals} batches refused")


class Cut(NamedTuple):
    disk: SimDisk
    acknowledged: dict[tuple[int, int], bytes]


@pytest.mark.parametrize("seed", range(3))
def test_power_that_is_cut_while_it_is_full(seed: int) -> None:
    """With durability=fsync no acknowledged record is missing, although recovery points could not be written."""
    cuts: list[Cut] = []

    async def scenario() -> None:
        host = world.host("broker")
        await boot(host, **SEGMENT, durability="fsync")
        client = await connect(world.host("client"), host)
        await client.create_topic("t", 2)
        await asyncio.sleep(3)
        account = Account()
        await write(client, account, 3)
        host.disk.fail("create", "*.tmp", errno.ENOSPC, times=1 << 30)

        def cut(operation: str, path: str) -> None:
            del path
            if operation in ("write", "sync"):
                cuts.append(Cut(host.disk.power_cut(), dict(account.acknowledged)))

        host.disk.on_operation = cut
        for number in range(8):
            for partition in (0, 1):
                value = b"small files wait %d" % number
                answer = await client.produce("t", partition, [Record(b"k", value, 1)])
                assert answer.error_code == ErrorCode.NONE, "records are durable without them"
                account.take(partition, value, answer)
        host.disk.on_operation = None
        host.kill()

    async def after(number: int, cut: Cut) -> None:
        host = world.host(f"after-{number}")
        host.insert(cut.disk)
        await boot(host, **SEGMENT, durability="fsync")
        client = await connect(world.host("client"), host)
        for (partition, offset), value in cut.acknowledged.items():
            _, records = await client.fetch("t", partition, offset)
            assert (records[0].offset, records[0].value) == (offset, value)
        client.close()
        host.kill()

    with simulated(seed) as world:
        world.run(scenario())
        assert len(cuts) > 20
        for number, cut in enumerate(cuts):
            world.run(after(number, cut))


async def started(world: World) -> BrokerServer:
    return await boot(world.host("broker"), **SEGMENT)


def test_a_start_on_a_full_disk_is_refused_and_harms_nothing() -> None:
    async def scenario() -> None:
        host = world.host("broker")
        broker = await started(world)
        client = await connect(world.host("client"), host)
        await client.create_topic("t", 2)
        account = Account()
        await write(client, account, 3)
        await host.runtime.tasks.spawn(broker.stop(), name="stop")
        host.kill()
        for kind in ("create", "write"):
            host.disk.fail(kind, "*", errno.ENOSPC, times=1 << 30)
        with pytest.raises(Exception, match="No space left"):
            await started(world)
        host.kill()
        await started(world)
        await check(await connect(world.host("client"), host), account)

    with simulated(1) as world:
        world.run(scenario())


def test_groups_whose_partition_was_opened_late_are_served_without_a_restart() -> None:
    async def scenario() -> None:
        host = world.host("broker")
        broker = await boot(host, offsets_topic_num_partitions=1)
        client = await connect(world.host("client"), host)
        host.disk.fail("create", "*__consumer_offsets-0*", errno.ENOSPC, times=1 << 30)
        for _ in range(3):
            refused = await client.find_coordinator("g")
            assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert broker.services.partitions.offline_count == 1
        host.disk.repair()
        await asyncio.sleep(3)
        assert (await client.find_coordinator("g")).error_code == ErrorCode.NONE
        # The partition has a leader, and its groups are loaded.
        broker.services.groups.read_offsets("g", lambda durable, pending: None, lambda answer: None)

    with simulated(1) as world:
        world.run(scenario())
