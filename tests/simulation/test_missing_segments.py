"""Missing segment files: the real broker notices them at its start, unless Kafka's checkpoint is only out of date."""

import pytest

from simulation_harness import boot, connect
from tidelog.simulation.client import SimClient
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.records import Record

TOPIC = "orders"
STARTS = "/data/log-start-offset-checkpoint"


async def client_of(world: World) -> SimClient:
    return await connect(world.host("client"), world.host("broker"))


async def written(world: World) -> list[int]:
    """Write two partitions with several segments and stop the broker in order. Return the base offsets of the first
    partition's segments.
    """
    host = world.host("broker")
    broker = await boot(host, log_segment_bytes=1 << 20)
    client = await client_of(world)
    await client.create_topic(TOPIC, 2)
    for partition in (0, 1):
        for number in range(7):
            answer = await client.produce(TOPIC, partition, [Record(b"k", b"%d" % number * 400_000, number)])
            assert answer.error_code == ErrorCode.NONE
    client.close()
    await broker.stop()
    host.kill()
    return [int(name[:20]) for name in host.disk.list(f"/data/{TOPIC}-0") if name.endswith(".log")]


def take_first_segment(world: World) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        world.host("broker").disk.remove(f"/data/{TOPIC}-0/{0:020d}{suffix}")
    world.host("broker").disk.sync_dir(f"/data/{TOPIC}-0")


def test_a_first_segment_that_is_missing_after_a_clean_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        second = (await written(world))[1]
        take_first_segment(world)
        broker = await boot(world.host("broker"))
        assert broker.services.partitions.offline_count == 1
        client = await client_of(world)
        answer, records = await client.fetch(TOPIC, 0, second)
        assert (answer.error_code, records) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        _, records = await client.fetch(TOPIC, 1, 0)
        assert records[0].offset == 0, "the other partitions go on"
        (line,) = [record.message for record in caplog.records if "partition offline" in record.message]
        assert f"/data/{TOPIC}-0/{second:020d}.log" in line
        assert f"begins at offset {second}, above its start offset 0" in line
        assert f"set the offset of {TOPIC}-0 to {second} in {STARTS}" in line

    with simulated(1) as world:
        world.run(scenario())


@pytest.mark.parametrize("seed", range(5))
def test_a_directory_of_kafka_whose_start_offsets_lag_behind_is_taken_as_its_files_are(seed: int) -> None:
    async def scenario() -> None:
        second, third = (await written(world))[1:3]
        host = world.host("broker")
        take_first_segment(world)
        for name in host.disk.list("/data"):
            if name.startswith("metadata.sqlite"):
                host.disk.remove(f"/data/{name}")
        host.disk.write_atomic(STARTS, b"0\n0\n")
        for _ in range(2):
            broker = await boot(host)
            assert broker.services.partitions.offline_count == 0
            assert broker.services.partitions.get(TOPIC, 0).log_start_offset == second
            host.cut_power()  # before any other file was written
        host.disk.remove(f"/data/{TOPIC}-0/{second:020d}.log")
        broker = await boot(host)
        with pytest.raises(Exception, match=f"begins at offset {third}, above its start offset {second}"):
            broker.services.partitions.get(TOPIC, 0)

    with simulated(seed) as world:
        world.run(scenario())
