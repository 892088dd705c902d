"""More faults that are planted into replicating brokers, and must be found: of reads, checkpoints, and the ISR."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from simulation_harness.cluster_profiles import PROFILES, Profile
from simulation_harness.lives import check_is_found
from tidelog.replication.isr import InSyncReplicas

BROKERS = 3
LOSSES = "InSyncReplicasHaveAll|SameCommittedRecords|NoAckedLoss|OneValueForAnOffset|MonotonicHighWatermark"


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

    def planted(isr: InSyncReplicas, replica: int, high_watermark: int, _epoch_start: int, eligible: Any) -> bool:
        return may_join(isr, replica, high_watermark, 0, eligible)

    patch.setattr(InSyncReplicas, "may_join", planted)


def only(*faults: str, name: str) -> Profile:
    """The profile with these faults alone, and without an administrator of the replicas."""
    faults_by_name = dict.fromkeys(faults, 60.0 / len(faults))
    return PROFILES[name]._replace(faults=faults_by_name, has_administrator=False, topic_configs=({},))


@pytest.mark.parametrize(
    ("plant", "profile", "invariants"),
    [
        (
            grow_the_isr_before_the_epochs_start,
            only("isolated broker", "kill", "slow network", name="replicated"),
            "InSyncReplicasHaveAll",
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
