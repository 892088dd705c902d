"""AlterPartition requests of a broker: one at a time, for all partitions, repeated while the outcome is unknown."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tidelog.metadata.isr_changes import IsrResult
from tidelog.metadata.link import AlterPartition, Answer
from tidelog.metadata.records import PartitionState
from tidelog.model.ids import TopicId
from tidelog.replication.isr import InSyncReplicas, IsrMember
from tidelog.replication.isr_proposals import RETRY_S, IsrProposals
from tidelog.replication.replica import AskForIsr, IsrAnswered, Tick
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode

TOPIC_ID = TopicId(b"orders--topic-id")


class FakeReplica:
    def __init__(self) -> None:
        self.isr = InSyncReplicas(1, (1, 2), (1, 2), 7, min_insync_replicas=1, lag_max_ms=1000, now_ms=0)


class FakePartition:
    """Records the events that it gets, and proposes again at each Tick."""

    topic, topic_id, deleted = "orders", TOPIC_ID, False

    def __init__(self, index: int, proposals: IsrProposals) -> None:
        self.index = index
        self.replica = FakeReplica()
        self.events: list[Any] = []
        self._proposals = proposals

    def propose(self) -> None:
        self.replica.isr.proposed, self.replica.isr.awaits_answer = (1,), True
        self._proposals.ask(cast(Any, self), AskForIsr(3, 7, (IsrMember(1, 40),)))

    def step(self, event: Any) -> None:
        self.events.append(event)
        if isinstance(event, Tick):
            self.propose()
        elif event.error is ErrorCode.NONE:
            self.replica.isr.proposed = None
        else:
            self.replica.isr.awaits_answer = False


class FakeController:
    """Answers after a second."""

    def __init__(self, world: World) -> None:
        self.requests: list[AlterPartition] = []
        self.running = 0
        self.answer: Callable[[AlterPartition], Answer[list[IsrResult]]] = accept
        self._world = world

    async def alter_partition(self, request: AlterPartition) -> Answer[list[IsrResult]]:
        self.requests.append(request)
        self.running += 1
        assert self.running == 1, "two requests are in flight"
        await asyncio.sleep(1)
        self.running -= 1
        return self.answer(request)


def accept(request: AlterPartition) -> Answer[list[IsrResult]]:
    state = PartitionState(1, 3, (1, 2), (1,), 8)
    return Answer([IsrResult(p.topic_id, p.partition, state=state) for p in request.proposals])


def no_controller(_: AlterPartition) -> Answer[list[IsrResult]]:
    return Answer(None, ErrorCode.NOT_CONTROLLER, "there is none")


def test_proposals_that_arrive_during_a_request_share_the_next_one() -> None:
    async def scenario(world: World) -> None:
        controller = FakeController(world)
        proposals = IsrProposals(world.host("a").runtime, cast(Any, controller), 1, lambda: 40)
        partitions = [FakePartition(index, proposals) for index in range(5)]
        for partition in partitions:
            partition.propose()
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        assert [[p.partition for p in request.proposals] for request in controller.requests] == [[0], [1, 2, 3, 4]]
        assert {(request.broker_id, request.broker_epoch) for request in controller.requests} == {(1, 40)}
        assert controller.requests[0].proposals[0][2:5] == (3, 7, ((1, 40),))
        for partition in partitions:
            assert partition.events == [IsrAnswered(3, 7, ErrorCode.NONE, 8, (1,))]
        await proposals.stop()

    with simulated(1) as world:
        world.run(scenario(world))


def test_a_proposal_without_an_answer_is_repeated_after_a_pause() -> None:
    async def scenario(world: World) -> None:
        controller = FakeController(world)
        controller.answer = no_controller
        proposals = IsrProposals(world.host("a").runtime, cast(Any, controller), 1, lambda: 40)
        partitions = [FakePartition(index, proposals) for index in range(3)]
        for partition in partitions:
            partition.propose()
        await asyncio.sleep(10 * (1 + RETRY_S))
        assert 9 <= len(controller.requests) <= 11
        assert all(len(request.proposals) == 3 for request in controller.requests)
        controller.answer = accept
        await asyncio.sleep(3)
        count = len(controller.requests)
        await asyncio.sleep(3)
        assert len(controller.requests) == count, "nothing is proposed any more"
        assert all(partition.replica.isr.proposed is None for partition in partitions)
        await proposals.stop()

    with simulated(1) as world:
        world.run(scenario(world))


def test_a_stop_ends_the_request() -> None:
    async def scenario(world: World) -> None:
        controller = FakeController(world)
        proposals = IsrProposals(world.host("a").runtime, cast(Any, controller), 1, lambda: 40)
        partition = FakePartition(0, proposals)
        partition.propose()
        await asyncio.sleep(0.5)
        await proposals.stop()
        partition.propose()
        await asyncio.sleep(3)
        assert (len(controller.requests), partition.events) == (1, [])

    with simulated(1) as world:
        world.run(scenario(world))
