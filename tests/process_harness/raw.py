"""A client that can send any bytes: blocking socket, frames, typed requests in any version, no retries."""

import importlib
import socket
from types import TracebackType
from typing import Self, cast

from tidelog.wire.apis import APIS
from tidelog.wire.errors import ErrorCode
from tidelog.wire.frames import decode_response_header
from tidelog.wire.message import Message
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch
from wire_harness import encode_request

PRODUCE_BY_NAME = FETCH_BY_NAME = 12
CREATE_TOPICS = 7
TIMEOUT_S = 30.0
BYTES_MAX = 1 << 20


def response_class(api_key: int) -> type[Message]:
    info = APIS[api_key]
    module = importlib.import_module(f"tidelog.wire.messages.{info.module}")
    return cast("type[Message]", getattr(module, f"{info.name}Response"))


class WrongChecksum(Exception):
    """The batch has a wrong checksum: a consumer would refuse it."""


class RawConnection:
    """A connection. Raises OSError, or ConnectionError if the broker has closed the connection."""

    def __init__(self, address: tuple[str, int], *, timeout_s: float = TIMEOUT_S) -> None:
        self.socket = socket.create_connection(address, timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()

    def receive_frame(self) -> bytes:
        """Return the next answer, without its size."""
        return self._receive(int.from_bytes(self._receive(4), "big"))

    def _receive(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        filled = 0
        while filled < size:
            count = self.socket.recv_into(view[filled:])
            if not count:
                raise ConnectionResetError("the broker closed the connection")
            filled += count
        return bytes(data)

    def ask(self, request: Message, version: int) -> Message:
        """Send one request, and return its answer."""
        self._correlation += 1
        self.socket.sendall(encode_request(request, version, self._correlation, "raw"))
        frame = self.receive_frame()
        correlation, position = decode_response_header(frame, 0, request.api_key, version)
        assert correlation == self._correlation, "an answer to another request"
        answer, end = response_class(request.api_key).decode(frame, position, version)
        assert end == len(frame), "bytes after the answer"
        return answer

    def create_topic(self, name: str, partitions: int = 1) -> None:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        answer = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), CREATE_TOPICS)
        assert isinstance(answer, CreateTopicsResponse)
        assert answer.topics[0].error_code == ErrorCode.NONE, answer

    def produce(self, topic: str, partition: int, values: list[bytes]) -> PartitionProduceResponse:
        batch = encode_batch([Record(value=value) for value in values])
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
        answer = self.ask(request, PRODUCE_BY_NAME)
        assert isinstance(answer, ProduceResponse)
        return answer.responses[0].partition_responses[0]

    def fetch(self, topic: str, partition: int, offset: int) -> tuple[int, list[Record]]:
        """Return the error code and the records of all whole batches. Their offsets have no gap. Raises
        WrongChecksum.
        """
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=BYTES_MAX)
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=BYTES_MAX, topics=[FetchTopic(topic=topic, partitions=[wanted])]
        )
        answer = self.ask(request, FETCH_BY_NAME)
        assert isinstance(answer, FetchResponse)
        found = answer.responses[0].partitions[0]
        records: list[Record] = []
        if found.records:
            assert isinstance(found.records, bytes | bytearray | memoryview)
            for header in batches_in(found.records):
                if not header.crc_ok():
                    raise WrongChecksum(f"{topic}-{partition}: the batch at {header.base_offset}")
                if records:
                    assert header.base_offset == records[-1].offset + 1, "a gap in the chain of batches"
                records += decode_records(found.records, header.position)
        return found.error_code, [record for record in records if record.offset >= offset]

    def read_all(self, topic: str, partition: int) -> tuple[int, list[bytes]]:
        """Return every value from offset 0 to the end or to an error, and the error code."""
        values: list[bytes] = []
        while True:
            code, records = self.fetch(topic, partition, len(values))
            if code or not records:
                return code, values
            for record in records:
                assert record.offset == len(values), "a gap or a repetition"
                values.append(record.value or b"")
