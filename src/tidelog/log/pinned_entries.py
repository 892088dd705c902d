"""Entries of the checkpoints that a running move of a partition protects.

A checkpoint is written from copies of all offsets. During the last steps of a move (see `log/future_logs.py`), such a
copy may be older than the move's copy of the log, or it may contain the partition's offsets only for the other data
directory. While an entry is pinned, every write of the checkpoints contains the pinned offsets instead:

- The source's entries are pinned from the switch until the old log is renamed. A start after a crash may use the old
  log until then, and needs its start offset.
- The target's entries are pinned from their first write until the end of the move. An older start offset could be
  below the first file of the copy.
"""

from typing import NamedTuple

from tidelog.log.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from tidelog.model.ids import TopicPartition


class LogOffsets(NamedTuple):
    """The offsets of one log that the checkpoints contain."""

    recovery_point: int
    log_start_offset: int
    high_watermark: int


_POSITIONS = {RECOVERY_POINTS: 0, LOG_START_OFFSETS: 1, HIGH_WATERMARKS: 2}
"""The position in LogOffsets, by the name of the checkpoint."""


class PinnedEntries:
    """The pinned entries of one data directory. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._entries: dict[TopicPartition, LogOffsets] = {}

    def pin(self, partition: TopicPartition, offsets: LogOffsets) -> None:
        self._entries[partition] = offsets

    def unpin(self, partition: TopicPartition) -> None:
        """Let the next writes use the offsets that they get. Does nothing if the partition is not pinned."""
        self._entries.pop(partition, None)

    def of(self, checkpoint: str) -> dict[TopicPartition, int]:
        """Return the pinned offsets for the checkpoint with this file name."""
        position = _POSITIONS[checkpoint]
        return {partition: offsets[position] for partition, offsets in list(self._entries.items())}
