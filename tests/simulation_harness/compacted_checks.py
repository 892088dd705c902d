"""Compare the replicas of compacted topics: their batches differ, but not the last record of a key."""

from typing import NamedTuple

from simulation_harness.cluster_inspection import ReplicaView, records_of, replicas_of
from simulation_harness.cluster_ledger import Violation
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster import SimCluster
from tidelog.wire.records import Record


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
    """

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.compared_keys = 0

    def check(self) -> None:
        """Compare all replicas that running brokers have opened. Raises Violation."""
        by_partition: dict[tuple[bytes, TopicPartition], list[CompactedReplica]] = {}
        for node in self._cluster.nodes:
            if not node.running:
                continue
            for view in replicas_of(node):
                if view.compacted and view.is_online:
                    records = records_of(node.host.disk.medium, view.directory)
                    replica = committed(f"{view.partition} on {node.host.name}", view, records)
                    by_partition.setdefault((view.topic_id, view.partition), []).append(replica)
        for (_, partition), replicas in by_partition.items():
            for one in replicas:
                for other in replicas:
                    if one is not other:
                        compare(partition, one, other)
                        self.compared_keys += len(other.latest)


def committed(name: str, view: ReplicaView, records: list[Record]) -> CompactedReplica:
    kept = [record for record in records if view.log_start_offset <= record.offset < view.high_watermark]
    latest = {bytes(record.key or b""): record for record in kept}
    return CompactedReplica(name, view.high_watermark, {record.offset: record for record in kept}, latest)


def compare(partition: TopicPartition, one: CompactedReplica, other: CompactedReplica) -> None:
    """Check that `other` has the last records of `one`."""
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
        if there is None or there.offset < record.offset:
            text = f"{one.name} has {record} as the last record of {key!r}, {other.name} has {there}"
            raise Violation("SameLatestRecords", text, partition)
