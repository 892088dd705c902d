"""One failed item does not hide the others: the rest is shown, the failure is marked, and the exit code is 1 only if
an item requested by name failed.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli_harness import Answer, AnsweringBroker, answering, tidelog
from tidelog.cli.cluster import KnownOffsets, Offsets, PartitionState, TopicState
from tidelog.cli.main import main
from tidelog.cli.topic import records_text
from tidelog.runtime.disk import LocalDisk
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.message import Message
from tidelog.wire.messages.describe_configs import DescribeConfigsResponse, DescribeConfigsResult
from tidelog.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsResponse
from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsResult as LogDir
from tidelog.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from tidelog.wire.messages.list_groups import ListedGroup, ListGroupsResponse
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

TOPICS = {"far": 2, "near": 1}
"""By name, the broker that leads the only partition. The second broker cannot be reached."""
STATES = {"gone": "Dead", "odd": "Stable", "refused": "Empty", "sound": "Empty"}
"""Groups, all kept by the first broker."""


def metadata(broker: AnsweringBroker, unreachable: int) -> Answer:
    def answer(request: Any) -> Message:
        names = sorted(TOPICS) if request.topics is None else [topic.name for topic in request.topics]
        topics = []
        for name in names:
            code = 0 if name in TOPICS else {"secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED}.get(name, 3)
            parts = [MetadataResponsePartition(0, 0, TOPICS[name], 0, [1], [1])] if name in TOPICS else []
            topics.append(
                MetadataResponseTopic(code, name, bytes([len(name)] * 16) if parts else bytes(16), False, parts)
            )
        brokers = [
            MetadataResponseBroker(1, broker.host, broker.port),
            MetadataResponseBroker(2, broker.host, unreachable),
        ]
        return MetadataResponse(brokers=brokers, topics=topics, controller_id=1)

    return answer


def describe_groups(request: Any) -> Message:
    member = DescribedGroupMember("m", None, "client", "/host", b"", b"\0\0odd\0\0\0\1")
    return DescribeGroupsResponse(
        groups=[
            DescribedGroup(0, None, name, STATES[name], "consumer", "", [member] * (name == "odd"))
            for name in request.groups
        ]
    )


def fetch_offsets(request: Any) -> Message:
    parts = [OffsetFetchResponsePartitions(0, 3), OffsetFetchResponsePartitions(1, -1, error_code=29)]
    sound = [OffsetFetchResponseTopics("near", partitions=parts)]
    return OffsetFetchResponse(
        groups=[
            OffsetFetchResponseGroup(group.group_id, sound if group.group_id == "sound" else [], error)
            for group in request.groups
            for error in [ErrorCode.GROUP_AUTHORIZATION_FAILED if group.group_id == "refused" else 0]
        ]
    )


def list_offsets(request: Any) -> Message:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                topic.name,
                [
                    ListOffsetsPartitionResponse(part.partition_index, offset=0 if part.timestamp == -2 else 10)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def describe_settings(request: Any) -> Message:
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not yours", 2, each.resource_name)
            for each in request.resources
        ]
    )


@contextmanager
def half_a_cluster(**changes: Answer) -> Iterator[str]:
    """Two brokers of which one cannot be reached; yields the other's address. `changes` has other answers."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        unreachable = taken.getsockname()[1]
    answers: dict[str, Answer] = {
        "Metadata": lambda request: metadata(broker, unreachable)(request),
        "ListGroups": lambda _: ListGroupsResponse(
            groups=[ListedGroup(name, "consumer", state, "classic") for name, state in STATES.items()]
        ),
        "FindCoordinator": lambda request: FindCoordinatorResponse(
            coordinators=[Coordinator(key, 1, broker.host, broker.port) for key in request.coordinator_keys]
        ),
        "DescribeGroups": describe_groups,
        "OffsetFetch": fetch_offsets,
        "ListOffsets": list_offsets,
        "DescribeConfigs": describe_settings,
        "DescribeLogDirs": lambda _: DescribeLogDirsResponse(
            results=[LogDir(0, "/disk1", []), LogDir(ErrorCode.KAFKA_STORAGE_ERROR, "/disk2", [])]
        ),
        **changes,
    }
    with answering(answers, {"OffsetFetch": 9}) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def where() -> Iterator[tuple[str, str]]:
    with half_a_cluster() as bootstrap:
        yield "--bootstrap", bootstrap


Where = tuple[str, str]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


def test_groups_are_listed_as_far_as_they_are_known(where: Where) -> None:
    ran = tidelog("group", "list", *where)
    assert [row[:4] for row in rows(ran.text)] == [
        ["odd", "stable", "1", "-"],
        ["refused", "empty", "0", "-"],
        ["sound", "empty", "0", "7+"],
    ]
    assert "1 assignment cannot be decoded" in ran.text
    assert "GROUP_AUTHORIZATION_FAILED" in ran.text
    for note in ("did not list its groups", "group odd, member m: ", "group sound, near-1: "):
        assert note in ran.errors
    problems = {group["group"]: group["problem"] for group in tidelog("group", "list", "--json", *where).json()}
    assert problems["sound"] is None
    assert "GROUP_AUTHORIZATION_FAILED" in problems["refused"]
    assert tidelog("group", "list", "--names", *where).text.split() == sorted(STATES)


def test_it_is_not_said_that_there_are_no_groups_while_a_broker_does_not_answer() -> None:
    """The other broker may keep groups."""
    with half_a_cluster(ListGroups=lambda _: ListGroupsResponse()) as bootstrap:
        for command in ("list", "lag"):
            ran = tidelog("group", command, "--bootstrap", bootstrap)
            assert ran.text == ""
            assert ran.errors.startswith("Note: broker 127.0.0.1:")
            assert ran.errors.count("\n") == 1


LAGS = [["sound", "near", "0", "3", "10", "7", "-"], ["sound", "near", "1", "-", "-", "-", "-"]]


def test_lag_of_what_can_be_read(where: Where) -> None:
    ran = tidelog("group", "lag", *where)
    assert rows(ran.text) == LAGS
    assert "group refused: GROUP_AUTHORIZATION_FAILED" in ran.errors


def test_groups_by_name_of_which_some_fail(where: Where) -> None:
    ran = tidelog("group", "describe", "gone", "sound", "soun", "odd", *where, code=1)
    assert "sound  state empty" in ran.text
    assert "odd  state stable" in ran.text
    assert "no such group: soun; did you mean sound?" in ran.errors
    assert "group gone does not exist any more" in ran.errors
    ran = tidelog("group", "lag", "refused", "sound", "gone", *where, code=1)
    assert rows(ran.text) == LAGS
    assert "Error: " in ran.errors
    assert "group refused: GROUP_AUTHORIZATION_FAILED" in ran.errors
    assert "group gone does not exist any more" in ran.errors


def test_topics_whose_leader_cannot_be_reached(where: Where) -> None:
    ran = tidelog("topic", "list", *where)
    assert rows(ran.text) == [["far", "1", "1", "0+"], ["near", "1", "1", "10"]]
    assert ran.errors.startswith("Note: far-0: no answer from the cluster (broker ")
    counts = {
        topic["topic"]: topic["partitions_without_offsets"]
        for topic in tidelog("topic", "list", "--json", *where).json()
    }
    assert counts == {"far": 1, "near": 0}


def test_topics_by_name_of_which_some_fail(where: Where) -> None:
    ran = tidelog("topic", "describe", "near", "missing", "secret", *where, code=1)
    assert "near  topic ID " in ran.text
    assert "The settings of this topic cannot be read." in ran.text
    for reason in ("no such topic: missing", "topic secret: TOPIC_AUTHORIZATION_FAILED", "topic near: not yours"):
        assert reason in ran.errors
    [near] = tidelog("topic", "describe", "near", "missing", "--json", *where, code=1).json()
    assert (near["topic"], near["settings"], near["partitions"][0]["next_offset"]) == ("near", None, 10)


def test_directories_of_the_brokers_that_answer(where: Where) -> None:
    ran = tidelog("log", "dirs", *where)
    assert [row[:3] for row in rows(ran.text)] == [["1", "/disk1", "in"], ["1", "/disk2", "out"], ["2", "?", "no"]]
    assert "Note: broker 2 does not show its directories: " in ran.errors
    assert [each["path"] for each in tidelog("log", "dirs", "--json", *where).json()] == ["/disk1", "/disk2", None]
    assert "broker 2 does not show" in tidelog("log", "dirs", "--broker", "2", *where, code=1).errors
    ran = tidelog("log", "dirs", "--topic", "near", *where, code=1)
    assert "no directory has a partition of near" in ran.errors
    assert "broker 2 does not show" in ran.errors


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_a_directory_that_may_not_be_read(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(data=tmp_path / "data") as broker:
        for topic in ("open", "closed"):
            tidelog("produce", topic, "-b", broker.bootstrap, stdin=b"x\n")
    refuse(monkeypatch, lambda path: path.endswith("closed-0"))
    ran = tidelog("log", command, str(tmp_path / "data"), code=1)
    assert "closed-0" in ran.text
    assert "it cannot be read: Permission denied" in ran.text
    assert "open-0" in ran.text or "1 record: 1 defect" in ran.text
    closed, opened = str(tmp_path / "data" / "closed-0"), str(tmp_path / "data" / "open-0")
    ran = tidelog("log", command, closed, opened, code=1)
    assert "closed-0: Permission denied" in ran.errors
    assert "1 record: no damage" in ran.text or "open-0/00000000000000000000.log:" in ran.text


def refuse(monkeypatch: pytest.MonkeyPatch, which: Callable[[str], bool]) -> None:
    """The disk denies to list these directories: a test that runs as root is denied nothing by the system."""
    listed = LocalDisk.list

    def denied(disk: LocalDisk, path: str) -> list[str]:
        if which(path):
            raise PermissionError(13, "Permission denied", path)
        return listed(disk, path)

    monkeypatch.setattr(LocalDisk, "list", denied)


def test_an_internal_topic_is_deleted_or_changed_only_if_that_is_said() -> None:
    with Broker(settings={"offsets.topic.num.partitions": "2"}) as broker:
        where = ("--bootstrap", broker.bootstrap)
        offsets = "__consumer_offsets"
        tidelog("topic", "create", "a", *where)
        tidelog("group", "reset-offsets", "billing", "--topic", "a", "--to-earliest", "--execute", *where)
        ran = tidelog("topic", "delete", "a", offsets, "--yes", *where, code=2)
        assert (
            "is internal and contains the committed offsets of every consumer group: nothing was deleted;" in ran.errors
        )
        assert "--internal" in ran.errors
        assert tidelog("topic", "list", "--internal", "--names", *where).text.split() == [offsets, "a"]
        assert tidelog("group", "lag", "billing", *where, "--json").json()[0]["committed"] == 0
        ran = tidelog("topic", "add-partitions", offsets, "5", *where, code=2)
        assert "brokers would not find most of this state; nothing was changed; --internal" in ran.errors
        assert len(tidelog("topic", "describe", offsets, "--json", *where).json()[0]["partitions"]) == 2
        ran = tidelog("topic", "add-partitions", offsets, "5", "--internal", *where)
        assert ran.text == "Topic __consumer_offsets now has 5 partitions (it had 2).\n"
        ran = tidelog("topic", "delete", offsets, "--internal", *where, code=2)
        assert "add --yes to delete" in ran.errors, "stdin is no terminal"
        ran = tidelog("topic", "delete", offsets, "--internal", "--yes", *where)
        assert ran.text == "Deleted topic __consumer_offsets.\n"


def test_deleting_what_can_be_deleted() -> None:
    with Broker() as broker:
        where = ("--bootstrap", broker.bootstrap)
        for topic in ("a", "b"):
            tidelog("topic", "create", topic, *where)
            tidelog("group", "reset-offsets", f"g{topic}", "--topic", topic, "--to-earliest", "--execute", *where)
        ran = tidelog("group", "delete", "ga", "none", "gb", "--yes", "--json", *where, code=1)
        assert {each["group"]: each["deleted"] for each in ran.json()} == {"ga": True, "gb": True, "none": False}
        assert "no such group: none" in ran.errors
        ran = tidelog("topic", "delete", "a", "none", "b", "--yes", *where, code=1)
        assert ran.text == "Deleted topic a.\nDeleted topic b.\n"
        assert main(["topic", "list", *where]) == 0


def test_partitions_that_cannot_be_read_are_not_empty_when_a_topic_is_deleted() -> None:
    partitions = [PartitionState(number, 1, [1], [1]) for number in range(3)]
    topic = TopicState("orders", "", False, partitions)
    known = {("orders", number): Offsets(0, 5) for number in range(3)}
    assert records_text(topic, KnownOffsets(known, {})) == "15 records"
    del known["orders", 1]
    assert records_text(topic, KnownOffsets(known, {})) == "at least 10 records (1 partition cannot be read)"
