"""Codecs, limits and conditions of every client's suite."""

import time
from collections.abc import Callable
from typing import TypeAlias

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

LIMIT_S = 30.0
"""Time limit for operations that take a moment: only a broken broker reaches it, not a slow machine."""

BATCH_BYTES_MAX = 1_048_588
"""The default of `max.message.bytes`: a whole batch with its header."""

BATCH_OVERHEAD_BYTES = 72
"""Size of a batch of one record besides its value of about a million bytes: 61 bytes of header, 11 of record."""

NewTopicNamed: TypeAlias = Callable[..., str]
"""`new_topic("orders", partitions=2, **{"retention.ms": "1000"})`"""

Unique: TypeAlias = Callable[[str], str]


def wait_until(reached: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait until `reached` returns true. Raises AssertionError with `what` after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline, f"not in {limit_s:.0f} s: {what}"
        time.sleep(0.02)
