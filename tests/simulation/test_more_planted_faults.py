"""More faults that are planted into replicating brokers, and must be found: of reads, checkpoints, and the ISR."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from simulation_harness.cluster_profiles import PROFILES, Profile
from simulation_harness.lives import check_is_found
from tidelog.log.cut import Cut
from tidelog.log.flush import FlushPlan
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.replication.isr import InSyncReplicas

BROKERS = 3
LOSSES = (
    "InSyncReplicasHaveAll|SameCommittedRecords|SameLatestRecords|NoAckedLoss|OneValueForAnOffset|"
    "MonotonicHighWatermark"
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def grow_the_isr_before_the_epochs_start(patch: pytest.MonkeyPatch) -> None:
    """A follower returns into the ISR at the high watermark. That of a new leader may be lower than what the leader
    before it has committed.
    """
    may_join = InSyncReplicas.may_join

    def planted(isr: InSyncReplicas, replica: int, high_watermark: int, _epoch_start: int, *rest: Any) -> bool:
        return may_join(isr, replica, high_watermark, 0, *rest)

    patch.setattr(InSyncReplicas, "may_join", planted)


def forget_the_checkpoint_of_a_cut(patch: pytest.MonkeyPatch) -> None:
    """A cut does not write the leader epochs before the follower fetches again."""
    run = Cut.run

    def planted(cut: Cut) -> None:
        before, cut.epochs.dirty = LeaderEpochs(cut.epochs.entries()), False
        mark = LeaderEpochs.truncate_from_end

        def truncate(epochs: LeaderEpochs, end_offset: int) -> None:
            mark(epochs, end_offset)
            epochs.dirty = False

        LeaderEpochs.truncate_from_end = truncate  # type: ignore[method-assign]
        try:
            run(cut)
        finally:
            LeaderEpochs.truncate_from_end = mark  # type: ignore[method-assign]
        cut.epochs.dirty = cut.epochs.entries() != before.entries()

    patch.setattr(Cut, "run", planted)


def checkpoint_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """The recovery point is stored, and records are counted as durable, without a sync of the records."""
    run = FlushPlan.run

    def planted(plan: FlushPlan, *arguments: Any) -> None:
        plan.segments = []
        run(plan, *arguments)

    patch.setattr(FlushPlan, "run", planted)


def only(*faults: str, name: str, **settings: str) -> Profile:
    """The profile with these faults alone, with changed settings, and without an administrator of the replicas."""
    profile = PROFILES[name]
    return profile._replace(
        faults=dict.fromkeys(faults, 60.0 / len(faults)),
        settings={**profile.settings, **{setting.replace("_", "."): value for setting, value in settings.items()}},
        has_administrator=False,
        topic_configs=({},),
    )


@pytest.mark.parametrize(
    ("plant", "profile", "invariants"),
    [
        (
            grow_the_isr_before_the_epochs_start,
            # A follower that catches up in small steps is often between the two offsets.
            only("isolated broker", "kill", name="replicated", replica_fetch_max_bytes="100"),
            "InSyncReplicasHaveAll",
        ),
        (forget_the_checkpoint_of_a_cut, only("isolated broker", "pause", name="replicated"), "StoredEpochs"),
        (
            checkpoint_before_the_sync,
            only("power cut of all brokers", name="synced"),
            # A broker that finds its log shorter than the recovery point keeps it offline (Liveness).
            f"{LOSSES}|Liveness",
        ),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    profile: Profile,
    invariants: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_is_found(plant, profile, invariants, monkeypatch, brokers=BROKERS, minutes=0.3)
