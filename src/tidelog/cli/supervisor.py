"""`tidelog start --brokers N`: run the brokers of a cluster on one machine, each in a process of its own.

The supervisor starts the processes, reports their addresses, starts a process again after it has ended, and stops
all of them one after another. It has no data and accepts no connections: clients use the brokers' ports.

Every broker has the read end of a pipe, and only the supervisor has the write end. When the supervisor ends, even by
kill -9, the brokers read end-of-file and stop (`cli/parent.py`).
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidelog.cli.brokers_of_host import BrokerPlan, check_directory, plan_brokers
from tidelog.cli.logs import configure_logging
from tidelog.cli.serve import handle_stop_signals, load_config, print_failure
from tidelog.cli.start import FAILED, Options
from tidelog.cli.supervisor_lines import LineReporter, ServingBroker, read_serving_line
from tidelog.config.broker_config import ConfigError
from tidelog.model.addresses import host_port_text

if TYPE_CHECKING:
    from tidelog.config.broker_config import BrokerConfig

logger = logging.getLogger("tidelog.supervisor")

RESTART_MIN_S = 0.5
RESTART_MAX_S = 30.0
"""Bounds of the pause before a broker is started again, in seconds. The pause doubles each time the broker ends."""
HEALTHY_S = 60.0
"""If a broker ends after it has served for this long, it is started again after the shortest pause."""
STOP_S = 60.0
"""A broker that has not stopped after this time is killed. A clean stop takes at most about 15 s plus the time to
sync the logs."""


class Leases(Protocol):
    """The part of `BrokerLeases` that the supervisor uses."""

    async def prepare(self) -> None: ...
    async def controller(self) -> int | None: ...
    async def end(self, number: int, directories: Sequence[str]) -> None: ...


MakeCommand = Callable[[BrokerPlan, int], list[str]]
"""Returns the command that runs a broker. The number is the descriptor of the pipe that the broker must watch."""


class Child:
    """One broker, whose process may be started several times."""

    def __init__(self, plan: BrokerPlan) -> None:
        self.plan = plan
        self.process: asyncio.subprocess.Process | None = None
        """The running process; None between two runs."""
        self.serving: ServingBroker | None = None
        """The address and the process of the last run that served; None if no run has served yet."""
        self.ends_in_a_row = 0
        """How often the process has ended since it last served for HEALTHY_S. This number determines the pause before
        the next start."""
        self.exit_code: int | None = None
        """The exit code of the last run that has ended."""


def supervise(options: Options) -> int:
    """Run the brokers until a signal stops them. Return the exit code."""
    configure_logging(options.log_level)
    assert options.brokers is not None
    try:
        config = load_config(options, os.environ)
        plans = plan_brokers(config, options.brokers)
        numbers = {number for path in config.data_directories for number in check_directory(path)}
    except ConfigError as error:
        return print_failure(str(error))
    except OSError as error:
        return print_failure(f"{options.config_file}: {error.strerror}")
    if (busy := busy_addresses(plans)) is not None:
        return print_failure(busy)
    if rest := without_plan(numbers, plans):
        logger.warning("brokers with data are not started nodes=%s started=%d", ",".join(map(str, rest)), len(plans))
    try:
        for path in config.data_directories:
            Path(path).mkdir(parents=True, exist_ok=True)  # by default, the first one will contain the metadata store
    except OSError as error:
        return print_failure(
            f"{error.filename} cannot be created ({error.strerror}): choose another directory with --data DIR"
        )
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(run_supervisor(options, config, plans))


def without_plan(numbers: set[int], plans: Sequence[BrokerPlan]) -> list[int]:
    """Return the brokers that have data and are not started, in order."""
    return sorted(numbers - {plan.number for plan in plans})


async def run_supervisor(options: Options, config: "BrokerConfig", plans: Sequence[BrokerPlan]) -> int:
    from tidelog.broker.dead_leases import BrokerLeases
    from tidelog.config.metadata_store import parse_store_address
    from tidelog.runtime.real import real_runtime

    runtime = real_runtime()
    store = plans[0].settings.get("metadata.store") or config.get("metadata.store")
    leases = BrokerLeases(parse_store_address(store), runtime)

    def command(plan: BrokerPlan, pipe: int) -> list[str]:
        return broker_command(options, plan, pipe)

    try:
        return await Supervisor(plans, command, LineReporter(options.json), leases, options.parent_pipe).run()
    finally:
        await runtime.close()


def busy_addresses(plans: Sequence[BrokerPlan]) -> str | None:
    """Return an error that names the addresses that other programs use; None if all addresses are free.

    Other problems of an address are reported by the broker that listens there.
    """
    import errno

    busy: list[str] = []
    for plan in plans:
        for endpoint in plan.endpoints:
            host = endpoint.host or None
            with suppress(OSError):
                address_infos = socket.getaddrinfo(
                    host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
                for family, _, _, _, address in address_infos:
                    with socket.socket(family, socket.SOCK_STREAM) as probe:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        if family == socket.AF_INET6:
                            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                        try:
                            probe.bind(address)
                        except OSError as error:
                            if error.errno == errno.EADDRINUSE:
                                busy.append(host_port_text(endpoint.host, endpoint.port))
                                break
    if not busy:
        return None
    verb = "is" if len(busy) == 1 else "are"
    need = "" if len(plans) == 1 else f", and {len(plans)} brokers need consecutive ports"
    return (
        f"{', '.join(busy)} {verb} in use{need}: stop the program that listens there, or choose another first port "
        "with --listen HOST:PORT (port 0 chooses free ports)"
    )


def broker_command(options: Options, plan: BrokerPlan, pipe: int) -> list[str]:
    settings = options.settings | plan.settings
    arguments = [f"--set={name}={value}" for name, value in settings.items()]
    if options.config_file is not None:
        arguments.append(f"--config={options.config_file}")
    arguments += [f"--log-level={options.log_level}", "--json", f"--supervisor-pipe={pipe}"]
    return [sys.executable, "-P", "-m", "tidelog", "start", *arguments]


class Supervisor:
    """Runs the processes of the brokers, until a signal or the end of the parent process stops them."""

    def __init__(
        self,
        plans: Sequence[BrokerPlan],
        make_command: MakeCommand,
        reporter: LineReporter,
        leases: Leases,
        parent_pipe: int | None = None,
    ) -> None:
        self._children = [Child(plan) for plan in plans]
        self._make_command = make_command
        self._reporter = reporter
        self._leases = leases
        self._parent_pipe = parent_pipe
        self._stop_requested = asyncio.Event()
        self._stopping = False
        self._all_failed = False
        self._preparation: asyncio.Future[None] | None = None
        """The call of `Leases.prepare`. It begins once, when every broker has served."""
        self._reading_end, self._writing_end = os.pipe()

    async def run(self) -> int:
        """Start the brokers. Return the exit code when all of them have ended.

        The first stop signal stops all brokers cleanly, and the second one kills them. The exit code is 0 if a signal
        or the end of the parent stopped the brokers, and the last exit code of every broker was 0.
        """
        restore_signals = handle_stop_signals(self._stop_requested, logger, self._kill_all)
        if self._parent_pipe is not None:
            from tidelog.cli.parent import watch_parent

            watch_parent(asyncio.get_running_loop(), self._parent_pipe, self._stop_requested.set)
        keepers = [asyncio.ensure_future(self._keep_running(child)) for child in self._children]
        waiting = asyncio.ensure_future(self._stop_requested.wait())
        try:
            await asyncio.wait((waiting, *keepers), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            for keeper in keepers:
                if keeper.done():
                    keeper.result()  # an error of the supervisor itself
            await self._stop_all()
            await asyncio.gather(*keepers)
        finally:
            if self._preparation is not None:
                self._preparation.cancel()
            self._kill_all()
            os.close(self._reading_end)
            os.close(self._writing_end)
            restore_signals()
        return FAILED if self._all_failed or any(child.exit_code != 0 for child in self._children) else 0

    # One broker

    async def _keep_running(self, child: Child) -> None:
        """Run the broker's process again and again, until the supervisor stops."""
        while not self._stopping:
            process = await self._start(child)
            served_from_s = await self._report_when_serving(child, process)
            child.exit_code = await process.wait()
            child.process = None
            if self._stopping:
                return
            if served_from_s is not None and time.monotonic() - served_from_s >= HEALTHY_S:
                child.ends_in_a_row = 0
            pause_s = min(RESTART_MAX_S, RESTART_MIN_S * 2**child.ends_in_a_row)
            child.ends_in_a_row += 1
            if self._no_broker_works():
                self._all_failed = True
                self._stop_requested.set()
                return
            self._reporter.ended(child.plan.number, process.pid, child.exit_code, pause_s)
            await self._leases.end(child.plan.number, child.plan.directories)
            with suppress(TimeoutError):  # after the whole pause, the broker is started again
                await asyncio.wait_for(self._stop_requested.wait(), pause_s)
                return

    async def _start(self, child: Child) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self._make_command(child.plan, self._reading_end),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=[self._reading_end],
            start_new_session=True,  # a terminal's Ctrl-C and hang-up reach only the supervisor
        )
        child.process = process
        if self._stopping:  # `_stop_all` began while the process was created, and did not see it
            send_signal(process, signal.SIGTERM)
        return process

    async def _report_when_serving(self, child: Child, process: asyncio.subprocess.Process) -> float | None:
        """Report the broker's address when it serves, and return the monotonic time of this moment. Return None if the
        process ended before it served.
        """
        assert process.stdout is not None
        serving = read_serving_line(await process.stdout.readline())
        if serving is None:
            return None
        child.serving = serving
        endpoint = child.plan.endpoints[0]
        if endpoint.port == 0:
            # After a restart the broker must have the address that clients know.
            texts = child.plan.settings["listeners"].split(",")
            texts[0] = f"{texts[0].rpartition(':')[0]}:{serving.port}"
            child.plan.settings["listeners"] = ",".join(texts)
        self._reporter.serving(serving)
        all_serving = [other.serving for other in self._children if other.serving is not None]
        if len(all_serving) == len(self._children):
            self._reporter.ready(all_serving)
            if self._preparation is None:
                self._preparation = asyncio.ensure_future(self._leases.prepare())
        return time.monotonic()

    def _no_broker_works(self) -> bool:
        """Return whether all brokers have ended and no broker has ever served. Each broker has reported the reason."""
        return all(child.serving is None and child.ends_in_a_row > 0 for child in self._children)

    # The end

    async def _stop_all(self) -> None:
        """Stop the brokers one after another.

        Before a broker stops, it hands its leaderships over, so that the remaining brokers still serve clients. The
        controller decides about the leaderships, so it stops last.
        """
        self._stopping = True
        controller = await self._leases.controller() if len(self._children) > 1 else None
        for child in sorted(self._children, key=lambda child: (child.plan.number == controller, -child.plan.number)):
            process = child.process
            if process is None or process.returncode is not None:
                continue
            logger.info("broker stopping node=%d pid=%d", child.plan.number, process.pid)
            send_signal(process, signal.SIGTERM)
            send_signal(process, signal.SIGCONT)  # the broker may have been paused
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                logger.error("broker killed because it has not stopped node=%d seconds=%.0f", child.plan.number, STOP_S)
                send_signal(process, signal.SIGKILL)

    def _kill_all(self) -> None:
        for child in self._children:
            if child.process is not None and child.process.returncode is None:
                send_signal(child.process, signal.SIGKILL)


def send_signal(process: asyncio.subprocess.Process, number: int) -> None:
    """Send a signal to a process. Do nothing if the event loop has already collected the process's exit code.

    `process.send_signal` is not used, because it may collect the exit code of an ended process before asyncio does.
    Then asyncio reports the exit code 255 instead of the real one.
    """
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)
