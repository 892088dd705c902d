"""Tidelog finishes the open transactions of a directory of Apache Kafka, each in the way that its client asks for."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from interop_harness.suite import wait_until
from interop_harness.target import NoKafka, kafka_jars, started
from tidelog.testing import Broker

TOPICS = ("committed-later", "fenced", "timed-out")
GROUP = "readers-of-committed-later"
TIMEOUT_MS = 15_000
"""Timeout of the transaction that nobody ends. It must be open until Tidelog has started."""

JAVA_PROGRAM = Path(__file__).parents[1] / "interop_harness/java/Transactions.java"
JAVA_LIMIT_S = 240
ATTRIBUTES_POSITION, CONTROL_BIT = 22, 0x20
"""The byte of a batch's header that has the flag of a control batch."""


def java_command(*arguments: str) -> list[str]:
    jars = kafka_jars()
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={jars}/log4j2.xml"]
    return ["java", *options, "-cp", f"{jars}/*", str(JAVA_PROGRAM), *arguments]


def producer(bootstrap: str, transactional_id: str, **settings: Any) -> Producer:
    created = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 2} | settings,
    )
    created.init_transactions(30)
    return created


def begin(bootstrap: str, topic: str, **settings: Any) -> Producer:
    """Open a transaction with three records in the topic, which are acknowledged."""
    opened = producer(bootstrap, f"id-of-{topic}", **settings)
    opened.begin_transaction()
    for number in range(3):
        opened.produce(topic, str(number))
    assert opened.flush(30) == 0
    return opened


def last_stable_offset(admin: AdminClient, topic: str) -> int:
    partition = TopicPartition(topic, 0)
    offsets = admin.list_offsets(
        {partition: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=30
    )
    return int(offsets[partition].result(30).offset)


def committed_values(bootstrap: str, topic: str) -> list[bytes | None]:
    """Return the values that a read_committed consumer gets before the end of the partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "checks", "enable.partition.eof": True}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        values.append(message.value())
    assert message is not None, "the end of the partition was not reached"
    consumer.close()
    return values


@pytest.mark.timeout(240)
def test_open_transactions_of_kafka_are_finished(tmp_path: Path) -> None:
    """Its producer commits one, a new producer with the same id aborts one, and one is aborted after its timeout."""
    data = tmp_path / "adopted"
    try:
        with started("kafka") as kafka:
            bootstrap = kafka.bootstrap
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
            for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in TOPICS]).values():
                created.result(30)
            committed = begin(bootstrap, TOPICS[0])
            reader = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
            committed.send_offsets_to_transaction(
                [TopicPartition(TOPICS[0], 0, 2)], reader.consumer_group_metadata(), 30
            )
            reader.close()
            begin(bootstrap, TOPICS[1])
            begin(bootstrap, TOPICS[2], **{"transaction.timeout.ms": TIMEOUT_MS})
            assert [last_stable_offset(admin, topic) for topic in TOPICS] == [0, 0, 0]
            assert kafka.data is not None
            # Kafka's directory is removed when Kafka ends. A copy of a running broker's files is like a power cut.
            shutil.copytree(kafka.data, data)
    except NoKafka as missing:
        pytest.skip(f"Apache Kafka cannot run here: {missing}")

    port = int(bootstrap.rpartition(":")[2])
    with Broker(process=True, data=data, port=port) as broker:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        assert broker.bootstrap == bootstrap
        assert [last_stable_offset(admin, topic) for topic in TOPICS] == [0, 0, 0]

        committed.commit_transaction(60)
        wait_until(lambda: last_stable_offset(admin, TOPICS[0]) == 4, "the marker of the commit")
        assert committed_values(bootstrap, TOPICS[0]) == [b"0", b"1", b"2"]
        request = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(TOPICS[0], 0)])
        (offset,) = admin.list_consumer_group_offsets([request])[GROUP].result(30).topic_partitions
        assert offset.offset == 2

        successor = producer(bootstrap, f"id-of-{TOPICS[1]}")
        wait_until(lambda: last_stable_offset(admin, TOPICS[1]) == 4, "the marker of the abort")
        successor.begin_transaction()
        successor.produce(TOPICS[1], "later")
        successor.commit_transaction(30)
        assert committed_values(bootstrap, TOPICS[1]) == [b"later"]

        wait_until(
            lambda: last_stable_offset(admin, TOPICS[2]) == 4, "the abort after the timeout", TIMEOUT_MS / 1000 + 30
        )
        assert committed_values(bootstrap, TOPICS[2]) == []


def state(bootstrap: str, transactional_id: str) -> str:
    """Return what `tidelog transaction describe` prints as the state."""
    command = [sys.executable, "-m", "tidelog", "transaction", "describe", transactional_id, "--json"]
    environment = os.environ | {"TIDELOG_BOOTSTRAP": bootstrap}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    return str(json.loads(ran.stdout)[0]["state"])


def cut_last_batch(log: Path) -> bytes:
    """Remove the last batch of a segment, as a power cut does before it is flushed. Return the batch."""
    data = log.read_bytes()
    start = end = 0
    while end < len(data):
        start = end
        end += 12 + int.from_bytes(data[start + 8 : start + 12], "big")  # base offset, then the length of the rest
    assert end == len(data) > 0
    os.truncate(log, start)
    return data[start:]


@pytest.mark.timeout(400)
def test_a_java_producer_continues_its_transactions_of_version_2(tmp_path: Path) -> None:
    """One is open. The other one is committed, but a power cut has removed its marker and CompleteCommit."""
    data, errors = tmp_path / "adopted", tmp_path / "errors"
    opened, ended = "java-adopted-open", "java-adopted-ended"  # names of topics and of transactional ids
    with ExitStack() as stack:
        try:
            with started("kafka") as kafka:
                bootstrap = kafka.bootstrap
                program = subprocess.Popen(
                    java_command(bootstrap, "java", "adopted"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stack.enter_context(errors.open("wb")),
                    text=True,
                )
                stack.enter_context(program)
                stack.callback(program.kill)
                assert program.stdout is not None
                assert program.stdout.readline() == "restart now\n", errors.read_text()[-3000:]
                wait_until(lambda: state(bootstrap, ended) == "complete commit", "the markers of the commit")
                assert kafka.data is not None
                shutil.copytree(kafka.data, data)
        except NoKafka as missing:
            pytest.skip(f"Apache Kafka cannot run here: {missing}")
        (state_log,) = [log for log in data.glob("__transaction_state-*/*.log") if ended.encode() in log.read_bytes()]
        assert ended.encode() in cut_last_batch(state_log)
        marker = cut_last_batch(data / f"{ended}-0" / f"{0:020}.log")
        assert marker[ATTRIBUTES_POSITION] & CONTROL_BIT

        port = int(bootstrap.rpartition(":")[2])
        with Broker(process=True, data=data, port=port):
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
            wait_until(lambda: last_stable_offset(admin, ended) == 2, "the marker that was lost")
            assert last_stable_offset(admin, opened) == 0
            assert committed_values(bootstrap, ended) == [b"before"]
            output, _ = program.communicate("continue\n", timeout=JAVA_LIMIT_S)
            assert output == "ok adopted\n", errors.read_text()[-3000:]
