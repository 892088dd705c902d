"""The simulated network: streams that behave as TCP does, and the faults between hosts."""

import asyncio
import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from network_harness import Peer
from tidelog.runtime.interfaces import FileRegion, Runtime
from tidelog.simulation.loop import Deadlock
from tidelog.simulation.network import Conditions
from tidelog.simulation.world import World, simulated


async def pair(client: Runtime, server: Runtime, host: str = "b") -> tuple[Peer, Peer]:
    """A connection from `client` to `server`: its client side and its server side."""
    accepted: list[Peer] = []

    def accept() -> Peer:
        accepted.append(Peer())
        return accepted[-1]

    listener = (await server.network.bind("0.0.0.0", 0)).listen(accept)
    peer = Peer()
    await client.network.connect(host, listener.port, peer)
    listener.close()
    return peer, accepted[0]


@given(seed=st.integers(0, 1 << 30), sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_every_byte_arrives_once_and_in_order(seed: int, sizes: list[int]) -> None:
    with simulated(seed) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            rng = random.Random(seed)
            sent = [rng.randbytes(size) for size in sizes]
            for data in sent:
                client.stream.write([data[:3], memoryview(data)[3:]])
            await server.until(lambda: len(server.data) == sum(sizes))
            assert server.data == b"".join(sent)
            server.stream.write([b"answer"])
            await client.until(lambda: bool(client.data))

        world.run(scenario())


def test_frames_are_cut_and_joined() -> None:
    with simulated(3) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            for _ in range(200):
                client.stream.write([bytes(100)])
                await asyncio.sleep(random.Random(0).choice((0, 0.001)))
            await server.until(lambda: len(server.data) == 20_000)
            assert min(server.counts) < 100 < max(server.counts)

        world.run(scenario())


def test_a_slow_reader_makes_a_backlog_that_drains() -> None:
    with simulated(4) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            server.stream.pause_reading()
            client.stream.write([bytes(300_000)])
            await asyncio.sleep(10)
            assert client.stream.backlog_bytes == 300_000 - world.network.conditions.window_bytes
            assert (server.counts, client.drains) == ([], 0)
            server.stream.resume_reading()
            await client.until(lambda: client.drains == 1)
            await server.until(lambda: len(server.data) == 300_000)
            assert client.stream.backlog_bytes == 0

        world.run(scenario())


def test_regions_are_read_when_their_turn_comes() -> None:
    with simulated(5) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            file = world.host("a").runtime.disk.open("/segment", create=True)
            content = random.Random(1).randbytes(200_000)
            file.pwrite(content, 0)
            client.stream.write([b"head", FileRegion(file, 10, 199_000), b"tail", FileRegion(file, 0, 0)])
            await server.until(lambda: len(server.data) == 199_008)
            assert bytes(server.data) == b"head" + content[10:199_010] + b"tail"
            client.stream.write([FileRegion(file, 199_999, 10)])
            await client.until(lambda: bool(client.ends))
            assert client.ends[0] is not None
            assert client.ends[0].errno == errno.EIO
            await server.until(lambda: bool(server.ends))
            assert isinstance(server.ends[0], ConnectionResetError)

        world.run(scenario())


def test_finish_sends_the_backlog_and_closes_in_order() -> None:
    with simulated(6) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            client.stream.write([b"unread request"])
            server.stream.write([bytes(500_000)])
            server.stream.finish()
            server.stream.write([b"dropped"])
            assert server.ends == []
            await client.until(lambda: bool(client.ends))
            await server.until(lambda: bool(server.ends))
            assert (len(client.data), client.ends, server.ends, server.counts) == (500_000, [None], [None], [])

        world.run(scenario())


def test_abort_loses_the_backlog() -> None:
    with simulated(7) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            client.stream.write([b"small"])
            client.stream.abort()
            client.stream.abort()
            await server.until(lambda: bool(server.ends))
            assert (bytes(server.data), server.ends, client.ends) == (b"small", [None], [None])
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            client.stream.write([bytes(500_000)])
            client.stream.abort()
            await server.until(lambda: bool(server.ends))
            assert isinstance(server.ends[0], ConnectionResetError)
            assert len(server.data) < 500_000

        world.run(scenario())


def test_a_cut_link_delays_and_then_delivers() -> None:
    with simulated(8) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            world.network.partition("a", "b")
            client.stream.write([b"stuck"])
            with pytest.raises(TimeoutError):
                await world.host("a").runtime.network.connect("b", 1, Peer())
            assert server.data == b""
            client.stream.write([b" behind"])
            world.network.heal()
            await server.until(lambda: server.data == b"stuck behind")

        world.run(scenario())


def test_a_link_may_be_cut_in_one_direction() -> None:
    with simulated(9) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            world.network.partition_one_way("a", "b")
            client.stream.write([b"stuck"])
            server.stream.write([b"through"])
            await client.until(lambda: client.data == b"through")
            assert server.data == b""

        world.run(scenario())


def test_connections_can_be_reset() -> None:
    with simulated(10) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            client.stream.write([b"on the way"])
            assert world.network.reset_connections("b", "a") == 1
            assert world.network.reset_connections("b", "a") == 0
            await client.until(lambda: bool(client.ends))
            await server.until(lambda: bool(server.ends))
            assert all(isinstance(end, ConnectionResetError) for end in (*client.ends, *server.ends))
            assert server.data == b""

        world.run(scenario())


def test_a_killed_process_is_heard_and_refuses() -> None:
    with simulated(11) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            port = ((await world.host("b").runtime.network.bind("b", 0)).listen(Peer)).port
            world.host("b").kill()
            await client.until(lambda: bool(client.ends))
            assert (client.ends, server.ends) == ([None], [])
            with pytest.raises(ConnectionRefusedError):
                await world.host("a").runtime.network.connect("b", port, Peer())

        world.run(scenario())


def test_without_power_nothing_is_heard_until_it_is_back() -> None:
    with simulated(12) as world:

        async def scenario() -> None:
            client, _server = await pair(world.host("a").runtime, world.host("b").runtime)
            world.host("b").cut_power()
            await asyncio.sleep(300)
            assert client.ends == []
            client.stream.write([b"anyone?"])
            await asyncio.sleep(10)
            assert client.ends == []
            world.host("b").start()
            await client.until(lambda: bool(client.ends))
            assert isinstance(client.ends[0], ConnectionResetError)

            client, _server = await pair(world.host("a").runtime, world.host("b").runtime)
            world.host("b").cut_power()
            client.stream.write([b"anyone?"])
            await client.until(lambda: bool(client.ends))
            assert isinstance(client.ends[0], TimeoutError)

        world.run(scenario())


def test_addresses_and_ports() -> None:
    with simulated(13) as world:

        async def scenario() -> None:
            a, b = world.host("a"), world.host("b")
            client, server = await pair(a.runtime, b.runtime, b.address)
            assert client.stream.peer == server.stream.local
            assert client.stream.peer.startswith(f"{b.address}:")
            assert server.stream.peer.startswith(f"{a.address}:")
            local = (await a.runtime.network.bind("127.0.0.1", 9092)).listen(Peer)
            with pytest.raises(OSError) as busy:
                (await a.runtime.network.bind("0.0.0.0", 9092)).listen(Peer)
            assert busy.value.errno == errno.EADDRINUSE
            with pytest.raises(OSError) as foreign:
                (await a.runtime.network.bind(b.address, 9092)).listen(Peer)
            assert foreign.value.errno == errno.EADDRNOTAVAIL
            with pytest.raises(OSError):
                await a.runtime.network.connect("nobody", 1, Peer())
            with pytest.raises(ConnectionRefusedError):  # bound to loopback alone
                await b.runtime.network.connect("a", 9092, Peer())
            own = await a.runtime.network.connect("localhost", 9092, Peer())
            assert own.local.startswith("127.0.0.1:")
            local.close()
            with pytest.raises(ConnectionRefusedError):
                await a.runtime.network.connect("localhost", 9092, Peer())

        world.run(scenario())


def test_a_failing_receiver_loses_its_connection_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Peer):
        def received(self, count: int) -> None:
            raise RuntimeError("planted")

    with simulated(14) as world:

        async def scenario() -> None:
            a, b = world.host("a").runtime, world.host("b").runtime
            listener = (await b.network.bind("b", 0)).listen(Failing)
            client = Peer()
            stream = await a.network.connect("b", listener.port, client)
            stream.write([b"x"])
            await client.until(lambda: bool(client.ends))
            assert isinstance(client.ends[0], ConnectionResetError)
            assert "planted" in caplog.text

        world.run(scenario())


def test_closing_the_network_ends_its_connections() -> None:
    with simulated(15) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            await world.host("a").runtime.close()
            await server.until(lambda: bool(server.ends))
            assert (client.ends, server.ends) == ([None], [None])

        world.run(scenario())


def test_nobody_answering_is_a_deadlock_that_names_who_waits() -> None:
    world = World(16)
    world.network.conditions = Conditions(slow_chance=0.0)

    async def scenario() -> None:
        client, _server = await pair(world.host("a").runtime, world.host("b").runtime)
        client.stream.write([b"question"])
        await client.until(lambda: bool(client.data))

    with pytest.raises(Deadlock, match=r"scenario at .*until"):
        world.run(scenario())
    world.close()


def test_a_lossy_link_delays_bytes_and_loses_none() -> None:
    def duration_s(loss_chance: float) -> float:
        with simulated(5) as world:
            conditions = Conditions(latency_s=(0.001, 0.001), slow_chance=0.0, loss_chance=loss_chance)
            world.network.conditions = conditions

            async def scenario() -> float:
                client, server = await pair(world.host("a").runtime, world.host("b").runtime)
                began = world.loop.time()
                for number in range(20):
                    client.stream.write([bytes([number]) * 10])
                await server.until(lambda: len(server.data) == 200)
                assert server.data == b"".join(bytes([number]) * 10 for number in range(20))
                return world.loop.time() - began

            return world.run(scenario())

    assert duration_s(0.0) < 0.1
    assert duration_s(0.3) > 0.2


def test_conditions_of_one_link_do_not_change_the_others() -> None:
    with simulated(5) as world:
        world.network.set_conditions("a", "b", Conditions(latency_s=(5.0, 5.0), slow_chance=0.0))

        async def scenario() -> tuple[float, float]:
            slow = await pair(world.host("a").runtime, world.host("b").runtime)
            fast = await pair(world.host("a").runtime, world.host("c").runtime, host="c")
            durations = []
            for client, server in (slow, fast):
                began = world.loop.time()
                client.stream.write([b"x"])
                await server.until(lambda: len(server.data) == 1)  # noqa: B023
                durations.append(world.loop.time() - began)
            return durations[0], durations[1]

        slow_s, fast_s = world.run(scenario())
    assert slow_s >= 5
    assert fast_s < 1


def test_a_stalled_connection_delivers_nothing_and_new_ones_work() -> None:
    with simulated(6) as world:

        async def scenario() -> None:
            one, other = world.host("a").runtime, world.host("b").runtime
            client, server = await pair(one, other)
            (stalled,) = world.network.stall_connections("a", "b")
            client.stream.write([b"lost"])
            server.stream.write([b"lost"])
            fresh_client, fresh_server = await pair(one, other)
            fresh_client.stream.write([b"fresh"])
            await fresh_server.until(lambda: bytes(fresh_server.data) == b"fresh")
            await asyncio.sleep(60)
            assert not client.data
            assert not server.data
            stalled.break_both("net.reset")
            await asyncio.sleep(1)
            assert client.ends
            assert server.ends

        world.run(scenario())


def test_a_link_that_two_faults_block_works_when_both_have_ended() -> None:
    with simulated(7) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            world.network.partition("a", "b")
            world.network.partition_one_way("a", "b")
            client.stream.write([b"x"])
            world.network.unblock("a", "b")
            await asyncio.sleep(5)
            assert not server.data
            world.network.unblock("a", "b")
            await server.until(lambda: bytes(server.data) == b"x")

        world.run(scenario())
