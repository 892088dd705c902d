"""Lives of three brokers with transactional clients of both versions keep every promise."""

import logging
from collections.abc import Iterator

import pytest

from process_harness import amount
from simulation_harness.cluster_life import run_seed
from simulation_harness.cluster_profiles import PROFILES
from simulation_harness.lives import check_lives
from simulation_harness.transaction_odds import Odds

BROKERS = 3
MINUTES = amount(15, 60) / 60
SEEDS = amount(4, 60)
SEEDS_OF_OTHER_FAULTS = amount(5, 60)
"""The fifth life of `transactions-synced` begins with a power cut of all brokers."""
EVENTS = (
    "markers that arrive late",
    "offsets of transactions read",
    "records of chains of version 1",
    "records of chains of version 2",
    "records of transactions read",
    "transactions aborted by their client",
    "transactions committed",
    "transactions of lists",
    "transactions of version 1",
    "transactions of version 2",
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_promise_of_transactions_is_kept() -> None:
    check_lives(
        "transactions", brokers=BROKERS, seeds=SEEDS, minutes=MINUTES, events=EVENTS, every_fault=amount(False, True)
    )


@pytest.mark.parametrize(
    ("profile", "fault"), [("transactions-synced", "power cut of all brokers"), ("transactions-disks", "lost disk")]
)
def test_transactions_survive_the_loss_of_all_power_and_of_disks(profile: str, fault: str) -> None:
    check_lives(
        profile,
        brokers=BROKERS,
        seeds=SEEDS_OF_OTHER_FAULTS,
        minutes=MINUTES,
        events=(fault, *EVENTS),
        every_fault=amount(False, True),
    )


def test_without_faults_no_transaction_is_refused() -> None:
    """The first batches of a transaction often arrive while the markers of the one before it are written."""
    quiet_clients = Odds(late_requests=0, late_markers=0, crash=0, zombie=0, abort=0, pause=0)
    profile = PROFILES["transactions"]._replace(
        faults={}, has_administrator=False, producers=(), members=0, topic_configs=({},), transactions=quiet_clients
    )
    for seed in (1, 2):
        outcome = run_seed(seed, profile, brokers=BROKERS, minutes=0.2)
        assert outcome.failure is None, outcome.failure
        assert outcome.coverage["transactions committed"] > 50
        assert [event for event in outcome.coverage if event.startswith("transactions refused")] == []
