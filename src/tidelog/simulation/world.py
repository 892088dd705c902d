"""A simulated world: hosts with disks and processes, one network and one virtual clock. One seed determines the whole
run.

    with simulated(seed) as world:
        host = world.host("a")
        world.run(scenario(host.runtime), virtual_s=600)

If the block raises an exception, a note with the seed and the end of the trace is added to the exception.
"""

import asyncio
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tidelog.runtime.interfaces import Runtime
from tidelog.runtime.turns import Turns
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.loop import SimLoop
from tidelog.simulation.medium import PowerCutOdds
from tidelog.simulation.network import HostNetwork, SimNetwork
from tidelog.simulation.tasks import ProcessGone, SimTasks
from tidelog.simulation.trace import Trace

T = TypeVar("T")

EPOCH_MS = 1_767_225_600_000
"""Wall-clock time at virtual time 0: 2026-01-01T00:00:00Z."""

TRACE_TAIL_LINES = 30


class EscapedError(RuntimeError):
    """Errors that were not handled: exceptions of callbacks, and of tasks that no other task has awaited."""


class SimClock:
    """The wall clock and the monotonic clock of one host. A test can set the wall clock wrong, and can make both clocks
    run too fast or too slowly.
    """

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.wall_offset_ms = 0
        """This offset is added to the wall-clock time. It does not affect the monotonic time."""
        self.rate = 1.0
        """Seconds by which both clocks advance in one virtual second."""
        self._counted_s = 0.0
        """Monotonic time, in seconds, when the rate was last set, plus the seconds of later calls of `sleep`."""
        self._rate_since_s = 0.0
        """Virtual time, in seconds, when the rate was last set."""

    def set_rate(self, rate: float) -> None:
        """From now on, let the wall clock and the monotonic clock advance by `rate` seconds in one virtual second. New
        timers of the host also use this rate.
        """
        self._counted_s, self._rate_since_s, self.rate = self.monotonic(), self._loop.time(), rate

    def sleep(self, seconds: float) -> None:
        """Advance both clocks immediately, as if the machine had slept. The timers of the host are not affected."""
        self._counted_s += seconds

    def now_ms(self) -> int:
        return EPOCH_MS + self.wall_offset_ms + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return self._counted_s + (self._loop.time() - self._rate_since_s) * self.rate


class SimHost:
    """A machine with at most one process at a time. The content of its disk is not lost when a process ends."""

    def __init__(self, world: "World", name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.clock = SimClock(world.loop)
        self.starts = 0
        self._world = world
        self._boots = 1
        self._disk = SimDisk(rng=world.rng(f"{name}/disk"), trace=world.trace, host=name, now_ms=self.clock.now_ms)
        self._runtime: Runtime | None = None
        self._tasks: SimTasks
        self._network: HostNetwork

    @property
    def disk(self) -> SimDisk:
        """The disk of the running process, or the disk that the next process will get."""
        return self._disk

    @property
    def running(self) -> bool:
        return self._runtime is not None

    @property
    def runtime(self) -> Runtime:
        """The runtime of the running process. If no process runs, one is started."""
        return self._runtime or self.start()

    def start(self) -> Runtime:
        """Switch the power on if it is off, and start a new process."""
        assert self._runtime is None, f"{self.name} is running"
        world = self._world
        self.starts += 1
        world.trace.note(self.name, "host.start", str(self.starts))
        self._network = world.network.start_process(self.name)
        tasks_rng = world.rng(f"{self.name}/tasks/{self.starts}")
        self._tasks = SimTasks(world.loop, self.name, tasks_rng, world.trace, lambda: self.clock.rate)
        process_rng = world.rng(f"{self.name}/process/{self.starts}")
        self._disk.boot_id = f"{self.name} {self._boots}"
        turns = Turns(self.clock, self._tasks)
        self._runtime = Runtime(self.clock, process_rng, self._disk, self._network, self._tasks, turns)
        return self._runtime

    def insert(self, disk: SimDisk) -> None:
        """Replace the disk, for example by the result of `SimDisk.power_cut`. The host must not have a process."""
        assert self._runtime is None, f"{self.name} is running"
        world = self._world
        rng = world.rng(f"{self.name}/inserted disk/{self.starts}")
        self._disk = SimDisk(disk.medium, rng=rng, trace=world.trace, host=self.name, now_ms=self.clock.now_ms)

    @property
    def paused(self) -> bool:
        return self._world.loop.is_paused(self.name)

    def pause(self) -> None:
        """Pause the process as SIGSTOP does: none of its code runs, but its clocks advance. The kernel still accepts
        connections and bytes.
        """
        assert self._runtime is not None, f"{self.name} is not running"
        self._world.trace.note(self.name, "host.pause")
        self._world.loop.pause_process(self.name)

    def resume(self) -> None:
        """Continue a paused process as SIGCONT does. Timers that became due during the pause fire now."""
        self._world.trace.note(self.name, "host.resume")
        self._world.loop.continue_process(self.name)

    def kill(self) -> None:
        """Kill the process as kill -9 does: no written byte is lost, and the kernel closes the connections of the
        process.
        """
        self._end("host.kill", power=True)
        self._disk = self._disk.kill()

    def cut_power(self, odds: PowerCutOdds | None = None) -> None:
        """Cut the power: all synced bytes and some unsynced bytes survive, and peers are not notified."""
        self._end("host.cut_power", power=False)
        survivor = self._disk.power_cut(self._world.rng(f"{self.name}/power/{self.starts}"), odds)
        self._disk.kill()
        self._disk = survivor
        self._boots += 1

    def _end(self, event: str, *, power: bool) -> None:
        assert self._runtime is not None, f"{self.name} is not running"
        self._world.trace.note(self.name, event)
        self._runtime = None
        self._tasks.kill()
        self._world.loop.continue_process(self.name)  # the cancelled tasks of a paused process must be able to end
        self._world.network.stop_process(self.name, power=power)


class World:
    """All parts of one simulated run. Equal seeds and equal programs give equal traces."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = SimLoop()
        self.trace = Trace(self.loop.time)
        self.network = SimNetwork(self.loop, self.rng("network"), self.trace)
        self.hosts: dict[str, SimHost] = {}
        self._escaped: list[str] = []
        self.loop.set_exception_handler(self._note_escaped)

    def rng(self, purpose: str) -> random.Random:
        """Return a random generator for one purpose. Generators for other purposes do not change its sequence."""
        return random.Random(f"tidelog {self.seed} {purpose}")  # noqa: S311 - it must be predictable

    def host(self, name: str) -> SimHost:
        """Return the host with this name. The first call creates it."""
        if name not in self.hosts:
            address = f"10.0.0.{len(self.hosts) + 1}"
            self.network.add_host(name, address)
            self.hosts[name] = SimHost(self, name, address)
        return self.hosts[name]

    def run(self, scenario: Coroutine[Any, Any, T], *, virtual_s: float = 3600.0) -> T:
        """Run `scenario` to its end. Afterwards no code of the world's processes runs until the next call of
        `run`.

        Raises the scenario's exceptions, and Deadlock, Livelock, TimeIsUp or EscapedError.
        """
        self.loop.limit_time(self.loop.time() + virtual_s)
        task = self.loop.create_task(scenario, name="scenario")
        try:
            result = self.loop.run_until_complete(task)
        finally:
            if not task.done():
                task.cancel()
        if self._escaped:
            raise EscapedError("; ".join(self._escaped))
        return result

    def close(self) -> None:
        """Kill every process, let its tasks end without effect, and close the loop."""
        for host in self.hosts.values():
            if host.running:
                host.kill()
        self.loop.limit_time(float("inf"))
        self.loop.run_until_complete(self._unwind())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _unwind(self) -> None:
        """Run the cancelled tasks of ended processes to their ends. A task that never ends is ignored."""
        for _ in range(100):
            current = asyncio.current_task()
            unfinished = [task for task in asyncio.all_tasks() if task is not current]
            if not unfinished:
                return
            for task in unfinished:
                task.cancel()
            await asyncio.sleep(0)

    def _note_escaped(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, ProcessGone):
            self._escaped.append(f"{context.get('message')}: {error!r}")


@contextmanager
def simulated(seed: int) -> Iterator[World]:
    """Provide a world and close it at the end. If the block raises an exception, a note with the seed and the end of
    the trace is added to the exception.
    """
    world = World(seed)
    try:
        yield world
    except BaseException as error:
        error.add_note(f"simulation seed={seed}; end of the trace:\n{world.trace.tail(TRACE_TAIL_LINES)}")
        raise
    finally:
        world.close()
