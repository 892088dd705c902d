"""Power is cut after every write and sync of random histories: what was acknowledged is there, as promised."""

import pytest

from simulation_harness.histories import run_history

SEEDS = 6
STEPS = 10


@pytest.mark.parametrize("seed", range(SEEDS))
def test_with_durability_fsync_nothing_acknowledged_is_missing(seed: int) -> None:
    # Each seed takes its share of the steps, another one in each history.
    cuts = run_history(seed, STEPS, lambda number: number % SEEDS == seed, 0.0, durability="fsync")
    assert cuts > 20


@pytest.mark.parametrize("seed", range(SEEDS))
def test_by_default_nothing_older_than_the_window_is_missing(seed: int) -> None:
    window = {"durability": "interval", "durability_interval_ms": 250}
    cuts = run_history(seed, STEPS, lambda number: number % SEEDS == seed, 0.5, **window)
    assert cuts > 15
