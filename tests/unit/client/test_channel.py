"""A channel against a scripted broker, on virtual time: pipelining, timeouts, back-off, one log line per change."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from scripted_harness import Asked, ScriptedBroker, ScriptedConnection
from tidelog.client.channel import Channel, ChannelConfig, ChannelState
from tidelog.client.cluster import Address
from tidelog.client.errors import ApiNotSupported, BrokenProtocol, BrokerUnreachable
from tidelog.client.operations import Backoff
from tidelog.runtime.real import real_runtime
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.message import Message
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

PORT = 9092
CONFIG = ChannelConfig(request_timeout_ms=2_000, connection_setup_timeout_ms=1_000, backoff=Backoff(100, 1_600))


def metadata(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


def name_in(request: Message) -> str:
    assert isinstance(request, MetadataRequest)
    assert request.topics is not None
    assert request.topics[0].name is not None
    return request.topics[0].name


def named(name: str) -> MetadataResponse:
    return MetadataResponse(cluster_id=name)


def echo(asked: Asked) -> Message:
    return named(name_in(asked.request))


class Scene:
    """A broker on host "b", a channel to it on host "a", and the log lines of the channel."""

    def __init__(self, world: World, answer: Callable[[Asked], Message | None], config: ChannelConfig = CONFIG) -> None:
        self.world = world
        self.broker = ScriptedBroker(answer, [MetadataRequest, FetchRequest])
        self.server = world.host("b")
        self.channel = Channel(world.host("a").runtime, Address(self.server.address, PORT), config)

    async def listen(self) -> None:
        await self.broker.listen(self.server.runtime, self.server.address, PORT)

    async def ask(self, name: str = "t", **options: Any) -> str | None:
        return (await self.channel.ask(metadata(name), MetadataResponse, **options)).cluster_id

    def connects(self) -> int:
        return sum(" net.connect " in line for line in self.world.trace.lines)


def run(
    scenario: Callable[[Scene], Coroutine[Any, Any, None]],
    answer: Callable[[Asked], Message | None] = echo,
    config: ChannelConfig = CONFIG,
) -> None:
    for seed in range(3):
        with simulated(seed) as world:
            world.run(scenario(Scene(world, answer, config)))


def changes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the first words of the channel's log lines."""
    return [record.getMessage().partition(" address=")[0] for record in caplog.records if "channel" in record.name]


def test_responses_find_their_requests_and_one_greeting_serves_all() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.listen()
        names = [f"topic-{number}" for number in range(20)]
        assert await asyncio.gather(*(scene.ask(name) for name in names)) == names
        assert (scene.broker.greetings, len(scene.broker.connections)) == (1, 1)

    run(scenario)


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    waiting: list[Asked] = []

    async def scenario(scene: Scene) -> None:
        waiting.clear()
        await scene.listen()
        asking = [asyncio.ensure_future(scene.ask(str(number))) for number in range(6)]
        await asyncio.sleep(0.5)
        assert [name_in(asked.request) for asked in waiting] == ["0", "1"]
        with pytest.raises(BrokerUnreachable, match="6 requests to it are already in progress"):
            await scene.ask()
        for number in range(6):
            asked = waiting[number]
            asked.answer(named(name_in(asked.request)))
            await asyncio.sleep(0.1)
        assert await asyncio.gather(*asking) == [str(number) for number in range(6)]

    run(scenario, waiting.append, CONFIG._replace(in_flight_max=2, requests_max=6))


def test_a_missing_response_costs_the_connection_and_the_requests_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(scene: Scene) -> None:
        await scene.listen()
        first = asyncio.ensure_future(scene.ask("silent"))
        await asyncio.sleep(1)
        second = asyncio.ensure_future(scene.ask("t"))
        with pytest.raises(BrokerUnreachable, match="no answer in time"):
            await first
        with pytest.raises(BrokerUnreachable, match="the connection has ended"):
            await second
        assert await scene.ask("again") == "again"
        assert len(scene.broker.connections) == 2

    stuck: list[ScriptedConnection] = []  # a broker answers in order: nothing follows a missing response

    def in_order(asked: Asked) -> Message | None:
        if name_in(asked.request) == "silent":
            stuck.append(asked.connection)
        return None if asked.connection in stuck else echo(asked)

    run(scenario, in_order)
    assert changes(caplog) == 3 * ["connected to broker", "connection to broker lost", "connected to broker"]


def test_a_request_that_nobody_waits_for_costs_nothing() -> None:
    waiting: list[Asked] = []

    async def scenario(scene: Scene) -> None:
        waiting.clear()
        await scene.listen()
        cancelled = asyncio.ensure_future(scene.ask("cancelled"))
        await asyncio.sleep(0.5)
        cancelled.cancel()
        asking = asyncio.ensure_future(scene.ask("next"))
        await asyncio.sleep(0.5)
        for asked in waiting:
            asked.answer(named(name_in(asked.request)))
        assert await asking == "next"
        assert len(scene.broker.connections) == 1

    run(scenario, waiting.append)


def test_attempts_are_ever_rarer_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(scene: Scene) -> None:
        scene.world.host("b").start()
        loop = asyncio.get_running_loop()
        times = []
        for _ in range(9):
            with pytest.raises(BrokerUnreachable, match="refused"):
                await scene.ask()
            times.append(loop.time())
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        for pause, expected in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.6, 1.6, 1.6, 1.6], strict=True):
            assert 0.8 * expected <= pause <= 1.2 * expected + 0.25  # latency of the network
        assert max(pauses[4:]) - min(pauses[4:]) > 0.15, "without jitter they differ by the latency only"
        assert scene.channel.state is ChannelState.UNREACHABLE
        await scene.listen()
        assert await scene.ask() == "t"
        scene.broker.cut()
        await asyncio.sleep(0.5)
        before = loop.time()
        assert await scene.ask() == "t"
        assert loop.time() - before < 0.5, "a response ends the row of failures"

    run(scenario)
    lines = ["broker unreachable, trying again when needed", "connected to broker", "connection to broker lost"]
    assert changes(caplog) == 3 * [*lines, "connected to broker"]


def test_requests_share_an_attempt() -> None:
    async def scenario(scene: Scene) -> None:
        scene.world.host("b").start()
        failures = await asyncio.gather(*(scene.ask() for _ in range(5)), return_exceptions=True)
        assert [type(failure) for failure in failures] == 5 * [BrokerUnreachable]
        await scene.listen()
        assert await asyncio.gather(*(scene.ask() for _ in range(5))) == 5 * ["t"]
        assert scene.connects() == 1

    run(scenario)


def test_a_broker_that_drops_each_connection_is_not_asked_without_pause() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.listen()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(8):
            with pytest.raises(BrokerUnreachable):
                await scene.ask()
        assert loop.time() - began > 0.8 * (0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 1.6 + 1.6)

    def drop(asked: Asked) -> None:
        asked.connection.stream.abort()

    run(scenario, drop)


def test_a_host_without_power_costs_the_time_limits_only() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.listen()
        assert await scene.ask() == "t"
        scene.server.cut_power()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(BrokerUnreachable, match="no answer in time"):
            await scene.ask(timeout_ms=700)
        assert loop.time() - began == pytest.approx(0.7)
        with pytest.raises(BrokerUnreachable, match="no answer in time"):
            await scene.ask()
        assert loop.time() - began < 0.7 + 1.0 + 0.2, "the attempt to connect has a limit of its own"

    run(scenario)


def test_a_broker_that_does_not_greet_is_unreachable() -> None:
    async def scenario(scene: Scene) -> None:
        scene.broker.greets = False
        await scene.listen()
        with pytest.raises(BrokerUnreachable, match="no answer in time"):
            await scene.ask()
        await asyncio.sleep(1)
        assert not any(connection.open for connection in scene.broker.connections)

    run(scenario)


def test_a_peer_that_breaks_the_protocol_is_left(caplog: pytest.LogCaptureFixture) -> None:
    def answer(asked: Asked) -> None:
        asked.header.correlation_id += 1
        asked.answer(named("wrong"))

    async def scenario(scene: Scene) -> None:
        await scene.listen()
        with pytest.raises(BrokenProtocol, match="response 2 where 1 was expected"):
            await scene.ask()
        await asyncio.sleep(1)
        assert not scene.broker.connections[0].open
        assert scene.channel.state is ChannelState.IDLE

    run(scenario, answer)
    assert "the peer violates the protocol" in caplog.text


def test_a_response_beyond_the_limit_is_refused() -> None:
    def answer(asked: Asked) -> Message:
        data = PartitionData(records=bytes(30_000))
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])

    async def scenario(scene: Scene) -> None:
        await scene.listen()
        with pytest.raises(BrokenProtocol, match="limit is 10000"):
            await scene.channel.ask(FetchRequest(), FetchResponse, version_max=12)

    run(scenario, answer, CONFIG._replace(frame_bytes_max=10_000))


def test_fetched_records_are_views_of_the_received_bytes() -> None:
    def answer(asked: Asked) -> Message:
        data = PartitionData(records=bytes(range(256)) * 1000)
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])

    async def scenario(scene: Scene) -> None:
        await scene.listen()
        response = await scene.channel.ask(FetchRequest(), FetchResponse, version_max=12)
        records = response.responses[0].partitions[0].records
        assert isinstance(records, memoryview)
        assert isinstance(records.obj, bytearray)
        assert records == bytes(range(256)) * 1000

    run(scenario, answer)


def test_an_api_that_the_broker_lacks_is_refused_and_the_connection_stays() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.listen()
        with pytest.raises(ApiNotSupported):
            await scene.channel.ask(FindCoordinatorRequest(), FindCoordinatorResponse)
        assert await scene.ask() == "t"
        assert len(scene.broker.connections) == 1

    run(scenario)


@pytest.mark.parametrize("moment", ["connecting", "pausing", "waiting", "idle"])
def test_closing_ends_requests_at_once(moment: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(scene: Scene) -> None:
        scene.world.host("b").start()
        if moment == "pausing":
            for _ in range(5):
                with pytest.raises(BrokerUnreachable):
                    await scene.ask()
        elif moment in ("waiting", "idle"):
            await scene.listen()
        asking = asyncio.ensure_future(scene.ask("silent" if moment == "waiting" else "t"))
        if moment == "idle":
            await asking
        else:
            await asyncio.sleep(0.3 if moment == "waiting" else 0)
        scene.channel.close()
        began = asyncio.get_running_loop().time()
        if moment != "idle":
            with pytest.raises(BrokerUnreachable):
                await asking
        assert asyncio.get_running_loop().time() - began < 0.01
        with pytest.raises(BrokerUnreachable, match="channel is closed"):
            await scene.ask()
        await asyncio.sleep(5)
        assert not any(connection.open for connection in scene.broker.connections)
        scene.channel.close()

    run(scenario, lambda asked: None if name_in(asked.request) == "silent" else echo(asked))
    assert changes(caplog).count("connection to broker closed") == 3


def test_it_runs_on_real_sockets() -> None:
    """Large responses in both directions of the pipeline, over loopback."""

    def answer(asked: Asked) -> Message:
        data = PartitionData(records=bytes(300_000))
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])

    async def scenario() -> None:
        runtime = real_runtime()
        broker = ScriptedBroker(answer, [FetchRequest])
        port = await broker.listen(runtime, "127.0.0.1", 0)
        channel = Channel(runtime, Address("127.0.0.1", port))
        asking = [channel.ask(FetchRequest(), FetchResponse, version_max=12) for _ in range(20)]
        for response in await asyncio.gather(*asking):
            assert response.responses[0].partitions[0].records == bytes(300_000)
        broker.stop()
        broker.cut()
        with pytest.raises(BrokerUnreachable):
            while True:
                await channel.ask(FetchRequest(), FetchResponse, version_max=12)
        channel.close()
        await runtime.close()

    asyncio.run(scenario())


def test_a_broker_that_rejects_the_greeting_is_unreachable() -> None:
    async def scenario(scene: Scene) -> None:
        scene.broker.greeting_error = ErrorCode.ILLEGAL_SASL_STATE
        await scene.listen()
        with pytest.raises(BrokerUnreachable, match=r"rejects the first request \(ApiVersions\)"):
            await scene.ask()
        scene.broker.greeting_error = ErrorCode.NONE
        assert await scene.ask() == "t"

    run(scenario)
