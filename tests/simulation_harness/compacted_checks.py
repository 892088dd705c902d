"""Compare the replicas of compacted topics: their batches differ, but not the last record of a key."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from simulation_harness.cluster_inspection import ReplicaView, records_of, replicas_of
from simulation_harness.cluster_ledger import Violation
from simulation_harness.special_topics import CompactedTopic
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster import SimCluster
from tidelog.wire.records import Record

Place: TypeAlias = tuple[bytes, TopicPartition]
"""The id of a topic, and a partition of it."""


class CompactedReplica(NamedTuple):
    """The committed records of one replica."""

    name: str
    high_watermark: int
    records: dict[int, Record]
    """By offset."""
    latest: dict[bytes, Record]
    """The last record of each key."""


class CompactedChecks:
    """`SameLatestRecords`: at an offset that two replicas have, both have the same record; and the last record of a key
    below both high watermarks is on both, unless one has a later record of the key.

    As in Kafka, there is one exception: a replica that fetches the offset of a tombstone only after
    `delete.retention.ms` may miss the tombstone, and keeps the deleted record.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.compared_keys = 0
        self.missed_tombstones = 0
        self._tombstones: dict[tuple[Place, bytes], dict[int, float]] = {}
        """For each key of the topic of `CompactedTopic`: the offsets of its tombstones, and when each was written."""
        self._ends: dict[tuple[int, Place], list[tuple[float, int]]] = {}
        """For each replica of a broker, the times at which its log grew, and the new end offsets. If the log becomes
        shorter, the entries with greater end offsets are removed."""

    def note_end(self, broker: int, view: ReplicaView) -> None:
        """Remember the end of a replica's log. This method must be called at short intervals."""
        ends = self._ends.setdefault((broker, (view.topic_id, view.partition)), [])
        while ends and ends[-1][1] > view.log_end_offset:
            ends.pop()
        if not ends or ends[-1][1] < view.log_end_offset:
            ends.append((self._cluster.world.loop.time(), view.log_end_offset))

    def check(self) -> None:
        """Compare all replicas that running brokers have opened. Raises Violation."""
        by_partition: dict[Place, list[tuple[int, CompactedReplica]]] = {}
        for node in self._cluster.nodes:
            if not node.running:
                continue
            for view in replicas_of(node):
                if view.compacted and view.is_online:
                    records = records_of(node.host.disk.medium, view.directory)
                    replica = committed(f"{view.partition} on {node.host.name}", view, records)
                    by_partition.setdefault((view.topic_id, view.partition), []).append((node.node_id, replica))
        for place, replicas in by_partition.items():
            for _, replica in replicas:
                self._note_tombstones(place, replica)
        for place, replicas in by_partition.items():
            for broker, one in replicas:
                for _, other in replicas:
                    if one is not other:
                        compare(place[1], one, other, partial(self._may_miss_tombstone, broker, place))
                        self.compared_keys += len(other.latest)

    def _note_tombstones(self, place: Place, replica: CompactedReplica) -> None:
        if place[1].topic == CompactedTopic.name:
            for offset, record in replica.records.items():
                if record.value is None:
                    written_s = record.timestamp / 1000  # the writer takes the virtual time
                    self._tombstones.setdefault((place, bytes(record.key or b"")), {})[offset] = written_s

    def _may_miss_tombstone(self, broker: int, place: Place, key: bytes, offset: int) -> bool:
        """Return whether a tombstone of the key after `offset` may have been removed before the replica on `broker`
        fetched its offset.
        """
        retention_s = int(CompactedTopic.config["delete.retention.ms"]) / 1000
        ends = self._ends.get((broker, place), [])
        for tombstone, written_s in self._tombstones.get((place, key), {}).items():
            fetched_s = next((time_s for time_s, end in ends if end > tombstone), None)
            if tombstone > offset and fetched_s is not None and fetched_s - written_s >= retention_s:
                self.missed_tombstones += 1
                return True
        return False


def committed(name: str, view: ReplicaView, records: list[Record]) -> CompactedReplica:
    kept = [record for record in records if view.log_start_offset <= record.offset < view.high_watermark]
    latest = {bytes(record.key or b""): record for record in kept}
    return CompactedReplica(name, view.high_watermark, {record.offset: record for record in kept}, latest)


def compare(
    partition: TopicPartition,
    one: CompactedReplica,
    other: CompactedReplica,
    may_miss_tombstone: Callable[[bytes, int], bool] = lambda key, offset: False,
) -> None:
    """Check that `other` has the last records of `one`.

    `may_miss_tombstone` returns whether `one` may lack a tombstone of a key after an offset, although it is committed.
    """
    limit = min(one.high_watermark, other.high_watermark)
    for offset, record in one.records.items():
        there = other.records.get(offset)
        if there is not None and (there.key, there.value) != (record.key, record.value):
            raise Violation("SameLatestRecords", f"{one.name} has {record}, {other.name} has {there}", partition)
    latest: dict[bytes, Record] = {}
    for offset, record in one.records.items():
        if offset < limit:
            latest[bytes(record.key or b"")] = record
    for key, record in latest.items():
        there = other.latest.get(key)
        # The deletion of a key is itself removed after a time; so may be a later one, which `one` does not have yet.
        if there is None and (record.value is None or other.high_watermark > one.high_watermark):
            continue
        if there is None and may_miss_tombstone(key, record.offset):
            continue
        if there is None or there.offset < record.offset:
            text = f"{one.name} has {record} as the last record of {key!r}, {other.name} has {there}"
            raise Violation("SameLatestRecords", text, partition)
