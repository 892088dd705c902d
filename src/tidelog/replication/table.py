"""The table of this broker's partitions: find a partition by topic and index, or the name of a topic by its id."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tidelog.wire.errors import ApiError, NotLeaderOrFollower, StorageError, UnknownTopicId, UnknownTopicOrPartition

if TYPE_CHECKING:
    from tidelog.metadata.image import TopicImage
    from tidelog.replication.partition import Partition

ANY_EPOCH = -1
"""A request with this value as leader epoch accepts every leader epoch."""


class PartitionTable:
    """The partitions whose logs are open on this broker, and the partitions whose logs could not be opened."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.topics: Mapping[str, TopicImage] = {}
        """The topics of the newest image, including topics of which only other brokers have replicas."""
        self.opened: dict[tuple[str, int], Partition] = {}
        self.unopened: dict[tuple[str, int], str] = {}
        """The partitions whose log could not be opened, with the reason."""
        self.topic_names: dict[bytes, str] = {}

    def get(self, topic: str, index: int) -> "Partition":
        """Return the partition.

        Raises UnknownTopicOrPartition if the partition does not exist, NotLeaderOrFollower if only other brokers have
        replicas of it or its log is not open yet, and StorageError if its log could not be opened.
        """
        partition = self.opened.get((topic, index))
        if partition is None:
            raise self.missing(topic, index)
        return partition

    def find(self, topic: str, index: int) -> "Partition | None":
        return self.opened.get((topic, index))

    def leader(self, topic: str, index: int, epoch: int = ANY_EPOCH) -> "Partition":
        """Return the partition if this broker leads it, in the leader epoch that the client names.

        Raises the errors of `get`, StorageError (offline or being deleted), FencedLeaderEpoch (the client's epoch has
        ended), UnknownLeaderEpoch (the client's epoch has not begun on this broker) and NotLeaderOrFollower, in this
        order, as Kafka does.
        """
        partition = self.get(topic, index)
        if partition.deleted or partition.log.failure is not None:
            partition.check_online()
        partition.check_leader_epoch(epoch)
        partition.check_online()
        return partition

    def replica(self, topic: str, index: int, epoch: int = ANY_EPOCH) -> "Partition":
        """Return the partition if this broker has a replica of it. Raises the errors of `leader`, but
        NotLeaderOrFollower only if this broker has no replica, or has not opened the replica's log yet.
        """
        partition = self.get(topic, index)
        partition.check_log()
        partition.check_leader_epoch(epoch)
        return partition

    def is_offline(self, topic: str, index: int) -> bool:
        """Return whether the partition's log could not be opened, or failed after it was opened."""
        partition = self.opened.get((topic, index))
        if partition is None:
            return (topic, index) in self.unopened
        return partition.log.failure is not None

    def topic_name(self, topic_id: bytes) -> str:
        """Return the name of the topic with this id. Raises UnknownTopicId."""
        name = self.topic_names.get(topic_id)
        if name is None:
            raise UnknownTopicId("no topic has this id; the client's topic may have been deleted and created again")
        return name

    def __iter__(self) -> "Iterator[Partition]":
        return iter(list(self.opened.values()))

    def __len__(self) -> int:
        return len(self.opened)

    @property
    def count(self) -> int:
        """Number of partitions, including offline ones."""
        return len(self.opened) + len(self.unopened)

    @property
    def offline_count(self) -> int:
        """Number of partitions whose log could not be opened, or failed after it was opened."""
        return len(self.unopened) + sum(p.log.failure is not None for p in self.opened.values())

    def missing(self, topic: str, index: int) -> ApiError:
        """Return the error for a partition whose log is not open on this broker, or that has just been deleted."""
        reason = self.unopened.get((topic, index))
        if reason is not None:
            return StorageError(f"{topic}-{index} is offline: {reason}")
        image = self.topics.get(topic)
        is_known = image is not None and 0 <= index < len(image.partitions)
        # If this broker has the only replica and its log is still being opened, no client knows the partition yet.
        if image is not None and is_known and image.partitions[index].replicas != (self.node_id,):
            return NotLeaderOrFollower(f"this broker does not lead {topic}-{index}")
        return UnknownTopicOrPartition(f"this broker knows no partition {index} of topic {topic!r}")
