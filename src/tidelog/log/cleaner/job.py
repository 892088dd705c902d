"""What the broker asks of a pass over one log, and what the pass tells: plain numbers and texts, as JSON. Pure.

One request, then a report for each group of segments that is written, then one last report. The process that works is
not trusted to be in order: what cannot be read raises ValueError.
"""

import json
from typing import Any, NamedTuple

REPORT_BYTES_MAX = 1 << 20


class SegmentFacts(NamedTuple):
    """A closed segment as the broker knows it."""

    base_offset: int
    size: int


class CleanerLimits(NamedTuple):
    """What a pass may use: memory for the map of keys, of which `load_factor` is filled, bytes a second, and the size
    of its writes.
    """

    map_bytes: int
    load_factor: float
    bytes_per_s: float
    write_bytes: int


class CleanJob(NamedTuple):
    """`segments`: all closed ones that end before `end_offset`, from the first. Times in ms."""

    directory: str
    segments: list[SegmentFacts]
    first_dirty_offset: int
    end_offset: int
    """Where the first segment begins that is not to be touched."""
    transaction_indexes: list[int]
    """Base offsets of the segments, closed or not, that have one."""
    producers: dict[int, tuple[int, int]]
    """Producer id -> last offset of its last batch of records (-1: none), epoch."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    limits: CleanerLimits

    def encode(self) -> bytes:
        fields = self._asdict()
        fields["producers"] = [[producer, *known] for producer, known in self.producers.items()]
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, data: bytes) -> "CleanJob":
        """Raises ValueError, KeyError, TypeError."""
        fields = json.loads(data)
        fields["segments"] = [SegmentFacts(*facts) for facts in fields["segments"]]
        fields["producers"] = {producer: (offset, epoch) for producer, offset, epoch in fields["producers"]}
        fields["limits"] = CleanerLimits(*fields["limits"])
        return cls(**fields)


class GroupCleaned(NamedTuple):
    """The segments with these base offsets are written as one, whose files are durable under their `.cleaned` names."""

    base_offsets: list[int]
    size: int
    has_transactions: bool
    max_timestamp: int
    max_timestamp_offset: int
    bytes_before: int
    records_before: int
    records_after: int

    def encode(self) -> bytes:
        return json.dumps({"group": self._asdict()}).encode()


class Cleaned(NamedTuple):
    """The end of a pass that went well: everything below `end_offset` is clean."""

    end_offset: int
    keys: int

    def encode(self) -> bytes:
        return json.dumps({"cleaned": self._asdict()}).encode()


class Uncleanable(NamedTuple):
    """The log holds what cannot be read: no pass will do better."""

    reason: str

    def encode(self) -> bytes:
        return json.dumps({"uncleanable": self._asdict()}).encode()


class Interrupted(NamedTuple):
    """The disk, or the request, stood in the way; another pass may do better."""

    reason: str

    def encode(self) -> bytes:
        return json.dumps({"interrupted": self._asdict()}).encode()


Report = GroupCleaned | Cleaned | Uncleanable | Interrupted

_KINDS: dict[str, Any] = {
    "group": GroupCleaned,
    "cleaned": Cleaned,
    "uncleanable": Uncleanable,
    "interrupted": Interrupted,
}


def decode_report(data: bytes) -> Report:
    """Raises ValueError."""
    if len(data) > REPORT_BYTES_MAX:
        raise ValueError(f"a report of {len(data)} bytes")
    try:
        ((kind, fields),) = json.loads(data).items()
        report: Report = _KINDS[kind](**fields)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"a report that cannot be read: {error!r}") from error
    return report
