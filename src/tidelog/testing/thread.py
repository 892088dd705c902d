"""A broker in a thread of this process, on its own event loop."""

import asyncio
import contextlib
import os
import threading

from tidelog.broker.broker import BrokerServer
from tidelog.config.broker_config import BrokerConfig
from tidelog.runtime.failures import IN_PYTHON, explain
from tidelog.runtime.real import real_runtime
from tidelog.testing.failure import BrokerFailedError


class BrokerThread:
    """A broker in a thread. The constructor starts it, and returns when the broker accepts connections.

    If the broker cannot start, the constructor raises BrokerFailedError, with the broker's own error as the cause.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.host, self.port = config.endpoints[0].host, config.endpoints[0].port
        self.pid = os.getpid()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_requested = asyncio.Event()
        self._stopping = False
        # The thread is a daemon thread. Therefore a program can end without stopping its broker.
        self._thread = threading.Thread(target=self._main, name="tidelog-broker", daemon=True)
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:
            self.stop()
            raise
        if self._error is not None:
            self._thread.join()
            raise BrokerFailedError(self._start_error_text(self._error)) from self._error

    def stop(self) -> None:
        """Stop the broker, and return when the thread has ended.

        Raises BrokerFailedError if the broker had failed, or did not stop cleanly.
        """
        # `_stopping` is set before `_loop` is read. If the thread has not set `_loop` yet, it will set `_loop` first,
        # and then read `_stopping`.
        self._stopping = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has ended by itself
                self._loop.call_soon_threadsafe(self._stop_requested.set)
        self._thread.join()
        if self._error is not None:
            raise BrokerFailedError(f"the broker failed: {self._error}") from self._error

    def kill(self) -> None:
        raise RuntimeError("only a broker in a process of its own can be killed: Broker(process=True)")

    def log(self) -> str:
        return ""

    def _start_error_text(self, error: BaseException) -> str:
        if isinstance(error, BrokerFailedError):  # the broker failed just after the start
            return str(error)
        if not isinstance(error, Exception):
            return f"the start was interrupted: {type(error).__name__}"
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return explain(error, self._config.data_directories, address, IN_PYTHON)

    def _main(self) -> None:
        try:
            # uvloop is not used, because the first loop of libuv in a process opens a pipe that is never closed.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._run())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._stopping:
            self._stop_requested.set()
        runtime = real_runtime()
        try:
            broker = BrokerServer(self._config, runtime)
            await broker.start()
            self.host, self.port = broker.host, broker.port
            self._ready.set()
            stop_requested = asyncio.ensure_future(self._stop_requested.wait())
            failed = asyncio.ensure_future(broker.wait_for_failure())
            await asyncio.wait((stop_requested, failed), return_when=asyncio.FIRST_COMPLETED)
            await broker.stop()
            if failed.done():
                raise BrokerFailedError(failed.result())
        finally:
            await runtime.close()
