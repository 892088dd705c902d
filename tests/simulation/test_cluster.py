"""Lives of a simulated cluster: they keep every promise, they repeat, and faults that are planted are found."""

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from process_harness import amount, note, seed_of
from simulation_harness.cluster_faults import PROFILES, Profile
from simulation_harness.cluster_life import run_seed
from tidelog.log.producer_state import ProducerState
from tidelog.replication.partition import Partition

SEEDS = amount(20, 100)
MINUTES = amount(15, 60) / 60
SEEDS_TO_FIND_A_FAULT = 20

TESTS = Path(__file__).parents[1]
REPEAT = """
from simulation_harness.cluster_faults import PROFILES
from simulation_harness.cluster_life import run_seed
print(run_seed(7, PROFILES["process"], brokers=1, minutes=0.1).trace_crc)
"""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("profile", ["process", "power"])
def test_every_promise_is_kept(profile: str) -> None:
    first = seed_of(f"cluster, {profile}")
    coverage: Counter[str] = Counter()
    for seed in range(first, first + SEEDS):
        outcome = run_seed(seed, PROFILES[profile], brokers=1, minutes=MINUTES)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        coverage.update(outcome.coverage)
    note(f"cluster, {profile}: {SEEDS} seeds, {dict(sorted(coverage.items()))}")
    for event in (*PROFILES[profile].faults, "retries", "commits", "commits read"):
        assert coverage[event], f"{event} did not happen"


def test_a_seed_repeats_in_another_process() -> None:
    def trace_crc(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(TESTS), "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", REPEAT], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert trace_crc("1") == trace_crc("2")


def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    configure = Partition.configure

    def planted(partition: Partition, config: object) -> None:
        configure(partition, config)  # type: ignore[arg-type]
        partition._durable = False

    patch.setattr(Partition, "configure", planted)


def serve_reads_above_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    read = Partition.read

    def planted(partition: Partition, *arguments: int) -> object:
        real = partition.replica.high_watermark
        partition.replica.high_watermark = partition.log_end_offset
        try:
            return read(partition, *arguments)
        finally:
            partition.replica.high_watermark = real

    patch.setattr(Partition, "read", planted)


def append_a_repeated_batch_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerState, "check", lambda *_: None)


def commit_offsets_before_their_append(patch: pytest.MonkeyPatch) -> None:
    is_committed = Partition.is_committed
    patch.setattr(Partition, "is_committed", lambda partition, end: partition.internal or is_committed(partition, end))


def only(profile: str, *faults: str) -> Profile:
    """The profile with these faults alone, which come one behind the other."""
    return PROFILES[profile]._replace(faults=dict.fromkeys(faults, 60.0))


@pytest.mark.parametrize(
    ("plant", "profile", "invariants"),
    [
        (
            acknowledge_before_the_sync,
            only("power", "power cut behind records"),
            "NoAckedLoss|OneValueForAnOffset|NoFinalError",
        ),
        (serve_reads_above_the_high_watermark, PROFILES["power"], "NotAboveHighWatermark"),
        (append_a_repeated_batch_again, only("process", "one-way cut"), "InOrderOnce"),
        (commit_offsets_before_their_append, only("power", "power cut behind a commit"), "CommitsStay"),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    profile: Profile,
    invariants: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    for seed in range(1, SEEDS_TO_FIND_A_FAULT + 1):
        outcome = run_seed(seed, profile, brokers=1, minutes=0.25)
        if outcome.failure is not None:
            assert outcome.failure.split()[1].rstrip(":") in invariants.split("|"), outcome.failure
            note(f"cluster: {plant.__name__} found by seed {seed}")
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_FAULT} seeds have not found it")
