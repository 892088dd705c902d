"""A broker for a `with` block: in a thread of this process, or in a child process that can be killed."""

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from tidelog.model.addresses import host_port_text
from tidelog.testing.failure import BrokerFailedError
from tidelog.testing.ownership import OwnedByProcess

if TYPE_CHECKING:
    from tidelog.config.broker_config import BrokerConfig

__all__ = ["Broker", "BrokerFailedError"]

TEST_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",  # a group with one consumer starts immediately
    "offsets.topic.num.partitions": "1",
}
"""Settings that differ from those of `tidelog start`, so that tests do not wait. The parameter `settings` takes
precedence."""


class RunningBroker(Protocol):
    """A started broker, in a thread or in a process."""

    host: str
    port: int
    pid: int

    def stop(self) -> None:
        """Stop the broker cleanly, and wait until it has released all its resources."""

    def kill(self) -> None:
        """End the broker as kill -9 does. Raises RuntimeError if that is not possible."""

    def log(self) -> str:
        """Return the broker's log, or "" if the broker writes to the log of this process."""


class Broker(OwnedByProcess):
    """A broker on a free port of the loopback interface. The broker is ready when the block begins, and stopped when
    the block ends.

    `with Broker() as broker:` and `async with Broker() as broker:` do the same; the asynchronous form does not block
    the caller's event loop. Without `data`, the records are in a temporary directory. This directory is deleted when
    the broker is stopped, or when the program ends without stopping the broker. A directory that was passed as `data`
    is not deleted. `settings` has Kafka's names (`{"num.partitions": 3}`). The environment's TIDELOG_ variables are
    ignored, so that a test gets the same broker everywhere.

    Without `process`, the broker runs its own event loop in its own thread. It does not change signal handlers, the
    configuration of logging or the loop policy, and any number of brokers can run at the same time. With
    `process=True` it is a child process, which always ends when this process ends, even if this process is killed.

    A running broker belongs to the process that started it, its owner. A process that is forked from the owner may be
    a client, through `bootstrap`, and may start brokers of its own. In the forked process, `stop` of the
    owner's `Broker` and the end of its block do nothing, and its `start`, `restart` and `kill` raise RuntimeError.
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
                raise ValueError(f"{name} cannot be in settings: use the parameters host, port and data")
        super().__init__(data)
        self.process = process
        self.settings = TEST_SETTINGS | {name: setting_text(value) for name, value in settings.items()}
        self.host = host
        self.port = port
        """The requested port before the first start (0: a free port), and then the actual port. A restart listens on
        the same port."""
        self._running: RunningBroker | None = None

    @property
    def bootstrap(self) -> str:
        """The HOST:PORT for a client's `bootstrap.servers`. Raises RuntimeError before the first start if no port
        was requested.
        """
        if not self.port:
            raise RuntimeError("the broker has no port before it starts")
        return host_port_text(self.host, self.port)

    @property
    def is_started(self) -> bool:
        """Whether the broker was started, and was neither stopped nor killed afterwards."""
        return self._running is not None

    @property
    def pid(self) -> int:
        """The id of the process in which the broker runs. Raises RuntimeError if the broker does not run."""
        return self._require_running().pid

    def log(self) -> str:
        """Return the log of a broker process since its start. Raises RuntimeError if the broker does not run.

        The result is empty for a broker in a thread, because such a broker writes to the log of this process.
        """
        return self._require_running().log()

    def start(self) -> None:
        """Start the broker, and return when it accepts connections.

        Raises BrokerFailedError with the broker's message if the start fails. Raises RuntimeError if the broker runs
        already or belongs to another process.
        """
        self._check_owner()
        if self._running is not None:
            raise RuntimeError("the broker runs already")
        self._owner_pid = os.getpid()
        created_directory = self.data is None
        if self.data is None:
            self.data = Path(tempfile.mkdtemp(prefix="tidelog-"))
            self._clean_up_at_exit(self.stop)
        try:
            self._running = self._run(self.data)
        except BaseException:
            # Remove only a directory that this start created. An older temporary directory contains records, and `stop`
            # removes it.
            if created_directory:
                self._remove_temporary()
            self._clear_owner()
            raise
        self.host, self.port = self._running.host, self._running.port

    def _run(self, data: Path) -> RunningBroker:
        """Return a broker that accepts connections. Raises BrokerFailedError."""
        config = self._config(data)
        if self.process:
            from tidelog.testing.child import BrokerProcess

            return BrokerProcess(self.host, self.port, data, self.settings)
        from tidelog.testing.thread import BrokerThread

        return BrokerThread(config)

    def _config(self, data: Path) -> "BrokerConfig":
        """Check the settings, and return the configuration. Raises BrokerFailedError.

        A broker process checks the settings again. They are also checked here, because the error then names `settings`
        as their origin. The error of a broker process would name its command line.
        """
        from tidelog.config.broker_config import BrokerConfig, ConfigError

        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        address_settings = {"listeners": f"PLAINTEXT://{address}", "log.dirs": str(data)}
        try:
            return BrokerConfig.load(flags=self.settings | address_settings, flags_origin="settings")
        except ConfigError as error:
            raise BrokerFailedError(str(error)) from error

    def stop(self) -> None:
        """Stop the broker cleanly if it runs, and delete a temporary data directory.

        Does nothing in a process that was forked from the owner: the owner's broker continues to serve. Raises
        BrokerFailedError if the broker had already ended by itself, or if it ended with an error.
        """
        if self._belongs_to_another_process:
            return
        running, self._running = self._running, None
        try:
            if running is not None:
                running.stop()
        finally:
            self._remove_temporary()
            self._clear_owner()

    def kill(self) -> None:
        """Kill the broker with kill -9. The data directory remains, even if it is temporary, and `start` uses it
        again.

        Raises RuntimeError unless the broker is a running process that this process started.
        """
        self._check_owner()
        self._require_running().kill()
        self._running = None
        self._clear_owner()

    def restart(self) -> None:
        """Stop the broker cleanly, unless it was killed, and start it again with the same data and port.

        Raises the errors of `stop` and `start`, and RuntimeError if the broker belongs to another process.
        """
        self._check_owner()
        running, self._running = self._running, None
        if running is not None:
            running.stop()
        self.start()

    def _at_exit(self) -> None:
        if not self._belongs_to_another_process:
            if self.process and self._running is not None:
                self.kill()
            self._remove_temporary()

    def _check_owner(self) -> None:
        """Raise RuntimeError if the broker belongs to another process."""
        if self._belongs_to_another_process:
            raise RuntimeError(
                f"{self._ownership_text()}, which started it; this is process {os.getpid()}. Connect to the broker as a"
                f" client{f', at {self.bootstrap}' if self.port else ''}, or start another Broker in this process"
            )

    def _ownership_text(self) -> str:
        return f"this broker belongs to process {self._owner_pid}"

    def _clear_owner(self) -> None:
        """Clear the owner, unless a broker or a temporary directory remains. Only the owner may use these."""
        if self._running is None and not (self._temporary and self.data is not None):
            self._owner_pid = None

    def __repr__(self) -> str:
        if self._owner_pid is None:
            return "<Broker, not started>"
        return f"<Broker {self.bootstrap if self.port else 'without a port yet'} of process {self._owner_pid}>"

    def __getstate__(self) -> dict[str, object]:
        """Return the state for pickle and copy. Raises TypeError if the broker has an owner."""
        if self._owner_pid is not None:
            hint = f": pass its bootstrap instead, {self.bootstrap!r}" if self.port else ""
            raise TypeError(f"{self._ownership_text()} and cannot be copied{hint}")
        return self.__dict__

    def _require_running(self) -> RunningBroker:
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
            await run_in_thread(self.start)
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # In a forked process the event loop is a copy of the owner's loop, and none of its methods may be called.
        if not self._belongs_to_another_process:
            await run_in_thread(self.stop)


def setting_text(value: object) -> str:
    """Return the text of a setting as it would be in a file, for example `true`, `3` or `a,b`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(setting_text, value))
    return str(value)


async def run_in_thread(function: Callable[[], None]) -> None:
    """Run `function` in a new thread, and return when the thread has ended. (The loop's executor is not used, because
    its threads do not end after a call.)

    Even if the caller is cancelled, `run_in_thread` waits for the thread. So `function` has always ended when
    `run_in_thread` ends.
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
