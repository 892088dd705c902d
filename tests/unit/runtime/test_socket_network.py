"""The real network: streams over loopback, on asyncio and on uvloop."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import struct
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tidelog.runtime import network as network_module
from tidelog.runtime.interfaces import File, FileRegion, Listener, Runtime, Stream
from tidelog.runtime.stream import RECEIVE_BYTES_MAX, TURN_BYTES_MAX

Run: TypeAlias = Callable[[Callable[[Runtime], Coroutine[Any, Any, None]]], None]


class Peer:
    """A receiver that keeps what it gets and lets a test wait for it."""

    def __init__(self, *, buffer_bytes: int = 65_536) -> None:
        self.stream: Stream
        self.data = bytearray()
        self.counts: list[int] = []
        self.drains = 0
        self.ends: list[OSError | None] = []
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


class Server:
    """A listener whose connections are kept in order."""

    def __init__(self, make: Callable[[], Peer] = Peer) -> None:
        self.make = make
        self.peers: list[Peer] = []
        self.listener: Listener

    def accept(self) -> Peer:
        self.peers.append(self.make())
        return self.peers[-1]

    async def start(self, runtime: Runtime, host: str = "127.0.0.1") -> "Server":
        self.listener = await runtime.network.listen(host, 0, self.accept)
        return self


async def pair(runtime: Runtime, *, server: Peer | None = None, client: Peer | None = None) -> tuple[Peer, Peer]:
    """A connected server side and client side."""
    listening = await Server(lambda: server or Peer()).start(runtime)
    client = client or Peer()
    await runtime.network.connect("127.0.0.1", listening.listener.port, client)
    while not listening.peers:
        await asyncio.sleep(0)
    return listening.peers[0], client


async def raw_connection(port: int) -> socket.socket:
    """A plain socket, for what a well-behaved stream does not do."""
    connection = socket.socket()
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return connection


async def read_all(connection: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < size and (part := await loop.sock_recv(connection, 1 << 20)):
        data += part
    return bytes(data)


def test_bytes_arrive_in_order_both_ways(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime)
        client.stream.write([b"one ", bytearray(b"two "), memoryview(b"three"), b""])
        client.stream.write([b" four"])
        await server.until(lambda: len(server.data) == 18)
        server.stream.write([b"answer"])
        await client.until(lambda: bool(client.data))
        assert (bytes(server.data), bytes(client.data)) == (b"one two three four", b"answer")
        assert server.stream.local == client.stream.peer
        assert server.stream.peer == client.stream.local
        assert client.stream.backlog_bytes == 0

    run(test)


def test_a_frame_sent_byte_by_byte_arrives_whole(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime)
        frame = struct.pack(">i", 20) + bytes(range(20))
        for index in range(len(frame)):
            client.stream.write([frame[index : index + 1]])
            await server.until(lambda index=index: len(server.data) > index)  # type: ignore[misc]
        assert bytes(server.data) == frame
        assert server.counts == [1] * len(frame)

    run(test)


def test_a_slow_reader_gets_everything_once_and_the_writer_hears_of_it(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime)
        client.stream.pause_reading()
        chunks = [os.urandom(100_000) for _ in range(150)]
        for chunk in chunks:
            server.stream.write([chunk[:7], memoryview(chunk)[7:]])
        backlog = server.stream.backlog_bytes
        assert 0 < backlog < 15_000_000
        assert server.drains == 0
        client.stream.resume_reading()
        await client.until(lambda: len(client.data) == 15_000_000)
        await server.until(lambda: server.drains > 0)
        assert bytes(client.data) == b"".join(chunks)
        assert (server.drains, server.stream.backlog_bytes) == (1, 0)

    run(test)


def test_memory_that_had_to_wait_may_be_reused_at_once(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime)
        client.stream.pause_reading()
        shared = bytearray(8 << 20)
        expected = bytearray()
        for value in (1, 2, 3):
            shared[:] = bytes([value]) * len(shared)
            expected += shared
            server.stream.write([memoryview(shared)] if value == 1 else [shared, memoryview(shared)[:0]])
            shared[:] = bytes(len(shared))
        assert server.stream.backlog_bytes > len(shared)
        client.stream.resume_reading()
        await client.until(lambda: len(client.data) == len(expected))
        assert client.data == expected

    run(test)


def test_regions_of_files_arrive_between_bytes(run: Run, tmp_path: Path) -> None:
    async def test(runtime: Runtime) -> None:
        content = os.urandom(9 << 20)
        path = tmp_path / "segment.log"
        path.write_bytes(content)
        file = runtime.disk.open(str(path))
        server, client = await pair(runtime, client=Peer(buffer_bytes=1 << 20))
        server.stream.write(
            [
                b"head",
                FileRegion(file, 3, 5_000_000),
                b"",
                FileRegion(file, 7, 0),
                b"mid",
                b"dle",
                FileRegion(file, 0, 9),
            ]
        )
        server.stream.write([FileRegion(file, 1 << 20, 8 << 20), b"tail"])
        expected = b"head" + content[3:5_000_003] + b"middle" + content[:9] + content[1 << 20 :] + b"tail"
        await client.until(lambda: len(client.data) == len(expected))
        assert bytes(client.data) == expected

    run(test)


def test_a_region_outlives_the_descriptor_of_its_file(run: Run, tmp_path: Path) -> None:
    async def test(runtime: Runtime) -> None:
        content = os.urandom(12 << 20)
        (tmp_path / "one.log").write_bytes(content)
        file = runtime.disk.open(str(tmp_path / "one.log"))
        server, client = await pair(runtime)
        client.stream.pause_reading()
        server.stream.write([FileRegion(file, 0, len(content))])
        assert server.stream.backlog_bytes > 0
        runtime.disk.pool.give_up(file)  # type: ignore[attr-defined]
        runtime.disk.rename(str(tmp_path / "one.log"), str(tmp_path / "one.log.deleted"))
        client.stream.resume_reading()
        await client.until(lambda: len(client.data) == len(content))
        assert client.data == content

    run(test)


class MemoryFile:
    """A file without a descriptor."""

    path = "memory"

    def __init__(self, content: bytes) -> None:
        self.content = content

    def pread(self, size: int, position: int) -> bytes:
        return self.content[position : position + size]


def test_files_without_a_descriptor_are_read_and_copied(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        content = os.urandom(5 << 20)
        file: File = MemoryFile(content)  # type: ignore[assignment]
        server, client = await pair(runtime)
        server.stream.write([b"head", FileRegion(file, 5, len(content) - 5)])
        await client.until(lambda: len(client.data) == len(content) - 1)
        assert bytes(client.data) == b"head" + content[5:]

    run(test)


def test_a_region_beyond_its_file_ends_the_connection_and_is_logged(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(runtime: Runtime) -> None:
        (tmp_path / "short.log").write_bytes(b"0123456789")
        file = runtime.disk.open(str(tmp_path / "short.log"))
        server, client = await pair(runtime)
        server.stream.write([b"head", FileRegion(file, 4, 100)])
        await client.until(lambda: bool(client.ends))
        await server.until(lambda: bool(server.ends))
        assert server.ends[0] is not None
        assert server.ends[0].errno == errno.EIO
        assert "short.log" in caplog.text

    run(test)


def test_a_long_answer_yields_to_others(run: Run, tmp_path: Path) -> None:
    async def test(runtime: Runtime) -> None:
        size = 3 * TURN_BYTES_MAX
        (tmp_path / "big.log").write_bytes(bytes(size))
        file = runtime.disk.open(str(tmp_path / "big.log"))
        server, client = await pair(runtime)
        server.stream._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * size)  # type: ignore[attr-defined]
        server.stream.write([FileRegion(file, 0, size)])
        assert server.stream.backlog_bytes >= size - TURN_BYTES_MAX
        await client.until(lambda: len(client.data) == size)

    run(test)


def test_one_event_takes_a_bounded_part_of_a_huge_transfer(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime, server=Peer(buffer_bytes=16 << 20))
        client.stream.write([bytes(16 << 20)])
        await server.until(lambda: len(server.data) == 16 << 20)
        assert max(server.counts) <= RECEIVE_BYTES_MAX

    run(test)


def test_the_last_call_is_closed_and_in_order_it_has_no_error(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime)
        client.stream.write([b"x"])
        await server.until(lambda: bool(server.data))
        client.stream.abort()
        client.stream.abort()
        client.stream.finish()
        client.stream.write([b"dropped"])
        assert client.ends == []  # never from within a call to the stream
        await client.until(lambda: bool(client.ends))
        await server.until(lambda: bool(server.ends))
        assert (client.ends, server.ends) == ([None], [None])
        assert runtime.network.connection_count == 0  # type: ignore[attr-defined]

    run(test)


def test_finish_lets_the_backlog_out_and_survives_unread_requests(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime)
        answer = os.urandom(6 << 20)
        client.stream.pause_reading()
        server.stream.pause_reading()
        client.stream.write([bytes(50_000)])  # lies unread at the server when it closes
        server.stream.write([answer])
        server.stream.finish()
        server.stream.write([b"dropped"])
        assert server.ends == []
        client.stream.resume_reading()
        await client.until(lambda: bool(client.ends))
        await server.until(lambda: bool(server.ends))
        assert bytes(client.data) == answer
        assert (client.ends, server.ends) == ([None], [None])
        assert server.counts == []

    run(test)


def test_finish_does_not_wait_for_ever_for_the_other_side(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.runtime.stream.LINGER_SECONDS", 0.05)
    monkeypatch.setattr("tidelog.runtime.stream.STALL_SECONDS", 0.05)

    async def test(runtime: Runtime) -> None:
        server = await Server().start(runtime)
        for answer in (b"small", bytes(20 << 20)):
            connection = await raw_connection(server.listener.port)
            await asyncio.get_running_loop().sock_sendall(connection, b"x")
            while not server.peers or not server.peers[-1].data:
                await asyncio.sleep(0)
            peer = server.peers.pop()
            peer.stream.write([answer])
            peer.stream.finish()
            await peer.until(lambda peer=peer: bool(peer.ends))  # type: ignore[misc]
            assert peer.ends == [None]
            connection.close()

    run(test)


def test_a_reset_by_the_other_side_is_told_as_an_error(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server = await Server().start(runtime)
        connection = await raw_connection(server.listener.port)
        await asyncio.get_running_loop().sock_sendall(connection, b"x")
        while not server.peers or not server.peers[0].data:
            await asyncio.sleep(0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        await server.peers[0].until(lambda: bool(server.peers[0].ends))
        assert isinstance(server.peers[0].ends[0], ConnectionResetError)

    run(test)


def test_writing_to_a_peer_that_went_never_raises(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime)
        server.stream.pause_reading()
        client.stream.abort()
        while not server.ends:
            server.stream.write([b"into the void", bytes(100_000)])
            server.stream.write([b"small"])
            await asyncio.sleep(0)
        assert server.stream.backlog_bytes == 0

    run(test)


def test_a_paused_stream_notices_the_end_but_delivers_nothing(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime)
        server.stream.pause_reading()
        client.stream.abort()
        await server.until(lambda: bool(server.ends))
        assert server.ends == [None]

        server, client = await pair(runtime)
        server.stream.pause_reading()
        client.stream.write([b"early"])
        other_server, other_client = await pair(runtime)  # turns of the loop in which "early" is there
        other_client.stream.write([b"x"])
        await other_server.until(lambda: bool(other_server.data))
        assert server.data == b""
        server.stream.resume_reading()
        await server.until(lambda: bool(server.data))
        assert server.data == b"early"

    run(test)


class Failing(Peer):
    """A receiver with a fault of its own."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def connected(self, stream: Stream) -> None:
        super().connected(stream)
        if self.where == "connected":
            raise RuntimeError("planted in connected")

    def get_buffer(self) -> memoryview:
        if self.where == "get_buffer":
            raise RuntimeError("planted in get_buffer")
        return super().get_buffer()

    def received(self, count: int) -> None:
        super().received(count)
        if self.where == "received":
            raise RuntimeError("planted in received")

    def drained(self) -> None:
        super().drained()
        if self.where == "drained":
            raise RuntimeError("planted in drained")

    def closed(self, error: OSError | None) -> None:
        super().closed(error)
        if self.where == "closed":
            raise RuntimeError("planted in closed")


@pytest.mark.parametrize("where", ["connected", "get_buffer", "received", "drained", "closed"])
def test_a_failing_receiver_loses_its_connection_and_nothing_else(
    run: Run, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(runtime: Runtime) -> None:
        server = await Server(lambda: Failing(where)).start(runtime)
        client = Peer()
        await runtime.network.connect("127.0.0.1", server.listener.port, client)
        client.stream.write([b"x"])
        while not server.peers:
            await asyncio.sleep(0)
        if where == "drained":
            server.peers[0].stream.write([bytes(20 << 20)])
        if where == "closed":
            client.stream.abort()
        await client.until(lambda: bool(client.ends))
        await server.peers[0].until(lambda: bool(server.peers[0].ends))
        assert f"planted in {where}" in caplog.text
        server.make = Peer
        second = Peer()
        await runtime.network.connect("127.0.0.1", server.listener.port, second)
        second.stream.write([b"still served"])
        while len(server.peers) < 2:
            await asyncio.sleep(0)
        await server.peers[1].until(lambda: bool(server.peers[1].data))

    run(test)


class Echo(Peer):
    def __init__(self) -> None:
        super().__init__(buffer_bytes=256)

    def received(self, count: int) -> None:
        self.stream.write([bytes(self._buffer[:count])])


def test_a_thousand_connections_each_answered(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server = await Server(Echo).start(runtime)
        clients = [Peer(buffer_bytes=256) for _ in range(1000)]
        for number, client in enumerate(clients):
            await runtime.network.connect("127.0.0.1", server.listener.port, client)
            client.stream.write([b"%d" % number])
        for number, client in enumerate(clients):
            await client.until(lambda client=client, number=number: client.data == b"%d" % number)  # type: ignore[misc]
        assert len(server.peers) == 1000

    run(test)


@contextlib.contextmanager
def no_free_descriptors() -> Iterator[list[int]]:
    """Every descriptor is taken; closing the yielded ones frees as many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 32, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield taken
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("freed_by", ["the end of an own connection", "others"])
def test_without_descriptors_accepting_waits_and_goes_on(
    run: Run, freed_by: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_module, "RETRY_SECONDS", 0.02 if freed_by == "others" else 3600.0)

    async def test(runtime: Runtime) -> None:
        server = await Server().start(runtime)
        first = await raw_connection(server.listener.port)
        while not server.peers:
            await asyncio.sleep(0)
        waiting = socket.socket()
        waiting.setblocking(False)
        failures: list[OSError] = []
        back_off = server.listener._back_off  # type: ignore[attr-defined]

        def counted(error: OSError) -> None:
            failures.append(error)
            back_off(error)

        server.listener._back_off = counted  # type: ignore[attr-defined]
        with no_free_descriptors(), caplog.at_level(logging.WARNING, "tidelog.network"):
            waiting.connect_ex(("127.0.0.1", server.listener.port))
            while not failures:
                await asyncio.sleep(0)
            for _ in range(200):
                await asyncio.sleep(0)
            assert len(failures) <= 10  # it does not spin on the waiting connection
            if freed_by != "others":
                server.peers[0].stream.abort()
                while len(server.peers) < 2:
                    await asyncio.sleep(0)
        while len(server.peers) < 2:
            await asyncio.sleep(0.01)
        server.peers[1].stream.abort()
        while "accepting again" not in caplog.text:
            await asyncio.sleep(0.01)
        assert len(server.peers) == 2
        assert caplog.text.count("cannot accept") == 1
        first.close()
        waiting.close()

    run(test)


def test_names_and_both_families_are_listened_on(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server = await Server().start(runtime, "localhost")
        reached = 0
        for host in ("127.0.0.1", "::1", "localhost"):
            client = Peer()
            try:
                stream = await runtime.network.connect(host, server.listener.port, client)
            except OSError:
                assert host == "::1"  # no IPv6 here, or the resolver knows localhost by IPv4 alone
                continue
            reached += 1
            assert stream.peer.endswith(f":{server.listener.port}")
        assert reached >= 2

        everywhere = await Server().start(runtime, "::")
        client = Peer()
        await runtime.network.connect("127.0.0.1", everywhere.listener.port, client)
        client.stream.write([b"x"])
        while not everywhere.peers or not everywhere.peers[0].data:
            await asyncio.sleep(0)
        assert everywhere.peers[0].stream.peer.startswith("127.0.0.1:")

        six = await Server().start(runtime, "::1")
        client = Peer()
        stream = await runtime.network.connect("::1", six.listener.port, client)
        assert stream.peer == f"[::1]:{six.listener.port}"

    run(test)


def test_refusals_are_os_errors(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server = await Server().start(runtime)
        port = server.listener.port
        with pytest.raises(OSError) as busy:
            await runtime.network.listen("127.0.0.1", port, Peer)
        assert busy.value.errno == errno.EADDRINUSE
        with pytest.raises(OSError):
            await runtime.network.listen("192.0.2.1", 0, Peer)  # TEST-NET-1: no machine has it
        with pytest.raises(OSError):
            await runtime.network.listen("no-such-host.invalid", 0, Peer)
        client = Peer()
        await runtime.network.connect("127.0.0.1", port, client)
        while not server.peers:
            await asyncio.sleep(0)
        server.listener.close()
        server.listener.close()
        with pytest.raises(ConnectionRefusedError):
            await runtime.network.connect("127.0.0.1", port, Peer())
        client.stream.write([b"lives on"])
        await server.peers[0].until(lambda: server.peers[0].data == b"lives on")

    run(test)


def test_closing_the_network_ends_every_connection(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime)
        await runtime.close()
        assert (server.ends, client.ends) == ([None], [None])
        assert runtime.network.connection_count == 0  # type: ignore[attr-defined]

    run(test)


def test_only_loopback_connections_change_the_congestion_control(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(socket, "TCP_CONGESTION"):
        pytest.skip("the platform has no choice of congestion control")
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as one:
        before = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        network_module._tune(one, "203.0.113.9")
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16) == before
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        network_module._tune(one, "127.0.0.1")
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith((b"reno", b"cubic"))
