"""A consumer in a rack: its leader sends it to a follower in that rack (KIP-392), and it reads there."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from simulation_harness.cluster_ledger import Ledger, Violation
from tidelog.client import operations
from tidelog.client.errors import BrokerUnreachable, ClientError, GaveUp
from tidelog.client.operations import READ_UNCOMMITTED, Request
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster_client import ClusterClient
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData

RACK_SETTINGS = {
    "broker.rack": "rack-{node_id}",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
"""Settings of brokers: each of them is in a rack of its own."""
CALL_S = 10.0
METADATA_OUTDATED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


class RackFetch(NamedTuple):
    """A successful fetch from a leader or a follower."""

    partition: TopicPartition
    start: int
    """The offset from which the reader has read."""
    data: PartitionData
    leader_epoch: int
    reader: str
    """Identifies what the reader may expect to see: a follower that was started again may know of less than before, so
    each fetch from a follower has a reader of its own."""
    is_follower: bool


AddFetch: TypeAlias = Callable[[RackFetch], int | None]
"""Checks and stores what was read, and returns the next offset to read; None if nothing was read."""


class RackReader:
    """Reads partitions from leaders, and from the followers to which they send it."""

    def __init__(
        self,
        client: ClusterClient,
        rng: random.Random,
        ledger: Ledger,
        rack: str,
        partitions: Callable[[], Sequence[TopicPartition]],
        add: AddFetch,
        earliest: Callable[[ClusterClient, TopicPartition, float], Awaitable[int | None]],
        isolation: int = READ_UNCOMMITTED,
    ) -> None:
        """`earliest` returns the log start offset."""
        self._client = client
        self._rng = rng
        self._ledger = ledger
        self._rack = rack
        self._partitions = partitions
        self._add = add
        self._earliest = earliest
        self._isolation = isolation
        self._positions: dict[TopicPartition, int] = {}
        self._followers: dict[TopicPartition, int] = {}
        """The follower from which a partition is read; without an entry it is the leader."""
        self._fetches = 0

    async def run(self, until_s: float, now_s: Callable[[], float]) -> None:
        """Read until the time is over. Sometimes begin anew."""
        while now_s() < until_s:
            partition = self._rng.choice(self._partitions())
            if self._rng.random() < 0.02:
                self._positions.clear()
                self._followers.clear()
            try:
                await self._read(partition, until_s)
            except (ApiError, ClientError):
                self._client.cluster.forget([partition.topic])
                await self._client.sleep(0.2)
            await self._client.sleep(self._rng.choice((0.0, 0.05)))

    async def _read(self, partition: TopicPartition, until_s: float) -> None:
        cluster = self._client.cluster
        if cluster.leader(partition) is None:
            await self._client.run(operations.refresh(cluster, [partition.topic]), CALL_S)
        leader = cluster.leader(partition)
        if leader is None:
            raise GaveUp(f"{partition} has no leader")
        epoch = leader[1].epoch
        broker = self._followers.get(partition, leader[1].broker_id)
        if broker not in cluster.brokers:  # it is not alive
            broker = leader[1].broker_id
            del self._followers[partition]
        is_follower = broker != leader[1].broker_id
        start = self._positions.get(partition, 0)
        answer = await self._client.ask(Request(cluster.brokers[broker], self._request(partition, start, epoch)))
        if isinstance(answer, BrokerUnreachable):
            self._followers.pop(partition, None)
            raise answer
        assert isinstance(answer, FetchResponse)
        data = answer.responses[0].partitions[0]
        if data.error_code:
            await self._failed(partition, start, data, is_follower, until_s)
        elif data.preferred_read_replica >= 0 and data.preferred_read_replica in cluster.brokers:
            self._followers[partition] = data.preferred_read_replica
            self._ledger.coverage["consumers sent to followers"] += 1
        else:
            reader = f"{self._rack}@{broker}"
            if is_follower:
                self._fetches += 1
                reader = f"{reader} fetch {self._fetches}"
            next_offset = self._add(RackFetch(partition, start, data, epoch, reader, is_follower))
            if next_offset is not None:
                self._positions[partition] = next_offset

    def _request(self, partition: TopicPartition, start: int, epoch: int) -> FetchRequest:
        item = FetchPartition(
            partition=partition.partition, current_leader_epoch=epoch, fetch_offset=start, partition_max_bytes=1 << 16
        )
        topic_id = self._client.cluster.topic_id(partition.topic)
        return FetchRequest(
            max_wait_ms=200,
            min_bytes=1,
            max_bytes=1 << 20,
            rack_id=self._rack,
            isolation_level=self._isolation,
            topics=[FetchTopic(topic=partition.topic, topic_id=topic_id, partitions=[item])],
        )

    async def _failed(
        self, partition: TopicPartition, start: int, data: PartitionData, is_follower: bool, until_s: float
    ) -> None:
        self._followers.pop(partition, None)
        self._client.cluster.forget([partition.topic])
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if is_follower:
                return  # the follower is behind: the leader has the offset
            earliest = await self._earliest(self._client, partition, until_s)
            if earliest is None or start < earliest:
                self._positions[partition] = earliest or 0
                return
            if self._ledger.may_lack_records(partition):
                return  # another leader does not know of the deletion yet
        elif data.error_code in METADATA_OUTDATED:
            await self._client.sleep(0.1)
            return
        name = ErrorCode(data.error_code).name
        raise Violation("NoFinalError", f"fetch of {partition} at {start} in {self._rack}: {name}", partition)
