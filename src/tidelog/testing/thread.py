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
    """Started when it is made: the constructor returns once the broker accepts connections.

    Raises BrokerFailedError, with the broker's own error as its cause.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.host, self.port = config.endpoints[0].host, config.endpoints[0].port
        self.pid = os.getpid()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_stop = asyncio.Event()
        self._stopping = False
        # A daemon, so that a program that forgets to stop it can end; `stop` joins it.
        self._thread = threading.Thread(target=self._main, name="tidelog-broker", daemon=True)
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:
            self.stop()
            raise
        if self._error is not None:
            self._thread.join()
            raise BrokerFailedError(self._why(self._error)) from self._error

    def stop(self) -> None:
        """Returns when the thread has ended. Raises BrokerFailedError when it had by itself, or did not in order."""
        # Either the thread, still starting, sees the flag, or we see its loop.
        self._stopping = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended by itself
                self._loop.call_soon_threadsafe(self._asked_to_stop.set)
        self._thread.join()
        if self._error is not None:
            raise BrokerFailedError(f"the broker failed: {self._error}") from self._error

    def kill(self) -> None:
        raise RuntimeError("only a broker in a process of its own can be killed: Broker(process=True)")

    def log(self) -> str:
        return ""

    def _why(self, error: BaseException) -> str:
        if isinstance(error, BrokerFailedError):  # just after the start
            return str(error)
        if not isinstance(error, Exception):
            return f"the start was broken off: {type(error).__name__}"
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return explain(error, self._config.data_directory, address, IN_PYTHON)

    def _main(self) -> None:
        try:
            # Not uvloop: the first loop of libuv in a process opens a pipe that nothing ever closes.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._run())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._stopping:
            self._asked_to_stop.set()
        runtime = real_runtime()
        try:
            broker = BrokerServer(self._config, runtime)
            await broker.start()
            self.host, self.port = broker.host, broker.port
            self._ready.set()
            asked = asyncio.ensure_future(self._asked_to_stop.wait())
            failed = asyncio.ensure_future(broker.failed())
            await asyncio.wait((asked, failed), return_when=asyncio.FIRST_COMPLETED)
            await broker.stop()
            if failed.done():
                raise BrokerFailedError(failed.result())
        finally:
            await runtime.close()
