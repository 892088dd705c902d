"""Frames in, responses out in order; a hostile or slow peer does not affect other connections."""

import asyncio
import struct
from typing import Any

import pytest

from connection_harness import (
    HEARTBEAT,
    PRODUCE,
    Bench,
    FakeStream,
    frame,
    make_bench,
)
from tidelog.api.pending import Pending
from tidelog.api.services import CloseConnection
from tidelog.broker import connection as connection_module
from tidelog.broker.pipelining import COMBINE_REQUESTS, DIRECT_PER_TURN, REQUESTS_PER_TURN, SHARE_MIN
from tidelog.wire.errors import ErrorCode, InvalidRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.produce import ProduceResponse


@pytest.mark.parametrize("step", [1, 3, 7, 64, 1 << 20])
def test_frames_are_whole_however_they_arrive(bench: Bench, step: int) -> None:
    bench.feed(b"".join(frame(i) for i in range(20)), step)
    bench.tasks.run()
    assert bench.correlation_ids() == list(range(20))
    assert all(r == HeartbeatRequest(group_id="g", member_id="m") for r in bench.requests)


def test_a_frame_larger_than_the_shared_buffer_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, socket_request_max_bytes=8 << 20)
    member = "m" * 30_000
    body = HeartbeatRequest(group_id="g" * 30_000, member_id=member).encode(3)
    padding = b"\0" * (5 << 20)  # trailing bytes are passed over, as Kafka does
    bench.feed(frame(1, body=body + padding), 100_000)
    assert bench.requests[0].member_id == member
    assert bench.correlation_ids() == [1]


def test_a_large_frame_grows_where_it_is_as_its_bytes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, socket_request_max_bytes=16 << 20)
    body = HeartbeatRequest(group_id="g", member_id="m").encode(3)
    for cut in (2, 4, 1000):  # its length comes apart, alone, with more
        whole = frame(cut, body=body + bytes(9 << 20))
        bench.feed(whole[:cut])
        bench.feed(whole[cut : 3 << 20])
        growing = bench.connection._frame
        while len(whole) - bench.connection._filled > 1:
            bench.feed(whole[bench.connection._filled : -1][:300_000])
            assert bench.connection._frame is growing
            assert bench.held_bytes == len(growing or b"") == bench.connection._filled
        bench.feed(whole[-1:] + frame(0))
        bench.tasks.run()
    assert bench.correlation_ids() == [2, 0, 4, 0, 1000, 0]
    assert bench.held_bytes == 0


def test_answers_leave_in_the_order_of_the_requests(bench: Bench) -> None:
    first: Pending[ProduceResponse] = Pending()
    second: Pending[ProduceResponse] = Pending()
    bench.answers = [first, second, ProduceResponse()]
    bench.feed(b"".join(frame(i, PRODUCE, 7) for i in (1, 2, 3)))
    assert len(bench.requests) == 3  # produce requests follow each other while acknowledgements wait
    second.complete(ProduceResponse())
    assert bench.correlation_ids() == []
    first.complete(ProduceResponse())
    assert bench.correlation_ids() == [1, 2, 3]


def test_other_requests_wait_for_the_one_before(bench: Bench) -> None:
    parked: Pending[HeartbeatResponse] = Pending()
    bench.answers = [parked]
    bench.feed(frame(1) + frame(2))
    assert len(bench.requests) == 1
    assert not bench.stream.reading
    parked.complete(HeartbeatResponse())
    bench.tasks.run()
    assert bench.correlation_ids() == [1, 2]
    assert bench.stream.reading


def test_other_requests_wait_for_produce_requests_before_them(bench: Bench) -> None:
    """The batches of a produce request may be appended in a later turn, and what follows must see their records."""
    first: Pending[ProduceResponse] = Pending()
    second: Pending[ProduceResponse] = Pending()
    bench.answers = [first, second]
    bench.feed(frame(1, PRODUCE, 7) + frame(2, PRODUCE, 7) + frame(3) + frame(4, PRODUCE, 7))
    bench.tasks.run()
    assert len(bench.requests) == 2
    second.complete(ProduceResponse())
    bench.tasks.run()
    assert len(bench.requests) == 2
    first.complete(ProduceResponse())
    bench.tasks.run()
    assert bench.correlation_ids() == [1, 2, 3, 4]
    assert bench.stream.reading


def test_a_parked_request_alone_does_not_stop_reading(bench: Bench) -> None:
    bench.answers = [Pending()]
    bench.feed(frame(1))
    assert bench.stream.reading  # so that the client's going away is noticed at once


def test_pipelined_requests_are_bounded(bench: Bench) -> None:
    bench.answers = [Pending() for _ in range(connection_module.PIPELINED_MAX + 10)]
    for i in range(connection_module.PIPELINED_MAX + 5):
        if bench.stream.reading:
            bench.feed(frame(i, PRODUCE, 7))
            bench.tasks.run()
    assert len(bench.requests) == connection_module.PIPELINED_MAX
    assert not bench.stream.reading


def test_a_client_that_does_not_read_is_read_no_further(bench: Bench) -> None:
    bench.stream.backlog_bytes = connection_module.BACKLOG_BYTES_MAX + 1
    bench.feed(frame(1))
    assert not bench.requests
    assert not bench.stream.reading
    bench.stream.backlog_bytes = 0
    bench.connection.drained()
    assert bench.correlation_ids() == [1]
    assert bench.stream.reading


def test_many_small_requests_yield_the_loop_and_are_answered_together(bench: Bench) -> None:
    count = REQUESTS_PER_TURN + 10
    bench.feed(b"".join(frame(i) for i in range(count)))
    assert len(bench.requests) == REQUESTS_PER_TURN
    assert bench.stream.writes == 1
    bench.tasks.run()
    assert bench.correlation_ids() == list(range(count))


def test_all_that_pipeline_share_the_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, max_connections=1000, max_connections_per_ip=1000)
    streams = [FakeStream() for _ in range(400)]
    connections = [bench.connect(stream) for stream in streams]
    asked = b"".join(frame(i) for i in range(REQUESTS_PER_TURN))
    for connection in connections:
        bench.feed(asked, connection=connection)
    assert len(bench.requests) <= DIRECT_PER_TURN + REQUESTS_PER_TURN + SHARE_MIN * len(connections)
    turns = 0
    while bench.tasks.soon:
        turns += 1
        before = len(bench.requests)
        bench.feed(frame(turns))
        assert len(bench.correlation_ids()) == turns, "who asks one thing waits for none of them"
        bench.tasks.run_turn()
        assert len(bench.requests) - before <= 1 + REQUESTS_PER_TURN + COMBINE_REQUESTS
    sent = streams[0].sent
    assert all(stream.sent == sent and stream.reading for stream in streams)
    bench.stream.sent = sent
    assert bench.correlation_ids() == list(range(REQUESTS_PER_TURN))


def test_all_whose_waits_end_together_share_a_turn(bench: Bench) -> None:
    many = [bench.connect(FakeStream()) for _ in range(50)]
    for connection in many:
        parked: Pending[HeartbeatResponse] = Pending()
        bench.answers = [parked]
        bench.feed(b"".join(frame(i) for i in range(REQUESTS_PER_TURN)), connection=connection)
        bench.answers = []
        parked.complete(HeartbeatResponse())
    before = len(bench.requests)
    bench.tasks.run_turn()
    assert len(bench.requests) - before <= DIRECT_PER_TURN + REQUESTS_PER_TURN + SHARE_MIN * len(many)
    bench.tasks.run()
    assert len(bench.requests) == len(many) * REQUESTS_PER_TURN


def test_who_has_little_more_to_ask_does_not_wait_for_all_of_the_others(bench: Bench) -> None:
    many = [bench.connect(FakeStream()) for _ in range(20)]
    for connection in many:
        bench.feed(b"".join(frame(i) for i in range(10 * REQUESTS_PER_TURN)), connection=connection)
    bench.feed(b"".join(frame(i) for i in range(10)))
    before = len(bench.requests)
    while len(bench.correlation_ids()) < 10:
        bench.tasks.run_turn()
    assert len(bench.requests) - before <= len(many) * COMBINE_REQUESTS + 10 + REQUESTS_PER_TURN


def test_requests_that_wait_for_their_turn_are_not_copied_for_each(bench: Bench) -> None:
    bench.feed(b"".join(frame(i) for i in range(20_000)))
    buffers = set()
    while (stash := bench.connection._stash) is not None:
        buffers.add(len(stash.obj))  # type: ignore[arg-type]  # a bytearray
        assert len(stash.obj) <= 2 * len(stash)  # type: ignore[arg-type]  # nor is much more held than counts
        bench.tasks.run_turn()
    assert len(buffers) < 12
    assert bench.correlation_ids() == list(range(20_000))
    assert bench.held_bytes == 0


def test_nobody_writes_to_a_frame_that_waits_where_it_came(bench: Bench) -> None:
    def long(group: str) -> bytes:
        message = HeartbeatRequest(group_id=group * 30_000, member_id="m")
        return frame(1, body=message.encode(3) + bytes(100_000))  # enough for its buffer to be used again

    bench.feed(long("a")[:1000])
    bench.stream.backlog_bytes = connection_module.BACKLOG_BYTES_MAX + 1
    bench.feed(long("a")[1000:])
    other = bench.connect(FakeStream())
    bench.feed(long("b"), 1000, other)
    bench.tasks.run()
    bench.stream.backlog_bytes = 0
    bench.connection.drained()
    bench.tasks.run()
    assert [request.group_id[0] for request in bench.requests] == ["b", "a"]
    assert bench.held_bytes == 0


def test_a_coroutine_is_awaited_and_its_error_is_the_answer(bench: Bench) -> None:
    async def later() -> HeartbeatResponse:
        raise InvalidRequest("no")

    async def scenario() -> None:
        bench.answers = [later()]
        bench.feed(frame(1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert bench.stream.sent[-2:] == struct.pack(">h", ErrorCode.INVALID_REQUEST)


def test_a_bug_in_a_handler_answers_that_request_only(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.answers = [RuntimeError("bug")]
    bench.feed(frame(1) + frame(2))
    assert bench.correlation_ids() == [1, 2]
    assert "request failed" in caplog.text


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (struct.pack(">i", 2**31 - 1) + b"x" * 10, "socket.request.max.bytes"),
        (bytes.fromhex("16030102") + b"x" * 10, "TLS on a listener without TLS"),
        (struct.pack(">i", -1), "outside"),
        (struct.pack(">i", 0), "outside"),
        (frame(1, key=999, body=b""), "not served"),
        (frame(1, version=99, body=b""), "not served"),
        (frame(1, body=b"\0\1"), "Heartbeat v3"),
        (struct.pack(">i", 12) + struct.pack(">hhih", HEARTBEAT, 3, 1, 1000) + b"xx", "header"),
    ],
)
def test_what_is_no_request_closes_the_connection(
    bench: Bench, data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tidelog.connection")
    bench.feed(data)
    assert not bench.connection.open
    assert bench.stream.ended == "aborted"
    assert reason in caplog.text
    assert not bench.listener._connections


def test_a_response_that_cannot_be_encoded_ends_its_own_connection_only(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    parked: Pending[HeartbeatResponse] = Pending()
    bench.answers = [parked]
    bench.feed(frame(1))
    parked.complete(HeartbeatResponse(throttle_time_ms=1 << 40))  # whoever completes it must not hear of it
    assert bench.stream.ended == "aborted"
    assert "cannot be encoded" in caplog.text


def test_frames_that_wait_count_against_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, queued_max_request_bytes=100)
    bench.answers = [Pending()]
    bench.feed(frame(1) + frame(2) * 10)
    assert bench.stream.ended == "aborted"


def test_acks_zero_with_an_error_hangs_up(bench: Bench) -> None:
    bench.answers = [CloseConnection("produce failed")]
    bench.feed(frame(1, PRODUCE, 7))
    assert bench.stream.ended == "aborted"


@pytest.mark.parametrize("fails", ["acks zero", "not encodable"])
def test_a_request_that_closes_the_connection_leaves_no_answered_request_behind(bench: Bench, fails: str) -> None:
    """The produce request behind it is answered already: it must not keep the connection from its end."""
    first: Pending[Any] = Pending()
    second: Pending[Any] = Pending()
    bench.answers = [first, second]
    bench.feed(frame(1, PRODUCE, 7) + frame(2, PRODUCE, 7))
    assert len(bench.requests) == 2
    second.complete(ProduceResponse())
    if fails == "acks zero":
        first.complete(CloseConnection("produce failed"))
    else:
        first.complete(ProduceResponse(throttle_time_ms=1 << 40))
    assert bench.stream.ended == "aborted"
    assert not bench.listener._connections
    assert not bench.listener._ending


def test_a_claimed_length_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, socket_request_max_bytes=100 << 20)
    bench.feed(struct.pack(">i", 100 << 20) + b"x" * 100)
    assert len(bench.connection.get_buffer()) <= 2 << 20


def test_unfinished_requests_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, queued_max_request_bytes=3000)
    streams = [FakeStream() for _ in range(4)]
    for stream in streams:
        bench.feed(struct.pack(">i", 996) + b"x", connection=bench.connect(stream))
    # The newest is the likeliest to be finished soon.
    assert [s.ended for s in streams] == ["aborted", "", "", ""]


def test_connections_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, max_connections=2)
    second, third = FakeStream(), FakeStream()
    bench.connect(second)
    bench.connect(third)
    assert (second.ended, third.ended) == ("", "aborted")


def test_idle_and_half_sent_frames_end_but_long_polls_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, connections_max_idle_ms=1000)
    half, polling = FakeStream(), FakeStream()
    bench.feed(frame(1)[:-1], connection=bench.connect(half))
    bench.answers = [Pending()]
    bench.feed(frame(1), connection=bench.connect(polling))
    bench.now_s = 5.0
    bench.listener._sweep()
    assert (half.ended, polling.ended) == ("aborted", "")


def test_who_sends_or_reads_slowly_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, connections_max_idle_ms=1000)
    sending, reading, stuck = FakeStream(), FakeStream(), FakeStream()
    connection = bench.connect(sending)
    for stream in (reading, stuck):
        bench.feed(frame(1), connection=bench.connect(stream))
        stream.backlog_bytes = 1000
    for byte in frame(1)[:5]:
        bench.now_s += 0.7
        bench.feed(bytes([byte]), connection=connection)
        reading.backlog_bytes -= 1
        bench.listener._sweep()
    assert (sending.ended, reading.ended, stuck.ended) == ("", "", "aborted")


def test_a_lost_client_frees_what_it_waits_for(bench: Bench) -> None:
    freed: list[bool] = []
    parked: Pending[HeartbeatResponse] = Pending(on_abandon=lambda: freed.append(True))
    bench.answers = [parked]
    bench.feed(frame(1))
    bench.connection.closed(None)
    assert freed == [True]
    parked.complete(HeartbeatResponse())
    assert bench.stream.sent == b""


def test_draining_answers_what_was_asked_and_takes_no_more(bench: Bench) -> None:
    parked: Pending[HeartbeatResponse] = Pending()
    bench.answers = [parked]
    bench.feed(frame(1))
    bench.connection.drain()
    bench.feed(frame(2))
    parked.complete(HeartbeatResponse())
    assert bench.correlation_ids() == [1]
    assert bench.stream.ended == "finished"
