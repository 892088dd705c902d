"""The end of queries: several at the same time, and within a limit."""

import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.pipelines.queries import RunningQuery, StopRequested
from tidelog.pipelines.session import SETTINGS
from tidelog.pipelines.stopping import SPARK_STOP_TIMEOUT, NotStopped, call_all

WAIT_S = 20


class StopTimeout(Exception):
    """In place of Spark's error."""

    def __str__(self) -> str:
        return f"An error occurred while calling o7.stop. : ... (specified by {SPARK_STOP_TIMEOUT})"


class Query:
    """In place of Spark's query."""

    def stop(self) -> None:
        raise StopTimeout


class BlockedSink:
    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.closed = threading.Event()

    def write(self, *_: object) -> None:
        self.begun.set()
        assert self.may_end.wait(WAIT_S)
        assert not self.closed.is_set()

    def close(self) -> None:
        self.closed.set()


def query_of(sink: BlockedSink) -> RunningQuery:
    query = RunningQuery("sales", cast(Any, sink), lambda: None)
    query._query = cast(Any, Query())
    query._has_query.set()
    return query


def test_spark_bounds_the_end_of_a_query() -> None:
    assert SETTINGS[SPARK_STOP_TIMEOUT] == "10s"


def test_calls_are_made_at_the_same_time_and_all_errors_are_returned() -> None:
    together = threading.Barrier(2)

    def meet() -> None:
        together.wait(WAIT_S)

    def fail() -> None:
        raise RuntimeError("the JVM has ended")

    assert [str(error) for error in call_all([meet, fail, meet], WAIT_S)] == ["the JVM has ended"]


def test_a_call_that_ends_with_sys_exit_is_reported() -> None:
    [error] = call_all([lambda: sys.exit(2)], WAIT_S)
    assert str(error) == "SystemExit was raised (for example by sys.exit()): 2"


def test_a_call_that_does_not_end_is_reported() -> None:
    may_end = threading.Event()
    try:
        [error] = call_all([lambda: cast(Any, may_end.wait(WAIT_S)), lambda: None], 0.01)
    finally:
        may_end.set()
    assert isinstance(error, NotStopped)
    assert str(error).startswith("1 of 2 queries have not ended, or have not closed their sinks, within 0.01 s")


def test_a_sink_is_closed_by_a_write_that_does_not_end_in_time() -> None:
    sink = BlockedSink()
    query = query_of(sink)
    writer = threading.Thread(target=query._write, args=(SimpleNamespace(), 0), daemon=True)
    writer.start()
    assert sink.begun.wait(WAIT_S)
    with pytest.raises(NotStopped, match=r"^sink sales: the query has not ended within 10 s"):
        query.stop()
    assert not sink.closed.is_set()
    sink.may_end.set()
    assert sink.closed.wait(WAIT_S)


def test_a_sink_that_does_not_write_is_closed_although_the_query_does_not_end() -> None:
    sink = BlockedSink()
    with pytest.raises(NotStopped):
        query_of(sink).stop()
    assert sink.closed.is_set()


def test_a_write_does_not_begin_during_a_stop() -> None:
    sink = BlockedSink()
    query = query_of(sink)

    class StopsMeanwhile(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            with pytest.raises(NotStopped):
                query.stop()
            return True

    query._has_query = StopsMeanwhile()
    with pytest.raises(StopRequested):
        query._write(cast(Any, SimpleNamespace()), 0)
    assert sink.closed.is_set()
    assert not sink.begun.is_set()


def refused_writer(query: RunningQuery) -> tuple[threading.Thread, list[BaseException]]:
    """Start a thread that writes a micro-batch. Return it, and the list to which it adds the refusal."""
    refused: list[BaseException] = []

    def write() -> None:
        with pytest.raises(StopRequested) as raised:
            query._write(cast(Any, SimpleNamespace()), 0)
        refused.append(raised.value)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    return writer, refused


def test_a_micro_batch_of_a_query_whose_start_has_failed_is_refused_at_once() -> None:
    query = query_of(BlockedSink())
    query._has_query.clear()
    query.request_stop()
    writer, refused = refused_writer(query)
    writer.join(WAIT_S)
    assert refused


def test_a_micro_batch_that_waits_while_the_start_fails_is_refused() -> None:
    sink = BlockedSink()
    query = RunningQuery("sales", cast(Any, sink), lambda: None)
    waits = threading.Event()

    class Waiting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.set()
            return super().wait(timeout)

    query._has_query = Waiting()

    writer, refused = refused_writer(query)
    assert waits.wait(WAIT_S)
    query.stop()
    writer.join(WAIT_S)
    assert refused
