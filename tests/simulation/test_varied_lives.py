"""Lives of three brokers whose topics change: records are deleted, settings altered, partitions added, topics created
again, compacted, or led out of the ISR, and consumers read from followers. They keep every promise, and planted faults
are found.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from process_harness import amount
from simulation_harness.cluster_profiles import PROFILES, Profile
from simulation_harness.lives import check_is_found, check_lives, serve_reads_above_the_high_watermark
from tidelog.log.cleaner.offset_map import OffsetMap
from tidelog.log.partition_log import PartitionLog
from tidelog.metadata import elections
from tidelog.replication.partitions import Partitions

BROKERS = 3
MINUTES = amount(18, 60) / 60
VARIED_SEEDS, UNCLEAN_SEEDS = amount(28, 100), amount(8, 60)
"""At least the number of kinds of faults of each profile."""
VARIED_EVENTS = (
    "added partitions",
    "altered settings",
    "consumers sent to followers",
    "deletions of records",
    "elections",
    "keys compared",
    "late writes to deleted topics",
    "reads of deleted records",
    "records of the compacted topic",
    "records read from followers",
    "topics created again",
)
UNCLEAN_EVENTS = ("elections", "unclean elections", "records of the unclean topic")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_promise_is_kept_while_topics_change() -> None:
    check_lives("varied", brokers=BROKERS, seeds=VARIED_SEEDS, minutes=MINUTES, events=VARIED_EVENTS)


def test_unclean_elections_lose_only_what_the_new_leader_lacks() -> None:
    check_lives("unclean", brokers=BROKERS, seeds=UNCLEAN_SEEDS, minutes=MINUTES, events=UNCLEAN_EVENTS)


def show_uncommitted_records_of_followers(patch: pytest.MonkeyPatch) -> None:
    """A follower shows consumers all that it has."""
    serve_reads_above_the_high_watermark(patch, on_leaders=False)


def delete_more_than_was_asked(patch: pytest.MonkeyPatch) -> None:
    """DeleteRecords also deletes the three records behind the offset in the request."""
    delete_before = PartitionLog.delete_before

    def planted(log: PartitionLog, offset: int) -> int:
        return delete_before(log, min(offset + 3, log.log_end_offset) if offset else offset)

    patch.setattr(PartitionLog, "delete_before", planted)


def write_to_topics_of_the_same_name(patch: pytest.MonkeyPatch) -> None:
    """A request that names a deleted topic writes to the new topic of its name."""
    topic_name = Partitions.topic_name
    names: dict[bytes, str] = {}

    def planted(partitions: Partitions, topic_id: bytes) -> str:
        if topic_id not in names:
            names[topic_id] = topic_name(partitions, topic_id)
        return names[topic_id]

    patch.setattr(Partitions, "topic_name", planted)


def compact_the_last_record_of_a_key(patch: pytest.MonkeyPatch) -> None:
    """Compaction removes also the last record of one key."""
    last_offset_of = OffsetMap.last_offset_of

    def planted(offsets: OffsetMap, key: bytes) -> int:
        return 1 << 60 if key == b"a" else last_offset_of(offsets, key)

    patch.setattr(OffsetMap, "last_offset_of", planted)


def elect_out_of_the_isr_too_early(patch: pytest.MonkeyPatch) -> None:
    """With `unclean.leader.election.enable`, any living replica leads, although one that is in sync is alive."""
    elect = elections._elect

    def planted(state: Any, replicas: Any, isr: Any, elr: Any, rules: Any, *rest: Any) -> tuple[int, bool]:
        if rules.allows_unclean:
            return elect(state, tuple(reversed(replicas)), (), (), rules, *rest)
        return elect(state, replicas, isr, elr, rules, *rest)

    patch.setattr(elections, "_elect", planted)


def only(*faults: str, name: str = "varied") -> Profile:
    """The profile with these faults alone."""
    return PROFILES[name]._replace(faults=dict.fromkeys(faults, 60.0 / len(faults)), has_administrator=False)


@pytest.mark.parametrize(
    ("plant", "profile", "invariants"),
    [
        (show_uncommitted_records_of_followers, only("slow network"), "NotAboveHighWatermark"),
        (delete_more_than_was_asked, only("reset"), "NothingDeletedUnasked|HighWatermarkWithinLog"),
        (write_to_topics_of_the_same_name, only("reset"), "NoOldRecords"),
        (compact_the_last_record_of_a_key, only("pause"), "LatestValueStays|SameLatestRecords"),
        (elect_out_of_the_isr_too_early, only("kill", "lost session", name="unclean"), "CleanElections"),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    profile: Profile,
    invariants: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_is_found(plant, profile, invariants, monkeypatch, brokers=BROKERS, minutes=0.3)
