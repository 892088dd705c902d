"""A guard that is closed answers the questions that still wait."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.coordinator.transaction_guard import Question, TransactionGuard
from tidelog.runtime.tasks import LoopTasks
from tidelog.simulation.loop import SimLoop
from tidelog.wire.errors import ApiError, ErrorCode

NODE_ID, OTHER_ID = 1, 2
QUESTION = Question("mover", 7, 0, ("orders", 0), adds=False)


class Channels:
    """Another broker that never answers."""

    def __init__(self, tasks: LoopTasks) -> None:
        self._tasks = tasks
        self.requests = 0

    async def ask(self, *_: Any) -> Any:
        self.requests += 1
        await self._tasks.future()

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
        metadata: Any = SimpleNamespace(image=SimpleNamespace(brokers={OTHER_ID: object()}))
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
