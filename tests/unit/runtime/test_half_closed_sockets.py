"""Streams whose peer has shut its sending side, on asyncio and on uvloop."""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from network_harness import AnsweringPeer, Peer, Server, pair, raw_connection
from tidelog.runtime.interfaces import Runtime
from tidelog.runtime.stream import SocketStream

Run: TypeAlias = Callable[[Callable[[Runtime], Coroutine[Any, Any, None]]], None]
RESET = struct.pack("ii", 1, 0)


def test_a_receiver_that_answers_may_go_on_writing(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime, server=AnsweringPeer())
        client.stream.write([b"request"])
        client.stream.write_eof()
        client.stream.write_eof()
        client.stream.write([b"dropped"])
        await server.until(lambda: server.input_ends > 0)
        assert bytes(server.data) == b"request"
        assert server.ends == []
        answer = os.urandom(8 << 20)
        server.stream.write([b"first"])
        await client.until(lambda: bytes(client.data) == b"first")
        server.stream.write([answer])
        assert server.stream.backlog_bytes > 0
        server.stream.finish()
        await client.until(lambda: bool(client.ends))
        await server.until(lambda: bool(server.ends))
        assert bytes(client.data) == b"first" + answer
        assert (client.ends, server.ends, server.input_ends) == ([None], [None], 1)

    run(test)


def test_nothing_more_comes_however_reading_is_paused_and_resumed(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime, server=AnsweringPeer())
        server.stream.pause_reading()
        client.stream.write_eof()
        await server.until(lambda: server.input_ends > 0)  # paused, and seen all the same
        server.stream.resume_reading()
        server.stream.pause_reading()
        server.stream.resume_reading()
        other_server, other_client = await pair(runtime)  # turns of the loop
        other_client.stream.write([b"x"])
        await other_server.until(lambda: bool(other_server.data))
        assert (server.counts, server.input_ends, server.ends) == ([], 1, [])
        server.stream.write([b"answer"])
        server.stream.finish()
        await client.until(lambda: bool(client.ends))
        assert bytes(client.data) == b"answer"

    run(test)


def test_the_end_of_the_input_is_looked_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = SocketStream._on_readable

    def counted(stream: SocketStream) -> None:
        nonlocal looks
        looks += 1
        look(stream)

    monkeypatch.setattr(SocketStream, "_on_readable", counted)

    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime, server=AnsweringPeer())
        client.stream.write_eof()
        await server.until(lambda: server.input_ends > 0)
        for _ in range(20):  # the loop would find it readable in each of its turns
            await asyncio.sleep(0.001)
        assert looks == 1
        server.stream.finish()

    run(test)


def test_a_receiver_may_refuse_or_fail(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(AnsweringPeer):
        def eof_received(self) -> bool:
            return super().eof_received() and False

    class Failing(AnsweringPeer):
        def eof_received(self) -> bool:
            raise RuntimeError("planted in eof_received")

    async def test(runtime: Runtime) -> None:
        for peer in (Refusing(), Failing()):
            server, client = await pair(runtime, server=peer)
            client.stream.write_eof()
            await client.until(lambda client=client: bool(client.ends))  # type: ignore[misc]
            await server.until(lambda server=server: bool(server.ends))  # type: ignore[misc]
        assert "planted in eof_received" in caplog.text

    run(test)


def test_a_receiver_may_finish_at_once(run: Run) -> None:
    class Finishing(AnsweringPeer):
        def eof_received(self) -> bool:
            self.stream.write([b"last"])
            self.stream.finish()
            return super().eof_received()

    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime, server=Finishing())
        client.stream.write_eof()
        await client.until(lambda: bool(client.ends))
        await server.until(lambda: bool(server.ends))
        assert (bytes(client.data), client.ends, server.ends) == (b"last", [None], [None])

    run(test)


@pytest.mark.parametrize("backlog", [0, 20 << 20], ids=["silent", "writing"])
def test_a_reset_is_told_though_nothing_is_read(run: Run, backlog: int) -> None:
    async def test(runtime: Runtime) -> None:
        server = await Server(AnsweringPeer).start(runtime)
        for _ in range(3):
            connection = await raw_connection(server.listener.port)
            connection.shutdown(socket.SHUT_WR)
            while not server.peers:
                await asyncio.sleep(0)
            peer = server.peers.pop()
            await peer.until(lambda peer=peer: peer.input_ends > 0)  # type: ignore[misc]
            peer.stream.write([bytes(backlog)])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.close()
            await peer.until(lambda peer=peer: bool(peer.ends))  # type: ignore[misc]
            assert isinstance(peer.ends[0], ConnectionError)
            if not backlog:
                assert peer.ends[0].errno == errno.ECONNRESET
        assert not runtime.network._streams  # type: ignore[attr-defined]

    run(test)


def test_many_that_are_reset_together_are_all_told(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server = await Server(AnsweringPeer).start(runtime)
        connections = [await raw_connection(server.listener.port) for _ in range(200)]
        for connection in connections:
            connection.shutdown(socket.SHUT_WR)
        while sum(peer.input_ends for peer in server.peers) < len(connections):
            await asyncio.sleep(0)
        for connection in connections:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.close()
        for peer in server.peers:
            await peer.until(lambda peer=peer: bool(peer.ends))  # type: ignore[misc]

    run(test)


def test_a_backlog_leaves_before_the_end(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime, server=AnsweringPeer())
        server.stream.pause_reading()
        request = os.urandom(8 << 20)
        client.stream.write([request])
        client.stream.write_eof()
        assert client.stream.backlog_bytes > 0
        server.stream.resume_reading()
        await server.until(lambda: server.input_ends > 0)
        assert bytes(server.data) == request
        assert client.drains == 0, "there is nothing more to write"
        server.stream.write([b"answer"])
        server.stream.finish()
        await client.until(lambda: bool(client.ends))
        assert bytes(client.data) == b"answer"

    run(test)


def test_both_sides_may_end_their_sending(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime, server=AnsweringPeer(), client=AnsweringPeer())
        server.stream.write([b"x"])
        server.stream.write_eof()
        await client.until(lambda: client.input_ends > 0)
        client.stream.write([b"y"])
        client.stream.finish()
        await server.until(lambda: server.input_ends > 0)
        assert (bytes(server.data), bytes(client.data)) == (b"y", b"x")
        server.stream.finish()
        await server.until(lambda: bool(server.ends))
        await client.until(lambda: bool(client.ends))

    run(test)


def test_a_closed_network_leaves_none_open(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime, server=AnsweringPeer())
        client.stream.write_eof()
        await server.until(lambda: server.input_ends > 0)
        descriptors = len([*Path("/proc/self/fd").iterdir()])
        runtime.network.close()
        await server.until(lambda: bool(server.ends))
        assert len([*Path("/proc/self/fd").iterdir()]) < descriptors - 2  # both sockets, the listener, the epoll
        server.stream.finish()

    run(test)


def test_a_receiver_without_eof_received_is_closed_by_the_end_of_its_input(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        server, client = await pair(runtime, server=Peer())
        client.stream.write_eof()
        await client.until(lambda: bool(client.ends))
        await server.until(lambda: bool(server.ends))
        assert (client.ends, server.ends) == ([None], [None])

    run(test)
