"""One TCP connection on the event loop.

Reading: one recv for each readiness event, directly into the receiver's buffer.

Writing: as many bytes as the socket accepts are sent immediately. Small pieces are joined into one send. Large file
regions are sent by sendfile. The bytes before a region are sent with MSG_MORE, so that they do not become a packet of
their own. Bytes that the socket does not accept wait in the backlog until the socket is writable. While a long response
is sent, control returns to the event loop after each `TURN_BYTES_MAX`.
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
"""Upper bound on the bytes that one readiness event reads from a connection."""

TURN_BYTES_MAX = 2 << 20
"""Upper bound on the bytes that one connection sends in one turn of the event loop. Further bytes are sent in the
next turns."""

JOIN_BYTES_MAX = 16 * 1024
"""Pieces of at most this total size are joined, since one send() of a copy is cheaper than sendmsg()."""

READ_BYTES_MAX = 64 * 1024
"""If some pieces are file regions, and all pieces together have at most this size, the regions are read and all pieces
are joined. sendfile() is faster only for more than about 100 KB."""

GATHER_MAX = 64
"""Upper bound on the buffers in one sendmsg(). The kernel accepts up to IOV_MAX = 1,024."""

COPY_BYTES = 256 * 1024
"""File regions that sendfile() cannot send are read in parts of this size."""

LINGER_SECONDS = 1.0
"""Maximum time that a finished connection waits until the peer closes it. If it were reset at once, the peer could lose
the last response."""

LINGER_BYTES_MAX = 4 << 20
"""Upper bound on the bytes that a finished connection reads and discards during LINGER_SECONDS."""

STALL_SECONDS = 10.0
"""A finished connection is aborted if its backlog does not become smaller within this time."""

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
"""Errors of sendfile() on file systems that do not support it. In this case the region is read and copied."""

_BacklogItem: TypeAlias = bytes | bytearray | memoryview | tuple[File, int, int, bool]
"""Bytes, or a region of a file: file, position, size, and whether `File.hold` was called."""


def _close_at_end_of_input() -> bool:
    """Return False, so that the connection is closed. Used for receivers that have no `eof_received`."""
    return False


class _State(enum.Enum):
    OPEN = enum.auto()
    FINISHING = enum.auto()
    """The backlog is being sent; nothing is read."""
    LINGERING = enum.auto()
    """The sending side is shut. Incoming bytes are discarded until the peer closes."""
    CLOSED = enum.auto()


class SocketStream:
    """A `Stream` over one connected non-blocking socket."""

    __slots__ = (
        "_backlog",
        "_descriptor",
        "_eof_received",
        "_get_buffer",
        "_input_ended",
        "_loop",
        "_must_queue",
        "_network",
        "_paused",
        "_reader_registered",
        "_received",
        "_receiver",
        "_recv_into",
        "_send",
        "_sending_ended",
        "_socket",
        "_state",
        "_timer",
        "_writer_registered",
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
        self._must_queue = False  # whether write() must not send at once: a backlog exists, or sending has ended
        self._paused = False
        self._reader_registered = False
        self._input_ended = False  # whether the peer has shut its sending side or closed the connection
        self._sending_ended = False  # whether `write_eof` was called
        self._writer_registered = False
        self._backlog: deque[_BacklogItem] = deque()
        self._timer: TimerHandle | None = None
        self._receiver: Receiver | None = None

    def start(self, receiver: Receiver) -> None:
        """Set the receiver and begin to read. Raises the exceptions of `receiver.connected`."""
        self._receiver = receiver
        self._get_buffer = receiver.get_buffer
        self._received = receiver.received
        self._eof_received: Callable[[], bool] = getattr(receiver, "eof_received", _close_at_end_of_input)
        receiver.connected(self)
        self._register_reader()

    # Writing

    def write(self, pieces: Sequence[Piece]) -> None:
        if not self._must_queue:
            data = pieces[0] if len(pieces) == 1 else None
            if data is None or data.__class__ is FileRegion:
                data = self._join_pieces(pieces)
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
            self._add_to_backlog(pieces)

    def write_eof(self) -> None:
        if self._state is _State.OPEN and not self._sending_ended:
            self._sending_ended = self._must_queue = True
            if not self._backlog:
                self._shut_sending()

    def _shut_sending(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._close(error)

    def _join_pieces(self, pieces: Sequence[Piece]) -> bytes | None:
        """Join small pieces, and read the file regions among them. Returns None if the pieces are too large, or if a
        file cannot be read or ends too early.
        """
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
            return None  # the same error occurs again, and is logged, when the region is sent
        return joined if len(joined) == size else None

    def _add_to_backlog(self, pieces: Sequence[Piece]) -> None:
        """Add `pieces` to the backlog. If the backlog was empty, send as many bytes as the socket accepts."""
        backlog = self._backlog
        had_backlog = bool(backlog)
        for piece in pieces:
            if isinstance(piece, FileRegion):
                size = piece.size
                if size:
                    backlog.append((piece.file, piece.position, size, False))
            else:
                size = len(piece)
                if size:
                    backlog.append(piece)
            self.backlog_bytes += size
        if not had_backlog:
            self._flush()
        # The caller may reuse its buffers after this call, so copy the buffers that remain in the backlog.
        for index in range(max(len(backlog) - len(pieces), 0), len(backlog)):
            item = backlog[index]
            if isinstance(item, bytearray) or (isinstance(item, memoryview) and not isinstance(item.obj, bytes)):
                backlog[index] = bytes(item)
            elif isinstance(item, tuple) and not item[3]:
                with suppress(OSError):  # the same error occurs again, and is logged, when the region is sent
                    item[0].hold()  # the segment may be deleted before the region is sent
                    backlog[index] = (*item[:3], True)
        if backlog:
            self._must_queue = True
            if not self._writer_registered:
                self._writer_registered = True
                self._loop.add_writer(self._descriptor, self._on_writable)

    def _on_writable(self) -> None:
        self._flush()
        if self._backlog or self._state is _State.CLOSED:
            return
        self._writer_registered = False
        self._loop.remove_writer(self._descriptor)
        if self._state is _State.FINISHING:
            self._linger()
            return
        if self._sending_ended:
            self._shut_sending()
            return
        self._must_queue = False
        assert self._receiver is not None
        try:
            self._receiver.drained()
        except Exception:
            self._receiver_failed()

    def _flush(self) -> None:
        """Send as many bytes as the socket accepts, up to the limit of a turn. Closes the stream after an error."""
        budget = TURN_BYTES_MAX
        try:
            while self._backlog and budget > 0:
                head = self._backlog[0]
                offered, sent = (
                    self._send_region(*head[:3], budget) if isinstance(head, tuple) else self._send_buffers()
                )
                self._remove_sent(sent)
                if sent < offered:
                    return
                budget -= sent
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)

    def _send_buffers(self) -> tuple[int, int]:
        """Send the buffers before the next file region, at most GATHER_MAX of them, in one system call. Returns the
        number of bytes that were offered to the socket, and the number of bytes that the socket accepted.
        """
        buffers: list[bytes | bytearray | memoryview] = []
        total = flags = 0
        for item in self._backlog:
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
        """Send one part of a file region. Returns the same two numbers as `_send_buffers`."""
        offered = min(size, budget)
        try:
            if isinstance(file, LocalFile):
                try:
                    sent = file.send_to(self._descriptor, position, offered)
                except OSError as error:
                    if error.errno not in _CANNOT_SENDFILE:
                        raise
                    offered, sent = self._send_copy(file, position, offered)
            else:
                offered, sent = self._send_copy(file, position, offered)
        except OSError as error:
            if error.errno not in _CONNECTION_ERRORS and error.errno != errno.EAGAIN:
                log.error(
                    "cannot send from file path=%s position=%d size=%d error=%s", file.path, position, size, error
                )
            raise
        if not sent:
            log.error("file ends before the region to send path=%s position=%d size=%d", file.path, position, size)
            raise OSError(errno.EIO, "the file ends early", file.path)
        return offered, sent

    def _send_copy(self, file: File, position: int, size: int) -> tuple[int, int]:
        data = file.pread(min(size, COPY_BYTES), position)
        return len(data), self._send(data) if data else 0

    def _remove_sent(self, count: int) -> None:
        backlog = self._backlog
        self.backlog_bytes -= count
        while count:
            head = backlog[0]
            if isinstance(head, tuple):
                file, position, size, is_held = head
                if count < size:
                    backlog[0] = (file, position + count, size - count, is_held)
                    return
                if is_held:
                    file.release()
            else:
                size = len(head)
                if count < size:
                    backlog[0] = memoryview(head)[count:]
                    return
            backlog.popleft()
            count -= size

    # Reading

    def pause_reading(self) -> None:
        # The reader is not unregistered. Most pauses end before more bytes arrive, so this saves two epoll_ctl calls.
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._register_reader()

    def _register_reader(self) -> None:
        if not self._reader_registered and not self._input_ended and self._state is _State.OPEN:
            self._reader_registered = True
            self._loop.add_reader(self._descriptor, self._on_readable)

    def _unregister_reader(self) -> None:
        if self._reader_registered:
            self._reader_registered = False
            self._loop.remove_reader(self._descriptor)

    def _on_readable(self) -> None:
        if self._paused:
            self._check_end_while_paused()
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

    def _check_end_while_paused(self) -> None:
        """If the peer has ended the input and no bytes are unread, report the end to the receiver. If bytes have
        arrived, ignore further events until reading is resumed.
        """
        try:
            has_ended = not self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        if has_ended:
            self._end_of_input()
        else:
            self._unregister_reader()

    def _end_of_input(self) -> None:
        """Close the stream, unless the receiver still has bytes to send.

        The peer has shut its sending side or has closed the connection. TCP does not distinguish these two cases.
        """
        self._input_ended = True
        self._unregister_reader()  # otherwise the loop would report the end of the input again and again
        try:
            remains_open = self._eof_received()
        except Exception:
            self._receiver_failed()
            return
        if not remains_open:
            self._close(None)
        elif self._state is not _State.CLOSED:
            self._network.resets.watch(self._descriptor, self._on_reset)

    def _on_reset(self) -> None:
        self._close(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    # The end

    def finish(self) -> None:
        if self._state is not _State.OPEN:
            return
        self._state = _State.FINISHING
        self._must_queue = True
        self._unregister_reader()
        if self._backlog:
            self._timer = self._loop.call_later(STALL_SECONDS, self._check_progress, self.backlog_bytes)
        else:
            self._linger()

    def _check_progress(self, backlog_bytes: int) -> None:
        if self.backlog_bytes >= backlog_bytes:
            self.abort()
        else:
            self._timer = self._loop.call_later(STALL_SECONDS, self._check_progress, self.backlog_bytes)

    def _linger(self) -> None:
        # If a socket with unread bytes is closed, the kernel sends a reset, and a peer that has not yet read the last
        # response may lose it. So first shut only the sending side, and discard incoming bytes.
        self._state = _State.LINGERING
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(None)
            return
        if self._input_ended:  # no further bytes can arrive
            self._close(None)
            return
        self._timer = self._loop.call_later(LINGER_SECONDS, self._close, None)
        self._reader_registered = True
        self._loop.add_reader(self._descriptor, self._discard, [LINGER_BYTES_MAX])

    def _discard(self, remaining: list[int]) -> None:
        """Discard incoming bytes. The only element of `remaining`, which all calls share, is the number of bytes that
        may still be discarded.
        """
        try:
            data = self._socket.recv(65_536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        remaining[0] -= len(data)
        if not data or remaining[0] < 0:
            self._close(None)

    def abort(self) -> None:
        if self._backlog:
            try:
                # The backlog is dropped, so the kernel should also drop the bytes that it has buffered for a peer
                # that does not read.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            except OSError:
                log.debug("the connection has ended already peer=%s", self.peer)
        self._close(None)

    def drop_in_forked_child(self) -> None:
        """Close only the child's copy of the socket. The connection and its loop belong to the parent."""
        self._socket.close()

    def _receiver_failed(self) -> None:
        log.exception("a receiver failed, its connection is closed peer=%s", self.peer)
        self._close(ConnectionAbortedError(errno.ECONNABORTED, "the receiver failed"))

    def _close(self, error: OSError | None) -> None:
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        self._must_queue = True
        self._unregister_reader()
        if self._writer_registered:
            self._writer_registered = False
            self._loop.remove_writer(self._descriptor)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for item in self._backlog:
            if isinstance(item, tuple) and item[3]:
                item[0].release()
        self._backlog.clear()
        self.backlog_bytes = 0
        if self._input_ended:
            self._network.resets.forget(self._descriptor)
        self._socket.close()
        self._network.forget(self)
        self._loop.call_soon(self._report_closed, error)

    def _report_closed(self, error: OSError | None) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        del self._get_buffer, self._received, self._eof_received  # these bound methods reference the receiver
        try:
            receiver.closed(error)
        except Exception:
            log.exception("a receiver failed when its connection ended peer=%s", self.peer)
