"""Checks that the suites make with simulated lives: no promise is broken, and a fault that is built in is found."""

from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from process_harness import note, seed_of
from simulation_harness.cluster_life import run_seed
from simulation_harness.cluster_profiles import PROFILES, Profile
from tidelog.replication.partition import Partition

SEEDS_TO_FIND_A_FAULT = 20


def check_lives(
    profile: str, *, brokers: int, seeds: int, minutes: float, events: Iterable[str], every_fault: bool = True
) -> None:
    """Simulate lives that must keep every promise. Each of `events` must happen, and each fault of the profile unless
    there are too few seeds (`every_fault`).
    """
    first = seed_of(f"cluster, {profile}")
    coverage: Counter[str] = Counter()
    for seed in range(first, first + seeds):
        outcome = run_seed(seed, PROFILES[profile], brokers=brokers, minutes=minutes)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}\n{outcome.trace}"
        coverage.update(outcome.coverage)
    note(f"cluster, {profile}: {seeds} seeds, {dict(sorted(coverage.items()))}")
    for event in (*(PROFILES[profile].faults if every_fault else ()), *events):
        assert coverage[event], f"{event} did not happen"


def check_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    profile: Profile,
    invariants: str,
    patch: pytest.MonkeyPatch,
    *,
    brokers: int,
    minutes: float,
) -> None:
    """Plant a fault in the product. One of `invariants`, separated by "|", must report it within 20 seeds."""
    plant(patch)
    for seed in range(1, SEEDS_TO_FIND_A_FAULT + 1):
        outcome = run_seed(seed, profile, brokers=brokers, minutes=minutes)
        if outcome.failure is not None:
            assert outcome.failure.split()[1].rstrip(":") in invariants.split("|"), outcome.failure
            note(f"cluster: {plant.__name__} found by seed {seed}")
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_FAULT} seeds have not found it")


def serve_reads_above_the_high_watermark(patch: pytest.MonkeyPatch, *, on_leaders: bool = True) -> None:
    """Let consumers read all that a replica has. `on_leaders`: also if it leads."""
    read = Partition.read

    def planted(partition: Partition, *arguments: int) -> object:
        real = partition.replica.high_watermark
        if on_leaders or not partition.replica.leads:
            partition.replica.high_watermark = partition.log_end_offset
        try:
            return read(partition, *arguments)
        finally:
            partition.replica.high_watermark = real

    patch.setattr(Partition, "read", planted)
