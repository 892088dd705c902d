"""Metadata responses from stored topics: the same bytes as without, and only changed topics are described anew."""

from typing import Any

import pytest

from metadata_harness.controlled import Node, with_node
from tidelog.api import metadata
from tidelog.api.encoded_topics import EncodedTopics, encode_topics, join_topics
from tidelog.metadata.controller import NewTopic, TopicChoice
from tidelog.metadata.image import ImageBuilder, MetadataImage, TopicImage
from tidelog.metadata.records import BrokerRegistered, PartitionChanged, PartitionState
from tidelog.model.ids import TopicId
from tidelog.model.steps import run_all
from tidelog.wire.messages.metadata import (
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

VERSIONS = range(1, 14)


def names_in(answer: Any) -> list[tuple[str, int]]:
    return [(topic.name, topic.error_code) for topic in answer.topics]


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that were described, in order."""
    names: list[str] = []
    partitions_of = metadata.partitions_of

    def noted(topic: TopicImage, *arguments: Any) -> Any:
        names.append(topic.name)
        return partitions_of(topic, *arguments)

    monkeypatch.setattr(metadata, "partitions_of", noted)
    return names


def a_topic(number: int, version: int) -> MetadataResponseTopic:
    partition = MetadataResponsePartition(partition_index=number, leader_id=1, replica_nodes=[1, 2], isr_nodes=[2])
    return MetadataResponseTopic(
        name=f"t{number}", topic_id=bytes([number]) * 16 if version >= 10 else bytes(16), partitions=[partition]
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [0, 1, 126, 127, 200])
def test_joined_topics_are_the_bytes_of_the_whole_response(version: int, count: int) -> None:
    brokers = [MetadataResponseBroker(node_id, "host", 9092, "rack") for node_id in (1, 2)]
    topics = [a_topic(number, version) for number in range(count)]
    whole = MetadataResponse(brokers=brokers, cluster_id="c" if version >= 2 else None, controller_id=2, topics=topics)
    encoded = [run_all(encode_topics([topic], version)) for topic in topics]
    expected = whole.encode(version)
    whole.topics = []
    assert join_topics(whole, len(topics), encoded, version) == expected
    together = [run_all(encode_topics(topics[:-1], version)), encoded[-1]] if topics else []
    assert join_topics(whole, len(topics), together, version) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_only_a_changed_topic_is_described_again(version: int, described: list[str]) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("a", 3), NewTopic("b", 3)])
        first = await node.call("Metadata", version, topics=None)
        assert described == ["a", "b"]
        again = await node.call("Metadata", version, topics=None)
        assert [topic.partitions for topic in again.topics] == [topic.partitions for topic in first.topics]
        await node.call("Metadata", version, topics=[MetadataRequestTopic(name="b")])
        assert described == ["a", "b"]
        await node.controller.create_topics([NewTopic("c")])
        assert names_in(await node.call("Metadata", version, topics=None)) == [("a", 0), ("b", 0), ("c", 0)]
        assert described == ["a", "b", "c"]
        node.cache.image = (
            ImageBuilder(node.image).apply([PartitionChanged(node.image.topics["a"].topic_id, 1, leader=-1)]).build()
        )
        answer = await node.call("Metadata", version, topics=None)
        assert [p.leader_id for p in answer.topics[0].partitions] == [1, -1, 1]
        assert described == ["a", "b", "c", "a"]

    with_node(scenario)


def test_a_topic_that_is_deleted_and_created_again_is_described_again(described: list[str]) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("a")])
        first = await node.call("Metadata", 13, topics=None)
        await node.controller.delete_topics([TopicChoice("a")])
        assert names_in(await node.call("Metadata", 13, topics=None)) == []
        await node.controller.create_topics([NewTopic("a")])
        second = await node.call("Metadata", 13, topics=None)
        assert first.topics[0].topic_id != second.topics[0].topic_id

    with_node(scenario)


def test_the_offline_replicas_follow_the_brokers(described: list[str]) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("a")])
        own = node.image.brokers[1]
        other = BrokerRegistered(2, 40, "other", own.endpoints, None)
        replicas = PartitionChanged(node.image.topics["a"].topic_id, 0, replicas=(1, 2))
        node.cache.image = ImageBuilder(node.image).apply([replicas]).build()
        answer = await node.call("Metadata", 13, topics=None)
        assert answer.topics[0].partitions[0].offline_replicas == [2]
        node.cache.image = ImageBuilder(node.image).apply([other]).build()
        answer = await node.call("Metadata", 13, topics=None)
        assert answer.topics[0].partitions[0].offline_replicas == []

    with_node(scenario)


def test_a_topic_with_a_log_that_is_offline_here_is_not_stored(described: list[str]) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("a"), NewTopic("b")])
        await node.call("Metadata", 13, topics=None)
        node.offline.add(("a", 0))
        for _ in range(2):
            answer = await node.call("Metadata", 13, topics=None)
            assert [topic.partitions[0].leader_id for topic in answer.topics] == [-1, 1]
        assert described == ["a", "b", "a", "a"]
        node.offline.clear()
        answer = await node.call("Metadata", 13, topics=None)
        assert [topic.partitions[0].leader_id for topic in answer.topics] == [1, 1]

    with_node(scenario)


def image_with(count: int) -> MetadataImage:
    image = MetadataImage.__new__(MetadataImage)
    state = PartitionState(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
    image.brokers = {}
    image.topics = {f"t{number}": TopicImage(f"t{number}", TopicId(bytes(16)), (state,), {}) for number in range(count)}
    return image


def test_the_memory_is_bounded() -> None:
    image = image_with(100)
    encoded_topics = EncodedTopics(bytes_max=10_000)
    for topic in image.topics.values():
        encoded_topics.of(image, 13, 0).store(topic, bytes(800))
        assert encoded_topics.of(image, 13, 0).find(topic) in (None, bytes(800))
        stored = [encoded_topics.of(image, 13, 0).find(known) for known in image.topics.values()]
        assert sum(map(len, filter(None, stored))) <= 10_000
    assert any(stored)


def test_deleted_topics_do_not_stay(described: list[str]) -> None:
    image = image_with(100)
    encoded_topics = EncodedTopics()
    for topic in image.topics.values():
        encoded_topics.of(image, 13, 0).store(topic, b"encoded")
    topics = [*image.topics.values()]
    image.topics = {topics[0].name: topics[0]}
    assert encoded_topics.of(image, 13, 0).find(topics[0]) is None


def test_what_was_described_before_the_brokers_changed_is_not_stored() -> None:
    image = image_with(1)
    encoded_topics = EncodedTopics()
    before = encoded_topics.of(image, 13, 0)
    encoded_topics.clear()
    before.store(image.topics["t0"], b"old")
    assert encoded_topics.of(image, 13, 0).find(image.topics["t0"]) is None
