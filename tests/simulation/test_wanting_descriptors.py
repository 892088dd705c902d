"""A broker that runs out of descriptors: no log goes offline, and waiting work continues when descriptors are free."""

import asyncio
import errno
import random

import pytest

from process_harness import amount, seed_of
from simulation_harness import boot, connect
from tidelog.simulation.client import SimClient
from tidelog.simulation.world import EPOCH_MS, SimHost, World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.records import Record

SETTINGS = {"durability": "fsync", "log_flush_interval_ms": 100, "log_cleaner_backoff_ms": 20}
CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "600",
    "min.cleanable.dirty.ratio": "0.1",
    "file.delete.delay.ms": "100",
}
OPERATIONS = ("sync", "sync_dir", "create", "write", "read", "list")
SEEDS = amount(6, 60)


async def run_out_again_and_again(host: SimHost, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.uniform(0.0, 0.3))
        if rng.random() < 0.3:
            host.disk.repair()
        host.disk.fail(rng.choice(OPERATIONS), "/data/t-*", errno.EMFILE, skip=rng.randrange(6), times=rng.randrange(9))


async def write(client: SimClient, partition: int, acknowledged: dict[bytes, bytes]) -> None:
    for number in range(60):
        key, value = b"k%d" % (number % 5), b"%d" % number
        while (await client.produce("t", partition, [Record(key, value, EPOCH_MS)])).error_code != ErrorCode.NONE:
            await asyncio.sleep(0.05)
        acknowledged[key] = value


async def last_values(client: SimClient, partition: int) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    offset = 0
    while True:
        answer, records = await client.fetch("t", partition, offset)
        assert answer.error_code == ErrorCode.NONE
        if not records:
            return found
        found.update({record.key: record.value for record in records if record.key and record.value})
        offset = records[-1].offset + 1


async def one_life(world: World, rng: random.Random, acknowledged: list[dict[bytes, bytes]]) -> None:
    host = world.host("broker")
    await boot(host, **SETTINGS)
    client = await connect(world.host("client"), host)
    await client.create_topic("t", partitions=2, configs=CONFIGS)
    running_out = host.runtime.tasks.spawn(run_out_again_and_again(host, rng), name="run-out")
    await asyncio.gather(*(write(client, index, acknowledged[index]) for index in range(2)))
    running_out.cancel()
    if rng.random() < 0.5:
        host.disk.repair()
        await asyncio.sleep(5)
        await write(client, 0, acknowledged[0])
    host.cut_power()


async def look(world: World, acknowledged: list[dict[bytes, bytes]]) -> None:
    host = world.host("broker")
    await boot(host, **SETTINGS)
    client = await connect(world.host("later"), host)
    for index in range(2):
        assert await last_values(client, index) == acknowledged[index]


async def synced_for_others(world: World, durability: str) -> list[str]:
    host = world.host("broker")
    await boot(host, durability=durability, log_flush_interval_ms=600_000)
    client = await connect(world.host("client"), host)
    await client.create_topic("t", partitions=3)
    for index in (1, 2):
        assert (await client.produce("t", index, [Record(b"k", b"v", EPOCH_MS)])).error_code == ErrorCode.NONE
    synced: list[str] = []
    host.disk.on_operation = lambda operation, path: synced.append(path) if operation == "sync" else None
    host.disk.fail("write", "/data/t-0/*.log", errno.EMFILE)
    assert (await client.produce("t", 0, [Record(b"k", b"v", EPOCH_MS)])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    await asyncio.sleep(1)
    assert (await client.produce("t", 0, [Record(b"k", b"v", EPOCH_MS)])).error_code == ErrorCode.NONE
    return synced


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_when_an_append_wants_a_descriptor_the_others_are_synced_at_once(durability: str) -> None:
    with simulated(1) as world:
        synced = world.run(synced_for_others(world, durability), virtual_s=60)
    assert {f"/data/t-{index}/{0:020d}.log" for index in (1, 2)} <= set(synced)


def test_descriptors_that_come_and_go_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        host = world.host("broker")
        await boot(host, log_flush_interval_ms=1000)
        client = await connect(world.host("client"), host)
        await client.create_topic("t")
        for _ in range(40):
            host.disk.fail("write", "/data/t-0/*.log", errno.EMFILE)
            for wanted in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE):
                assert (await client.produce("t", 0, [Record(b"k", b"v", EPOCH_MS)])).error_code == wanted
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)

    with simulated(1) as world:
        world.run(scenario(world), virtual_s=60)
    lines = [r.getMessage().split(" path")[0] for r in caplog.records if r.getMessage().startswith("appends")]
    assert lines == ["appends refused", "appends accepted again"]


def test_a_broker_that_runs_out_of_descriptors_goes_on_and_loses_nothing() -> None:
    first_seed = seed_of("descriptors")
    for seed in range(first_seed, first_seed + SEEDS):
        acknowledged: list[dict[bytes, bytes]] = [{}, {}]
        with simulated(seed) as world:
            world.run(one_life(world, world.rng("faults"), acknowledged), virtual_s=600)
            world.run(look(world, acknowledged), virtual_s=60)
