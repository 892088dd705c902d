"""Shared code of the tests of a real broker process: amounts, notes for the report, raw connections."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

FULL = os.environ.get("TIDELOG_FULL") == "1"
"""Whether the amounts are those of the acceptance suite (`script/test --full`)."""

NOTES: list[str] = []
"""Lines to print at the end of the run: seeds, amounts, wall times."""


def amount(slice_amount: int, full_amount: int) -> int:
    return full_amount if FULL else slice_amount


def note(line: str) -> None:
    NOTES.append(line)


def seed_of(suite: str) -> int:
    """Return TIDELOG_SEED if it is set; otherwise a fixed seed, or a new one in a full run."""
    given = os.environ.get("TIDELOG_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(1 << 32) if FULL else 20_260
    note(f"{suite}: seed {seed} (TIDELOG_SEED={seed} repeats it)")
    return seed


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    finally:
        note(f"{what}: {time.monotonic() - began:.1f} s")
