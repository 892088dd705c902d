"""What `__consumer_offsets` says of each group. Changes through `replay` alone, in live operation as after a load."""

from tidelog.coordinator.consumer.records import ConsumerRecord
from tidelog.coordinator.consumer.state import ConsumerGroup
from tidelog.coordinator.group.records import AnyRecord, OffsetRecord
from tidelog.wire.messages.group_records import GroupMetadataValue, OffsetCommitValue


class DurableGroup:
    """One group's last word on each key."""

    __slots__ = ("consumer", "metadata", "next_offset", "offsets")

    def __init__(self) -> None:
        self.metadata: GroupMetadataValue | None = None
        """Of a classic group. None for one that only ever committed offsets (a simple consumer)."""
        self.consumer: ConsumerGroup | None = None
        """A group of the consumer protocol. It is not a classic group too, but while one becomes the other."""
        self.offsets: dict[str, dict[int, OffsetCommitValue]] = {}
        """Topic -> partition -> what was committed. No topic is empty."""
        self.next_offset = 0
        """Exclusive end of the log that this state tells of."""

    @property
    def count(self) -> int:
        """Of offsets."""
        return sum(map(len, self.offsets.values()))

    def committed(self, topic: str, partition: int) -> OffsetCommitValue | None:
        partitions = self.offsets.get(topic)
        return None if partitions is None else partitions.get(partition)


class DurableGroups:
    """Every group of one partition of `__consumer_offsets` that has metadata or offsets."""

    __slots__ = ("_removed_offset", "by_id")

    def __init__(self) -> None:
        self.by_id: dict[str, DurableGroup] = {}
        self._removed_offset = 0

    def replay(self, record: AnyRecord, next_offset: int) -> None:
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
        elif isinstance(record, ConsumerRecord):
            if group.consumer is None:
                if record.value is None:
                    return
                group.consumer = ConsumerGroup(record.group)
            group.consumer.replay(record)
            if group.consumer.is_blank:
                group.consumer = None
        else:
            group.metadata = record.value
        if group.metadata is None and not group.offsets and group.consumer is None:
            del self.by_id[record.group]
            self._removed_offset = next_offset

    def next_offset(self, group_id: str) -> int:
        """Exclusive end of the log that the group's state, or its absence, tells of."""
        group = self.by_id.get(group_id)
        return self._removed_offset if group is None else group.next_offset
