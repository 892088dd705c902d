"""The simulated network: connections whose one side has shut its sending side behave as with real sockets."""

import asyncio

import pytest

from network_harness import AnsweringPeer, Peer
from tidelog.runtime.interfaces import Runtime
from tidelog.simulation.world import simulated


async def pair(client: Runtime, server: Runtime, peer: Peer | None = None) -> tuple[Peer, AnsweringPeer]:
    """A connection from host to host: its client side, and a server side that answers."""
    accepted: list[AnsweringPeer] = []

    def accept() -> AnsweringPeer:
        accepted.append(AnsweringPeer())
        return accepted[-1]

    listener = (await server.network.bind("0.0.0.0", 0)).listen(accept)
    peer = peer or Peer()
    await client.network.connect("b", listener.port, peer)
    listener.close()
    return peer, accepted[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_receiver_that_answers_may_go_on_writing(seed: int) -> None:
    with simulated(seed) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            client.stream.write([bytes(200_000)])
            client.stream.write_eof()
            client.stream.write_eof()
            client.stream.write([b"dropped"])
            await server.until(lambda: server.input_ends > 0)
            assert len(server.data) == 200_000
            assert client.drains == 0, "there is nothing more to write"
            server.stream.pause_reading()
            server.stream.resume_reading()
            await asyncio.sleep(100)
            assert (server.ends, client.ends) == ([], [])
            server.stream.write([bytes(500_000)])
            server.stream.finish()
            await client.until(lambda: bool(client.ends))
            await server.until(lambda: bool(server.ends))
            assert (len(client.data), client.ends, server.ends, server.input_ends) == (500_000, [None], [None], 1)

        world.run(scenario())


def test_the_end_is_seen_while_reading_is_paused() -> None:
    with simulated(1) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            server.stream.pause_reading()
            client.stream.write_eof()
            await server.until(lambda: server.input_ends > 0)
            server.stream.finish()
            await client.until(lambda: bool(client.ends))

        world.run(scenario())


@pytest.mark.parametrize("how", ["reset", "killed", "closed"])
def test_a_client_that_has_gone_is_noticed(how: str) -> None:
    """A reset at once; one that has closed at the first bytes that it is sent."""
    with simulated(2) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            client.stream.write_eof()
            await server.until(lambda: server.input_ends > 0)
            if how == "reset":
                world.network.reset_connections("a", "b")
            else:
                if how == "killed":
                    world.host("a").kill()
                else:
                    client.stream.abort()
                await asyncio.sleep(10)
                assert server.ends == []
                server.stream.write([b"answer"])
            await server.until(lambda: bool(server.ends))
            assert isinstance(server.ends[0], ConnectionResetError)
            assert server.input_ends == 1

        world.run(scenario())


def test_a_finished_side_sends_its_backlog_to_one_that_sends_no_more() -> None:
    with simulated(3) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime)
            server.stream.write([bytes(500_000)])
            server.stream.finish()
            client.stream.write_eof()
            await client.until(lambda: bool(client.ends))
            assert (len(client.data), client.ends) == (500_000, [None])

        world.run(scenario())


def test_both_sides_may_end_their_sending() -> None:
    with simulated(4) as world:

        async def scenario() -> None:
            client, server = await pair(world.host("a").runtime, world.host("b").runtime, AnsweringPeer())
            client.stream.write_eof()
            server.stream.write([b"x"])
            server.stream.write_eof()
            await client.until(lambda: client.input_ends > 0)
            await server.until(lambda: server.input_ends > 0)
            assert bytes(client.data) == b"x"
            for peer in (client, server):
                peer.stream.finish()
                await peer.until(lambda peer=peer: bool(peer.ends))  # type: ignore[misc]
                assert peer.ends == [None]

        world.run(scenario())
