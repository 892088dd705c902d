"""The offsets of all partitions as the checkpoint files are to tell them, kept up to date partition by partition.

Walking ten thousand partitions for every checkpoint would hold the loop for tens of milliseconds each second.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.model.ids import TopicPartition
    from tidelog.replication.partition import Partition


class Offsets:
    """Recovery points, log start offsets and high watermarks, as they were when each partition was noted."""

    def __init__(self) -> None:
        self._recovery_points: dict[TopicPartition, int] = {}
        self._start_offsets: dict[TopicPartition, int] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}

    def note(self, partition: "Partition") -> None:
        """Take its offsets as they are now. A start offset beyond what is durable is told another time: after a power
        cut the log would end below it.
        """
        log = partition.log
        key = log.topic_partition
        self._recovery_points[key] = log.recovery_point
        self._start_offsets[key] = min(log.log_start_offset, log.durable_offset)
        self._high_watermarks[key] = partition.high_watermark

    def forget(self, partition: "Partition") -> None:
        for offsets in (self._recovery_points, self._start_offsets, self._high_watermarks):
            offsets.pop(partition.log.topic_partition, None)

    def copies(self) -> "tuple[dict[TopicPartition, int], dict[TopicPartition, int], dict[TopicPartition, int]]":
        """Recovery points, log start offsets and high watermarks, for a thread to write."""
        return self._recovery_points.copy(), self._start_offsets.copy(), self._high_watermarks.copy()

    def start_offsets(self) -> "dict[TopicPartition, int]":
        """A copy, for a thread to write."""
        return self._start_offsets.copy()
