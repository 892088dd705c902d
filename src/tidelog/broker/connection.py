"""The server's side of one client connection: bytes to frames, frames to handlers, responses in the order of the
requests.

Requests of one connection are handled one after another, as in Kafka. Only produce requests may follow each other
while earlier ones wait for their acknowledgement. Views into a request (record batches) are valid until the handler
returns or first awaits, since the buffer is reused. A request of more than `WIDE_REQUEST_BYTES` (of produce,
`WIDE_PRODUCE_BYTES`) is processed in steps, and its buffer is kept until the last step.

A client that has shut its sending side gets a response to every complete request, in order; then the connection is
closed. TCP does not distinguish such a client from one that has closed its socket. Both keep their connection until
the last response was sent, or until a reset arrives.

When the connection is broken, complete requests that change something (`Route.has_effects`) are still handled to
their end, in order. Only responses and reads are dropped.
"""

import logging
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any

from tidelog.api.metering import Meter
from tidelog.api.registry import API_VERSIONS_KEY, PRODUCE_KEY, Route, find_route, routes
from tidelog.api.services import NO_RESPONSE, CloseConnection, Peer, RequestContext, Services
from tidelog.broker.gone import GONE
from tidelog.broker.pipelining import COMBINE_REQUESTS
from tidelog.broker.serving import Encoded, failure_response, not_encoded, served_in_steps
from tidelog.broker.slot import Slot
from tidelog.quotas.client_quotas import ANONYMOUS
from tidelog.runtime.interfaces import FileRegion, Piece, Stream, TimerHandle
from tidelog.wire.errors import ApiError
from tidelog.wire.primitives import MalformedMessage, skip_tagged_fields

if TYPE_CHECKING:
    from tidelog.broker.listener import Listener

logger = logging.getLogger("tidelog.connection")

_SIZE = Struct(">i")
_HEADER = Struct(">hhih")
_RESPONSE = Struct(">ii")
_FLEXIBLE_RESPONSE = Struct(">iix")

HEADER_BYTES = 10
"""Size of the shortest request header: API key, version, correlation id, length of the client id."""
OTHER_REQUEST_BYTES_MAX = 16 << 20
"""Size limit of all requests but produce, which carries records. A longer one can only serve to keep the loop busy."""
PIPELINED_MAX = 1000
"""Produce requests of one connection that may wait for their acknowledgement. At the limit, reading pauses."""
BACKLOG_BYTES_MAX = 1 << 20
"""Bytes of responses that the client has not read. At the limit, no further requests are handled."""
WIDE_REQUEST_BYTES = 16 << 10
"""A longer request may contain thousands of items, so it is decoded, handled and encoded in steps."""
WIDE_PRODUCE_BYTES = 100 << 10
"""The same limit for produce, whose bytes are mostly records: about 1,500 of the smallest batches, or 10 ms."""


class ServerConnection:
    """The receiver of one stream. `Listener` makes it, and bounds the number and memory of connections."""

    __slots__ = (
        "_backlog_seen",
        "_client_id",
        "_client_id_raw",
        "_combined",
        "_draining",
        "_filled",
        "_frame",
        "_halted",
        "_input_ended",
        "_kept",
        "_last_active",
        "_listener",
        "_monotonic",
        "_muted",
        "_paused",
        "_prefix_end",
        "_quota_known",
        "_resuming",
        "_stash",
        "_stream",
        "_waiting",
        "gone",
        "open",
        "peer",
        "services",
    )

    def __init__(self, listener: "Listener", services: Services) -> None:
        self._listener = listener
        self.services = services
        self._monotonic = services.runtime.clock.monotonic
        self.open = False
        """True until all requests have ended. The client may be disconnected (`gone`) before."""
        self.gone = False
        self._last_active = 0.0  # when the client was last seen to send or read
        self._backlog_seen = 0
        self._frame: bytearray | None = None  # an incomplete frame, including its four bytes of length
        self._filled = 0
        self._kept: bytearray | None = None  # the buffer of the request that is processed in steps
        self._stash: memoryview | None = None  # complete and incomplete frames that wait, in a buffer of their own
        self._paused = False
        self._resuming = False  # continuation is scheduled for a later turn of the loop
        self._draining = False  # no further request is started
        # the client has shut its sending side; the connection is closed after the last response
        self._input_ended = False
        self._muted: TimerHandle | None = None  # while set, the client is throttled by a quota
        self._halted = False  # draining or muted
        self._waiting: deque[Slot] = deque()
        self._combined: list[Piece] | None = None
        # (generation of the quotas, client id, whether it has a quota)
        self._quota_known: tuple[int, str, bool] | None = None
        self._prefix_end = 0  # where this client's produce requests of one batch begin to differ
        self._client_id_raw = b""
        self._client_id: str | None = None

    # Callbacks of the stream

    def connected(self, stream: Stream) -> None:
        self._stream = stream
        client_host, _, client_port = stream.peer.rpartition(":")
        local_host, _, local_port = stream.local.rpartition(":")
        self.peer = Peer(client_host, int(client_port), local_host, int(local_port))
        self.open = True
        self._last_active = self._monotonic()
        self._listener.opened(self)

    def get_buffer(self) -> memoryview:
        frame = self._frame
        if frame is None:
            return self._listener.buffer
        if self._filled < len(frame):
            return memoryview(frame)[self._filled :]
        return self._listener.buffer[: 4 + _SIZE.unpack_from(frame)[0] - len(frame)]

    def received(self, count: int) -> None:
        self._last_active = self._monotonic()
        frame = self._frame
        if frame is not None:
            if self._filled == len(frame):
                if not self._reserve(len(frame) + count):
                    return
                # grow in place: a new buffer and a copy would hold up the loop
                frame += self._listener.buffer[:count]
            self._filled += count
            if self._filled == len(frame):
                self._frame_full(frame)
            return
        self._take(self._listener.buffer, count, self._listener.pipelining.share)

    def drained(self) -> None:
        self._resume(self._listener.pipelining.share)

    def eof_received(self) -> bool:
        self._input_ended = True
        self._drop_frame()  # its end will not arrive
        self._finish_if_answered()
        return True

    def closed(self, error: OSError | None) -> None:
        if self.open and not self.gone:
            self._part()

    def close(self, reason: str) -> None:
        """Close the connection of a client that broke the protocol or a limit. Later bytes are not processed."""
        if not self.open:
            return
        logger.info("connection closed peer=%s reason=%s", self.peer.name, reason)
        self._stream.abort()
        self._draining = self._halted = True
        if self.gone:
            self._end_if_done()
        else:
            self._part()

    def _part(self) -> None:
        """Handle the disconnection of the client: finish requests with effects, drop all others."""
        self.gone = True
        self._listener.gone(self)
        self._stream = GONE
        self._drop_frame()
        if self._muted is not None:  # there is no client to throttle
            self._muted.cancel()
            self._muted = None
            self._halted = self._draining
        waiting, self._waiting = self._waiting, deque()
        for slot in waiting:
            if slot.abandon():
                self._waiting.append(slot)
        if self._stash is not None and not self._must_wait():
            self.resume_soon()
        self._end_if_done()

    def _finish_if_answered(self) -> None:
        """Close the connection when no further request can come and every response was sent."""
        if not self._waiting and (self._draining or (self._input_ended and self._stash is None)):
            self._draining = self._halted = True
            self._stream.finish()

    def _end_if_done(self) -> None:
        if self.gone and self.open and not self._waiting and (self._stash is None or self._draining):
            self.open = False
            self._stash = None
            self._listener.ended(self)

    def silent_s(self, now_s: float) -> float:
        """Return how long the client has neither sent nor read anything.

        It is 0 while the client waits for a response (a long poll, a join), unless it has shut its sending side,
        since it may be gone then. Must be called regularly: the calls detect that the client reads.
        """
        if self._waiting and not self._input_ended:
            return 0
        if self._stream.backlog_bytes != self._backlog_seen:
            self._backlog_seen = self._stream.backlog_bytes
            self._last_active = now_s
        return now_s - self._last_active

    def drain(self) -> None:
        """Start no more requests. Close the connection when all responses are sent and read."""
        if self.open and not self._draining:
            self._draining = self._halted = True
            self._pause()
            self._finish_if_answered()
            self._end_if_done()

    def mute(self, delay_s: float, then: Callable[[], object] | None = None) -> None:
        """Stop reading and handling for `delay_s`; then continue, or call `then`."""
        if not self.open or self.gone:
            return
        if self._muted is not None:
            self._muted.cancel()
        self._halted = True
        self._pause()
        self._muted = self.services.runtime.tasks.call_later(delay_s, then or self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self._halted = self._draining
        self._resume(self._listener.pipelining.share)

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._stream.pause_reading()

    # Frames

    def _take(self, view: memoryview, end: int, most: int) -> None:
        """Handle at most `most` frames of `view[:end]`. Keep incomplete frames, and frames that must wait."""
        position = 0
        handled = 0
        while self.open:
            left = end - position
            if not left:
                break
            if handled >= most or ((self._waiting or self._halted or self._stream.backlog_bytes) and self._must_wait()):
                self._put_aside(view[position:end], handled >= most)
                break
            if left < 4:
                self._begin_frame(view[position:end], 4)
                break
            (size,) = _SIZE.unpack_from(view, position)
            if size < HEADER_BYTES or size > self._listener.request_bytes_max:
                self._refuse_size(size, view[position : position + 4])
                break
            if left - 4 < size:
                self._begin_frame(view[position:end], size + 4)
                break
            if self._combined is None and handled == 0 and left >= COMBINE_REQUESTS * (size + 4):
                self._combined = []
            self._handle(view[position + 4 : position + 4 + size])
            position += 4 + size
            handled += 1
        if self._combined is not None:
            pieces, self._combined = self._combined, None
            if pieces and self.open:
                self._stream.write(pieces)
        if handled > 1:
            self._listener.pipelining.handled(handled)

    def _begin_frame(self, part: memoryview, size: int) -> None:
        """Start to collect a frame of `size` bytes that begins with `part` (4: the length itself is incomplete)."""
        if self.gone or self._input_ended:  # its end does not come any more
            return
        # A longer buffer grows as the bytes arrive, so a claimed length takes no memory.
        first = min(size, max(self._listener.frame_step_bytes, len(part) + 1))
        if not self._reserve(first):
            return
        # No view of a growing buffer may exist.
        frame = self._listener.frame_buffer(size) if first == size else bytearray(first)
        frame[: len(part)] = part
        self._frame = frame
        self._filled = len(part)

    def _frame_full(self, frame: bytearray) -> None:
        (size,) = _SIZE.unpack_from(frame)
        if size < HEADER_BYTES or size > self._listener.request_bytes_max:
            self._refuse_size(size, memoryview(frame)[:4])
            return
        if len(frame) < size + 4:
            return
        self._frame = None
        self._filled = 0
        self._release()
        self._take(memoryview(frame), size + 4, 1)
        if self._kept is not frame and (self._stash is None or self._stash.obj is not frame):
            self._listener.recycle(frame)

    def _drop_frame(self) -> None:
        if self._frame is not None:
            self._frame = None
            self._release()

    def _reserve(self, size: int) -> bool:
        """Count `size` bytes of unhandled requests. Returns False if the connection had to be closed."""
        return self._listener.reserve(self, size if self._kept is None else size + len(self._kept))

    def _release(self) -> None:
        self._listener.release(self)
        if self._kept is not None:
            self._listener.reserve(self, len(self._kept))

    def _keep(self, buffer: bytearray) -> None:
        """Keep `buffer` for a request that is processed in steps: nothing else may write to it meanwhile."""
        self._kept = buffer
        self._listener.keep(buffer)
        self._reserve(0)

    def unkeep(self) -> None:
        self._kept = None
        if self.open:
            self._listener.release(self)
            unhandled = self._frame if self._stash is None else self._stash
            if unhandled is not None:
                self._reserve(len(unhandled))

    def _refuse_size(self, size: int, start: memoryview) -> None:
        looks = " (HTTP on the Kafka port?)" if bytes(start).isalpha() or bytes(start) in (b"GET ", b"PUT ") else ""
        limit = self._listener.request_bytes_max
        self.close(f"frame of {size} bytes is outside {HEADER_BYTES}..{limit}, socket.request.max.bytes{looks}")

    def _must_wait(self) -> bool:
        waiting = self._waiting
        if waiting and (not waiting[-1].pipelined or len(waiting) >= PIPELINED_MAX):
            return True
        return self._stream.backlog_bytes > BACKLOG_BYTES_MAX or self._halted

    def _put_aside(self, rest: memoryview, later: bool) -> None:
        if not self._reserve(len(rest)):
            return
        buffer = rest.obj
        assert isinstance(buffer, bytearray)
        if buffer is self._listener.buffer.obj or len(buffer) > 2 * len(rest):
            # Copy rarely: this private buffer is used until half of it is processed.
            rest = memoryview(bytearray(rest))  # writable like every frame, since offsets are written into batches
        self._stash = rest
        self._pause()
        if later and not self._resuming:
            self._resuming = True
            self._listener.pipelining.add(self)

    def resume_soon(self) -> None:
        if not self._resuming:
            self._resuming = True
            self.services.runtime.tasks.call_soon(self._resume_now)

    def _resume_now(self) -> None:
        self.go_on(self._listener.pipelining.share)

    def go_on(self, most: int) -> None:
        """Continue in a later turn of the loop, with at most `most` requests."""
        self._resuming = False
        self._resume(most)

    def _resume(self, most: int) -> None:
        """Continue with the frames that were put aside, if nothing prevents it."""
        if not self.open or self._must_wait():
            return
        stash = self._stash
        if stash is not None:
            self._stash = None
            self._release()
            self._take(stash, len(stash), most)
        if self.open and self._stash is None and self._paused:
            self._paused = False
            self._stream.resume_reading()
        if self._input_ended and self.open:
            self._finish_if_answered()
        self._end_if_done()

    # Requests

    def _handle(self, frame: memoryview) -> None:
        api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
        found = routes.get(api_key << 16 | version)
        if found is None:
            try:
                found = find_route(api_key, version)
            except ApiError:
                if api_key != API_VERSIONS_KEY:
                    self.close(f"API key {api_key} version {version} is not served")
                    return
                found = find_route(API_VERSIONS_KEY, 0)
                version = -1  # makes the handler return the supported versions
        if self._prefix_end and api_key == PRODUCE_KEY and self._handle_by_template(found, frame, correlation_id):
            return
        position = HEADER_BYTES
        try:
            if length > 0:
                position += length
                raw = frame[HEADER_BYTES:position]
                if raw != self._client_id_raw:
                    self._client_id_raw = bytes(raw)
                    self._client_id = str(raw, "utf-8")
                client_id = self._client_id
            else:
                client_id = None if length < 0 else ""
            if position > len(frame):
                raise MalformedMessage("the request ends inside its header")
            if self.gone and not found.has_effects:
                return
            context = RequestContext(api_key, version, correlation_id, client_id, self.peer)
            if self.services.quotas.active and self._has_quota(client_id or ""):
                size = len(frame) - position - found.flexible_request
                context.meter = Meter(self.services.quotas, self._monotonic, api_key, version, client_id, size)
            if version < 0:
                request: Any = None
            elif len(frame) > WIDE_REQUEST_BYTES and (api_key != PRODUCE_KEY or len(frame) > WIDE_PRODUCE_BYTES):
                self._begin_wide(found, context, frame, position)
                return
            else:
                if found.flexible_request:
                    position = skip_tagged_fields(frame, position + 1, frame[position])
                request, _ = found.decode(frame, position)
                if found.produce_templates is not None:
                    self._prefix_end = found.produce_templates.learn(frame, request)
        except (MalformedMessage, UnicodeDecodeError, IndexError) as error:
            self.close(f"{found.name} v{version}: {error}")
            return
        if context.meter is not None:
            self._call_metered(found, context, request, context.meter)
        else:
            self._call(found, context, request)

    def _has_quota(self, client_id: str) -> bool:
        quotas = self.services.quotas
        known = self._quota_known
        if known is None or known[0] != quotas.generation or known[1] != client_id:
            known = self._quota_known = (quotas.generation, client_id, quotas.has_quota(ANONYMOUS, client_id))
        return known[2]

    def _handle_by_template(self, found: Route, frame: memoryview, correlation_id: int) -> bool:
        """Handle a produce request that is like an earlier one. Returns False, and has done nothing, if it is not."""
        templates = found.produce_templates
        if templates is None or self.services.quotas.active or len(frame) > WIDE_PRODUCE_BYTES:
            return False
        answer = templates.handle(self.services, frame, self._prefix_end)
        if answer is None:
            return False
        response: Any = answer
        if type(answer) is bytes:
            if not self._waiting:
                self._send(found, correlation_id, None, [answer])
                return True
            response = Encoded([answer])
        self._wait_for(response, found, RequestContext(PRODUCE_KEY, found.version, correlation_id, None, self.peer))
        return True

    def _call(self, found: Route, context: RequestContext, request: Any) -> None:
        try:
            response = found.handle(self.services, context, request)
            if type(response) is found.response:
                if self._waiting:
                    slot = Slot(self, found, context)
                    self._waiting.append(slot)
                    slot.answer(response)
                else:
                    self._send(found, context.correlation_id, response)
                return
        except Exception as error:
            response = failure_response(found, context, error)
        if response is not None or self._waiting:
            self._wait_for(response, found, context)

    def _wait_for(self, outcome: Any, found: Route, context: RequestContext) -> None:
        """Wait for the outcome of a handler, behind earlier requests."""
        slot = Slot(self, found, context)
        self._waiting.append(slot)
        slot.take(outcome)

    def _call_metered(self, found: Route, context: RequestContext, request: Any, meter: Meter) -> None:
        """Call a handler for a client that has a quota; see `_call`."""
        meter.start()
        try:
            response = found.handle(self.services, context, request)
        except Exception as error:
            response = failure_response(found, context, error)
        meter.stop()
        if not self._waiting:
            if type(response) is found.response:
                meter.settle(response)
                meter.start()
                self._send(found, context.correlation_id, response)
                self._throttle(meter)
                return
            if response is NO_RESPONSE:
                meter.settle(response)
                self._throttle(meter)
                return
        self._wait_for(response, found, context)

    def _begin_wide(self, found: Route, context: RequestContext, frame: memoryview, position: int) -> None:
        """Decode, handle and encode a request in steps. Most requests end within the first turn, inside this call."""
        if len(frame) > OTHER_REQUEST_BYTES_MAX and found.api_key != PRODUCE_KEY:
            self.close(
                f"{found.name} request of {len(frame)} bytes: only produce may be beyond {OTHER_REQUEST_BYTES_MAX}"
            )
            return
        slot = Slot(self, found, context)
        slot.pipelined = False  # the next request waits until all of this is done
        self._waiting.append(slot)
        steps = served_in_steps(self.services, found, context, frame, position, lambda: not self.gone)
        if slot.begin(steps, weight=len(frame)) and self.open:
            buffer = frame.obj
            assert isinstance(buffer, bytearray)
            slot.keeps = True
            self._keep(buffer)

    # Responses

    def slot_answered(self, slot: Slot) -> None:
        """Send the response of `slot`, and those behind it, if it is the next in order; then continue with waiting
        frames.
        """
        waiting = self._waiting
        if not waiting or waiting[0] is not slot or not self.open:
            return
        self._last_active = self._monotonic()
        while waiting and waiting[0].answered and self.open:
            slot = waiting.popleft()
            if isinstance(slot.response, CloseConnection):
                self.close(slot.response.reason)
            elif type(slot.response) is Encoded:
                self._send(slot.route, slot.context.correlation_id, None, slot.response.pieces)
            elif slot.response is not None:
                self._send(slot.route, slot.context.correlation_id, slot.response)
            if slot.context.meter is not None:
                self._throttle(slot.context.meter)
        if not self.open:
            return
        if self._draining and not waiting:
            self._stream.finish()
        elif (self._paused or self._input_ended) and not self._must_wait():
            self.resume_soon()  # with waiting frames, with reading, or by closing after the end of the input
        if self.gone:
            self._end_if_done()

    def _throttle(self, meter: Meter) -> None:
        """After a response, throttle the client if it is over a quota now (KIP-219)."""
        meter.sent()
        if meter.throttle_ms:
            self.mute(meter.throttle_ms / 1000)

    def _send(self, found: Route, correlation_id: int, response: Any, pieces: list[Any] | None = None) -> None:
        if pieces is None:
            try:
                pieces = found.encode(response)
            except Exception:
                # The caller completed a response and must not be affected by this failure.
                self.close(not_encoded(found))
                return
        size = 4 + len(pieces[0])
        if len(pieces) > 1:
            for piece in pieces[1:]:
                size += piece.size if type(piece) is FileRegion else len(piece)
        if found.flexible_response:
            head = _FLEXIBLE_RESPONSE.pack(size + 1, correlation_id)
        else:
            head = _RESPONSE.pack(size, correlation_id)
        pieces[0] = head + pieces[0]
        if self._combined is None:
            self._stream.write(pieces)
        else:
            self._combined += pieces
