"""A broker that compacts during writes and crashes at any moment: a table never loses or regains a value."""

import asyncio
import random

import pytest

from process_harness import amount, seed_of
from simulation_harness import boot, connect
from tidelog.simulation.client import SimClient
from tidelog.simulation.member import SimMember
from tidelog.simulation.world import EPOCH_MS, World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.records import Record

TOPIC = "table"
SETTINGS = {
    "log_cleaner_backoff_ms": 20,
    "log_initial_task_delay_ms": 300,
    "log_retention_check_interval_ms": 300,
    "log_segment_delete_delay_ms": 100,
    "durability": "fsync",
}
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "internal.segment.bytes": "600",
    "delete.retention.ms": "200",
}
KEYS = 8
SEEDS = amount(4, 40)
LIVES = 6


class Table:
    """For each key: the value that was acknowledged last, and the later values that were sent and not answered."""

    def __init__(self) -> None:
        self.last: dict[bytes, tuple[int, bytes | None]] = {}
        self.doubtful: dict[bytes, list[bytes | None]] = {}
        self.sent = 0

    def check(self, records: list[Record]) -> None:
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        found = {record.key: record for record in records}
        for key, (offset, value) in self.last.items():
            record = found.get(key)
            doubtful = self.doubtful.get(key, [])
            if record is None:
                assert value is None or None in doubtful, f"{key!r} is lost"
            elif record.offset == offset:
                assert record.value == value
            else:
                assert record.offset > offset, f"{key!r}: what was superseded came back"
                assert record.value in doubtful


async def write(client: SimClient, table: Table, rng: random.Random) -> None:
    while True:
        table.sent += 1
        key = b"k%d" % rng.randrange(KEYS)
        value = None if rng.random() < 0.2 else b"%d" % table.sent + b"." * rng.randrange(60)
        table.doubtful.setdefault(key, []).append(value)
        answer = await client.produce(TOPIC, 0, [Record(key, value, EPOCH_MS)])
        assert answer.error_code == ErrorCode.NONE
        table.last[key] = answer.base_offset, value
        table.doubtful[key] = []


async def read_all(client: SimClient, topic: str = TOPIC) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while True:
        answer, records = await client.fetch(topic, 0, offset)
        assert answer.error_code == ErrorCode.NONE
        if not records:
            return found
        found += records
        offset = records[-1].offset + 1


async def one_life(world: World, table: Table, number: int) -> int:
    """Run the broker until the power is cut or the process is killed. Return the number of records at its start."""
    rng = world.rng(f"life {number}")
    host = world.host("broker")
    await boot(host, **SETTINGS)
    writer = world.host(f"client-{number}")
    client = await connect(writer, host)
    if not number:
        await client.create_topic(TOPIC, configs=TOPIC_SETTINGS)
    left = await read_all(client)
    table.check(left)
    writing = writer.runtime.tasks.spawn(write(client, table, rng), name="write")
    await asyncio.sleep(rng.uniform(0.05, 3.0))
    if rng.random() < 0.5:
        writing.cancel()
        await asyncio.wait([writing])
        table.check(await read_all(client))
    if rng.random() < 0.5:
        host.cut_power()
    else:
        host.kill()
    writing.cancel()
    await asyncio.wait([writing])
    return len(left)


@pytest.fixture(scope="module")
def first_seed() -> int:
    return seed_of("compaction")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_compacting_broker_dies_and_comes_back(seed: int, first_seed: int) -> None:
    table = Table()
    with simulated(first_seed + seed) as world:
        left = [world.run(one_life(world, table, number), virtual_s=60) for number in range(LIVES)]
        names = world.host("broker").disk.list(f"/data/{TOPIC}-0")
    assert table.sent > 100
    assert max(left) < table.sent / 2, "it was compacted"
    assert names


async def committed_offsets(world: World, count: int) -> tuple[int, int, int]:
    """Commit `count` offsets, then kill the broker and start it again. Return the committed offset after that, and the
    number of records in the log before and after.
    """
    host = world.host("broker")
    settings = {**SETTINGS, "offsets_topic_num_partitions": 1}
    await boot(host, **settings)
    client = await connect(world.host("client"), host)
    await client.create_topic(TOPIC)
    while (await client.find_coordinator("billing")).error_code != ErrorCode.NONE:
        await asyncio.sleep(0.1)
    small = AlterableConfig(name="internal.segment.bytes", config_operation=0, value="2000")
    resource = AlterConfigsResource(resource_type=2, resource_name="__consumer_offsets", configs=[small])
    altered = await client.ask(IncrementalAlterConfigsRequest(resources=[resource]), IncrementalAlterConfigsResponse)
    assert altered.responses[0].error_code == ErrorCode.NONE
    member = SimMember(client, "billing", [TOPIC])
    for number in range(count):
        while (error := await member.commit(TOPIC, 0, number)) != ErrorCode.NONE:
            assert error in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
            await asyncio.sleep(0.1)
    await asyncio.sleep(5.0)
    left = await read_all(client, "__consumer_offsets")
    host.kill()
    await boot(host, **settings)
    client = await connect(world.host("client-2"), host)
    member = SimMember(client, "billing", [TOPIC])
    while (found := await member.committed(TOPIC, 0))[1] != ErrorCode.NONE:
        await asyncio.sleep(0.1)
    return found[0], left[-1].offset + 1, len(left)


def test_the_offsets_of_groups_are_compacted_and_found_again() -> None:
    with simulated(seed_of("offsets")) as world:
        known, end_offset, left = world.run(committed_offsets(world, 300), virtual_s=120)
    assert known == 299
    assert end_offset >= 300
    assert left < 60
