"""AlterConfigs and IncrementalAlterConfigs. The expectations are Kafka 4.3.1's answers."""

from typing import Any

import pytest

from metadata_harness.controlled import Node, with_node
from tidelog.metadata.controller import NewTopic
from tidelog.metadata.store import StoreUnavailable
from tidelog.wire.messages import alter_configs, incremental_alter_configs

SET, DELETE, APPEND = 0, 1, 2
TOPIC, BROKER = 2, 4

Replacement = tuple[int, str, dict[str, str | None]]
Changes = tuple[int, str, list[tuple[str, int, str | None]]]


async def replace(node: Node, version: int, *wanted: Replacement, validate_only: bool = False) -> Any:
    resources = [
        alter_configs.AlterConfigsResource(
            resource_type=resource_type,
            resource_name=name,
            configs=[alter_configs.AlterableConfig(name=k, value=v) for k, v in settings.items()],
        )
        for resource_type, name, settings in wanted
    ]
    return await node.call("AlterConfigs", version, resources=resources, validate_only=validate_only)


async def change(node: Node, version: int, *wanted: Changes, validate_only: bool = False) -> Any:
    resources = [
        incremental_alter_configs.AlterConfigsResource(
            resource_type=resource_type,
            resource_name=name,
            configs=[
                incremental_alter_configs.AlterableConfig(name=k, config_operation=operation, value=v)
                for k, operation, v in changes
            ],
        )
        for resource_type, name, changes in wanted
    ]
    return await node.call("IncrementalAlterConfigs", version, resources=resources, validate_only=validate_only)


def told(answer: Any) -> list[tuple[int, bool, int, str]]:
    return [(r.error_code, bool(r.error_message), r.resource_type, r.resource_name) for r in answer.responses]


@pytest.mark.parametrize("version", range(3))
def test_all_settings_are_replaced(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t", config=[("retention.ms", "5"), ("segment.ms", "6")])])
        answer = await replace(node, version, (TOPIC, "t", {"retention.ms": "7"}), validate_only=True)
        assert told(answer) == [(0, False, TOPIC, "t")]
        assert node.image.topics["t"].config == {"retention.ms": "5", "segment.ms": "6"}
        answer = await replace(node, version, (TOPIC, "t", {"retention.ms": "7"}))
        assert told(answer) == [(0, False, TOPIC, "t")]
        assert all(r.error_message is None for r in answer.responses)
        assert node.image.topics["t"].config == {"retention.ms": "7"}
        await replace(node, version, (TOPIC, "t", {}))
        assert node.image.topics["t"].config == {}

    with_node(scenario)


@pytest.mark.parametrize("version", range(2))
def test_settings_are_changed_one_by_one(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t", config=[("retention.ms", "5"), ("segment.ms", "6")])])
        changes: Changes = (TOPIC, "t", [("segment.ms", DELETE, None), ("cleanup.policy", APPEND, "compact")])
        assert told(await change(node, version, changes, validate_only=True)) == [(0, False, TOPIC, "t")]
        assert "segment.ms" in node.image.topics["t"].config
        answer = await change(node, version, changes, (BROKER, "", [("log.retention.ms", SET, "9")]))
        assert told(answer) == [(0, False, TOPIC, "t"), (0, False, BROKER, "")]
        assert node.image.topics["t"].config == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
        assert node.image.broker_configs == {"": {"log.retention.ms": "9"}}
        assert node.config.get("log.retention.ms") == 9

    with_node(scenario)


def test_each_resource_stands_alone() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t")])
        answer = await change(
            node,
            1,
            (TOPIC, "t", [("retention.ms", SET, "5")]),
            (TOPIC, "nope", [("retention.ms", SET, "5")]),
            (BROKER, "9", [("log.retention.ms", SET, "5")]),
            (TOPIC, "a b", []),
            (3, "x", []),
        )
        assert told(answer) == [
            (0, False, TOPIC, "t"),
            (3, True, TOPIC, "nope"),
            (42, True, BROKER, "9"),
            (17, True, TOPIC, "a b"),
            (42, True, 3, "x"),
        ]
        answer = await replace(node, 2, (TOPIC, "t", {"retention.ms": None}), (TOPIC, "nope", {"nope": "1"}))
        assert told(answer) == [(42, True, TOPIC, "t"), (40, True, TOPIC, "nope")]
        assert node.image.topics["t"].config == {"retention.ms": "5"}

    with_node(scenario)


def test_a_resource_that_comes_twice() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t")])
        answer = await change(node, 1, (TOPIC, "t", []), (TOPIC, "t", []))
        assert told(answer) == [(42, True, TOPIC, "t")] * 2
        assert told(await replace(node, 2, (TOPIC, "t", {}), (TOPIC, "t", {}))) == [(42, True, TOPIC, "t")] * 2

    with_node(scenario)


def test_a_store_that_refuses_is_told() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t")])

        async def refuse(*args: object) -> None:
            raise StoreUnavailable("full")

        node.store.append = refuse  # type: ignore[assignment]
        assert told(await change(node, 1, (TOPIC, "t", [("retention.ms", SET, "5")]))) == [(56, True, TOPIC, "t")]
        assert told(await replace(node, 2, (TOPIC, "t", {"retention.ms": "5"}))) == [(56, True, TOPIC, "t")]

    with_node(scenario)
