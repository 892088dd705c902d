"""The client's cache of cluster metadata: brokers, topics and leaders. It is filled from Metadata responses. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from tidelog.client.error_codes import error_name
from tidelog.model.addresses import host_port_text
from tidelog.model.ids import NO_TOPIC_ID, TopicId, TopicPartition
from tidelog.wire.errors import ApiError, ErrorCode, error_for
from tidelog.wire.messages.metadata import MetadataResponse, MetadataResponseTopic


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return host_port_text(self.host, self.port)


class PartitionLeader(NamedTuple):
    """The leader of one partition."""

    broker_id: int
    """-1 when the partition has no leader."""
    epoch: int
    """-1 when the broker's version does not send leader epochs."""


class Topic(NamedTuple):
    name: str
    topic_id: TopicId
    """`NO_TOPIC_ID` when the broker's version does not send topic ids."""
    internal: bool
    leaders: dict[int, PartitionLeader]
    """Leaders by partition number, in ascending order."""


class Cluster:
    """The cache of brokers and topics. The entry of a topic may be out of date. Callers remove it with `forget` if a
    broker's response shows this.
    """

    def __init__(self, seeds: list[Address]) -> None:
        assert seeds
        self.seeds = seeds
        self.brokers: dict[int, Address] = {}
        self.topics: dict[str, Topic] = {}
        self._newest: dict[TopicPartition, tuple[TopicId, PartitionLeader]] = {}
        """For each partition, the leader with the newest leader epoch. `forget` does not remove it."""
        self.coordinators: dict[tuple[int, str], Address] = {}
        """Coordinators by type of key (`coordinators.KeyType.code`) and key. A caller removes an entry if a response
        shows that it is out of date."""

    def update(self, response: MetadataResponse) -> dict[str, ApiError]:
        """Store a Metadata response. Return the error of each topic for which the broker answered with an error.
        These topics are removed from the cache.

        If the epoch of a leader is older than the partition's newest known epoch, this leader is ignored (KIP-320). A
        broker that is cut off from the metadata may still name itself as the leader, and would answer as if the newest
        records did not exist. If the broker does not send topic ids, no leader is ignored, because a topic that was
        created again could not be distinguished from the old one.
        """
        self.brokers = {b.node_id: Address(b.host, b.port) for b in response.brokers}
        topic_errors: dict[str, ApiError] = {}
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code != ErrorCode.NONE:
                self.topics.pop(name, None)
                topic_errors[name] = error_for(topic.error_code, f"topic {name!r}: {error_name(topic.error_code)}")
            else:
                self.topics[name] = self._topic(name, topic)
        return topic_errors

    def _topic(self, name: str, topic: MetadataResponseTopic) -> Topic:
        topic_id = TopicId(topic.topic_id)
        leaders: dict[int, PartitionLeader] = {}
        for item in sorted(topic.partitions, key=lambda p: p.partition_index):
            partition = TopicPartition(name, item.partition_index)
            leader = PartitionLeader(item.leader_id, item.leader_epoch)
            known_id, known = self._newest.get(partition, (topic_id, leader))
            if known_id == topic_id != NO_TOPIC_ID and known.epoch > leader.epoch >= 0:
                leader = known
            self._newest[partition] = topic_id, leader
            leaders[item.partition_index] = leader
        return Topic(name, topic_id, topic.is_internal, leaders)

    def contacts(self) -> list[Address]:
        """Return the addresses for requests that any broker can answer: first the known brokers, then the seeds.
        Each address is returned only once.
        """
        return list(dict.fromkeys([*self.brokers.values(), *self.seeds]))

    def leader(self, partition: TopicPartition) -> tuple[Address, PartitionLeader] | None:
        """Return the leader and its address; None if the leader is unknown, or if the partition has no leader at
        present.
        """
        topic = self.topics.get(partition.topic)
        leader = topic and topic.leaders.get(partition.partition)
        address = leader and self.brokers.get(leader.broker_id)
        return (address, leader) if leader and address else None

    def topic_id(self, name: str) -> TopicId:
        topic = self.topics.get(name)
        return topic.topic_id if topic else NO_TOPIC_ID

    def forget(self, topics: Iterable[str]) -> None:
        """Remove these topics from the cache, so that the next use requests them again."""
        for name in topics:
            self.topics.pop(name, None)
