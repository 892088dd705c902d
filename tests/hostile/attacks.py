"""Attacks of hostile or broken clients on a broker. Each takes an address and a duration, and returns a report.

An attack asserts what the broker owes it too: a connection that broke the protocol is closed, one that kept to it is
answered.
"""

import contextlib
import random
import resource
import socket
import struct
import time
from collections.abc import Iterator

from process_harness.raw import RawConnection, response_class
from tidelog.wire.frames import decode_response_header
from tidelog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from tidelog.wire.messages.api_versions import ApiVersionsRequest
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.metadata import MetadataRequest
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.records import Record, encode_batch
from wire_harness import encode_request

Address = tuple[str, int]

HTTP = (
    b"GET / HTTP/1.1\r\nHost: broker\r\nAccept: */*\r\n\r\n",
    b"POST /topics/orders HTTP/1.1\r\nHost: broker\r\nContent-Length: 2\r\n\r\n{}",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # a TLS hello
    b"SSH-2.0-OpenSSH_9.6\r\n",
)
SIZES = (0x7FFFFFFF, -1, -0x80000000, 0, 1, 9, 100 * 1024 * 1024 + 1)
BIG_CLAIM_BYTES = 100 << 20
"""The largest request that Kafka takes."""
BULK_TOPIC = "bulk"


@contextlib.contextmanager
def connections(address: Address, count: int) -> Iterator[list[socket.socket]]:
    opened = []
    try:
        for _ in range(count):
            opened.append(socket.create_connection(address, timeout=30))
        yield opened
    finally:
        for connection in opened:
            connection.close()


def expect_close(connection: socket.socket, why: object) -> None:
    """It must end, and nothing must come before."""
    connection.settimeout(20)
    try:
        data = connection.recv(4096)
    except ConnectionError:
        return
    assert data == b"", f"{why}: answered with {data[:40]!r}"


def other_protocols(address: Address, seconds: float) -> str:
    """HTTP, HTTP/2, TLS and SSH."""
    count = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with connections(address, len(HTTP)) as opened:
            for connection, greeting in zip(opened, HTTP, strict=True):
                with contextlib.suppress(ConnectionError):
                    connection.sendall(greeting)
            for connection, greeting in zip(opened, HTTP, strict=True):
                expect_close(connection, greeting[:10])
                count += 1
    return f"{count} connections of other protocols closed"


def random_bytes(address: Address, seconds: float) -> str:
    rng = random.Random(1)
    count = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with connections(address, 20) as opened:
            for connection in opened:
                with contextlib.suppress(OSError):
                    connection.settimeout(0.2)
                    connection.sendall(rng.randbytes(rng.choice((1, 3, 14, 1000, 300_000))))
                count += 1
    return f"{count} connections with random bytes"


def frame_sizes(address: Address, seconds: float) -> str:
    """2 GB, negative, too small for a header, one byte over the limit."""
    count = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for size in SIZES:
            with connections(address, 1) as opened:
                opened[0].sendall(struct.pack(">i", size))
                expect_close(opened[0], size)
                count += 1
    return f"{count} frames of impossible sizes refused"


def half_frames(address: Address, seconds: float) -> str:
    """The beginning of a request of 1 MB and never its end."""
    with connections(address, 200) as opened:
        for connection in opened:
            connection.sendall(struct.pack(">ihhih", 1 << 20, 0, 9, 1, -1) + bytes(300_000))
        time.sleep(seconds)
        return f"{len(opened)} half requests of 1 MB held"


def big_claims(address: Address, seconds: float) -> str:
    """The length of the largest request that is allowed, and nothing of it; each by itself is no wrong."""
    with connections(address, 120) as opened:
        for number, connection in enumerate(opened):
            # Smaller ones as well, for what the large ones left of any sum.
            connection.sendall(struct.pack(">i", BIG_CLAIM_BYTES >> number // 12))
        time.sleep(seconds)
        return f"{len(opened)} claims of up to 100 MB held"


def silent_connections(address: Address, seconds: float, count: int = 1000) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 1000), hard))
    try:
        with connections(address, count) as opened:
            time.sleep(seconds)
            # All of them are served still.
            request = encode_request(ApiVersionsRequest(), 0, 7, "late")
            for connection in opened[:: max(count // 50, 1)]:
                connection.sendall(request)
                assert connection.recv(4), "an idle connection was closed"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return f"{count} idle connections"


def never_reads(address: Address, seconds: float) -> str:
    """Asks for megabytes again and again, and reads nothing of it."""
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    fetch = FetchRequest(max_bytes=1 << 20, min_bytes=1, topics=[FetchTopic(topic=BULK_TOPIC, partitions=[wanted])])
    flood = encode_request(fetch, 12, 1, "deaf") * 100
    sent = 0
    with connections(address, 30) as opened:
        for connection in opened:
            connection.setblocking(False)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for connection in opened:
                with contextlib.suppress(BlockingIOError):
                    sent += connection.send(flood)
            time.sleep(0.01)
    return f"{len(opened)} clients that never read, {sent >> 10} KB of requests"


def slowloris(address: Address, seconds: float) -> str:
    """A right request, a byte at a time; at its end it is answered."""
    request = encode_request(MetadataRequest(topics=[]), 9, 3, "slow")
    with connections(address, 100) as opened:
        for byte in request:
            for connection in opened:
                connection.sendall(bytes([byte]))
            time.sleep(seconds / len(request))
        for connection in opened:
            assert int.from_bytes(connection.recv(4), "big") > 0
    return f"{len(opened)} requests of {len(request)} bytes sent byte by byte, all answered"


def pipelines(address: Address, seconds: float) -> str:
    """Thousands of requests at once on one connection: answered in their order, every one."""
    count = 5000
    flood = b"".join(encode_request(ApiVersionsRequest(), 2, number, "flood") for number in range(count))
    answered = 0
    deadline = time.monotonic() + seconds
    with RawConnection(address) as client:
        while time.monotonic() < deadline:
            for start in range(0, len(flood), len(flood) // 10):
                client.socket.sendall(flood[start : start + len(flood) // 10])
                # Some are read meanwhile, or both sides would wait for the other.
                for _ in range(count // 10 - 1):
                    answered += check_number(client, answered % count)
            while answered % count:
                answered += check_number(client, answered % count)
    return f"{answered} pipelined requests answered in order"


def check_number(client: RawConnection, number: int) -> int:
    frame = client.receive_frame()
    correlation, position = decode_response_header(frame, 0, 18, 2)
    assert correlation == number, "an answer out of order"
    response_class(18).decode(frame, position, 2)
    return 1


def writes_without_acks(address: Address, seconds: float) -> str:
    """acks=0 as fast as the socket takes it."""
    batch = encode_batch([Record(value=bytes(1000)) for _ in range(10)])
    data = TopicProduceData(name=BULK_TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
    frames = encode_request(ProduceRequest(acks=0, timeout_ms=1000, topic_data=[data]), 9, 1, "flood") * 20
    sent = 0
    deadline = time.monotonic() + seconds
    with connections(address, 1) as opened:
        while time.monotonic() < deadline:
            opened[0].sendall(frames)
            sent += 20
    return f"{sent} batches with acks=0"


@contextlib.contextmanager
def producer_quota(address: Address, client_id: str | None, bytes_per_s: float) -> Iterator[None]:
    """Of one client id, or of all."""

    def change(value: float, remove: bool) -> None:
        entry = EntryData(
            entity=[EntityData(entity_type="client-id", entity_name=client_id)],
            ops=[OpData(key="producer_byte_rate", value=value, remove=remove)],
        )
        with RawConnection(address) as client:
            answer = client.ask(AlterClientQuotasRequest(entries=[entry]), 1)
            assert isinstance(answer, AlterClientQuotasResponse)
            assert answer.entries[0].error_code == 0

    change(bytes_per_s, False)
    try:
        yield
    finally:
        change(0, True)


def ignores_its_quota(address: Address, seconds: float) -> str:
    """One byte a second, and forty connections that write as if there were none."""
    batch = encode_batch([Record(value=bytes(100_000))])
    data = TopicProduceData(name=BULK_TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
    frame = encode_request(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data]), 9, 1, "hog")
    deadline = time.monotonic() + seconds
    sent = answers = 0
    with producer_quota(address, "hog", 1), connections(address, 40) as opened:
        rest = dict.fromkeys(opened, b"")
        for connection in opened:
            connection.setblocking(False)
        while time.monotonic() < deadline:
            for connection, left in rest.items():
                with contextlib.suppress(BlockingIOError):
                    left = left or frame
                    count = connection.send(left)
                    sent += count
                    rest[connection] = left[count:]
            time.sleep(0.001)
        for connection in opened:
            with contextlib.suppress(BlockingIOError):
                answers += len(connection.recv(1 << 16)) > 0
                assert connection.recv(1 << 16), "closed, where it should only not be read"
    assert answers == 40, "each is told once"
    return f"{sent >> 20} MB written against a quota of 1 byte/s"


def other_names(address: Address, seconds: float) -> str:
    """Every request of another client, with the longest name there is, on a broker where each has a quota."""
    batch = encode_batch([Record(value=b"x")])
    data = TopicProduceData(name=BULK_TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data])
    count = 0
    deadline = time.monotonic() + seconds
    with producer_quota(address, None, 1e12), RawConnection(address) as client:
        while time.monotonic() < deadline:
            frames = [encode_request(request, 9, n, f"{count + n}".ljust(32_000, "x")) for n in range(20)]
            client.socket.sendall(b"".join(frames))
            for _ in frames:
                client.receive_frame()
            count += len(frames)
    return f"{count} clients with names of 32 KB"


def wide_requests(address: Address, seconds: float, frame: bytes) -> str:
    """A request of megabytes, again and again, at least once."""
    count = 0
    deadline = time.monotonic() + seconds
    with RawConnection(address) as client:
        while not count or time.monotonic() < deadline:
            client.socket.sendall(frame)
            client.receive_frame()
            count += 1
    return f"{count} requests of {len(frame) >> 10} KB"


def wide_requests_at_once(address: Address, seconds: float, frame: bytes, count: int) -> str:
    """Many clients ask in the same moment, again and again, at least once."""
    rounds = 0
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawConnection(address)) for _ in range(count)]
        while not rounds or time.monotonic() < deadline:
            for client in clients:
                client.socket.sendall(frame)
            for client in clients:
                client.receive_frame()
            rounds += 1
    return f"{rounds} times {count} requests of {len(frame) >> 10} KB at once"


ATTACKS = (
    other_protocols,
    random_bytes,
    frame_sizes,
    half_frames,
    big_claims,
    silent_connections,
    never_reads,
    slowloris,
    pipelines,
    writes_without_acks,
    ignores_its_quota,
    other_names,
)
