"""An aborted transaction in the clean part of a log does not affect later transactions of its producer."""

import pytest

from log_harness import LogOnDisk
from log_harness.compaction import compact, stored
from tidelog.log.config import LogConfig
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.records import Record, encode_batch

PRODUCER_ID = 7
DELETE_RETENTION_MS = 1000


class Stage:
    """A compacted log with the transactions of one producer."""

    def __init__(self) -> None:
        self.on = LogOnDisk(LogConfig(cleanup_policy="compact", delete_retention_ms=DELETE_RETENTION_MS))
        self._sequence = 0
        self._clean_offset: int | None = None

    def write(self, key: bytes, value: bytes | None, *, is_commit: bool) -> None:
        batch = encode_batch(
            [Record(key, value, self.on.now_ms)],
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=self._sequence,
            is_transactional=True,
        )
        self._sequence += 1
        self.on.append_batch(batch)
        self.on.append_batch(marker_batch(PRODUCER_ID, 0, 0, is_commit=is_commit, timestamp=self.on.now_ms))

    def clean(self) -> None:
        """Close the segment, and compact all closed ones."""
        self.on.log.roll(self.on.now_ms)
        self.on.flush()
        self._clean_offset = compact(self.on, clean_offset=self._clean_offset)[0].end_offset

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(record.key, record.value) for record in stored(self.on.log)]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_deleted_key_does_not_return(*, is_commit: bool) -> None:
    """Otherwise its tombstone would be removed before its last value is."""
    stage = Stage()
    stage.write(b"key", b"value", is_commit=True)
    stage.write(b"other", b"value", is_commit=is_commit)
    stage.clean()
    stage.write(b"key", None, is_commit=True)
    stage.clean()
    assert (b"key", b"value") not in stage.records()
    stage.on.now_ms += DELETE_RETENTION_MS + 1
    stage.write(b"last", b"value", is_commit=True)
    stage.clean()
    assert [key for key, _ in stage.records() if key == b"key"] == []
