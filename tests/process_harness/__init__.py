"""What the tests of a real broker process share: how much they do, what they say of it, raw connections."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

FULL = os.environ.get("TIDELOG_FULL") == "1"
"""Whether the amounts are those of acceptance, as in `script/test --full`."""

NOTES: list[str] = []
"""Lines for the end of the run: seeds, amounts, wall times."""


def amount(slice_amount: int, full_amount: int) -> int:
    return full_amount if FULL else slice_amount


def note(line: str) -> None:
    NOTES.append(line)


def seed_of(suite: str) -> int:
    """TIDELOG_SEED if it is set; else a fixed one in the slice and a new one in a full run."""
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
