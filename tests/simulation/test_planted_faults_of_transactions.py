"""Faults of transactions that are planted into the brokers of a cluster. The checks must find each of them."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from simulation_harness.cluster_profiles import PROFILES, Profile
from simulation_harness.lives import check_is_found
from simulation_harness.transaction_odds import Odds
from tidelog.coordinator.decision import Decision, Reply
from tidelog.coordinator.group.core import GroupCore
from tidelog.coordinator.group.offsets import OffsetCommit
from tidelog.coordinator.host import CoordinatorHost
from tidelog.coordinator.loading import Loader
from tidelog.coordinator.marker_writer import MarkerWriter
from tidelog.coordinator.transaction import core as transaction_core
from tidelog.coordinator.transaction.core import TransactionCore
from tidelog.coordinator.transaction.markers import MarkersToWrite
from tidelog.coordinator.transaction.records import Transaction
from tidelog.coordinator.transaction_guard import Question, TransactionGuard
from tidelog.log.partition_log import PartitionLog
from tidelog.log.producer_state import ProducerState
from tidelog.replication.partition import Partition
from tidelog.wire.errors import ApiError, ErrorCode

BROKERS = 3


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def write_the_marker_of_one_partition(patch: pytest.MonkeyPatch) -> None:
    """A transaction counts as complete when the marker of one of its partitions is written."""
    begin = MarkerWriter.begin

    def planted(writer: MarkerWriter, coordinator: Any, markers: MarkersToWrite) -> None:
        begin(writer, coordinator, markers._replace(partitions=markers.partitions[:1]))

    def written(core: TransactionCore, markers: MarkersToWrite, _partitions: Iterable[Any], now: Any) -> Decision:
        entry = core._entries.get(markers.transactional_id)
        return markers_written(core, markers, () if entry is None else list(entry.unwritten), now)

    markers_written = TransactionCore.markers_written
    patch.setattr(MarkerWriter, "begin", planted)
    patch.setattr(TransactionCore, "markers_written", written)


def answer_before_the_decision_is_committed(patch: pytest.MonkeyPatch) -> None:
    """The transaction coordinator answers, and writes markers, before its followers have the decision."""
    is_committed = Partition.is_committed
    topic = "__transaction_state"
    patch.setattr(Partition, "is_committed", lambda part, end: part.topic == topic or is_committed(part, end))


def forget_prepared_transactions(patch: pytest.MonkeyPatch) -> None:
    """A new coordinator does not continue the transactions whose end was decided."""
    patch.setattr(TransactionCore, "loaded", lambda _core, _now: Decision())


def append_without_the_coordinators_consent(patch: pytest.MonkeyPatch) -> None:
    """A leader asks the coordinator, and appends the batch although the coordinator has refused it."""
    ensure = TransactionGuard.ensure

    async def planted(guard: TransactionGuard, question: Question) -> None:
        try:
            await ensure(guard, question)
        except ApiError:
            return

    patch.setattr(TransactionGuard, "ensure", planted)


def keep_the_epoch_of_version_2(patch: pytest.MonkeyPatch) -> None:
    """The end of a transaction of version 2 does not increase the producer's epoch, so late requests count again."""
    end = transaction_core.end

    def planted(state: Transaction | None, producer: Any, **how: Any) -> Transaction | None:
        return end(state, producer, **{**how, "version": 0})

    patch.setattr(transaction_core, "end", planted)


def hide_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    """Consumers with read_committed are not told which transactions were aborted."""
    patch.setattr(PartitionLog, "aborted_transactions", lambda *_: [])


def read_open_transactions(patch: pytest.MonkeyPatch) -> None:
    """The last stable offset is the high watermark."""
    patch.setattr(PartitionLog, "last_stable_offset_below", lambda _log, high_watermark: high_watermark)


def commit_offsets_before_the_marker(patch: pytest.MonkeyPatch, group: str = "") -> None:
    """Offsets of a transaction count as soon as the group's coordinator has them. `group`: only those of this group."""
    commit = GroupCore.commit

    def planted(core: GroupCore, requested: OffsetCommit, *arguments: Any) -> Decision:
        decision = commit(core, requested, *arguments)
        if group in ("", requested.group_id):
            decision.producer = None
        return decision

    patch.setattr(GroupCore, "commit", planted)


def commit_offsets_of_version_1_before_the_marker(patch: pytest.MonkeyPatch) -> None:
    """Only the chain that uses version 1 gets its offsets too early. Late requests may hit many of its transactions."""
    commit_offsets_before_the_marker(patch, "chain-v1")


def coordinate_in_an_old_epoch(patch: pytest.MonkeyPatch) -> None:
    """A broker keeps the state of a coordinator while another broker leads the partition."""
    serve = CoordinatorHost._serve

    def planted(host: CoordinatorHost[Any], partition: Partition) -> None:
        if partition.index not in host._coordinators:
            serve(host, partition)

    patch.setattr(CoordinatorHost, "_serve", planted)


def accept_markers_of_old_epochs(patch: pytest.MonkeyPatch) -> None:
    """A partition appends every marker, also one of an earlier transaction."""
    patch.setattr(ProducerState, "check_marker", lambda *_: None)
    patch.setattr(ProducerState, "check_epoch_of_v2_marker", lambda *_: None)


def commit_after_a_timeout(patch: pytest.MonkeyPatch) -> None:
    """The coordinator confirms the commit of a transaction that it has aborted because of its timeout."""
    end = TransactionCore.end

    def planted(core: TransactionCore, *arguments: Any, commit: bool, reply: Reply, **how: Any) -> Decision:
        def confirm(answer: Any) -> None:
            is_fenced = isinstance(answer, ApiError) and answer.code is ErrorCode.PRODUCER_FENCED
            reply(arguments[1] if commit and is_fenced else answer)

        return end(core, *arguments, commit=commit, reply=confirm, **how)

    patch.setattr(TransactionCore, "end", planted)


def lose_pending_offsets_at_a_load(patch: pytest.MonkeyPatch) -> None:
    """A new coordinator of a group does not know the offsets of open transactions."""

    async def planted(_loader: Loader, _next_offset: int) -> None:
        return

    patch.setattr(Loader, "_replay_open_transactions", planted)


def forget_the_partitions_of_a_transaction(patch: pytest.MonkeyPatch) -> None:
    """The coordinator confirms a partition, and stores it only if the transaction begins with it."""
    add = transaction_core.add_partitions

    def planted(state: Transaction | None, producer: Any, partitions: Iterable[Any], *how: Any) -> Transaction | None:
        after = add(state, producer, partitions, *how)
        return None if state is not None and state.partitions else after

    patch.setattr(transaction_core, "add_partitions", planted)


def accept_offsets_of_old_members(patch: pytest.MonkeyPatch) -> None:
    """A transaction may commit offsets for a member that the group does not have any more (KIP-447)."""
    names_member = OffsetCommit.names_member
    assert isinstance(names_member, property)
    assert names_member.fget is not None
    original = names_member.fget
    planted = property(lambda commit: not commit.is_transactional and original(commit))
    patch.setattr(OffsetCommit, "names_member", planted)


def only(*faults: str, per_minute: float = 60.0, **odds: float) -> Profile:
    """Return the profile with only these faults, with transactional clients alone, and without an administrator."""
    return PROFILES["transactions"]._replace(
        faults=dict.fromkeys(faults, per_minute / len(faults) if faults else 0.0),
        has_administrator=False,
        topic_configs=({},),
        producers=(),
        members=0,
        transactions=Odds(**odds),
    )


READS = "NoAbortedRead|Atomicity|StableReads"
CHAIN = "OffsetsOfTransactions|ExactlyOnceChain"


@pytest.mark.parametrize(
    ("plant", "profile", "invariants"),
    [
        (write_the_marker_of_one_partition, only(), f"{READS}|Liveness"),
        (
            answer_before_the_decision_is_committed,
            only("isolated broker", "kill"),
            f"{READS}|{CHAIN}|OldProducersAreFenced|NoFinalError|Liveness",
        ),
        (forget_prepared_transactions, only("kill"), "Liveness"),
        (append_without_the_coordinators_consent, only(late_requests=0.3, zombie=0.5), f"{READS}|Liveness"),
        (keep_the_epoch_of_version_2, only(late_requests=0.3, abort=0.4), f"{READS}|{CHAIN}|Liveness"),
        (hide_aborted_transactions, only(), "NoAbortedRead"),
        (read_open_transactions, only(), "NoAbortedRead"),
        (commit_offsets_before_the_marker, only(abort=0.4), CHAIN),
        (commit_offsets_of_version_1_before_the_marker, only(late_requests=0.3, abort=0.4), CHAIN),
        (
            coordinate_in_an_old_epoch,
            only("lost session"),
            f"{READS}|{CHAIN}|OldProducersAreFenced|Liveness|NoFinalError",
        ),
        (accept_markers_of_old_epochs, only(late_markers=0.5, abort=0.4), f"{READS}|Liveness"),
        (commit_after_a_timeout, only(pause=0.1), "Atomicity|OldProducersAreFenced"),
        (lose_pending_offsets_at_a_load, only("kill", per_minute=20.0, pending_offsets=0.8), CHAIN),
        (forget_the_partitions_of_a_transaction, only(), f"{READS}|Liveness"),
        (accept_offsets_of_old_members, only(pause=0.3), CHAIN),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    profile: Profile,
    invariants: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_is_found(plant, profile, invariants, monkeypatch, brokers=BROKERS, minutes=0.2)


def test_nothing_is_found_without_a_planted_fault() -> None:
    """The profiles of the planted faults themselves break no promise."""
    from simulation_harness.cluster_life import run_seed

    profile = only("kill", "isolated broker", late_requests=0.3, zombie=0.5, late_markers=0.5, abort=0.4, pause=0.1)
    for seed in (1, 2):
        outcome = run_seed(seed, profile, brokers=BROKERS, minutes=0.2)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}\n{outcome.trace}"
