"""Collect the new states that one decision gives to partitions, and return the journal record with these changes.
Pure.
"""

from typing import Any

from tidelog.metadata.image import METADATA_FEATURE, MetadataImage, TopicImage
from tidelog.metadata.records import JournalRecord, PartitionState, PartitionStatesChanged, StateChange
from tidelog.model.ids import TopicId
from tidelog.wire.errors import ApiError, ErrorCode


class StateChanges:
    """The new states of partitions. One entry of the journal changes each partition at most once. So the epochs of a
    state are incremented at most once, even if `put` is called more than once for a partition.
    """

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._new_states: dict[tuple[TopicId, int], PartitionState] = {}

    def state(self, topic: TopicImage, partition: int) -> PartitionState:
        """Return the state of a partition after the changes that were collected up to now."""
        return self._new_states.get((topic.topic_id, partition), topic.partitions[partition])

    def put(self, topic: TopicImage, partition: int, state: PartitionState) -> PartitionState:
        """Collect a new state. Returns the state with the epochs that it will have in the image."""
        old = topic.partitions[partition]
        if state is old:
            return state
        leader_epoch = old.leader_epoch + (state.leader_epoch != old.leader_epoch)
        if (state.leader_epoch, state.partition_epoch) != (leader_epoch, old.partition_epoch + 1):
            state = state._replace(leader_epoch=leader_epoch, partition_epoch=old.partition_epoch + 1)
        self._new_states[topic.topic_id, partition] = state
        return state

    def records(self) -> list[JournalRecord]:
        """Return one record with all changes, or no record if nothing has changed.

        Raises ApiError (UNSUPPORTED_VERSION) if there may be brokers that cannot read the record.
        """
        partitions_by_fields: dict[tuple[tuple[str, Any], ...], dict[TopicId, list[int]]] = {}
        # Many partitions often change from the same old state to the same new state. The changed fields are computed
        # only once for each such pair.
        known_fields: dict[tuple[PartitionState, PartitionState], tuple[tuple[str, Any], ...]] = {}
        for (topic_id, partition), new in self._new_states.items():
            old = self._image.topics_by_id[topic_id].partitions[partition]
            fields = known_fields.get((old, new))
            if fields is None:
                fields = known_fields[old, new] = tuple(_changed_fields(old, new).items())
            partitions_by_fields.setdefault(fields, {}).setdefault(topic_id, []).append(partition)
        if not partitions_by_fields:
            return []
        if self._image.metadata_level == 0:
            message = f"partitions cannot be changed while {METADATA_FEATURE} has level 0"
            raise ApiError(message, ErrorCode.UNSUPPORTED_VERSION)
        return [
            PartitionStatesChanged(
                tuple(
                    StateChange({topic_id: tuple(numbers) for topic_id, numbers in partitions.items()}, **dict(fields))
                    for fields, partitions in partitions_by_fields.items()
                )
            )
        ]


def _changed_fields(old: PartitionState, new: PartitionState) -> dict[str, Any]:
    """Return the fields of the `StateChange` from `old` to `new`, except its partitions."""
    # A `StateChange` does not contain epochs. It increments the partition epoch. It increments the leader epoch only if
    # it contains a leader. So the leader is included if the leader epoch changes, even if the leader remains the same.
    not_compared = ("leader", "leader_epoch", "partition_epoch")
    fields = {
        name: value for name, value in new._asdict().items() if name not in not_compared and value != getattr(old, name)
    }
    if new.leader_epoch != old.leader_epoch:
        fields["leader"] = new.leader
    return fields
