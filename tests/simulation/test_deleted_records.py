"""DeleteRecords: a success is on the disk before the answer, and a failed write is no success."""

import errno

import pytest

from simulation_harness import boot, connect
from tidelog.simulation.client import SimClient
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.wire.records import Record

TOPIC = "orders"


async def delete(client: SimClient, offset: int) -> tuple[int, int]:
    """Delete the records below `offset`. Return the error code and the low watermark."""
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=TOPIC, partitions=[partition])], timeout_ms=1000)
    answer = await client.ask(request, DeleteRecordsResponse)
    result = answer.topics[0].partitions[0]
    return result.error_code, result.low_watermark


async def filled(world: World, durability: str = "fsync", **settings: object) -> SimClient:
    host = world.host("broker")
    await boot(host, durability=durability, **settings)
    client = await connect(world.host("client"), host)
    await client.create_topic(TOPIC)
    for number in range(10):
        answer = await client.produce(TOPIC, 0, [Record(b"k", b"%d" % number)] * 3)
        assert answer.error_code == ErrorCode.NONE
    return client


@pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
@pytest.mark.parametrize("seed", range(5))
def test_the_start_of_a_log_survives_a_power_cut(seed: int, durability: str) -> None:
    """The records below the start are made durable first, because a log must not end below its start."""

    async def life(world: World) -> None:
        client = await filled(world, durability)
        assert await delete(client, 7) == (ErrorCode.NONE, 7)
        world.host("broker").cut_power()
        broker = await boot(world.host("broker"), durability=durability)
        assert broker.services.partitions.offline_count == 0
        client = await connect(world.host("client-2"), world.host("broker"))
        below, _ = await client.fetch(TOPIC, 0, 6)
        assert below.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        answer, records = await client.fetch(TOPIC, 0, 7)
        assert (answer.error_code, answer.log_start_offset) == (ErrorCode.NONE, 7)
        assert [record.offset for record in records] == list(range(7, 30))

    with simulated(seed) as world:
        world.run(life(world))


def test_a_start_that_cannot_be_written_down_is_not_acknowledged() -> None:
    async def life(world: World) -> None:
        client = await filled(world)
        world.host("broker").disk.fail("write", "*log-start-offset-checkpoint*", errno.ENOSPC)
        assert await delete(client, 7) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert await delete(client, 7) == (ErrorCode.NONE, 7)

    with simulated(1) as world:
        world.run(life(world))


def test_a_reader_at_the_end_waits_on_and_segments_go_with_the_next_retention() -> None:
    async def life(world: World) -> None:
        client = await filled(
            world, log_initial_task_delay_ms=500, log_retention_check_interval_ms=500, log_segment_delete_delay_ms=0
        )
        waiting = world.host("reader").runtime.tasks.spawn(
            (await connect(world.host("reader"), world.host("broker"))).fetch(TOPIC, 0, 30, wait_ms=20_000),
            name="waiting",
        )
        assert await delete(client, -1) == (ErrorCode.NONE, 30)
        await world.host("client").runtime.tasks.sleep(3.0)
        assert not waiting.done()
        await client.produce(TOPIC, 0, [Record(b"k", b"later")])
        _, records = await waiting
        assert [record.value for record in records] == [b"later"]

    with simulated(1) as world:
        world.run(life(world))
