"""Receivers that store their input and let a test wait for it, on any runtime's network."""

import asyncio
import socket
from collections.abc import Callable

from tidelog.runtime.interfaces import Listener, Runtime, Stream


class Peer:
    """A receiver that stores its input and lets a test wait for it."""

    def __init__(self, *, buffer_bytes: int = 65_536) -> None:
        self.stream: Stream
        self.data = bytearray()
        self.counts: list[int] = []
        self.drains = 0
        self.ends: list[OSError | None] = []
        self.input_ends = 0
        self.changed = asyncio.Event()
        self._buffer = memoryview(bytearray(buffer_bytes))

    def connected(self, stream: Stream) -> None:
        self.stream = stream
        self.changed.set()

    def get_buffer(self) -> memoryview:
        return self._buffer

    def received(self, count: int) -> None:
        self.data += self._buffer[:count]
        self.counts.append(count)
        self.changed.set()

    def drained(self) -> None:
        self.drains += 1
        self.changed.set()

    def closed(self, error: OSError | None) -> None:
        self.ends.append(error)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


class AnsweringPeer(Peer):
    """A peer that keeps its connection open when its input has ended: the test closes it."""

    def eof_received(self) -> bool:
        self.input_ends += 1
        self.changed.set()
        return True


class Server:
    """A listener that stores its connections in order."""

    def __init__(self, make: Callable[[], Peer] = Peer) -> None:
        self.make = make
        self.peers: list[Peer] = []
        self.listener: Listener

    def accept(self) -> Peer:
        self.peers.append(self.make())
        return self.peers[-1]

    async def start(self, runtime: Runtime, host: str = "127.0.0.1") -> "Server":
        self.listener = (await runtime.network.bind(host, 0)).listen(self.accept)
        return self


async def pair(runtime: Runtime, *, server: Peer | None = None, client: Peer | None = None) -> tuple[Peer, Peer]:
    """Return the two ends of a connection: the server's and the client's."""
    listening = await Server(lambda: server or Peer()).start(runtime)
    client = client or Peer()
    await runtime.network.connect("127.0.0.1", listening.listener.port, client)
    while not listening.peers:
        await asyncio.sleep(0)
    return listening.peers[0], client


async def raw_connection(port: int) -> socket.socket:
    """Return a plain socket, for actions that a well-behaved stream does not do."""
    connection = socket.socket()
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return connection
