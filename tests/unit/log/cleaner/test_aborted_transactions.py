"""Compaction of a log whose producers have aborted transactions."""

import pytest

from log_harness import LogOnDisk
from log_harness.compaction import compact, stored
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.records import Record, encode_batch

RETENTION_MS = 1000


class Compacted:
    """A compacted log with one transactional producer."""

    def __init__(self) -> None:
        self.on = LogOnDisk(cleanup_policy="compact", delete_retention_ms=RETENTION_MS)
        self.clean_offset: int | None = None
        self._sequence = 0

    def transaction(self, key: bytes, value: bytes | None, *, commit: bool = True) -> None:
        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": self._sequence, "is_transactional": True}
        self._sequence += 1
        for batch in (
            encode_batch([Record(key, value, self.on.now_ms)], **fields),
            marker_batch(7, 0, 0, is_commit=commit, timestamp=self.on.now_ms),
        ):
            self.on.append_unchecked(batch)

    def compact(self) -> list[tuple[bytes | None, bytes | None]]:
        """Run a pass over all records, and return what remains."""
        self.on.log.roll(self.on.now_ms)
        self.on.flush()
        self.clean_offset = compact(self.on, clean_offset=self.clean_offset)[0].end_offset
        return [(record.key, record.value) for record in stored(self.on.log)]


@pytest.mark.parametrize("commits_before", [0, 1])
def test_an_aborted_transaction_of_the_clean_part_does_not_hide_later_records(commits_before: int) -> None:
    """The map of the dirty part began with the aborted transactions of all parts, and their markers are not read."""
    log = Compacted()
    log.transaction(b"a", b"1")
    log.transaction(b"x", b"aborted", commit=False)
    for _ in range(commits_before):
        log.transaction(b"b", b"1")
    log.compact()
    log.transaction(b"a", b"2")
    log.transaction(b"a", b"3")
    log.transaction(b"c", b"aborted", commit=False)
    assert [entry for entry in log.compact() if entry[0] in (b"a", b"c")] == [(b"a", b"3")]


def test_a_deleted_key_does_not_return() -> None:
    """A later pass removes the tombstone. If the pass before it had kept the old record, a reader would find it again."""
    log = Compacted()
    log.transaction(b"a", b"1")
    log.transaction(b"x", b"aborted", commit=False)
    log.compact()
    log.transaction(b"a", None)
    log.compact()
    for _ in range(3):
        log.on.now_ms += RETENTION_MS + 1
        log.transaction(b"b", b"1")
        remaining = log.compact()
    assert remaining == [(b"b", b"1")]
