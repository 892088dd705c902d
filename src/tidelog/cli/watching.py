"""Poll a cluster in a thread while the caller shows the results. An outage of the cluster does not block the caller.

One request may wait up to `cli.connection.ANSWER_MS` for an answer. The caller does not wait for the request, so it
can report the duration of the outage meanwhile, and it can stop immediately.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar

from tidelog.cli.connection import as_command_error
from tidelog.cli.errors import CommandError, NoAnswerError

T = TypeVar("T")

PATIENCE_S = 3.0
"""A request that takes longer than this, in seconds, is reported as an outage. If the last successful request took more
than half of this time, the limit is twice the duration of that request instead."""


class PollResult(NamedTuple, Generic[T]):
    value: T
    at_s: float
    """The time at which the call ended, on the monotonic clock."""


class NoAnswerPeriod(NamedTuple):
    """A period in which the cluster does not answer: the last call failed, or the current call has been running for
    too long.
    """

    since_s: float
    """The time at which the last successful call ended, on the monotonic clock."""
    error: CommandError | None
    """The reason why the last call failed; None if it succeeded, and the current call has been running for too long."""

    def text(self, bootstrap: str, seconds: str) -> str:
        """Return the message. `seconds` is the duration of the outage as text."""
        if self.error is None or isinstance(self.error, NoAnswerError):
            return f"No answer from {bootstrap} for {seconds}; still trying."
        return f"{self.error}; failing for {seconds}, still trying."


class Poller(Generic[T]):
    """Calls `request` repeatedly. Each call begins `interval_s` seconds after the end of the previous call. The
    results are queued.
    """

    def __init__(self, request: Callable[[], T], interval_s: float) -> None:
        self._request = request
        self._interval_s = interval_s
        self._results: SimpleQueue[PollResult[T] | Exception] = SimpleQueue()
        self._stop = threading.Event()
        self._call_started_s: float | None = None
        self._last_duration_s = 0.0
        self._last_success_s: float | None = None
        self._error: CommandError | None = None

    def run(self) -> None:
        while not self._stop.is_set():
            started_s = self._call_started_s = time.monotonic()
            try:
                value = self._request()
            except Exception as error:
                self._call_started_s = None
                self._results.put(error)
            else:
                now_s = time.monotonic()
                self._last_duration_s = now_s - started_s
                self._call_started_s = None
                self._results.put(PollResult(value, now_s))
            self._stop.wait(self._interval_s)

    def stop(self) -> None:
        self._stop.set()

    def next(self, timeout_s: float) -> PollResult[T] | None:
        """Return a new result. Return None if no result arrives within the timeout, or if a call after the first
        result failed because of the cluster.

        The error of any other failed call is raised.
        """
        try:
            result = self._results.get(timeout=timeout_s)
        except Empty:
            return None
        if isinstance(result, PollResult):
            self._last_success_s, self._error = result.at_s, None
            return result
        command_error = as_command_error(result)
        if command_error is None or self._last_success_s is None:
            raise result
        self._error = command_error
        return None

    def outage(self) -> NoAnswerPeriod | None:
        """Return the current outage. None if the cluster answers, and before the first result."""
        if self._last_success_s is None:
            return None
        started_s = self._call_started_s
        patience_s = max(PATIENCE_S, 2 * self._last_duration_s)
        if self._error is None and (started_s is None or time.monotonic() - started_s < patience_s):
            return None
        return NoAnswerPeriod(self._last_success_s, self._error)


@contextmanager
def polling(request: Callable[[], T], interval_s: float) -> Iterator[Poller[T]]:
    """Call `request` repeatedly in a thread during the block.

    The end of the block does not wait for a call that hangs; this call ends with the process.
    """
    poller = Poller(request, interval_s)
    threading.Thread(target=poller.run, name="poller", daemon=True).start()
    try:
        yield poller
    finally:
        poller.stop()
