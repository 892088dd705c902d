"""A client over its quota is answered, and waits; other clients do not wait."""

import struct
from typing import Any

import pytest

from connection_harness import HEARTBEAT, PRODUCE, Bench, FakeStream, frame, make_bench
from tidelog.api import registry
from tidelog.api.pending import Pending
from tidelog.quotas.entities import entity_of
from tidelog.wire.messages.heartbeat import HeartbeatResponse
from tidelog.wire.messages.produce import ProduceRequest, ProduceResponse


def limited(bench: Bench, **quotas: float) -> None:
    bench.quotas.set({entity_of([("client-id", "test")]): quotas})


def big(correlation_id: int, size: int = 20_000) -> bytes:
    """A produce request of about so many bytes."""
    return frame(correlation_id, PRODUCE, 7, ProduceRequest(acks=1).encode(7) + bytes(size))


def throttles(bench: Bench) -> list[int]:
    """The last field of Produce v7."""
    found, position = [], 0
    while position < len(bench.stream.sent):
        (size,) = struct.unpack_from(">i", bench.stream.sent, position)
        position += 4 + size
        found.append(struct.unpack_from(">i", bench.stream.sent, position - 4)[0])
    return found


@pytest.mark.parametrize("size", [20_000, 200_000], ids=["small", "wide"])
def test_a_client_over_its_quota_is_answered_and_then_not_read(bench: Bench, size: int) -> None:
    limited(bench, producer_byte_rate=1000.0)
    bench.feed(big(1, size) + frame(2) + frame(3))
    bench.tasks.run()
    assert bench.correlation_ids() == [1]
    assert len(bench.requests) == 1
    assert not bench.stream.reading
    (timer,) = bench.tasks.timers
    assert throttles(bench) == [pytest.approx((size / 1000 - 10) * 1000, rel=0.01)]
    assert timer.delay_s * 1000 == throttles(bench)[0]
    # What is in the way of others meanwhile: the two small requests that had come.
    assert bench.bounds.frame_bytes == len(frame(2) + frame(3))
    bench.stream.sent = b""
    timer.call()
    bench.tasks.run()
    assert bench.correlation_ids() == [2, 3]
    assert bench.stream.reading
    assert bench.bounds.frame_bytes == 0


def test_requests_of_a_limited_client_do_not_overtake_the_wait(bench: Bench) -> None:
    """While the first is acknowledged the second is not handled: it might be over the quota by then."""
    limited(bench, producer_byte_rate=1000.0)
    acknowledged: Pending[ProduceResponse] = Pending()
    bench.answers = [acknowledged]
    bench.feed(big(1) + big(2))
    bench.tasks.run()
    assert len(bench.requests) == 1
    acknowledged.complete(ProduceResponse())
    bench.tasks.run()
    assert bench.correlation_ids() == [1]
    assert len(bench.requests) == 1
    bench.tasks.timers[-1].call()
    bench.tasks.run()
    assert len(bench.requests) == 2


def test_others_go_on_beside_a_limited_client(bench: Bench) -> None:
    """Requests of other client ids are pipelined as ever, also on a broker with quotas."""
    bench.quotas.set({entity_of([("client-id", "hog")]): {"producer_byte_rate": 1.0}})
    bench.answers = [Pending(), Pending()]
    bench.feed(big(1) + big(2))
    assert len(bench.requests) == 2
    assert not bench.tasks.timers


def test_a_wait_that_ends_behind_an_unacknowledged_produce_is_over_with_it(bench: Bench) -> None:
    """The quota is new: what came before it is under way side by side."""
    limited(bench, consumer_byte_rate=1.0)
    first: Pending[ProduceResponse] = Pending()
    second: Pending[ProduceResponse] = Pending()
    bench.answers = [first, second]
    bench.feed(big(1) + big(2) + frame(3))
    assert len(bench.requests) == 2
    limited(bench, producer_byte_rate=1000.0)
    first.complete(ProduceResponse())
    (timer,) = bench.tasks.timers
    timer.call()
    bench.tasks.run()
    assert not bench.stream.reading
    second.complete(ProduceResponse())
    for timer in bench.tasks.timers:
        timer.call()
    bench.tasks.run()
    assert bench.stream.reading
    assert bench.correlation_ids() == [1, 2, 3]


def test_unacknowledged_produce_over_its_quota_is_not_read_on(bench: Bench) -> None:
    limited(bench, producer_byte_rate=1000.0, request_percentage=1e-9)
    bench.answers = [None]
    handled = bench.connection.services

    def handle(services: Any, context: Any, request: Any) -> None:
        bench.requests.append(request)
        bench.now_s += 0.5

    registry.routes[PRODUCE << 16 | 7].handle = handle
    registry.routes[PRODUCE << 16 | 7].handle_wide = handle
    assert handled is bench.services
    bench.feed(big(1, 5000) + big(2, 50_000) + big(3))
    bench.tasks.run()
    assert bench.stream.sent == b""
    assert len(bench.requests) == 2
    assert not bench.stream.reading


def test_a_muted_connection_is_drained_at_once_and_its_timer_goes_with_it(bench: Bench) -> None:
    limited(bench, producer_byte_rate=1.0)
    bench.feed(big(1))
    bench.tasks.run()
    (timer,) = bench.tasks.timers
    bench.connection.drain()
    assert bench.stream.ended == "finished"
    bench.connection.closed(None)
    assert timer.cancelled


def test_a_muted_connection_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has sent on counts as an unfinished request, and it is the first to go."""
    bench = make_bench(monkeypatch, queued_max_request_bytes=300_000)
    limited(bench, producer_byte_rate=1.0)
    bench.feed(big(1) + bytes(0) + big(2, 90_000))
    bench.tasks.run()
    assert not bench.stream.reading
    assert bench.bounds.frame_bytes > 90_000
    other = bench.connect(FakeStream())
    bench.feed(big(3, 250_000)[:-1], 50_000, other)
    assert bench.stream.ended == "aborted"
    assert other.open


def test_a_slow_request_makes_its_client_wait_a_window(bench: Bench) -> None:
    limited(bench, request_percentage=1.0)

    def handle(services: Any, context: Any, request: Any) -> Any:
        bench.now_s += 0.5
        return HeartbeatResponse()

    registry.routes[HEARTBEAT << 16 | 3].handle = handle
    bench.feed(frame(1) + frame(2))
    bench.tasks.run()
    assert bench.correlation_ids() == [1]
    assert [timer.delay_s for timer in bench.tasks.timers] == [1.0]


def test_an_address_may_have_a_number_of_connections_of_its_own(bench: Bench) -> None:
    def connect() -> FakeStream:
        stream = FakeStream()
        stream.peer = "10.0.0.9:1"
        bench.connect(stream)
        return stream

    assert [connect().ended for _ in range(4)] == ["", "", "aborted", "aborted"]
