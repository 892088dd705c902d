"""TCP on non-blocking sockets: listen, accept and connect. `stream.py` handles the open connections.

asyncio's transports are not used. They take several microseconds per request, and would copy file regions, which
sendfile sends without a copy.
"""

import asyncio
import errno
import logging
import socket
import sys
from collections.abc import Callable
from typing import Self

from tidelog.model.addresses import host_port_text
from tidelog.runtime.forks import drop_when_forked
from tidelog.runtime.interfaces import Receiver, Tasks
from tidelog.runtime.resets import Resets
from tidelog.runtime.stream import SocketStream

log = logging.getLogger("tidelog.network")

ACCEPTS_PER_TURN = 16
"""Upper bound on the connections that one turn of the loop accepts, so that a burst of new connections does not
delay the requests of open connections."""

LISTEN_BACKLOG = 4096
RETRY_SECONDS = 0.5
"""Delay after a failed accept. The delay ends early when a connection of this process is closed, since this frees a
descriptor."""

PORT_ATTEMPTS = 16
"""Upper bound on the attempts to bind several addresses to one free port. The kernel chooses the port for the first
address."""

_CONNECTION_FAILED = (
    errno.ECONNABORTED,
    errno.EPROTO,
    errno.EPERM,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
)
"""Errors of accept() that do not concern the listener, but a connection that failed before it was accepted."""


class SocketListener:
    """One or several listening sockets with the same port. There are several if a name has several addresses."""

    def __init__(
        self,
        network: "SocketNetwork",
        host: str,
        port: int,
        sockets: list[socket.socket],
    ) -> None:
        self.host = host
        self.port = port
        self._network = network
        self._sockets = sockets
        self._receiver: Callable[[], Receiver] | None = None
        self._starved_since: float | None = None
        """Loop time of the first failed accept since the kernel's queue was last empty; None if no accept failed."""
        self._retry: asyncio.Handle | None = None
        self._paused = False

    def listen(self, receiver: Callable[[], Receiver]) -> Self:
        for listening in self._sockets:
            # Accepted connections inherit this option. Without it, a restarted broker could not bind this port while
            # closed connections are in the state TIME_WAIT.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.listen(LISTEN_BACKLOG)
        self._receiver = receiver
        self._start()
        return self

    def _start(self) -> None:
        for listening in self._sockets:
            self._network.loop.add_reader(listening.fileno(), self._accept, listening)

    def pause(self, delay_s: float) -> None:
        loop = self._network.loop
        if self._retry is not None:
            self._retry.cancel()
        for listening in self._sockets:
            loop.remove_reader(listening.fileno())
        self._paused = True
        self._retry = loop.call_later(delay_s, self._resume_accepting)

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for listening in self._sockets:
            self._network.loop.remove_reader(listening.fileno())
            listening.close()
        self._sockets.clear()
        self._network.forget_listener(self)

    def drop_in_forked_child(self) -> None:
        """Close the child's copies of the sockets. The loop is not changed, since its selector is shared with the
        parent.
        """
        for listening in self._sockets:
            listening.close()

    def retry_accept(self) -> None:
        """If this listener waits after a failed accept, let it accept again in the next turn of the loop."""
        if self._retry is not None and not self._paused:
            self._retry.cancel()
            self._retry = self._network.loop.call_soon(self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._retry = None
        self._paused = False
        self._start()
        for listening in self._sockets:
            if self._retry is None:
                self._accept(listening)

    def _accept(self, listening: socket.socket) -> None:
        assert self._receiver is not None
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, _address = listening.accept()
            except (BlockingIOError, InterruptedError):
                if self._starved_since is not None:  # the kernel's queue is empty again
                    log.warning("accepting again after_s=%.1f", self._network.loop.time() - self._starved_since)
                    self._starved_since = None
                return
            except OSError as error:
                if error.errno in _CONNECTION_FAILED:
                    continue
                self._back_off(error)
                return
            self._network.adopt(connection, self._receiver)
            if self._paused or not self._sockets:
                return

    def _back_off(self, error: OSError) -> None:
        if not self._sockets:  # a receiver has closed this listener
            return
        # The socket remains readable, since a connection is in the kernel's queue. With a registered reader, the loop
        # would call `_accept` again and again without a pause.
        loop = self._network.loop
        if self._starved_since is None:
            self._starved_since = loop.time()
            log.warning("cannot accept connections, trying again host=%s port=%d error=%s", self.host, self.port, error)
        for listening in self._sockets:
            loop.remove_reader(listening.fileno())
        if self._retry is None:
            self._retry = loop.call_later(RETRY_SECONDS, self._resume_accepting)


class SocketNetwork:
    """The `Network` over TCP, on one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tasks: Tasks) -> None:
        self.loop = loop
        self._tasks = tasks
        self._listeners: dict[SocketListener, None] = {}
        self._streams: dict[SocketStream, None] = {}
        self.resets = Resets(loop)
        drop_when_forked(self)

    async def bind(self, host: str, port: int) -> SocketListener:
        addresses = await self._resolve(host, port, socket.AI_PASSIVE)
        sockets = _bind_all(addresses, port)
        listener = SocketListener(self, host, sockets[0].getsockname()[1], sockets)
        self._listeners[listener] = None
        return listener

    async def connect(self, host: str, port: int, receiver: Receiver) -> SocketStream:
        failure: OSError | None = None
        for family, address in await self._resolve(host, port, 0):
            connection = socket.socket(family, socket.SOCK_STREAM)
            try:
                connection.setblocking(False)
                await self.loop.sock_connect(connection, address)
            except OSError as error:
                connection.close()
                failure = error
                continue
            except BaseException:
                connection.close()
                raise
            stream = self.adopt(connection, lambda: receiver)
            if stream is not None:
                return stream
        raise failure or ConnectionAbortedError(errno.ECONNABORTED, "the connection ended at once")

    def close(self) -> None:
        for listener in list(self._listeners):
            listener.close()
        for stream in list(self._streams):
            stream.abort()
        self.resets.close()

    def drop_in_forked_child(self) -> None:
        for listener in self._listeners:
            listener.drop_in_forked_child()
        for stream in self._streams:
            stream.drop_in_forked_child()

    def adopt(self, connection: socket.socket, receiver: Callable[[], Receiver]) -> SocketStream | None:
        """Return a stream for a connected socket.

        Returns None if the connection has ended already, or if the receiver raises. The socket is then closed.
        """
        try:
            connection.setblocking(False)
            peer = connection.getpeername()
            _set_options(connection, peer[0])
            stream = SocketStream(self, connection, _host_port(peer), _host_port(connection.getsockname()))
        except OSError:  # the peer reset the connection after the handshake
            connection.close()
            return None
        self._streams[stream] = None
        try:
            stream.start(receiver())
        except Exception:
            log.exception("a receiver failed, its connection is closed peer=%s", stream.peer)
            stream.abort()
            return None
        return stream

    def forget(self, stream: SocketStream) -> None:
        """Remove a closed stream. Its descriptor is free now, so listeners that had no free descriptor accept again."""
        self._streams.pop(stream, None)
        for listener in self._listeners:
            listener.retry_accept()

    def forget_listener(self, listener: SocketListener) -> None:
        self._listeners.pop(listener, None)

    async def _resolve(self, host: str, port: int, flags: int) -> list[tuple[int, tuple[object, ...]]]:
        def resolve(extra_flags: int) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
            return list(socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags | extra_flags))

        try:
            results = resolve(socket.AI_NUMERICHOST)  # a numeric address needs neither a resolver nor a thread
        except socket.gaierror:
            results = await self._tasks.run_blocking(resolve, 0)
        return list(dict.fromkeys((family, address) for family, _type, _protocol, _name, address in results))


def _bind_all(addresses: list[tuple[int, tuple[object, ...]]], port: int) -> list[socket.socket]:
    """Bind one socket to each address that belongs to this machine, all to the same port. If this raises OSError, no
    address is bound.
    """
    failure: OSError | None = None
    for _ in range(PORT_ATTEMPTS if port == 0 else 1):
        sockets: list[socket.socket] = []
        bound_port = port
        try:
            for family, address in addresses:
                try:
                    # If "::" is the only address, its socket also accepts IPv4. Otherwise each socket accepts only
                    # its own family.
                    accepts_ipv4 = len(addresses) == 1 and address[0] == "::"
                    sockets.append(_bind(family, (address[0], bound_port, *address[2:]), accepts_ipv4=accepts_ipv4))
                    bound_port = sockets[0].getsockname()[1]
                except OSError as error:
                    if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    failure = error  # "localhost" resolves to ::1 even on machines without IPv6
            if sockets:
                return sockets
        except OSError as error:
            failure = error
            for listening in sockets:
                listening.close()
            if error.errno != errno.EADDRINUSE:
                raise
    raise failure or OSError(errno.EADDRNOTAVAIL, "no address to listen on")


def _bind(family: int, address: tuple[object, ...], *, accepts_ipv4: bool) -> socket.socket:
    """Return a socket that has the address exclusively, if possible even before it listens. Raises OSError.

    `accepts_ipv4` says whether an IPv6 socket also accepts IPv4 connections.

    With SO_REUSEADDR two sockets could bind the same address, and only the `listen` of the second socket would fail.
    Therefore the first bind does not use the option. This bind also fails while closed connections of an earlier
    process are in the state TIME_WAIT, so it is repeated with the option. In this case, the socket has the address
    exclusively only when it listens.
    """
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if accepts_ipv4 else 1)
        try:
            bound.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


def _set_options(connection: socket.socket, peer_host: str) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux" and peer_host.startswith(("127.", "::1", "::ffff:127.")):
        # The bbr algorithm also paces loopback connections, which costs a third of their throughput.
        for algorithm in (b"reno", b"cubic"):
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm)
                return
            except OSError:
                continue


def _host_port(address: tuple[object, ...]) -> str:
    host = str(address[0]).removeprefix("::ffff:")
    return host_port_text(host, address[1])
