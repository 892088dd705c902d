"""Lives of three brokers that lose their disks, one at a time: no promise is broken, and a planted fault is found."""

import logging
from collections.abc import Iterator

import pytest

from process_harness import amount
from simulation_harness.cluster_profiles import PROFILES
from simulation_harness.lives import check_is_found, check_lives
from tidelog.metadata import registration

BROKERS = 3
MINUTES = amount(18, 60) / 60
SEEDS = amount(10, 60)
"""At least the number of kinds of faults of the profile."""
LOSSES = "InSyncReplicasHaveAll|SameCommittedRecords|NoAckedLoss|OneValueForAnOffset|CommitsStay|NothingDeletedUnasked"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_nothing_is_lost_with_a_disk() -> None:
    check_lives("disks", brokers=BROKERS, seeds=SEEDS, minutes=MINUTES, events=("elections",))


def stay_in_sync_without_the_disk(patch: pytest.MonkeyPatch) -> None:
    """A broker that returns with an empty directory keeps its place in ISR and ELR."""
    remove_broker = registration.remove_broker

    def planted(*arguments: object, **_options: object) -> object:
        return remove_broker(*arguments)  # type: ignore[arg-type]

    patch.setattr(registration, "_has_acknowledged_records", lambda *_: True)
    patch.setattr(registration, "remove_broker", planted)


def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # While one replica is out of sync, nothing is committed, so it stays eligible. It fetches in small steps.
    settings = {**PROFILES["disks"].settings, "min.insync.replicas": "3", "replica.fetch.max.bytes": "100"}
    profile = PROFILES["disks"]._replace(
        settings=settings, faults={"lost disk": 20.0, "kill": 20.0}, has_administrator=False, topic_configs=({},)
    )
    check_is_found(stay_in_sync_without_the_disk, profile, LOSSES, monkeypatch, brokers=BROKERS, minutes=0.3)
