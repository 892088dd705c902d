"""The scenario client against a scripted broker: frames in pieces, pipelining, lost connections."""

import asyncio
from collections.abc import Callable

import pytest

from tidelog.client.errors import ApiNotSupported, BrokenProtocol
from tidelog.runtime.interfaces import Runtime, Stream
from tidelog.simulation.client import SimClient
from tidelog.simulation.member import SimMember
from tidelog.simulation.world import simulated
from tidelog.wire.message import Message
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidelog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from tidelog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tidelog.wire.records import Record, decode_records, encode_batch
from wire_harness import decode_request_header, encode_response

KNOWN: list[type[Message]] = [MetadataRequest, ProduceRequest, FetchRequest, JoinGroupRequest, SyncGroupRequest]
REQUESTS = {request.api_key: request for request in KNOWN}


class ScriptedBroker:
    """Answers each request by a function of it; greets by itself."""

    def __init__(self, answer: Callable[[Message], Message | None]) -> None:
        self.answer = answer
        self.versions: list[tuple[int, int]] = []
        self.stream: Stream
        self._data = bytearray()
        self._buffer = memoryview(bytearray(1000))

    def connected(self, stream: Stream) -> None:
        self.stream = stream

    def get_buffer(self) -> memoryview:
        return self._buffer

    def received(self, count: int) -> None:
        self._data += self._buffer[:count]
        while len(self._data) >= 4 and len(self._data) >= (end := 4 + int.from_bytes(self._data[:4], "big")):
            frame = bytes(self._data[4:end])
            del self._data[:end]
            header, position = decode_request_header(frame, 0)
            self.versions.append((header.api_key, header.api_version))
            response: Message | None
            if header.api_key == 18:
                ranges = [ApiVersion(api_key=r.api_key, min_version=0, max_version=99) for r in REQUESTS.values()]
                response = ApiVersionsResponse(api_keys=ranges)
            else:
                request, _ = REQUESTS[header.api_key].decode(frame, position, header.api_version)
                response = self.answer(request)
            if response is not None:
                self.stream.write(encode_response(response, header.api_version, header.correlation_id))

    def drained(self) -> None:
        pass

    def closed(self, error: OSError | None) -> None:
        pass


async def client_of(runtime: Runtime, answer: Callable[[Message], Message | None]) -> tuple[SimClient, ScriptedBroker]:
    broker = ScriptedBroker(answer)
    listener = (await runtime.network.bind("127.0.0.1", 9092)).listen(lambda: broker)
    client = await SimClient.connect(runtime, "127.0.0.1", 9092)
    listener.close()
    return client, broker


def test_answers_find_their_questions() -> None:
    def answer(request: Message) -> Message:
        assert isinstance(request, MetadataRequest)
        assert request.topics is not None
        name = request.topics[0].name
        return MetadataResponse(cluster_id="c", topics=[MetadataResponseTopic(name=name)])

    with simulated(1) as world:

        async def scenario() -> None:
            client, broker = await client_of(world.host("a").runtime, answer)
            names = [f"topic-{number}" * 50 for number in range(20)]
            answers = await asyncio.gather(*(client.metadata([name]) for name in names))
            assert [found.topics[0].name for found in answers] == names
            assert broker.versions[0][0] == 18
            assert set(broker.versions[1:]) == {(MetadataRequest.api_key, MetadataRequest.max_version)}

        world.run(scenario())


def test_records_go_and_come() -> None:
    kept = bytearray()

    def served() -> bytes:
        second = encode_batch([Record(value=b"v3"), Record(value=b"v4")], base_offset=3)
        return bytes(kept + second + second[:70])

    def answer(request: Message) -> Message:
        if isinstance(request, ProduceRequest):
            records = request.topic_data[0].partition_data[0].records
            assert isinstance(records, memoryview)
            kept.extend(records)
            done = TopicProduceResponse(name="t", partition_responses=[PartitionProduceResponse(base_offset=7)])
            return ProduceResponse(responses=[done])
        assert isinstance(request, FetchRequest)
        assert request.topics[0].partitions[0].fetch_offset == 1
        found = FetchableTopicResponse(topic="t", partitions=[PartitionData(high_watermark=3, records=served())])
        return FetchResponse(responses=[found])

    with simulated(2) as world:

        async def scenario() -> None:
            client, broker = await client_of(world.host("a").runtime, answer)
            sent = [Record(key=b"k", value=b"v%d" % number, timestamp=number) for number in range(3)]
            assert (await client.produce("t", 0, sent, producer=(5, 1, 0))).base_offset == 7
            assert [record.value for record in decode_records(bytes(kept))] == [b"v0", b"v1", b"v2"]
            data, records = await client.fetch("t", 0, 1)
            assert data.high_watermark == 3
            assert [record.value for record in records] == [b"v1", b"v2", b"v3", b"v4"]  # none before the asked offset
            kept[-1] ^= 1
            with pytest.raises(BrokenProtocol, match="checksum"):
                await client.fetch("t", 0, 1)
            assert (ProduceRequest.api_key, 12) in broker.versions

        world.run(scenario())


def test_a_lost_connection_fails_every_question() -> None:
    with simulated(3) as world:

        async def scenario() -> None:
            client, broker = await client_of(world.host("a").runtime, lambda request: None)
            questions = [client.post(MetadataRequest()), client.post(MetadataRequest())]
            given_up = client.post(MetadataRequest())
            given_up.cancel()
            await asyncio.sleep(1)
            broker.stream.abort()
            for question in questions:
                with pytest.raises(ConnectionResetError):
                    await question
            assert not client.open
            with pytest.raises(ConnectionResetError):
                client.post(MetadataRequest())
            client.close()

        world.run(scenario())


def test_an_answer_that_nothing_asked_for_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    with simulated(4) as world:

        async def scenario() -> None:
            client, broker = await client_of(world.host("a").runtime, lambda request: None)
            broker.stream.write(encode_response(MetadataResponse(), 12, 1))
            await asyncio.sleep(1)
            assert not client.open
            assert BrokenProtocol.__name__ in caplog.text

        world.run(scenario())


def test_what_the_broker_lacks_is_refused() -> None:
    with simulated(5) as world:

        async def scenario() -> None:
            client, _ = await client_of(world.host("a").runtime, lambda request: None)
            with pytest.raises(ApiNotSupported):
                await client.find_coordinator("g")

        world.run(scenario())


def test_a_member_joins_and_the_leader_deals() -> None:
    assignments: dict[str, bytes] = {}

    def answer(request: Message) -> Message:
        if isinstance(request, JoinGroupRequest):
            if not request.member_id:
                return JoinGroupResponse(error_code=79, member_id="m1")
            members = [
                JoinGroupResponseMember(member_id=name, metadata=request.protocols[0].metadata) for name in ("m1", "m2")
            ]
            return JoinGroupResponse(generation_id=4, leader="m1", member_id=request.member_id, members=members)
        assert isinstance(request, SyncGroupRequest)
        assignments.update({item.member_id: item.assignment for item in request.assignments})
        return SyncGroupResponse(assignment=assignments["m1"])

    with simulated(6) as world:

        async def scenario() -> None:
            client, _ = await client_of(world.host("a").runtime, answer)
            member = SimMember(client, "group", ["t", "u"])
            assert await member.join() == 0
            assert (member.member_id, member.generation, member.leads) == ("m1", 4, True)
            assert await member.sync({"t": 3, "u": 2}) == 0
            assert member.assignment == {"t": [0, 2], "u": [1]}
            assert set(assignments) == {"m1", "m2"}

        world.run(scenario())
