"""The real network: streams over loopback, on asyncio and on uvloop."""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from network_harness import Peer, Server, pair, raw_connection
from tidelog.runtime.disk import LocalDisk, LocalFile
from tidelog.runtime.interfaces import File, FileRegion, Runtime, Stream
from tidelog.runtime.stream import RECEIVE_BYTES_MAX, TURN_BYTES_MAX

Run: TypeAlias = Callable[[Callable[[Runtime], Coroutine[Any, Any, None]]], None]


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
        runtime.disk.pool.close_descriptor(file)  # type: ignore[attr-defined]
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

    def hold(self) -> None:
        """Nothing takes it away."""

    def release(self) -> None:
        """As `hold`."""


def test_files_without_a_descriptor_are_read_and_copied(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        content = os.urandom(5 << 20)
        file: File = MemoryFile(content)  # type: ignore[assignment]
        server, client = await pair(runtime)
        server.stream.write([b"head", FileRegion(file, 5, len(content) - 5)])
        await client.until(lambda: len(client.data) == len(content) - 1)
        assert bytes(client.data) == b"head" + content[5:]

    run(test)


def test_a_file_that_is_removed_half_sent_is_sent_whole(run: Run, tmp_path: Path) -> None:
    """What retention and compaction do to a segment, while a slow reader is in it and descriptors are short."""

    async def test(runtime: Runtime) -> None:
        content = os.urandom(20 << 20)
        path = str(tmp_path / "0.log")
        Path(path).write_bytes(content)
        file = runtime.disk.open(path)
        server, client = await pair(runtime)
        client.stream.pause_reading()
        server.stream.write([b"head", FileRegion(file, 0, len(content))])
        assert 0 < server.stream.backlog_bytes < len(content)
        runtime.disk.rename(path, path + ".deleted")
        file.close()
        runtime.disk.remove(path + ".deleted")
        assert isinstance(runtime.disk, LocalDisk)
        runtime.disk.pool.descriptors_max = 1
        for name in "abc":
            other = runtime.disk.open(str(tmp_path / name), create=True)
            assert other.pread(1, 0) == b""
        client.stream.resume_reading()
        await client.until(lambda: len(client.data) == len(content) + 4)
        assert bytes(client.data) == b"head" + content
        with pytest.raises(OSError, match="closed"):
            file.pread(1, 0)

    run(test)


def test_a_removed_file_is_let_go_when_its_reader_goes(run: Run, tmp_path: Path) -> None:
    async def test(runtime: Runtime) -> None:
        path = tmp_path / "0.log"
        path.write_bytes(bytes(20 << 20))
        file = runtime.disk.open(str(path))
        assert isinstance(file, LocalFile)
        server, client = await pair(runtime)
        client.stream.pause_reading()
        server.stream.write([FileRegion(file, 0, 20 << 20)])
        file.close()
        path.unlink()
        assert file.descriptor >= 0
        server.stream.abort()
        assert file.descriptor < 0

    run(test)


def test_file_systems_without_sendfile_are_read_and_copied(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> int:
        raise OSError(errno.EINVAL, "no splice here")

    monkeypatch.setattr(LocalFile, "send_to", refuse)

    async def test(runtime: Runtime) -> None:
        content = os.urandom(5 << 20)
        (tmp_path / "a.log").write_bytes(content)
        server, client = await pair(runtime)
        server.stream.write([FileRegion(runtime.disk.open(str(tmp_path / "a.log")), 0, len(content))])
        await client.until(lambda: len(client.data) == len(content))
        assert client.data == content

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
        assert not runtime.network._streams  # type: ignore[attr-defined]

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


def test_finish_takes_no_more_than_so_much(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.runtime.stream.LINGER_SECONDS", 3600)
    monkeypatch.setattr("tidelog.runtime.stream.LINGER_BYTES_MAX", 100_000)

    async def test(runtime: Runtime) -> None:
        server = await Server().start(runtime)
        connection = await raw_connection(server.listener.port)
        while not server.peers:
            await asyncio.sleep(0)
        server.peers[0].stream.finish()
        with pytest.raises(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(connection, bytes(50_000_000))
        await server.peers[0].until(lambda: bool(server.peers[0].ends))
        assert server.peers[0].counts == []
        connection.close()

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
