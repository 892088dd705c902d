"""DeleteTopics. The expectations are Kafka 4.3.1's answers."""

from typing import Any

import pytest

from metadata_harness.controlled import Node, with_node
from tidelog.metadata.controller import NewTopic
from tidelog.wire.messages.delete_topics import DeleteTopicState

NO_ID = bytes(16)


async def delete(node: Node, version: int, *names: str, timeout_ms: int = 10_000) -> Any:
    if version < 6:
        return await node.call("DeleteTopics", version, topic_names=list(names), timeout_ms=timeout_ms)
    topics = [DeleteTopicState(name=name) for name in names]
    return await node.call("DeleteTopics", version, topics=topics, timeout_ms=timeout_ms)


@pytest.mark.parametrize("version", range(1, 7))
def test_by_name(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t"), NewTopic("u")])
        topic_id = node.image.topics["t"].topic_id
        answer = await delete(node, version, "nope", "t")
        assert [(r.name, r.error_code) for r in answer.responses] == [("nope", 3), ("t", 0)]
        assert [r.topic_id for r in answer.responses] == [NO_ID, topic_id if version >= 6 else NO_ID]
        assert [bool(r.error_message) for r in answer.responses] == [version >= 5, False]
        assert list(node.image.topics) == ["u"]

    with_node(scenario)


def test_by_id() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t"), NewTopic("u")])
        t, u = (node.image.topics[name].topic_id for name in "tu")
        unknown = bytes(15) + b"\7"
        wanted = [(None, unknown), ("u", u), (None, NO_ID), (None, t)]
        topics = [DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in wanted]
        answer = await node.call("DeleteTopics", 6, topics=topics, timeout_ms=10_000)
        assert [(r.name, r.topic_id, r.error_code) for r in answer.responses] == [
            (None, unknown, 100),
            ("u", u, 42),
            (None, NO_ID, 42),
            ("t", t, 0),
        ]
        assert list(node.image.topics) == ["u"]

    with_node(scenario)


@pytest.mark.parametrize(("version", "code"), [(1, 42), (2, 42), (3, 73), (5, 73), (6, 73)])
def test_where_topics_cannot_be_deleted(version: int, code: int) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t")])
        answer = await delete(node, version, "t", "nope")
        assert [(r.name, r.error_code, r.error_message) for r in answer.responses] == [
            ("t", code, None),
            ("nope", code, None),
        ]
        assert list(node.image.topics) == ["t"]

    with_node(scenario, delete_topic_enable="false")


def test_no_time() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t")])
        answer = await delete(node, 6, "t", "nope", timeout_ms=0)
        assert [(r.name, r.error_code, r.error_message) for r in answer.responses] == [
            ("t", 7, None),
            ("nope", 7, None),
        ]
        assert list(node.image.topics) == ["t"]

    with_node(scenario)


def test_a_topic_made_anew_has_another_id() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t")])
        first = node.image.topics["t"].topic_id
        await delete(node, 6, "t")
        await node.controller.create_topics([NewTopic("t")])
        assert node.image.topics["t"].topic_id != first

    with_node(scenario)
