"""The offsets of all partitions for the checkpoint files, updated partition by partition.

Reading the offsets of ten thousand partitions for every checkpoint would occupy the event loop for tens of milliseconds
per second.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.model.ids import TopicPartition
    from tidelog.replication.partition import Partition


class Offsets:
    """Recovery points, log start offsets and high watermarks, as of the last `update` of each partition."""

    def __init__(self) -> None:
        self._recovery_points: dict[TopicPartition, int] = {}
        self._start_offsets: dict[TopicPartition, int] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._being_cut: dict[TopicPartition, None] = {}
        """Partitions whose recovery point or log start offset was set by `lower` or `raise_start`. `update` does not
        change these two offsets until `end_cut`."""

    def update(self, partition: "Partition") -> None:
        """Store the partition's current offsets.

        A log start offset above the durable offset is not stored, since the log could end below it after a power cut.
        The durable offset is stored instead.
        """
        log = partition.log
        key = log.topic_partition
        if key not in self._being_cut:
            self._recovery_points[key] = log.recovery_point
            self._start_offsets[key] = min(log.log_start_offset, log.durable_offset)
        self._high_watermarks[key] = partition.high_watermark

    def lower(self, partition: "Partition", recovery_point: int) -> None:
        """Store a recovery point that is lower than the partition's own, before its log is cut. It is not changed until
        `end_cut`.
        """
        key = partition.log.topic_partition
        self._being_cut[key] = None
        self._recovery_points[key] = recovery_point

    def raise_start(self, partition: "Partition", start_offset: int) -> None:
        """Store `start_offset` as log start offset and as recovery point, before the log is made empty. They are not
        changed until `end_cut`.
        """
        key = partition.log.topic_partition
        self._being_cut[key] = None
        self._recovery_points[key] = self._start_offsets[key] = start_offset

    def end_cut(self, partition: "Partition") -> None:
        self._being_cut.pop(partition.log.topic_partition, None)

    def forget(self, partition: "Partition") -> None:
        for offsets in (self._recovery_points, self._start_offsets, self._high_watermarks):
            offsets.pop(partition.log.topic_partition, None)

    def copies(self) -> "tuple[dict[TopicPartition, int], dict[TopicPartition, int], dict[TopicPartition, int]]":
        """Return copies of the recovery points, log start offsets and high watermarks, for a thread to write."""
        return self._recovery_points.copy(), self._start_offsets.copy(), self._high_watermarks.copy()

    def start_offsets(self) -> "dict[TopicPartition, int]":
        """Return a copy of the log start offsets, for a thread to write."""
        return self._start_offsets.copy()
