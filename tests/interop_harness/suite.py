"""What every client's suite goes by: codecs, limits, conditions."""

import time
from collections.abc import Callable
from typing import TypeAlias

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

LIMIT_S = 30.0
"""For anything that takes a moment; broken brokers are told from slow machines."""

BATCH_BYTES_MAX = 1_048_588
"""`max.message.bytes` by default: a whole batch with its header."""

BATCH_OVERHEAD_BYTES = 72
"""Of a batch of one record that has a value of a million bytes or so alone: 61 of header, 11 of record."""

NewTopicNamed: TypeAlias = Callable[..., str]
"""`new_topic("orders", partitions=2, **{"retention.ms": "1000"})`"""

Unique: TypeAlias = Callable[[str], str]


def wait_until(reached: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Ask again until it holds. Raises AssertionError with `what` after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline, f"not in {limit_s:.0f} s: {what}"
        time.sleep(0.02)
