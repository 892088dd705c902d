"""A partition that no consumer reads does not remember the transactions whose markers are committed."""

from types import SimpleNamespace
from typing import Any

from log_harness import LogOnDisk, leads_alone, make_batch
from tidelog.log.producer_state import PRODUCERS_MAX
from tidelog.replication.partition import Partition
from tidelog.replication.replica import BecameFollower, LeaderHighWatermark
from tidelog.wire.batches import BatchHeader
from tidelog.wire.control_batches import marker_batch

PRODUCER_ID = 7


def partition_of(disk: LogOnDisk) -> Partition:
    clock: Any = SimpleNamespace(now_ms=int(disk.now_ms).__int__, monotonic=float)
    flusher: Any = SimpleNamespace(dirty={})
    tasks: Any = None
    replica = leads_alone(disk.log)
    return Partition(
        "t", bytes(16), 0, disk.log, replica=replica, internal=False, clock=clock, tasks=tasks, flusher=flusher
    )


def transaction(number: int) -> tuple[bytearray, bytearray]:
    """Return the records and the marker of a transaction."""
    records = make_batch(b"v", producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=number, is_transactional=True)
    return records, marker_batch(PRODUCER_ID, 0, 0, is_commit=number % 2 == 0, timestamp=1)


def remembered(disk: LogOnDisk) -> int:
    return len(disk.log.producers._replicating)


def write_as_leader(partition: Partition, count: int) -> None:
    for number in range(count):
        records, marker = transaction(number)
        partition.append(memoryview(records), BatchHeader(records))
        partition.append_batch(marker)


def test_a_leader_forgets_transactions_with_committed_markers() -> None:
    disk = LogOnDisk()
    partition = partition_of(disk)
    write_as_leader(partition, 20)
    assert partition.high_watermark == disk.log.log_end_offset == 40
    assert remembered(disk) == 0


def test_a_follower_forgets_transactions_with_committed_markers() -> None:
    disk = LogOnDisk()
    partition = partition_of(disk)
    epoch = partition.leader_epoch + 1
    partition.step(BecameFollower(epoch, 2))
    for number in range(20):
        for batch in transaction(number):
            BatchHeader(batch).assign(base_offset=disk.log.log_end_offset, leader_epoch=epoch)
            partition.append_as_follower(memoryview(batch), epoch)
        partition.step(LeaderHighWatermark(epoch, disk.log.log_end_offset - 2))
    assert remembered(disk) == 2, "of the last transaction, and of one whose marker was not below the high watermark"
    assert disk.log.last_stable_offset_below(partition.high_watermark) == 38


def test_retention_forgets_transactions_that_were_replayed_at_the_start() -> None:
    disk = LogOnDisk()
    write_as_leader(partition_of(disk), 20)
    disk.kill()
    assert remembered(disk) == 20
    disk.retain(disk.now_ms, 30)
    assert remembered(disk) == 5
    disk.retain(disk.now_ms)
    assert remembered(disk) == 0


def test_markers_of_unknown_producers_are_remembered_within_the_limit_of_producers() -> None:
    disk = LogOnDisk()
    disk.log.producers.producers_max = 50
    partition = partition_of(disk)
    for producer_id in range(200):
        partition.append_batch(marker_batch(producer_id, 0, 0, is_commit=False, timestamp=1))
    assert len(disk.log.producers.entries) <= 50 < PRODUCERS_MAX
    assert 199 in disk.log.producers.entries
