"""A paused process runs no code, while its clocks and the kernel go on. Clocks that drift change timers too."""

import asyncio

from tidelog.simulation.client import SimClient
from tidelog.simulation.world import EPOCH_MS, SimHost, World, simulated


class Echo:
    """A receiver that returns all bytes, and notes when it got them."""

    def __init__(self, host: SimHost, seen: list[tuple[float, bytes]]) -> None:
        self._host = host
        self._seen = seen
        self._buffer = memoryview(bytearray(100))

    def connected(self, stream: object) -> None:
        self._stream = stream

    def get_buffer(self) -> memoryview:
        return self._buffer

    def received(self, count: int) -> None:
        data = bytes(self._buffer[:count])
        self._seen.append((self._host.clock.monotonic(), data))
        self._stream.write([data])  # type: ignore[attr-defined]

    def drained(self) -> None: ...

    def closed(self, error: OSError | None) -> None: ...


async def ticks(host: SimHost, times: list[float]) -> None:
    while True:
        await host.runtime.tasks.sleep(1.0)
        times.append(host.clock.monotonic())


def test_no_callback_of_a_paused_process_runs_and_its_timers_are_late() -> None:
    async def scenario(world: World) -> list[float]:
        host, times = world.host("a"), []
        host.runtime.tasks.spawn(ticks(host, times), name="ticks")
        host.runtime.tasks.call_later(4.0, lambda: times.append(-1.0))
        await asyncio.sleep(0.5)
        work = host.runtime.tasks.run_blocking(lambda: None)
        host.pause()
        await asyncio.sleep(10.0)
        assert times == []
        assert not work.done()
        assert host.clock.monotonic() == 10.5
        host.resume()
        await asyncio.sleep(2.0)
        assert work.done()
        return times

    with simulated(1) as world:
        times = world.run(scenario(world))
    assert times == [-1.0, 10.5, 11.5, 12.5]


def test_another_host_goes_on_meanwhile() -> None:
    async def scenario(world: World) -> list[float]:
        times: list[float] = []
        world.host("b").runtime.tasks.spawn(ticks(world.host("b"), times), name="ticks")
        assert world.host("a").runtime
        world.host("a").pause()
        await asyncio.sleep(3.5)
        return times

    with simulated(1) as world:
        assert world.run(scenario(world)) == [1.0, 2.0, 3.0]


def test_the_kernel_of_a_paused_process_accepts_connections_and_bytes() -> None:
    async def scenario(world: World) -> tuple[list[tuple[float, bytes]], list[tuple[float, bytes]]]:
        server, client = world.host("server"), world.host("client")
        at_server: list[tuple[float, bytes]] = []
        at_client: list[tuple[float, bytes]] = []
        listener = await server.runtime.network.bind(server.address, 1)
        listener.listen(lambda: Echo(server, at_server))
        server.pause()
        # the client does not send its bytes back
        receiver = Echo(client, at_client)
        stream = await client.runtime.network.connect(server.address, 1, receiver)
        receiver._stream = type("Sink", (), {"write": lambda _self, _pieces: None})()
        stream.write([b"hello"])
        await asyncio.sleep(5)
        assert at_server == []
        server.resume()
        await asyncio.sleep(1)
        return at_server, at_client

    with simulated(1) as world:
        at_server, at_client = world.run(scenario(world))
    assert b"".join(data for _, data in at_server) == b"hello"
    assert at_server[0][0] >= 5
    assert b"".join(data for _, data in at_client) == b"hello"


def test_bytes_that_a_process_sent_before_its_pause_arrive() -> None:
    async def scenario(world: World) -> list[tuple[float, bytes]]:
        server, client = world.host("server"), world.host("client")
        at_server: list[tuple[float, bytes]] = []
        listener = await server.runtime.network.bind(server.address, 1)
        listener.listen(lambda: Echo(server, at_server))
        connection = SimClient(client.runtime)
        stream = await client.runtime.network.connect(server.address, 1, connection)

        async def send_and_stop() -> None:
            stream.write([b"last words"])
            client.pause()

        await client.runtime.tasks.spawn(send_and_stop(), name="send")
        await asyncio.sleep(1)
        return at_server

    with simulated(3) as world:
        # the task cannot report its end, so the pause must end before the scenario does
        world.loop.call_system_later(0.5, world.host("client").resume)
        at_server = world.run(scenario(world))
    assert b"".join(data for _, data in at_server) == b"last words"
    assert at_server[0][0] < 0.5


def test_a_paused_process_can_be_killed() -> None:
    async def scenario(world: World) -> list[float]:
        host, times = world.host("a"), []
        host.runtime.tasks.spawn(ticks(host, times), name="ticks")
        host.pause()
        await asyncio.sleep(3)
        host.kill()
        await asyncio.sleep(3)
        assert not host.paused
        return times

    with simulated(1) as world:
        assert world.run(scenario(world)) == []


def test_a_clock_that_drifts_changes_time_and_timers() -> None:
    async def scenario(world: World) -> tuple[float, int, float]:
        host = world.host("a")
        await host.runtime.tasks.sleep(10)
        host.clock.set_rate(1.25)
        await host.runtime.tasks.sleep(10)
        ended = world.loop.time()
        monotonic, wall = host.clock.monotonic(), host.clock.now_ms()
        host.clock.set_rate(1.0)
        assert host.clock.monotonic() == monotonic
        return monotonic, wall, ended

    with simulated(1) as world:
        assert world.run(scenario(world)) == (20.0, EPOCH_MS + 20_000, 18.0)
