"""TCP by our own non-blocking sockets on the loop: listening, accepting, connecting. Streams are in `stream.py`.

asyncio's transports are not used: they cost several microseconds a request and copy what sendfile need not.
"""

import asyncio
import errno
import logging
import socket
import sys
from collections.abc import Callable

from tidelog.runtime.forks import drop_when_forked
from tidelog.runtime.interfaces import Receiver, Tasks
from tidelog.runtime.stream import SocketStream

log = logging.getLogger("tidelog.network")

ACCEPTS_PER_TURN = 16
"""A storm of connections leaves room for the requests of those that are in."""

LISTEN_BACKLOG = 4096
RETRY_SECONDS = 0.5
"""After a failed accept; sooner when one of our own connections ends."""

PORT_ATTEMPTS = 16

_PEER_WENT = (errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)
"""What accept() reports of a connection that failed before it was taken. Not the listener's fault."""


class SocketListener:
    """One or several listening sockets (a name may have several addresses) that share a port."""

    def __init__(
        self,
        network: "SocketNetwork",
        host: str,
        port: int,
        sockets: list[socket.socket],
        receiver: Callable[[], Receiver],
    ) -> None:
        self.host = host
        self.port = port
        self._network = network
        self._sockets = sockets
        self._receiver = receiver
        self._starved_since: float | None = None
        self._retry: asyncio.Handle | None = None
        self._paused = False

    def start(self) -> None:
        for listening in self._sockets:
            self._network.loop.add_reader(listening.fileno(), self._accept, listening)

    def pause(self, delay_s: float) -> None:
        loop = self._network.loop
        if self._retry is not None:
            self._retry.cancel()
        for listening in self._sockets:
            loop.remove_reader(listening.fileno())
        self._paused = True
        self._retry = loop.call_later(delay_s, self._try_again)

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
        """Close the child's copies. The loop is left alone: its selector is the parent's as well."""
        for listening in self._sockets:
            listening.close()

    def descriptor_freed(self) -> None:
        """If it waits for one, it tries again in the next turn."""
        if self._retry is not None and not self._paused:
            self._retry.cancel()
            self._retry = self._network.loop.call_soon(self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._paused = False
        self.start()
        for listening in self._sockets:
            if self._retry is None:
                self._accept(listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, _address = listening.accept()
            except (BlockingIOError, InterruptedError):
                if self._starved_since is not None:  # nobody waits any more
                    log.warning("accepting again after_s=%.1f", self._network.loop.time() - self._starved_since)
                    self._starved_since = None
                return
            except OSError as error:
                if error.errno in _PEER_WENT:
                    continue
                self._back_off(error)
                return
            self._network.adopt(connection, self._receiver)
            if self._paused or not self._sockets:
                return

    def _back_off(self, error: OSError) -> None:
        if not self._sockets:  # a receiver closed us meanwhile
            return
        # The waiting connection keeps the socket readable: without this the loop would spin.
        loop = self._network.loop
        if self._starved_since is None:
            self._starved_since = loop.time()
            log.warning("cannot accept connections, trying again host=%s port=%d error=%s", self.host, self.port, error)
        for listening in self._sockets:
            loop.remove_reader(listening.fileno())
        if self._retry is None:
            self._retry = loop.call_later(RETRY_SECONDS, self._try_again)


class SocketNetwork:
    """`Network` over TCP on one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tasks: Tasks) -> None:
        self.loop = loop
        self._tasks = tasks
        self._listeners: dict[SocketListener, None] = {}
        self._streams: dict[SocketStream, None] = {}
        drop_when_forked(self)

    @property
    def connection_count(self) -> int:
        return len(self._streams)

    async def listen(self, host: str, port: int, receiver: Callable[[], Receiver]) -> SocketListener:
        addresses = await self._resolve(host, port, socket.AI_PASSIVE)
        sockets = _listen_on_all(addresses, port)
        listener = SocketListener(self, host, sockets[0].getsockname()[1], sockets, receiver)
        self._listeners[listener] = None
        listener.start()
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

    def drop_in_forked_child(self) -> None:
        for listener in self._listeners:
            listener.drop_in_forked_child()
        for stream in self._streams:
            stream.drop_in_forked_child()

    def adopt(self, connection: socket.socket, receiver: Callable[[], Receiver]) -> SocketStream | None:
        """Make a connected socket a stream of ours. None if it is gone already or the receiver refuses by raising."""
        try:
            connection.setblocking(False)
            peer = connection.getpeername()
            _tune(connection, peer[0])
            stream = SocketStream(self, connection, _host_port(peer), _host_port(connection.getsockname()))
        except OSError:  # reset between the hand-shake and now
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
        """The stream's descriptor is closed."""
        self._streams.pop(stream, None)
        for listener in self._listeners:
            listener.descriptor_freed()

    def forget_listener(self, listener: SocketListener) -> None:
        self._listeners.pop(listener, None)

    async def _resolve(self, host: str, port: int, flags: int) -> list[tuple[int, tuple[object, ...]]]:
        def resolve(more_flags: int) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags | more_flags)
            return list(found)

        try:
            found = resolve(socket.AI_NUMERICHOST)  # numbers need no resolver and no thread
        except socket.gaierror:
            found = await self._tasks.run_blocking(resolve, 0)
        return list(dict.fromkeys((family, address) for family, _type, _protocol, _name, address in found))


def _listen_on_all(addresses: list[tuple[int, tuple[object, ...]]], port: int) -> list[socket.socket]:
    """Sockets that listen on each address that this machine has, all on one port. Raises OSError, all or nothing."""
    failure: OSError | None = None
    for _ in range(PORT_ATTEMPTS if port == 0 else 1):
        sockets: list[socket.socket] = []
        chosen = port
        try:
            for family, address in addresses:
                try:
                    # "::" alone takes IPv4 too; beside "0.0.0.0", and any other address, its own family only.
                    dual = len(addresses) == 1 and address[0] == "::"
                    sockets.append(_listen_on(family, (address[0], chosen, *address[2:]), dual=dual))
                    chosen = sockets[0].getsockname()[1]
                except OSError as error:
                    if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    failure = error  # "localhost" names ::1 on machines without IPv6 too
            if sockets:
                return sockets
        except OSError as error:
            failure = error
            for listening in sockets:
                listening.close()
            if error.errno != errno.EADDRINUSE:
                raise
    raise failure or OSError(errno.EADDRNOTAVAIL, "no address to listen on")


def _listen_on(family: int, address: tuple[object, ...], *, dual: bool) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        listening.bind(address)
        listening.listen(LISTEN_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _tune(connection: socket.socket, peer_host: str) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux" and peer_host.startswith(("127.", "::1", "::ffff:127.")):
        # bbr paces even on loopback, where there is nothing to pace for: a third of the throughput.
        for algorithm in (b"reno", b"cubic"):
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm)
                return
            except OSError:
                continue


def _host_port(address: tuple[object, ...]) -> str:
    host = str(address[0]).removeprefix("::ffff:")
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
