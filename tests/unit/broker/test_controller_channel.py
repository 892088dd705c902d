"""Requests to the controller of another broker over the network: what was sent, what was lost, separate connections."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tidelog.broker.broker import BrokerServer
from tidelog.broker.controller_channel import REPEATABLE_TIMEOUT_S, NetworkControllerChannel
from tidelog.metadata import link_codec
from tidelog.metadata.controller import NewTopic, TopicChoice
from tidelog.metadata.image import BrokerRegistration
from tidelog.metadata.link import (
    AllocateProducerIds,
    AlterQuotas,
    Answer,
    AnswerLost,
    ControllerRequest,
    ControllerUnreachable,
    CreateTopics,
    DeleteTopics,
)
from tidelog.simulation.cluster import SimCluster, SimNode
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode

CREATE = CreateTopics([NewTopic("t", 1, 1)])


class HeldController:
    """Stands for a broker's controller: it answers when the test lets it."""

    def __init__(self, broker: BrokerServer) -> None:
        peers = broker.services.peer_brokers
        assert peers is not None
        self._real = peers.controller
        self._tasks = broker.runtime.tasks
        self.received: list[type[Any]] = []
        self.held: dict[type[Any], asyncio.Future[None]] = {}
        peers.controller = self

    def hold(self, kind: type[Any]) -> None:
        self.held[kind] = self._tasks.future()

    @property
    def is_active(self) -> bool:
        return self._real.is_active

    async def execute(self, request: ControllerRequest) -> Answer[Any]:
        self.received.append(type(request))
        if type(request) in self.held:
            await self.held[type(request)]
        return await self._real.execute(request)


class Stage:
    """Two brokers. The first one is the controller, and the second one has a channel to it."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        first, second = (node.broker for node in cluster.nodes)
        assert first is not None
        assert second is not None
        self.second = second
        assert second.peer_connections is not None
        self.channel = NetworkControllerChannel(second.peer_connections, 2, second.runtime.turns)
        self.controller = HeldController(first)

    @property
    def first(self) -> SimNode:
        return self.cluster.nodes[0]

    @property
    def target(self) -> BrokerRegistration:
        return self.second.services.metadata.image.brokers[1]

    def ask(self, request: ControllerRequest, timeout_s: float = 10) -> "asyncio.Task[Answer[Any]]":
        return self.second.runtime.tasks.spawn(self.channel.ask(self.target, request, timeout_s), name="ask")

    async def received(self) -> None:
        """Wait until the controller has the request CREATE. It also receives heartbeats."""
        while CreateTopics not in self.controller.received:
            await asyncio.sleep(0.01)


def run(scenario: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def whole(world: World) -> None:
        cluster = SimCluster(world, 2)
        for node in cluster.nodes:
            await node.start()
        stage = Stage(cluster)
        await scenario(stage)
        stage.channel.close()

    with simulated(1) as world:
        world.run(whole(world))


def test_answers_and_errors_arrive() -> None:
    async def scenario(stage: Stage) -> None:
        answer = await stage.ask(CREATE)
        assert [result.name for result in answer.result()] == ["t"]
        assert answer.position > 0
        again = await stage.ask(CREATE)
        assert again.result()[0].error == ErrorCode.TOPIC_ALREADY_EXISTS

    run(scenario)


def test_a_broker_that_is_not_the_controller_says_so() -> None:
    async def scenario(stage: Stage) -> None:
        assert stage.first.broker is not None
        controller = stage.first.broker.controller
        assert controller is not None
        await controller.deactivate()  # type: ignore[attr-defined]
        assert (await stage.ask(CREATE)).error == ErrorCode.NOT_CONTROLLER

    run(scenario)


def test_nothing_was_sent_to_a_broker_that_cannot_be_reached() -> None:
    async def scenario(stage: Stage) -> None:
        stage.first.kill()
        with pytest.raises(ControllerUnreachable):
            await stage.ask(CREATE)
        assert CreateTopics not in stage.controller.received
        stage.world.network.partition(stage.first.host.name, stage.cluster.nodes[1].host.name)
        began_s = stage.world.loop.time()
        with pytest.raises(ControllerUnreachable):
            await stage.ask(CREATE, timeout_s=2)
        assert stage.world.loop.time() - began_s == pytest.approx(2, abs=0.1)

    run(scenario)


@pytest.mark.parametrize("warm", [False, True], ids=["new connection", "open connection"])
def test_the_answer_is_lost_when_the_controller_dies(warm: bool) -> None:
    async def scenario(stage: Stage) -> None:
        if warm:
            await stage.ask(CREATE)
            stage.controller.received.clear()
        stage.controller.hold(CreateTopics)
        asked = stage.ask(CREATE)
        await stage.received()
        stage.first.kill()
        with pytest.raises(AnswerLost):
            await asked
        with pytest.raises(ControllerUnreachable):
            await stage.ask(CREATE)

    run(scenario)


def test_a_silent_controller_is_waited_for_until_the_time_is_over() -> None:
    async def scenario(stage: Stage) -> None:
        for kind in (CreateTopics, AllocateProducerIds):
            stage.controller.hold(kind)
        for request, limit_s in ((CREATE, 8), (AllocateProducerIds(2), REPEATABLE_TIMEOUT_S)):
            began_s = stage.world.loop.time()
            with pytest.raises(AnswerLost):
                await stage.ask(request, timeout_s=8)  # type: ignore[arg-type]
            assert stage.world.loop.time() - began_s == pytest.approx(limit_s, abs=0.1)

    run(scenario)


def test_one_kind_of_request_does_not_wait_for_another() -> None:
    async def scenario(stage: Stage) -> None:
        stage.controller.hold(CreateTopics)
        slow = stage.ask(CREATE)
        await stage.received()
        for request in (AllocateProducerIds(2), DeleteTopics([TopicChoice("no")]), AlterQuotas([])):
            began_s = stage.world.loop.time()
            assert (await stage.ask(request)).error == ErrorCode.NONE
            assert stage.world.loop.time() - began_s < 1
        assert not slow.done()
        stage.controller.held[CreateTopics].set_result(None)
        assert (await slow).error == ErrorCode.NONE

    run(scenario)


def test_several_requests_of_one_kind_are_answered_in_order() -> None:
    async def scenario(stage: Stage) -> None:
        asked = [stage.ask(CreateTopics([NewTopic(f"t{number}", 1, 1)])) for number in range(20)]
        answers = [await each for each in asked]
        assert [answer.result()[0].name for answer in answers] == [f"t{number}" for number in range(20)]

    run(scenario)


def test_a_broker_that_was_not_registered_when_it_connected_connects_again() -> None:
    """As a broker that has just registered: its image had no registration when its connection was opened."""

    async def scenario(stage: Stage) -> None:
        connections = stage.second.peer_connections
        assert connections is not None
        cache = stage.second.services.metadata
        image = cache.image
        await stage.ask(AllocateProducerIds(2))
        del stage.channel
        stage.channel = NetworkControllerChannel(connections, 2, stage.second.runtime.turns)
        incarnation = connections._incarnation
        connections._incarnation = lambda: "not registered"
        with pytest.raises(ControllerUnreachable, match="does not accept"):
            await stage.ask(CREATE)
        connections._incarnation = incarnation
        assert (await stage.ask(CREATE)).error == ErrorCode.NONE
        assert cache.image.position >= image.position

    run(scenario)


def test_requests_that_are_too_large_or_cannot_be_encoded_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(stage: Stage) -> None:
        answer = await stage.ask(CreateTopics([NewTopic("\ud800")]))
        assert (answer.value, answer.error) == (None, ErrorCode.INVALID_REQUEST)
        monkeypatch.setattr(link_codec, "REQUEST_BYTES_MAX", 1000)
        answer = await stage.ask(CreateTopics([NewTopic("a" * 1000)]))
        assert (answer.value, answer.error) == (None, ErrorCode.INVALID_REQUEST)
        assert "at most 1000" in answer.message
        assert CreateTopics not in stage.controller.received

    run(scenario)


def test_connections_to_former_controllers_are_closed() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.ask(CREATE)
        other = stage.target._replace(broker_id=9, endpoints=(stage.target.endpoints[0]._replace(port=1),))
        with pytest.raises(ControllerUnreachable):
            await stage.channel.ask(other, CREATE, 1)
        assert [target.broker_id for target in stage.channel._channels] == [9]

    run(scenario)


def test_a_long_request_is_carried_in_steps() -> None:
    async def scenario(stage: Stage) -> None:
        topics = [NewTopic(f"topic-{number}", 1, 1) for number in range(3000)]
        answer = await stage.ask(CreateTopics(topics, validate_only=True), timeout_s=60)
        assert len(answer.result()) == 3000

    run(scenario)


def test_the_log_names_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario(stage: Stage) -> None:
        await stage.ask(CREATE)
        for broker in stage.second.services.metadata.image.brokers.values():
            assert broker.incarnation not in caplog.text

    run(scenario)
