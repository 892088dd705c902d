"""CreatePartitions. The expectations are Kafka 4.3.1's answers."""

from typing import Any

import pytest

from metadata_harness.controlled import Node, with_node
from tidelog.metadata.controller import NewTopic
from tidelog.wire.messages.create_partitions import CreatePartitionsAssignment, CreatePartitionsTopic


async def ask(node: Node, version: int, *wanted: tuple[str, int, list[list[int]] | None], **more: Any) -> Any:
    topics = [
        CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None if brokers is None else [CreatePartitionsAssignment(broker_ids=b) for b in brokers],
        )
        for name, count, brokers in wanted
    ]
    return await node.call("CreatePartitions", version, topics=topics, **({"timeout_ms": 10_000} | more))


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("validate_only", [False, True])
def test_partitions_are_added(version: int, validate_only: bool) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t", 2, 1), NewTopic("u", 1, 1)])
        answer = await ask(
            node, version, ("t", 4, None), ("u", 1, None), ("nope", 3, None), validate_only=validate_only
        )
        assert [(r.name, r.error_code, bool(r.error_message)) for r in answer.results] == [
            ("nope", 3, False),
            ("t", 0, False),
            ("u", 37, True),
        ]
        assert len(node.image.topics["t"].partitions) == (2 if validate_only else 4)

    with_node(scenario)


@pytest.mark.parametrize(
    ("count", "brokers", "code"),
    [(3, [[1]], 0), (4, [[1], [1]], 0), (3, [], 39), (3, [[1], [1]], 39), (3, [[2]], 39), (3, [[]], 39), (2, [], 37)],
)
def test_by_assignment(count: int, brokers: list[list[int]], code: int) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t", 2, 1)])
        (result,) = (await ask(node, 3, ("t", count, brokers))).results
        assert result.error_code == code

    with_node(scenario)


def test_no_time() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t", 2, 1)])
        answer = await ask(node, 3, ("t", 4, None), ("nope", 4, None), timeout_ms=0)
        assert [(r.name, r.error_code, r.error_message) for r in answer.results] == [("t", 7, None), ("nope", 7, None)]

    with_node(scenario)
