"""The requests of commands to a cluster, while topics are created and deleted."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.cli import cluster
from tidelog.cli.connection import connect
from tidelog.cli.errors import CommandError
from tidelog.cli.main import main
from tidelog.client.operations import LATEST
from tidelog.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("kept", 1)])["kept"].result()
        yield broker


@pytest.mark.parametrize("asked", ["topic_names", "describe"])
def test_a_topic_that_is_deleted_while_topics_are_listed(
    asked: str, broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was told of by the first question, or by the second, and the next one does not find it."""
    if asked == "topic_names":
        monkeypatch.setattr(cluster, "topic_names", lambda admin: ["gone", "kept"])
    else:
        one = cluster.PartitionState(0, 1, [1], [1])
        topics = [cluster.TopicState(name, "", False, [one]) for name in ("gone", "kept")]
        described = cluster.DescribedTopics(topics, {})
        monkeypatch.setattr(cluster, "describe_each", lambda *asked, **options: described)
    assert main(["topic", "list", "--json", "-b", broker.bootstrap]) == 0
    listed = {topic["topic"]: topic["records"] for topic in json.loads(capsys.readouterr().out)}
    assert listed == ({"kept": 0} if asked == "topic_names" else {"gone": 0, "kept": 0})


def test_offsets_of_what_has_gone(broker: Broker) -> None:
    places = [("gone", 0), ("kept", 0)]
    with connect(broker.bootstrap, []).open() as client:
        found, failures = cluster.list_offsets(client, dict.fromkeys(places, LATEST))
    assert found == {("kept", 0): 0}
    assert str(failures["gone", 0]).startswith("gone-0: no such topic")
    with pytest.raises(CommandError, match="gone-0: no such topic"):
        cluster.offsets_or_raise((found, failures))
