"""The server's side of one client connection: split the received bytes into requests, call their handlers, and send
the responses in the order of the requests. A frame is one encoded request. A length field of four bytes precedes it.

Requests of one connection are handled one after another, as in Kafka. Only produce requests may be handled while
earlier produce requests wait for their acknowledgement. Views into a request (record batches) are valid only until the
handler returns or first awaits. Then the buffer is reused. A request of more than `WIDE_REQUEST_BYTES` (a produce
request: `WIDE_PRODUCE_BYTES`) is processed in steps, and its buffer is not reused until the last step has ended.

A client that has shut its sending side gets a response to every complete request, in order. After the last response,
the connection is closed. TCP does not distinguish such a client from a client that has closed its socket. In both cases
the connection remains open until the last response was sent, or until a reset arrives.

When the connection is broken, requests that were received completely and change state (`Route.has_effects`) are still
handled to their end, in order. Only responses, and requests that change no state, are dropped.
"""

import logging
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any

from tidelog.api.metering import Meter
from tidelog.api.registry import API_VERSIONS_KEY, PRODUCE_KEY, Route, find_route, routes
from tidelog.api.services import NO_RESPONSE, CloseConnection, Encoded, Peer, RequestContext, Services
from tidelog.broker.discarding_stream import DISCARDING_STREAM
from tidelog.broker.other_protocols import other_protocol_hint
from tidelog.broker.pipelining import COMBINE_REQUESTS
from tidelog.broker.serving import failure_response, handle_in_steps, log_encoding_failure
from tidelog.broker.slot import Slot
from tidelog.quotas.client_quotas import ANONYMOUS
from tidelog.runtime.interfaces import FileRegion, Piece, Stream, TimerHandle
from tidelog.wire.errors import ApiError
from tidelog.wire.primitives import MalformedMessage, skip_tagged_fields

if TYPE_CHECKING:
    from tidelog.broker.listener import Listener

logger = logging.getLogger("tidelog.connection")

_SIZE = Struct(">i")
_PRODUCE_KEY_BYTES = PRODUCE_KEY.to_bytes(2, "big")
_HEADER = Struct(">hhih")  # API key, version, correlation id, length of the client id
_RESPONSE = Struct(">ii")  # size, correlation id
_FLEXIBLE_RESPONSE = Struct(">iix")  # size, correlation id, no tagged fields

HEADER_BYTES = 10
"""Size of the shortest request header: API key, version, correlation id, length of the client id."""
OTHER_REQUEST_BYTES_MAX = 16 << 20
"""Upper bound on the size of a request that is not a produce request. No common client exceeds this bound. Produce
requests contain records, so only `socket.request.max.bytes` bounds them."""
PIPELINED_MAX = 1000
"""Upper bound on the waiting (unacknowledged) produce requests of one connection. At the limit, reading pauses."""
BACKLOG_BYTES_MAX = 1 << 20
"""Upper bound on the bytes of responses that the client has not read. Above it, no further requests are handled."""
WIDE_REQUEST_BYTES = 16 << 10
"""A longer request may contain thousands of items, so it is decoded, handled and encoded in steps."""
WIDE_PRODUCE_BYTES = 100 << 10
"""A longer produce request is processed in steps. This limit is higher than WIDE_REQUEST_BYTES, since a produce
request consists mostly of records. A request of this size contains at most about 1,500 batches, which take 10 ms."""


class ServerConnection:
    """The receiver of one stream. `Listener` creates it, and bounds the number and memory of connections."""

    __slots__ = (
        "_cached_quota",
        "_client_id",
        "_client_id_raw",
        "_combined",
        "_draining",
        "_filled",
        "_frame",
        "_halted",
        "_held_buffer",
        "_input_ended",
        "_last_active",
        "_last_backlog_bytes",
        "_listener",
        "_monotonic",
        "_mute_timer",
        "_paused",
        "_prefix_end",
        "_resuming",
        "_stash",
        "_stream",
        "_waiting",
        "is_disconnected",
        "open",
        "peer",
        "services",
    )

    def __init__(self, listener: "Listener", services: Services) -> None:
        self._listener = listener
        self.services = services
        self._monotonic = services.runtime.clock.monotonic
        self.open = False
        """True from `connected` until all requests have ended. The client may disconnect earlier; see
        `is_disconnected`."""
        self.is_disconnected = False
        self._last_active = 0.0  # monotonic time at which the client last sent or read bytes, or was answered
        self._last_backlog_bytes = 0
        self._frame: bytearray | None = None  # the buffer of an incomplete frame, with its length field
        self._filled = 0
        self._held_buffer: bytearray | None = None  # the buffer of the request that is processed in steps
        self._stash: memoryview | None = None  # complete and incomplete frames that wait; never in the shared buffer
        self._paused = False
        self._resuming = False  # `_resume` is scheduled for a later turn of the loop
        self._draining = False  # no further request is started
        # Whether the client has shut its sending side. The connection is then closed after the last response.
        self._input_ended = False
        self._mute_timer: TimerHandle | None = None  # while set, the client is throttled by a quota
        self._halted = False  # draining or muted
        self._waiting: deque[Slot] = deque()
        self._combined: list[Piece] | None = None  # while set, responses are collected here and sent with one write
        # The generation of the quotas, the client id, and whether this client has a quota.
        self._cached_quota: tuple[int, str, bool] | None = None
        self._prefix_end = 0  # end of the prefix of this client's produce requests; see `ProduceTemplates`
        self._client_id_raw = b""
        self._client_id: str | None = None

    # Callbacks of the stream

    def connected(self, stream: Stream) -> None:
        self._stream = stream
        client_host, _, client_port = stream.peer.rpartition(":")
        local_host, _, local_port = stream.local.rpartition(":")
        self.peer = Peer(client_host, int(client_port), local_host, int(local_port), self._listener.name)
        self.open = True
        self._last_active = self._monotonic()
        self._listener.opened(self)

    def get_buffer(self) -> memoryview:
        frame = self._frame
        if frame is None:
            return self._listener.buffer
        if self._filled < len(frame):
            return memoryview(frame)[self._filled :]
        # The buffer of this long frame is full. The next bytes arrive in the shared buffer; `received` appends them.
        return self._listener.buffer[: 4 + _SIZE.unpack_from(frame)[0] - len(frame)]

    def received(self, count: int) -> None:
        self._last_active = self._monotonic()
        frame = self._frame
        if frame is not None:
            if self._filled == len(frame):
                if not self._reserve(len(frame) + count):
                    return
                # grow in place: allocating and copying a new buffer would block the loop
                frame += self._listener.buffer[:count]
            self._filled += count
            if self._filled == len(frame):
                self._frame_full(frame)
            return
        self._handle_frames(self._listener.buffer, count, self._listener.pipelining.share)

    def drained(self) -> None:
        self._resume(self._listener.pipelining.share)

    def eof_received(self) -> bool:
        self._input_ended = True
        self._drop_frame()  # the rest of the frame will not arrive
        self._finish_if_answered()
        return True

    def closed(self, error: OSError | None) -> None:
        if self.open and not self.is_disconnected:
            self._disconnect()

    def close(self, reason: str) -> None:
        """Close the connection immediately, for example because the client has violated the protocol."""
        if not self.open:
            return
        logger.info("connection closed peer=%s reason=%s", self.peer.name, reason)
        self._stream.abort()
        self._draining = self._halted = True
        if self.is_disconnected:
            self._end_if_done()
        else:
            self._disconnect()

    def _disconnect(self) -> None:
        """Handle the disconnection of the client: finish requests with effects, and drop all other requests."""
        self.is_disconnected = True
        self._listener.client_disconnected(self)
        self._stream = DISCARDING_STREAM
        self._drop_frame()
        if self._mute_timer is not None:  # throttling a disconnected client would be useless
            self._mute_timer.cancel()
            self._mute_timer = None
            self._halted = self._draining
        waiting, self._waiting = self._waiting, deque()
        for slot in waiting:
            if slot.abandon():
                self._waiting.append(slot)
        if self._stash is not None and not self._must_wait():
            self.resume_soon()
        self._end_if_done()

    def _finish_if_answered(self) -> None:
        """Close the connection if no further request will be handled and every response was sent."""
        if not self._waiting and (self._draining or (self._input_ended and self._stash is None)):
            self._draining = self._halted = True
            self._stream.finish()

    def _end_if_done(self) -> None:
        if self.is_disconnected and self.open and not self._waiting and (self._stash is None or self._draining):
            self.open = False
            self._stash = None
            self._listener.ended(self)

    def silent_s(self, now_s: float) -> float:
        """Return the number of seconds since the client last sent or read bytes, or was answered.

        The result is 0 while the client waits for a response (a long poll, a join), unless it has shut its sending
        side and so may have disconnected. `silent_s` must be called regularly, since only these calls notice that the
        client reads.
        """
        if self._waiting and not self._input_ended:
            return 0
        if self._stream.backlog_bytes != self._last_backlog_bytes:
            self._last_backlog_bytes = self._stream.backlog_bytes
            self._last_active = now_s
        return now_s - self._last_active

    def drain(self) -> None:
        """Start no further requests. Close the connection when all responses were sent."""
        if self.open and not self._draining:
            self._draining = self._halted = True
            self._pause()
            self._finish_if_answered()
            self._end_if_done()

    def mute(self, delay_s: float, on_end: Callable[[], object] | None = None) -> None:
        """Stop reading and handling requests for `delay_s` seconds. Then call `on_end`; if it is None, continue."""
        if not self.open or self.is_disconnected:
            return
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        self._halted = True
        self._pause()
        self._mute_timer = self.services.runtime.tasks.call_later(delay_s, on_end or self._unmute)

    def _unmute(self) -> None:
        self._mute_timer = None
        self._halted = self._draining
        self._resume(self._listener.pipelining.share)

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._stream.pause_reading()

    # Frames

    def _handle_frames(self, view: memoryview, end: int, frames_max: int) -> None:
        """Handle at most `frames_max` frames of `view[:end]`. Store incomplete frames, and frames that must wait."""
        position = 0
        handled = 0
        while self.open:
            bytes_left = end - position
            if not bytes_left:
                break
            if handled >= frames_max or (
                (self._waiting or self._halted or self._stream.backlog_bytes) and self._must_wait()
            ):
                self._stash_frames(view[position:end], handled >= frames_max)
                break
            if bytes_left < 4:
                self._begin_frame(view[position:end], 4)
                break
            (size,) = _SIZE.unpack_from(view, position)
            if size < HEADER_BYTES or size > self._listener.request_bytes_max:
                self._refuse_size(size, view[position : position + 4])
                break
            if bytes_left - 4 < size:
                self._begin_frame(view[position:end], size + 4)
                break
            if self._waiting and view[position + 4 : position + 6] != _PRODUCE_KEY_BYTES:
                # Perhaps batches of earlier produce requests are not appended yet. This request must come after them.
                self._stash_frames(view[position:end], continue_soon=False)
                break
            if self._combined is None and handled == 0 and bytes_left >= COMBINE_REQUESTS * (size + 4):
                self._combined = []
            self._handle(view[position + 4 : position + 4 + size])
            position += 4 + size
            handled += 1
        if self._combined is not None:
            pieces, self._combined = self._combined, None
            if pieces and self.open:
                self._stream.write(pieces)
        if handled > 1:
            self._listener.pipelining.count_handled(handled)

    def _begin_frame(self, part: memoryview, size: int) -> None:
        """Collect a frame that begins with `part`. `size` is the size of the whole frame with its length field, or 4
        while the length field itself is incomplete.
        """
        if self.is_disconnected or self._input_ended:  # the rest of the frame will not arrive
            return
        # The buffer of a long frame grows as the bytes arrive, so a large number in the length field takes no memory.
        first_bytes = min(size, max(self._listener.frame_step_bytes, len(part) + 1))
        if not self._reserve(first_bytes):
            return
        # A bytearray with views cannot grow. A reused buffer may still have views, so a buffer that must grow is new.
        frame = self._listener.frame_buffer(size) if first_bytes == size else bytearray(first_bytes)
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
        self._handle_frames(memoryview(frame), size + 4, 1)
        if self._held_buffer is not frame and (self._stash is None or self._stash.obj is not frame):
            self._listener.recycle(frame)

    def _drop_frame(self) -> None:
        if self._frame is not None:
            self._frame = None
            self._release()

    def _reserve(self, size: int) -> bool:
        """Tell the listener how many bytes unhandled requests use. Returns False if the connection had to be closed."""
        return self._listener.reserve(self, size if self._held_buffer is None else size + len(self._held_buffer))

    def _release(self) -> None:
        self._listener.release(self)
        if self._held_buffer is not None:
            self._listener.reserve(self, len(self._held_buffer))

    def _hold_buffer(self, buffer: bytearray) -> None:
        """Keep `buffer` unchanged until its request, which is processed in steps, has ended."""
        self._held_buffer = buffer
        self._listener.hold(buffer)
        self._reserve(0)

    def release_buffer(self) -> None:
        self._held_buffer = None
        if self.open:
            self._listener.release(self)
            unhandled = self._frame if self._stash is None else self._stash
            if unhandled is not None:
                self._reserve(len(unhandled))

    def _refuse_size(self, size: int, start: memoryview) -> None:
        sizes = f"{HEADER_BYTES}..{self._listener.request_bytes_max} (socket.request.max.bytes)"
        self.close(f"the size of a frame, {size} bytes, is outside {sizes}{other_protocol_hint(start)}")

    def _must_wait(self) -> bool:
        waiting = self._waiting
        if waiting and (not waiting[-1].pipelined or len(waiting) >= PIPELINED_MAX):
            return True
        return self._stream.backlog_bytes > BACKLOG_BYTES_MAX or self._halted

    def _stash_frames(self, frames: memoryview, continue_soon: bool) -> None:
        if not self._reserve(len(frames)):
            return
        buffer = frames.obj
        assert isinstance(buffer, bytearray)
        if buffer is self._listener.buffer.obj or len(buffer) > 2 * len(frames):
            # Copy rarely: frames in a private buffer are copied only after half of the buffer was processed.
            frames = memoryview(bytearray(frames))  # writable like every frame, since offsets are written into batches
        self._stash = frames
        self._pause()
        if continue_soon and not self._resuming:
            self._resuming = True
            self._listener.pipelining.add(self)

    def resume_soon(self) -> None:
        if not self._resuming:
            self._resuming = True
            self.services.runtime.tasks.call_soon(self._resume_now)

    def _resume_now(self) -> None:
        self.resume_in_turn(self._listener.pipelining.share)

    def resume_in_turn(self, requests_max: int) -> None:
        """Handle at most `requests_max` waiting requests; `Pipelining` calls this in a later turn of the loop."""
        self._resuming = False
        self._resume(requests_max)

    def _resume(self, requests_max: int) -> None:
        """Handle at most `requests_max` of the frames in the stash, unless they must still wait."""
        if not self.open or self._must_wait():
            return
        stash = self._stash
        if stash is not None:
            self._stash = None
            self._release()
            self._handle_frames(stash, len(stash), requests_max)
        if self.open and self._stash is None and self._paused:
            self._paused = False
            self._stream.resume_reading()
        if self._input_ended and self.open:
            self._finish_if_answered()
        self._end_if_done()

    # Requests

    def _handle(self, frame: memoryview) -> None:
        api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
        route = routes.get(api_key << 16 | version)
        if route is None:
            try:
                route = find_route(api_key, version)
            except ApiError:
                if api_key == API_VERSIONS_KEY:
                    version = -1  # makes the handler return the supported versions
                    route = find_route(API_VERSIONS_KEY, 0)
                elif (route := self._listener.broker_route(api_key, version)) is None:
                    self.close(f"API key {api_key} version {version} is not served")
                    return
        if self._prefix_end and api_key == PRODUCE_KEY and self._handle_by_template(route, frame, correlation_id):
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
            if self.is_disconnected and not route.has_effects:
                return
            context = RequestContext(api_key, version, correlation_id, client_id, self.peer)
            if self.services.quotas.active and self.peer.broker is None and self._has_quota(client_id or ""):
                size = len(frame) - position - route.flexible_request
                context.meter = Meter(self.services.quotas, self._monotonic, api_key, version, client_id, size)
            if version < 0:
                request: Any = None
            elif len(frame) > WIDE_REQUEST_BYTES and (api_key != PRODUCE_KEY or len(frame) > WIDE_PRODUCE_BYTES):
                self._begin_wide(route, context, frame, position)
                return
            else:
                if route.flexible_request:
                    position = skip_tagged_fields(frame, position + 1, frame[position])
                request, _ = route.decode(frame, position)
                if route.produce_templates is not None:
                    self._prefix_end = route.produce_templates.learn(frame, request)
        except (MalformedMessage, UnicodeDecodeError, IndexError) as error:
            self.close(f"{route.name} v{version}: {error}")
            return
        if context.meter is not None:
            self._handle_metered(route, context, request, context.meter)
        else:
            self._handle_request(route, context, request)

    def _has_quota(self, client_id: str) -> bool:
        quotas = self.services.quotas
        cached = self._cached_quota
        if cached is None or cached[0] != quotas.generation or cached[1] != client_id:
            cached = self._cached_quota = (quotas.generation, client_id, quotas.has_quota(ANONYMOUS, client_id))
        return cached[2]

    def _handle_by_template(self, route: Route, frame: memoryview, correlation_id: int) -> bool:
        """Handle a produce request by the template of its prefix. Do nothing and return False if this is impossible."""
        templates = route.produce_templates
        if templates is None or self.services.quotas.active or len(frame) > WIDE_PRODUCE_BYTES:
            return False
        answer = templates.handle(self.services, frame, self._prefix_end, self.peer)
        if answer is None:
            return False
        response: Any = answer
        if type(answer) is bytes:
            if not self._waiting:
                self._send(route, correlation_id, None, [answer])
                return True
            response = Encoded([answer])
        self._wait_for(response, route, RequestContext(PRODUCE_KEY, route.version, correlation_id, None, self.peer))
        return True

    def _handle_request(self, route: Route, context: RequestContext, request: Any) -> None:
        try:
            response = route.handle(self.services, context, request)
            if type(response) is route.response:
                if self._waiting:
                    slot = Slot(self, route, context)
                    self._waiting.append(slot)
                    slot.answer(response)
                else:
                    self._send(route, context.correlation_id, response)
                return
        except Exception as error:
            response = failure_response(route, context, error)
        if response is not None or self._waiting:
            self._wait_for(response, route, context)

    def _wait_for(self, outcome: Any, route: Route, context: RequestContext) -> None:
        """Process the outcome of a handler. Its response is sent after the responses to earlier requests."""
        slot = Slot(self, route, context)
        self._waiting.append(slot)
        slot.process(outcome)

    def _handle_metered(self, route: Route, context: RequestContext, request: Any, meter: Meter) -> None:
        """Call a handler for a client that has a quota, and measure the time that the handler takes."""
        meter.start()
        try:
            response = route.handle(self.services, context, request)
        except Exception as error:
            response = failure_response(route, context, error)
        meter.stop()
        if not self._waiting:
            if type(response) is route.response:
                meter.record_usage(response)
                meter.start()
                self._send(route, context.correlation_id, response)
                self._throttle(meter)
                return
            if response is NO_RESPONSE:
                meter.record_usage(response)
                self._throttle(meter)
                return
        self._wait_for(response, route, context)

    def _begin_wide(self, route: Route, context: RequestContext, frame: memoryview, position: int) -> None:
        """Decode, handle and encode a request in steps. Most requests end within the first turn, inside this call."""
        if len(frame) > OTHER_REQUEST_BYTES_MAX and route.api_key != PRODUCE_KEY:
            self.close(f"{route.name} request of {len(frame)} bytes: only produce may exceed {OTHER_REQUEST_BYTES_MAX}")
            return
        slot = Slot(self, route, context)
        slot.pipelined = False  # the next request waits until this request is answered
        self._waiting.append(slot)
        steps = handle_in_steps(self.services, route, context, frame, position, lambda: not self.is_disconnected)
        if slot.begin(steps, weight=len(frame)) and self.open:
            buffer = frame.obj
            assert isinstance(buffer, bytearray)
            slot.holds_buffer = True
            self._hold_buffer(buffer)

    # Responses

    def slot_answered(self, slot: Slot) -> None:
        """Do nothing if an earlier request is not answered yet. Otherwise send the response of `slot` and the responses
        of the answered slots directly after it. Then continue with waiting frames.
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
            # This handles waiting frames, resumes reading, or closes the connection after the end of the input.
            self.resume_soon()
        if self.is_disconnected:
            self._end_if_done()

    def _throttle(self, meter: Meter) -> None:
        """After a response, throttle the client if it now exceeds a quota (KIP-219)."""
        meter.record_encoding()
        if meter.throttle_ms:
            self.mute(meter.throttle_ms / 1000)

    def _send(self, route: Route, correlation_id: int, response: Any, pieces: list[Any] | None = None) -> None:
        if pieces is None:
            try:
                pieces = route.encode(response)
            except Exception:
                # This failure must not reach the caller, which may be the handler of another request.
                self.close(log_encoding_failure(route))
                return
        size = 4 + len(pieces[0])
        if len(pieces) > 1:
            for piece in pieces[1:]:
                size += piece.size if type(piece) is FileRegion else len(piece)
        if route.flexible_response:
            head = _FLEXIBLE_RESPONSE.pack(size + 1, correlation_id)
        else:
            head = _RESPONSE.pack(size, correlation_id)
        pieces[0] = head + pieces[0]
        if self._combined is None:
            self._stream.write(pieces)
        else:
            self._combined += pieces
