"""CreateTopics. The expectations are Kafka 4.3.1's answers."""

from typing import Any

import pytest

from metadata_harness.controlled import Node, with_node
from tidelog.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig

VERSIONS = range(2, 8)


def topic(name: str, partitions: int = 1, replicas: int = 1, **config: str | None) -> CreatableTopic:
    configs = [CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in config.items()]
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=configs)


def codes(answer: Any) -> list[tuple[str, int]]:
    return [(result.name, result.error_code) for result in answer.topics]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_topic_is_made(version: int, validate_only: bool) -> None:
    async def scenario(node: Node) -> None:
        answer = await node.call(
            "CreateTopics", version, topics=[topic("t", 3, -1, retention_ms="5")], validate_only=validate_only
        )
        (result,) = answer.topics
        assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
        assert ("t" in node.image.topics) is not validate_only
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (3, 1)
            settings = {c.name: (c.value, c.config_source, c.read_only, c.is_sensitive) for c in result.configs}
            assert settings["retention.ms"] == ("5", 1, False, False)
            assert settings["segment.ms"] == ("604800000", 5, False, False)
            assert settings["compression.type"] == ("zstd", 4, False, False)
            assert list(settings) == sorted(settings)
        else:
            assert (result.num_partitions, result.replication_factor, result.configs) == (-1, -1, [])
        assert (result.topic_id != bytes(16)) is (version >= 7)
        if version >= 7 and not validate_only:
            assert result.topic_id == node.image.topics["t"].topic_id

    with_node(scenario, compression_type="zstd")


@pytest.mark.parametrize("version", VERSIONS)
def test_each_topic_stands_alone(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.call("CreateTopics", version, topics=[topic("here")])
        wanted = [
            topic("bad name"),
            topic("o1"),
            topic("here"),
            topic("o2"),
            topic("o2"),
            topic("o0", retention_ms="x"),
        ]
        answer = await node.call("CreateTopics", version, topics=wanted)
        assert codes(answer) == [("bad name", 17), ("o1", 0), ("here", 36), ("o0", 40), ("o2", 42)]
        for result in answer.topics:
            assert bool(result.error_message) is bool(result.error_code)
            if result.error_code:
                assert (result.num_partitions, result.replication_factor, result.configs) == (-1, -1, [])
                assert result.topic_id == bytes(16)

    with_node(scenario)


def test_by_assignment() -> None:
    async def scenario(node: Node) -> None:
        assignments = [CreatableReplicaAssignment(partition_index=i, broker_ids=[1]) for i in (1, 0)]
        wanted = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
        (result,) = (await node.call("CreateTopics", 7, topics=[wanted])).topics
        assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 1)

    with_node(scenario)


def test_a_setting_without_a_value() -> None:
    async def scenario(node: Node) -> None:
        (result,) = (await node.call("CreateTopics", 7, topics=[topic("t", retention_ms=None)])).topics
        assert result.error_code == 40

    with_node(scenario)


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_no_time(timeout_ms: int) -> None:
    async def scenario(node: Node) -> None:
        answer = await node.call("CreateTopics", 7, topics=[topic("t"), topic("u"), topic("u")], timeout_ms=timeout_ms)
        assert codes(answer) == [("t", 7), ("u", 7)]
        assert all(result.error_message is None for result in answer.topics)
        assert not node.image.topics

    with_node(scenario)


def test_no_topics() -> None:
    async def scenario(node: Node) -> None:
        assert (await node.call("CreateTopics", 7, topics=[])).topics == []

    with_node(scenario)


def test_defaults_of_the_broker() -> None:
    async def scenario(node: Node) -> None:
        (result,) = (await node.call("CreateTopics", 7, topics=[topic("t", -1, -1)])).topics
        assert (result.num_partitions, result.replication_factor) == (4, 1)

    with_node(scenario, num_partitions="4")
