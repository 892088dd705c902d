"""What `__consumer_offsets` says of each group. Changes through `replay` alone, in live operation as after a load."""

from tidelog.coordinator.group.records import GroupRecord, OffsetRecord
from tidelog.wire.messages.group_records import GroupMetadataValue, OffsetCommitValue


class DurableGroup:
    """One group's last word on each key."""

    __slots__ = ("metadata", "next_offset", "offsets")

    def __init__(self) -> None:
        self.metadata: GroupMetadataValue | None = None
        """None for a group that only ever committed offsets (a simple consumer)."""
        self.offsets: dict[str, dict[int, OffsetCommitValue]] = {}
        """Topic -> partition -> what was committed. No topic is empty."""
        self.next_offset = 0
        """Exclusive end of the log that this state tells of."""

    def committed(self, topic: str, partition: int) -> OffsetCommitValue | None:
        partitions = self.offsets.get(topic)
        return None if partitions is None else partitions.get(partition)


class DurableGroups:
    """Every group of one partition of `__consumer_offsets` that has metadata or offsets."""

    __slots__ = ("_removed_offset", "by_id")

    def __init__(self) -> None:
        self.by_id: dict[str, DurableGroup] = {}
        self._removed_offset = 0

    def replay(self, record: OffsetRecord | GroupRecord, next_offset: int) -> None:
        """Take in one record of the batch that ends before `next_offset`. Each key has one place, so that only the last
        record of a key counts, as compaction has it."""
        group = self.by_id.get(record.group)
        if group is None:
            if record.value is None:
                return
            group = self.by_id[record.group] = DurableGroup()
        group.next_offset = next_offset
        if isinstance(record, OffsetRecord):
            if record.value is not None:
                group.offsets.setdefault(record.topic, {})[record.partition] = record.value
            elif (partitions := group.offsets.get(record.topic)) is not None:
                partitions.pop(record.partition, None)
                if not partitions:
                    del group.offsets[record.topic]
        else:
            group.metadata = record.value
        if group.metadata is None and not group.offsets:
            del self.by_id[record.group]
            self._removed_offset = next_offset

    def next_offset(self, group_id: str) -> int:
        """Exclusive end of the log that the group's state, or its absence, tells of."""
        group = self.by_id.get(group_id)
        return self._removed_offset if group is None else group.next_offset
