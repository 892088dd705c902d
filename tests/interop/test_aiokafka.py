"""aiokafka: asyncio, with an older set of API versions than the other clients."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import MessageSizeTooLargeError, OffsetMetadataTooLargeError
from aiokafka.structs import OffsetAndMetadata

from interop_harness.suite import (
    BATCH_BYTES_MAX,
    BATCH_OVERHEAD_BYTES,
    CODECS,
    LIMIT_S,
    NewTopicNamed,
    Unique,
)

CLIENT = "aiokafka"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * LIMIT_S))


@asynccontextmanager
async def producing(bootstrap: str, **settings: Any) -> AsyncIterator[Any]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **settings)
    try:
        await producer.start()
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consuming(bootstrap: str, *topics: str, group: str | None = None, **settings: Any) -> AsyncIterator[Any]:
    wanted = {"auto_offset_reset": "earliest", "enable_auto_commit": False} | settings
    consumer = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, group_id=group, **wanted)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


@asynccontextmanager
async def administrating(bootstrap: str) -> AsyncIterator[Any]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def produce(bootstrap: str, topic: str, values: list[bytes | None], **settings: Any) -> list[int]:
    """Write to partition 0; the offsets. Raises the first error."""
    async with producing(bootstrap, **settings) as producer:
        sent = [await producer.send(topic, value, partition=0) for value in values]
        return [done.offset for done in await asyncio.gather(*sent)]


async def read(consumer: Any, count: int) -> list[Any]:
    """The next `count` records. Raises TimeoutError when one does not come in LIMIT_S."""
    return [await asyncio.wait_for(consumer.getone(), LIMIT_S) for _ in range(count)]


async def read_from_start(bootstrap: str, topic: str, count: int, **settings: Any) -> list[Any]:
    async with consuming(bootstrap, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        return await read(consumer, count)


async def until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < deadline, f"not in {LIMIT_S:.0f} s: {what}"
        await asyncio.sleep(0.02)


@pytest.mark.exercises("codecs")
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(bootstrap: str, new_topic: NewTopicNamed, codec: str) -> None:
    async def test() -> None:
        topic = new_topic()
        values: list[bytes | None] = [b"value %d " % n * 20 for n in range(500)]
        compression = None if codec == "none" else codec
        assert await produce(bootstrap, topic, values, compression_type=compression, linger_ms=50) == list(range(500))
        read_back = await read_from_start(bootstrap, topic, 500, check_crcs=True)
        assert [(r.offset, r.value) for r in read_back] == list(enumerate(values))

    run(test())


@pytest.mark.exercises("records", "timestamps")
def test_keys_headers_nulls_and_timestamps(bootstrap: str, new_topic: NewTopicNamed) -> None:
    async def test() -> None:
        topic = new_topic()
        headers = [("a", b"1"), ("a", b"2"), ("empty", b"")]
        now_ms = int(time.time() * 1000)
        async with producing(bootstrap) as producer:
            await producer.send_and_wait(topic, b"value", b"key", 0, timestamp_ms=now_ms, headers=headers)
            await producer.send_and_wait(topic, None, b"tombstone", 0, timestamp_ms=now_ms + 1)
            await producer.send_and_wait(topic, b"no key", None, 0, timestamp_ms=now_ms + 2)
        records = await read_from_start(bootstrap, topic, 3)
        assert [(r.key, r.value, list(r.headers)) for r in records] == [
            (b"key", b"value", headers),
            (b"tombstone", None, []),
            (None, b"no key", []),
        ]
        assert [(r.timestamp_type, r.timestamp) for r in records] == [(0, now_ms + n) for n in range(3)]

    run(test())


@pytest.mark.exercises("timestamps")
def test_offsets_for_times(bootstrap: str, new_topic: NewTopicNamed) -> None:
    async def test() -> None:
        topic = new_topic(partitions=2)
        start_ms = int(time.time() * 1000) - 100_000
        async with producing(bootstrap, compression_type="snappy", linger_ms=20) as producer:
            sent = [
                await producer.send(topic, b"%d" % n, partition=0, timestamp_ms=start_ms + n * 1000) for n in range(100)
            ]
            await asyncio.gather(*sent)
        zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
        async with consuming(bootstrap) as consumer:
            found = await consumer.offsets_for_times({zero: start_ms + 41_001, one: 0})
            assert (found[zero].offset, found[zero].timestamp) == (42, start_ms + 42_000)
            assert found[one] is None
            assert await consumer.beginning_offsets([zero, one]) == {zero: 0, one: 0}
            assert await consumer.end_offsets([zero, one]) == {zero: 100, one: 0}

    run(test())


@pytest.mark.exercises("empty")
def test_an_empty_topic(bootstrap: str, new_topic: NewTopicNamed) -> None:
    async def test() -> None:
        topic = new_topic(partitions=3)
        async with consuming(bootstrap) as consumer:
            consumer.assign([TopicPartition(topic, p) for p in range(3)])
            assert await consumer.getmany(timeout_ms=300) == {}
            assert [await consumer.position(TopicPartition(topic, p)) for p in range(3)] == [0, 0, 0]

    run(test())


@pytest.mark.exercises("big")
def test_big_messages(bootstrap: str, new_topic: NewTopicNamed) -> None:
    """To the byte: what the limit allows is taken, one byte more is refused, and what follows is taken."""

    async def test() -> None:
        topic = new_topic()
        most = BATCH_BYTES_MAX - BATCH_OVERHEAD_BYTES
        async with producing(bootstrap, max_request_size=4_000_000) as producer:
            await producer.send_and_wait(topic, bytes(most), partition=0)
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(topic, bytes(most + 1), partition=0)
            await producer.send_and_wait(topic, b"after", partition=0)
        records = await read_from_start(bootstrap, topic, 2)
        assert [len(r.value) for r in records] == [most, 5]

    run(test())


@pytest.mark.exercises("acks")
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(bootstrap: str, new_topic: NewTopicNamed, acks: object) -> None:
    async def test() -> None:
        topic = new_topic()
        async with producing(bootstrap, acks=acks) as producer:
            for n in range(50):
                await producer.send(topic, b"%d" % n, partition=0)
            await producer.flush()
        assert [r.value for r in await read_from_start(bootstrap, topic, 50)] == [b"%d" % n for n in range(50)]

    run(test())


@pytest.mark.exercises("idempotent")
def test_an_idempotent_producer(bootstrap: str, new_topic: NewTopicNamed) -> None:
    async def test() -> None:
        topic = new_topic()
        values: list[bytes | None] = [b"%d" % n for n in range(1000)]
        offsets = await produce(bootstrap, topic, values, enable_idempotence=True, max_batch_size=200)
        assert offsets == list(range(1000))
        assert [r.value for r in await read_from_start(bootstrap, topic, 1000)] == values

    run(test())


@pytest.mark.exercises("auto-create")
def test_a_topic_is_made_on_demand(bootstrap: str, unique: Unique) -> None:
    async def test() -> None:
        topic = unique("auto")
        assert await produce(bootstrap, topic, [b"first"]) == [0]
        assert [r.value for r in await read_from_start(bootstrap, topic, 1)] == [b"first"]

    run(test())


@pytest.mark.exercises("seek")
def test_seek_and_replay(bootstrap: str, new_topic: NewTopicNamed) -> None:
    async def test() -> None:
        topic = new_topic()
        values: list[bytes | None] = [b"%d" % n for n in range(100)]
        await produce(bootstrap, topic, values, compression_type="zstd", linger_ms=50)
        partition = TopicPartition(topic, 0)
        async with consuming(bootstrap) as consumer:
            consumer.assign([partition])
            assert [r.offset for r in await read(consumer, 100)] == list(range(100))
            for offset in (37, 99, 0):  # in the middle of a compressed batch too
                consumer.seek(partition, offset)
                assert (await read(consumer, 1))[0].offset == offset
            consumer.seek(partition, 5000)  # beyond the end: begins again, by auto_offset_reset
            assert (await read(consumer, 1))[0].offset == 0
            await consumer.seek_to_end(partition)
            assert await consumer.position(partition) == 100

    run(test())


def parts(consumer: Any) -> list[int]:
    return sorted(tp.partition for tp in consumer.assignment())


GROUP: dict[str, Any] = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000}


@pytest.mark.exercises("groups")
@pytest.mark.parametrize("assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor])
def test_members_join_and_leave(bootstrap: str, new_topic: NewTopicNamed, unique: Unique, assignor: Any) -> None:
    async def test() -> None:
        topic = new_topic(partitions=4)
        settings: dict[str, Any] = GROUP | {"group": unique("group"), "partition_assignment_strategy": (assignor,)}
        async with consuming(bootstrap, topic, **settings) as first:
            await until(lambda: parts(first) == [0, 1, 2, 3], "all for the first")
            async with consuming(bootstrap, topic, **settings) as second:
                await until(
                    lambda: (
                        [len(parts(c)) for c in (first, second)] == [2, 2]
                        and sorted(parts(first) + parts(second)) == [0, 1, 2, 3]
                    ),
                    "half for each",
                )
            await until(lambda: parts(first) == [0, 1, 2, 3], "all for the one that stayed")

    run(test())


@pytest.mark.exercises("static")
def test_a_static_member_comes_back_to_its_own(bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    async def test() -> None:
        topic, group = new_topic(partitions=2), unique("group")
        settings: dict[str, Any] = GROUP | {"group": group, "session_timeout_ms": 20_000}
        async with consuming(bootstrap, topic, group_instance_id="one", **settings) as first:
            await until(lambda: parts(first) == [0, 1], "all for the first")
            async with consuming(bootstrap, topic, group_instance_id="two", **settings) as second:
                await until(lambda: [len(parts(c)) for c in (first, second)] == [1, 1], "one for each")
                owns = parts(first), parts(second)
            async with consuming(bootstrap, topic, group_instance_id="two", **settings) as again:
                await until(lambda: (parts(first), parts(again)) == owns, "the same as before")

    run(test())


@pytest.mark.exercises("commits")
def test_commits_with_metadata(bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    async def test() -> None:
        topic, group = new_topic(partitions=2), unique("group")
        zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
        await produce(bootstrap, topic, [b"%d" % n for n in range(10)])
        async with consuming(bootstrap, topic, group=group) as consumer:
            assert len(await read(consumer, 10)) == 10
            await consumer.commit({zero: OffsetAndMetadata(7, "seven, née 七")})
            with pytest.raises(OffsetMetadataTooLargeError):
                await consumer.commit({zero: OffsetAndMetadata(8, "x" * 4097)})
        async with administrating(bootstrap) as admin:
            committed = await admin.list_consumer_group_offsets(group)
            assert (committed[zero].offset, committed[zero].metadata) == (7, "seven, née 七")
        async with consuming(bootstrap, topic, group=group) as consumer:
            assert await consumer.committed(zero) == 7
            assert await consumer.committed(one) is None
            assert [r.offset for r in await read(consumer, 3)] == [7, 8, 9]

    run(test())


@pytest.mark.exercises("admin-topics")
def test_admin_of_topics(bootstrap: str, unique: Unique) -> None:
    async def test() -> None:
        name = unique("admin")
        async with administrating(bootstrap) as admin:
            topic = NewTopic(name, 2, 1, topic_configs={"retention.ms": "86400000"})
            made = await admin.create_topics([topic])
            assert [error for _, error, *_ in made.topic_errors] == [0]
            again = await admin.create_topics([topic])
            assert [error for _, error, *_ in again.topic_errors] == [36]
            await admin.create_partitions({name: NewPartitions(5)})
            resource = ConfigResource(ConfigResourceType.TOPIC, name, configs={"max.message.bytes": "2000000"})
            await admin.alter_configs([resource])  # replaces all: retention.ms goes
            deadline = time.monotonic() + LIMIT_S
            wanted = {"max.message.bytes": "2000000", "retention.ms": "604800000"}
            while True:
                (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
                settings = {entry[0]: entry[1] for entry in answer.resources[0][4]}
                (described,) = await admin.describe_topics([name])
                if {k: settings[k] for k in wanted} == wanted and len(described["partitions"]) == 5:
                    break
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            assert [f"{b['host']}:{b['port']}" for b in (await admin.describe_cluster())["brokers"]] == [bootstrap]
            await admin.delete_topics([name])
            while name in await admin.list_topics():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    run(test())


@pytest.mark.exercises("admin-groups")
def test_admin_of_groups(bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    async def test() -> None:
        topic, group = new_topic(partitions=2), unique("group")
        async with administrating(bootstrap) as admin, consuming(bootstrap, topic, group=group) as consumer:
            await until(lambda: parts(consumer) == [0, 1], "assigned")
            (answer,) = await admin.describe_consumer_groups([group])
            (described,) = answer.groups
            assert described[1:4] == (group, "Stable", "consumer")
            assert len(described[5]) == 1
            assert (group, "consumer") in [entry[:2] for entry in await admin.list_consumer_groups()]

    run(test())
