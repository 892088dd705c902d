"""Metadata in all its versions. The expectations are Kafka 4.3.1's answers, except for automatically created topics."""

from typing import Any

import pytest

from metadata_harness.controlled import Node, with_node
from tidelog.metadata.controller import NewTopic
from tidelog.metadata.image import EMPTY_IMAGE
from tidelog.metadata.records import PartitionChanged
from tidelog.metadata.store import StoreUnavailable
from tidelog.wire.messages.metadata import MetadataRequestTopic

NO_ID = bytes(16)
UNKNOWN_ID = bytes(15) + b"\7"
NOT_ASKED = -(1 << 31)
VERSIONS = range(14)


def named(*names: str | None) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name) for name in names]


def by_id(*ids: bytes) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids]


def codes(answer: Any) -> list[tuple[str | None, int]]:
    return [(topic.name, topic.error_code) for topic in answer.topics]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_and_its_brokers(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t", 2, 1)])
        answer = await node.call("Metadata", version, topics=named("t"))
        (broker,) = answer.brokers
        assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", 9092)
        assert broker.rack == ("r1" if version >= 1 else None)
        assert answer.cluster_id == (node.image.cluster_id if version >= 2 else None)
        assert answer.controller_id == (1 if version >= 1 else -1)
        assert (answer.throttle_time_ms, answer.error_code) == (0, 0)
        (topic,) = answer.topics
        assert (topic.name, topic.error_code, topic.is_internal) == ("t", 0, False)
        assert topic.topic_id == (node.image.topics["t"].topic_id if version >= 10 else NO_ID)
        assert topic.topic_authorized_operations == NOT_ASKED
        assert [p.partition_index for p in topic.partitions] == [0, 1]
        for partition in topic.partitions:
            assert (partition.error_code, partition.leader_id) == (0, 1)
            assert partition.leader_epoch == (0 if version >= 7 else -1)
            assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])

    with_node(scenario, broker_rack="r1")


@pytest.mark.parametrize("version", VERSIONS)
def test_all_topics_or_none(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("a"), NewTopic("b")])
        answer = await node.call("Metadata", version, topics=[])
        assert codes(answer) == ([("a", 0), ("b", 0)] if version == 0 else [])
        if version >= 1:
            assert codes(await node.call("Metadata", version, topics=None)) == [("a", 0), ("b", 0)]

    with_node(scenario)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_made_on_demand_comes_with_its_leaders(version: int) -> None:
    async def scenario(node: Node) -> None:
        answer = await node.call("Metadata", version, topics=named("new", "new"))
        (topic,) = answer.topics
        assert (topic.name, topic.error_code) == ("new", 0)
        assert [p.leader_id for p in topic.partitions] == [1, 1]

    with_node(scenario, num_partitions="2")


def test_no_topic_is_made_unless_client_and_broker_agree() -> None:
    async def unwanted(node: Node) -> None:
        answer = await node.call("Metadata", 4, topics=named("new"), allow_auto_topic_creation=False)
        assert codes(answer) == [("new", 3)]
        assert not node.image.topics

    async def disabled(node: Node) -> None:
        assert codes(await node.call("Metadata", 13, topics=named("new"))) == [("new", 3)]
        assert not node.image.topics

    with_node(unwanted)
    with_node(disabled, auto_create_topics_enable="false")


@pytest.mark.parametrize("allow", [True, False])
def test_illegal_names(allow: bool) -> None:
    async def scenario(node: Node) -> None:
        names = ["", ".", "a b", "x" * 250, "é"]
        answer = await node.call("Metadata", 13, topics=named(*names), allow_auto_topic_creation=allow)
        assert codes(answer) == [(name, 17) for name in names]

    with_node(scenario)


def test_topics_that_cannot_be_made_say_why() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("a.b", 1, 1)])
        answer = await node.call("Metadata", 13, topics=named("a_b", "__cluster_metadata", "t"))
        assert codes(answer) == [("a_b", 17), ("__cluster_metadata", 3), ("t", 38)]

    with_node(scenario, default_replication_factor="2")


def test_a_store_that_refuses_is_told() -> None:
    async def scenario(node: Node) -> None:
        async def refuse(*args: object) -> None:
            raise StoreUnavailable("full")

        node.store.append = refuse  # type: ignore[assignment]
        assert codes(await node.call("Metadata", 13, topics=named("new"))) == [("new", 56)]

    with_node(scenario)


def test_coordinators_topics_are_made_as_they_are_needed() -> None:
    async def scenario(node: Node) -> None:
        answer = await node.call("Metadata", 13, topics=named("__consumer_offsets", "__transaction_state"))
        assert [(t.name, t.is_internal, len(t.partitions)) for t in answer.topics] == [
            ("__consumer_offsets", True, 5),
            ("__transaction_state", True, 50),
        ]

    with_node(scenario, offsets_topic_num_partitions="5")


@pytest.mark.parametrize("version", [12, 13])
def test_topics_by_id(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("a"), NewTopic("b")])
        a, b = (node.image.topics[name].topic_id for name in "ab")
        answer = await node.call("Metadata", version, topics=by_id(UNKNOWN_ID, b, b))
        assert [(t.name, t.topic_id, t.error_code) for t in answer.topics] == [(None, UNKNOWN_ID, 100), ("b", b, 0)]
        mixed = [MetadataRequestTopic(name="other", topic_id=a), *named("b")]
        assert codes(await node.call("Metadata", version, topics=mixed)) == [("a", 0)]
        assert "other" not in node.image.topics

    with_node(scenario)


@pytest.mark.parametrize(
    ("version", "topics"),
    [
        (10, by_id(UNKNOWN_ID)),
        (11, by_id(UNKNOWN_ID)),
        (11, [MetadataRequestTopic(name="t", topic_id=UNKNOWN_ID)]),
        (10, named(None)),
        (12, named(None)),
        (13, named("t", None)),
    ],
)
def test_ids_where_there_are_none_refuse_the_whole(version: int, topics: list[MetadataRequestTopic]) -> None:
    async def scenario(node: Node) -> None:
        answer = await node.call("Metadata", version, topics=topics)
        assert [(t.name, t.topic_id, t.error_code) for t in answer.topics] == [
            (t.name or "", t.topic_id, 42) for t in topics
        ]
        assert (answer.brokers, answer.cluster_id, answer.controller_id) == ([], None, -1)
        assert answer.error_code == (42 if version >= 13 else 0)
        assert not node.image.topics

    with_node(scenario)


@pytest.mark.parametrize("version", range(8, 14))
def test_what_a_client_may_do(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t")])
        asked: dict[str, object] = {"include_topic_authorized_operations": True, "allow_auto_topic_creation": False}
        if version <= 10:
            asked["include_cluster_authorized_operations"] = True
        answer = await node.call("Metadata", version, topics=named("t", "nope", "a b"), **asked)
        assert [t.topic_authorized_operations for t in answer.topics] == [3576] * 3
        assert answer.cluster_authorized_operations == (8096 if version <= 10 else NOT_ASKED)

    with_node(scenario)


def test_no_topic_is_listed_before_a_broker_is_there() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t")])
        full = node.image
        node.cache.image = EMPTY_IMAGE
        assert (await node.call("Metadata", 13, topics=None)).topics == []
        node.cache.image = full
        assert codes(await node.call("Metadata", 13, topics=None)) == [("t", 0)]

    with_node(scenario)


def test_a_partition_without_leader_and_a_replica_without_broker() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t")])
        topic_id = node.image.topics["t"].topic_id
        await node.metadata.controller._commit(lambda image: _leaderless(topic_id), None)
        (topic,) = (await node.call("Metadata", 13, topics=named("t"))).topics
        (partition,) = topic.partitions
        assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (5, -1, 1)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1, 2], [2], [2])

    with_node(scenario)


@pytest.mark.parametrize("ask", [named("t"), None, "by id"])
def test_a_partition_that_is_offline(ask: Any) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t", 2, 1)])
        node.offline.add(("t", 1))
        asked = by_id(node.image.topics["t"].topic_id) if ask == "by id" else ask
        (topic,) = (await node.call("Metadata", 13, topics=asked)).topics
        whole, hurt = topic.partitions
        assert (whole.error_code, whole.leader_id, whole.isr_nodes, whole.offline_replicas) == (0, 1, [1], [])
        assert (hurt.error_code, hurt.leader_id, hurt.isr_nodes, hurt.offline_replicas) == (5, -1, [], [1])
        assert (hurt.leader_epoch, hurt.replica_nodes) == (0, [1])

    with_node(scenario)


def _leaderless(topic_id: Any) -> Any:
    from tidelog.metadata.controller import JournalDecision

    return JournalDecision([PartitionChanged(topic_id, 0, leader=-1, isr=(2,), replicas=(1, 2))], None)
