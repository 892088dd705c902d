"""The sinks whose writes the rounds check. To add one, write two functions and add a row to SINKS."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Target(NamedTuple):
    """Where one query writes."""

    bootstrap: str
    name: str
    """Name of the topic or table."""
    folder: Path
    """Directory of the query. It exists, and contains the checkpoint."""


class RoundsSink(NamedTuple):
    write: "Callable[[DataFrame, Target], DataStreamWriter]"
    """Return a writer of the DataFrame, which has one column `value` of texts. Runs in the driver, after each start.
    The caller sets the checkpoint and the trigger."""
    read: Callable[[Target], Iterable[str]]
    """Return every value that readers see, in any order. Runs outside of Spark."""


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
    """Read with read_committed, which is librdkafka's default. Open transactions hide the records after them."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "rounds-checker",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(target.name, 30).topics[target.name].partitions
    consumer.assign([TopicPartition(target.name, number, 0) for number in partitions])
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


SINKS = {
    "topic": RoundsSink(write_topic, read_topic),
    "topic-foreach-batch": RoundsSink(write_topic_of_batches, read_topic),
}
