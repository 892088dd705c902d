"""The option `groupId`: a query's offsets are committed to a group, and this never makes the query fail."""

import json
import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.group_offsets import PAUSE_AFTER_FAILURE_S, GroupOffsets
from pyspark_tidelog.lookup import Lookup
from pyspark_tidelog.options import read_options
from pyspark_tidelog.stream_reader import TidelogStreamReader
from tidelog.client.errors import ClientError, GaveUp
from tidelog.client.groups import Group, GroupListing, ListedGroup, Member
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import ApiError, ErrorCode

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Coordinator:
    """Records commits; fails as it is told."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self.members: list[Member] | None = None
        self.error: Exception | None = None
        self.partition_error: ApiError | None = None
        self.is_closed = False

    def list_groups(self) -> GroupListing:
        self._fail()
        return GroupListing([] if self.members is None else [ListedGroup("g", "consumer", "", "Consumer")], {})

    def describe_groups(self, listed: Sequence[ListedGroup]) -> dict[str, Any]:
        assert self.members is not None
        return {"g": Group("g", "Stable", "Consumer", "consumer", "", 1, self.members)}

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        self._fail()
        assert group_id == "g"
        if self.partition_error:
            return dict.fromkeys(offsets, self.partition_error)
        self.commits.append(dict(offsets))
        return dict(offsets)

    def close(self) -> None:
        self.is_closed = True

    def _fail(self) -> None:
        if self.error:
            raise self.error


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def offsets_of_group(coordinator: Coordinator, clock: Callable[[], float] | None = None) -> GroupOffsets:
    return GroupOffsets("g", lambda: coordinator, clock or Clock())


def test_only_changed_offsets_are_committed() -> None:
    coordinator = Coordinator()
    group = offsets_of_group(coordinator)
    group.commit({})
    for offsets in ({P0: 1, P1: 5}, {P0: 1, P1: 5}, {P0: 2, P1: 5}):
        group.commit(offsets)
    assert coordinator.commits == [{P0: 1, P1: 5}, {P0: 2}]
    group.close()
    assert coordinator.is_closed


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        ({"error": GaveUp("no coordinator")}, "no coordinator"),
        ({"error": ApiError("denied")}, "denied"),
        ({"partition_error": ApiError("too large", ErrorCode.OFFSET_METADATA_TOO_LARGE)}, "t-0: too large"),
        (
            {"partition_error": ApiError("x", ErrorCode.UNKNOWN_MEMBER_ID)},
            "has members: choose a group that no consumer",
        ),
    ],
)
def test_a_failed_commit_warns_and_is_tried_again_after_a_pause(
    fail: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator, clock = Coordinator(), Clock()
    group = offsets_of_group(coordinator, clock)
    vars(coordinator).update(fail)
    with caplog.at_level(logging.WARNING):
        group.commit({P0: 1})
        group.commit({P0: 2})
    [warning] = caplog.messages
    assert "group_commit_failed group=g" in warning
    assert reason in warning
    vars(coordinator).update(dict.fromkeys(fail))
    group.commit({P0: 3})
    assert coordinator.commits == []
    clock.now = PAUSE_AFTER_FAILURE_S
    group.commit({P0: 3})
    assert coordinator.commits == [{P0: 3}]


def test_a_group_with_members_is_refused() -> None:
    coordinator = Coordinator()
    offsets_of_group(coordinator).refuse_members()
    coordinator.members = []
    offsets_of_group(coordinator).refuse_members()
    coordinator.members = [Member("m", None, "c", "h", [])]
    with pytest.raises(OptionError, match="option groupId: the group g has 1 member: choose a group that no consumer"):
        offsets_of_group(coordinator).refuse_members()


def test_a_group_that_cannot_be_described_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    coordinator, clock = Coordinator(), Clock()
    coordinator.error = ClientError("unreachable")
    group = offsets_of_group(coordinator, clock)
    with caplog.at_level(logging.WARNING):
        group.refuse_members()
    [warning] = caplog.messages
    assert warning.startswith("group_not_described group=g")
    assert "unreachable" in warning
    coordinator.error = None
    coordinator.members = [Member("m", None, "c", "h", [])]
    group.refuse_members()
    clock.now = PAUSE_AFTER_FAILURE_S
    with pytest.raises(OptionError, match="has 1 member"):
        group.refuse_members()
    coordinator.members = []
    group.refuse_members()
    coordinator.members = [Member("m", None, "c", "h", [])]
    group.refuse_members()


def test_a_query_commits_what_it_has_processed_and_also_its_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "startingOffsets": "earliest", "groupId": "g"}
    reader = TidelogStreamReader(read_options(given, streaming=True), ("value",))
    assert pickle.loads(pickle.dumps(reader))._group is not None
    coordinator = Coordinator()
    reader._group = offsets_of_group(coordinator)

    class OneTopic(Lookup):
        def __init__(self) -> None:
            self.topic_ids = {}

        def partitions(self) -> list[TopicPartition]:
            return [P0, P1]

        def earliest(self, partitions: Any) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, 0)

        def latest(self, partitions: Any) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, 10)

        def resolve(self, option: str, bound: Any, partitions: Any) -> dict[TopicPartition, int]:
            return self.earliest(partitions)

    lookup = OneTopic()
    monkeypatch.setattr(reader, "_lookup", lambda: lookup)
    reader.prepareForTriggerAvailableNow()
    end = json.loads(json.dumps(reader.latestOffset(reader.initialOffset(), ReadAllAvailable())))
    assert coordinator.commits == []
    # Spark does not call `commit` for the last micro-batch, but asks for the next one.
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert coordinator.commits == [{P0: 10, P1: 10}]
    reader.commit(end)
    assert len(coordinator.commits) == 1
    reader.stop()
    assert coordinator.is_closed


def test_a_batch_read_accepts_the_option_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "groupId": "g"}
    with caplog.at_level(logging.WARNING):
        read_options(given, streaming=False)
    assert "option groupId has no effect" in caplog.text
    with pytest.raises(OptionError, match="option groupId is required, but it is empty"):
        read_options(given | {"groupId": ""}, streaming=True)
