"""Run the broker of `tidelog start` after its flags are parsed: load settings, choose the event loop, handle signals,
print the ready line, report failures.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Protocol

from tidelog import __version__
from tidelog.cli.event_loop import new_event_loop
from tidelog.cli.logs import configure_logging
from tidelog.cli.start import FAILED, Options
from tidelog.config.broker_config import BrokerConfig, ConfigError
from tidelog.model.addresses import host_port_text
from tidelog.runtime.cancelling import cancel_and_wait
from tidelog.runtime.failures import IN_PYTHON, ON_THE_COMMAND_LINE, explain
from tidelog.runtime.interfaces import Runtime

log = logging.getLogger("tidelog.cli")

ORPHAN_GRACE_S = 5.0
"""Time in seconds that a broker has for a clean stop after its parent has ended."""
SWITCH_INTERVAL_S = 0.0005
"""The interpreter's thread switch interval, in seconds. The event loop waits at most this long for a thread that
computes (for example one that makes a checkpoint of 10,000 partitions). Python's default of 5 ms would increase the
tail latency."""


class RunningBroker(Protocol):
    """The part of `tidelog.broker.broker.BrokerServer` that this module uses."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def cluster_id(self) -> str: ...

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def wait_for_failure(self) -> str: ...


MakeBroker = Callable[[BrokerConfig, Runtime], RunningBroker]


def serve(options: Options) -> int:
    """Run a broker in this process's main thread until it is stopped or fails. Return the exit code."""
    configure_logging(options.log_level)
    try:
        config = load_config(options, os.environ)
    except ConfigError as error:
        return print_failure(str(error))
    except OSError as error:
        return print_failure(f"{options.config_file}: {error.strerror}")
    if options.is_supervised:
        configure_logging(options.log_level, config.node_id)
    from tidelog.broker.broker import BrokerServer
    from tidelog.runtime.descriptors import raise_descriptor_limit
    from tidelog.runtime.real import real_runtime

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raise_descriptor_limit()  # each connection needs a descriptor, and the usual soft limit is 1,024
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run_broker(config, BrokerServer, real_runtime, options))


def load_config(options: Options, environment: Mapping[str, str]) -> BrokerConfig:
    """Return the settings, with absolute data directories.

    Raises ConfigError, and OSError when the configuration file cannot be read.
    """

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
    config: BrokerConfig, make_broker: MakeBroker, make_runtime: Callable[[], Runtime], options: Options
) -> int:
    """Start the broker and print its address. Stop the broker after a signal, a failure or the end of the parent.

    Return the exit code. A second signal ends the process immediately, as in a crash. The next start then recovers the
    log.
    """
    loop = asyncio.get_running_loop()
    stop_requested = asyncio.Event()

    def on_orphaned() -> None:
        loop.call_later(ORPHAN_GRACE_S, os._exit, FAILED)
        stop_requested.set()

    restore_signals = handle_stop_signals(stop_requested, log)
    if options.parent_pipe is not None:
        from tidelog.cli.parent import watch_parent

        watch_parent(loop, options.parent_pipe, on_orphaned)
    # A parent that is not a supervisor is a program that chose host, port and data directory in Python code.
    remedies = ON_THE_COMMAND_LINE if options.parent_pipe is None or options.is_supervised else IN_PYTHON
    fail = partial(print_failure, node_id=config.node_id if options.is_supervised else None)
    runtime = make_runtime()
    try:
        broker = make_broker(config, runtime)
        start_task = loop.create_task(broker.start())
        stop_task = loop.create_task(stop_requested.wait())
        await asyncio.wait((start_task, stop_task), return_when=asyncio.FIRST_COMPLETED)
        if not start_task.done():
            # The stop was requested while the broker was recovering its log or was waiting for a lease. Cancel the
            # start, because the next start can repeat the recovery. But wait until the broker has released the
            # resources that the start had acquired, because their release needs the runtime.
            await cancel_and_wait(start_task)
            if not start_task.cancelled() and start_task.exception() is not None:
                log.warning("resources of the start not released reason=%s", start_task.exception())
            return 0
        await start_task
        try:
            print(ready_json(broker, config) if options.json else ready_line(broker, config), flush=True)
        except OSError as error:
            from tidelog.cli.output import drop_output

            drop_output()
            await broker.stop()
            return fail(f"the line with the broker's address cannot be written to stdout: {error.strerror}")
        failure_task = loop.create_task(broker.wait_for_failure())
        await asyncio.wait((stop_task, failure_task), return_when=asyncio.FIRST_COMPLETED)
        await broker.stop()
        if failure_task.done():
            return fail(failure_task.result())
        failure_task.cancel()
    except Exception as error:
        address = host_port_text(config.endpoints[0].host, config.endpoints[0].port)
        return fail(explain(error, config.data_directories, address, remedies))
    finally:
        await runtime.close()
        restore_signals()
    return 0


def handle_stop_signals(
    stop_requested: asyncio.Event, log: logging.Logger, before_exit: Callable[[], None] | None = None
) -> Callable[[], None]:
    """Handle the signals that stop the broker: the first one sets `stop_requested`, and the second one calls
    `before_exit` and ends the process immediately. Return a function that restores the former handlers.
    `handle_stop_signals` must be called on the running loop.
    """
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        name = signal.Signals(number).name
        if stop_requested.is_set():
            log.warning("stop=immediate signal=%s", name)
            if before_exit is not None:
                before_exit()
            os._exit(128 + number)
        log.info("stop=requested signal=%s", name)
        stop_requested.set()

    def on_raw_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(on_signal, number)

    # A signal that is ignored at the start remains ignored: nohup and background jobs of shells rely on this.
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    # add_signal_handler is not used, because uvloop may report a signal twice when another signal came just before it.
    previous = {number: signal.signal(number, on_raw_signal) for number in handled}

    def restore() -> None:
        for number, handler in previous.items():
            # None stands for a handler that was not installed by Python. Python cannot install it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    return restore


def ready_line(broker: RunningBroker, config: BrokerConfig) -> str:
    """Return the only line that is printed on stdout. Programs parse HOST:PORT after "listening on "."""
    address = host_port_text(broker.host, broker.port)
    directories = ", ".join(config.data_directories)
    return f"Tidelog {__version__} listening on {address} (data {directories}, cluster ID {broker.cluster_id})"


def ready_json(broker: RunningBroker, config: BrokerConfig) -> str:
    """Return the only line that is printed on stdout with --json."""
    import json

    facts = {
        "event": "serving",
        "broker": config.node_id,
        "host": broker.host,
        "port": broker.port,
        "data": config.data_directories,
        "cluster_id": broker.cluster_id,
        "pid": os.getpid(),
    }
    return json.dumps(facts)


def print_failure(line: str, node_id: int | None = None) -> int:
    """Print the error on stderr, and return the exit code. If the broker is one of several, the line contains its
    number.
    """
    print(f"Error: {line}" if node_id is None else f"Error: broker {node_id}: {line}", file=sys.stderr)
    return FAILED
