"""Clients that shut their sending side, on virtual time: each is answered, and none keeps its connection forever."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from simulation_harness import boot, connect
from tidelog.simulation.client import FETCH_BY_NAME, PRODUCE_BY_NAME, SimClient
from tidelog.simulation.world import SimHost, World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.records import Record, encode_batch

IDLE_S = 60
LONG_WAIT_MS = 24 * 3600 * 1000


def simulate(seed: int, scenario: Callable[[World, SimHost, SimHost], Coroutine[Any, Any, None]]) -> str:
    """The run's trace."""
    with simulated(seed) as world:
        broker, client = world.host("broker"), world.host("client")
        broker.start()
        client.start()
        world.run(scenario(world, broker, client))
        return world.trace.text()


def fetch_request(wait_ms: int) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[wanted])]
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1 << 20, max_bytes=1 << 20, topics=topics)


def produce_request() -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=encode_batch([Record(value=b"v")]))]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=data)])


@pytest.mark.parametrize("settings", [{}, {"durability": "fsync"}], ids=["interval", "fsync"])
@pytest.mark.parametrize("seed", range(3))
def test_everything_asked_is_answered(seed: int, settings: dict[str, str]) -> None:
    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        await boot(broker, **settings)
        await (await connect(client, broker)).create_topic("t")
        ending = await connect(client, broker)
        creating = CreateTopicsRequest(
            topics=[CreatableTopic(name="u", num_partitions=1, replication_factor=1)], timeout_ms=30_000
        )
        asking = MetadataRequest(topics=[MetadataRequestTopic(name="u")], allow_auto_topic_creation=False)
        posted = [ending.post(produce_request(), version_max=PRODUCE_BY_NAME) for _ in range(20)]
        posted.append(ending.post(fetch_request(wait_ms=5000), version_max=FETCH_BY_NAME))
        posted.append(ending.post(creating))
        posted.append(ending.post(asking))
        ending.end_requests()
        answers: list[Any] = await asyncio.gather(*posted)
        kinds = [ProduceResponse] * 20 + [FetchResponse, CreateTopicsResponse, MetadataResponse]
        assert [type(answer) for answer in answers] == kinds
        offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers[:20]]
        assert offsets == list(range(20))
        assert answers[20].responses[0].partitions[0].high_watermark == 20
        assert answers[22].topics[0].error_code == ErrorCode.NONE
        while ending.open:
            await asyncio.sleep(0.1)
        assert ending.closed_by is None, "closed in order"

    simulate(seed, scenario)


def test_a_run_is_its_seed() -> None:
    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        await boot(broker)
        await (await connect(client, broker)).create_topic("t")
        ending = await connect(client, broker)
        answer = ending.post(fetch_request(wait_ms=5000), version_max=FETCH_BY_NAME)
        ending.end_requests()
        await answer

    assert simulate(7, scenario) == simulate(7, scenario)


async def has_room(client: SimHost, broker: SimHost) -> bool:
    """Return whether the broker accepts one more connection."""
    try:
        more = await connect(client, broker)
    except OSError:
        return False
    more.close()
    return True


@pytest.mark.parametrize("how", ["end", "close", "reset"])
def test_a_client_that_may_be_no_more_gives_its_place_back(how: str) -> None:
    """The client waits for a day. A reset is noticed at once. The end of the input may mean that the client has closed
    its socket, so the connection lasts only as long as that of an idle client.
    """

    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        await boot(broker, max_connections=2, connections_max_idle_ms=IDLE_S * 1000)
        staying = await connect(client, broker)
        await staying.create_topic("t")
        waiting = await connect(client, broker)
        waiting.post(fetch_request(LONG_WAIT_MS), version_max=FETCH_BY_NAME).add_done_callback(asyncio.Future.exception)
        await asyncio.sleep(1)
        if how == "end":
            waiting.end_requests()
        elif how == "close":
            waiting.close()
        else:
            world.network.reset_connections("client", "broker")
            staying = await connect(client, broker)
        await asyncio.sleep(1)
        if how != "reset":
            assert not await has_room(client, broker)
            for _ in range(IDLE_S // 5 + 5):
                await staying.metadata()
                await asyncio.sleep(5)
        assert await has_room(client, broker)
        assert staying.open

    simulate(11, scenario)


def test_a_client_that_asks_nothing_more_and_is_waited_for_is_answered_when_the_broker_stops() -> None:
    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        running = await boot(broker)
        await (await connect(client, broker)).create_topic("t")
        waiting: SimClient = await connect(client, broker)
        answer = waiting.post(fetch_request(LONG_WAIT_MS), version_max=FETCH_BY_NAME)
        waiting.end_requests()
        await asyncio.sleep(1)
        await broker.runtime.tasks.spawn(running.stop(), name="stop")
        assert isinstance(await answer, FetchResponse)

    simulate(13, scenario)
