"""Clients that have shut their sending side: all their requests are answered, then the connection closes."""

import asyncio
import errno
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from connection_harness import HEARTBEAT, PRODUCE, Bench, FakeStream, TimedSteps, frame, make_bench, wide_frame
from process_harness.raw import RawConnection
from tidelog.api.pending import Pending
from tidelog.broker.connection import BACKLOG_BYTES_MAX
from tidelog.broker.pipelining import REQUESTS_PER_TURN
from tidelog.quotas.entities import entity_of
from tidelog.testing import Broker
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.heartbeat import HeartbeatResponse
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.records import Record, encode_batch
from wire_harness import encode_request

SECONDS = 20.0
RESET = struct.pack("ii", 1, 0)


def test_an_answer_that_comes_later_is_sent_before_the_end(bench: Bench) -> None:
    parked: Pending[HeartbeatResponse] = Pending()
    bench.answers = [parked]
    bench.feed(frame(1))
    assert bench.connection.eof_received(), "the stream stays open"
    bench.tasks.run()
    assert bench.stream.ended == ""
    parked.complete(HeartbeatResponse())
    bench.tasks.run()
    assert bench.correlation_ids() == [1]
    assert bench.stream.ended == "finished"


def test_nothing_unanswered_is_the_end_at_once(bench: Bench) -> None:
    bench.feed(frame(1))
    bench.connection.eof_received()
    assert bench.correlation_ids() == [1]
    assert bench.stream.ended == "finished"


def later(answer: Any, parked: list[Pending[Any]], bench: Bench) -> Any:
    parked.append(Pending())
    return parked[-1]


def by_coroutine(answer: Any, parked: list[Pending[Any]], bench: Bench) -> Coroutine[Any, Any, Any]:
    async def answers() -> Any:
        await asyncio.sleep(0)
        return answer

    return answers()


def by_steps(answer: Any, parked: list[Pending[Any]], bench: Bench) -> Any:
    return TimedSteps(bench).steps(30, answer)


def by_steps_that_park(answer: Any, parked: list[Pending[Any]], bench: Bench) -> Any:
    return TimedSteps(bench).steps(10, later(answer, parked, bench))


@pytest.mark.parametrize("kind", [later, by_coroutine, by_steps, by_steps_that_park])
@pytest.mark.parametrize("key", [HEARTBEAT, PRODUCE])
def test_every_kind_of_answer_is_waited_for(
    bench: Bench, key: int, kind: Callable[[Any, list[Pending[Any]], Bench], Any]
) -> None:
    answer = HeartbeatResponse() if key == HEARTBEAT else ProduceResponse()
    version = 3 if key == HEARTBEAT else 7
    parked: list[Pending[Any]] = []

    async def scenario() -> None:
        bench.answers = [kind(answer, parked, bench) for _ in range(3)]
        bench.feed(b"".join(frame(i, key, version) for i in range(3)) + wide_frame(3, key, version))
        bench.connection.eof_received()
        for _ in range(20):
            bench.tasks.run()
            await asyncio.sleep(0)
            for pending in parked:
                if pending._listener is not None and not pending.done:
                    pending.complete(answer)

    asyncio.run(scenario())
    assert bench.correlation_ids() == [0, 1, 2, 3]
    assert bench.stream.ended == "finished"
    assert bench.held_bytes == 0


def test_what_was_put_aside_is_handled_and_answered(bench: Bench) -> None:
    count = 5 * REQUESTS_PER_TURN
    bench.feed(b"".join(frame(i) for i in range(count)))
    assert len(bench.requests) < count
    bench.connection.eof_received()
    assert bench.stream.ended == ""
    bench.tasks.run()
    assert bench.correlation_ids() == list(range(count))
    assert bench.stream.ended == "finished"


def test_acknowledgements_that_come_in_another_order_all_leave(bench: Bench) -> None:
    parked: list[Pending[ProduceResponse]] = [Pending() for _ in range(4)]
    bench.answers = list(parked)
    bench.feed(b"".join(frame(i, PRODUCE, 7) for i in range(4)))
    bench.connection.eof_received()
    for i in (3, 1, 0, 2):
        assert bench.stream.ended == ""
        parked[i].complete(ProduceResponse())
        bench.tasks.run()
    assert bench.correlation_ids() == [0, 1, 2, 3]
    assert bench.stream.ended == "finished"


@pytest.mark.parametrize("begun", [1, 4, 9, 20])
def test_a_request_whose_end_never_comes_is_the_end(bench: Bench, begun: int) -> None:
    bench.feed(frame(1) + frame(2)[:begun])
    bench.connection.eof_received()
    assert bench.held_bytes == 0
    assert bench.correlation_ids() == [1]
    assert bench.stream.ended == "finished"


@pytest.mark.parametrize("begun", [1, 4, 9, 20])
def test_a_request_whose_end_never_comes_behind_one_that_waits(bench: Bench, begun: int) -> None:
    parked: Pending[HeartbeatResponse] = Pending()
    bench.answers = [parked]
    bench.feed(frame(1) + frame(2) + frame(3)[:begun])
    bench.connection.eof_received()
    parked.complete(HeartbeatResponse())
    bench.tasks.run()
    assert bench.correlation_ids() == [1, 2]
    assert bench.stream.ended == "finished"
    assert bench.held_bytes == 0


def test_a_client_over_its_quota_is_answered_when_its_wait_is_over(bench: Bench) -> None:
    bench.quotas.set({entity_of([("client-id", "test")]): {"producer_byte_rate": 1000.0}})
    bench.feed(frame(1, PRODUCE, 7, ProduceRequest(acks=1).encode(7) + bytes(20_000)) + frame(2))
    bench.connection.eof_received()
    bench.tasks.run()
    assert bench.correlation_ids() == [1]
    assert bench.stream.ended == ""
    (timer,) = bench.tasks.timers
    timer.call()
    bench.tasks.run()
    assert bench.correlation_ids() == [1, 2]
    assert bench.stream.ended == "finished"


def test_answers_that_are_not_read_hold_up_the_rest_and_end_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, connections_max_idle_ms=1000)
    reading, stuck = FakeStream(), FakeStream()
    connections = [bench.connect(stream) for stream in (reading, stuck)]
    for stream, connection in zip((reading, stuck), connections, strict=True):
        stream.backlog_bytes = BACKLOG_BYTES_MAX + 1
        bench.feed(frame(1), connection=connection)
        connection.eof_received()
    bench.tasks.run()
    assert not bench.requests
    reading.backlog_bytes = 0
    connections[0].drained()
    bench.tasks.run()
    assert len(bench.requests) == 1
    assert (reading.ended, stuck.ended) == ("finished", "")
    bench.listener._sweep()
    bench.now_s = 5.0
    bench.listener._sweep()
    assert stuck.ended == "aborted"


def test_what_is_waited_for_ends_when_idle_since_the_client_may_be_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, connections_max_idle_ms=1000)
    freed: list[bool] = []
    polling = FakeStream()
    connection = bench.connect(polling)
    bench.answers = [Pending(on_abandon=lambda: freed.append(True))]
    bench.feed(frame(1), connection=connection)
    connection.eof_received()
    bench.now_s = 0.9
    bench.listener._sweep()
    assert polling.ended == ""
    bench.now_s = 5.0
    bench.listener._sweep()
    assert (polling.ended, freed) == ("aborted", [True])
    assert not connection.open


def test_a_reset_drops_what_is_waited_for(bench: Bench) -> None:
    freed: list[bool] = []
    bench.answers = [Pending(on_abandon=lambda: freed.append(True))]
    bench.feed(frame(1) + frame(2))
    bench.connection.eof_received()
    bench.connection.closed(ConnectionResetError(errno.ECONNRESET, "reset"))
    bench.tasks.run()
    assert freed == [True]
    assert len(bench.requests) == 1
    assert not bench.connection.open
    assert bench.held_bytes == 0


def test_a_stop_answers_what_was_begun(bench: Bench) -> None:
    parked: Pending[HeartbeatResponse] = Pending()
    bench.answers = [parked]
    bench.feed(frame(1) + frame(2))
    bench.connection.eof_received()
    bench.connection.drain()
    parked.complete(HeartbeatResponse())
    bench.tasks.run()
    assert bench.correlation_ids() == [1]
    assert bench.stream.ended == "finished"


# With real sockets


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings={"durability": "fsync", "max.connections": "2"}) as running:
        with RawConnection((running.host, running.port)) as client:
            client.create_topic("t")
        yield running


def connected(broker: Broker) -> RawConnection:
    """As soon as there is room for one more connection."""
    deadline = time.monotonic() + SECONDS
    while True:
        client = RawConnection((broker.host, broker.port))
        if not is_refused(client):
            return client
        client.socket.close()
        assert time.monotonic() < deadline, "the connections before are still held"
        time.sleep(0.02)


def is_refused(client: RawConnection) -> bool:
    try:
        client.fetch("t", 0, 0)
    except OSError:
        return True
    return False


def long_poll(wait_ms: int) -> bytes:
    wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=64 << 20)]
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=2**31 - 1 if wait_ms else 0,
        max_bytes=64 << 20,
        topics=[FetchTopic(topic="t", partitions=wanted)],
    )
    return encode_request(request, 12, 1, "half-closed")


def test_records_that_wait_for_the_disk_are_acknowledged(broker: Broker) -> None:
    batch = encode_batch([Record(value=b"v")])
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
    with connected(broker) as client:
        client.socket.sendall(b"".join(encode_request(request, 12, i, "half-closed") for i in range(20)))
        client.socket.shutdown(socket.SHUT_WR)
        assert [int.from_bytes(client.receive_frame()[:4], "big") for _ in range(20)] == list(range(20))
        assert client.socket.recv(1) == b""
    with connected(broker) as client:
        assert len(client.read_all("t", 0)[1]) == 20


def test_a_reset_frees_the_place_of_one_that_waits(broker: Broker) -> None:
    for _ in range(3):
        with connected(broker), connected(broker) as waiting:
            waiting.socket.sendall(long_poll(10 * 60_000))
            waiting.socket.shutdown(socket.SHUT_WR)
            with RawConnection((broker.host, broker.port)) as third:
                assert is_refused(third), "the one that waits still counts"
            waiting.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def test_who_never_reads_does_not_keep_its_place(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.runtime.stream.STALL_SECONDS", 0.2)
    with connected(broker) as client:
        for _ in range(40):
            client.produce("t", 0, [bytes(900_000)])
        with connected(broker) as greedy:
            greedy.socket.sendall(long_poll(0))
            greedy.socket.shutdown(socket.SHUT_WR)
            connected(broker).socket.close()


def test_a_client_that_closes_does_not_keep_its_place_behind_its_answer(broker: Broker) -> None:
    for _ in range(5):
        with connected(broker) as client:
            client.socket.sendall(long_poll(50))
