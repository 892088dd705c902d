"""A guard that is closed answers the questions that still wait."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.coordinator.transaction_guard import Question, TransactionGuard
from tidelog.runtime.tasks import LoopTasks
from tidelog.simulation.loop import SimLoop
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

NODE_ID, OTHER_ID = 1, 2
QUESTION = Question("mover", 7, 0, ("orders", 0), adds=False)


class Channels:
    """Another broker. It never answers, unless it has `codes` by partition."""

    def __init__(self, tasks: LoopTasks) -> None:
        self._tasks = tasks
        self.asked: list[list[tuple[str, list[tuple[str, list[int]]]]]] = []
        self.codes: dict[tuple[str, int], int] = {}

    @property
    def requests(self) -> int:
        return len(self.asked)

    async def ask(self, _broker: object, request: AddPartitionsToTxnRequest, *_: Any) -> Any:
        self.asked.append(
            [(t.transactional_id, [(topic.name, topic.partitions) for topic in t.topics]) for t in request.transactions]
        )
        if not self.codes:
            await self._tasks.future()
        return AddPartitionsToTxnResponse(results_by_transaction=[self._result(t) for t in request.transactions])

    def _result(self, transaction: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
        """As a broker answers: if one partition is refused, the others are not attempted."""
        codes = {
            (topic.name, index): self.codes.get((topic.name, index), 0)
            for topic in transaction.topics
            for index in topic.partitions
        }
        if any(codes.values()):
            codes = {partition: code or ErrorCode.OPERATION_NOT_ATTEMPTED for partition, code in codes.items()}
        return AddPartitionsToTxnResult(
            transaction.transactional_id,
            [
                AddPartitionsToTxnTopicResult(name, [AddPartitionsToTxnPartitionResult(index, code)])
                for (name, index), code in codes.items()
            ],
        )

    def close(self) -> None: ...


class Stage:
    """A guard, and one question to the coordinator on another broker."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        tasks = LoopTasks(self.loop)
        self.channels = Channels(tasks)
        host = SimpleNamespace(address_of=lambda _key, _listener: (OTHER_ID, None))
        runtime: Any = SimpleNamespace(tasks=tasks, clock=SimpleNamespace(monotonic=self.loop.time))
        config: Any = SimpleNamespace(node_id=NODE_ID, get=lambda _name: 1000)
        metadata: Any = SimpleNamespace(newest=SimpleNamespace(brokers={OTHER_ID: object()}))
        coordinators: Any = SimpleNamespace(host=host)
        channels: Any = self.channels
        self.guard = TransactionGuard(runtime, config, metadata, coordinators, channels)

    async def close_after(self, turns: int) -> ErrorCode:
        """Ask, close the guard after some turns of the loop, and return the answer."""
        question = asyncio.ensure_future(self.guard.ensure(QUESTION))
        for _ in range(turns):
            await asyncio.sleep(0)
        self.guard.close()
        with pytest.raises(ApiError) as refusal:
            await asyncio.wait_for(question, 1)
        return refusal.value.code


@pytest.mark.parametrize(("turns", "requests"), [(1, 0), (3, 1)], ids=["not-sent", "sent"])
def test_a_question_is_refused_when_the_guard_is_closed(turns: int, requests: int) -> None:
    stage = Stage()
    code = stage.loop.run_until_complete(stage.close_after(turns))
    assert (code, stage.channels.requests) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, requests)


def test_questions_of_one_transaction_are_asked_together() -> None:
    """A partition that is refused does not make the others fail, as each was asked alone."""
    stage = Stage()
    stage.channels.codes = {("orders", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    partitions = [("orders", 0), ("orders", 1), ("orders", 2), ("items", 0), ("orders", 0)]
    questions = [Question("mover", 7, 0, partition, adds=True) for partition in partitions]
    questions.append(Question("other", 8, 0, ("orders", 0), adds=True))

    async def ask(question: Question) -> int:
        try:
            await stage.guard.ensure(question)
        except ApiError as refusal:
            return refusal.code
        return 0

    async def ask_all() -> list[int]:
        return await asyncio.gather(*[ask(question) for question in questions])

    assert stage.loop.run_until_complete(ask_all()) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, 0, 0, 0]
    assert stage.channels.asked == [
        [("mover", [("orders", [0, 1, 2]), ("items", [0])]), ("other", [("orders", [0])])],
        [("mover", [("orders", [0, 2]), ("items", [0])])],
    ]


def test_a_broker_that_attempts_nothing_does_not_stop_the_questions() -> None:
    stage = Stage()
    stage.channels.codes = {("orders", 0): ErrorCode.OPERATION_NOT_ATTEMPTED}
    with pytest.raises(ApiError):
        stage.loop.run_until_complete(stage.guard.ensure(QUESTION))
    assert stage.channels.requests == 1
