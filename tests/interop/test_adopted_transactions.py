"""Tidelog finishes the open transactions of a directory of Apache Kafka, each in the way that its client asks for."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from interop_harness.suite import wait_until
from interop_harness.target import NoKafka, started
from tidelog.testing import Broker

TOPICS = ("committed-later", "fenced", "timed-out")
GROUP = "readers-of-committed-later"
TIMEOUT_MS = 15_000
"""Timeout of the transaction that nobody ends. It must be open until Tidelog has started."""


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
