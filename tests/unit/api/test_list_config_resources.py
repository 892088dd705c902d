"""ListConfigResources. The expectations are Kafka 4.3.1's answers."""

from typing import Any

from metadata_harness.controlled import Node, with_node
from tidelog.metadata.alterations import Alteration, Change, Operation
from tidelog.metadata.controller import NewTopic

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


async def listed(node: Node, *kinds: int, version: int = 1) -> list[tuple[int, str]]:
    answer: Any = await node.call("ListConfigResources", version, resource_types=list(kinds) if version else None)
    assert answer.error_code == 0
    return [(r.resource_type, r.resource_name) for r in answer.config_resources]


def test_what_has_settings() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t")])
        every = [(LOGGER, "1"), (BROKER, "1"), (TOPIC, "t")]
        assert await listed(node) == every
        assert await listed(node, version=0) == []
        await node.controller.alter_configs(
            [
                Alteration(METRICS, "m", [Change("interval.ms", Operation.SET, "1000")]),
                Alteration(GROUP, "g", [Change("consumer.session.timeout.ms", Operation.SET, "46000")]),
            ]
        )
        assert await listed(node) == [(GROUP, "g"), (METRICS, "m"), *every]
        assert await listed(node, METRICS, GROUP, METRICS) == [(GROUP, "g"), (METRICS, "m")]
        assert await listed(node, version=0) == [(METRICS, "m")]
        await node.controller.alter_configs(
            [Alteration(METRICS, "m", replace=True), Alteration(GROUP, "g", replace=True)]
        )
        assert await listed(node, GROUP, METRICS) == []

    with_node(scenario)


def test_a_kind_that_there_is_not() -> None:
    async def scenario(node: Node) -> None:
        answer = await node.call("ListConfigResources", 1, resource_types=[TOPIC, 3])
        assert (answer.error_code, answer.config_resources) == (35, [])

    with_node(scenario)
