"""What `tidelog start` does once its flags are read: settings, loop, signals, the ready line, failures in one line."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Protocol

from tidelog import __version__
from tidelog.cli.event_loop import new_event_loop
from tidelog.cli.logs import configure_logging
from tidelog.cli.start import FAILED, Options
from tidelog.config.broker_config import BrokerConfig, ConfigError
from tidelog.runtime.failures import IN_PYTHON, ON_THE_COMMAND_LINE, explain
from tidelog.runtime.interfaces import Runtime

log = logging.getLogger("tidelog.cli")

ORPHAN_GRACE_S = 5.0
"""How long a broker whose parent has ended may take to stop in order."""
SWITCH_INTERVAL_S = 0.0005
"""How long the loop waits at most for a thread that computes (say, a checkpoint of 10,000 partitions): Python's own
5 ms would be the tail of the latency.
"""


class RunningBroker(Protocol):
    """What this module needs of `tidelog.broker.broker.BrokerServer`."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def cluster_id(self) -> str: ...

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def failed(self) -> str: ...


MakeBroker = Callable[[BrokerConfig, Runtime], RunningBroker]


def serve(options: Options) -> int:
    """Run a broker until it is told to stop, in this process's main thread. Returns the exit code."""
    configure_logging(options.log_level)
    try:
        config = load_config(options, os.environ)
    except ConfigError as error:
        return fail(str(error))
    except OSError as error:
        return fail(f"{options.config_file}: {error.strerror}")
    from tidelog.broker.broker import BrokerServer
    from tidelog.runtime.descriptors import raise_descriptor_limit
    from tidelog.runtime.real import real_runtime

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raise_descriptor_limit()  # each connection takes one, and the usual soft limit is 1,024
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run_broker(config, BrokerServer, real_runtime, options.parent_pipe))


def load_config(options: Options, environment: Mapping[str, str]) -> BrokerConfig:
    """The settings, with an absolute data directory. Raises ConfigError, and OSError for the file."""

    def load(flags: Mapping[str, str]) -> BrokerConfig:
        return BrokerConfig.load(options.config_file, environment, flags, read=read_file)

    config = load(options.settings)
    directories = config.data_directories
    if all(os.path.isabs(directory) for directory in directories):  # noqa: PTH117 - pathlib costs start-up time
        return config
    absolute = load(options.settings | {"log.dirs": ",".join(map(os.path.abspath, directories))})
    absolute.origins["log.dirs"] = next(
        (config.origins[name] for name in ("log.dirs", "log.dir") if name in config.origins), "the default"
    )
    return absolute


def read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


async def run_broker(
    config: BrokerConfig, make_broker: MakeBroker, make_runtime: Callable[[], Runtime], parent_pipe: int | None
) -> int:
    """Start, say where it listens, wait for a signal (or the parent's end), stop.

    A second signal ends the process at once, which is a crash to the log, and one it recovers from.
    """
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if asked_to_stop.is_set():
            log.warning("stop=immediate signal=%s", signal.Signals(number).name)
            os._exit(128 + number)
        log.info("stop=requested signal=%s", signal.Signals(number).name)
        asked_to_stop.set()

    def on_orphaned() -> None:
        loop.call_later(ORPHAN_GRACE_S, os._exit, FAILED)
        asked_to_stop.set()

    def take(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(on_signal, number)

    # Ignored from the start means so wanted: nohup, a shell's background job.
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    taken = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    # Not by add_signal_handler: uvloop may tell of one signal twice when another came just before it.
    before = {number: signal.signal(number, take) for number in taken}
    if parent_pipe is not None:
        from tidelog.cli.parent import watch_parent

        watch_parent(loop, parent_pipe, on_orphaned)
    # A program that started us as its child gave host, port and data in Python.
    remedies = ON_THE_COMMAND_LINE if parent_pipe is None else IN_PYTHON
    runtime = make_runtime()
    try:
        broker = make_broker(config, runtime)
        starting = loop.create_task(broker.start())
        stopping = loop.create_task(asked_to_stop.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            # Told to stop while it recovers its log. What a kill leaves can be started from, and so can this.
            starting.cancel()
            return 0
        await starting
        try:
            print(ready_line(broker, ", ".join(config.data_directories)), flush=True)
        except OSError as error:
            from tidelog.cli.output import drop_output

            drop_output()
            await broker.stop()
            return fail(f"stdout does not take the line that says where it listens: {error.strerror}")
        failed = loop.create_task(broker.failed())
        await asyncio.wait((stopping, failed), return_when=asyncio.FIRST_COMPLETED)
        await broker.stop()
        if failed.done():
            return fail(failed.result())
        failed.cancel()
    except Exception as error:
        host, port = config.endpoints[0].host, config.endpoints[0].port
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return fail(explain(error, config.data_directory, address, remedies))
    finally:
        await runtime.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def ready_line(broker: RunningBroker, directory: str) -> str:
    """The one line on stdout. Programs read HOST:PORT behind "listening on "."""
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    return f"Tidelog {__version__} listening on {host}:{broker.port} (data {directory}, cluster ID {broker.cluster_id})"


def fail(line: str) -> int:
    print(f"Error: {line}", file=sys.stderr)
    return FAILED
