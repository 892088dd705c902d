"""Declared pipelines in a real Spark, against a live broker."""

import json
import shutil
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as f

from tidelog.pipelines import PipelineError, file, pipeline, topic
from tidelog.pipelines import json as json_format
from tidelog.pipelines.checkpoints import ObsoleteCheckpoints, has_offsets, remove_with_spark
from tidelog.pipelines.declarations import SinkContext, SourceContext, TemporaryError
from tidelog.pipelines.failures import TOPIC_REMEDY
from tidelog.pipelines.lag import LagMonitor
from tidelog.pipelines.loading import declared_pipeline
from tidelog.pipelines.running import Run, run
from tidelog.pipelines.topics import OpenedTopic, Topic
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT_S = 280


SALES = "product string, quantity int"


def sale(product: str, quantity: object) -> str:
    return json.dumps({"product": product, "quantity": quantity})


class Log:
    """Topics of one test, with two partitions each."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.suffix = uuid.uuid4().hex[:8]

    def create(self, name: str, partitions: int = 2) -> str:
        full_name = f"{name}-{self.suffix}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(full_name, partitions)])[full_name].result(30)
        return full_name

    def send(self, name: str, *values: str | None, **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number, value in enumerate(values):
            producer.produce(name, value=value, partition=number % 2, **more)
        assert producer.flush(30) == 0

    def records(self, name: str) -> list[Any]:
        """Return all committed records of a topic."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "test", "isolation.level": "read_committed"}
        consumer = Consumer({**settings, "enable.partition.eof": True})
        parts = consumer.list_topics(name, timeout=30).topics[name].partitions
        consumer.assign([TopicPartition(name, number, 0) for number in parts])
        messages: list[Any] = []
        at_end: list[int] = []
        while len(at_end) < len(parts):
            message = consumer.poll(30)
            assert message is not None, f"no answer from topic {name}"
            if message.error():
                at_end.append(message.partition())
            else:
                messages.append(message)
        consumer.close()
        return messages


@pytest.fixture
def log(bootstrap: str) -> Log:
    return Log(bootstrap)


def test_a_pipeline_continues_where_it_ended_and_puts_unparsable_records_aside(
    spark: "SparkSession", log: Log, tmp_path: Path
) -> None:
    sales, totals, dead = log.create("sales"), f"totals-{log.suffix}", f"dead-{log.suffix}"

    @pipeline(
        source=topic(sales, value=json_format(SALES)),
        sink=topic(totals, value=json_format(), key="product", partitions=2),
        output_mode="update",
        dead_letters=dead,
    )
    def totals_by_product(sales: "DataFrame") -> "DataFrame":
        return sales.groupBy("product").agg(f.sum("quantity").alias("units"))

    log.send(sales, sale("tea", 2), sale("tea", 3), sale("coffee", 1))
    first = run(totals_by_product, bootstrap=log.bootstrap, state=tmp_path, spark=spark, timeout_s=LIMIT_S)
    assert log.records(dead) == []
    sent_from_ms = time.time_ns() // 1_000_000
    log.send(sales, sale("tea", "x"), sale("tea", 5), "cocoa", None, headers=[("trace", b"7")])
    second = run(totals_by_product, bootstrap=log.bootstrap, state=tmp_path, spark=spark, timeout_s=LIMIT_S)

    written = {(r.key(), r.value()) for r in log.records(totals)}
    assert written == {(b"tea", b'{"units":5}'), (b"coffee", b'{"units":1}'), (b"tea", b'{"units":10}')}
    letters = sorted(log.records(dead), key=lambda r: (r.value() or b"", r.offset()))
    assert [letter.value() for letter in letters] == [None, b"cocoa", sale("tea", "x").encode()]
    headers = dict(letters[2].headers())
    assert {name: headers[name] for name in ("reason", "topic", "pipeline", "trace")} == {
        "reason": b"the value does not fit the schema: quantity is not int",
        "topic": sales.encode(),
        "pipeline": b"totals_by_product",
        "trace": b"7",
    }
    assert (headers["partition"], headers["offset"]) == (b"0", b"2")
    assert sent_from_ms <= int(headers["timestamp"]) <= letters[2].timestamp()[1]
    counts = [each["totals_by_product"].queries[0] for each in (first, second)]
    assert [(count.rows, count.dead_letters) for count in counts] == [(3, 0), (4, 3)]


class Numbers:
    """A sink that keeps the numbers of the micro-batches."""

    def __init__(self) -> None:
        self.written: list[int] = []

    def describe(self) -> str:
        return "numbers"

    def open(self, context: SinkContext) -> "Numbers":
        return self

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        self.written.append(batch_id)

    def close(self) -> None:
        pass


def letters_of(log: Log, dead: str) -> list[tuple[str, str]]:
    """Return the source and the value of each dead letter, sorted."""
    return sorted((dict(each.headers())["source"].decode(), each.value().decode()) for each in log.records(dead))


def test_topics_with_the_same_name_in_two_clusters_are_told_apart(
    spark: "SparkSession", log: Log, tmp_path: Path
) -> None:
    dead = f"dead-{log.suffix}"
    with Broker(process=True) as other:
        there = Log(other.bootstrap)
        there.suffix = log.suffix
        sales, copies = log.create("sales"), log.create("copies")
        assert there.create("sales") == sales

        @pipeline(
            source={
                "near": topic(sales, value=json_format(SALES)),
                "far": topic(sales, value=json_format(SALES), bootstrap=there.bootstrap),
            },
            sink=topic(copies, value=json_format()),
            dead_letters=dead,
        )
        def both(near: "DataFrame", far: "DataFrame") -> "DataFrame":
            return far.unionByName(near).select("product")  # in another order than that of the declaration

        log.send(sales, sale("tea", 1), sale("milk", 1), "broken near")
        there.send(sales, sale("cocoa", 1), "broken far", sale("salt", 1), sale("sugar", 1), sale("rice", 1))
        status = run(both, bootstrap=log.bootstrap, state=tmp_path, spark=spark, timeout_s=LIMIT_S)["both"]
        [query] = status.queries
        ends = {log.bootstrap: {sales: {"0": 2, "1": 1}}, there.bootstrap: {sales: {"0": 3, "1": 2}}}
        assert (query.offsets, query.dead_letters) == (ends, 2)
        assert letters_of(log, dead) == [("far", "broken far"), ("near", "broken near")]
        there.send(sales, sale("flour", 1))
        monitor = LagMonitor(list)
        try:
            assert monitor.measure(query.offsets)[0] == 1
        finally:
            monitor.close()


def test_two_sources_of_a_topic_have_dead_letters_of_their_own(spark: "SparkSession", log: Log, tmp_path: Path) -> None:
    sales, copies, dead = log.create("sales"), log.create("copies"), f"dead-{log.suffix}"

    @pipeline(
        source={
            "sales": topic(sales, value=json_format(SALES)),
            "products": topic(sales, value=json_format("product string")),
        },
        sink=topic(copies, value=json_format()),
        dead_letters=dead,
    )
    def names(sales: "DataFrame", products: "DataFrame") -> "DataFrame":
        both = products.select("product").unionByName(sales.select("product"))
        return both.unionByName(products.select("product"))

    log.send(sales, sale("tea", 1), sale("milk", "two"), "broken", sale("salt", 1))
    status = run(names, bootstrap=log.bootstrap, state=tmp_path, spark=spark, timeout_s=LIMIT_S)["names"]
    assert (status.queries[0].dead_letters, status.error) == (3, None)
    assert letters_of(log, dead) == [("products", "broken"), ("sales", "broken"), ("sales", sale("milk", "two"))]


def test_the_order_of_the_sinks_does_not_change_which_query_writes_the_dead_letters(
    spark: "SparkSession", log: Log, tmp_path: Path
) -> None:
    sales, dead = log.create("sales"), f"dead-{log.suffix}"
    sinks = {"first": Numbers(), "second": Numbers()}

    def process(order: list[str]) -> None:
        @pipeline(
            source=topic(sales, value=json_format(SALES)),
            sink={name: sinks[name] for name in order},
            dead_letters=dead,
        )
        def copied(sales: "DataFrame") -> dict[str, "DataFrame"]:
            return dict.fromkeys(order, sales.select("product"))

        run(copied, bootstrap=log.bootstrap, state=tmp_path, spark=spark, timeout_s=LIMIT_S)

    log.send(sales, "broken")
    process(["first", "second"])
    # The second query has not committed its micro-batch, so the next run repeats it.
    for path in tmp_path.glob("copied/*/second/commits/*"):
        path.unlink()
    process(["second", "first"])
    assert [sink.written for sink in sinks.values()] == [[0], [0, 0]]
    assert letters_of(log, dead) == [("sales", "broken")]
    with pytest.raises(PipelineError, match="its sink first wrote the dead letters of the source sales, but now the"):
        process(["second"])


def test_records_that_are_skipped_do_not_cause_a_second_read(
    spark: "SparkSession", log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales, copies = log.create("sales"), log.create("copies")

    @pipeline(
        source=topic(sales, value=json_format(SALES), tombstones="skip"),
        sink=topic(copies, value=json_format()),
        dead_letters=f"dead-{log.suffix}",
    )
    def copy(sales: "DataFrame") -> "DataFrame":
        return sales.select("product")

    def refuse(*_: object) -> None:
        raise AssertionError("the micro-batch is read a second time")

    monkeypatch.setattr(Topic, "read_range", refuse)
    log.send(sales, sale("tea", 1), None, sale("salt", 1), None)
    status = run(copy, bootstrap=log.bootstrap, state=tmp_path, spark=spark, timeout_s=LIMIT_S)["copy"]
    assert (status.queries[0].rows, status.queries[0].dead_letters, status.restarts) == (4, 0, 0)
    assert sorted(each.value() for each in log.records(copies)) == [b'{"product":"salt"}', b'{"product":"tea"}']


def test_spark_removes_old_checkpoints_and_no_others(spark: "SparkSession", tmp_path: Path) -> None:
    names = ["sales.0a1b2c3d", "sales.totals.0a1b2c3d", "sales.11111111", "sales2.0a1b2c3d"]
    for name in names:
        (tmp_path / name / "offsets").mkdir(parents=True)
    assert remove_with_spark(spark, ObsoleteCheckpoints(tmp_path.as_uri(), "sales", "0a1b2c3d"))
    assert sorted(path.name for path in tmp_path.iterdir()) == names[2:]
    with pytest.raises(OSError, match="nosuchscheme"):
        remove_with_spark(spark, ObsoleteCheckpoints("nosuchscheme://x/y", "sales", "0a1b2c3d"))


@pytest.mark.parametrize("is_uri", [False, True])
def test_a_query_does_not_begin_again_if_its_checkpoint_in_another_place_is_lost(
    spark: "SparkSession", tmp_path: Path, *, is_uri: bool
) -> None:
    lines, place, sink = tmp_path / "lines", tmp_path / "checkpoints", Numbers()
    lines.mkdir()

    @pipeline(source=file(str(lines)), sink=sink)
    def copied(rows: "DataFrame") -> "DataFrame":
        return rows

    def process(text: str) -> str | None:
        """Add a file, process it, and return the error."""
        (tmp_path / text).write_text(text)
        (tmp_path / text).rename(lines / text)
        declared, checkpoints = declared_pipeline(copied), place.as_uri() if is_uri else str(place)
        with Run(
            [declared], spark, bootstrap="127.0.0.1:1", state=tmp_path / "state", once=True, checkpoints=checkpoints
        ) as started:
            started.start()
            while not started.has_ended:
                started.step()
                time.sleep(0.1)
        return started.statuses[0].error

    assert [process("one"), process("two")] == [None, None]
    assert sink.written == [0, 1]
    [checkpoint] = place.iterdir()
    place.rename(tmp_path / "away")
    assert f"/{checkpoint.name} is missing or empty: restore it" in str(process("three"))
    assert sink.written == [0, 1]
    shutil.rmtree(place, ignore_errors=True)
    (tmp_path / "away").rename(place)
    assert process("four") is None
    assert sink.written == [0, 1, 2]


def test_a_checkpoint_is_complete_if_it_has_offsets(spark: "SparkSession", tmp_path: Path) -> None:
    places = [str(tmp_path), tmp_path.as_uri()]
    assert [has_offsets(spark, place) for place in places] == [False, False]
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / ".0.crc").touch()
    assert [has_offsets(spark, place) for place in places] == [False, False]
    (tmp_path / "offsets" / "0").touch()
    assert [has_offsets(spark, place) for place in places] == [True, True]
    with pytest.raises(TemporaryError, match=r"the checkpoint nosuchscheme://x/y cannot be read: .*nosuchscheme"):
        has_offsets(spark, "nosuchscheme://x/y")


def test_without_a_dead_letter_topic_an_unparsable_record_stops_the_pipeline(
    spark: "SparkSession", log: Log, tmp_path: Path
) -> None:
    sales, copies = log.create("sales"), log.create("copies")
    log.send(sales, sale("tea", 2), sale("tea", 3), sale("tea", 4), "broken")

    @pipeline(source=topic(sales, value=json_format(SALES)), sink=topic(copies, value=json_format()))
    def copy(sales: "DataFrame") -> "DataFrame":
        return sales.select("product")

    with pytest.raises(PipelineError) as failure:
        run(copy, bootstrap=log.bootstrap, state=tmp_path, spark=spark, timeout_s=LIMIT_S)
    assert str(failure.value) == (
        f"pipeline copy: the record at topic {sales} partition 1 offset 1 cannot be parsed: the value is not exactly"
        f" one JSON object{TOPIC_REMEDY}"
    )


def test_two_sinks_and_two_pipelines_share_a_session(spark: "SparkSession", log: Log, tmp_path: Path) -> None:
    sales, small, large = log.create("sales"), log.create("small"), log.create("large")

    @pipeline(
        source={"orders": topic(sales, value=json_format(SALES))},
        sink={"small": topic(small, value=json_format()), "large": topic(large, value=json_format(), key="product")},
        settings={"spark.sql.shuffle.partitions": "1"},
    )
    def divide(orders: "DataFrame") -> dict[str, "DataFrame"]:
        fields = orders.select("product", "quantity")
        return {"small": fields.where("quantity < 3"), "large": fields.where("quantity >= 3")}

    @pipeline(source=topic(sales), sink=topic("nowhere"))
    def fails(records: "DataFrame") -> "DataFrame":
        return records.select("value")

    log.send(sales, sale("tea", 2), sale("tea", 3), sale("tea", 4))
    with pytest.raises(PipelineError, match="pipeline fails: topic nowhere does not exist: create it"):
        run([fails, divide], bootstrap=log.bootstrap, state=tmp_path, spark=spark, timeout_s=LIMIT_S)
    assert [r.value() for r in log.records(small)] == [b'{"product":"tea","quantity":2}']
    assert sorted((r.key(), r.value()) for r in log.records(large)) == [
        (b"tea", b'{"quantity":3}'),
        (b"tea", b'{"quantity":4}'),
    ]


class Ticks:
    """A source with a row each 100 ms."""

    def describe(self) -> str:
        return "ticks"

    def load(self, context: SourceContext) -> "DataFrame":
        return context.spark.readStream.format("rate").option("rowsPerSecond", 10).load()


class Stuck:
    """A sink whose write does not return when Spark interrupts it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.closed = threading.Event()

    def describe(self) -> str:
        return "stuck"

    def open(self, context: SinkContext) -> "Stuck":
        return self

    def write(self, *_: object) -> None:
        self.begun.set()
        self.may_end.wait(LIMIT_S)

    def close(self) -> None:
        self.closed.set()


def test_the_end_of_a_run_does_not_wait_for_a_sink_that_does_not_return(spark: "SparkSession", tmp_path: Path) -> None:
    sink = Stuck()

    @pipeline(source=Ticks(), sink=sink, trigger="0 seconds")
    def copied(rows: "DataFrame") -> "DataFrame":
        return rows

    declared, settings = declared_pipeline(copied), {"spark.sql.streaming.stopTimeout": "200ms"}
    try:
        with Run([declared], spark, bootstrap="127.0.0.1:1", state=tmp_path, settings=settings) as started:
            started.start()
            while not sink.begun.wait(0.1):
                started.step()
            started.stop(0)
        assert not sink.closed.is_set()
        assert "the query has not ended within" in str(started.statuses[0].error)
    finally:
        sink.may_end.set()
    assert sink.closed.wait(LIMIT_S)


def test_a_column_named_key_is_a_part_of_the_value_if_another_one_is_the_key(spark: "SparkSession") -> None:
    rows = spark.createDataFrame([("k", "x", 1)], "key string, other string, n int")
    context = SinkContext(spark, "127.0.0.1:1", "trial", "query-1", "append")
    for key, expected in ((None, (b"k", b'{"other":"x","n":1}')), ("other", (b"x", b'{"key":"k","n":1}'))):
        [row] = OpenedTopic(topic("t", value=json_format(), key=key), context)._encoded(rows).collect()
        assert (bytes(row.key), bytes(row.value)) == expected
