"""When a mirror compares its topics in both clusters."""

from typing import Any, cast

import pytest

from tidelog.pipelines import mirror_topics
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.mirror_topics import MirrorTopics


class Cluster:
    """Has topics, and counts the questions about them."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.questions = 0

    def partition_counts(self) -> dict[str, int]:
        self.questions += 1
        return dict(self.topics)

    def create_topic(self, name: str, partitions: int, replicas: int, settings: dict[str, str]) -> None:
        self.topics[name] = partitions

    def settings(self, topics: Any) -> dict[str, Any]:
        return {}


def test_a_topic_that_is_deleted_in_the_target_is_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(mirror_topics.time, "monotonic", lambda: now_s)
    source, target = Cluster(), Cluster()
    topics = MirrorTopics(cast(Any, source), cast(Any, target), prefix="copy.", replicas=1)
    topics.follow({"sales": 3})
    topics.follow({"sales": 3})
    assert target.questions == 1
    target.topics.clear()
    now_s = mirror_topics.COMPARED_EVERY_S
    topics.follow({"sales": 3})
    assert target.topics == {"copy.sales": 3}


def test_a_missing_topic_is_created_only_if_the_mirror_allows_it() -> None:
    def refuse(topic: str) -> None:
        if topic == "copied":
            raise PipelineError(topic)

    source, target = Cluster(), Cluster()
    topics = MirrorTopics(cast(Any, source), cast(Any, target), prefix="copy.", replicas=1, check_missing=refuse)
    topics.follow({"new": 1})
    with pytest.raises(PipelineError, match=r"^copied$"):
        topics.follow({"copied": 1, "new": 1})
    assert target.topics == {"copy.new": 1}
