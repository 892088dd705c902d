"""Quotas of clients on virtual time: the announced throttle times, the waits, and that other clients do not wait.

A rate is measured over ten windows of a second at the least, so what passes by any moment is bounded by the quota times
the seconds until then and ten more, and by the one request that goes over it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from simulation_harness import PORT, boot, connect
from tidelog.simulation.client import FETCH_BY_NAME, PRODUCE_BY_NAME, SimClient
from tidelog.simulation.world import SimHost, World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.wire.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.records import Record, encode_batch

BURST_S = 10
Hosts = tuple[World, SimHost, SimHost]


def simulate(seed: int, scenario: Callable[[World, SimHost, SimHost], Coroutine[Any, Any, None]]) -> None:
    with simulated(seed) as world:
        broker, client = world.host("broker"), world.host("client")
        broker.start()
        client.start()
        world.run(scenario(world, broker, client))


async def set_quota(admin: SimClient, parts: dict[str, str | None], **quotas: float) -> None:
    entry = EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in parts.items()],
        ops=[OpData(key=key, value=value, remove=value == 0) for key, value in quotas.items()],
    )
    answer = await admin.ask(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse)
    assert [e.error_code for e in answer.entries] == [ErrorCode.NONE]


def produce_request(size: int, acks: int = 1) -> ProduceRequest:
    batch = encode_batch([Record(value=bytes(size))])
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])


def fetch_request(offset: int, session_id: int = 0, epoch: int = -1) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_id=session_id, session_epoch=epoch,
        topics=[FetchTopic(topic="t", partitions=[wanted])],
    )  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"durability": "fsync"}], ids=["interval", "fsync"])
def test_a_producer_that_does_not_wait_is_made_to(settings: dict[str, str]) -> None:
    """All requests are sent at once. At any time, the quota bounds the bytes that the broker has accepted. In the end
    all requests are accepted.
    """
    quota, size, count = 10_000, 5_000, 60

    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        await boot(broker, **settings)
        admin = await connect(client, broker)
        await admin.create_topic("t")
        await set_quota(admin, {"client-id": "hog"}, producer_byte_rate=quota)
        hog = await SimClient.connect(client.runtime, broker.address, PORT, "hog")
        began = asyncio.get_running_loop().time()
        answers = [hog.post(produce_request(size), version_max=PRODUCE_BY_NAME) for _ in range(count)]
        told_until = 0.0
        throttled = 0
        for number, answer in enumerate(answers, 1):
            response = await answer
            now = asyncio.get_running_loop().time() - began
            assert isinstance(response, ProduceResponse)
            assert number * size <= quota * (now + BURST_S) + size * 1.1
            assert now >= told_until - 0.02, "handled while it had to wait"
            told_until = now - 0.2 + response.throttle_time_ms / 1000  # the answer needed up to 0.1 s to arrive
            throttled += response.throttle_time_ms > 0
            # Meanwhile other clients are not delayed.
            asked = asyncio.get_running_loop().time()
            await admin.metadata()
            assert asyncio.get_running_loop().time() - asked < 1
        assert throttled > 5
        assert now <= count * size * 1.1 / quota, "it waited for more than the quota asks for"

    simulate(1, scenario)


def test_unacknowledged_records_are_held_back_too() -> None:
    quota, size, count = 10_000, 5_000, 60

    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        await boot(broker)
        admin = await connect(client, broker)
        await admin.create_topic("t")
        await set_quota(admin, {"client-id": "hog"}, producer_byte_rate=quota)
        hog = await SimClient.connect(client.runtime, broker.address, PORT, "hog")
        began = asyncio.get_running_loop().time()
        for _ in range(count):
            hog._stream.write(hog._connection.request(produce_request(size, acks=0), PRODUCE_BY_NAME))
            hog._connection._expected.pop()
        taken = 0
        while taken < count:
            await asyncio.sleep(0.5)
            found, _ = await admin.fetch("t", 0, 0)
            taken = found.high_watermark
            now = asyncio.get_running_loop().time() - began
            assert taken * size <= quota * (now + BURST_S) + size * 1.1
        assert now >= count * size / quota - BURST_S

    simulate(2, scenario)


def test_an_answer_over_the_quota_is_emptied_and_comes_later() -> None:
    """The consumer misses no record, and does not get more bytes than the quota allows."""
    quota, size, count = 20_000, 10_000, 60

    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        await boot(broker)
        admin = await connect(client, broker)
        await admin.create_topic("t")
        for _ in range(count):
            await admin.produce("t", 0, [Record(value=bytes(size))])
        await set_quota(admin, {"client-id": "reader"}, consumer_byte_rate=quota)
        reader = await SimClient.connect(client.runtime, broker.address, PORT, "reader")
        began = asyncio.get_running_loop().time()
        offset, given, emptied = 0, 0, 0
        while offset < count:
            answer = await reader.ask(fetch_request(offset), FetchResponse, version_max=FETCH_BY_NAME)
            now = asyncio.get_running_loop().time() - began
            if answer.throttle_time_ms:
                assert answer.responses == []
                assert answer.error_code == ErrorCode.NONE
                emptied += 1
                continue
            (found,) = answer.responses[0].partitions
            assert found.records is not None
            given += len(found.records)
            offset = min(offset + len(found.records) // size, count)
            assert given <= quota * (now + BURST_S) + 1
        assert emptied
        assert now >= given / quota - BURST_S - 1
        assert now <= 4 * given / quota

    simulate(3, scenario)


def test_a_session_is_told_later_what_an_emptied_answer_kept_back() -> None:
    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        await boot(broker)
        admin = await connect(client, broker)
        await admin.create_topic("t")
        await set_quota(admin, {"client-id": "reader"}, consumer_byte_rate=100)
        reader = await SimClient.connect(client.runtime, broker.address, PORT, "reader")
        begun = await reader.ask(fetch_request(0, epoch=0), FetchResponse, version_max=FETCH_BY_NAME)
        assert begun.session_id
        # The batch exceeds the quota even after a long pause, so its answers are always empty.
        await admin.produce("t", 0, [Record(value=bytes(2000))])
        again = fetch_request(0, begun.session_id, 1)
        again.topics = []
        kept = await reader.ask(again, FetchResponse, version_max=FETCH_BY_NAME)
        assert (kept.responses, kept.session_id) == ([], begun.session_id)
        assert kept.throttle_time_ms > 0
        await set_quota(admin, {"client-id": "reader"}, consumer_byte_rate=0)
        again.session_epoch = 2
        told = await reader.ask(again, FetchResponse, version_max=FETCH_BY_NAME)
        (data,) = told.responses[0].partitions
        assert data.high_watermark == 1
        assert data.records

    simulate(4, scenario)


def test_the_user_shares_what_is_the_users() -> None:
    """A quota of a user counts all its clients together. A quota of one of its clients has priority."""

    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        await boot(broker)
        admin = await connect(client, broker)
        await admin.create_topic("t")
        await set_quota(admin, {"user": "ANONYMOUS"}, producer_byte_rate=1000)
        await set_quota(admin, {"user": "ANONYMOUS", "client-id": "free"}, producer_byte_rate=1e9)

        async def told(client_id: str) -> int:
            one = await SimClient.connect(client.runtime, broker.address, PORT, client_id)
            answer = await one.ask(produce_request(8000), ProduceResponse, version_max=PRODUCE_BY_NAME)
            return answer.throttle_time_ms

        assert await told("a") == 0
        assert await told("b") > 0
        assert await told("free") == 0

    simulate(5, scenario)


def test_partitions_cannot_be_made_faster_than_allowed() -> None:
    """The request is refused with an error that says when to try again (KIP-599). Until then, no topic is created on
    demand.
    """

    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        await boot(broker)
        admin = await connect(client, broker)
        await set_quota(admin, {"client-id": None}, controller_mutation_rate=1)
        maker = await SimClient.connect(client.runtime, broker.address, PORT, "maker")

        async def make(name: str, partitions: int) -> CreateTopicsResponse:
            topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1)
            return await maker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), CreateTopicsResponse)

        first = await make("first", 20)
        assert (first.topics[0].error_code, first.throttle_time_ms) == (ErrorCode.NONE, 0)
        began = asyncio.get_running_loop().time()
        refused = await make("second", 1)
        assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert 8_000 < refused.throttle_time_ms <= 9_000
        second = await make("second", 1)  # the broker has not read from the connection until now
        assert second.topics[0].error_code == ErrorCode.NONE
        assert asyncio.get_running_loop().time() - began >= refused.throttle_time_ms / 1000
        # The answer for a topic on demand says that the topic does not exist yet, so clients ask again.
        await make("third", 15)
        other = await SimClient.connect(client.runtime, broker.address, PORT, "maker")

        wanted = MetadataRequest(topics=[MetadataRequestTopic(name="on-demand")], allow_auto_topic_creation=True)
        answer = await other.ask(wanted, MetadataResponse)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        while answer.topics[0].error_code:
            await asyncio.sleep(1)
            answer = await other.ask(wanted, MetadataResponse)

    simulate(6, scenario)


def test_quotas_are_there_after_a_crash() -> None:
    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        await boot(broker)
        admin = await connect(client, broker)
        await admin.create_topic("t")
        await set_quota(admin, {"client-id": "hog"}, producer_byte_rate=10, request_percentage=12.5)
        broker.cut_power()
        broker.start()
        await boot(broker)
        admin = await connect(client, broker)
        told = await admin.ask(DescribeClientQuotasRequest(), DescribeClientQuotasResponse)
        assert told.entries is not None
        (entry,) = told.entries
        assert [(p.entity_type, p.entity_name) for p in entry.entity] == [("client-id", "hog")]
        assert {v.key: v.value for v in entry.values} == {"producer_byte_rate": 10.0, "request_percentage": 12.5}
        hog = await SimClient.connect(client.runtime, broker.address, PORT, "hog")
        answer = await hog.ask(produce_request(1000), ProduceResponse, version_max=PRODUCE_BY_NAME)
        assert answer.throttle_time_ms > 0

    simulate(7, scenario)


def test_a_stop_does_not_wait_for_who_has_to_wait() -> None:
    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        running = await boot(broker)
        admin = await connect(client, broker)
        await admin.create_topic("t")
        await set_quota(admin, {"client-id": "hog"}, producer_byte_rate=1)
        hog = await SimClient.connect(client.runtime, broker.address, PORT, "hog")
        answer = await hog.ask(produce_request(100_000), ProduceResponse, version_max=PRODUCE_BY_NAME)
        assert answer.throttle_time_ms > 3_600_000
        unheard = hog.post(produce_request(100_000), version_max=PRODUCE_BY_NAME)
        began = asyncio.get_running_loop().time()
        await broker.runtime.tasks.spawn(running.stop(), name="stop")
        assert asyncio.get_running_loop().time() - began < 5
        with pytest.raises(OSError, match="ended"):
            await unheard

    simulate(8, scenario)


def test_an_address_that_connects_too_often_is_shut_out_for_a_while() -> None:
    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        await boot(broker)
        admin = await connect(client, broker)
        await set_quota(admin, {"ip": client.address}, connection_creation_rate=1)
        began = asyncio.get_running_loop().time()
        lives, refused = 1, 0
        while lives < 20:
            try:
                await connect(client, broker)
            except OSError:
                refused += 1
            else:
                lives += 1
            now = asyncio.get_running_loop().time() - began
            assert lives <= now + BURST_S + 2
        assert refused
        assert now < 40, "a refused attempt counts for nothing"

    simulate(9, scenario)


def test_connections_wait_to_be_accepted() -> None:
    """No connection is refused because of `max.connection.creation.rate`."""

    async def scenario(world: World, broker: SimHost, client: SimHost) -> None:
        await boot(broker, max_connection_creation_rate=2)
        began = asyncio.get_running_loop().time()
        for number in range(1, 51):
            await connect(client, broker)
            now = asyncio.get_running_loop().time() - began
            assert number <= 2 * (now + BURST_S) + 2
        assert now < 30

    simulate(10, scenario)
