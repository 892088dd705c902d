"""DescribeTopicPartitions: pages and their cursors. The expectations are Kafka 4.3.1's answers."""

from typing import Any

import pytest

from metadata_harness.controlled import Node, with_node
from tidelog.metadata.controller import NewTopic
from tidelog.wire.messages.describe_topic_partitions import Cursor, TopicRequest

Page = list[tuple[str, int, list[int]]]


async def node_with_topics(node: Node) -> None:
    await node.controller.create_topics([NewTopic("t", 3, 1), NewTopic("a", 1, 1), NewTopic("c.d"), NewTopic("c.e")])


async def ask(node: Node, names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    fields: dict[str, Any] = {"topics": [TopicRequest(name=name) for name in names], "response_partition_limit": limit}
    if cursor is not None:
        fields["cursor"] = Cursor(topic_name=cursor[0], partition_index=cursor[1])
    return await node.call("DescribeTopicPartitions", 0, **fields)


def page(answer: Any) -> tuple[Page, tuple[str, int] | None]:
    cursor = answer.next_cursor
    topics = [(t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in answer.topics]
    return topics, None if cursor is None else (cursor.topic_name, cursor.partition_index)


@pytest.mark.parametrize(
    ("names", "limit", "cursor", "topics", "next_cursor"),
    [
        (["t", "nope", "a b"], 2000, None, [("a b", 17, []), ("nope", 3, []), ("t", 0, [0, 1, 2])], None),
        (["t", "a"], 2, None, [("a", 0, [0]), ("t", 0, [0])], ("t", 1)),
        (["t", "a"], 3, None, [("a", 0, [0]), ("t", 0, [0, 1])], ("t", 2)),
        (["t", "a"], 4, None, [("a", 0, [0]), ("t", 0, [0, 1, 2])], None),
        (["t", "a"], 1, None, [("a", 0, [0])], ("t", 0)),
        (["t", "a"], 0, None, [("a", 0, [0])], ("t", 0)),
        (["t", "a"], -1, None, [("a", 0, [0])], ("t", 0)),
        (["t", "a", "t"], 10, None, [("a", 0, [0]), ("t", 0, [0, 1, 2])], None),
        (["t", "a"], 10, ("t", 1), [("t", 0, [1, 2])], None),
        (["t", "a"], 10, ("t", 3), [("t", 0, [])], None),
        (["t"], 10, ("t", 5), [("t", 0, [])], None),
        (["t", "a", "nope"], 1, ("a", 0), [("a", 0, [0])], ("nope", 0)),
        (["nope", "nope2", "t"], 1, None, [("nope", 3, []), ("nope2", 3, []), ("t", 0, [0])], ("t", 1)),
        (["nope", "nope2", "t"], 10, ("nope2", 0), [("nope2", 3, []), ("t", 0, [0, 1, 2])], None),
        (["t", "nope"], 10, ("nope", 5), [("nope", 3, []), ("t", 0, [0, 1, 2])], None),
        ([], 3, None, [("a", 0, [0]), ("c.d", 0, [0]), ("c.e", 0, [0])], ("t", 0)),
        ([], 2, ("t", 0), [("t", 0, [0, 1])], ("t", 2)),
        ([], 1, ("c.d", 0), [("c.d", 0, [0])], ("c.e", 0)),
        ([], 10, ("d", 1), [("t", 0, [0, 1, 2])], None),
        ([], 10, ("zz", 0), [], None),
        (["t", "a"], 10, ("t", -1), [("t", 42, []), ("a", 42, [])], None),
        (["t", "a"], 10, ("b", 0), [("t", 42, []), ("a", 42, [])], None),
        (["t", "nope"], 1, ("a", 0), [("t", 42, []), ("nope", 42, [])], None),
        (["t", "a", "t", "t"], 10, ("b", 0), [("t", 42, []), ("a", 42, []), ("t", 42, []), ("t", 42, [])], None),
    ],
)
def test_pages(
    names: list[str],
    limit: int,
    cursor: tuple[str, int] | None,
    topics: Page,
    next_cursor: tuple[str, int] | None,
) -> None:
    async def scenario(node: Node) -> None:
        await node_with_topics(node)
        assert page(await ask(node, names, limit, cursor)) == (topics, next_cursor)

    with_node(scenario)


def test_a_topic_whole() -> None:
    async def scenario(node: Node) -> None:
        await node_with_topics(node)
        known, unknown = (await ask(node, ["a", "nope"])).topics
        assert (known.topic_id, known.is_internal) == (node.image.topics["a"].topic_id, False)
        assert (unknown.topic_id, unknown.is_internal) == (bytes(16), False)
        assert known.topic_authorized_operations == unknown.topic_authorized_operations == 3576
        (partition,) = known.partitions
        assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 1, 0)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])

    with_node(scenario)


def test_the_brokers_limit_counts_too() -> None:
    async def scenario(node: Node) -> None:
        await node_with_topics(node)
        assert page(await ask(node, ["t"], 2000))[1] == ("t", 2)

    with_node(scenario, max_request_partition_size_limit="2")


def test_pages_together_are_everything() -> None:
    async def scenario(node: Node) -> None:
        await node_with_topics(node)
        seen: list[tuple[str, int]] = []
        cursor: tuple[str, int] | None = None
        for _ in range(10):
            topics, cursor = page(await ask(node, [], 1, cursor))
            seen += [(name, index) for name, _, indexes in topics for index in indexes]
            if cursor is None:
                break
        assert seen == [("a", 0), ("c.d", 0), ("c.e", 0), ("t", 0), ("t", 1), ("t", 2)]

    with_node(scenario)
