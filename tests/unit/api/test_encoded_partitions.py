"""DescribeTopicPartitions responses from stored partitions: the same bytes as without, and only changed topics are
described anew.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_harness.controlled import Node, with_node
from tidelog.api import describe_topic_partitions
from tidelog.api.encoded_partitions import encode_partitions, encode_topic, join_topics
from tidelog.metadata.controller import NewTopic
from tidelog.metadata.image import ImageBuilder, TopicImage
from tidelog.metadata.records import PartitionChanged
from tidelog.model.steps import run_all
from tidelog.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)

BROKERS = st.lists(st.integers(0, 2**31 - 1), max_size=130)
PARTITIONS = st.lists(
    st.builds(
        DescribeTopicPartitionsResponsePartition,
        error_code=st.integers(0, 100),
        partition_index=st.integers(0, 2**31 - 1),
        leader_id=st.integers(-1, 2**31 - 1),
        leader_epoch=st.integers(-1, 2**31 - 1),
        replica_nodes=BROKERS,
        isr_nodes=BROKERS,
        eligible_leader_replicas=st.none() | BROKERS,
        last_known_elr=st.none() | BROKERS,
        offline_replicas=BROKERS,
    ),
    max_size=4,
)
TOPICS = st.lists(
    st.builds(
        DescribeTopicPartitionsResponseTopic,
        error_code=st.integers(0, 100),
        name=st.none() | st.text(max_size=200),
        topic_id=st.binary(min_size=16, max_size=16),
        is_internal=st.booleans(),
        partitions=PARTITIONS,
        topic_authorized_operations=st.integers(-(2**31), 2**31 - 1),
    ),
    max_size=4,
)
CURSORS = st.none() | st.builds(Cursor, topic_name=st.text(max_size=200), partition_index=st.integers(0, 2**31 - 1))


@given(TOPICS, CURSORS, st.data())
def test_joined_partitions_are_the_bytes_of_the_whole_response(
    topics: list[DescribeTopicPartitionsResponseTopic], cursor: Cursor | None, data: st.DataObject
) -> None:
    whole = DescribeTopicPartitionsResponse(throttle_time_ms=7, topics=topics, next_cursor=cursor)
    encoded = []
    for topic in topics:
        partitions = run_all(encode_partitions(topic.partitions))
        first = data.draw(st.integers(0, len(topic.partitions)))
        page = range(first, data.draw(st.integers(first, len(topic.partitions))))
        selected, topic.partitions = [topic.partitions[index] for index in page], []
        encoded.append(encode_topic(topic, partitions, page))
        topic.partitions = selected
    expected = whole.encode(0)
    whole.topics = []
    assert join_topics(whole, encoded) == expected


@pytest.mark.parametrize("count", [126, 127, 16_383, 16_384])
def test_many_topics_and_partitions(count: int) -> None:
    partition = DescribeTopicPartitionsResponsePartition(replica_nodes=[1, 2, 3], isr_nodes=[1, 2])
    partitions = [partition] * count
    topic = DescribeTopicPartitionsResponseTopic(name="t", partitions=partitions)
    many = [DescribeTopicPartitionsResponseTopic(name="u")] * count
    expected = DescribeTopicPartitionsResponse(topics=[topic, *many]).encode(0)
    stored = run_all(encode_partitions(partitions))
    topic.partitions = []
    encoded = [encode_topic(topic, stored, range(count)), *map(encode_topic, many)]
    assert join_topics(DescribeTopicPartitionsResponse(), encoded) == expected


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that were described, in order."""
    names: list[str] = []
    partitions_of = describe_topic_partitions.partitions_of

    def note_topic(topic: TopicImage, *arguments: Any) -> Any:
        names.append(topic.name)
        return partitions_of(topic, *arguments)

    monkeypatch.setattr(describe_topic_partitions, "partitions_of", note_topic)
    return names


async def leaders(node: Node, limit: int = 2000, cursor: Cursor | None = None) -> list[tuple[str | None, list[int]]]:
    answer = await node.call(
        "DescribeTopicPartitions",
        0,
        topics=[TopicRequest(name=name) for name in ("a", "b", "nope")],
        response_partition_limit=limit,
        cursor=cursor,
    )
    return [(topic.name, [partition.leader_id for partition in topic.partitions]) for topic in answer.topics]


def test_only_a_changed_topic_is_described_again(described: list[str]) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("a", 3), NewTopic("b", 3)])
        assert await leaders(node) == [("a", [1, 1, 1]), ("b", [1, 1, 1]), ("nope", [])]
        assert await leaders(node, limit=2) == [("a", [1, 1])]
        assert await leaders(node, 2, Cursor("a", 2)) == [("a", [1]), ("b", [1])]
        assert described == ["a", "b"]
        change = PartitionChanged(node.image.topics["a"].topic_id, 1, leader=-1)
        node.cache.image = ImageBuilder(node.image).apply([change]).build()
        assert await leaders(node) == [("a", [1, -1, 1]), ("b", [1, 1, 1]), ("nope", [])]
        assert described == ["a", "b", "a"]

    with_node(scenario)


def test_a_topic_with_a_log_that_is_offline_here_is_not_stored(described: list[str]) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("a"), NewTopic("b")])
        await leaders(node)
        node.offline.add(("a", 0))
        for _ in range(2):
            assert await leaders(node) == [("a", [-1]), ("b", [1]), ("nope", [])]
        assert described == ["a", "b", "a", "a"]
        node.offline.clear()
        assert await leaders(node) == [("a", [1]), ("b", [1]), ("nope", [])]

    with_node(scenario)
