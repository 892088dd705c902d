"""The sinks whose writes the rounds check. To add one, write two functions and add a row to SINKS."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from exactly_once_harness.transactions import stable_ends
from spark_rounds_harness.checker import check, check_versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tidelog.pipelines.declarations import Sink


class Target(NamedTuple):
    """Where one query writes."""

    bootstrap: str
    name: str
    """Name of the topic or table."""
    folder: Path
    """Directory of the query. It exists, and contains the checkpoint."""


class Contents(NamedTuple):
    """What a sink writes, and what it must contain after a round."""

    columns: tuple[str, ...]
    """The columns of the DataFrame that is written: expressions in Spark's SQL over the columns of the Spark source. In
    the input, keys and values are decimal numbers as texts."""
    promise: str
    """What is checked after each round, as a text."""
    check: Callable[[Iterable[Any], int], str]
    """Compare what was read with the first records of the input, whose number is the second argument. Return a text
    that says what was checked. Raises NotExactlyOnce."""


APPENDED = Contents(("cast(value as string) as value",), "every record exactly once", check)
"""One row for each record."""
KEYED = Contents(
    ("cast(cast(key as string) as bigint) as id", "cast(cast(value as string) as bigint) as version"),
    "one row for each key, with its last version",
    check_versions,
)
"""One row for each key. The sink has the key `id` and `order_by` `version`. It promises that a micro-batch replaces the
row that an earlier one wrote, and that of its rows with one key the row with the largest version counts."""


class RoundsSink(NamedTuple):
    write: "Callable[[DataFrame, Target], DataStreamWriter]"
    """Return a writer of the DataFrame, which has the columns of `contents`. Runs in the driver, after each start. The
    caller sets the checkpoint and the trigger."""
    read: Callable[[Target], Iterable[Any]]
    """Return every row that readers see, in any order, as `contents.check` takes it: a text with APPENDED, a pair of a
    key and a version with KEYED. Runs outside of Spark."""
    contents: Contents = APPENDED


def write_topic(frame: "DataFrame", target: Target) -> "DataStreamWriter":
    options = {"kafka.bootstrap.servers": target.bootstrap, "topic": target.name, "exactlyOnce": "true"}
    return frame.writeStream.format("tidelog").options(**options)


def write_topic_of_batches(frame: "DataFrame", target: Target) -> "DataStreamWriter":
    """As `write_topic`, with `foreachBatch`."""
    options = {"kafka.bootstrap.servers": target.bootstrap, "topic": target.name, "exactlyOnce": "true"}

    def write(batch: "DataFrame", number: int) -> None:
        writer = batch.write.format("tidelog").mode("append").options(**options)
        writer.options(exactlyOnceId=target.name, exactlyOnceBatch=number).save()

    return frame.writeStream.foreachBatch(write)


def read_topic(target: Target) -> Iterator[str]:
    """Read with read_committed, which is librdkafka's default, when no transaction is open any more."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    partitions = stable_ends(target.bootstrap, target.name)
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "rounds-checker",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(*partition, 0) for partition in partitions])
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None, f"no end of {target.name} within 30 s"
        error = message.error()
        if error is None:
            yield (message.value() or b"").decode()
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition() or 0)
        else:
            raise AssertionError(str(error))
    consumer.close()


def written_by(sink_of: "Callable[[Target], Sink]") -> "Callable[[DataFrame, Target], DataStreamWriter]":
    """Return a function that writes with a sink of pipelines, opened as the runner of pipelines opens it."""

    def write(frame: "DataFrame", target: Target) -> "DataStreamWriter":
        from tidelog.pipelines.declarations import SinkContext

        context = SinkContext(frame.sparkSession, target.bootstrap, "rounds", target.name, "append")
        return frame.writeStream.foreachBatch(sink_of(target).open(context).write)

    return write


def delta_table(target: Target) -> "Sink":
    from tidelog.pipelines import delta

    return cast("Sink", delta(str(target.folder / "delta")))


def read_delta(target: Target) -> Iterator[str]:
    from deltalake import DeltaTable

    yield from DeltaTable(target.folder / "delta").to_pyarrow_table().column("value").to_pylist()


def delta_table_with_key(target: Target) -> "Sink":
    from tidelog.pipelines import delta

    return cast("Sink", delta(str(target.folder / "delta"), key="id", order_by="version"))


def read_delta_with_key(target: Target) -> Iterator[tuple[int, int]]:
    from deltalake import DeltaTable

    table = DeltaTable(target.folder / "delta").to_pyarrow_table()
    yield from zip(table.column("id").to_pylist(), table.column("version").to_pylist(), strict=True)


def catalog_of(target: Target) -> dict[str, str]:
    folder = target.folder / "iceberg"
    folder.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


def iceberg_table(target: Target) -> "Sink":
    from tidelog.pipelines import iceberg

    return cast("Sink", iceberg("rounds.rows", catalog=catalog_of(target)))


def read_iceberg(target: Target) -> Iterator[str]:
    from pyiceberg.catalog import load_catalog

    table = load_catalog("default", **catalog_of(target)).load_table("rounds.rows")
    yield from table.scan().to_arrow().column("value").to_pylist()


def parquet_files(target: Target) -> "Sink":
    from tidelog.pipelines import parquet

    return cast("Sink", parquet(str(target.folder / "files")))


def read_parquet(target: Target) -> Iterator[str]:
    """Read every file with data in the directory, as a reader does that knows nothing of the sink."""
    import pyarrow.parquet as pq

    for file in (target.folder / "files").glob("**/*.parquet"):
        yield from pq.read_table(file).column("value").to_pylist()


def sql_table(target: Target) -> "Sink":
    from tidelog.pipelines import sql

    return cast("Sink", sql(f"sqlite:///{target.folder}/rounds.db", "rows_of_rounds"))


def read_sql(target: Target) -> Iterator[str]:
    yield from (row[0] for row in selected(target, "select value from rows_of_rounds"))


def sql_table_with_key(target: Target) -> "Sink":
    from tidelog.pipelines import sql

    address = f"sqlite:///{target.folder}/rounds.db"
    return cast("Sink", sql(address, "rows_of_rounds", key="id", order_by="version"))


def read_sql_with_key(target: Target) -> Iterator[tuple[int, int]]:
    yield from selected(target, "select id, version from rows_of_rounds")


def selected(target: Target, statement: str) -> Iterator[Any]:
    """Return the rows of a statement in the database of the SQL sinks."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(target.folder / "rounds.db")) as connection:
        yield from connection.execute(statement)


SINKS = {
    "topic": RoundsSink(write_topic, read_topic),
    "topic-foreach-batch": RoundsSink(write_topic_of_batches, read_topic),
    "delta": RoundsSink(written_by(delta_table), read_delta),
    "delta-key": RoundsSink(written_by(delta_table_with_key), read_delta_with_key, KEYED),
    "iceberg": RoundsSink(written_by(iceberg_table), read_iceberg),
    "parquet": RoundsSink(written_by(parquet_files), read_parquet),
    "sql": RoundsSink(written_by(sql_table), read_sql),
    "sql-key": RoundsSink(written_by(sql_table_with_key), read_sql_with_key, KEYED),
}
