"""The real network: listening, accepting, connecting."""

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import resource
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from network_harness import Peer, Server, pair, raw_connection
from tidelog.runtime import network as network_module
from tidelog.runtime.interfaces import Runtime

Run: TypeAlias = Callable[[Callable[[Runtime], Coroutine[Any, Any, None]]], None]


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


def test_who_connects_during_a_pause_is_accepted_after_it(run: Run) -> None:
    """Also when a connection ends meanwhile, which lets one that lacks descriptors try again."""

    async def test(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        accepted: list[float] = []

        class Pausing(Echo):
            def connected(self, stream: Any) -> None:
                super().connected(stream)
                accepted.append(loop.time())
                server.listener.pause(0.2)

        server = await Server(Pausing).start(runtime)
        clients = [Peer(buffer_bytes=256) for _ in range(4)]
        for client in clients:
            await runtime.network.connect("127.0.0.1", server.listener.port, client)
        clients[0].stream.abort()
        for client in clients[1:]:
            client.stream.write([b"x"])
            await client.until(lambda client=client: client.data == b"x")  # type: ignore[misc]
        assert len(accepted) == 4
        assert all(later - earlier >= 0.19 for earlier, later in itertools.pairwise(accepted))

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

        for host in ("::", ""):
            everywhere = await Server().start(runtime, host)
            for called in ("127.0.0.1", "::1"):
                client = Peer()
                await runtime.network.connect(called, everywhere.listener.port, client)
                client.stream.write([b"x"])
                while not everywhere.peers or not everywhere.peers[-1].data:
                    await asyncio.sleep(0)
                expected = f"[{called}]:" if ":" in called else f"{called}:"
                assert everywhere.peers.pop().stream.peer.startswith(expected)

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
            (await runtime.network.bind("127.0.0.1", port)).listen(Peer)
        assert busy.value.errno == errno.EADDRINUSE
        with pytest.raises(OSError):
            (await runtime.network.bind("192.0.2.1", 0)).listen(Peer)  # TEST-NET-1: no machine has it
        with pytest.raises(OSError):
            (await runtime.network.bind("no-such-host.invalid", 0)).listen(Peer)
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
        assert not runtime.network._streams  # type: ignore[attr-defined]

    run(test)


def test_only_loopback_connections_change_the_congestion_control(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(socket, "TCP_CONGESTION"):
        pytest.skip("the platform has no choice of congestion control")
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as one:
        before = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        network_module._set_options(one, "203.0.113.9")
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16) == before
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        network_module._set_options(one, "127.0.0.1")
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith((b"reno", b"cubic"))
