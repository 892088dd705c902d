"""kafka-python: pure Python, blocking, its own protocol stack."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import (
    FencedInstanceIdError,
    KafkaError,
    MessageSizeTooLargeError,
    OffsetMetadataTooLargeError,
    TopicAlreadyExistsError,
)
from kafka.structs import OffsetAndMetadata

from interop_harness.suite import (
    BATCH_BYTES_MAX,
    BATCH_OVERHEAD_BYTES,
    CODECS,
    LIMIT_S,
    NewTopicNamed,
    Unique,
    wait_until,
)

CLIENT = "kafka-python"


@contextmanager
def producing(bootstrap: str, **settings: Any) -> Iterator[Any]:
    producer = KafkaProducer(bootstrap_servers=bootstrap, **settings)
    try:
        yield producer
    finally:
        producer.close()


@contextmanager
def consuming(bootstrap: str, group: str | None = None, **settings: Any) -> Iterator[Any]:
    wanted = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False} | settings
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, **wanted)
    try:
        yield consumer
    finally:
        consumer.close()


@contextmanager
def administrating(bootstrap: str) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        yield client
    finally:
        client.close()


def produce(bootstrap: str, topic: str, values: list[bytes | None], **settings: Any) -> list[int]:
    """Write to partition 0; the offsets. Raises the first error."""
    with producing(bootstrap, **settings) as producer:
        sent = [producer.send(topic, value, partition=0) for value in values]
        producer.flush(LIMIT_S)
        return [future.get(LIMIT_S).offset for future in sent]


def read(consumer: Any, count: int) -> list[Any]:
    """The next `count` records. Raises AssertionError when they do not come in LIMIT_S."""
    found: list[Any] = []
    deadline = time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        for records in consumer.poll(200, max_records=count - len(found)).values():
            found += records
    return found


def read_from_start(bootstrap: str, topic: str, count: int, **settings: Any) -> list[Any]:
    with consuming(bootstrap, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        return read(consumer, count)


@pytest.mark.exercises("codecs")
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(bootstrap: str, new_topic: NewTopicNamed, codec: str) -> None:
    topic = new_topic()
    values: list[bytes | None] = [b"value %d " % n * 20 for n in range(500)]
    compression = None if codec == "none" else codec
    assert produce(bootstrap, topic, values, compression_type=compression, linger_ms=50) == list(range(500))
    read_back = read_from_start(bootstrap, topic, 500, check_crcs=True)
    assert [(r.offset, r.value) for r in read_back] == list(enumerate(values))


@pytest.mark.exercises("records", "timestamps")
def test_keys_headers_nulls_and_timestamps(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    headers = [("a", b"1"), ("a", b"2"), ("empty", b"")]
    now_ms = int(time.time() * 1000)
    with producing(bootstrap) as producer:
        producer.send(topic, b"value", b"key", partition=0, timestamp_ms=now_ms, headers=headers)
        producer.send(topic, None, b"tombstone", partition=0, timestamp_ms=now_ms + 1)
        producer.send(topic, b"no key", None, partition=0, timestamp_ms=now_ms + 2)
        producer.flush(LIMIT_S)
    records = read_from_start(bootstrap, topic, 3)
    assert [(r.key, r.value, list(r.headers)) for r in records] == [
        (b"key", b"value", headers),
        (b"tombstone", None, []),
        (None, b"no key", []),
    ]
    assert [(r.timestamp_type, r.timestamp) for r in records] == [(0, now_ms + n) for n in range(3)]


@pytest.mark.exercises("timestamps")
def test_offsets_for_times(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic(partitions=2)
    start_ms = int(time.time() * 1000) - 100_000
    with producing(bootstrap, compression_type="gzip", linger_ms=20) as producer:
        for n in range(100):
            producer.send(topic, b"%d" % n, partition=0, timestamp_ms=start_ms + n * 1000)
        producer.flush(LIMIT_S)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consuming(bootstrap) as consumer:
        found = consumer.offsets_for_times({zero: start_ms + 41_001, one: 0})
        assert (found[zero].offset, found[zero].timestamp) == (42, start_ms + 42_000)
        assert found[one] is None
        assert consumer.offsets_for_times({zero: start_ms + 99_001}) == {zero: None}
        assert consumer.beginning_offsets([zero, one]) == {zero: 0, one: 0}
        assert consumer.end_offsets([zero, one]) == {zero: 100, one: 0}


@pytest.mark.exercises("empty")
def test_an_empty_topic(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic(partitions=3)
    with consuming(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, p) for p in range(3)])
        assert consumer.poll(300) == {}
        assert [consumer.position(TopicPartition(topic, p)) for p in range(3)] == [0, 0, 0]
        assert consumer.partitions_for_topic(topic) == {0, 1, 2}


@pytest.mark.exercises("big")
def test_big_messages(bootstrap: str, new_topic: NewTopicNamed) -> None:
    """To the byte: what the limit allows is taken, one byte more is refused, and what follows is taken.

    Its idempotent producer, the default, gives up for good after a refusal.
    """
    topic = new_topic()
    most = BATCH_BYTES_MAX - BATCH_OVERHEAD_BYTES
    with producing(bootstrap, max_request_size=4_000_000, enable_idempotence=False) as producer:
        producer.send(topic, bytes(most), partition=0).get(LIMIT_S)
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, bytes(most + 1), partition=0).get(LIMIT_S)
        producer.send(topic, b"after", partition=0).get(LIMIT_S)
    records = read_from_start(bootstrap, topic, 2, max_partition_fetch_bytes=1000)
    assert [len(r.value) for r in records] == [most, 5]


@pytest.mark.exercises("acks")
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(bootstrap: str, new_topic: NewTopicNamed, acks: object) -> None:
    topic = new_topic()
    values: list[bytes | None] = [b"%d" % n for n in range(50)]
    produce(bootstrap, topic, values, acks=acks, enable_idempotence=False)
    assert [r.value for r in read_from_start(bootstrap, topic, 50)] == values


@pytest.mark.exercises("idempotent")
def test_an_idempotent_producer(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    values: list[bytes | None] = [b"%d" % n for n in range(1000)]
    offsets = produce(bootstrap, topic, values, enable_idempotence=True, acks="all", batch_size=200)
    assert offsets == list(range(1000))
    assert [r.value for r in read_from_start(bootstrap, topic, 1000)] == values


@pytest.mark.exercises("auto-create")
def test_a_topic_is_made_on_demand(bootstrap: str, unique: Unique) -> None:
    topic = unique("auto")
    assert produce(bootstrap, topic, [b"first"]) == [0]
    assert [r.value for r in read_from_start(bootstrap, topic, 1)] == [b"first"]


@pytest.mark.exercises("seek")
def test_seek_and_replay(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [b"%d" % n for n in range(100)], compression_type="zstd", linger_ms=50)
    partition = TopicPartition(topic, 0)
    with consuming(bootstrap) as consumer:
        consumer.assign([partition])
        assert [r.offset for r in read(consumer, 100)] == list(range(100))
        for offset in (37, 99, 0):  # in the middle of a compressed batch too
            consumer.seek(partition, offset)
            assert read(consumer, 1)[0].offset == offset
        consumer.seek(partition, 5000)  # beyond the end: begins again, by auto_offset_reset
        assert read(consumer, 1)[0].offset == 0
        consumer.seek_to_end(partition)
        assert consumer.position(partition) == 100


class Member(threading.Thread):
    """A consumer that polls in a thread of its own, as two of one group have to: a join waits for all the others."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        super().__init__(name=f"member of {group}", daemon=True)
        self.assigned: list[int] = []
        """As of its last poll."""
        self.error: KafkaError | None = None
        self._topic = topic
        self._open: Callable[[], AbstractContextManager[Any]] = lambda: consuming(bootstrap, group, **settings)
        self._leave = threading.Event()

    def run(self) -> None:
        with self._open() as consumer:
            consumer.subscribe([self._topic])
            while not self._leave.is_set():
                consumer.poll(POLL_MS)
                self.assigned = sorted(tp.partition for tp in consumer.assignment())
            try:
                consumer.commit({TopicPartition(self._topic, 0): OffsetAndMetadata(0, "", -1)})
            except KafkaError as error:
                self.error = error

    def __enter__(self) -> "Member":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self.join(LIMIT_S)
        assert not self.is_alive()


POLL_MS = 1000
"""kafka-python 3.0.12 loses a join whose SyncGroup answer comes after the poll that sent it: the member then has
nothing, sends no heartbeats, and is expelled. A poll ends as soon as there are records.
"""
GROUP = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000, "metadata_max_age_ms": 1000}
"""A leader that joins before its own metadata of a new topic has come assigns nothing, and looks again only at the next
refresh (5 minutes by default): a race of kafka-python's that a group without an initial delay wins now and then."""


@pytest.mark.exercises("groups", "cooperative")
@pytest.mark.parametrize(
    "assignor",
    [
        RangePartitionAssignor,
        RoundRobinPartitionAssignor,
        StickyPartitionAssignor,
        CooperativeStickyAssignor,
    ],
)
def test_members_join_and_leave(bootstrap: str, new_topic: NewTopicNamed, unique: Unique, assignor: Any) -> None:
    topic, group = new_topic(partitions=4), unique("group")
    settings = GROUP | {"partition_assignment_strategy": [assignor]}
    with Member(bootstrap, group, topic, **settings) as first:
        wait_until(lambda: first.assigned == [0, 1, 2, 3], "all for the first")
        with Member(bootstrap, group, topic, **settings) as second:

            def halved() -> bool:
                parts = first.assigned, second.assigned
                return [len(part) for part in parts] == [2, 2] and sorted(parts[0] + parts[1]) == [0, 1, 2, 3]

            wait_until(halved, "half for each")
        wait_until(lambda: first.assigned == [0, 1, 2, 3], "all for the one that stayed")


@pytest.mark.exercises("static")
def test_static_members(bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    """A newer one of the same name takes over without a rebalance, and the older is told that it is fenced."""
    topic, group = new_topic(partitions=2), unique("group")
    with administrating(bootstrap) as admin, Member(bootstrap, group, topic, group_instance_id="one", **GROUP) as first:
        wait_until(lambda: first.assigned == [0, 1], "all for the first")
        with Member(bootstrap, group, topic, group_instance_id="one", **GROUP) as second:
            wait_until(lambda: second.assigned == [0, 1], "the newer has it")
            (member,) = admin.describe_groups([group])[group]["members"]
            assert member["group_instance_id"] == "one"
    assert isinstance(first.error, FencedInstanceIdError)
    assert second.error is None


@pytest.mark.exercises("commits")
def test_commits_with_metadata(bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    topic, group = new_topic(partitions=2), unique("group")
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    produce(bootstrap, topic, [b"%d" % n for n in range(10)])
    with consuming(bootstrap, group) as consumer:
        consumer.subscribe([topic])
        assert len(read(consumer, 10)) == 10
        consumer.commit({zero: OffsetAndMetadata(7, "seven, née 七", 0)})
        with pytest.raises(OffsetMetadataTooLargeError):
            consumer.commit({zero: OffsetAndMetadata(8, "x" * 4097, -1)})
    with consuming(bootstrap, group) as consumer:
        assert consumer.committed(zero, metadata=True) == OffsetAndMetadata(7, "seven, née 七", 0)
        assert consumer.committed(one) is None
        consumer.subscribe([topic])
        assert [r.offset for r in read(consumer, 3)] == [7, 8, 9]


@pytest.mark.exercises("admin-topics")
def test_admin_of_topics(bootstrap: str, unique: Unique) -> None:
    name = unique("admin")
    options = {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "86400000"}}
    with administrating(bootstrap) as admin:
        admin.create_topics({name: options}, wait_for_metadata=True)
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics({name: options})
        admin.create_partitions({name: 5})
        wait_until(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 5, "five partitions")
        changes = {"max.message.bytes": "2000000", "retention.ms": (AlterConfigOp.DELETE, None)}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs=changes)])

        def modified() -> dict[str, Any]:
            described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
            return {key: entry["value"] for key, entry in next(iter(described.values()))[name].items()}

        wait_until(lambda: modified() == {"max.message.bytes": "2000000"}, "the new setting alone")
        assert name in admin.list_topics()
        admin.delete_topics([name])
        wait_until(lambda: name not in admin.list_topics(), "the topic is gone")
        cluster = admin.describe_cluster()
        assert [f"{b['host']}:{b['port']}" for b in cluster["brokers"]] == [bootstrap]


@pytest.mark.exercises("admin-topics", "timestamps")
def test_list_offsets(bootstrap: str, new_topic: NewTopicNamed) -> None:
    partition = TopicPartition(new_topic(), 0)
    now_ms = int(time.time() * 1000)
    with producing(bootstrap) as producer:
        for at_ms in (now_ms, now_ms + 5, now_ms + 2):
            producer.send(partition.topic, b"x", partition=0, timestamp_ms=at_ms)
        producer.flush(LIMIT_S)
    with administrating(bootstrap) as admin:

        def offset(spec: Any) -> tuple[int, int]:
            found = admin.list_partition_offsets({partition: spec})[partition]
            return found.offset, found.timestamp

        assert offset(OffsetSpec.EARLIEST) == (0, -1)
        assert offset(OffsetSpec.LATEST) == (3, -1)
        assert offset(OffsetSpec.MAX_TIMESTAMP) == (1, now_ms + 5)
        assert offset(now_ms + 1) == (1, now_ms + 5)


@pytest.mark.exercises("admin-groups")
def test_admin_of_groups(bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    topic, group = new_topic(partitions=2), unique("group")
    with administrating(bootstrap) as admin:
        with Member(bootstrap, group, topic, client_id="named", **GROUP) as member:
            wait_until(lambda: member.assigned == [0, 1], "assigned")
            described = admin.describe_groups([group])[group]
            assert (described["group_state"], described["protocol_type"]) == ("Stable", "consumer")
            assert [one["client_id"] for one in described["members"]] == ["named"]
            assert [g["group_state"] for g in admin.list_groups() if g["group_id"] == group] == ["Stable"]
        assert member.error is None
        assert admin.list_group_offsets(group)[group][TopicPartition(topic, 0)].offset == 0
        wait_until(lambda: admin.describe_groups([group])[group]["group_state"] == "Empty", "nobody in it")
        there, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
        reset = admin.reset_group_offsets(group, {there: OffsetSpec.LATEST, other: OffsetSpec.EARLIEST})
        assert {part: (told["error"].errno, told["offset"]) for part, told in reset.items()} == {
            there: (0, 0),
            other: (0, 0),
        }
        assert admin.delete_group_offsets(group, [there])[there].errno == 0
        assert list(admin.list_group_offsets(group)[group]) == [other]
        assert admin.delete_groups([group]) == {group: "OK"}
        assert admin.delete_groups([group]) == {group: "GroupIdNotFoundError"}


@pytest.mark.exercises("admin-groups")
def test_what_members_read_is_not_deleted(bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    topic, group = new_topic(partitions=1), unique("group")
    with administrating(bootstrap) as admin, Member(bootstrap, group, topic, **GROUP) as member:
        wait_until(lambda: member.assigned == [0], "assigned")
        part = TopicPartition(topic, 0)
        assert admin.delete_group_offsets(group, [part])[part].errno == 86
        assert admin.delete_groups([group]) == {group: "NonEmptyGroupError"}
