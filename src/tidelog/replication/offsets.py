"""The offsets of all partitions for the checkpoint files, updated partition by partition.

If the offsets of ten thousand partitions were read for every checkpoint, this would occupy the event loop for tens of
milliseconds per second. A thread writes the files from copies. Each copy names the partitions that have changed since
the last copy, so that the thread formats only their entries.
"""

from typing import TYPE_CHECKING

from tidelog.log.checkpoints import OffsetsCopy

if TYPE_CHECKING:
    from tidelog.model.ids import TopicPartition
    from tidelog.replication.partition import Partition


class Offsets:
    """Recovery points, log start offsets and high watermarks, as of the last `update` of each partition."""

    def __init__(self) -> None:
        self._recovery_points: dict[TopicPartition, int] = {}
        self._start_offsets: dict[TopicPartition, int] = {}
        """Contains only offsets above 0, because the checkpoint omits the offset 0."""
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._being_cut: dict[TopicPartition, None] = {}
        """Partitions for which `lower` or `set_for_cut` was called. Until `end_cut`, `update` does not change their
        recovery points and log start offsets."""
        self._touched: dict[TopicPartition, None] = {}
        """Partitions whose offsets were set or removed since the last copies."""
        self._version = object()
        """Identifies the last copies."""

    def update(self, partition: "Partition") -> None:
        """Store the partition's current offsets.

        A log start offset above the durable offset is not stored, since after a power failure the log could end below
        it. The durable offset is stored instead. While a thread cuts the log, and after a cut that failed, the log's
        own offsets do not describe its files: the offsets that were stored for the cut remain.
        """
        log = partition.log
        key = log.topic_partition
        self._touched[key] = None
        if key not in self._being_cut and not log.is_being_cut:
            self._recovery_points[key] = log.recovery_point
            self._set_start(key, min(log.log_start_offset, log.durable_offset))
        self._high_watermarks[key] = partition.high_watermark

    def _set_start(self, key: "TopicPartition", start_offset: int) -> None:
        if start_offset > 0:
            self._start_offsets[key] = start_offset
        else:
            self._start_offsets.pop(key, None)

    def lower(self, partition: "Partition", recovery_point: int) -> None:
        """Store `recovery_point`, which is not above the log's own recovery point, before the log is cut. `update` does
        not change the stored recovery point and log start offset until `end_cut`.
        """
        key = partition.log.topic_partition
        self._touched[key] = self._being_cut[key] = None
        self._recovery_points[key] = recovery_point

    def set_for_cut(self, partition: "Partition", recovery_point: int, start_offset: int) -> None:
        """Store these offsets of a log that is being made empty. `update` does not change them until `end_cut`."""
        self.lower(partition, recovery_point)
        self._set_start(partition.log.topic_partition, start_offset)

    def end_cut(self, partition: "Partition") -> None:
        """Let `update` change the recovery point and the log start offset again."""
        self._being_cut.pop(partition.log.topic_partition, None)

    def forget(self, partition: "Partition") -> None:
        key = partition.log.topic_partition
        self._touched[key] = None
        for offsets in (self._recovery_points, self._start_offsets, self._high_watermarks):
            offsets.pop(key, None)

    def copies(self) -> "tuple[OffsetsCopy, OffsetsCopy, OffsetsCopy]":
        """Return copies of the recovery points, log start offsets and high watermarks, for a thread to write."""
        previous, touched = self._version, tuple(self._touched)
        self._version, self._touched = object(), {}
        return (
            OffsetsCopy(self._recovery_points, self._version, previous, touched),
            OffsetsCopy(self._start_offsets, self._version, previous, touched),
            OffsetsCopy(self._high_watermarks, self._version, previous, touched),
        )

    def start_offsets(self) -> "dict[TopicPartition, int]":
        """Return a copy of the log start offsets, for a thread to write."""
        return self._start_offsets.copy()
