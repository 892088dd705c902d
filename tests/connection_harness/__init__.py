"""A connection of the broker with a fake stream and with handlers that the test defines."""

import asyncio
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.api import registry
from tidelog.broker import connection as connection_module
from tidelog.broker.connection import ServerConnection
from tidelog.broker.connection_bounds import ConnectionBounds
from tidelog.broker.listener import UNLIMITED, Listener
from tidelog.model.steps import Steps
from tidelog.quotas.client_quotas import ClientQuotas
from tidelog.quotas.connections import ConnectionQuotas
from tidelog.quotas.windows import Window
from tidelog.runtime.turns import Turns
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


class FakeSockets:
    """The sockets of a listener to which no client connects."""

    host = "10.0.0.2"
    port = 9092

    def close(self) -> None:
        """Do nothing: there is no socket."""


class FakeTimer:
    def __init__(self, delay_s: float, call: Callable[[], object]) -> None:
        self.delay_s = delay_s
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeTasks:
    """Callbacks are stored until `run` calls them. Coroutines run on the test's event loop."""

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
        """Run the callbacks of one turn of the event loop."""
        ready, self.soon = self.soon, []
        for callback, args in ready:
            callback(*args)


class Bench:
    """A connection whose Heartbeat and Produce requests are answered by the test."""

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
        self.listener = Listener(self.services, self.bounds, FakeSockets())  # type: ignore[arg-type]
        self.requests: list[Any] = []
        self.answers: list[Any] = []
        self.stream = FakeStream()
        self.connection = self.connect(self.stream)

    def connect(self, stream: FakeStream) -> ServerConnection:
        connection = ServerConnection(self.listener, self.services)  # type: ignore[arg-type]
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
        """Bytes of the requests that were received but not handled yet, as the connection counts them."""
        return self.bounds.frame_bytes

    def feed(self, data: bytes, step: int = 1 << 30, connection: ServerConnection | None = None) -> None:
        connection = connection or self.connection
        while data and connection.open:
            buffer = connection.get_buffer()
            part = data[: min(step, len(buffer))]
            buffer[: len(part)] = part
            connection.received(len(part))
            data = data[len(part) :]

    def correlation_ids(self) -> list[int]:
        ids, position = [], 0
        while position < len(self.stream.sent):
            size, correlation_id = struct.unpack_from(">ii", self.stream.sent, position)
            ids.append(correlation_id)
            position += 4 + size
        return ids


def frame(correlation_id: int, key: int = HEARTBEAT, version: int = 3, body: bytes | None = None) -> bytes:
    if body is None:
        message = HeartbeatRequest(group_id="g", member_id="m") if key == HEARTBEAT else ProduceRequest(acks=1)
        body = message.encode(version)
    content = struct.pack(">hhih", key, version, correlation_id, 4) + b"test" + body
    return struct.pack(">i", len(content)) + content


def make_bench(monkeypatch: pytest.MonkeyPatch, **settings: int) -> Bench:
    bench = Bench(**settings)
    for key, version, request, response in (
        (HEARTBEAT, 3, HeartbeatRequest, HeartbeatResponse),
        (PRODUCE, 7, ProduceRequest, ProduceResponse),
    ):
        route = object.__new__(registry.Route)
        route.api_key, route.version, route.name = key, version, response.name
        route.has_effects = key == PRODUCE
        route.handle = route.handle_wide = bench.handle
        route.decode = request.decoder(version)  # type: ignore[attr-defined]
        route.request = request
        route.produce_templates = None
        route.stepwise_decoder = route.stepwise_encoder = None
        route.response = response
        route.encode = response.pieces_encoder(version)  # type: ignore[attr-defined]
        route.flexible_request = route.flexible_response = False
        monkeypatch.setitem(registry.routes, key << 16 | version, route)
    return bench


class TimedSteps:
    """A computation in steps. Each step takes one millisecond on the bench's clock."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.step_count = 0
        self.abandoned = False

    def steps(self, count: int, answer: Any) -> Steps[Any]:
        try:
            for _ in range(count):
                self.bench.now_s += 0.001
                self.step_count += 1
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
