"""Power is cut after every write and sync of random histories: acknowledged records survive, as promised."""

from collections.abc import Iterator

import pytest

from process_harness import amount, note, seed_of
from simulation_harness.histories import run_history

SEEDS = amount(6, 30)
STEPS = amount(12, 25)
SHARES = amount(6, 1)
"""In the short test run, the power is cut after every sixth operation of the disk, and each history begins with a
different operation. In the full run, the power is cut after every operation."""


class Cuts:
    def __init__(self) -> None:
        self.first_seed = seed_of("power cuts")
        self.made = {"fsync": 0, "interval": 0}

    def run(self, seed: int, window_s: float, **settings: object) -> None:
        chosen = self.first_seed + seed
        made = run_history(chosen, STEPS, lambda number: number % SHARES == seed % SHARES, window_s, **settings)
        assert made > 15
        self.made[str(settings["durability"])] += made


@pytest.fixture(scope="module")
def cuts() -> Iterator[Cuts]:
    counted = Cuts()
    yield counted
    note(f"power cuts: {counted.made['fsync']} with durability=fsync, {counted.made['interval']} by default")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_with_durability_fsync_nothing_acknowledged_is_missing(cuts: Cuts, seed: int) -> None:
    cuts.run(seed, 0.0, durability="fsync")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_by_default_nothing_older_than_the_window_is_missing(cuts: Cuts, seed: int) -> None:
    cuts.run(seed, 0.5, durability="interval", durability_interval_ms=250)


def test_a_broker_that_promises_too_much_is_found_out() -> None:
    """A sync once in a minute does not fulfil the promise of `durability=fsync`."""
    with pytest.raises(AssertionError, match=r"NoAckedLoss|MonotonicHighWatermark|CommitsStay") as failure:
        run_history(1, STEPS, lambda number: number % 5 == 0, 0.0, durability="interval", durability_interval_ms=60_000)
    assert any("seed=1" in line for line in failure.value.__notes__)
    assert any("power cut at" in line for line in failure.value.__notes__)
