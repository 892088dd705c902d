"""Start the queries of one pipeline: sources, the function, sinks, dead letters."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.pipelines.checkpoints import has_offsets
from tidelog.pipelines.dead_letters import METRIC, Counts, DeadLetters, letter_writers
from tidelog.pipelines.declarations import (
    Opened,
    Pipeline,
    PipelineError,
    SinkContext,
    Source,
    SourceContext,
    interval_ms,
    place_of,
)
from tidelog.pipelines.failures import as_exception, cause_text, first_line
from tidelog.pipelines.loading import send_functions_by_value
from tidelog.pipelines.plan_sources import QuerySource, in_reports, loads_of, sources_of_query, streams_with_option
from tidelog.pipelines.query_names import query_names
from tidelog.pipelines.state import Identity, PipelineState
from tidelog.pipelines.status import QueryStatus, update_from_progress
from tidelog.pipelines.stopping import SPARK_STOP_MAX_S, STOP_MAX_S, NotStopped, call_all, is_stop_timeout
from tidelog.pipelines.topics import Topic, ensure_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("tidelog.pipelines")

DEAD_LETTER_PARTITIONS = 1
"""Number of partitions with which a missing topic of dead letters is created."""
SOURCES_START_MAX_S = 30.0
"""Upper bound on the wait for a query's sources before the next query starts, in seconds."""
POLL_S = 0.05
"""Pause between two checks whether a query has started its sources, in seconds."""


class StopRequested(Exception):
    """The pipeline stops. Raised instead of beginning another micro-batch."""


class WriteFailed(Exception):
    """A micro-batch could not be written. The message is the cause as one line."""


class RunContext(NamedTuple):
    """The options that all pipelines of a run share."""

    bootstrap: str
    once: bool
    checkpoints: str | None = None
    """Directory or URI of the checkpoints (see checkpoints.py); None if they are in the state directory."""
    settings: Mapping[str, str] = MappingProxyType({})
    """Settings of Spark for the whole run. They override the settings of the pipelines."""


def results_of(pipeline: Pipeline, frames: Mapping[str, "DataFrame"]) -> dict[str, "DataFrame"]:
    """Call the function and return its DataFrames by the names of the sinks. Raises PipelineError."""
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    place = place_of(pipeline.function)
    try:
        result = pipeline.function(**frames)
    except PySparkException as error:
        raise PipelineError(f"{place}: {first_line(str(error))}") from error
    except (Exception, SystemExit) as error:
        raise PipelineError(f"{place}: the function raised {type(error).__name__}: {error}") from error
    names = list(pipeline.sinks)
    if isinstance(result, DataFrame) and len(names) == 1:
        return {names[0]: result}
    if isinstance(result, Mapping):
        if set(result) != set(names):
            raise PipelineError(
                f"{place}: the function returned {', '.join(map(str, result)) or 'nothing'}, but the sinks are named"
                f" {', '.join(names)}: return one DataFrame for each sink"
            )
        for name, frame in result.items():
            if not isinstance(frame, DataFrame):
                raise PipelineError(f"{place}: the result for sink {name} is {type(frame).__name__}, not a DataFrame")
        return {name: result[name] for name in names}
    expected = "a DataFrame" if len(names) == 1 else f"a mapping from {', '.join(names)} to DataFrames"
    raise PipelineError(f"{place}: the function returned {type(result).__name__}; it must return {expected}")


class RunningQuery:
    """One query of a pipeline."""

    def __init__(self, sink: str, opened: Opened, before_first_write: Callable[[], None]) -> None:
        """`opened` is the sink named `sink`. `before_first_write` is called before the first micro-batch is written."""
        self.status = QueryStatus(sink)
        self._opened = opened
        self.dead_letters: DeadLetters | None = None
        self._before_first_write = before_first_write
        self._has_written = False
        self._is_closed = False
        self._lock = threading.Lock()
        """Protects the two fields below. Both the thread that writes and the thread that stops the query use them."""
        self._is_writing = False
        self._closes_after_write = False
        self._query: StreamingQuery | None = None
        self._has_query = threading.Event()
        """Set when `start` has stored the query, or when `stop` was called: then `_write` need not wait any more."""
        self._stopping = threading.Event()
        self._last_report = ""
        self._jvm: Any = None
        self._sources: list[QuerySource] = []
        self._letters_by_batch: dict[int, int] = {}
        """For each micro-batch that is not in the reports of Spark yet: the number of its dead letters."""
        self.error: Exception | None = None
        """The exception of the write that failed. Spark gets only one line of text about it (see `_write`)."""

    def start(self, frame: "DataFrame", pipeline: Pipeline, name: str, checkpoint: str, *, once: bool) -> None:
        self._jvm = frame.sparkSession._jvm
        writer = frame.writeStream.queryName(name).outputMode(pipeline.output_mode)
        writer = writer.option("checkpointLocation", checkpoint).foreachBatch(self._write)
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{interval_ms(pipeline.trigger)} milliseconds")
        self._query = writer.start()
        self._has_query.set()

    def _write(self, batch: "DataFrame", batch_id: int) -> None:
        if self._stopping.is_set():
            raise StopRequested
        # The first micro-batch may begin before `start` has stored the query. If `start` fails, `stop` ends the wait.
        self._has_query.wait()
        with self._lock:
            # A stop sets `_stopping` before it reads `_is_writing`. So it either sees this write, or prevents it.
            if self._stopping.is_set():
                raise StopRequested
            self._is_writing = True
        try:
            if not self._has_written:
                self._before_first_write()
                self._has_written = True
            self._opened.write(batch, batch_id)
            if self.dead_letters is not None:
                self._letters_by_batch[batch_id] = self.dead_letters.write(batch_id)
        except (Exception, SystemExit) as error:
            self.error = as_exception(error)
            # Spark applies a recursive regular expression to the whole text of this exception, including all stack
            # traces of Java. For a long text, this overflows the stack. So Spark gets only one line.
            raise WriteFailed(cause_text(self.error)) from None
        finally:
            with self._lock:
                self._is_writing = False
                closes = self._closes_after_write
            if closes:
                self._close()

    def counts(self) -> dict[str, Counts]:
        """Return the numbers of records in the current micro-batch, by source; an empty dictionary if they cannot be
        read.

        Spark reports these numbers only after the commit of the micro-batch. They are needed before the commit, so this
        method reads them from the execution of the micro-batch in the JVM.
        """
        from py4j.protocol import Py4JError

        assert self._query is not None
        try:
            jvm_query: Any = self._query._jsq
            rows = jvm_query.streamingQuery().lastExecution().observedMetrics()
            counts = {}
            entries = rows.iterator()
            while entries.hasNext():
                entry = entries.next()
                name, row = entry._1(), entry._2()
                if name.startswith(METRIC):
                    counts[name.removeprefix(METRIC)] = Counts(int(row.get(0)), int(row.get(1)))
            return counts
        except (Py4JError, AttributeError, TypeError):
            return {}

    def sources(self) -> list[QuerySource]:
        """Return the sources by their position in the checkpoint. The query must have begun its first micro-batch."""
        assert self._query is not None
        if not self._sources:
            self._sources = sources_of_query(self._query._jsq, self._jvm)
        return self._sources

    @property
    def is_active(self) -> bool:
        return self._query is not None and self._query.isActive

    def exception(self) -> Exception | None:
        """Return the error that ended the query; None if it runs, or has ended without an error."""
        assert self._query is not None
        error: Exception | None = self._query.exception()
        return error if self.error is None else self.error

    def update_status(self) -> None:
        """Update the status from the reports that Spark has made since the last call."""
        assert self._query is not None
        jvm_query: Any = self._query._jsq
        last = jvm_query.lastProgress()
        if last is None or _report_key(json.loads(last.json())) == self._last_report:
            return  # the list of reports is long, so it is fetched only if there is a new report
        reports = [json.loads(each.json()) for each in jvm_query.recentProgress()]
        keys = [_report_key(each) for each in reports]
        begin = keys.index(self._last_report) + 1 if self._last_report in keys else 0
        for report in reports[begin:]:
            servers = [source.servers for source in in_reports(self.sources())] if report.get("sources") else []
            update_from_progress(self.status, report, servers)
            reported = [batch for batch in list(self._letters_by_batch) if batch <= report["batchId"]]
            self.status.dead_letters += sum(self._letters_by_batch.pop(batch) for batch in reported)
        if keys:
            self._last_report = keys[-1]

    def wait_for_sources(self) -> None:
        """Wait until the query has started its sources or has ended, at most SOURCES_START_MAX_S.

        Spark starts a process of Python for each source, and fails if a process does not connect within 10 s. If
        several queries started at the same time on a machine with few cores, their processes would delay each other.
        """
        assert self._query is not None
        deadline_s = time.monotonic() + SOURCES_START_MAX_S
        while time.monotonic() < deadline_s and self.is_active:
            if not self._query.status["message"].startswith("Initializing"):
                return
            time.sleep(POLL_S)

    def request_stop(self) -> None:
        """Let the running micro-batch end, and begin no other."""
        self._stopping.set()

    def is_in_batch(self) -> bool:
        return self.is_active and bool(self._query is not None and self._query.status["isTriggerActive"])

    def stop(self) -> None:
        """Stop the query. A micro-batch that runs is interrupted, and the next start repeats it. Close the sink when
        the query has stopped.

        Raises NotStopped if the query does not end in time. If a write is still running in this case, the sink is
        closed when the write returns.
        """
        self._stopping.set()
        self._has_query.set()
        write_closes_sink = False
        try:
            if self._query is not None:
                self._query.stop()
        except Exception as error:
            if not is_stop_timeout(error):
                raise
            write_closes_sink = self._let_write_close_sink()
            raise NotStopped(
                f"sink {self.status.sink}: the query has not ended within {SPARK_STOP_MAX_S} s after its interruption;"
                " its micro-batch may still be written, and the next start repeats it"
            ) from None
        finally:
            if not write_closes_sink:
                self._close()

    def _let_write_close_sink(self) -> bool:
        """Let the running write close the sink when the write returns. Return False if no write is running."""
        with self._lock:
            self._closes_after_write = self._is_writing
            return self._is_writing

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._opened.close()


def _report_key(report: Mapping[str, Any]) -> str:
    return f"{report['timestamp']} {report['batchId']}"


def start_queries(
    pipeline: Pipeline, session: "SparkSession", run: RunContext, state: PipelineState, identity: Identity
) -> list[RunningQuery]:
    """Open sources and sinks, and start one query for each sink.

    Raises PipelineError. If starting a query fails, the queries that were started before it are stopped.
    """
    names = query_names(pipeline, state, identity)
    places = checked_checkpoints(names, run, state, identity, partial(has_offsets, session))
    # Must precede the loading of the sources: a value format may be a class that is defined in the pipeline's file.
    send_functions_by_value(pipeline)
    started = state.has_started(identity)
    context = SourceContext(session, run.bootstrap, pipeline.name, True, identity.begin, has_started=started)
    frames: dict[str, DataFrame] = {}
    letter_sources: dict[str, Topic] = {}
    letter_loads: dict[int, str] = {}
    drop = pipeline.dead_letters is not None
    for parameter, source in pipeline.sources.items():
        with _source_errors(pipeline, parameter, source):
            if isinstance(source, Topic) and source.value is not None:
                records = source.records(context)
                frames[parameter] = source.parsed(records, pipeline.name, METRIC + parameter, drop_unparsed=drop)
                if drop:
                    letter_sources[parameter] = source
                    letter_loads |= dict.fromkeys(loads_of(frames[parameter]), parameter)
            else:
                frames[parameter] = source.load(context)
    if pipeline.dead_letters is not None:
        if run.checkpoints is not None and "://" in run.checkpoints:
            raise PipelineError(
                f"pipeline {pipeline.name}: dead letters need checkpoints in a directory that the driver can read, not"
                f" {run.checkpoints}: use a mounted directory, or leave out dead_letters"
            )
        if not letter_sources:
            raise PipelineError(
                f"pipeline {pipeline.name}: dead_letters is set, but no source supports it: only a topic() with a"
                " format, as in topic('sales', value=json(...)), can have dead letters"
            )
        ensure_topic(run.bootstrap, pipeline.dead_letters, DEAD_LETTER_PARTITIONS, {}, f"pipeline {pipeline.name}", "")
    results = results_of(pipeline, frames)
    refuse_shared_pages(pipeline, results)
    letters_of_sink = _letters_of_sinks(pipeline, results, letter_loads, state, identity)
    state.store_query_names(identity, names)
    running: list[RunningQuery] = []
    try:
        for sink_name, frame in results.items():
            sink_context = SinkContext(session, run.bootstrap, pipeline.name, names[sink_name], pipeline.output_mode)
            running.append(
                _start_query(
                    pipeline,
                    RunningQuery(
                        sink_name,
                        pipeline.sinks[sink_name].open(replace(sink_context, once=run.once)),
                        partial(state.mark_started, identity, sink_name),
                    ),
                    frame,
                    context,
                    sink_context,
                    places[sink_name],
                    letter_sources,
                    letters_of_sink[sink_name],
                    once=run.once,
                )
            )
    except BaseException:
        for error in call_all([each.stop for each in running], STOP_MAX_S):
            logger.warning("pipeline_stop_failed pipeline=%s %s", pipeline.name, cause_text(error))
        raise
    return running


def checked_checkpoints(
    names: Mapping[str, str],
    run: RunContext,
    state: PipelineState,
    identity: Identity,
    has_offsets: Callable[[str], bool],
) -> dict[str, str]:
    """Return the path or URI of the checkpoint of each query, by the name of its sink. `names` has the identifiers of
    the queries, also by the names of the sinks.

    Raises PipelineError if a checkpoint is lost (see `PipelineState.check_checkpoint`).
    """
    places = {}
    for sink, name in names.items():
        places[sink] = str(state.checkpoint(identity, sink))
        if run.checkpoints is not None:
            places[sink] = f"{run.checkpoints}/{name}"
        state.check_checkpoint(identity, sink, run.checkpoints, places[sink], has_offsets)
    return places


def _letters_of_sinks(
    pipeline: Pipeline,
    results: Mapping[str, "DataFrame"],
    letter_loads: Mapping[int, str],
    state: PipelineState,
    identity: Identity,
) -> dict[str, dict[int, str]]:
    """For each source, choose the query that writes its dead letters, and store the choice for later runs.

    Returns, for each sink, the sources whose dead letters its query writes. A source is a pair: the number of its load
    (attribute `load` of a `QuerySource`), and the name of its parameter.
    """
    read = {
        sink: {load: letter_loads[load] for load in loads_of(frame) if load in letter_loads}
        for sink, frame in results.items()
    }
    if not letter_loads:
        return read
    readers = {sink: set(loads.values()) for sink, loads in read.items()}
    writers = letter_writers(pipeline.name, state.letter_writers(identity), letter_loads.values(), readers)
    state.store_letter_writers(identity, writers)
    return {
        sink: {load: parameter for load, parameter in loads.items() if writers[parameter] == sink}
        for sink, loads in read.items()
    }


@contextmanager
def _source_errors(pipeline: Pipeline, parameter: str, source: Source) -> Iterator[None]:
    """Turn errors in the block into PipelineError, which names the pipeline and the source."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PipelineError:
        raise
    except (PySparkException, ValueError, ImportError) as error:
        raise PipelineError(
            f"pipeline {pipeline.name}, source {parameter} ({source.describe()}): {first_line(str(error))}"
        ) from error


def _start_query(
    pipeline: Pipeline,
    query: RunningQuery,
    frame: "DataFrame",
    source_context: SourceContext,
    sink_context: SinkContext,
    checkpoint: str,
    letter_sources: Mapping[str, Topic],
    letter_loads: Mapping[int, str],
    *,
    once: bool,
) -> RunningQuery:
    """Start the query. `letter_sources` maps parameters to sources, for all sources with dead letters. `letter_loads`
    maps the number of a load (attribute `load` of a `QuerySource`) to the parameter, for the sources whose dead letters
    this query writes.
    """
    from pyspark.errors import PySparkException

    if letter_loads:
        assert pipeline.dead_letters is not None
        counts: Callable[[], Mapping[str, Counts]] = query.counts
        query.dead_letters = DeadLetters(
            pipeline.dead_letters,
            replace(source_context, is_streaming=False),
            sink_context.query,
            Path(checkpoint),
            {parameter: letter_sources[parameter] for parameter in letter_loads.values()},
            lambda: [letter_loads.get(source.load) for source in query.sources()],
            counts,
        )
    sink_context.spark.sparkContext.setLocalProperty("spark.scheduler.pool", pipeline.name)
    try:
        query.start(frame, pipeline, sink_context.query, checkpoint, once=once)
        query.wait_for_sources()
    except BaseException as error:
        for failure in call_all([query.stop], STOP_MAX_S):  # `error` is the cause, so it is the one to raise
            logger.warning("pipeline_stop_failed pipeline=%s %s", pipeline.name, cause_text(failure))
        if not isinstance(error, PySparkException):
            raise
        raise PipelineError(f"pipeline {pipeline.name}, sink {query.status.sink}: {first_line(str(error))}") from error
    return query


def refuse_shared_pages(pipeline: Pipeline, results: "Mapping[str, DataFrame]") -> None:
    """Raise PipelineError if the pages of an `http()` source have several readers. Each reader removes pages from the
    staging directory when its own micro-batch is committed, although another reader may still need them.

    Each sink has its own readers. A sink whose rows are a join of the source with itself has several readers.
    """
    from tidelog.pipelines.sinks.http import Http
    from tidelog.pipelines.sources.http import STAGING

    if not any(isinstance(source, Http) for source in pipeline.sources.values()):
        return
    readers: dict[str, list[str]] = {}
    for sink, frame in results.items():
        for directory in streams_with_option(frame, STAGING):
            readers.setdefault(directory, []).append(sink)
    for directory, sinks in readers.items():
        if len(sinks) > 1:
            pages = f"the pages of http() in {directory}"
            names = [*dict.fromkeys(sinks)]
            reads = f"sinks {' and '.join(names)} read {pages}"
            if len(names) == 1:
                reads = f"sink {names[0]} reads {pages} {'twice' if len(sinks) == 2 else f'{len(sinks)} times'}"
            raise PipelineError(
                f"pipeline {pipeline.name}: {reads}, and would remove pages that are still needed: write the records to"
                " only one sink, for example a topic, and read the topic in another pipeline"
            )
