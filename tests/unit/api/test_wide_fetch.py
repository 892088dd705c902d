"""A fetch of hundreds of partitions, at its handler: what it waits for, and that it leaves nothing behind."""

import asyncio
from collections.abc import Callable, Coroutine
from types import GeneratorType, SimpleNamespace
from typing import Any

import pytest

from simulation_harness import boot
from tidelog.api.fetch import Fetch, handle
from tidelog.api.fetch_sessions import FetchItem
from tidelog.api.pending import Pending
from tidelog.api.services import Peer, RequestContext, Services
from tidelog.log.partition_log import PartitionLog
from tidelog.metadata.controller import NewTopic
from tidelog.metadata.link import CreateTopics
from tidelog.model.steps import run_all
from tidelog.replication.partition import Partition
from tidelog.replication.partitions import Partitions
from tidelog.simulation.world import simulated
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.records import Record, encode_batch

COUNT = 300
FEW = 3
VERSION = 12


class Stage:
    def __init__(self, services: Services) -> None:
        self.services = services

    @property
    def partitions(self) -> list[Partition]:
        return [self.services.partitions.get("t", index) for index in range(COUNT)]

    @property
    def watched(self) -> int:
        return sum(bool(partition._watchers) for partition in self.partitions)

    def ask(
        self,
        *,
        topic: str = "t",
        count: int = COUNT,
        max_wait_ms: int = 1000,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1000,
    ) -> Any:
        asked = [FetchPartition(partition=index, partition_max_bytes=partition_max_bytes) for index in range(count)]
        request = FetchRequest(
            topics=[FetchTopic(topic=topic, partitions=asked)],
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
        )
        context = RequestContext(1, VERSION, 1, "test", Peer("127.0.0.1", 1, "127.0.0.1", 2))
        answer = handle(self.services, context, request)
        return run_all(answer) if isinstance(answer, GeneratorType) else answer

    def parked(self, **fields: Any) -> tuple[Pending[Any], list[Any]]:
        pending = self.ask(**fields)
        assert isinstance(pending, Pending)
        told: list[Any] = []
        pending.listen(told.append)
        return pending, told

    def append(self, index: int) -> None:
        batch = encode_batch([Record(value=b"x")])
        self.partitions[index].append(memoryview(batch), BatchHeader(batch))


def on_a_stage(scenario: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        broker = await boot(world.host("broker"))
        (await broker.services.controller.create_topics(CreateTopics([NewTopic("t", COUNT, 1)]))).result()
        await scenario(Stage(broker.services))

    with simulated(1) as world:
        world.run(run())


@pytest.mark.parametrize("count", [FEW, COUNT])
def test_partitions_that_nobody_knows_are_not_waited_for(count: int) -> None:
    async def scenario(stage: Stage) -> None:
        answer = stage.ask(topic="nope", count=count, max_wait_ms=60_000)
        assert isinstance(answer, FetchResponse)
        codes = [data.error_code for data in answer.responses[0].partitions]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * count
        # Beside others they keep nobody from waiting.
        pending, _ = stage.parked(count=COUNT + 1)
        pending.abandon()

    on_a_stage(scenario)


@pytest.mark.parametrize(("count", "size"), [(FEW, 100), (FEW, 9000), (COUNT, 10), (COUNT, 1000)])
def test_the_reads_from_the_disk_have_about_the_size_limit_of_the_response(
    count: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the partitions for which the response has no space, only the first bytes are read."""
    first_bytes = 10
    started: list[int] = []

    def cold_read(log: PartitionLog, start: int, bytes_max: int) -> Any:
        assert bytes_max >= 0
        read_size = min(size, bytes_max + first_bytes)
        return SimpleNamespace(size=read_size, run=lambda: started.append(read_size))

    async def scenario(stage: Stage) -> None:
        for index in range(COUNT):
            stage.append(index)
        monkeypatch.setattr(PartitionLog, "cold_read", cold_read)
        answer = stage.ask(count=count, max_bytes=10_000, partition_max_bytes=5000)
        if isinstance(answer, Coroutine):
            await answer
        await asyncio.sleep(1)
        assert len(started) == count
        assert sum(started) <= 10_000 + (count + 1) * first_bytes

    on_a_stage(scenario)


def test_a_client_that_leaves_while_its_time_out_is_answered_watches_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        pending, told = stage.parked(max_wait_ms=100)
        assert stage.watched == COUNT
        await asyncio.sleep(0.2)
        (steps,) = told
        next(steps)
        steps.close()
        pending.abandon()
        await asyncio.sleep(0.1)
        assert stage.watched == 0
        assert not stage.services.partitions._parked

    on_a_stage(scenario)


def test_what_moves_is_read_in_steps_and_all_of_it_is_told() -> None:
    async def scenario(stage: Stage) -> None:
        _, told = stage.parked(max_wait_ms=60_000, min_bytes=1 << 20)
        _, few = stage.parked(max_wait_ms=60_000, min_bytes=1)
        for index in range(COUNT):
            stage.append(index)
        assert not told
        await asyncio.sleep(1)
        assert not told  # too little
        answer = run_all(few[0])
        assert sum(bool(data.records) for data in answer.responses[0].partitions) == COUNT
        assert stage.watched == COUNT  # by the one that waits
        stage.services.partitions.release_waiting()
        answer = run_all(told[0])
        assert [data.high_watermark for data in answer.responses[0].partitions] == [1] * COUNT
        assert sum(bool(data.records) for data in answer.responses[0].partitions) == COUNT
        await asyncio.sleep(0.1)
        assert stage.watched == 0

    on_a_stage(scenario)


def test_what_moves_while_the_first_look_is_taken_is_not_missed() -> None:
    async def scenario(stage: Stage) -> None:
        asked = [FetchPartition(partition=index, partition_max_bytes=1000) for index in range(COUNT)]
        request = FetchRequest(
            topics=[FetchTopic(topic="t", partitions=asked)], max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20
        )
        context = RequestContext(1, VERSION, 1, "test", Peer("127.0.0.1", 1, "127.0.0.1", 2))
        steps: Any = handle(stage.services, context, request)
        answer = None
        while answer is None:
            try:
                next(steps)
            except StopIteration as end:
                answer = end.value
            if stage.watched == COUNT:
                stage.append(0)
                answer = run_all(steps)
        if isinstance(answer, Pending):
            told: list[Any] = []
            answer.listen(told.append)
            await asyncio.sleep(0.1)
            answer = run_all(told[0])
        assert answer.responses[0].partitions[0].records

    on_a_stage(scenario)


def test_a_topic_that_is_deleted_while_it_is_told_of_gives_no_records() -> None:
    async def scenario(stage: Stage) -> None:
        for index in range(COUNT):
            stage.append(index)
        _, told = stage.parked(max_wait_ms=100, min_bytes=1 << 20)
        await asyncio.sleep(0.2)
        steps = told[0]
        while next(steps, 0) is None and stage.watched:
            pass
        for partition in stage.partitions:
            partition.deleted = True
        answer = run_all(steps)
        for data in answer.responses[0].partitions:
            assert (data.error_code, bool(data.records)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)

    on_a_stage(scenario)


@pytest.mark.parametrize("count", [FEW, COUNT])
def test_a_fetch_that_is_finished_twice_is_answered_once(count: int) -> None:
    async def scenario(stage: Stage) -> None:
        _, told = stage.parked(count=count, max_wait_ms=60_000)
        (fetch,) = stage.services.partitions._parked
        read = Fetch._read

        def reading(self: Fetch, item: FetchItem) -> None:
            read(self, item)
            fetch.finish()  # as from within what the read has found out

        stage.append(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Fetch, "_read", reading)
            fetch.finish()
            fetch.finish()
            await asyncio.sleep(0.1)
        assert len(told) == 1

    on_a_stage(scenario)


def test_fetches_that_end_together_are_answered_in_several_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    many, each = 40, 150
    turns: list[Partitions] = []
    renew = Partitions._renew_wake_budget
    monkeypatch.setattr(Partitions, "_renew_wake_budget", lambda self: (turns.append(self), renew(self)))

    async def scenario(stage: Stage) -> None:
        told = [stage.parked(count=each, min_bytes=1 << 30, max_wait_ms=100)[1] for _ in range(many)]
        for index in range(each):
            stage.append(index)
        await asyncio.sleep(0.09)
        turns.clear()
        await asyncio.sleep(0.02)
        assert len(turns) >= many // 2
        for [answer] in told:
            assert all(data.records.size for data in answer.responses[0].partitions)
        assert not stage.watched

    on_a_stage(scenario)


def test_a_fetch_whose_time_is_over_before_it_is_woken_tells_what_came() -> None:
    async def scenario(stage: Stage) -> None:
        others = [stage.parked(count=150, min_bytes=1 << 30, max_wait_ms=100)[1] for _ in range(40)]
        pending, told = stage.parked(count=FEW, min_bytes=1 << 30, max_wait_ms=100)
        await asyncio.sleep(0.0999)
        for index in range(150):
            stage.append(index)
        await asyncio.sleep(0.01)
        assert pending.done
        assert all(others)
        for [answer] in [told, *others]:
            assert all(data.records.size for data in answer.responses[0].partitions)

    on_a_stage(scenario)
