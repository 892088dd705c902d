"""A mirror as a pipeline: records, offsets and groups, also from Apache Kafka, and consumers that continue."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewPartitions, NewTopic

from interop_harness.target import SETTINGS, NoKafka, started
from tidelog.pipelines import mirror
from tidelog.pipelines.mirror_check import Checker, report
from tidelog.pipelines.mirror_writer import connect
from tidelog.pipelines.mirrors import Mirror
from tidelog.pipelines.running import run
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 60.0
KEPT = {"retention.ms": "-1"}
"""The records are years old. With the usual retention, Kafka deletes them half a minute after its start."""

pytestmark = [
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:kafka\..*"),
    pytest.mark.filterwarnings("ignore:(open|read)_text is deprecated:DeprecationWarning"),
    # kafka-python leaves the socket of a connection that closes while it is being made to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]
"""kafka-python is therefore imported by the functions that use it."""


@pytest.fixture(scope="module", params=["tidelog", "kafka"])
def source(request: pytest.FixtureRequest) -> Iterator[str]:
    """The cluster to copy from: Tidelog, or Apache Kafka."""
    try:
        with started(request.param) as broker:
            yield broker.bootstrap
    except NoKafka as missing:
        pytest.skip(f"Apache Kafka cannot run here: {missing}")


@pytest.fixture
def target() -> Iterator[str]:
    with Broker(settings=SETTINGS, process=True) as broker:
        yield broker.bootstrap


def create(bootstrap: str, *topics: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([*topics]).values():
        created.result(LIMIT_S)


def write(bootstrap: str, topic: str, numbers: range, partitions: int) -> None:
    """Records with and without keys, values and headers, whose times go back and forth."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
    for n in numbers:
        producer.produce(
            topic,
            None if n % 7 == 3 else f"value {n}",
            None if n % 3 == 2 else f"key {n % 10}",
            n % partitions,
            timestamp=1_600_000_000_000 + n * 10 - n % 5 * 1000,
            headers=[("a", b"1"), ("a", None), ("b", b"")] if n % 2 else None,
        )
    assert producer.flush(LIMIT_S) == 0


def write_transactions(bootstrap: str, topic: str, values: list[str]) -> None:
    """Every second transaction is aborted; its values end with `!`."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"writes-{topic}"})
    producer.init_transactions(LIMIT_S)
    for number, value in enumerate(values):
        producer.begin_transaction()
        for text in (value, value + " again"):
            producer.produce(topic, text + "!" * (number % 2), text, partition=0)
        if number % 2:
            producer.flush(LIMIT_S)
            producer.abort_transaction(LIMIT_S)
        else:
            producer.commit_transaction(LIMIT_S)


def settings_of(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }


def consume_confluent(bootstrap: str, group: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(settings_of(bootstrap) | {"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes | None] = []
    while len(values) < count:
        message = consumer.poll(LIMIT_S)
        assert message is not None, f"{len(values)} of {count}"
        assert message.error() is None, message.error()
        values.append(message.value())
        consumer.commit(message, asynchronous=False)
    consumer.close()
    return values


def consume_kafka_python(bootstrap: str, group: str, topic: str, count: int) -> list[bytes | None]:
    from kafka import KafkaConsumer
    from kafka.structs import OffsetAndMetadata
    from kafka.structs import TopicPartition as Partition

    consumer: Any = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=int(LIMIT_S * 1000),
    )
    values: list[bytes | None] = []
    for _, message in zip(range(count), consumer, strict=False):
        values.append(message.value)
        position = OffsetAndMetadata(message.offset + 1, "", -1)
        consumer.commit({Partition(message.topic, message.partition): position})
    consumer.close()
    return values


def consume_aiokafka(bootstrap: str, group: str, topic: str, count: int) -> list[bytes | None]:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.structs import TopicPartition as Partition

    async def consume() -> list[bytes | None]:
        consumer: Any = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        values = []
        try:
            for _ in range(count):
                message = await asyncio.wait_for(consumer.getone(), LIMIT_S)
                values.append(message.value)
                await consumer.commit({Partition(message.topic, message.partition): message.offset + 1})
        finally:
            await consumer.stop()
        return values

    return asyncio.run(consume())


CLIENTS = {"confluent": consume_confluent, "kafka-python": consume_kafka_python, "aiokafka": consume_aiokafka}


def contents(bootstrap: str, topic: str, partitions: int) -> dict[int, list[tuple[object, ...]]]:
    """All committed records, by partition: key, value, headers and timestamp."""
    consumer = Consumer(settings_of(bootstrap) | {"group.id": "unused", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    records: dict[int, list[tuple[object, ...]]] = defaultdict(list)
    ended = 0
    while ended < partitions:
        message = consumer.poll(LIMIT_S)
        assert message is not None
        if message.error() is not None:
            ended += 1
            continue
        records[message.partition() or 0].append(
            (message.key(), message.value(), message.headers(), message.timestamp())
        )
    consumer.close()
    return dict(records)


def test_consumers_continue_after_the_cut_over(source: str, target: str, spark: "SparkSession", tmp_path: Path) -> None:
    """In two runs; the second one goes on where the first one ended, with a new partition and a new topic."""
    create(
        source,
        NewTopic("shop-orders", 2, 1, config=KEPT | {"max.message.bytes": "2000000"}),
        NewTopic("shop-stock", 1, 1, config={"cleanup.policy": "compact"}),
        NewTopic("other", 1, 1),
    )
    write(source, "shop-orders", range(200), 2)
    write_transactions(source, "shop-stock", [f"stock {n}" for n in range(8)])
    read = {name: client(source, f"shop-{name}", "shop-stock", 3) for name, client in CLIENTS.items()}
    shop = mirror(
        "shop", source=source, topics="shop-.*", groups="shop-.*", read_options={"maxOffsetsPerTrigger": "150"}
    )
    copy(shop, target, spark, tmp_path, rows=200 + 8)

    create(source, NewTopic("shop-late", 1, 1, config=KEPT))
    admin = AdminClient({"bootstrap.servers": source})
    admin.create_partitions([NewPartitions("shop-orders", 3)])["shop-orders"].result(LIMIT_S)
    write(source, "shop-orders", range(200, 260), 3)
    write(source, "shop-late", range(5), 1)
    consume_confluent(source, "shop-end", "shop-late", 5)
    copy(shop, target, spark, tmp_path, rows=60 + 5)

    for topic, partitions in (("shop-orders", 3), ("shop-stock", 1), ("shop-late", 1)):
        assert contents(target, topic, partitions) == contents(source, topic, partitions), topic
    settings = {"shop-orders": KEPT | {"max.message.bytes": "2000000"}}
    settings |= {"shop-stock": {"cleanup.policy": "compact"}, "shop-late": KEPT}
    for topic, expected in settings.items():
        assert own_settings(target, topic) == own_settings(source, topic) == expected, topic
    declared = shop.tidelog_pipeline.sources["records"]  # type: ignore[attr-defined]
    assert differences(declared, source, target) == []
    assert "other" not in AdminClient({"bootstrap.servers": target}).list_topics(timeout=LIMIT_S).topics
    for name, client in CLIENTS.items():
        rest = client(target, f"shop-{name}", "shop-stock", 5)
        expected = [f"stock {n}{again}".encode() for n in range(0, 8, 2) for again in ("", " again")]
        assert [*read[name], *rest] == expected, name


def copy(declared: Any, target: str, spark: "SparkSession", state: Path, *, rows: int) -> None:
    """Run the mirror once, and check that it reads each of the `rows` new records once, and that no attempt failed: a
    restart would hide it.
    """
    status = run(declared, bootstrap=target, spark=spark, state=state)["shop"]
    assert (status.restarts, status.error) == (0, None)
    assert [query.rows for query in status.queries] == [rows]


def own_settings(bootstrap: str, topic: str) -> dict[str, str]:
    """Return the settings that are set on the topic itself."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # it has to exist until the answer
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    described = admin.describe_configs([resource])[resource].result(LIMIT_S)
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: entry.value for name, entry in described.items() if entry.source == own}


def differences(declared: Mirror, source: str, target: str) -> list[str]:
    clusters = connect(source), connect(target)
    try:
        checker = Checker(declared, *clusters)
        return [line for line, is_same in report(checker.partitions(), checker.groups()) if not is_same]
    finally:
        for cluster in clusters:
            cluster.close()
