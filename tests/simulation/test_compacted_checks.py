"""Replicas of compacted topics are compared by the last record of each key."""

import pytest

from simulation_harness.cluster_ledger import Violation
from simulation_harness.compacted_checks import CompactedReplica, compare
from tidelog.model.ids import TopicPartition
from tidelog.wire.records import Record

LATEST = TopicPartition("latest", 0)


def replica(name: str, high_watermark: int, **values: str) -> CompactedReplica:
    """`k7="a=1"` is a record of key a at offset 7; without a value it deletes the key."""
    records = {}
    for offset, text in values.items():
        key, _, value = text.partition("=")
        number = int(offset[1:])
        records[number] = Record(key=key.encode(), value=value.encode() or None, offset=number)
    latest = {bytes(record.key or b""): record for record in records.values()}
    return CompactedReplica(name, high_watermark, records, latest)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (replica("1", 3, k0="a=1", k2="a=2"), replica("2", 3, k2="a=2")),
        (replica("1", 3, k2="a=2"), replica("2", 5, k4="a=4")),
        (replica("1", 3, k2="a="), replica("2", 3)),
        (replica("1", 3, k2="a=2"), replica("2", 6)),
        (replica("1", 4, k1="a=1", k3="a=3"), replica("2", 2, k1="a=1")),
    ],
    ids=["compacted", "later record", "removed deletion", "deleted behind the other's end", "behind"],
)
def test_compaction_at_different_times_is_no_difference(one: CompactedReplica, other: CompactedReplica) -> None:
    compare(LATEST, one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (replica("1", 3, k2="a=2"), replica("2", 3, k2="a=3")),
        (replica("1", 3, k2="a=2"), replica("2", 3)),
        (replica("1", 3, k2="a=2"), replica("2", 3, k0="a=1")),
        (replica("1", 3, k2="a="), replica("2", 3, k0="a=1")),
    ],
    ids=["another record", "a lost key", "an older record", "a deleted key returns"],
)
def test_a_difference_is_found(one: CompactedReplica, other: CompactedReplica) -> None:
    with pytest.raises(Violation, match="SameLatestRecords"):
        compare(LATEST, one, other)


def test_a_replica_that_was_away_for_too_long_may_keep_a_deleted_key() -> None:
    one, other = replica("1", 5, k2="a=2", k4="b=4"), replica("2", 5, k4="b=4")
    asked: list[tuple[bytes, int]] = []

    def may_miss(key: bytes, offset: int) -> bool:
        asked.append((key, offset))
        return True

    compare(LATEST, one, other, may_miss)
    assert asked == [(b"a", 2)]
    with pytest.raises(Violation, match="SameLatestRecords"):
        compare(LATEST, one, replica("2", 5, k0="a=1", k4="b=4"), may_miss)
