"""DescribeConfigs. The expectations are Kafka 4.3.1's answers, except for documentation and our own settings."""

from typing import Any

import pytest

from metadata_harness.controlled import Node, with_node
from tidelog.api import describe_configs
from tidelog.api.describe_configs import CHARS_PER_SETTING, SETTINGS_MAX
from tidelog.metadata.alterations import Alteration, Change
from tidelog.metadata.controller import NewTopic
from tidelog.wire.messages.describe_configs import DescribeConfigsResource

TOPIC, BROKER = 2, 4


def resource(resource_type: int, name: str, keys: list[str] | None = None) -> DescribeConfigsResource:
    return DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=keys)


async def ask(node: Node, version: int, *resources: DescribeConfigsResource, **more: Any) -> list[Any]:
    await node.controller.create_topics([NewTopic("t", config=[("retention.ms", " 5 "), ("preallocate", "TRUE")])])
    answer = await node.call("DescribeConfigs", version, resources=list(resources), **more)
    results: list[Any] = answer.results
    return results


@pytest.mark.parametrize("version", range(1, 5))
@pytest.mark.parametrize("synonyms", [False, True])
def test_a_topics_settings(version: int, synonyms: bool) -> None:
    async def scenario(node: Node) -> None:
        wanted = resource(TOPIC, "t", ["retention.ms", "nope", "preallocate"])
        (result,) = await ask(node, version, wanted, include_synonyms=synonyms)
        assert (result.error_code, result.error_message) == (0, "")
        assert (result.resource_type, result.resource_name) == (TOPIC, "t")
        retention, preallocate = result.configs
        assert (retention.name, retention.value, retention.config_source) == ("retention.ms", "5", 1)
        assert (retention.read_only, retention.is_sensitive) == (False, False)
        assert retention.config_type == (5 if version >= 3 else 0)
        assert retention.documentation is (None if version >= 3 else retention.documentation)
        assert [(s.name, s.value, s.source) for s in preallocate.synonyms] == (
            [("preallocate", "true", 1), ("log.preallocate", "false", 5)] if synonyms else []
        )

    with_node(scenario)


@pytest.mark.parametrize("version", [3, 4])
def test_settings_are_explained_and_those_without_effect_say_so(version: int) -> None:
    async def scenario(node: Node) -> None:
        wanted = resource(TOPIC, "t", ["retention.ms", "preallocate"])
        (result,) = await ask(node, version, wanted, include_documentation=True)
        retention, preallocate = result.configs
        assert retention.documentation.startswith("Age at which segments are deleted")
        assert "No effect yet." not in retention.documentation
        assert preallocate.documentation.endswith(" No effect yet.")
        (broker,) = await ask(node, version, resource(BROKER, "1", ["ssl.provider"]), include_documentation=True)
        assert broker.configs[0].documentation == "No effect yet."
        node.config.origins["ssl.provider"] = "server.properties:3"
        (broker,) = await ask(node, version, resource(BROKER, "1", ["ssl.provider"]), include_documentation=True)
        assert broker.configs[0].documentation == "No effect yet. Set at the start by server.properties:3."

    with_node(scenario)


def test_all_settings() -> None:
    async def scenario(node: Node) -> None:
        wanted = [resource(TOPIC, "t"), resource(TOPIC, "t", []), resource(BROKER, "1"), resource(TOPIC, "t", ["nope"])]
        assert [len(result.configs) for result in await ask(node, 4, *wanted)] == [35, 35, 344, 0]

    with_node(scenario)


@pytest.mark.parametrize(
    ("wanted", "code", "has_message"),
    [
        (resource(TOPIC, "nope"), 3, False),
        (resource(TOPIC, "a b"), 17, True),
        (resource(TOPIC, ""), 17, True),
        (resource(BROKER, "2"), 42, True),
        (resource(BROKER, "one"), 42, True),
        (resource(BROKER, "-1"), 42, True),
        (resource(0, "x"), 42, True),
        (resource(BROKER, "1" * 5000), 42, True),  # more than Python makes a number of
        (resource(3, "x"), 42, True),
        (resource(127, "x"), 42, True),
        (resource(-1, "x"), 42, True),
    ],
)
def test_what_cannot_be_described(wanted: DescribeConfigsResource, code: int, has_message: bool) -> None:
    async def scenario(node: Node) -> None:
        (result,) = await ask(node, 4, wanted)
        assert (result.error_code, bool(result.error_message), result.configs) == (code, has_message, [])
        assert result.error_message is not None
        assert (result.resource_type, result.resource_name) == (wanted.resource_type, wanted.resource_name)

    with_node(scenario)


def test_this_broker_and_all_brokers() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.alter_configs([Alteration(BROKER, "", [Change("log.retention.ms", 0, "600000")])])
        own, every, topic = await ask(
            node,
            4,
            resource(BROKER, "01", ["node.id", "log.retention.ms"]),
            resource(BROKER, ""),
            resource(TOPIC, "t", ["segment.ms", "retention.ms"]),
            include_synonyms=True,
        )
        assert [(c.name, c.value, c.config_source, c.read_only) for c in own.configs] == [
            ("node.id", "1", 5, True),
            ("log.retention.ms", "600000", 3, False),
        ]
        assert [(c.name, c.value, c.config_source) for c in every.configs] == [("log.retention.ms", "600000", 3)]
        assert [(s.name, s.value, s.source) for s in topic.configs[1].synonyms] == [
            ("retention.ms", "5", 1),
            ("log.retention.ms", "600000", 3),
            ("log.retention.hours", "168", 5),
        ]

    with_node(scenario)


def test_resources_are_answered_in_their_order_and_as_often_as_asked() -> None:
    async def scenario(node: Node) -> None:
        wanted = [resource(BROKER, "1", ["node.id"]), resource(TOPIC, "nope"), resource(TOPIC, "t", ["segment.ms"])]
        results = await ask(node, 4, *wanted, wanted[0])
        assert [(r.resource_type, r.resource_name, len(r.configs)) for r in results] == [
            (BROKER, "1", 1),
            (TOPIC, "nope", 0),
            (TOPIC, "t", 1),
            (BROKER, "1", 1),
        ]

    with_node(scenario)


def test_a_secret_is_not_told() -> None:
    async def scenario(node: Node) -> None:
        (result,) = await ask(node, 4, resource(BROKER, "1", ["ssl.key.password"]), include_synonyms=True)
        (config,) = result.configs
        assert (config.value, config.is_sensitive, config.config_source) == (None, True, 4)
        assert [s.value for s in config.synonyms] == [None]

    with_node(scenario, ssl_key_password="hush")


def test_one_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_configs, "SETTINGS_MAX", 3)

    async def scenario(node: Node) -> None:
        wanted = resource(TOPIC, "t", ["retention.ms", "preallocate"])
        results = await ask(node, 4, wanted, wanted, wanted)
        assert [(result.error_code, len(result.configs)) for result in results] == [(0, 2), (0, 2), (42, 0)]

    with_node(scenario)


def test_long_values_fill_an_answer_sooner() -> None:
    """A request of a few KB would have gigabytes for its answer."""

    async def scenario(node: Node) -> None:
        setting = "leader.replication.throttled.replicas"
        value = ",".join(f"{number}:1" for number in range(3_000))
        await node.controller.create_topics([NewTopic("long", config=[(setting, value)])])
        asked = [resource(TOPIC, "long", [setting])] * 4000
        results = await ask(node, 4, *asked, include_synonyms=True)
        told = [result.configs[0].value for result in results if result.error_code == 0]
        assert set(told) == {value}
        assert sum(map(len, told)) < SETTINGS_MAX * CHARS_PER_SETTING
        assert results[-1].error_code == 42

    with_node(scenario)
