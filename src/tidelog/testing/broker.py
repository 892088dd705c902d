"""One broker for a `with` block: in a thread of this process, or in a process of its own that can be killed."""

import asyncio
import atexit
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from tidelog.testing.failure import BrokerFailedError

if TYPE_CHECKING:
    from multiprocessing.util import Finalize

    from tidelog.config.broker_config import BrokerConfig

__all__ = ["Broker", "BrokerFailedError"]

TEST_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",  # a lone consumer starts at once
    "offsets.topic.num.partitions": "1",
}
"""What differs from `tidelog start`: tests do not wait. `settings` counts more."""

AFTER_GRANDCHILDREN = -1
"""A priority of multiprocessing: below 0 means after its own children were joined, which may be clients."""


class Running(Protocol):
    """A started broker, in a thread or in a process."""

    host: str
    port: int
    pid: int

    def stop(self) -> None:
        """End it in order and wait until everything it held is given back."""

    def kill(self) -> None:
        """End it as kill -9 does. Raises RuntimeError where that cannot be done."""

    def log(self) -> str:
        """What it has logged, as far as that is kept apart from this process's own log."""


class Broker:
    """A broker on a free port of the loopback interface, ready when the block begins and gone when it ends.

    `with Broker() as broker:` and `async with Broker() as broker:` do the same; the asynchronous one keeps the caller's
    loop free meanwhile. Without `data` the log lives in a temporary directory that goes away at the end, also when the
    program ends without stopping the broker; a directory that is given stays. `settings` has Kafka's names
    (`{"num.partitions": 3}`); the environment's TIDELOG_ variables are not looked at, so that a test finds the same
    broker everywhere.

    In process (the default) it runs its own event loop in its own thread: no signal handler, no logging, no loop policy
    is touched, and any number can run at once. With `process=True` it is a child process, which ends when this one
    does, however this one ends.

    A running broker belongs to the process that started it. A process that is forked off that one may be its client,
    through `bootstrap`, and may start brokers of its own. In it, `stop` and the end of the block leave the owner's
    broker alone, and `start`, `restart` and `kill` raise RuntimeError.
    """

    def __init__(
        self,
        *,
        process: bool = False,
        data: str | Path | None = None,
        settings: Mapping[str, object] = {},
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        for name in ("listeners", "log.dirs", "log.dir"):
            if name in settings:
                raise ValueError(f"{name} is set by host, port and data")
        self.process = process
        self.settings = TEST_SETTINGS | {name: setting_text(value) for name, value in settings.items()}
        self.host = host
        self.port = port
        """The real one once it has started; a restart listens on the same again."""
        self.data = None if data is None else Path(data).absolute()
        """The data directory; None while a temporary one does not exist."""
        self._temporary = data is None
        self._owner_pid: int | None = None
        """The process that started it, until nothing is left of it: no broker that runs, no temporary directory."""
        self._running: Running | None = None
        self._at_child_exit: Finalize | None = None

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, for a client's `bootstrap.servers`. Raises RuntimeError before the first start."""
        if not self.port:
            raise RuntimeError("the broker has no port before it starts")
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process it runs in. Raises RuntimeError unless it runs."""
        return self._now_running().pid

    def log(self) -> str:
        """What a broker process has logged since its start; empty for one in a thread, which logs with this process."""
        return self._now_running().log()

    def start(self) -> None:
        """Start it; returns once it accepts connections. Raises BrokerFailedError with what it said.

        Raises RuntimeError when it runs already, or belongs to another process.
        """
        self._check_owner()
        if self._running is not None:
            raise RuntimeError("the broker runs already")
        self._owner_pid = os.getpid()
        made = self.data is None
        if self.data is None:
            self.data = Path(tempfile.mkdtemp(prefix="tidelog-"))
            self._clean_up_at_exit()
        try:
            self._running = self._run(self.data)
        except BaseException:
            # What this start made goes again; a temporary directory with records in it waits for `stop`.
            if made:
                self._remove_temporary()
            self._give_up_ownership()
            raise
        self.host, self.port = self._running.host, self._running.port

    def _run(self, data: Path) -> Running:
        """A broker that accepts connections. Raises BrokerFailedError."""
        config = self._config(data)
        if self.process:
            from tidelog.testing.child import BrokerProcess

            return BrokerProcess(self.host, self.port, data, self.settings)
        from tidelog.testing.thread import BrokerThread

        return BrokerThread(config)

    def _config(self, data: Path) -> "BrokerConfig":
        """Its settings, checked here for both kinds: they are given in Python. Raises BrokerFailedError."""
        from tidelog.config.broker_config import BrokerConfig, ConfigError

        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        own = {"listeners": f"PLAINTEXT://{address}", "log.dirs": str(data)}
        try:
            return BrokerConfig.load(flags=self.settings | own, flags_origin="settings")
        except ConfigError as error:
            raise BrokerFailedError(str(error)) from error

    def stop(self) -> None:
        """Stop it in order; a temporary data directory goes too. Does nothing when it does not run.

        Does nothing either in a process that was forked off its owner: the owner's broker goes on serving.
        Raises BrokerFailedError when it had ended by itself, or ended badly.
        """
        if self._is_anothers:
            return
        running, self._running = self._running, None
        try:
            if running is not None:
                running.stop()
        finally:
            self._remove_temporary()
            self._give_up_ownership()

    def kill(self) -> None:
        """kill -9; the data stays for `start`. Raises RuntimeError unless it is a process that this one started."""
        self._check_owner()
        self._now_running().kill()
        self._running = None
        self._give_up_ownership()

    def restart(self) -> None:
        """Stop in order, unless it was killed, and start again on the same data and the same port.

        Raises RuntimeError when it belongs to another process.
        """
        self._check_owner()
        running, self._running = self._running, None
        if running is not None:
            running.stop()
        self.start()

    def _remove_temporary(self) -> None:
        if self._temporary and self.data is not None:
            atexit.unregister(self._at_exit)
            if self._at_child_exit is not None:
                self._at_child_exit.cancel()
                self._at_child_exit = None
            shutil.rmtree(self.data, ignore_errors=True)
            self.data = None

    def _at_exit(self) -> None:
        """Nobody has stopped it. There is no time for that in order, as threads cannot be started any more."""
        if not self._is_anothers:
            if self.process and self._running is not None:
                self.kill()
            self._remove_temporary()

    def _clean_up_at_exit(self) -> None:
        atexit.register(self._at_exit)
        if "multiprocessing" in sys.modules:
            from multiprocessing import parent_process, util

            # Children of multiprocessing that were forked end without the functions of atexit, and with these.
            if parent_process() is not None:
                self._at_child_exit = util.Finalize(None, self.stop, exitpriority=AFTER_GRANDCHILDREN)

    @property
    def _is_anothers(self) -> bool:
        """Whether another process started it, of which this one was forked."""
        return self._owner_pid not in (None, os.getpid())

    def _check_owner(self) -> None:
        """Raise RuntimeError when it belongs to another process."""
        if self._is_anothers:
            raise RuntimeError(
                f"{self._owned()}, which started it; this is process {os.getpid()}. Use it as a client"
                f"{f' of {self.bootstrap}' if self.port else ''}, or start a Broker of this process's own"
            )

    def _owned(self) -> str:
        return f"this broker belongs to process {self._owner_pid}"

    def _give_up_ownership(self) -> None:
        """Unless something is left that only the owner may touch."""
        if self._running is None and not (self._temporary and self.data is not None):
            self._owner_pid = None

    def __repr__(self) -> str:
        if self._owner_pid is None:
            return "<Broker, not started>"
        return f"<Broker {self.bootstrap if self.port else 'without a port yet'} of process {self._owner_pid}>"

    def __getstate__(self) -> dict[str, object]:
        """For pickle and copy. Raises TypeError of one that is started: its thread or process cannot be copied."""
        if self._owner_pid is not None:
            where = f": hand on its bootstrap, {self.bootstrap!r}" if self.port else ""
            raise TypeError(f"{self._owned()} and cannot be copied{where}")
        return self.__dict__

    def _now_running(self) -> Running:
        if self._running is None:
            raise RuntimeError("the broker does not run")
        return self._running

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            await _off_the_loop(self.start)
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_anothers:  # the loop is the owner's as well: nothing may be called on it
            await _off_the_loop(self.stop)


def setting_text(value: object) -> str:
    """A setting as the text that a file would have: true, 3, a,b."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(setting_text, value))
    return str(value)


async def _off_the_loop(function: Callable[[], None]) -> None:
    """Run it in a thread of its own, which has ended when this returns: the loop's executor would keep one for ever.

    When the caller is cancelled meanwhile, the thread is waited for all the same, so that nothing is left half done.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error = None
        try:
            function()
        except BaseException as raised:
            error = raised
        loop.call_soon_threadsafe(finish, error)

    thread = threading.Thread(target=run, name="tidelog-testing", daemon=True)
    thread.start()
    try:
        await done
    finally:
        thread.join()
