"""The same jobs through Spark's own Kafka source and sink and through ours: equal rows, schemas and kinds of error."""

import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.protocol import Py4JError, Py4JJavaError
from spark_jobs import READS, STREAMS, WRITES, Job

from process_harness import FULL
from process_harness.raw import RawConnection
from pyspark_tidelog.options import READ, WRITE
from pyspark_tidelog.settings import REFUSED, SECURITY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMATS = ("kafka", "tidelog")
ROWS = 4
QUERY_LIMIT_S = 120

pytestmark = pytest.mark.usefixtures("format_kafka")


def chosen(jobs: list[Job]) -> Any:
    return pytest.mark.parametrize("job", [job for job in jobs if FULL or job.in_slice], ids=lambda job: job.name)


class Topics:
    """Record n of a partition has the timestamp 1000 (n + 1), and in some records a key, headers or no value."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        unique = uuid.uuid4().hex[:8]
        self.names = {"a": f"sp{unique}-a", "raw_a": f"raw-sp{unique}-a", "b": f"sp{unique}.b"}
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self.create(self.names["a"], 2)
        self.create(self.names["raw_a"], 2)
        self.create(self.names["b"], 1)
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
        for name, partitions in [(self.names["a"], 2), (self.names["raw_a"], 2), (self.names["b"], 1)]:
            for n in range(10 * partitions):
                headers = [("n", str(n).encode()), ("n", None)] if n % 3 == 0 else None
                producer.produce(
                    name,
                    partition=n % partitions,
                    key=f"k{n}" if n % 4 else None,
                    value=f"{name} {n}" if n % 5 else None,
                    timestamp=1000 * (n // partitions + 1),
                    headers=headers,
                )
        assert producer.flush(30) == 0

    def create(self, name: str, partitions: int) -> None:
        forever = {"retention.ms": "-1"}  # the records are from 1970
        self._admin.create_topics([NewTopic(name, partitions, config=forever)])[name].result(30)

    def written(self, name: str) -> list[tuple[Any, ...]]:
        """All records of a topic with two partitions. confluent-kafka cannot read all names of headers."""
        host, _, port = self.bootstrap.rpartition(":")
        found: list[tuple[Any, ...]] = []
        with RawConnection((host, int(port))) as connection:
            for partition in range(2):
                next_offset = 0
                while True:
                    code, records = connection.fetch(name, partition, next_offset)
                    assert code == 0
                    if not records:
                        break
                    found += [(r.key, r.value, list(r.headers), partition) for r in records]
                    next_offset = records[-1].offset + 1
        return found


@pytest.fixture(scope="module")
def topics(bootstrap: str) -> Topics:
    return Topics(bootstrap)


class Outcome(NamedTuple):
    schema: "StructType | None" = None
    rows: "Counter[str] | None" = None
    error: Exception | None = None

    @property
    def message(self) -> str:
        """With the name of the condition, which Spark's Kafka source does not print."""
        return f"{condition_of(self.error)} {type(self.error).__name__}: {self.error}"


def condition_of(error: Exception | None) -> str | None:
    if isinstance(error, Py4JJavaError):
        error = error.java_exception
        if error.getClass().getSimpleName() == "SparkException" and error.getCause() is not None:
            error = error.getCause()
    try:
        return error.getCondition()  # type: ignore[union-attr]
    except (AttributeError, Py4JError):
        return None


def options_of(job: Job, names: dict[str, str]) -> dict[str, str]:
    return {key: value.format(**names) for key, value in job.options.items()}


def same(job: Job, names: dict[str, str], theirs: Outcome, ours: Outcome) -> None:
    """Theirs is the oracle; what the job says of it keeps a job from failing for a reason of its own."""
    if job.fails:
        assert theirs.error is not None
        assert ours.error is not None
        for part in job.names:
            part = part.format(**names)
            assert says(theirs, part), f"Spark's source does not say {part!r}: {theirs.message}"
            assert says(ours, part), f"format tidelog does not say {part!r}: {ours.message}"
        return
    assert theirs.error is None, theirs.message
    if job.differs:
        assert job.differs.format(**names) in ours.message
        return
    assert ours.error is None, ours.message
    assert ours.schema == theirs.schema
    assert ours.rows == theirs.rows


def says(outcome: Outcome, part: str) -> bool:
    return part.lower() in outcome.message.lower()


@chosen(READS)
def test_reads(job: Job, spark: "SparkSession", topics: Topics) -> None:
    def outcome(name: str) -> Outcome:
        try:
            reader = spark.read.format(name).option("kafka.bootstrap.servers", topics.bootstrap)
            frame = reader.options(**options_of(job, topics.names)).load()
            return Outcome(frame.schema, Counter(map(str, frame.collect())))
        except Exception as error:
            return Outcome(error=error)

    same(job, topics.names, *map(outcome, FORMATS))


@chosen(STREAMS)
def test_streams(job: Job, spark: "SparkSession", topics: Topics, tmp_path: Path) -> None:
    def outcome(name: str) -> Outcome:
        table = f"t{uuid.uuid4().hex}"
        try:
            reader = spark.readStream.format(name).option("kafka.bootstrap.servers", topics.bootstrap)
            frame = reader.options(**options_of(job, topics.names)).load()
            writer = frame.writeStream.format("memory").queryName(table).trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(tmp_path / name)).start()
            assert query.awaitTermination(QUERY_LIMIT_S)
            return Outcome(frame.schema, Counter(map(str, spark.table(table).collect())))
        except Exception as error:
            return Outcome(error=error)

    same(job, topics.names, *map(outcome, FORMATS))


@chosen(WRITES)
def test_writes(job: Job, spark: "SparkSession", topics: Topics) -> None:
    by_partition = any(column.endswith((" partition", " key")) for column in job.columns)

    def outcome(name: str) -> Outcome:
        target = f"target-{uuid.uuid4().hex}"
        topics.create(target, 2)
        names = topics.names | {"target": target}
        try:
            rows = spark.range(ROWS, numPartitions=2).selectExpr(*[column.format(**names) for column in job.columns])
            writer = rows.write.format(name).option("kafka.bootstrap.servers", topics.bootstrap)
            writer.options(**options_of(job, names)).mode(job.mode).save()
        except Exception as error:
            return Outcome(error=error)
        found = topics.written(target)
        assert len(found) == ROWS
        return Outcome(rows=Counter(str(record if by_partition else record[:3]) for record in found))

    same(job, topics.names | {"target": "target"}, *map(outcome, FORMATS))


def test_a_query_of_sparks_source_goes_on_in_ours(spark: "SparkSession", topics: Topics, tmp_path: Path) -> None:
    """With its checkpoint: only the format's name changes."""
    name = f"moved-{uuid.uuid4().hex}"
    topics.create(name, 2)
    producer = Producer({"bootstrap.servers": topics.bootstrap})

    def run(format: str, values: range) -> list[int]:
        for n in values:
            producer.produce(name, str(n), partition=n % 2)
        assert producer.flush(30) == 0
        reader = spark.readStream.format(format).option("kafka.bootstrap.servers", topics.bootstrap)
        frame = reader.option("subscribe", name).option("startingOffsets", "earliest").load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.option("path", str(tmp_path / "files")).trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_LIMIT_S)
        found = spark.read.parquet(str(tmp_path / "files")).selectExpr("int(string(value))").collect()
        return sorted(row[0] for row in found)

    assert run("kafka", range(10)) == list(range(10))
    assert run("tidelog", range(10, 25)) == list(range(25))


def test_every_setting_of_kafkas_clients_is_taken_or_refused_with_a_reason(spark: "SparkSession") -> None:
    clients = spark._jvm.org.apache.kafka.clients  # type: ignore[union-attr]
    for config, taken in ((clients.consumer.ConsumerConfig, READ), (clients.producer.ProducerConfig, WRITE)):
        names = {name for name in config.configNames() if not name.startswith(("internal.", *SECURITY))}
        assert len(names) > 40
        assert not {name for name in names if f"kafka.{name}" not in taken} - REFUSED.keys()
