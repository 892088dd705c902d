"""confluent-kafka (librdkafka): a C library that the clients of most languages are built on."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from interop_harness.suite import (
    BATCH_BYTES_MAX,
    BATCH_OVERHEAD_BYTES,
    CODECS,
    LIMIT_S,
    NewTopicNamed,
    Unique,
    wait_until,
)

CLIENT = "confluent-kafka"


@contextmanager
def consuming(bootstrap: str, group: str = "unused", /, **settings: Any) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def produce(bootstrap: str, topic: str, values: list[bytes | None], **settings: Any) -> list[Message]:
    """Write to partition 0; what the broker acknowledged, in order. Raises KafkaException for the first error."""
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    done: list[tuple[KafkaError | None, Message]] = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, message: done.append((error, message)))
    assert producer.flush(LIMIT_S) == 0
    for error, _ in done:
        if error is not None:
            raise KafkaException(error)
    return [message for _, message in done]


def code_of(message: Message) -> int | None:
    """The error that came in place of a record."""
    error = message.error()
    return None if error is None else int(error.code())


def read(consumer: Consumer, count: int) -> list[Message]:
    """The next `count` records. Raises AssertionError when they do not come in LIMIT_S."""
    found: list[Message] = []
    deadline = time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        for message in consumer.consume(count - len(found), 0.5):
            assert message.error() is None, message.error()
            found.append(message)
    return found


def read_from_start(bootstrap: str, topic: str, count: int, **settings: Any) -> list[Message]:
    with consuming(bootstrap, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return read(consumer, count)


@pytest.mark.exercises("codecs")
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(bootstrap: str, new_topic: NewTopicNamed, codec: str) -> None:
    topic = new_topic()
    values: list[bytes | None] = [b"value %d " % n * 20 for n in range(500)]
    wrote = produce(bootstrap, topic, values, **{"compression.type": codec, "linger.ms": 50})
    assert [message.offset() for message in wrote] == list(range(500))
    read_back = read_from_start(bootstrap, topic, 500, **{"check.crcs": True})
    assert [message.value() for message in read_back] == values
    assert [message.offset() for message in read_back] == list(range(500))


@pytest.mark.exercises("records", "timestamps")
def test_keys_headers_nulls_and_timestamps(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", b"2"), ("empty", b""), ("null", None)]
    now_ms = int(time.time() * 1000)
    producer.produce(topic, b"value", b"key", 0, timestamp=now_ms, headers=headers)
    producer.produce(topic, None, b"tombstone", 0, timestamp=now_ms + 1)
    producer.produce(topic, b"no key", None, 0, timestamp=now_ms + 2)
    producer.produce(topic, b"", b"", 0, timestamp=now_ms + 3)
    assert producer.flush(LIMIT_S) == 0
    first, *rest = read_from_start(bootstrap, topic, 4)
    assert (first.key(), first.value(), first.headers()) == (b"key", b"value", headers)
    assert [(m.key(), m.value(), m.headers()) for m in rest] == [
        (b"tombstone", None, None),
        (None, b"no key", None),
        (b"", b"", None),
    ]
    assert [m.timestamp() for m in [first, *rest]] == [(1, now_ms + n) for n in range(4)]  # 1: CreateTime


@pytest.mark.exercises("timestamps")
def test_log_append_time(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic(**{"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    produce(bootstrap, topic, [b"a", b"b"])
    kinds_and_times = [m.timestamp() for m in read_from_start(bootstrap, topic, 2)]
    assert [kind for kind, _ in kinds_and_times] == [2, 2]
    assert all(before_ms <= at <= time.time() * 1000 for _, at in kinds_and_times)


@pytest.mark.exercises("timestamps")
def test_offsets_for_times(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic(partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", "linger.ms": 20})
    start_ms = int(time.time() * 1000) - 100_000
    for n in range(100):
        producer.produce(topic, b"%d" % n, partition=0, timestamp=start_ms + n * 1000)
    assert producer.flush(LIMIT_S) == 0
    with consuming(bootstrap) as consumer:

        def at(partition: int, timestamp_ms: int) -> int:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], LIMIT_S)
            assert found.error is None
            return int(found.offset)

        assert at(0, 0) == 0
        assert at(0, start_ms + 42_000) == 42
        assert at(0, start_ms + 42_001) == 43
        assert at(0, start_ms + 99_001) == -1  # the end
        assert at(1, 0) == -1


@pytest.mark.exercises("empty")
def test_an_empty_topic(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic(partitions=3)
    with consuming(bootstrap, **{"enable.partition.eof": True}) as consumer:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(3)])
        ends = consumer.consume(3, LIMIT_S)
        assert [code_of(m) for m in ends] == [KafkaError._PARTITION_EOF] * 3
        assert {m.partition() for m in ends} == {0, 1, 2}
        assert consumer.get_watermark_offsets(TopicPartition(topic, 1), LIMIT_S) == (0, 0)


@pytest.mark.exercises("big")
def test_big_messages(bootstrap: str, new_topic: NewTopicNamed) -> None:
    """To the byte: what the limit allows is taken, one byte more is refused, and what follows is taken."""
    topic = new_topic()
    most = BATCH_BYTES_MAX - BATCH_OVERHEAD_BYTES
    roomy = {"message.max.bytes": 4_000_000}
    produce(bootstrap, topic, [bytes(most)], **roomy)
    with pytest.raises(KafkaException) as refused:
        produce(bootstrap, topic, [bytes(most + 1)], **roomy)
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    produce(bootstrap, topic, [b"after"], **roomy)
    sizes = [len(m.value() or b"") for m in read_from_start(bootstrap, topic, 2, **{"max.partition.fetch.bytes": 1000})]
    assert sizes == [most, 5]


@pytest.mark.exercises("big")
def test_a_topic_that_allows_more(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic(**{"max.message.bytes": "9000000"})
    produce(bootstrap, topic, [bytes(8_000_000)], **{"message.max.bytes": 9_000_000})
    (message,) = read_from_start(bootstrap, topic, 1)
    assert len(message.value() or b"") == 8_000_000


@pytest.mark.exercises("acks")
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(bootstrap: str, new_topic: NewTopicNamed, acks: str) -> None:
    topic = new_topic()
    values: list[bytes | None] = [b"%d" % n for n in range(50)]
    produce(bootstrap, topic, values, acks=acks)
    assert [m.value() for m in read_from_start(bootstrap, topic, 50)] == values


@pytest.mark.exercises("idempotent")
def test_an_idempotent_producer(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    values: list[bytes | None] = [b"%d" % n for n in range(2000)]
    settings = {"enable.idempotence": True, "batch.num.messages": 10, "compression.type": "lz4"}
    wrote = produce(bootstrap, topic, values, **settings)
    assert [m.offset() for m in wrote] == list(range(2000))
    assert [m.value() for m in read_from_start(bootstrap, topic, 2000)] == values


@pytest.mark.exercises("auto-create")
def test_a_topic_is_made_on_demand(bootstrap: str, unique: Unique, admin: AdminClient) -> None:
    topic = unique("auto")
    produce(bootstrap, topic, [b"first"], **{"allow.auto.create.topics": True})
    assert [m.value() for m in read_from_start(bootstrap, topic, 1)] == [b"first"]
    assert len(admin.list_topics(topic, LIMIT_S).topics[topic].partitions) == 1


@pytest.mark.exercises("auto-create")
def test_a_topic_is_not_made_by_one_who_only_reads(bootstrap: str, unique: Unique, admin: AdminClient) -> None:
    topic = unique("absent")
    with consuming(bootstrap) as consumer:
        consumer.subscribe([topic])
        (problem,) = consumer.consume(1, LIMIT_S)
        assert code_of(problem) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert topic not in admin.list_topics(timeout=LIMIT_S).topics


@pytest.mark.exercises("seek")
def test_seek_and_replay(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [b"%d" % n for n in range(100)], **{"compression.type": "zstd", "linger.ms": 50})
    with consuming(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert [m.offset() for m in read(consumer, 100)] == list(range(100))
        for offset in (37, 99, 0):  # in the middle of a compressed batch too
            consumer.seek(TopicPartition(topic, 0, offset))
            assert read(consumer, 1)[0].offset() == offset
        consumer.assign([TopicPartition(topic, 0, 5000)])  # beyond the end: begins again, by auto.offset.reset
        assert read(consumer, 1)[0].offset() == 0


def assigned(consumer: Consumer) -> list[int]:
    consumer.poll(0.05)
    return sorted(tp.partition for tp in consumer.assignment())


@pytest.mark.exercises("groups", "cooperative")
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_join_and_leave(bootstrap: str, new_topic: NewTopicNamed, unique: Unique, strategy: str) -> None:
    topic, group = new_topic(partitions=4), unique("group")
    settings = {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 200, "session.timeout.ms": 6000}
    with consuming(bootstrap, group, **settings) as first:
        first.subscribe([topic])
        wait_until(lambda: assigned(first) == [0, 1, 2, 3], "all for the first")
        with consuming(bootstrap, group, **settings) as second:
            second.subscribe([topic])

            def halved() -> bool:
                parts = assigned(first), assigned(second)
                return [len(part) for part in parts] == [2, 2] and sorted(parts[0] + parts[1]) == [0, 1, 2, 3]

            wait_until(halved, "half for each")
        wait_until(lambda: assigned(first) == [0, 1, 2, 3], "all for the one that stayed")


NEW_PROTOCOL = {"group.protocol": "consumer"}


@pytest.mark.exercises("consumer-protocol")
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_of_the_consumer_protocol(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicNamed, unique: Unique, assignor: str
) -> None:
    topic, group = new_topic(partitions=4), unique("group")
    produce(bootstrap, topic, [b"%d" % n for n in range(10)])
    settings = {**NEW_PROTOCOL, "group.remote.assignor": assignor}
    with consuming(bootstrap, group, **settings) as first:
        first.subscribe([topic])
        assert len(read(first, 10)) == 10
        first.commit(asynchronous=False)
        with consuming(bootstrap, group, **settings) as second:
            second.subscribe([topic])

            def halved() -> bool:
                parts = assigned(first), assigned(second)
                return [len(part) for part in parts] == [2, 2] and sorted(parts[0] + parts[1]) == [0, 1, 2, 3]

            wait_until(halved, "half for each")
            described = admin.describe_consumer_groups([group])[group].result(LIMIT_S)
            assert (described.state.name, described.type.name) == ("STABLE", "CONSUMER")
            assert [len(member.assignment.topic_partitions) for member in described.members] == [2, 2]
            admin.create_partitions([NewPartitions(topic, 6)])[topic].result(LIMIT_S)
            wait_until(lambda: [len(assigned(c)) for c in (first, second)] == [3, 3], "three of six for each")
        wait_until(lambda: len(assigned(first)) == 6, "all for the one that stayed")


@pytest.mark.exercises("consumer-protocol")
def test_a_pattern_finds_topics_that_come_later(bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    word, group = unique("pattern"), unique("group")
    earlier = new_topic(f"{word}-a")
    with consuming(bootstrap, group, **NEW_PROTOCOL) as consumer:
        consumer.subscribe([f"^.*{word}-.*"])
        wait_until(lambda: assigned(consumer) == [0], "the topic that there is")
        later = new_topic(f"{word}-b", partitions=2)
        wait_until(lambda: assigned(consumer) == [0, 0, 1], "the one that came", limit_s=60)
        assert {tp.topic for tp in consumer.assignment()} == {earlier, later}


@pytest.mark.exercises("consumer-protocol", "static")
def test_a_static_member_of_the_consumer_protocol(bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    topic, group = new_topic(partitions=2), unique("group")
    with consuming(bootstrap, group, **NEW_PROTOCOL, **{"group.instance.id": "one"}) as first:
        first.subscribe([topic])
        wait_until(lambda: assigned(first) == [0, 1], "all for the first")
        with consuming(bootstrap, group, **NEW_PROTOCOL, **{"group.instance.id": "two"}) as second:
            second.subscribe([topic])
            wait_until(lambda: [len(assigned(c)) for c in (first, second)] == [1, 1], "one for each")
            owns = assigned(first), assigned(second)
        with consuming(bootstrap, group, **NEW_PROTOCOL, **{"group.instance.id": "two"}) as again:
            again.subscribe([topic])
            wait_until(lambda: (assigned(first), assigned(again)) == owns, "the same as before")


@pytest.mark.exercises("consumer-protocol")
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_goes_to_the_consumer_protocol_and_back(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicNamed, unique: Unique, strategy: str
) -> None:
    topic, group = new_topic(partitions=4), unique("group")

    def kind() -> str:
        listed = admin.list_consumer_groups().result(LIMIT_S).valid
        return next((str(one.type.name) for one in listed if one.group_id == group), "none")

    old = {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 200, "session.timeout.ms": 6000}
    with consuming(bootstrap, group, **old) as classic:
        classic.subscribe([topic])
        wait_until(lambda: assigned(classic) == [0, 1, 2, 3], "all for the classic one")
        with consuming(bootstrap, group, **NEW_PROTOCOL) as new:
            new.subscribe([topic])
            wait_until(lambda: [len(assigned(c)) for c in (classic, new)] == [2, 2], "half for each")
            assert sorted(assigned(classic) + assigned(new)) == [0, 1, 2, 3]
            assert kind() == "CONSUMER"
        wait_until(lambda: assigned(classic) == [0, 1, 2, 3], "all for the classic one again")
        assert kind() == "CLASSIC"


@pytest.mark.exercises("static")
def test_a_static_member_comes_back_to_its_own(bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    """No rebalance when it goes and comes; the other member keeps what it has throughout."""
    topic, group = new_topic(partitions=2), unique("group")
    settings = {"heartbeat.interval.ms": 200, "session.timeout.ms": 20_000}
    revoked: list[object] = []
    with consuming(bootstrap, group, **settings, **{"group.instance.id": "one"}) as first:
        first.subscribe([topic], on_revoke=lambda _, partitions: revoked.append(partitions))
        wait_until(lambda: assigned(first) == [0, 1], "all for the first")
        with consuming(bootstrap, group, **settings, **{"group.instance.id": "two"}) as second:
            second.subscribe([topic])
            wait_until(lambda: [len(assigned(c)) for c in (first, second)] == [1, 1], "one for each")
            owns = assigned(first), assigned(second)
        revoked.clear()
        with consuming(bootstrap, group, **settings, **{"group.instance.id": "two"}) as again:
            again.subscribe([topic])
            wait_until(lambda: (assigned(first), assigned(again)) == owns, "the same as before")
        assert revoked == []


@pytest.mark.exercises("static")
def test_a_second_of_one_static_name_fences_the_first(bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    topic, group = new_topic(), unique("group")
    settings = {"heartbeat.interval.ms": 200, "group.instance.id": "one"}
    with consuming(bootstrap, group, **settings) as first:
        first.subscribe([topic])
        wait_until(lambda: assigned(first) == [0], "assigned")
        with consuming(bootstrap, group, **settings) as second:
            second.subscribe([topic])
            wait_until(lambda: assigned(second) == [0], "the newer has it")

            def fenced() -> bool:
                message = first.poll(0.1)
                return message is not None and code_of(message) in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)

            wait_until(fenced, "the older is told")


@pytest.mark.exercises("commits")
def test_commits_with_metadata(bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    topic, group = new_topic(partitions=2), unique("group")
    produce(bootstrap, topic, [b"%d" % n for n in range(10)])
    with consuming(bootstrap, group) as consumer:
        consumer.subscribe([topic])
        assert len(read(consumer, 10)) == 10
        (done,) = consumer.commit(offsets=[TopicPartition(topic, 0, 7, "seven, née 七")], asynchronous=False)
        assert done.error is None
        with pytest.raises(KafkaException) as refused:
            consumer.commit(offsets=[TopicPartition(topic, 0, 8, "x" * 4097)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    with consuming(bootstrap, group) as consumer:
        zero, one = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], LIMIT_S)
        assert (zero.offset, zero.metadata) == (7, "seven, née 七")
        assert one.offset == -1001
        consumer.subscribe([topic])
        assert [m.offset() for m in read(consumer, 3)] == [7, 8, 9]


@pytest.mark.exercises("admin-topics")
def test_admin_of_topics(admin: AdminClient, unique: Unique) -> None:
    name = unique("admin")
    admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "86400000"})])[name].result(LIMIT_S)
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(LIMIT_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.create_partitions([NewPartitions(name, 5)])[name].result(LIMIT_S)
    wait_until(lambda: len(admin.list_topics(name, LIMIT_S).topics[name].partitions) == 5, "five partitions")

    resource = ConfigResource(ResourceType.TOPIC, name)
    entry = ConfigEntry("max.message.bytes", "2000000", incremental_operation=AlterConfigOpType.SET)
    drop = ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    change = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry, drop])
    admin.incremental_alter_configs([change])[change].result(LIMIT_S)

    def settings() -> dict[str, tuple[str, bool]]:
        described = admin.describe_configs([resource])[resource].result(LIMIT_S)
        return {key: (value.value, value.is_default) for key, value in described.items()}

    wait_until(lambda: settings()["max.message.bytes"] == ("2000000", False), "the new setting")
    assert settings()["retention.ms"] == ("604800000", True)
    admin.delete_topics([name])[name].result(LIMIT_S)
    wait_until(lambda: name not in admin.list_topics(timeout=LIMIT_S).topics, "the topic is gone")


@pytest.mark.exercises("admin-topics")
def test_admin_of_the_cluster(bootstrap: str, admin: AdminClient, new_topic: NewTopicNamed) -> None:
    topic = new_topic(partitions=2)
    cluster = admin.describe_cluster().result(LIMIT_S)
    (node,) = cluster.nodes
    assert cluster.controller.id == node.id
    assert f"{node.host}:{node.port}" == bootstrap
    assert cluster.cluster_id == admin.list_topics(timeout=LIMIT_S).cluster_id
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(LIMIT_S)
    assert [(p.id, p.leader.id, [r.id for r in p.replicas], [i.id for i in p.isr]) for p in described.partitions] == [
        (0, node.id, [node.id], [node.id]),
        (1, node.id, [node.id], [node.id]),
    ]


@pytest.mark.exercises("admin-topics", "timestamps")
def test_list_offsets(bootstrap: str, admin: AdminClient, new_topic: NewTopicNamed) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    now_ms = int(time.time() * 1000)
    for at_ms in (now_ms, now_ms + 5, now_ms + 2):
        producer.produce(topic, b"x", partition=0, timestamp=at_ms)
    assert producer.flush(LIMIT_S) == 0
    partition = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> tuple[int, int]:
        found = admin.list_offsets({partition: spec})[partition].result(LIMIT_S)
        return found.offset, found.timestamp

    assert offset(OffsetSpec.earliest()) == (0, -1)
    assert offset(OffsetSpec.latest()) == (3, -1)
    assert offset(OffsetSpec.max_timestamp()) == (1, now_ms + 5)
    assert offset(OffsetSpec.for_timestamp(now_ms + 1)) == (1, now_ms + 5)


@pytest.mark.exercises("admin-groups")
def test_admin_of_groups(bootstrap: str, admin: AdminClient, new_topic: NewTopicNamed, unique: Unique) -> None:
    topic, group = new_topic(partitions=2), unique("group")
    with consuming(bootstrap, group, **{"client.id": "named"}) as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: assigned(consumer) == [0, 1], "assigned")
        consumer.commit(offsets=[TopicPartition(topic, 1, 3)], asynchronous=False)
        described = admin.describe_consumer_groups([group])[group].result(LIMIT_S)
        assert described.state.name == "STABLE"
        (member,) = described.members
        assert member.client_id == "named"
        assert sorted(tp.partition for tp in member.assignment.topic_partitions) == [0, 1]
        listed = admin.list_consumer_groups().result(LIMIT_S)
        assert [g.state.name for g in listed.valid if g.group_id == group] == ["STABLE"]
    asked = ConsumerGroupTopicPartitions(group)
    (offsets,) = (f.result(LIMIT_S) for f in admin.list_consumer_group_offsets([asked]).values())
    assert [(tp.topic, tp.partition, tp.offset) for tp in offsets.topic_partitions] == [(topic, 1, 3)]
    wait_until(
        lambda: admin.describe_consumer_groups([group])[group].result(LIMIT_S).state.name == "EMPTY", "nobody in it"
    )
    change = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 1)])
    (changed,) = (f.result(LIMIT_S) for f in admin.alter_consumer_group_offsets([change]).values())
    assert [tp.error for tp in changed.topic_partitions] == [None]


@pytest.mark.exercises("admin-groups")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_deleted(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicNamed, unique: Unique, protocol: str
) -> None:
    topic, group = new_topic(), unique("group")

    def refusal() -> int:
        with pytest.raises(KafkaException) as refused:
            admin.delete_consumer_groups([group])[group].result(LIMIT_S)
        return int(refused.value.args[0].code())

    with consuming(bootstrap, group, **{"group.protocol": protocol}) as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: assigned(consumer) == [0], "assigned")
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        assert refusal() == KafkaError.NON_EMPTY_GROUP
    wait_until(
        lambda: admin.describe_consumer_groups([group])[group].result(LIMIT_S).state.name == "EMPTY", "nobody in it"
    )
    assert admin.delete_consumer_groups([group])[group].result(LIMIT_S) is None
    assert group not in [one.group_id for one in admin.list_consumer_groups().result(LIMIT_S).valid]
    (offsets,) = (
        f.result(LIMIT_S) for f in admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    )
    assert offsets.topic_partitions == []
    assert refusal() == KafkaError.GROUP_ID_NOT_FOUND


@pytest.mark.exercises("groups")
def test_a_reader_that_waits_is_woken(bootstrap: str, new_topic: NewTopicNamed) -> None:
    """A long poll ends when a record comes, not when its time is over."""
    topic = new_topic()
    with consuming(bootstrap, **{"fetch.wait.max.ms": 20_000, "socket.timeout.ms": 60_000}) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.poll(1.0) is None
        writer = threading.Thread(target=produce, args=(bootstrap, topic, [b"now"]))
        began = time.monotonic()
        writer.start()
        (message,) = read(consumer, 1)
        writer.join()
    assert message.value() == b"now"
    assert time.monotonic() - began < 10
