"""Frames in, responses out in order, and what a hostile or slow peer can do: nothing to others."""

import asyncio
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.api import registry
from tidelog.api.pending import Pending
from tidelog.api.services import CloseConnection
from tidelog.broker import connection as connection_module
from tidelog.broker.connection import Connection
from tidelog.broker.connection_bounds import ConnectionBounds
from tidelog.broker.listener import UNLIMITED, Listener
from tidelog.broker.pipelining import ALL_PER_TURN, COMBINE_REQUESTS, REQUESTS_PER_TURN, SHARE_MIN
from tidelog.model.steps import Steps
from tidelog.quotas.client_quotas import ClientQuotas
from tidelog.quotas.connections import ConnectionQuotas
from tidelog.quotas.entities import entity_of
from tidelog.quotas.windows import Window
from tidelog.runtime.turns import Turns
from tidelog.wire.errors import ErrorCode, InvalidRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.produce import ProduceRequest, ProduceResponse

HEARTBEAT = 12
PRODUCE = 0
WINDOW = Window(11, 1000)


class FakeStream:
    peer = "10.0.0.1:4000"
    local = "10.0.0.2:9092"

    def __init__(self) -> None:
        self.sent = b""
        self.writes = 0
        self.backlog_bytes = 0
        self.reading = True
        self.ended = ""

    def write(self, pieces: list[bytes]) -> None:
        self.sent += b"".join(pieces)
        self.writes += 1

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def finish(self) -> None:
        self.ended = "finished"

    def abort(self) -> None:
        self.ended = "aborted"


class FakeTimer:
    def __init__(self, delay_s: float, call: Callable[[], object]) -> None:
        self.delay_s = delay_s
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeTasks:
    """Callbacks wait until `run`; coroutines run on the test's loop."""

    def __init__(self) -> None:
        self.soon: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self.timers: list[FakeTimer] = []

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self.soon.append((callback, args))

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> "FakeTimer":
        timer = FakeTimer(delay_s, lambda: callback(*args))
        self.timers.append(timer)
        return timer

    def spawn(self, coroutine: Any, *, name: str) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(coroutine, name=name)

    def defer_collection(self, deferred: bool) -> None:
        pass

    def run(self) -> None:
        while self.soon:
            self.run_turn()

    def run_turn(self) -> None:
        """What one turn of the loop runs."""
        ready, self.soon = self.soon, []
        for callback, args in ready:
            callback(*args)


class Bench:
    """A connection whose Heartbeat and Produce handlers are the test's."""

    def __init__(self, **settings: int) -> None:
        config = {
            "socket_request_max_bytes": 1 << 20,
            "max_connections": 100,
            "max_connections_per_ip": 100,
            "connections_max_idle_ms": 60_000,
            "queued_max_request_bytes": -1,
        } | settings
        self.tasks = FakeTasks()
        self.now_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        self.quotas = ClientQuotas(WINDOW, WINDOW)
        self.services = SimpleNamespace(
            config=SimpleNamespace(
                max_connection_creation_rate=UNLIMITED,
                max_connections_per_ip_overrides="10.0.0.9:2",
                **config,
            ),
            quotas=self.quotas,
            connection_quotas=ConnectionQuotas(WINDOW),
            runtime=SimpleNamespace(clock=clock, tasks=self.tasks),
            turns=Turns(clock, self.tasks),  # type: ignore[arg-type]
        )
        self.bounds = ConnectionBounds(self.services.config)
        self.listener = Listener(self.services, self.bounds)  # type: ignore[arg-type]
        self.requests: list[Any] = []
        self.answers: list[Any] = []
        self.stream = FakeStream()
        self.connection = self.connect(self.stream)

    def connect(self, stream: FakeStream) -> Connection:
        connection = Connection(self.listener, self.services)  # type: ignore[arg-type]
        connection.connected(stream)
        return connection

    def handle(self, services: Any, context: Any, request: Any) -> Any:
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else None
        if answer is None:
            return HeartbeatResponse() if context.api_key == HEARTBEAT else ProduceResponse()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def held_bytes(self) -> int:
        """What requests that are not handled yet count for."""
        return self.listener._bounds.frame_bytes

    def feed(self, data: bytes, step: int = 1 << 30, connection: Connection | None = None) -> None:
        connection = connection or self.connection
        while data and connection.open:
            buffer = connection.get_buffer()
            part = data[: min(step, len(buffer))]
            buffer[: len(part)] = part
            connection.received(len(part))
            data = data[len(part) :]

    def correlation_ids(self) -> list[int]:
        found, position = [], 0
        while position < len(self.stream.sent):
            size, correlation_id = struct.unpack_from(">ii", self.stream.sent, position)
            found.append(correlation_id)
            position += 4 + size
        return found


def frame(correlation_id: int, key: int = HEARTBEAT, version: int = 3, body: bytes | None = None) -> bytes:
    if body is None:
        message = HeartbeatRequest(group_id="g", member_id="m") if key == HEARTBEAT else ProduceRequest(acks=1)
        body = message.encode(version)
    content = struct.pack(">hhih", key, version, correlation_id, 4) + b"test" + body
    return struct.pack(">i", len(content)) + content


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return make_bench(monkeypatch)


def make_bench(monkeypatch: pytest.MonkeyPatch, **settings: int) -> Bench:
    made = Bench(**settings)
    for key, version, request, response in (
        (HEARTBEAT, 3, HeartbeatRequest, HeartbeatResponse),
        (PRODUCE, 7, ProduceRequest, ProduceResponse),
    ):
        route = object.__new__(registry.Route)
        route.api_key, route.version, route.name = key, version, response.name
        route.has_effects = key == PRODUCE
        route.handle = route.handle_wide = made.handle
        route.decode = request.decoder(version)  # type: ignore[attr-defined]
        route.request = request
        route.singles = None
        route.stepwise_decoder = route.stepwise_encoder = None
        route.response = response
        route.encode = response.pieces_encoder(version)  # type: ignore[attr-defined]
        route.flexible_request = route.flexible_response = False
        monkeypatch.setitem(registry.routes, key << 16 | version, route)
    return made


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
    assert len(bench.requests) <= ALL_PER_TURN + REQUESTS_PER_TURN + SHARE_MIN * len(connections)
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
    assert len(bench.requests) - before <= ALL_PER_TURN + REQUESTS_PER_TURN + SHARE_MIN * len(many)
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
    assert bench.listener.connection_count == 0


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


# Requests that are long, and handlers that take steps


class Clocked:
    """Steps of a millisecond each, on the bench's clock."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.taken = 0
        self.abandoned = False

    def steps(self, count: int, answer: Any) -> Steps[Any]:
        try:
            for _ in range(count):
                self.bench.now_s += 0.001
                self.taken += 1
                yield
        except GeneratorExit:
            self.abandoned = True
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer


def wide_frame(correlation_id: int, key: int = HEARTBEAT, version: int = 3) -> bytes:
    if key == HEARTBEAT:
        message, long = HeartbeatRequest(group_id="g", member_id="m"), connection_module.WIDE_REQUEST_BYTES
    else:
        message, long = ProduceRequest(acks=1), connection_module.WIDE_PRODUCE_BYTES
    return frame(correlation_id, key, version, message.encode(version) + bytes(long))


def test_steps_are_taken_in_turns_and_the_answer_keeps_its_place(bench: Bench) -> None:
    clocked = Clocked(bench)
    bench.answers = [clocked.steps(30, HeartbeatResponse())]
    bench.feed(frame(1) + frame(2))
    assert bench.correlation_ids() == []
    assert clocked.taken < 5
    assert len(bench.requests) == 1
    bench.tasks.run()
    assert bench.correlation_ids() == [1, 2]
    assert clocked.taken == 30


def test_what_comes_of_steps_may_be_anything_that_a_handler_gives(bench: Bench) -> None:
    pending: Pending[Any] = Pending()
    bench.answers = [Clocked(bench).steps(10, pending), Clocked(bench).steps(10, InvalidRequest("no"))]
    bench.feed(frame(1) + frame(2))
    bench.tasks.run()
    pending.complete(Clocked(bench).steps(10, HeartbeatResponse()))
    bench.tasks.run()
    assert bench.correlation_ids() == [1, 2]
    assert bench.stream.sent[-2:] == struct.pack(">h", ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("key", [HEARTBEAT, PRODUCE])
def test_a_long_request_is_answered_as_a_short_one(bench: Bench, key: int) -> None:
    version = 3 if key == HEARTBEAT else 7
    bench.feed(frame(1, key, version) + wide_frame(2, key, version) + frame(3, key, version))
    bench.tasks.run()
    assert bench.correlation_ids() == [1, 2, 3]
    assert bench.requests[0] == bench.requests[1]


def test_produce_requests_do_not_overtake_one_that_has_turns(bench: Bench) -> None:
    pending: Pending[ProduceResponse] = Pending()
    bench.answers = [Clocked(bench).steps(10, pending)]
    bench.feed(wide_frame(1, PRODUCE, 7) + frame(2, PRODUCE, 7))
    assert len(bench.requests) == 1
    bench.tasks.run()
    assert len(bench.requests) == 2  # appended, and waiting: now the next may be appended
    assert bench.correlation_ids() == []
    pending.complete(ProduceResponse())
    assert bench.correlation_ids() == [1, 2]


def test_nobody_writes_to_what_a_request_in_turns_lies_in(bench: Bench) -> None:
    before = bench.listener.buffer.obj
    bench.answers = [Clocked(bench).steps(10, HeartbeatResponse())]
    bench.feed(wide_frame(1))
    assert bench.listener.buffer.obj is not before
    assert bench.bounds.frame_bytes == len(before)
    bench.tasks.run()
    assert bench.bounds.frame_bytes == 0
    assert bench.correlation_ids() == [1]


def test_the_work_for_a_client_that_has_gone_is_abandoned(bench: Bench) -> None:
    clocked = Clocked(bench)
    bench.answers = [clocked.steps(100, HeartbeatResponse())]
    bench.feed(wide_frame(1))
    bench.connection.closed(None)
    assert clocked.abandoned
    taken = clocked.taken
    bench.tasks.run()
    assert clocked.taken == taken
    assert bench.stream.sent == b""
    assert bench.bounds.frame_bytes == 0


def test_steps_that_come_too_late_are_not_begun(bench: Bench) -> None:
    pending: Pending[Any] = Pending()
    clocked = Clocked(bench)

    async def later() -> Any:
        return clocked.steps(10, HeartbeatResponse())

    async def scenario() -> None:
        bench.answers = [later()]
        bench.feed(frame(1))
        bench.connection.closed(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert clocked.taken == 0
    assert not pending.done


def test_a_long_request_that_is_malformed_closes_the_connection(bench: Bench) -> None:
    bench.feed(frame(1, body=b"\x7f\xff" + bytes(connection_module.WIDE_REQUEST_BYTES)))
    assert bench.stream.ended == "aborted"


def test_a_draining_connection_answers_what_has_turns(bench: Bench) -> None:
    bench.answers = [Clocked(bench).steps(50, HeartbeatResponse())]
    bench.feed(frame(1))
    bench.connection.drain()
    assert bench.stream.ended == ""
    bench.tasks.run()
    assert bench.correlation_ids() == [1]
    assert bench.stream.ended == "finished"


# Clients that leave


def two_wide_produces(bench: Bench) -> Clocked:
    """The first has begun; behind it is one more, and one after a request that changes nothing."""
    clocked = Clocked(bench)
    bench.answers = [clocked.steps(100, None)]
    bench.feed(wide_frame(1, PRODUCE, 7) + frame(2, PRODUCE, 7) + frame(3) + frame(4, PRODUCE, 7))
    assert 0 < clocked.taken < 10
    return clocked


def test_what_a_client_asked_for_before_it_left_is_done(bench: Bench) -> None:
    clocked = two_wide_produces(bench)
    held = bench.bounds.frame_bytes
    bench.connection.closed(None)
    assert bench.listener.connection_count == 0
    assert bench.bounds.frame_bytes == held  # nobody may write there
    bench.tasks.run()
    assert clocked.taken == 100
    assert [type(request) for request in bench.requests] == [ProduceRequest] * 3
    assert bench.stream.sent == b""
    assert (bench.bounds.frame_bytes, bench.listener._ending) == (0, {})
    assert not bench.connection.open


def test_a_connection_that_is_closed_ends_what_was_begun_and_begins_no_more(bench: Bench) -> None:
    clocked = two_wide_produces(bench)
    bench.connection.close("a test")
    bench.tasks.run()
    assert clocked.taken == 100
    assert len(bench.requests) == 1
    assert (bench.bounds.frame_bytes, bench.listener._ending) == (0, {})


def test_nothing_is_handled_behind_what_breaks_the_protocol(bench: Bench) -> None:
    bench.answers = [Pending()]
    bench.feed(frame(1, PRODUCE, 7) + frame(2, PRODUCE, 99, b"") + frame(3, PRODUCE, 7))
    bench.tasks.run()
    assert len(bench.requests) == 1
    assert bench.stream.ended == "aborted"


def test_requests_of_clients_that_left_count_against_the_budget_until_they_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = make_bench(monkeypatch, queued_max_request_bytes=(1 << 20) + 1000)
    clocked = two_wide_produces(bench)
    bench.connection.closed(None)
    late = FakeStream()
    bench.feed(struct.pack(">i", 2000) + b"x", connection=bench.connect(late))
    assert late.ended == "aborted"
    bench.tasks.run()
    assert clocked.taken == 100
    assert bench.bounds.frame_bytes == 0
    later = FakeStream()
    bench.feed(struct.pack(">i", 2000) + b"x", connection=bench.connect(later))
    assert later.ended == ""


def test_the_steps_of_an_answer_are_not_taken_for_a_client_that_left(bench: Bench) -> None:
    pending: Pending[Any] = Pending()
    building = Clocked(bench)
    bench.answers = [Clocked(bench).steps(10, pending)]
    bench.feed(wide_frame(1, PRODUCE, 7))
    bench.tasks.run()
    bench.connection.closed(None)
    assert bench.connection.open  # its batches may be still to be appended
    pending.complete(building.steps(10, ProduceResponse()))
    bench.tasks.run()
    assert building.taken == 0
    assert not bench.connection.open


def test_a_stop_waits_for_the_requests_of_clients_that_left(bench: Bench) -> None:
    clocked = two_wide_produces(bench)
    bench.connection.closed(None)

    async def scenario() -> None:
        bench.tasks.future = asyncio.get_running_loop().create_future  # type: ignore[attr-defined]
        draining = asyncio.ensure_future(bench.listener.drain(1.0))
        await asyncio.sleep(0)
        assert not draining.done()
        bench.tasks.run()
        await draining

    asyncio.run(scenario())
    assert clocked.taken == 100
    assert len(bench.requests) == 1  # what was not begun is not
    assert bench.bounds.frame_bytes == 0


# A client over its quota


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


def test_a_wait_that_ends_behind_a_long_poll_is_over_with_it(bench: Bench) -> None:
    """The quota is new: what came before it is under way side by side."""
    limited(bench, consumer_byte_rate=1.0)
    acknowledged: Pending[ProduceResponse] = Pending()
    polled: Pending[HeartbeatResponse] = Pending()
    bench.answers = [acknowledged, polled]
    bench.feed(big(1) + frame(2))
    assert len(bench.requests) == 2
    limited(bench, producer_byte_rate=1000.0)
    acknowledged.complete(ProduceResponse())
    (timer,) = bench.tasks.timers
    timer.call()
    bench.tasks.run()
    assert not bench.stream.reading
    polled.complete(HeartbeatResponse())
    bench.tasks.run()
    assert bench.stream.reading
    bench.feed(frame(3))
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
