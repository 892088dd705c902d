"""A broker with two listeners: its limits count both together, as Kafka's do."""

import asyncio
import struct
from typing import Any

import pytest

from simulation_harness import boot
from tidelog.runtime.interfaces import Stream
from tidelog.simulation.world import World, simulated

PORTS = (9092, 9093)


class Peer:
    """A client that only connects, and sends bytes."""

    def __init__(self) -> None:
        self.open = False
        self._buffer = memoryview(bytearray(1000))

    def connected(self, stream: Stream) -> None:
        self.stream = stream
        self.open = True

    def get_buffer(self) -> memoryview:
        return self._buffer

    def received(self, count: int) -> None: ...
    def drained(self) -> None: ...

    def closed(self, error: OSError | None) -> None:
        self.open = False


async def peers(world: World, ports: tuple[int, ...], clients: tuple[str, ...] = ("client",)) -> list[Peer]:
    """One connection to each port from each client in turn."""
    made = []
    for number, port in enumerate(ports):
        host = world.host(clients[number % len(clients)])
        peer = Peer()
        await host.runtime.network.connect(world.host("broker").address, port, peer)
        await asyncio.sleep(0.1)
        made.append(peer)
    return made


async def boot_two(world: World, **settings: Any) -> None:
    host = world.host("broker")
    listeners = ",".join(f"{name}://{host.address}:{port}" for name, port in zip("AB", PORTS, strict=True))
    protocols = "A:PLAINTEXT,B:PLAINTEXT"
    await boot(host, listeners=listeners, listener_security_protocol_map=protocols, **settings)


@pytest.mark.parametrize("setting", ["max_connections", "max_connections_per_ip"])
def test_connections_count_over_all_listeners(setting: str) -> None:
    async def scenario() -> None:
        await boot_two(world, **{setting: 2})
        made = await peers(world, (9092, 9093, 9093, 9092))
        assert [peer.open for peer in made] == [True, True, False, False]
        made[0].stream.abort()
        await asyncio.sleep(0.1)
        again = await peers(world, (9093, 9092))
        assert [peer.open for peer in again] == [True, False], "one has gone"

    with simulated(1) as world:
        world.run(scenario())


def test_an_address_has_a_limit_of_its_own() -> None:
    async def scenario() -> None:
        await boot_two(world, max_connections_per_ip=1)
        made = await peers(world, (9092, 9093, 9092, 9093), ("one", "two"))
        assert [peer.open for peer in made] == [True, True, False, False]

    with simulated(1) as world:
        world.run(scenario())


def test_unfinished_requests_have_one_budget() -> None:
    """The connection whose request began first is closed, whichever listener it uses."""

    async def scenario() -> None:
        await boot_two(world, queued_max_request_bytes=3000)
        made = await peers(world, (9092, 9093, 9092, 9093))
        for peer in made:
            peer.stream.write([struct.pack(">i", 996) + b"x"])
            await asyncio.sleep(0.1)
        assert [peer.open for peer in made] == [False, True, True, True]

    with simulated(1) as world:
        world.run(scenario())
