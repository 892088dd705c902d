"""One TCP connection on the loop.

Reading: one recv per readiness event, straight into the receiver's buffer. Writing: what fits goes at once, small
pieces in one send, file regions by sendfile behind their MSG_MORE header; the rest waits for the socket, and a long
answer yields the loop to others after `TURN_BYTES_MAX`.
"""

import enum
import errno
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from tidelog.runtime.disk import LocalFile
from tidelog.runtime.interfaces import File, FileRegion, Piece, Receiver, TimerHandle

if TYPE_CHECKING:
    from tidelog.runtime.network import SocketNetwork

log = logging.getLogger("tidelog.network")

RECEIVE_BYTES_MAX = 1 << 20
"""What one readiness event takes from a connection."""

TURN_BYTES_MAX = 2 << 20
"""What one connection may send in one turn of the loop; more goes in the next ones."""

JOIN_BYTES_MAX = 16 * 1024
"""Buffers that are smaller in sum are joined: one send() of a copy is cheaper than sendmsg()."""

READ_BYTES_MAX = 64 * 1024
"""Regions that are smaller are read and joined: with its neighbours' sends, sendfile() wins from about 100 KB on."""

GATHER_MAX = 64
"""Buffers of one sendmsg (the kernel takes up to IOV_MAX = 1,024)."""

COPY_BYTES = 256 * 1024
"""Regions that sendfile() cannot take are read in such parts."""

LINGER_SECONDS = 1.0
"""How long a finished connection waits for the other side to close, so that its last answer is not reset away."""

LINGER_BYTES_MAX = 4 << 20
"""What a finished connection takes and throws away in that time."""

STALL_SECONDS = 10.0
"""A finished connection whose backlog does not shrink for so long is aborted."""

_MORE = getattr(socket, "MSG_MORE", 0)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CONNECTION_ERRORS = (
    errno.EPIPE,
    errno.ECONNRESET,
    errno.ETIMEDOUT,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENOTCONN,
)

_CANNOT_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""What some file systems say; the region is read and copied then."""

_Waiting: TypeAlias = bytes | bytearray | memoryview | tuple[File, int, int, bool]
"""A region of a file: position, size, and whether it is held."""


def _closes() -> bool:
    """`eof_received` of a receiver that has none."""
    return False


class _State(enum.Enum):
    OPEN = enum.auto()
    FINISHING = enum.auto()
    """The backlog goes out, nothing is read."""
    LINGERING = enum.auto()
    """Our side is shut; what comes is thrown away until the other side closes."""
    CLOSED = enum.auto()


class SocketStream:
    """`Stream` over one connected non-blocking socket."""

    __slots__ = (
        "_descriptor",
        "_eof_received",
        "_get_buffer",
        "_held",
        "_input_ended",
        "_loop",
        "_network",
        "_paused",
        "_reading",
        "_received",
        "_receiver",
        "_recv_into",
        "_send",
        "_sending_ended",
        "_socket",
        "_state",
        "_timer",
        "_waiting",
        "_writing",
        "backlog_bytes",
        "local",
        "peer",
    )

    def __init__(self, network: "SocketNetwork", connection: socket.socket, peer: str, local: str) -> None:
        self.peer = peer
        self.local = local
        self.backlog_bytes = 0
        self._network = network
        self._loop = network.loop
        self._socket = connection
        self._descriptor = connection.fileno()
        self._send = connection.send
        self._recv_into = connection.recv_into
        self._state = _State.OPEN
        self._held = False  # write() may not send at once: something waits, or the stream is not open
        self._paused = False
        self._reading = False  # a reader is registered with the loop
        self._input_ended = False  # the other side has shut its sending side, or has closed
        self._sending_ended = False  # by `write_eof`
        self._writing = False
        self._waiting: deque[_Waiting] = deque()
        self._timer: TimerHandle | None = None
        self._receiver: Receiver | None = None

    def start(self, receiver: Receiver) -> None:
        """Give it its receiver and begin to read. Exceptions of `receiver.connected` pass."""
        self._receiver = receiver
        self._get_buffer = receiver.get_buffer
        self._received = receiver.received
        self._eof_received: Callable[[], bool] = getattr(receiver, "eof_received", _closes)
        receiver.connected(self)
        self._read_on()

    # Writing

    def write(self, pieces: Sequence[Piece]) -> None:
        if not self._held:
            data = pieces[0] if len(pieces) == 1 else None
            if data is None or data.__class__ is FileRegion:
                data = self._joined(pieces)
            if data is not None:
                try:
                    sent = self._send(data)  # type: ignore[arg-type]
                except (BlockingIOError, InterruptedError):
                    sent = 0
                except OSError as error:
                    self._close(error)
                    return
                if sent == len(data):  # type: ignore[arg-type]
                    return
                pieces = (memoryview(data)[sent:],)  # type: ignore[arg-type]
        if self._state is _State.OPEN and not self._sending_ended:
            self._append(pieces)

    def write_eof(self) -> None:
        if self._state is _State.OPEN and not self._sending_ended:
            self._sending_ended = self._held = True
            if not self._waiting:
                self._shut_sending()

    def _shut_sending(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._close(error)

    def _joined(self, pieces: Sequence[Piece]) -> bytes | None:
        """Small pieces as one, files read. None if they are large or cannot be read."""
        size = 0
        limit = JOIN_BYTES_MAX
        for piece in pieces:
            if isinstance(piece, FileRegion):
                size += piece.size
                limit = READ_BYTES_MAX
            else:
                size += len(piece)
        if size > limit:
            return None
        try:
            joined = b"".join(
                [
                    piece.file.pread(piece.size, piece.position) if isinstance(piece, FileRegion) else piece
                    for piece in pieces
                ]
            )
        except OSError:
            return None  # met again, and told, where regions are sent
        return joined if len(joined) == size else None

    def _append(self, pieces: Sequence[Piece]) -> None:
        waiting = self._waiting
        behind_others = bool(waiting)
        for piece in pieces:
            if isinstance(piece, FileRegion):
                size = piece.size
                if size:
                    waiting.append((piece.file, piece.position, size, False))
            else:
                size = len(piece)
                if size:
                    waiting.append(piece)
            self.backlog_bytes += size
        if not behind_others:
            self._flush()
        # What has to wait may lie in a buffer that the caller is about to use again.
        for index in range(max(len(waiting) - len(pieces), 0), len(waiting)):
            kept = waiting[index]
            if isinstance(kept, bytearray) or (isinstance(kept, memoryview) and not isinstance(kept.obj, bytes)):
                waiting[index] = bytes(kept)
            elif isinstance(kept, tuple) and not kept[3]:
                with suppress(OSError):  # met again, and told, where it is sent
                    kept[0].hold()  # the segment may be removed before its reader has it all
                    waiting[index] = (*kept[:3], True)
        if waiting:
            self._held = True
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._descriptor, self._on_writable)

    def _on_writable(self) -> None:
        self._flush()
        if self._waiting or self._state is _State.CLOSED:
            return
        self._writing = False
        self._loop.remove_writer(self._descriptor)
        if self._state is _State.FINISHING:
            self._linger()
            return
        if self._sending_ended:
            self._shut_sending()
            return
        self._held = False
        assert self._receiver is not None
        try:
            self._receiver.drained()
        except Exception:
            self._receiver_failed()

    def _flush(self) -> None:
        """Send what the socket takes, up to the budget of a turn. Closes the stream if it is broken."""
        budget = TURN_BYTES_MAX
        try:
            while self._waiting and budget > 0:
                head = self._waiting[0]
                wanted, sent = self._send_region(*head[:3], budget) if isinstance(head, tuple) else self._send_buffers()
                self._sent(sent)
                if sent < wanted:
                    return
                budget -= sent
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)

    def _send_buffers(self) -> tuple[int, int]:
        """One send of the buffers up to the next region: bytes offered, bytes taken."""
        buffers: list[bytes | bytearray | memoryview] = []
        total = flags = 0
        for item in self._waiting:
            if isinstance(item, tuple):
                flags = _MORE
                break
            if len(buffers) == GATHER_MAX:
                break
            buffers.append(item)
            total += len(item)
        if len(buffers) == 1:
            return total, self._send(buffers[0], flags)
        if total <= JOIN_BYTES_MAX:
            return total, self._send(b"".join(buffers), flags)
        return total, self._socket.sendmsg(buffers, (), flags)

    def _send_region(self, file: File, position: int, size: int, budget: int) -> tuple[int, int]:
        """One part of a file: bytes offered, bytes taken."""
        wanted = min(size, budget)
        try:
            if isinstance(file, LocalFile):
                try:
                    sent = file.send_to(self._descriptor, position, wanted)
                except OSError as error:
                    if error.errno not in _CANNOT_SENDFILE:
                        raise
                    wanted, sent = self._send_copy(file, position, wanted)
            else:
                wanted, sent = self._send_copy(file, position, wanted)
        except OSError as error:
            if error.errno not in _CONNECTION_ERRORS and error.errno != errno.EAGAIN:
                log.error(
                    "cannot send from file path=%s position=%d size=%d error=%s", file.path, position, size, error
                )
            raise
        if not sent:
            log.error("file ends before what was to be sent path=%s position=%d size=%d", file.path, position, size)
            raise OSError(errno.EIO, "the file ends early", file.path)
        return wanted, sent

    def _send_copy(self, file: File, position: int, size: int) -> tuple[int, int]:
        data = file.pread(min(size, COPY_BYTES), position)
        return len(data), self._send(data) if data else 0

    def _sent(self, count: int) -> None:
        waiting = self._waiting
        self.backlog_bytes -= count
        while count:
            head = waiting[0]
            if isinstance(head, tuple):
                file, position, size, held = head
                if count < size:
                    waiting[0] = (file, position + count, size - count, held)
                    return
                if held:
                    file.release()
            else:
                size = len(head)
                if count < size:
                    waiting[0] = memoryview(head)[count:]
                    return
            waiting.popleft()
            count -= size

    # Reading

    def pause_reading(self) -> None:
        # The reader stays with the loop: most pauses end before anything comes, and two epoll_ctl are saved.
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._read_on()

    def _read_on(self) -> None:
        if not self._reading and not self._input_ended and self._state is _State.OPEN:
            self._reading = True
            self._loop.add_reader(self._descriptor, self._on_readable)

    def _read_no_more(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def _on_readable(self) -> None:
        if self._paused:
            self._look_while_paused()
            return
        try:
            buffer = self._get_buffer()
            count = self._recv_into(buffer, min(len(buffer), RECEIVE_BYTES_MAX))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        except Exception:
            self._receiver_failed()
            return
        if not count:
            self._end_of_input()
            return
        try:
            self._received(count)
        except Exception:
            self._receiver_failed()

    def _look_while_paused(self) -> None:
        try:
            ended = not self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        if ended:
            self._end_of_input()
        else:
            self._read_no_more()

    def _end_of_input(self) -> None:
        """Close, unless the receiver has still something to send.

        The other side has shut its sending side or has closed the connection: TCP does not say which.
        """
        self._input_ended = True
        self._read_no_more()  # the loop would report the end of the input for ever
        try:
            is_kept = self._eof_received()
        except Exception:
            self._receiver_failed()
            return
        if not is_kept:
            self._close(None)
        elif self._state is not _State.CLOSED:
            self._network.resets.watch(self._descriptor, self._was_reset)

    def _was_reset(self) -> None:
        self._close(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    # The end

    def finish(self) -> None:
        if self._state is not _State.OPEN:
            return
        self._state = _State.FINISHING
        self._held = True
        self._read_no_more()
        if self._waiting:
            self._timer = self._loop.call_later(STALL_SECONDS, self._check_progress, self.backlog_bytes)
        else:
            self._linger()

    def _check_progress(self, backlog_bytes: int) -> None:
        if self.backlog_bytes >= backlog_bytes:
            self.abort()
        else:
            self._timer = self._loop.call_later(STALL_SECONDS, self._check_progress, self.backlog_bytes)

    def _linger(self) -> None:
        # Closing with unread bytes in the socket would send a reset, and that may destroy the last answer on its way.
        self._state = _State.LINGERING
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(None)
            return
        if self._input_ended:  # nothing more can come
            self._close(None)
            return
        self._timer = self._loop.call_later(LINGER_SECONDS, self._close, None)
        self._reading = True
        self._loop.add_reader(self._descriptor, self._discard, [LINGER_BYTES_MAX])

    def _discard(self, left: list[int]) -> None:
        try:
            data = self._socket.recv(65_536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        left[0] -= len(data)
        if not data or left[0] < 0:
            self._close(None)

    def abort(self) -> None:
        if self._waiting:
            try:
                # Lost is lost: the kernel need not go on offering its part to a peer that does not read.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            except OSError:
                log.debug("the connection is gone already peer=%s", self.peer)
        self._close(None)

    def drop_in_forked_child(self) -> None:
        """Close the child's copy. The connection lives on in the parent, and so do its loop and what it waits for."""
        self._socket.close()

    def _receiver_failed(self) -> None:
        log.exception("a receiver failed, its connection is closed peer=%s", self.peer)
        self._close(ConnectionAbortedError(errno.ECONNABORTED, "the receiver failed"))

    def _close(self, error: OSError | None) -> None:
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        self._held = True
        self._read_no_more()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._descriptor)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for item in self._waiting:
            if isinstance(item, tuple) and item[3]:
                item[0].release()
        self._waiting.clear()
        self.backlog_bytes = 0
        if self._input_ended:
            self._network.resets.forget(self._descriptor)
        self._socket.close()
        self._network.forget(self)
        self._loop.call_soon(self._tell_closed, error)

    def _tell_closed(self, error: OSError | None) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        del self._get_buffer, self._received, self._eof_received  # they hold the receiver
        try:
            receiver.closed(error)
        except Exception:
            log.exception("a receiver failed at its end peer=%s", self.peer)
