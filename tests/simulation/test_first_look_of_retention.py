"""The first check of retention: its effects, and its time, as early as Kafka's (`log.initial.task.delay.ms`)."""

import pytest

import tidelog.log.retention
from log_harness import false_batch
from simulation_harness import boot, connect
from tidelog.broker.broker import BrokerServer
from tidelog.simulation.world import World, simulated
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import ErrorCode
from tidelog.wire.records import Record

TOPIC = "orders"
DAY_MS = 86_400_000


async def started(world: World, **settings: object) -> BrokerServer:
    """Start a broker with durable records that are older than the retention time."""
    host = world.host("broker")
    broker = await boot(host, durability="fsync", **settings)
    client = await connect(world.host("client"), host)
    await client.create_topic(TOPIC)
    old = host.clock.now_ms() - 8 * DAY_MS
    for number in range(10):
        answer = await client.produce(TOPIC, 0, [Record(b"k", b"%d" % number, old)])
        assert answer.error_code == ErrorCode.NONE
    return broker


@pytest.mark.parametrize(("delay_ms", "comes_ms"), [(None, 30_000), (0, 0), (5_000, 5_000)])
def test_it_comes_after_the_initial_delay_not_after_an_interval(delay_ms: int | None, comes_ms: int) -> None:
    async def life(world: World) -> None:
        settings = {} if delay_ms is None else {"log_initial_task_delay_ms": delay_ms}
        broker = await started(world, **settings)
        await broker.stop()
        world.host("broker").kill()
        broker = await boot(world.host("broker"), durability="fsync", **settings)
        log = broker.services.partitions.get(TOPIC, 0).log
        sleep = world.host("client").runtime.tasks.sleep
        if comes_ms:
            await sleep(comes_ms / 1000 - 1)
            assert log.log_start_offset == 0
        await sleep(2)
        assert log.log_start_offset == 10

    with simulated(1) as world:
        world.run(life(world))


def test_records_without_timestamps_are_there_after_it_and_for_as_long_as_retention_says() -> None:
    async def life(world: World) -> None:
        host = world.host("broker")
        broker = await boot(host, durability="fsync", log_retention_ms=600_000, log_retention_check_interval_ms=10_000)
        client = await connect(world.host("client"), host)
        await client.create_topic(TOPIC)
        partition = broker.services.partitions.get(TOPIC, 0)
        batch = false_batch(-1, -1, largest=0)
        partition.append(memoryview(batch), BatchHeader(batch))
        sleep = world.host("client").runtime.tasks.sleep
        await sleep(590)
        assert (partition.log_start_offset, partition.log_end_offset) == (0, 2)
        await sleep(30)
        assert (partition.log_start_offset, partition.log_end_offset) == (2, 2)

    with simulated(1) as world:
        world.run(life(world))


@pytest.mark.parametrize("stops", [False, True])
def test_many_records_are_looked_at_in_a_process_of_its_own_before_they_go(
    monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    """The first check starts to read the records and does not delete them. The next check uses the result."""
    monkeypatch.setattr(tidelog.log.retention, "INLINE_PART_BYTES_MAX", 0)

    async def life(world: World) -> None:
        interval_ms = 60_000
        broker = await started(world, log_initial_task_delay_ms=10_000, log_retention_check_interval_ms=interval_ms)
        log = broker.services.partitions.get(TOPIC, 0).log
        sleep = world.host("client").runtime.tasks.sleep
        await sleep(10.001)
        if stops:
            await broker.stop()
            assert log.log_start_offset == 0
            return
        await sleep(20)
        assert log.log_start_offset == 0
        assert all(segment.age is not None for segment in log.segments.items)
        await sleep(interval_ms / 1000)
        assert log.log_start_offset == 10

    with simulated(1) as world:
        world.run(life(world))
