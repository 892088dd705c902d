"""The runtime of a real process: the implementations of this package as one value."""

import asyncio

from tidelog.runtime.clock import SystemClock
from tidelog.runtime.disk import LocalDisk
from tidelog.runtime.interfaces import Runtime
from tidelog.runtime.network import SocketNetwork
from tidelog.runtime.randomness import SystemRandom
from tidelog.runtime.tasks import LoopTasks
from tidelog.runtime.turns import Turns


def real_runtime(*, descriptors_max: int | None = None) -> Runtime:
    """Return a runtime on the running asyncio or uvloop loop. `Runtime.close()` releases all its resources.

    `descriptors_max` bounds the open descriptors of files. The default is half of the process's current soft limit.
    """
    loop = asyncio.get_running_loop()
    clock, tasks = SystemClock(), LoopTasks(loop)
    return Runtime(
        clock=clock,
        random=SystemRandom(),
        disk=LocalDisk(descriptors_max=descriptors_max),
        network=SocketNetwork(loop, tasks),
        tasks=tasks,
        turns=Turns(clock, tasks),
    )
