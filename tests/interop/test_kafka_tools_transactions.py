"""kafka-transactions beside `tidelog transaction`: both show the same, and end a hanging transaction.

Both run with Tidelog and with Apache Kafka.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from interop_harness.java_tools import START_S, JavaTools, Ran
from interop_harness.suite import NewTopicNamed, Unique, wait_until
from tidelog.wire.errors import ErrorCode
from transaction_harness.raw_producer import RawProducer

CLIENT = "Java kafka-clients and Kafka's tools"
pytestmark = pytest.mark.exercises("admin-transactions")
VERIFICATION = "transaction.partition.verification.enable"


class Commands:
    """Runs Kafka's tool and Tidelog's command."""

    def __init__(self, java: JavaTools, bootstrap: str) -> None:
        self._java, self._bootstrap = java, bootstrap

    def kafka(self, *arguments: object, code: int = 0) -> Ran:
        return self._java.run("transactions", "--bootstrap-server", self._bootstrap, *arguments, code=code)

    def rows(self, *arguments: object) -> list[dict[str, str]]:
        """Return the table that Kafka's tool prints: one dict for each line, by the titles of the columns."""
        lines = [line for line in self.kafka(*arguments).lines if "\t" in line]
        titles, *rows = [[cell.strip() for cell in line.split("\t")] for line in lines]
        return [dict(zip(titles, row, strict=False)) for row in rows]

    def tidelog(self, *arguments: object, code: int = 0) -> Any:
        """Return the JSON that the command prints, or its text if it has no --json."""
        words = [*map(str, arguments), *(["--json"] if arguments[0] != "abort" else [])]
        command = [sys.executable, "-m", "tidelog", "transaction", *words]
        environment = os.environ | {"TIDELOG_BOOTSTRAP": self._bootstrap}
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert ran.returncode == code, ran.stderr
        return ran.stdout if arguments[0] == "abort" or code else json.loads(ran.stdout)


@pytest.fixture
def commands(java: JavaTools, bootstrap: str) -> Commands:
    java.run("cluster", "cluster-id", "--bootstrap-server", bootstrap, limit_s=START_S)
    return Commands(java, bootstrap)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_list_and_describe(
    commands: Commands, bootstrap: str, new_topic: NewTopicNamed, unique: Unique, stack: ExitStack
) -> None:
    topic, word = new_topic(partitions=2), unique("tx")
    producers = {}
    for name in ("done", "open", "idle"):
        producers[name] = stack.enter_context(RawProducer(bootstrap, f"{word}-{name}", timeout_ms=40_000))
        producers[name].initialize()
    producers["done"].transaction([(topic, 0, b"a"), (topic, 1, b"b")])
    assert producers["open"].add(topic, 0, 1) == ErrorCode.NONE
    assert producers["open"].write(topic, 1, b"c") == ErrorCode.NONE

    def states() -> dict[str, str]:
        rows = commands.rows("list", "--transactional-id-pattern", f"{word}-.*")
        return {row["TransactionalId"].removeprefix(f"{word}-"): row["TransactionState"] for row in rows}

    wait_until(lambda: states() == {"done": "CompleteCommit", "open": "Ongoing", "idle": "Empty"}, "the states")
    listed = commands.tidelog("list", "--pattern", f"{word}-.*")
    by_kafka = commands.rows("list", "--transactional-id-pattern", f"{word}-.*")
    assert {(row["TransactionalId"], int(row["ProducerId"]), int(row["Coordinator"])) for row in by_kafka} == {
        (each["transactional_id"], each["producer_id"], each["coordinator"]) for each in listed
    }
    assert {each["state"] for each in listed} == {"complete commit", "ongoing", "empty"}
    long = commands.rows("list", "--transactional-id-pattern", f"{word}-.*", "--duration-filter", 3_600_000)
    assert [row["TransactionalId"] for row in long] == [f"{word}-idle"]
    refused = commands.kafka("list", "--transactional-id-pattern", "(", code=1)
    assert re.search("InvalidRegularExpression|failed with an unexpected exception", refused.out + refused.err)

    [row] = commands.rows("describe", "--transactional-id", f"{word}-open")
    [own] = commands.tidelog("describe", f"{word}-open")
    assert (row["TransactionState"], own["state"]) == ("Ongoing", "ongoing")
    assert (row["ProducerId"], row["ProducerEpoch"]) == (str(own["producer_id"]), str(own["producer_epoch"]))
    assert (row["TransactionTimeoutMs"], own["timeout_ms"]) == ("40000", 40_000)
    assert row["CurrentTransactionStartTimeMs"] == str(own["started_ms"])
    assert sorted(row["TopicPartitions"].split(",")) == [f"{topic}-0", f"{topic}-1"]
    assert [part["partition"] for part in own["partitions"]] == [0, 1]
    [row] = commands.rows("describe", "--transactional-id", f"{word}-idle")
    assert (row["TransactionState"], row["CurrentTransactionStartTimeMs"]) == ("Empty", "None")
    unknown = commands.kafka("describe", "--transactional-id", f"{word}-none", code=1)
    assert "because the ID could not be found" in unknown.out + unknown.err
    assert commands.tidelog("describe", f"{word}-none", code=1) == "[]\n"

    [of_done, of_open] = sorted(
        commands.rows("describe-producers", "--topic", topic, "--partition", 1), key=lambda row: int(row["ProducerId"])
    )
    own_done, own_open = commands.tidelog("describe-producers", "--topic", f"{topic}:1")
    for row, own in ((of_done, own_done), (of_open, own_open)):
        assert [int(row[title]) for title in ("ProducerId", "ProducerEpoch", "LastSequence", "LastTimestamp")] == [
            own[name] for name in ("producer_id", "producer_epoch", "last_sequence", "last_timestamp_ms")
        ]
    assert (of_done["CurrentTransactionStartOffset"], own_done["start_offset"]) == ("None", None)
    assert (of_open["CurrentTransactionStartOffset"], own_open["start_offset"]) == ("2", 2)
    # Of the open transaction of a coordinator, neither says that it hangs.
    assert commands.rows("find-hanging", "--topic", topic, "--max-transaction-timeout", 0) == []
    assert commands.tidelog("find-hanging", "--topic", topic, "--max-transaction-timeout", "0s") == []

    forced = commands.kafka("forceTerminateTransaction", "--transactionalId", f"{word}-open")
    assert f"Successfully terminated transaction {word}-open" in forced.out or forced.code == 0
    assert producers["open"].end(commit=True) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    wait_until(lambda: read(bootstrap, topic, 2) == [b"a", b"b"], "only committed records")


@pytest.fixture
def unverified(java: JavaTools, bootstrap: str) -> Iterator[None]:
    """The broker appends records of transactions without asking their coordinators."""
    entity = ("configs", "--bootstrap-server", bootstrap, "--entity-type", "brokers", "--entity-default", "--alter")
    java.run(*entity, "--add-config", f"{VERIFICATION}=false")
    yield
    java.run(*entity, "--delete-config", VERIFICATION)


@pytest.mark.usefixtures("unverified")
@pytest.mark.parametrize("ended_by", ["kafka", "tidelog"])
def test_a_hanging_transaction(
    ended_by: str, commands: Commands, bootstrap: str, new_topic: NewTopicNamed, unique: Unique, stack: ExitStack
) -> None:
    topic, name = new_topic(), unique("hanging")
    producer = stack.enter_context(RawProducer(bootstrap, name))
    producer.initialize()
    # The broker learns of the changed setting a moment after the tool has ended.
    wait_until(lambda: producer.write(topic, 0, b"lost") == ErrorCode.NONE, "a record of an unknown transaction")
    after = stack.enter_context(RawProducer(bootstrap, f"{name}-after"))
    after.initialize()
    after.transaction([(topic, 0, b"after")])
    assert read(bootstrap, topic, 1) == []  # consumers wait at the hanging transaction

    found: list[dict[str, str]] = []

    def is_found() -> bool:
        found[:] = commands.rows("find-hanging", "--topic", topic, "--max-transaction-timeout", 0)
        return bool(found)

    wait_until(is_found, "the hanging transaction")
    [row] = found
    [own] = commands.tidelog("find-hanging", "--topic", topic, "--max-transaction-timeout", "1ms")
    assert (row["Topic"], row["Partition"], row["StartOffset"]) == (topic, "0", "0")
    assert (own["topic"], own["partition"], own["start_offset"], own["transactional_id"]) == (topic, 0, 0, name)
    assert (int(row["ProducerId"]), int(row["ProducerEpoch"])) == (own["producer_id"], own["producer_epoch"])

    place = ("abort", "--topic", topic, "--partition", 0, "--start-offset", 0)
    if ended_by == "kafka":
        commands.kafka(*place)
    else:
        assert "Aborted the transaction in" in commands.tidelog(*place, "--yes")
    wait_until(lambda: read(bootstrap, topic, 1) == [b"after"], "the records after it")
    assert commands.rows("find-hanging", "--topic", topic, "--max-transaction-timeout", 0) == []
    again = commands.kafka(*place, code=1)
    assert re.search("Could not find any open transactions starting at offset 0", again.out + again.err)
    commands.tidelog(*place, "--yes", code=1)


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Return the records that a read_committed consumer gets: `count` of them, or those that come within 2 s."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer(settings | {"isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        records = consumer.consume(count, 2.0)
        values = [record.value() for record in records if record.error() is None]
        return sorted(value for value in values if value is not None)
    finally:
        consumer.close()
