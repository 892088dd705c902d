"""Opens sinks and sources as the runner does, for tests with a real Spark."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from sinks_harness.rows import Rows
from tidelog.pipelines.declarations import Opened, PipelineError, Sink, SinkContext, Source, SourceContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY_LIMIT_S = 120


class PlantedError(Exception):
    """Stands for the end of the driver at a chosen point."""


def opened(sink: Sink, spark: "SparkSession", mode: str = "append", query: str = "query-1") -> Opened:
    return sink.open(SinkContext(spark, "127.0.0.1:1", "trial", query, mode))


def batch_of(source: Source, spark: "SparkSession", rows_max: int | None = None) -> "DataFrame":
    return source.load(SourceContext(spark, "127.0.0.1:1", "trial", is_streaming=False, rows_max=rows_max))


def stream_of(source: Source, spark: "SparkSession", begin: str | int | None = None) -> "DataFrame":
    return source.load(SourceContext(spark, "127.0.0.1:1", "trial", is_streaming=True, begin=begin))


def run_to_end(frame: "DataFrame", sink: Opened, checkpoint: Path, mode: str = "append") -> None:
    """Run a query until it has read what exists."""
    writer = frame.writeStream.foreachBatch(sink.write).outputMode(mode)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_LIMIT_S)


@contextmanager
def crash_at(monkeypatch: Any, owner: object, name: str, after: bool = False) -> Iterator[None]:
    """Raise PlantedError when `owner.name` is called: before its work, or after it."""
    real = getattr(owner, name)

    def planted(*arguments: Any, **named: Any) -> Any:
        if after:
            real(*arguments, **named)
        raise PlantedError(name)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, planted)
        yield


class SinkTarget(Protocol):
    """Where a sink writes rows with the column `id`, and a reader of its own."""

    def open(self, query: str = "query-1") -> Opened: ...

    def ids(self) -> list[int]:
        """Return the ids of all rows, sorted."""


def check_written_once(target: SinkTarget) -> None:
    """Write micro-batches, some of them twice: every row must be there once. Another query has numbers of its own."""
    sink = target.open()
    sink.write(Rows.numbers(0, 50), 0)
    sink.write(Rows.numbers(0, 50), 0)
    sink.write(Rows.numbers(50, 80), 1)
    target.open().write(Rows.numbers(50, 80), 1)
    target.open().write(Rows.numbers(80, 80), 2)
    assert target.ids() == list(range(80))
    target.open(query="query-2").write(Rows.numbers(80, 90), 0)
    assert target.ids() == list(range(90))


def check_older_checkpoint(target: SinkTarget) -> None:
    """Continue with an older copy of the checkpoint: the micro-batches that follow have the old numbers, and new rows.
    They must be refused, and not be taken for the micro-batches that were written.
    """
    sink = target.open()
    for batch in range(5):
        sink.write(Rows.numbers(2 * batch, 2 * batch + 2), batch)
    before = target.ids()
    message = (
        r"contains micro-batch 4 of query \S*query-1, but .* continues with micro-batch 2, .* pipeline replay NAME"
    )
    for restored in (sink, target.open()):
        with pytest.raises(PipelineError, match=message):
            restored.write(Rows.numbers(1000, 1100), 2)
    target.open().write(Rows.numbers(8, 10), 4)
    assert target.ids() == before
    target.open().write(Rows.numbers(10, 12), 5)
    assert target.ids() == list(range(12))


def check_two_drivers(
    monkeypatch: Any, target: SinkTarget, owner: type, name: str, *, first_tasks: int, second_tasks: int
) -> None:
    """Let two drivers of one query write the same micro-batch. The second one has written its files, and has not found
    the micro-batch written, when the first one commits: before the second one's call of `owner.name`.
    """
    first, second = target.open(), target.open()
    first.write(Rows.numbers(0, 10), 0)
    second.write(Rows.numbers(0, 10), 0)
    real: Callable[..., None] = getattr(owner, name)
    overtaken: list[int] = []

    def after_the_first(self: Any, *arguments: Any) -> None:
        if not overtaken:
            overtaken.append(1)
            first.write(Rows.numbers(10, 20, tasks=first_tasks), 1)
        real(self, *arguments)

    monkeypatch.setattr(owner, name, after_the_first)
    second.write(Rows.numbers(10, 20, tasks=second_tasks), 1)
    assert overtaken
    assert target.ids() == list(range(20))


def check_another_writer(target: SinkTarget, batches: int) -> None:
    """Write micro-batches while another query commits all the time. Both queries' rows must be there once."""
    sink, other = target.open(), target.open(query="query-2")
    sink.write(Rows.numbers(0, 10), 0)
    failures: list[BaseException] = []

    def write_others() -> None:
        try:
            for batch in range(batches):
                other.write(Rows.numbers(1000 + batch, 1001 + batch), batch)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=write_others)
    thread.start()
    for batch in range(1, batches + 1):
        sink.write(Rows.numbers(10 * batch, 10 * batch + 10), batch)
    thread.join()
    assert not failures
    assert target.ids() == [*range(10 * batches + 10), *range(1000, 1000 + batches)]
