"""The state of each group as the records of `__consumer_offsets` describe it.

Only the replay of records and of transaction markers changes the state, both while a coordinator loads its partition
and afterwards.
"""

from tidelog.coordinator.consumer.records import ConsumerRecord
from tidelog.coordinator.consumer.state import ConsumerGroup
from tidelog.coordinator.decision import Producer
from tidelog.coordinator.group.pending_offsets import OffsetKey, PendingOffsets
from tidelog.coordinator.group.records import AnyRecord, OffsetRecord
from tidelog.wire.messages.group_records import GroupMetadataValue, OffsetCommitValue


class DurableGroup:
    """One group: the latest value of each of its keys."""

    __slots__ = ("consumer", "metadata", "next_offset", "offsets")

    def __init__(self) -> None:
        self.metadata: GroupMetadataValue | None = None
        """The metadata of a classic group. None for a group of the consumer protocol, and for a simple consumer
        group, which has committed offsets but has never had members."""
        self.consumer: ConsumerGroup | None = None
        """The state of a group of the consumer protocol; else None. At most one of `consumer` and `metadata` is set,
        except while the records that convert the group are being replayed."""
        self.offsets: dict[str, dict[int, OffsetCommitValue]] = {}
        """Committed offsets by topic and partition. A topic without committed offsets has no entry."""
        self.next_offset = 0
        """This state reflects the log up to this offset (exclusive end)."""

    @property
    def offset_count(self) -> int:
        """Number of committed offsets."""
        return sum(map(len, self.offsets.values()))

    def committed_offset(self, topic: str, partition: int) -> OffsetCommitValue | None:
        partitions = self.offsets.get(topic)
        return None if partitions is None else partitions.get(partition)


class DurableGroups:
    """Every group that has metadata or offsets in one partition of `__consumer_offsets`."""

    __slots__ = ("_last_removal_offset", "by_id", "pending")

    def __init__(self) -> None:
        self.by_id: dict[str, DurableGroup] = {}
        self.pending = PendingOffsets()
        """Offsets of open transactions. A group that has only pending offsets also has an entry in `by_id`."""
        self._last_removal_offset = 0
        """Exclusive end of the last batch that removed a group; 0 if no batch did."""

    def replay(self, record: AnyRecord, next_offset: int) -> None:
        """Apply one record of the batch that ends before `next_offset`.

        The state contains one value for each key, so only the last record of a key matters, as in a compacted log.
        """
        group = self.by_id.get(record.group)
        if group is None:
            if record.value is None:
                return
            group = self.by_id[record.group] = DurableGroup()
        group.next_offset = next_offset
        if isinstance(record, OffsetRecord):
            if self.pending:
                key = OffsetKey(record.group, record.topic, record.partition)
                if record.value is None:
                    self.pending.remove(key)
                else:
                    self.pending.supersede(key)
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
        self._remove_if_blank(record.group, group, next_offset)

    def replay_pending(
        self,
        record: OffsetRecord,
        next_offset: int,
        producer: Producer,
        record_offset: int,
        *,
        is_superseded: bool = False,
    ) -> None:
        """Apply one record of an open transaction. `is_superseded`: a later record of the same key is committed."""
        assert record.value is not None, "a transaction deletes no offsets"
        group = self.by_id.get(record.group)
        if group is None:
            group = self.by_id[record.group] = DurableGroup()
        group.next_offset = next_offset
        key = OffsetKey(record.group, record.topic, record.partition)
        self.pending.add(producer.producer_id, key, record.value, record_offset, is_superseded=is_superseded)

    def end_transaction(self, producer: Producer, next_offset: int, *, is_commit: bool) -> None:
        """Commit or drop the pending offsets of a producer."""
        for key, pending in self.pending.end(producer.producer_id):
            group = self.by_id[key.group]
            group.next_offset = next_offset
            if is_commit and not pending.is_superseded:
                group.offsets.setdefault(key.topic, {})[key.partition] = pending.value
                self.pending.supersede(key, pending.record_offset)
            self._remove_if_blank(key.group, group, next_offset)

    def _remove_if_blank(self, group_id: str, group: DurableGroup, next_offset: int) -> None:
        has_state = group.metadata is not None or group.consumer is not None or group.offsets
        if not has_state and not self.pending.has_group(group_id):
            del self.by_id[group_id]
            self._last_removal_offset = next_offset

    def next_offset(self, group_id: str) -> int:
        """Return the offset up to which the group's state reflects the log (exclusive end). For a group that does not
        exist, this is the end of the last batch that removed a group.
        """
        group = self.by_id.get(group_id)
        return self._last_removal_offset if group is None else group.next_offset
