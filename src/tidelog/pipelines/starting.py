"""Starts the queries of a pipeline in a thread of its own, so that the other pipelines continue."""

import logging
import threading
from collections.abc import Callable

from tidelog.pipelines.failures import as_exception
from tidelog.pipelines.queries import RunningQuery
from tidelog.pipelines.stopping import STOP_MAX_S, call_all

logger = logging.getLogger("tidelog.pipelines")

ONE_START = threading.Lock()
"""Only one pipeline of this process starts at a time: each start needs new processes of Python for its sources, which
would delay the processes of another start (see `RunningQuery.wait_for_sources`)."""


class Start:
    """One start of a pipeline. It begins as soon as no other start is running."""

    def __init__(self, start: Callable[[], list[RunningQuery]]) -> None:
        self._start = start
        self._lock = threading.Lock()
        """Protects the decision who stops the queries: the caller of `abandon`, or the thread."""
        self._is_abandoned = False
        self._has_ended = False
        self._queries: list[RunningQuery] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="start-pipeline", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def result(self) -> list[RunningQuery]:
        """Return the queries of a start that has ended. Raises the error of the start."""
        if self._error is not None:
            raise self._error
        return self._queries

    def abandon(self, timeout_s: float) -> list[RunningQuery] | None:
        """Return the queries that the caller must stop. If the start has not ended yet, the thread itself stops the
        queries that it starts. In this case, return an empty list, or None if the thread does not end in time.
        """
        with self._lock:
            self._is_abandoned = not self._has_ended
        self._thread.join(timeout_s)
        with self._lock:
            if not self._has_ended:
                return None
            return [] if self._is_abandoned else self._queries

    def _run(self) -> None:
        queries: list[RunningQuery] = []
        try:
            with ONE_START:
                if not self._is_abandoned:
                    queries = self._start()
        except BaseException as error:  # also SystemExit: the start must end in every case
            self._error = as_exception(error)
        with self._lock:
            stops_queries = self._is_abandoned
            self._queries = queries
            if not stops_queries:
                self._has_ended = True
        if stops_queries:
            for failure in call_all([query.stop for query in queries], STOP_MAX_S):
                logger.warning(
                    "pipeline_not_stopped its start was abandoned, but a started query does not stop: %s", failure
                )
            self._has_ended = True
