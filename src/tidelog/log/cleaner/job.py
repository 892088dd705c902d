"""Messages between the broker and the process that runs a compaction pass, as JSON. Pure.

There is one request, one report for each written group of segments, and one final report. The broker does not trust
the process: a report that cannot be decoded raises ValueError.
"""

import json
from typing import Any, NamedTuple

REPORT_BYTES_MAX = 1 << 20


class SegmentFacts(NamedTuple):
    """A closed segment. `size` is the size of its log file, in bytes."""

    base_offset: int
    size: int


class CleanerLimits(NamedTuple):
    """Limits of a pass."""

    map_bytes: int
    """Memory for the offset map, in bytes."""
    load_factor: float
    """Share of `map_bytes` that may be used."""
    bytes_per_s: float
    """Maximum number of bytes that are read and written per second, taken together."""
    write_bytes: int
    """Number of bytes that are collected for one write."""


class CleanJob(NamedTuple):
    """The request. `segments` are all closed segments that end at or before `end_offset`. Times are in ms."""

    directory: str
    segments: list[SegmentFacts]
    first_dirty_offset: int
    end_offset: int
    """Base offset of the first segment that the pass must not touch."""
    transaction_indexes: list[int]
    """Base offsets of the segments, closed or not, that have a transaction index."""
    producers: dict[int, tuple[int, int]]
    """For each producer id, the last offset of its last batch with records (-1: no such batch), and the producer's
    epoch. Producers whose last batch ends at or after `end_offset` are omitted."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    limits: CleanerLimits

    def encode(self) -> bytes:
        fields = self._asdict()
        fields["producers"] = [[producer, *state] for producer, state in self.producers.items()]
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, data: bytes) -> "CleanJob":
        """Decode a request. Raises ValueError, KeyError, TypeError."""
        fields = json.loads(data)
        fields["segments"] = [SegmentFacts(*facts) for facts in fields["segments"]]
        fields["producers"] = {producer: (offset, epoch) for producer, offset, epoch in fields["producers"]}
        fields["limits"] = CleanerLimits(*fields["limits"])
        return cls(**fields)


class GroupReport(NamedTuple):
    """Report of one group: the segments with these base offsets were written as one new segment. The `.cleaned` files
    of the new segment are durable.
    """

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


class SuccessReport(NamedTuple):
    """Final report of a successful pass: the log is clean below `end_offset`. `keys` is the number of different keys in
    the part that was dirty.
    """

    end_offset: int
    keys: int

    def encode(self) -> bytes:
        return json.dumps({"cleaned": self._asdict()}).encode()


class DamageReport(NamedTuple):
    """Final report: the log contains data that cannot be decoded, so a retry would fail too."""

    reason: str

    def encode(self) -> bytes:
        return json.dumps({"uncleanable": self._asdict()}).encode()


class InterruptionReport(NamedTuple):
    """Final report: the pass failed because of a disk error, or because another pass runs in the data directory. A
    retry may succeed.
    """

    reason: str

    def encode(self) -> bytes:
        return json.dumps({"interrupted": self._asdict()}).encode()


Report = GroupReport | SuccessReport | DamageReport | InterruptionReport

_KINDS: dict[str, Any] = {
    "group": GroupReport,
    "cleaned": SuccessReport,
    "uncleanable": DamageReport,
    "interrupted": InterruptionReport,
}


def decode_report(data: bytes) -> Report:
    """Decode a report. Raises ValueError."""
    if len(data) > REPORT_BYTES_MAX:
        raise ValueError(f"a report has {len(data)} bytes, but the limit is {REPORT_BYTES_MAX}")
    try:
        ((kind, fields),) = json.loads(data).items()
        report: Report = _KINDS[kind](**fields)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"a report cannot be read: {error!r}") from error
    return report
