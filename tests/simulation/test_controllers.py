"""Lives of the metadata of several brokers: every answer is true, lives repeat, and planted faults are found."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from process_harness import amount, note, seed_of
from simulation_harness.controller_life import run_life
from tidelog.metadata.leadership import HeldLease, SentEntry
from tidelog.metadata.local_controller import LocalController
from tidelog.metadata.store import StoreUnavailable

SEEDS = amount(15, 150)
SEEDS_TO_FIND_A_FAULT = 20


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("nodes", [2, 3])
def test_every_answer_is_true(nodes: int) -> None:
    first = seed_of(f"controllers, {nodes}")
    coverage: Counter[str] = Counter()
    for seed in range(first, first + SEEDS):
        outcome = run_life(seed, nodes=nodes, minutes=1)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        coverage.update(outcome.coverage)
    note(f"controllers, {nodes} nodes: {SEEDS} seeds, {dict(sorted(coverage.items()))}")
    assert coverage["claims"] > 3 * SEEDS
    for event in ("kill", "pause", "append without answer", "create: NONE", "validate: NONE", "delete: NONE"):
        assert coverage[event], f"{event} did not happen"


def test_a_seed_repeats() -> None:
    assert run_life(7, nodes=3, minutes=0.5) == run_life(7, nodes=3, minutes=0.5)


def go_on_after_the_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldLease, "check", lambda lease: None)
    patch.setattr(HeldLease, "is_valid", property(lambda lease: True))


def forget_to_read_back(patch: pytest.MonkeyPatch) -> None:
    """Answer a lost append as if it had changed nothing."""

    async def planted(lease: HeldLease, entry: SentEntry, data: bytes) -> None:
        raise StoreUnavailable("the answer is lost")

    patch.setattr(HeldLease, "_settle", planted)


def believe_that_a_lost_append_is_done(patch: pytest.MonkeyPatch) -> None:
    async def planted(lease: HeldLease, entry: SentEntry, data: bytes) -> None:
        return

    patch.setattr(HeldLease, "_settle", planted)


def answer_before_the_outcome_is_known(patch: pytest.MonkeyPatch) -> None:
    async def planted(controller: LocalController, pending: object) -> int:
        return 0

    patch.setattr(LocalController, "_wait_for_outcome", planted)


@pytest.mark.parametrize(
    "plant",
    [
        go_on_after_the_lease,
        forget_to_read_back,
        believe_that_a_lost_append_is_done,
        answer_before_the_outcome_is_known,
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(1, SEEDS_TO_FIND_A_FAULT + 1):
        outcome = run_life(seed, nodes=3, minutes=1)
        if outcome.failure is not None:
            note(f"controllers: {plant.__name__} found by seed {seed}: {outcome.failure.splitlines()[0]}")
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_FAULT} seeds have not found it")
