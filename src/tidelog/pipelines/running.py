"""Run pipelines in one Spark session: start, restart after failures, stop."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tidelog.pipelines.begins import begins_of
from tidelog.pipelines.checkpoints import place_of_checkpoints, remove_with_spark
from tidelog.pipelines.declarations import Pipeline, PipelineError
from tidelog.pipelines.failures import cause_text, is_permanent
from tidelog.pipelines.loading import declared_pipeline
from tidelog.pipelines.queries import RunContext, RunningQuery, StopRequested, start_queries
from tidelog.pipelines.session import pipeline_session, start_session
from tidelog.pipelines.starting import Start
from tidelog.pipelines.state import DEFAULT_STATE, PipelineState
from tidelog.pipelines.status import DONE, FAILED, RUNNING, STARTING, STOPPED, WAITING, PipelineStatus
from tidelog.pipelines.stopping import PIPELINES_LATE, STOP_MAX_S, Ending, call_all
from tidelog.runtime.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("tidelog.pipelines")

FIRST_PAUSE_S = 1.0
PAUSE_MAX_S = 60.0
"""The shortest and the longest pause before a restart. Each pause is twice as long as the pause before it, until
PAUSE_MAX_S is reached. After a micro-batch has succeeded, the next pause is FIRST_PAUSE_S again."""
POLL_S = 0.1
"""Pause between two looks at the queries in `run` and `Run.stop`, in seconds."""
RUN_STOP_MAX_S = 90.0
"""Upper bound on the time that `Run` waits for its calls of `stop_now`, in seconds. Each call waits up to STOP_MAX_S
until the start of its pipeline has ended, and up to STOP_MAX_S until the pipeline's queries have ended. This bound is
longer than both waits together."""
ONCE_RESTARTS_MAX = 3
"""Upper bound on the restarts of a pipeline in a run with `once`. Such a run does not restart a pipeline after a
failure that another attempt would repeat (see `failures.is_permanent`)."""


class RunningPipeline:
    """One pipeline of a run: its queries, restarts and figures."""

    def __init__(self, pipeline: Pipeline, spark: "SparkSession", run: RunContext, state: PipelineState) -> None:
        self.pipeline = pipeline
        self.status = PipelineStatus(pipeline.name)
        self._spark = spark
        self._run = run
        self._state = state
        self._queries: list[RunningQuery] = []
        self._starting: Start | None = None
        self._ending: Ending | None = None
        """The ending of the queries while it is in progress, otherwise None. While it is in progress, the pipeline does
        not start again, and the run does not end."""
        self._ends_after_failure = False
        """Whether a failure has caused the most recent ending of the queries. If so, `status.error` describes the
        failure."""
        self._failures_in_a_row = 0
        self._restart_at_s = 0.0
        self._stopping = False
        self._status_failed = False
        """Whether the last write of the figures has failed."""

    def start(self) -> None:
        """Begin to start the queries in another thread, and return at once. The first call of `step` after the queries
        have started, or have failed to start, processes the result.
        """
        self.status.state = STARTING
        self.status.restart_in_s = None
        identity = self._state.identity()
        assert identity is not None, "`Run.__enter__` creates the identity after it has locked the state"

        def start() -> list[RunningQuery]:
            session = pipeline_session(self._spark, self.pipeline, self._run.settings)
            return start_queries(self.pipeline, session, self._run, self._state, identity)

        self._starting = Start(start)

    def _finish_start(self, starting: Start, now_s: float) -> None:
        self._starting = None
        try:
            self._queries = starting.result()
        except Exception as error:
            self._fail(error, now_s)
            return
        previous = {query.sink: query for query in self.status.queries}
        for query in self._queries:
            query.status = previous.get(query.status.sink, query.status)
            if self._stopping:
                query.request_stop()
        self.status.queries = [query.status for query in self._queries]
        self.status.state = RUNNING

    def step(self, now_s: float) -> None:
        """Update the figures and the state. Restart the pipeline when its pause after a failure is over and its queries
        have ended. This never waits for a query.
        """
        if self._ending is not None and self._ending.has_ended:
            self._finish_ending_of_step(self._ending)
        if self._starting is not None and self._starting.has_ended:
            self._finish_start(self._starting, now_s)
        if self.status.state == WAITING:
            self.status.restart_in_s = max(self._restart_at_s - now_s, 0.0)
            if now_s >= self._restart_at_s and self._ending is None:
                self.status.restarts += 1
                self.start()
            return
        if self.status.state != RUNNING:
            return
        batches_before = sum(query.status.batches for query in self._queries)
        for query in self._queries:
            query.update_status()
        if sum(query.status.batches for query in self._queries) > batches_before:
            self._failures_in_a_row = 0
        ended = [query for query in self._queries if not query.is_active]
        failures = [error for query in ended if (error := query.exception()) is not None]
        if self._stopping:
            failures = [error for error in failures if StopRequested.__name__ not in str(error)]
        if failures:
            self._end_queries(after_failure=True)
            self._fail(failures[0], now_s)
        elif len(ended) == len(self._queries):
            for query in self._queries:
                query.update_status()
            self._end_queries()
            self.status.state = STOPPED if self._stopping else DONE

    def _fail(self, error: Exception, now_s: float) -> None:
        self.status.error = cause_text(error)
        is_last = self._run.once and (is_permanent(error) or self.status.restarts >= ONCE_RESTARTS_MAX)
        if is_last or self._stopping:
            self.status.state = FAILED
            return
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self._failures_in_a_row, 16), PAUSE_MAX_S)
        self._failures_in_a_row += 1
        self._restart_at_s = now_s + pause_s
        self.status.restart_in_s = pause_s
        self.status.state = WAITING

    def request_stop(self) -> None:
        """Let the running micro-batches end, and begin no others."""
        self._stopping = True
        for query in self._queries:
            query.request_stop()
        if self.status.state == WAITING:
            self.status.state = STOPPED

    def stop_idle_queries(self) -> None:
        """After `request_stop`: stop the queries that are between two micro-batches."""
        if self.status.state == RUNNING:
            Ending([query.stop for query in self._queries if not query.is_in_batch()], STOP_MAX_S).result()

    def stop_now(self) -> None:
        """Interrupt the start and the queries. Wait up to STOP_MAX_S for the end of the start, and up to STOP_MAX_S for
        the end of the queries. If the start or a query has not ended by then, a warning and `status.error` say so.
        """
        self._stopping = True
        starting, self._starting = self._starting, None
        if starting is not None:
            started = starting.abandon(STOP_MAX_S)
            self._queries = started or []
            if started is None:
                self.status.error = f"pipeline {self.pipeline.name}: its start has not ended within {STOP_MAX_S:g} s"
                logger.warning("pipeline_not_stopped %s", self.status.error)
        if self._ending is not None:
            self._finish_ending(self._ending, is_last=True)
        self._finish_ending(self._end_queries())
        if self.status.state in (RUNNING, STARTING, WAITING):
            self.status.state = STOPPED

    def _end_queries(self, *, after_failure: bool = False) -> Ending:
        """Begin to stop all queries. A query that does not end in time is left alone: no later call waits for it."""
        queries, self._queries = self._queries, []
        self._ends_after_failure = after_failure
        self._ending = Ending([query.stop for query in queries], STOP_MAX_S)
        return self._ending

    def _finish_ending(self, ending: Ending, *, is_last: bool = False) -> None:
        """Wait for the end of the queries. If some queries have not ended in time, `status.error` says so.

        If a failure has caused the ending, `status.error` already describes the failure. In this case, the text about
        the queries is added to it only if `is_last`: the run ends, so the pipeline does not start again.
        """
        self._ending = None
        if not_stopped := ending.result():
            text = f"pipeline {self.pipeline.name}: {not_stopped}"
            logger.warning("pipeline_not_stopped %s", text)
            if not self._ends_after_failure:
                self.status.error = text
            elif is_last:
                self.status.error = f"{self.status.error}; {not_stopped}"

    def _finish_ending_of_step(self, ending: Ending) -> None:
        """Process the result of an ending that is over. An error is not raised, so that the run continues."""
        try:
            self._finish_ending(ending)
        except Exception as error:
            logger.warning("pipeline_end_failed pipeline=%s %s", self.pipeline.name, cause_text(error))
            if not self._ends_after_failure:
                self.status.error = cause_text(error)
                self.status.state = FAILED

    @property
    def has_ended(self) -> bool:
        return self.status.state in (DONE, FAILED, STOPPED) and self._ending is None

    def write_status(self) -> None:
        """Write the figures to the state directory. A failure is only logged, because the next call writes them again.
        Of several failures in a row, only the first is logged.
        """
        document = self.status.document() | {"time_ms": SystemClock.now_ms()}
        try:
            self._state.write_status(document)
        except OSError as error:  # such as a full disk, which must not end the other pipelines of the run
            if not self._status_failed:
                logger.warning("status_not_written pipeline=%s %s", self.pipeline.name, error)
            self._status_failed = True
        else:
            self._status_failed = False


class Run:
    """A run of several pipelines in one Spark session. Use it in a `with` block, which locks their states."""

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        spark: "SparkSession",
        *,
        bootstrap: str,
        state: Path = DEFAULT_STATE,
        once: bool = False,
        begin: str | int | None = None,
        checkpoints: str | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`begin` is where a pipeline begins if it has not written a micro-batch yet. The other pipelines continue."""
        self._states = [PipelineState(state, each.name) for each in pipelines]
        self._checkpoints = None if checkpoints is None else place_of_checkpoints(checkpoints)
        context = RunContext(bootstrap, once, self._checkpoints, settings)
        self._spark = spark
        self._begin = begin
        self.pipelines = [
            RunningPipeline(each, spark, context, each_state)
            for each, each_state in zip(pipelines, self._states, strict=True)
        ]

    def __enter__(self) -> "Run":
        try:
            for each, state in zip(self.pipelines, self._states, strict=True):
                state.lock()
                state.store_begins(begins_of(each.pipeline))
                identity = state.identity()
                if identity is None or not state.has_started(identity):
                    state.reset()
                    first = self._begin if self._begin is not None or identity is None else identity.begin
                    state.create_identity(first, self._checkpoints)
                state.remove_obsolete(partial(remove_with_spark, self._spark))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *with_arguments: object) -> None:
        try:
            self._stop_now()
            for each in self.pipelines:
                if with_arguments:  # without arguments, `__enter__` has failed: perhaps not all states are locked
                    each.write_status()
        finally:
            for state in self._states:
                state.unlock()

    def start(self) -> None:
        for each in self.pipelines:
            each.start()

    def step(self) -> None:
        for each in self.pipelines:
            each.step(time.monotonic())

    def write_status(self) -> None:
        for each in self.pipelines:
            each.write_status()

    @property
    def statuses(self) -> list[PipelineStatus]:
        return [each.status for each in self.pipelines]

    @property
    def has_ended(self) -> bool:
        return all(each.has_ended for each in self.pipelines)

    def stop(self, timeout_s: float, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Let the running micro-batches end, and stop. After the timeout, interrupt the micro-batches. Then wait up to
        `stopping.STOP_MAX_S` until the pipelines' starts have ended, and again up to `stopping.STOP_MAX_S` until
        their queries have ended. If a start or a query has not ended by then, a warning says so.
        """
        for each in self.pipelines:
            each.request_stop()
        deadline_s = time.monotonic() + timeout_s
        while not self.has_ended and time.monotonic() < deadline_s:
            for each in self.pipelines:
                each.stop_idle_queries()
            self.step()
            while_waiting()
            time.sleep(POLL_S)
        self._stop_now()

    def _stop_now(self) -> None:
        """Interrupt all queries of all pipelines at the same time."""
        for error in call_all([each.stop_now for each in self.pipelines], RUN_STOP_MAX_S, PIPELINES_LATE):
            raise error


def run(
    pipelines: "Pipeline | Callable[..., Any] | Sequence[Pipeline | Callable[..., Any]]",
    *,
    bootstrap: str = "127.0.0.1:9092",
    state: str | Path = DEFAULT_STATE,
    begin: str | int | None = None,
    spark: "SparkSession | None" = None,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> dict[str, PipelineStatus]:
    """Process all data that the sources have now, and return the figures of each pipeline by its name.

    A second call with the same `state` continues where the first one ended. Without `spark`, a session is started with
    `master` and `settings`, and stopped at the end. `settings` are settings of Spark, which override those of the
    pipelines. `begin` is the start position of pipelines that have not processed anything yet.

    If a pipeline fails, the other pipelines still process their data, and then PipelineError is raised. It is also
    raised if the pipelines have not ended after `timeout_s`.
    """
    given = [pipelines] if isinstance(pipelines, Pipeline) or callable(pipelines) else list(pipelines)
    declared = [declared_pipeline(each) for each in given]
    names = [each.name for each in declared]
    if len(set(names)) < len(names):
        raise PipelineError(f"two of the pipelines have the same name: {', '.join(names)}")
    session = spark or start_session(declared, master, settings)
    try:
        with Run(
            declared,
            session,
            bootstrap=bootstrap,
            state=Path(state),
            once=True,
            begin=begin,
            settings=settings or {},
        ) as started:
            started.start()
            deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
            while not started.has_ended:
                started.step()
                if deadline_s is not None and time.monotonic() > deadline_s:
                    raise PipelineError(f"the pipelines {', '.join(names)} did not end within {timeout_s:g} s")
                time.sleep(POLL_S)
            failed = [each for each in started.statuses if each.state == FAILED]
            if failed:
                raise PipelineError("; ".join(each.error or f"pipeline {each.pipeline} failed" for each in failed))
            return {each.pipeline: each for each in started.statuses}
    finally:
        if spark is None:
            session.stop()
