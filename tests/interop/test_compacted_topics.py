"""Compacted topics and deleted records, as seen by clients and Kafka's tools."""

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from interop_harness.java_tools import JavaTools
from interop_harness.suite import CODECS, LIMIT_S, NewTopicNamed, wait_until
from tidelog.testing import Broker

CLIENT = "Java kafka-clients and Kafka's tools"
GOLDEN = Path(__file__).parents[1] / "golden/streams"
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "internal.segment.bytes": "100000",
    "delete.retention.ms": "86400000",
}
Stored = tuple[int, bytes, bytes | None]
"""Offset, key, value."""
COMPLAINTS = re.compile(r"mismatch|corrupt|error|exception|isvalid: false|out of order", re.IGNORECASE)


def rows(pattern: str) -> Iterator[dict[str, object]]:
    """A day of a stream where TIDELOG_STREAMS names one, else its first hours."""
    whole = sorted(Path(os.environ["TIDELOG_STREAMS"]).rglob(pattern)) if "TIDELOG_STREAMS" in os.environ else []
    for path in whole or sorted(GOLDEN.glob(pattern)):
        with gzip.open(path) as lines:
            yield from map(json.loads, lines)


def wikipedia() -> Iterator[tuple[bytes, bytes | None]]:
    """The last edit of each page; a deletion to nothing is a tombstone."""
    for edit in rows("*wiki*.jsonl.gz"):
        key = f"{edit['channel']} {edit['page']}" if edit["namespace"] == "Main" else str(edit["channel"])
        value = None if edit["added"] == 0 and edit["deleted"] else json.dumps(edit, ensure_ascii=False).encode()
        yield key.encode(), value


def github() -> Iterator[tuple[bytes, bytes | None]]:
    """The last event of each repository; a deletion is a tombstone."""
    for event in rows("*github*.jsonl.gz"):
        repo = event["repo"]
        assert isinstance(repo, dict)
        key = f"{event['type']} {repo['name']}" if event["type"] == "PushEvent" else str(event["type"])
        yield key.encode(), None if event["type"] == "DeleteEvent" else json.dumps(event).encode()


def produced(bootstrap: str, topic: str, stream: Iterator[tuple[bytes, bytes | None]]) -> list[Stored]:
    """What was sent, in order: offset, key and value of each."""
    sent: list[Stored] = []
    codecs = list(CODECS)
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, "batch.size": 40_000}
    producers = [Producer({**settings, "compression.type": codec}) for codec in codecs]
    failures: list[object] = []
    for number, (key, value) in enumerate(stream):
        producer = producers[number // 100 % len(producers)]
        if number % 100 == 0:
            producers[number // 100 % len(producers) - 1].flush(LIMIT_S)  # what one sent is before what the next sends
        producer.produce(topic, value, key, 0, on_delivery=lambda error, _: failures.append(error) if error else None)
        producer.poll(0)
        sent.append((number, key, value))
    for producer in producers:
        assert producer.flush(LIMIT_S) == 0
    assert failures == []
    return sent


def table_of(records: list[Stored]) -> dict[bytes, bytes]:
    """The last value of each key."""
    table: dict[bytes, bytes] = {}
    for _, key, value in records:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


def consumed(bootstrap: str, topic: str) -> list[Stored]:
    """Every record."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    found: list[Stored] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(LIMIT_S)
            assert message is not None, "no end in time"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            offset, key = message.offset(), message.key()
            assert offset is not None
            assert isinstance(key, bytes)
            found.append((offset, key, message.value()))  # type: ignore[arg-type]
    finally:
        consumer.close()


@pytest.fixture
def quick_cleaner(admin: AdminClient, bootstrap: str) -> Iterator[None]:
    """The broker looks for something to clean without a pause."""

    def pause(value: str | None) -> None:
        how = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry("log.cleaner.backoff.ms", value or "", incremental_operation=how)
        (node,) = admin.list_topics(timeout=LIMIT_S).brokers
        resource = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=[entry])
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(LIMIT_S)

    pause("100")
    yield
    pause(None)


@pytest.mark.parametrize("stream", [wikipedia, github])
def test_the_table_is_the_last_value_of_each_key(
    bootstrap: str, new_topic: NewTopicNamed, quick_cleaner: None, stream: object
) -> None:
    assert callable(stream)
    topic = new_topic("table", **COMPACTED)
    sent = produced(bootstrap, topic, stream())

    def compacted() -> bool:
        return len(consumed(bootstrap, topic)) < len(sent)

    wait_until(compacted, "a pass of compaction", 60)
    left = consumed(bootstrap, topic)
    assert set(left) < set(sent)
    assert [offset for offset, _, _ in left] == sorted({offset for offset, _, _ in left})
    assert left[-1] == sent[-1]
    assert table_of(left) == table_of(sent)


def test_kafkas_tool_reads_what_was_compacted(java: JavaTools, tmp_path: Path) -> None:
    settings = {
        "log.cleaner.backoff.ms": 100,
        "log.segment.delete.delay.ms": 0,
        "log.initial.task.delay.ms": 200,
        "log.retention.check.interval.ms": 200,
    }
    with Broker(process=True, data=tmp_path, settings=settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
        admin.create_topics([NewTopic("t", 1, 1, config=COMPACTED)])["t"].result(LIMIT_S)
        sent = produced(broker.bootstrap, "t", wikipedia())
        checkpoint = tmp_path / "cleaner-offset-checkpoint"
        wait_until(lambda: checkpoint.exists() and "t 0 " in checkpoint.read_text(), "a pass of compaction", 60)
        assert table_of(consumed(broker.bootstrap, "t")) == table_of(sent)
        wait_until(lambda: not list(tmp_path.glob("t-0/*.deleted")), "the removal of what was replaced", 60)
    logs = sorted((tmp_path / "t-0").glob("*.log"))
    dumped = java.run("dump-log", "--files", ",".join(map(str, logs)), "--print-data-log", "--deep-iteration")
    assert dumped.code == 0
    assert not [
        line for line in (dumped.out + dumped.err).splitlines() if COMPLAINTS.search(line.partition(" key: ")[0])
    ]
    indexes = [str(p) for p in (tmp_path / "t-0").iterdir() if p.suffix in (".index", ".timeindex")]
    checked = java.run("dump-log", "--files", ",".join(indexes), "--index-sanity-check")
    assert checked.code == 0
    assert not COMPLAINTS.search(checked.out + checked.err)


def test_kafkas_tool_deletes_records(java: JavaTools, bootstrap: str, new_topic: NewTopicNamed, tmp_path: Path) -> None:
    topic = new_topic("deleted")
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        producer.produce(topic, b"%d" % number, b"k", 0)
    assert producer.flush(LIMIT_S) == 0
    request = tmp_path / "offsets.json"
    request.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 7}]}))
    ran = java.run("delete-records", "--bootstrap-server", bootstrap, "--offset-json-file", str(request))
    assert ran.code == 0
    assert "low_watermark: 7" in ran.out
    assert [offset for offset, _, _ in consumed(bootstrap, topic)] == [7, 8, 9]
