"""Ends several queries at the same time, within a time limit."""

import threading
import time
from collections.abc import Callable, Sequence

from tidelog.pipelines.declarations import TemporaryError
from tidelog.pipelines.failures import as_exception

SPARK_STOP_MAX_S = 10
"""Spark waits at most this time, in seconds, until an interrupted query has ended. See SPARK_STOP_TIMEOUT."""
SPARK_STOP_TIMEOUT = "spark.sql.streaming.stopTimeout"
"""The Spark setting whose value is SPARK_STOP_MAX_S in the sessions of pipelines. By default, Spark waits without a
bound."""
STOP_MAX_S = 30.0
"""Upper bound on the wait until interrupted queries have ended and their sinks are closed, in seconds."""

QUERIES_LATE = "queries have not ended, or have not closed their sinks,"
PIPELINES_LATE = "pipelines have not stopped"


class NotStopped(TemporaryError):
    """A query has not ended in time, or its sink was not closed in time. The query's micro-batch may still run."""


def is_stop_timeout(error: BaseException) -> bool:
    """Return whether Spark raised this error because a query did not end within SPARK_STOP_TIMEOUT."""
    return SPARK_STOP_TIMEOUT in str(error)


class Ending:
    """Ends several queries in a separate thread, so that the other pipelines of the run continue."""

    def __init__(self, stops: Sequence[Callable[[], None]], timeout_s: float) -> None:
        """Start the thread. It calls all `stops`, and waits at most `timeout_s` until they have returned."""
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, args=(stops, timeout_s), name="end-queries", daemon=True)
        self._thread.start()

    def _run(self, stops: Sequence[Callable[[], None]], timeout_s: float) -> None:
        self._errors = call_all(stops, timeout_s)

    @property
    def has_ended(self) -> bool:
        """Return whether all calls have returned, or their time is over."""
        return not self._thread.is_alive()

    def result(self) -> str:
        """Wait for the end. Return a text that says which or how many queries have not ended in time; an empty text if
        all have ended. Raises the first error of another type than NotStopped.
        """
        self._thread.join()
        for error in self._errors:
            if not isinstance(error, NotStopped):
                raise error
        return "; ".join(map(str, self._errors))


def call_all(stops: Sequence[Callable[[], None]], timeout_s: float, late_text: str = QUERIES_LATE) -> list[Exception]:
    """Call all `stops` at the same time, each in a thread of its own, and return the errors of the calls.

    A call that has not ended after `timeout_s` continues in its thread, and one of the returned errors is NotStopped.
    `late_text` says what each call stops, and what has not happened then.
    """
    errors: list[Exception] = []

    def call(stop: Callable[[], None]) -> None:
        try:
            stop()
        except (Exception, SystemExit) as error:
            errors.append(as_exception(error))

    threads = [threading.Thread(target=call, args=(stop,), name="stop", daemon=True) for stop in stops]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    late = sum(thread.is_alive() for thread in threads)
    found = list(errors)  # a late call may add an error to `errors` at any time
    if late:
        found.append(NotStopped(f"{late} of {len(threads)} {late_text} within {timeout_s:g} s"))
    return found
