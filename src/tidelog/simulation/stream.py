"""One side of a simulated connection."""

import enum
import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tidelog.runtime.interfaces import File, FileRegion, Piece, Receiver
from tidelog.simulation.tasks import ProcessGone

if TYPE_CHECKING:
    from tidelog.simulation.network import HostNetwork, SimNetwork

log = logging.getLogger("tidelog.network")

COPY_BYTES = 65_536
"""When a file region reaches the front of the backlog, it is read in parts of at most this size."""

LINGER_S = 1.0
"""Longest time, in seconds, that a finished stream waits for the peer's END."""
PROBE_S = 1.0
"""Time between two probes of a host without power, in seconds."""
PROBES_MAX = 120
"""If a host has no power, a connection to it times out after this number of probes."""

_BacklogItem: TypeAlias = bytes | tuple[File, int, int]


class Signal(enum.Enum):
    """A signal on the connection. It arrives in order with the bytes."""

    END = "end"
    RESET = "reset"


class State(enum.Enum):
    OPEN = enum.auto()
    FINISHING = enum.auto()  # `finish` was called, and the backlog is still being sent
    LINGERING = enum.auto()  # END was sent, and the peer's END is awaited
    CLOSED = enum.auto()


class SimStream:
    """One side of a `Stream` between two simulated processes. Written bytes are sent as long as the peer's window has
    space for them. Further bytes wait in the backlog.
    """

    def __init__(self, network: "SimNetwork", process: "HostNetwork", remote_host: str, local: str, peer: str) -> None:
        self.local = local
        self.peer = peer
        self.remote_host = remote_host
        self.backlog_bytes = 0
        self.link = (process.host, remote_host)
        """The source and the target of the bytes that this side sends."""
        self._sent_name = f"{local}>{peer}"
        self._received_name = f"{local}<{peer}"
        self._network = network
        self._process = process
        self._other: SimStream
        self._receiver: Receiver | None = None
        self._state = State.OPEN
        self._backlog: deque[_BacklogItem] = deque()
        self._unread_bytes = 0  # sent bytes that the peer has not acknowledged as read
        self._acknowledgements: deque[tuple[float, int]] = deque()
        """Numbers of bytes that the peer has read, with the times at which its acknowledgements arrive here, in
        order."""
        self._acknowledgement_due = False  # whether an event that processes acknowledgements is scheduled
        self._stalled = False
        self._on_wire: deque[tuple[float, bytes | Signal]] = deque()  # items with their times of arrival
        self._last_arrival = 0.0
        self._probing = False  # whether this side waits for a host without power
        self._probes = 0
        self._process_ended = False  # this side's process has ended
        self._arrived: deque[bytes | Signal] = deque()
        self._delivery_due = False
        self._paused = False
        self._input_ended = False  # the peer's END was delivered
        self._sending_ended = False  # `write_eof` was called, so nothing more is written
        self._end_sent = False

    def join(self, other: "SimStream") -> None:
        self._other = other
        self._process.streams[self] = None

    def start(self, receiver: Callable[[], Receiver]) -> None:
        """Create the receiver and report the connection to it. A failure of the receiver ends the connection."""
        self._call_receiver(lambda: self._connected(receiver()))

    # Stream

    def write(self, pieces: Sequence[Piece]) -> None:
        if self._state is not State.OPEN or self._sending_ended:
            return
        backlog = self._backlog
        for piece in pieces:
            if isinstance(piece, FileRegion):
                if piece.size:
                    piece.file.hold()
                    backlog.append((piece.file, piece.position, piece.size))
                    self.backlog_bytes += piece.size
            elif piece:
                backlog.append(bytes(piece))
                self.backlog_bytes += len(piece)
        self._push()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._deliver_soon()

    def write_eof(self) -> None:
        if self._state is State.OPEN and not self._sending_ended:
            self._sending_ended = True
            if not self._backlog:
                self._send_end()

    def finish(self) -> None:
        if self._state is not State.OPEN:
            return
        self._state = State.FINISHING
        if not self._backlog:
            self._linger()

    def abort(self) -> None:
        if self._state is not State.CLOSED:
            if self._backlog:
                self._send(Signal.RESET)
            else:
                self._send_end()
            self._close(None)

    # For the network

    def vanish(self, *, notify_peers: bool) -> None:
        """End this side, since its process has ended. With `notify_peers`, the kernel sends RESET to the peer if unread
        bytes have arrived here, otherwise END. Without `notify_peers`, the peer receives nothing.
        """
        unread = any(isinstance(item, bytes) for item in self._arrived)
        self._process_ended = True
        self._state = State.CLOSED
        self._receiver = None
        self._drop_backlog()
        if not notify_peers:
            self._on_wire.clear()
        elif unread:
            self._send(Signal.RESET)
        else:
            self._send_end()

    def break_both(self, event: str) -> None:
        """Reset the connection, and note `event` in the trace. Both sides are notified."""
        self._network.trace.note(self._process.host, event, self._sent_name)
        for side in (self, self._other):
            side._on_wire.clear()
            side._close(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def stall(self) -> None:
        """Stop the delivery of bytes and signals in both directions, until `break_both` resets the connection."""
        self._network.trace.note(self._process.host, "net.stall", self._sent_name)
        self._stalled = self._other._stalled = True

    def resend_delayed(self) -> None:
        """Send the delayed items again, because the link works again."""
        delayed, self._on_wire = self._on_wire, deque()
        self._last_arrival = 0.0
        for _, item in delayed:
            self._transmit(item)

    # Sending

    def _push(self) -> None:
        """Send the part of the backlog for which the window has space."""
        if self._acknowledgements:
            self._process_acknowledgements()
        backlog = self._backlog
        had_backlog = bool(backlog)
        window = self._network.conditions.window_bytes
        while backlog and self._unread_bytes < window:
            try:
                data = self._next_data(window - self._unread_bytes)
            except OSError as error:
                log.error("cannot send from file error=%s", error)
                self._send(Signal.RESET)
                self._close(error)
                return
            self.backlog_bytes -= len(data)
            self._unread_bytes += len(data)
            self._send(data)
        if backlog:
            self._await_acknowledgement()
        elif had_backlog:
            if self._state is State.FINISHING:
                self._linger()
            elif self._sending_ended:
                self._send_end()

    def _drop_backlog(self) -> None:
        for item in self._backlog:
            if not isinstance(item, bytes):
                item[0].release()
        self._backlog.clear()

    def _next_data(self, bytes_max: int) -> bytes:
        """Remove up to `bytes_max` bytes from the front of the backlog, and return them."""
        head = self._backlog[0]
        if isinstance(head, bytes):
            if len(head) <= bytes_max:
                return self._backlog.popleft()  # type: ignore[return-value]
            data = head[:bytes_max]
            remainder: _BacklogItem = head[bytes_max:]
            remaining_bytes = len(remainder)
        else:
            file, position, size = head
            data = file.pread(min(size, bytes_max, COPY_BYTES), position)
            if not data:
                raise OSError(errno.EIO, "the file ends early", file.path)
            remaining_bytes = size - len(data)
            remainder = (file, position + len(data), remaining_bytes)
        if remaining_bytes:
            self._backlog[0] = remainder
        else:
            self._backlog.popleft()
            if not isinstance(head, bytes):
                head[0].release()
        return data

    def _send(self, item: bytes | Signal) -> None:
        if isinstance(item, bytes) and len(item) > 1:
            rng = self._network.rng
            if rng.random() < self._network.conditions.split_chance:
                cut = rng.randrange(1, len(item))
                self._transmit(item[:cut])
                self._transmit(item[cut:])
                return
        self._transmit(item)

    def _transmit(self, item: bytes | Signal) -> None:
        network = self._network
        if isinstance(item, bytes):
            network.trace.note_bytes(self._process.host, "net.send", self._sent_name, item)
        else:
            network.trace.note(self._process.host, f"net.send_{item.value}", self._sent_name)
        arrival = network.loop.time() + network.latency_s(self.link)
        if arrival > self._last_arrival:  # an item must not arrive before the items that were sent earlier
            self._last_arrival = arrival
        self._on_wire.append((self._last_arrival, item))
        network.loop.call_system_at(self._last_arrival, self._arrive)

    def _arrive(self) -> None:
        """Deliver the items whose time of arrival has come, unless the connection is stalled, the link is blocked or
        the other host is without power.
        """
        network, on_wire = self._network, self._on_wire
        now = network.loop.time()
        while on_wire and on_wire[0][0] <= now:
            if self._stalled:
                return
            if not network.passes(*self.link):
                network.wake_when_healed(self)
                return
            if not network.has_power(self.remote_host):
                if not self._probing:
                    self._probing = True
                    network.loop.call_system_later(PROBE_S, self._probe)
                return
            _, item = on_wire.popleft()
            if not self._other._process_ended:
                self._other._process_arrival(item)
            elif isinstance(item, bytes):
                # The peer's process has ended or was replaced, so the kernel there does not know this connection.
                self._reset_by_peer()

    def _probe(self) -> None:
        self._probing = False
        if self._state is State.CLOSED:
            return
        self._probes += 1
        if self._network.has_power(self.remote_host):
            self.resend_delayed()
        elif self._probes >= PROBES_MAX:
            self._on_wire.clear()
            self._close(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
        else:
            self._probing = True
            self._network.loop.call_system_later(PROBE_S, self._probe)

    def _reset_by_peer(self) -> None:
        self._on_wire.clear()
        self._close(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def _process_acknowledgements(self) -> None:
        now, acknowledgements = self._network.loop.time(), self._acknowledgements
        while acknowledgements and acknowledgements[0][0] <= now:
            self._unread_bytes -= acknowledgements.popleft()[1]

    def _acknowledged_later(self, count: int) -> None:
        """Add an acknowledgement of the peer. It arrives after the network's latency.

        An event that processes the acknowledgement is scheduled only if the backlog is not empty. Otherwise the next
        write processes the acknowledgement.
        """
        acknowledgements = self._acknowledgements
        arrival = self._network.loop.time() + self._network.latency_s(self._other.link)
        if acknowledgements and acknowledgements[-1][0] > arrival:
            arrival = acknowledgements[-1][0]
        acknowledgements.append((arrival, count))
        if self._backlog:
            self._await_acknowledgement()

    def _await_acknowledgement(self) -> None:
        if self._backlog and self._acknowledgements and not self._acknowledgement_due:
            self._acknowledgement_due = True
            self._network.loop.call_system_at(self._acknowledgements[0][0], self._acknowledgement_arrived)

    def _acknowledgement_arrived(self) -> None:
        self._acknowledgement_due = False
        if self._state in (State.OPEN, State.FINISHING) and self._backlog:
            self._push()
            if not self._backlog and self._state is State.OPEN and not self._sending_ended:
                self._process.run(self._report_drained)

    def _report_drained(self) -> None:
        if self._state is State.OPEN and not self._backlog:
            self._call_receiver(lambda: self._receiver.drained())  # type: ignore[union-attr]

    # Receiving

    def _process_arrival(self, item: bytes | Signal) -> None:
        if self._state is State.CLOSED:
            if isinstance(item, bytes):
                self._transmit(Signal.RESET)  # a closed socket answers bytes with a reset
            return
        if item is Signal.RESET:
            self._arrived.clear()
            self._reset_by_peer()
            return
        self._arrived.append(item)
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if self._delivery_due or not self._arrived or self._state is State.CLOSED:
            return
        self._delivery_due = True
        # Sometimes deliver slightly later, so that one read returns more bytes.
        loop, draw, context = self._network.loop, self._network.rng.random(), self._process.context
        if draw < 0.5:
            loop.call_soon(self._deliver, context=context)
        else:
            loop.call_later(0.0001 if draw < 0.75 else 0.001, self._deliver, context=context)

    def _deliver(self) -> None:
        """Deliver the arrived bytes in one read, or the end of the input."""
        self._delivery_due = False
        if self._state is State.CLOSED or not self._arrived:
            return
        if self._state in (State.FINISHING, State.LINGERING):
            self._discard()
            return
        if self._arrived[0] is Signal.END:
            self._network.trace.note(self._process.host, "net.end", self._received_name)
            self._arrived.popleft()
            self._input_ended = True
            self._call_receiver(self._end_of_input)
            return
        if not self._paused:
            self._call_receiver(self._deliver_bytes)
            self._deliver_soon()

    def _deliver_bytes(self) -> None:
        receiver, items = self._receiver, self._arrived
        assert receiver is not None
        data = items.popleft()
        assert isinstance(data, bytes)
        while items and isinstance(items[0], bytes):
            data += items.popleft()  # type: ignore[operator]
        buffer = receiver.get_buffer()
        count = len(data)
        if count > len(buffer):
            count = len(buffer)
            items.appendleft(data[count:])
            data = data[:count]
        buffer[:count] = data
        self._network.trace.note_bytes(self._process.host, "net.receive", self._received_name, data)
        self._acknowledge(count)
        receiver.received(count)

    def _end_of_input(self) -> None:
        """Report the end of the input to the receiver. Close the stream, unless the receiver still has something to
        send.
        """
        eof_received = getattr(self._receiver, "eof_received", None)
        if eof_received is None or not eof_received():
            self._send_end()
            self._close(None)

    def _send_end(self) -> None:
        """Send END, unless it was sent before."""
        if not self._end_sent:
            self._end_sent = True
            self._send(Signal.END)

    def _discard(self) -> None:
        while self._arrived:
            item = self._arrived.popleft()
            if isinstance(item, bytes):
                self._acknowledge(len(item))
            elif self._state is State.LINGERING:
                self._close(None)
            else:
                self._input_ended = True  # do not close yet: the backlog must be sent

    def _acknowledge(self, count: int) -> None:
        self._other._acknowledged_later(count)

    # The end

    def _linger(self) -> None:
        self._state = State.LINGERING
        self._send_end()
        if self._input_ended:  # no more bytes can arrive
            self._close(None)
            return
        self._network.loop.call_system_later(LINGER_S, self._close, None)
        self._deliver_soon()

    def _close(self, error: OSError | None) -> None:
        if self._state is State.CLOSED:
            return
        self._state = State.CLOSED
        self._drop_backlog()
        self.backlog_bytes = 0
        self._arrived.clear()
        self._process.streams.pop(self, None)
        self._network.loop.call_soon(self._report_closed, error, context=self._process.context)

    def _report_closed(self, error: OSError | None) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is None or not self._process.alive:
            return
        try:
            receiver.closed(error)
        except Exception:
            log.exception("a receiver failed when its connection ended peer=%s", self.peer)

    def _connected(self, receiver: Receiver) -> None:
        self._receiver = receiver
        receiver.connected(self)

    def _call_receiver(self, call: Callable[[], None]) -> None:
        """Call a method of the receiver. If it raises, only this connection ends."""
        try:
            call()
        except ProcessGone:
            return
        except Exception:
            log.exception("a receiver failed, its connection is closed peer=%s", self.peer)
            self._send(Signal.RESET)
            self._close(ConnectionAbortedError(errno.ECONNABORTED, "the receiver failed"))
