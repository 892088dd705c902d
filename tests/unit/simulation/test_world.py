"""Worlds: equal seeds give equal traces, processes die completely, failures name their seed."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tidelog.runtime.interfaces import Runtime, Stream
from tidelog.simulation.loop import TimeIsUp
from tidelog.simulation.tasks import ProcessGone
from tidelog.simulation.world import EPOCH_MS, EscapedError, World, simulated


class LogServer:
    """A tiny durable service: appends each message to a file, syncs it off the loop, then answers its length."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        runtime.disk.make_dirs("/data")
        self.file = runtime.disk.open("/data/log", create=True)
        self.end = self.file.size()
        self.buffer = memoryview(bytearray(4096))
        self.stream: Stream

    def connected(self, stream: Stream) -> None:
        self.stream = stream

    def get_buffer(self) -> memoryview:
        return self.buffer

    def received(self, count: int) -> None:
        self.file.pwrite(self.buffer[:count], self.end)
        self.end += count
        self.runtime.tasks.spawn(self.acknowledge(count), name="acknowledge")

    async def acknowledge(self, count: int) -> None:
        await self.runtime.tasks.run_blocking(self.file.sync)
        self.stream.write([b"%d\n" % count])

    def drained(self) -> None:
        pass

    def closed(self, error: OSError | None) -> None:
        pass


class Client:
    def __init__(self) -> None:
        self.answers = b""
        self.ended = asyncio.Event()
        self.buffer = memoryview(bytearray(100))

    def connected(self, stream: Stream) -> None:
        pass

    def get_buffer(self) -> memoryview:
        return self.buffer

    def received(self, count: int) -> None:
        self.answers += bytes(self.buffer[:count])

    def drained(self) -> None:
        pass

    def closed(self, error: OSError | None) -> None:
        self.ended.set()


def eventful_run(seed: int) -> str:
    """Three hosts, faults of each kind; the trace."""
    with simulated(seed) as world:
        servers = [world.host(name) for name in ("b", "c")]

        async def scenario() -> None:
            client = world.host("a").runtime
            rng = world.rng("scenario")
            for _ in range(4):
                for server in servers:
                    runtime = server.runtime
                    server.disk.sync_dir("/")
                    (await runtime.network.bind("0.0.0.0", 9092)).listen(partial(LogServer, runtime))
                for server in servers:
                    stream = await client.network.connect(server.name, 9092, Client())
                    for _ in range(rng.randrange(20)):
                        stream.write([rng.randbytes(rng.randrange(1, 3000))])
                        await client.tasks.sleep(rng.uniform(0, 0.01))
                world.network.partition("a", "b")
                await client.tasks.sleep(rng.uniform(0, 1))
                world.network.heal()
                servers[0].kill()
                servers[1].cut_power()

        world.run(scenario())
        return world.trace.text()


def test_equal_seeds_give_equal_traces_and_others_do_not() -> None:
    trace = eventful_run(7)
    for what in (
        "net.send ",
        "net.receive ",
        "disk.write ",
        "disk.sync ",
        "timer ",
        "host.kill",
        "host.cut_power",
        "crc=",
    ):
        assert what in trace
    assert eventful_run(7) == trace
    assert eventful_run(8) != trace


def test_the_trace_is_equal_in_two_fresh_processes() -> None:
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n" + (
        "from test_world import eventful_run\nsys.stdout.write(eventful_run(1234))"
    )
    traces = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert traces[0].count(b"\n") > 200


def test_a_failure_names_its_seed_and_shows_the_trace() -> None:
    with pytest.raises(AssertionError) as failure, simulated(4711) as world:
        world.trace.note("a", "the last thing")
        raise AssertionError("planted")
    assert "seed=4711" in failure.value.__notes__[0]
    assert "the last thing" in failure.value.__notes__[0]


def test_generators_of_different_purposes_are_independent() -> None:
    one, other = World(1), World(1)
    one.rng("a").random()
    assert one.rng("b").random() == other.rng("b").random() != other.rng("a").random()
    assert World(2).rng("b").random() != other.rng("b").random()


def test_clocks_are_virtual_and_may_be_wrong() -> None:
    with simulated(1) as world:

        async def scenario() -> None:
            runtime = world.host("a").runtime
            assert (runtime.clock.now_ms(), runtime.clock.monotonic()) == (EPOCH_MS, 0.0)
            await runtime.tasks.sleep(60)
            world.host("a").clock.wall_offset_ms = -5000
            assert (runtime.clock.now_ms(), runtime.clock.monotonic()) == (EPOCH_MS + 55_000, 60.0)
            assert world.host("b").runtime.clock.now_ms() == EPOCH_MS + 60_000

        world.run(scenario())


def test_a_killed_process_has_no_effect_any_more() -> None:
    with simulated(1) as world:
        host = world.host("a")
        effects: list[str] = []

        async def service(runtime: Runtime) -> None:
            runtime.disk.write_atomic("/started", b"1")
            try:
                await runtime.tasks.sleep(5)
                effects.append("woke")
            finally:
                runtime.disk.write_atomic("/cleaned-up", b"1")
                effects.append("cleaned up")

        async def scenario() -> None:
            runtime = host.runtime
            runtime.tasks.spawn(service(runtime), name="service")
            runtime.tasks.call_later(2, effects.append, "timer")
            runtime.tasks.call_soon(effects.append, "soon")
            blocking = runtime.tasks.run_blocking(effects.append, "blocking", lane="store")
            lane = runtime.tasks.run_blocking(effects.append, "lane", lane="store")
            await asyncio.sleep(0)
            host.kill()
            assert not host.running
            await asyncio.sleep(10)
            assert not blocking.done() or not lane.done()
            assert "lane" not in effects
            assert not {"woke", "cleaned up", "timer"} & set(effects)
            assert host.disk.list("/") == ["started"]
            calls: list[Callable[[], object]] = [
                lambda: runtime.tasks.call_later(1, print),
                lambda: runtime.tasks.call_soon(print),
                lambda: runtime.tasks.run_blocking(print),
                lambda: runtime.tasks.spawn(service(runtime), name="late"),
                lambda: runtime.disk.list("/"),
                runtime.network.close,
            ]
            for call in calls:
                with pytest.raises(ProcessGone):
                    call()
            assert host.start() is not runtime
            assert host.starts == 2

        world.run(scenario())


def test_power_may_fail_within_an_operation_of_the_process_itself() -> None:
    with simulated(3) as world:
        host = world.host("a")
        after: list[str] = []

        async def service(runtime: Runtime) -> None:
            file = runtime.disk.open("/log", create=True)
            runtime.disk.sync_dir("/")
            file.pwrite(b"synced", 0)
            file.sync()
            file.pwrite(b"lost?", 6)
            after.append("unreachable")

        def cut(operation: str, _path: str) -> None:
            if operation == "write" and host.disk.operations == 5:
                host.cut_power()

        async def scenario() -> None:
            host.disk.on_operation = cut
            task = host.runtime.tasks.spawn(service(host.runtime), name="service")
            await asyncio.wait([task])
            assert isinstance(task.exception(), ProcessGone)
            assert host.disk.read("/log").startswith(b"synced")
            assert after == []

        world.run(scenario())


def test_blocking_calls_take_effect_at_their_beginning_or_at_their_end() -> None:
    with simulated(5) as world:

        async def scenario() -> None:
            tasks = world.host("a").runtime.tasks
            run_all = 0
            for _ in range(50):
                seen: list[int] = []
                call = tasks.run_blocking(seen.append, 1)
                run_all += len(seen)
                await call
                assert seen == [1]
            assert 10 < run_all < 40
            order: list[int] = []
            await asyncio.gather(*(tasks.run_blocking(order.append, number, lane="store") for number in range(20)))
            assert order == list(range(20))
            with pytest.raises(OSError, match="planted"):
                await tasks.run_blocking(_fail)
            cancelled = tasks.run_blocking(order.append, -1, lane="store")
            if not cancelled.cancel() or order[-1] != -1:
                await asyncio.sleep(1)
            await tasks.close()

        world.run(scenario())


def _fail() -> None:
    raise OSError("planted")


def test_closing_waits_for_tasks_and_blocking_calls() -> None:
    with simulated(6) as world:

        async def scenario() -> None:
            runtime = world.host("a").runtime
            ended: list[str] = []

            async def service() -> None:
                try:
                    await runtime.tasks.sleep(3600)
                finally:
                    ended.append("service")

            runtime.tasks.spawn(service(), name="service")
            call = runtime.tasks.run_blocking(ended.append, "write")
            await runtime.tasks.sleep(0)
            await runtime.close()
            assert call.done()
            assert sorted(ended) == ["service", "write"]

        world.run(scenario())


def test_what_escapes_fails_the_run(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1)

    async def scenario() -> None:
        world.host("a").runtime.tasks.call_later(1, _fail)
        await asyncio.sleep(2)

    with pytest.raises(EscapedError, match="planted"):
        world.run(scenario())
    world.close()

    with simulated(1) as other:

        async def failing() -> None:
            _fail()

        async def spawning() -> None:
            other.host("a").runtime.tasks.spawn(failing(), name="flusher")
            await asyncio.sleep(1)

        other.run(spawning())
        assert "a/flusher" in caplog.text


def test_a_run_has_a_limit_and_can_go_on() -> None:
    with simulated(1) as world:

        async def ticking(seconds: int) -> int:
            for _ in range(seconds):
                await asyncio.sleep(1)
            return seconds

        assert world.run(ticking(10), virtual_s=20) == 10
        with pytest.raises(TimeIsUp):
            world.run(ticking(100), virtual_s=20)
        assert world.run(ticking(5), virtual_s=20) == 5
