"""A small client for scenarios: typed requests and responses over the network of any runtime.

Nothing is hidden and nothing is retried: the caller checks the error code of each response.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from tidelog.client.connection import NEWEST, SIZE_BYTES, ClientConnection
from tidelog.client.errors import BrokenProtocol
from tidelog.runtime.interfaces import Runtime, Stream
from tidelog.wire.batches import Codec
from tidelog.wire.message import Message
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tidelog.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.wire.primitives import Buffer
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

M = TypeVar("M", bound=Message)

FRAME_BYTES_MAX = 100 << 20
BUFFER_BYTES = 64 << 10

PRODUCE_BY_NAME = 12
FETCH_BY_NAME = 12
"""The last versions that contain topic names; later versions contain topic ids only."""

FETCH_BYTES_MAX = 1 << 20


class SimClient:
    """One connection to one broker. `connect` opens it and negotiates the API versions."""

    def __init__(self, runtime: Runtime, client_id: str = "scenario") -> None:
        self.closed_by: OSError | None = None
        self.open = False
        self._runtime = runtime
        self._connection = ClientConnection(client_id)
        self._stream: Stream
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._received = bytearray()
        self._greeting = False
        self._pending_responses: deque[asyncio.Future[Buffer | Message]] = deque()

    @classmethod
    async def connect(cls, runtime: Runtime, host: str, port: int, client_id: str = "scenario") -> "SimClient":
        """Connect and negotiate versions. Raises OSError, BrokenProtocol."""
        client = cls(runtime, client_id)
        await runtime.network.connect(host, port, client)
        pieces: list[Buffer] | None = cast("list[Buffer]", client._connection.begin_greeting())
        client._greeting = True
        while pieces is not None:
            response = client._new_response_future()
            client._stream.write(pieces)
            pieces = cast("list[Buffer] | None", client._connection.continue_greeting(cast(Buffer, await response)))
        client._greeting = False
        return client

    def close(self) -> None:
        if self.open:
            self._stream.abort()

    def end_requests(self) -> None:
        """Close the sending side, as a half-closed client does. Responses to earlier requests are still received."""
        if self.open:
            self._stream.write_eof()

    # Requests

    def post(self, request: Message, *, version_max: int = NEWEST) -> "asyncio.Future[Message]":
        """Send a request now and return a future of its response. The future fails with OSError if the connection
        ends before the response.

        Several requests may be outstanding. Raises ApiNotSupported, and OSError when the connection has ended.
        """
        if not self.open:
            raise self._connection_error()
        pieces = self._connection.request(request, version_max)
        response = cast("asyncio.Future[Message]", self._new_response_future())
        self._stream.write(pieces)
        return response

    async def ask(self, request: Message, kind: type[M], *, version_max: int = NEWEST) -> M:
        """Send a request and wait for its response, which must be of the class `kind`."""
        response = await self.post(request, version_max=version_max)
        assert isinstance(response, kind)
        return response

    async def metadata(self, topics: Sequence[str] | None = None) -> MetadataResponse:
        """Request the metadata of some topics, or of all topics when `topics` is None."""
        requested = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        return await self.ask(MetadataRequest(topics=requested, allow_auto_topic_creation=False), MetadataResponse)

    async def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> CreatableTopicResult:
        settings = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=settings)
        response = await self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), CreateTopicsResponse)
        return response.topics[0]

    async def produce(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        *,
        acks: int = -1,
        codec: int = Codec.NONE,
        producer: tuple[int, int, int] = (-1, -1, -1),
    ) -> PartitionProduceResponse:
        """Produce one batch. `producer` is the id, epoch and base sequence of an idempotent producer. `acks` is 1 or -1
        (all).
        """
        assert acks, "with acks=0 there is no response"
        producer_id, producer_epoch, base_sequence = producer
        batch = encode_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])
        response = await self.ask(request, ProduceResponse, version_max=PRODUCE_BY_NAME)
        return response.responses[0].partition_responses[0]

    async def init_producer(self) -> InitProducerIdResponse:
        """Get a producer id and epoch for an idempotent producer."""
        return await self.ask(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), InitProducerIdResponse
        )

    async def fetch(
        self, topic: str, partition: int, offset: int, *, wait_ms: int = 0, read_committed: bool = False
    ) -> tuple[PartitionData, list[Record]]:
        """Fetch one partition. Returns its part of the response and the records from `offset` on.

        The broker waits up to `wait_ms` for the first byte.
        """
        requested = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES_MAX)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            isolation_level=int(read_committed),
            topics=[FetchTopic(topic=topic, partitions=[requested])],
        )
        response = await self.ask(request, FetchResponse, version_max=FETCH_BY_NAME)
        partition_data = response.responses[0].partitions[0]
        data = cast(Buffer | None, partition_data.records)
        records = records_of(data) if data else []
        return partition_data, [record for record in records if record.offset >= offset]

    async def find_coordinator(self, group: str) -> Coordinator:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        response = await self.ask(request, FindCoordinatorResponse)
        return response.coordinators[0]

    # Callbacks of the stream

    def connected(self, stream: Stream) -> None:
        self._stream = stream
        self.open = True

    def get_buffer(self) -> memoryview:
        return self._buffer

    def received(self, count: int) -> None:
        data = self._received
        data += self._buffer[:count]
        while len(data) >= SIZE_BYTES:
            end = SIZE_BYTES + int.from_bytes(data[:SIZE_BYTES], "big")
            if end > FRAME_BYTES_MAX:
                raise BrokenProtocol(f"a frame of {end} bytes")
            if len(data) < end:
                return
            frame = bytes(data[SIZE_BYTES:end])
            del data[:end]
            self._process_frame(frame)

    def drained(self) -> None:
        """Do nothing: scenarios send little, so the backlog is never large."""

    def closed(self, error: OSError | None) -> None:
        self.open = False
        self.closed_by = error
        while self._pending_responses:
            pending = self._pending_responses.popleft()
            if not pending.done():
                pending.set_exception(self._connection_error())

    def _process_frame(self, frame: bytes) -> None:
        if not self._pending_responses:
            raise BrokenProtocol("a response without a request")
        # Decode the response even if the caller no longer waits for it, since the decoder checks the order of the
        # correlation ids.
        response = frame if self._greeting else self._connection.answer(frame)
        pending = self._pending_responses.popleft()
        if not pending.done():
            pending.set_result(response)

    def _new_response_future(self) -> "asyncio.Future[Buffer | Message]":
        future: asyncio.Future[Buffer | Message] = self._runtime.tasks.future()
        self._pending_responses.append(future)
        return future

    def _connection_error(self) -> OSError:
        return ConnectionResetError(errno.ECONNRESET, f"the connection has ended: {self.closed_by or 'in order'}")


def records_of(data: Buffer) -> list[Record]:
    """Decode the records of every whole batch. Raises BrokenProtocol for a wrong checksum, as a consumer does."""
    records: list[Record] = []
    for header in batches_in(data):
        if not header.crc_ok():
            raise BrokenProtocol(f"the checksum of the batch at offset {header.base_offset} is wrong")
        records += decode_records(data, header.position)
    return records
