"""Loggers in DescribeConfigs and IncrementalAlterConfigs, beside other resources. The rest is compared with Kafka."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from metadata_harness.controlled import Node, with_node
from tidelog.metadata.controller import NewTopic
from tidelog.wire.messages import describe_configs, incremental_alter_configs

SET, DELETE = 0, 1
TOPIC, LOGGER = 2, 8
NAME = "tidelog.metadata"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    levels = {name: logging.getLogger(name).level for name in ("tidelog", NAME)}  # of this process, not of one test
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


async def change(
    node: Node, *wanted: tuple[int, str, list[tuple[str, int, str | None]]], only: bool = False
) -> list[int]:
    resources = [
        incremental_alter_configs.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                incremental_alter_configs.AlterableConfig(name=k, config_operation=operation, value=v)
                for k, operation, v in changes
            ],
        )
        for kind, name, changes in wanted
    ]
    answer = await node.call("IncrementalAlterConfigs", 1, resources=resources, validate_only=only)
    assert [(r.resource_type, r.resource_name) for r in answer.responses] == [w[:2] for w in wanted]
    return [r.error_code for r in answer.responses]


async def levels(node: Node, *names: str) -> dict[str, str | None]:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=LOGGER, resource_name="1", configuration_keys=list(names) or None
    )
    answer: Any = await node.call("DescribeConfigs", 4, resources=[resource])
    return {c.name: c.value for c in answer.results[0].configs}


def test_levels_are_changed_at_once_and_taken_back() -> None:
    async def scenario(node: Node) -> None:
        assert await change(node, (LOGGER, "1", [("root", SET, "ERROR"), (NAME, SET, "DEBUG")])) == [0]
        assert await levels(node, "root", NAME, "no.such") == {"root": "ERROR", NAME: "DEBUG"}
        assert logging.getLogger(NAME).isEnabledFor(logging.DEBUG)
        assert await change(node, (LOGGER, "1", [(NAME, DELETE, None)]), only=True) == [0]
        assert await levels(node, NAME) == {NAME: "DEBUG"}
        assert await change(node, (LOGGER, "1", [(NAME, DELETE, None)])) == [0]
        assert await levels(node, NAME) == {NAME: "ERROR"}
        every = await levels(node)
        assert next(iter(every)) == "root"
        assert {NAME, "tidelog.network"} <= set(every)

    with_node(scenario)


def test_answers_are_in_the_order_of_the_request() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t")])
        topic = (TOPIC, "t", [("retention.ms", SET, "5")])
        codes = await change(
            node, (LOGGER, "1", [(NAME, SET, "loud")]), topic, (LOGGER, "9", []), (TOPIC, "no", []), (LOGGER, "x", [])
        )
        assert codes == [40, 0, 42, 3, 42]
        assert node.image.topics["t"].config == {"retention.ms": "5"}

    with_node(scenario)


def test_all_of_a_resource_or_nothing() -> None:
    async def scenario(node: Node) -> None:
        await change(node, (LOGGER, "1", [("root", SET, "WARN")]))
        assert await change(node, (LOGGER, "1", [("root", SET, "INFO"), ("no.such", SET, "INFO")])) == [40]
        assert await levels(node, "root") == {"root": "WARN"}

    with_node(scenario)
