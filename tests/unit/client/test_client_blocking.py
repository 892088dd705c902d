"""The blocking client with sockets of the test: order, limits, time, broken peers."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tidelog.client.blocking import Client, ClientConfig, parse_bootstrap
from tidelog.client.cluster import Address
from tidelog.client.errors import (
    ApiNotSupported,
    BrokenProtocol,
    BrokerUnreachable,
    ClientError,
    GaveUp,
    NoBrokerReachable,
)
from tidelog.client.operations import (
    EARLIEST,
    THROTTLED,
    Ask,
    Backoff,
    FetchLimits,
    ListedOffset,
    Pause,
    Produced,
    Request,
)
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import NotLeaderOrFollower
from tidelog.wire.message import Message
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from wire_harness import RequestHeader, decode_request_header, encode_response

T0 = TopicPartition("t", 0)
TOPIC_ID = bytes(range(16))
RANGES = [ApiVersion(0, 3, 13), ApiVersion(1, 4, 18), ApiVersion(2, 1, 11), ApiVersion(3, 0, 13)]
PATIENT = ClientConfig(backoff=Backoff(1, 5))
QUICK = ClientConfig(default_api_timeout_ms=300, request_timeout_ms=200, backoff=Backoff(1, 5))

Handler = Callable[[RequestHeader, bytes], "Message | bytes | None"]


class FakeBroker:
    """One listening socket. Every frame goes to `handle`, whose message is the answer; bytes go raw, None closes."""

    def __init__(self, handle: Handler | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self.listener.getsockname())
        self.handle = handle or self.serve
        self.ranges = RANGES
        self.connections = 0
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.sockets: list[socket.socket] = []
        self.threads[0].start()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for each in self.sockets:
            with suppress(OSError):  # closed by the client already
                each.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(5)
            assert not thread.is_alive()

    def serve(self, header: RequestHeader, body: bytes) -> Message | bytes | None:
        if header.api_key == 3:
            return self.metadata()
        if header.api_key == 1:
            request, _ = FetchRequest.decode(body, 0, header.api_version)
            offset = request.topics[0].partitions[0].fetch_offset
            data = PartitionData(records=b"%d" % offset * 1000, high_watermark=offset)
            return FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])
        partition = ListOffsetsPartitionResponse(partition_index=0, offset=5)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[partition])])

    def metadata(self) -> MetadataResponse:
        topic = MetadataResponseTopic(name="t", topic_id=TOPIC_ID, partitions=[MetadataResponsePartition(leader_id=1)])
        return MetadataResponse(brokers=[MetadataResponseBroker(1, *self.address)], topics=[topic])

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            self.sockets.append(accepted)
            thread = threading.Thread(target=self._talk, args=(accepted,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _talk(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as stream:
            while True:
                try:
                    size = stream.read(4)
                    frame = stream.read(int.from_bytes(size, "big"))
                    if len(size) < 4 or len(frame) < int.from_bytes(size, "big") or not self._answer(peer, frame):
                        return
                except OSError:
                    return

    def _answer(self, peer: socket.socket, frame: bytes) -> bool:
        header, position = decode_request_header(frame, 0)
        answer = ApiVersionsResponse(api_keys=self.ranges) if header.api_key == 18 else None
        answer = answer or self.handle(header, frame[position:])
        if isinstance(answer, Message):
            pieces = encode_response(answer, header.api_version, header.correlation_id)
            answer = b"".join(bytes(piece) for piece in pieces)  # type: ignore[arg-type]
        if answer is not None:
            peer.sendall(answer)
        return answer is not None


@contextmanager
def running(handle: Handler | None = None) -> Iterator[FakeBroker]:
    broker = FakeBroker(handle)
    try:
        yield broker
    finally:
        broker.close()


def connect(broker: FakeBroker, config: ClientConfig = PATIENT) -> Client:
    return Client(str(broker.address), config)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with running() as started:
        yield started


def test_a_call_learns_the_topic_and_asks_its_leader_on_one_connection(broker: FakeBroker) -> None:
    with connect(broker) as client:
        assert client.list_offsets({T0: EARLIEST})[T0].offset == 5
        assert client.list_offsets({T0: EARLIEST})[T0].offset == 5
        assert client.topics(["t"])["t"].topic_id == TOPIC_ID
        assert list(client.all_topics()) == ["t"]
    assert broker.connections == 1


def test_fetches_that_were_started_are_answered_in_any_order(broker: FakeBroker) -> None:
    with connect(broker) as client:
        started = {offset: client.start_fetch(T0, offset, FetchLimits()) for offset in (11, 22, 33)}
        for offset in (22, 11, 33):
            assert bytes(started[offset].result().records) == b"%d" % offset * 1000


def test_a_view_stays_as_it_is_until_the_next_answer_is_taken(broker: FakeBroker) -> None:
    with connect(broker) as client:
        first = client.fetch(T0, 11, FetchLimits()).records
        client.cluster.forget(["t"])  # so that the next has to ask for the leader first
        following = client.start_fetch(T0, 22, FetchLimits())
        client.topics(["t"])
        assert bytes(first) == b"11" * 1000
        assert bytes(following.result().records) == b"22" * 1000


def test_a_connection_that_breaks_is_made_again() -> None:
    answers = 0

    def handle(header: RequestHeader, body: bytes) -> Message | bytes | None:
        nonlocal answers
        answers += 1
        return None if answers in (2, 4) else broker.serve(header, body)

    with running(handle) as broker, connect(broker) as client:
        assert client.list_offsets({T0: EARLIEST})[T0].offset == 5
        assert broker.connections == 3


def test_a_client_over_its_quota_waits_before_it_asks_again() -> None:
    asked: list[float] = []

    def handle(header: RequestHeader, body: bytes) -> Message | bytes | None:
        if header.api_key == 1:
            asked.append(time.monotonic())
            if len(asked) == 1:
                return FetchResponse(throttle_time_ms=300)
        return broker.serve(header, body)

    # A call may take less than that: what the broker has asked for is no failure to answer.
    with running(handle) as broker, connect(broker, PATIENT._replace(request_timeout_ms=200)) as client:
        assert client.fetch(T0, 11, FetchLimits()) is THROTTLED
        assert bytes(client.fetch(T0, 11, FetchLimits()).records) == b"11" * 1000
        assert bytes(client.fetch(T0, 22, FetchLimits()).records) == b"22" * 1000
        assert broker.connections == 1
    assert asked[1] - asked[0] >= 0.3
    assert asked[2] - asked[1] < 0.3


def test_the_wait_for_a_quota_is_bounded_by_the_time_of_the_call() -> None:
    def handle(header: RequestHeader, body: bytes) -> Message | bytes | None:
        return FetchResponse(throttle_time_ms=1 << 30) if header.api_key == 1 else broker.serve(header, body)

    with running(handle) as broker, connect(broker, QUICK) as client:
        assert client.fetch(T0, 11, FetchLimits()) is THROTTLED
        began = time.monotonic()
        assert client.fetch(T0, 11, FetchLimits()) is THROTTLED, "on another connection"
        assert 0.2 < time.monotonic() - began < 5


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\x10half"], ids=["silence", "half a frame"])
def test_an_answer_that_does_not_come_is_given_up(answer: bytes) -> None:
    with running(lambda header, body: broker.metadata() if header.api_key == 3 else answer) as broker:
        began = time.monotonic()
        with connect(broker, QUICK) as client, pytest.raises(GaveUp, match="no answer in time"):
            client.list_offsets({T0: EARLIEST})
        assert 0.2 < time.monotonic() - began < 5


def test_a_peer_that_is_no_broker_does_not_hide_the_answers_of_the_others() -> None:
    web_server = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with (
        running() as broker,
        running(lambda header, body: web_server) as other,
        connect(broker, PATIENT) as client,
    ):
        requests = [Request(peer.address, MetadataRequest(topics=None)) for peer in (other, broker)]
        deadline = time.monotonic() + 30
        odd, good = client.collect(client.send_all(Ask(requests), deadline), deadline)
        assert isinstance(odd, BrokenProtocol), "no attempt is made again"
        assert isinstance(good, MetadataResponse)
        [odd] = client.collect(client.send_all(Ask(requests[:1]), deadline), deadline)
        assert isinstance(odd, BrokenProtocol)


def test_a_failure_of_one_of_several_brokers_has_its_own_type() -> None:
    """The second broker offers no version of ListOffsets that the client has, and the third is not there."""
    with running() as broker, running() as old:
        old.ranges = [ApiVersion(3, 0, 13), ApiVersion(2, 99, 99)]
        with socket.create_server(("127.0.0.1", 0)) as unused:
            closed = Address(*unused.getsockname())
        with connect(broker, PATIENT) as client:
            requests = [Request(address, ListOffsetsRequest()) for address in (broker.address, old.address, closed)]
            deadline = time.monotonic() + 30
            good, unsupported, unreachable = client.collect(client.send_all(Ask(requests), deadline), deadline)
            assert isinstance(good, ListOffsetsResponse)
            assert isinstance(unsupported, ApiNotSupported)
            assert "supports versions 99 to 99" in str(unsupported)
            assert isinstance(unreachable, BrokerUnreachable)


def test_a_failure_that_no_attempt_can_solve_ends_a_call_at_once() -> None:
    """The partitions have two leaders, one of which is no broker."""
    web_server = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with running(lambda header, body: web_server) as other:

        def handle(header: RequestHeader, body: bytes) -> Message | bytes | None:
            if header.api_key != 3:
                return broker.serve(header, body)
            answer = broker.metadata()
            answer.brokers.append(MetadataResponseBroker(2, *other.address))
            answer.topics[0].partitions.append(MetadataResponsePartition(partition_index=1, leader_id=2))
            return answer

        with running(handle) as broker, connect(broker, PATIENT) as client:
            partitions = dict.fromkeys((T0, TopicPartition("t", 1)), EARLIEST)
            began = time.monotonic()
            with pytest.raises(BrokenProtocol, match="not Kafka's protocol"):
                client.list_offsets(partitions)
            assert time.monotonic() - began < 10
            each = client.list_offsets_each(partitions)
            assert isinstance(each[TopicPartition("t", 1)], BrokenProtocol)
            assert each[T0] == ListedOffset(5, -1)


def test_a_bootstrap_server_that_is_no_broker_does_not_hide_the_next() -> None:
    web_server = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with running(lambda header, body: web_server) as other:
        with running() as broker, Client(f"{other.address},{broker.address}", PATIENT) as client:
            assert list(client.all_topics()) == ["t"]
        with (
            Client(f"{other.address},{broker.address}", QUICK) as client,
            pytest.raises(BrokenProtocol, match="not Kafka's protocol"),
        ):
            client.all_topics()


def test_nobody_there_is_an_error_that_lists_who_was_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = Address(*unused.getsockname())
    with (
        Client(f"{address}", QUICK) as client,
        pytest.raises(GaveUp, match=f"within 300 ms: broker {address} cannot be"),
    ):
        client.topics(["t"])


def test_a_produce_has_a_time_of_its_own() -> None:
    def handle(header: RequestHeader, body: bytes) -> Message | bytes | None:
        return b"" if header.api_key == 0 else broker.serve(header, body)

    config = QUICK._replace(default_api_timeout_ms=60_000, request_timeout_ms=60_000, delivery_timeout_ms=200)
    with running(handle) as broker, connect(broker, config) as client:
        began = time.monotonic()
        with pytest.raises(GaveUp, match=r"within 200 ms: broker .* no answer in time"):
            client.produce({T0: b"batch"})
        assert 0.2 < time.monotonic() - began < 5


def test_a_call_that_waits_for_brokers_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.client.blocking.OUTAGE_NOTICE_AFTER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = Address(*unused.getsockname())
    told: list[str] = []
    with Client(f"{address}", QUICK, report_outage=told.append) as client:
        for _ in range(2):
            with pytest.raises(GaveUp):
                client.topics(["t"])
    assert told == [f"broker {address} cannot be reached: Connection refused; still trying, for at most 0.3 s in total"]


def test_a_call_that_waits_for_something_else_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.client.blocking.OUTAGE_NOTICE_AFTER_S", 0.0)
    told: list[str] = []
    client = Client("127.0.0.1:1", QUICK, report_outage=told.append)
    client.pause(Pause(1, NotLeaderOrFollower()), time.monotonic() + 1, 1000)
    assert not told
    client.pause(Pause(1, NoBrokerReachable("nobody")), time.monotonic() + 1, 1000)
    assert told == ["nobody; still trying, for at most 1 s in total"]


def test_the_next_seed_is_tried(broker: FakeBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        dead = Address(*unused.getsockname())
    with Client([dead, broker.address], PATIENT) as client:
        assert list(client.topics(["t"])) == ["t"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "its first bytes would mean a length of 1213486160, and .* security protocol that you use",
        ),
        (struct.pack(">i", -2), "its first bytes would mean a length of -2, and"),
        (struct.pack(">iib", 5, 12345, 0), "the broker sent response 12345 where"),
        (struct.pack(">iibb", 6, 1, 0, 0), "Metadata|answer 1"),
    ],
)
def test_a_peer_that_does_not_speak_the_protocol_is_told_from_one_that_is_slow(answer: bytes, message: str) -> None:
    with running(lambda header, body: answer) as broker, connect(broker) as client:
        with pytest.raises(BrokenProtocol, match=message):
            client.topics(["t"])
        with pytest.raises(ClientError):
            client.topics(["t"])
        assert broker.connections == 2


def test_a_frame_above_the_limit_is_not_taken(broker: FakeBroker) -> None:
    with connect(broker, PATIENT._replace(frame_bytes_max=500)) as client:
        client.topics(["t"])
        with pytest.raises(BrokenProtocol, match=r"the limit is 500"):
            client.fetch(T0, 11, FetchLimits())


def test_large_requests_go_out_whole(broker: FakeBroker) -> None:
    received = []

    def handle(header: RequestHeader, body: bytes) -> Message | bytes | None:
        if header.api_key != 0:
            return broker.serve(header, body)
        received.append(body)
        answer = PartitionProduceResponse(base_offset=7)
        return ProduceResponse(responses=[TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=[answer])])

    broker.handle = handle
    batch = bytes(range(256)) * 40_000
    with connect(broker) as client:
        assert client.produce({T0: batch}) == {T0: Produced(7, -1)}
    [body] = received
    assert batch in body


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("a:1", [("a", 1)]),
        (" a:1 , b:65535,", [("a", 1), ("b", 65535)]),
        ("[::1]:9092", [("::1", 9092)]),
    ],
)
def test_bootstrap_servers(text: str, seeds: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == seeds


@pytest.mark.parametrize("text", ["", " , ", "a", "a:", ":1", "a:b", "a:0", "a:65536", "a:-1"])
def test_what_is_no_bootstrap_server(text: str) -> None:
    with pytest.raises(ValueError, match="bootstrap server"):
        parse_bootstrap(text)
