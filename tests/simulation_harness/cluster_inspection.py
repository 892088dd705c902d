"""The only module of the simulation that reads the internal state of running brokers, for `cluster_checks`.

When the internal structure of the broker changes, this module changes and the checks stay as they are. Reading changes
nothing: it runs no code of the broker that changes something, and uses no random number.
"""

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from tidelog.log.checkpoints import LEADER_EPOCHS, parse_epochs
from tidelog.metadata.image import MetadataImage
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster import SimNode
from tidelog.simulation.medium import Directory, Inode, Medium
from tidelog.wire.records import Record, decode_records

_BATCH = Struct(">qiibIhi")
"""The first fields of a batch: base offset, length, leader epoch, magic, CRC-32C, attributes, last offset delta."""
_LENGTH_FROM = 12
"""The length field counts the bytes of the batch after this position."""
_SEGMENT = ".log"


class ReplicaView(NamedTuple):
    """One replica of a partition in a running broker."""

    topic_id: bytes
    partition: TopicPartition
    opened: object
    """Identifies this opening of the log. If a replica was removed and is added again, this value is different."""
    is_online: bool
    """Whether the log can be read and written. The offsets of an offline replica are those before its failure."""
    is_leader: bool
    """Whether the broker leads the partition and accepts requests."""
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    isr: tuple[int, ...] | None
    """The committed ISR that the leader uses; None if this replica is not the leader."""
    partition_epoch: int | None
    """The partition epoch of `isr`."""
    compacted: bool
    directory: str
    epochs: tuple[tuple[int, int], ...] | None = None
    """The leader epochs of the log and their first offsets; None while the log is cut."""


class BatchView(NamedTuple):
    """One batch in a file of a log. Equal batches have equal fields."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int


class LogPosition(NamedTuple):
    """The position in a log up to which its batches were read."""

    segment: str = ""
    position: int = 0
    next_offset: int = -1


def image_of(node: SimNode) -> MetadataImage | None:
    """Return the newest metadata that the broker has received; None before it has any."""
    broker = node.broker
    if broker is None or broker._cache.newest.position == 0:
        return None
    return broker._cache.newest


def processed_image_of(node: SimNode) -> MetadataImage | None:
    """Return the newest metadata whose file work is done; None if the broker does not run."""
    return None if node.broker is None else node.broker._cache.processed


def replicas_of(node: SimNode, seen: dict[object, tuple[object, ...]] | None = None) -> Iterator[ReplicaView]:
    """Yield the replicas that the broker has opened.

    If `seen` is given, yield only the replicas that have changed since the last call with the same `seen`. It contains
    the state of each replica that a call has yielded.
    """
    broker = node.broker
    if broker is None or broker._services is None:
        return
    is_listening = bool(broker._listeners)
    for partition in broker._services.partitions:
        if partition.deleted:
            continue
        log, replica = partition.log, partition.replica
        isr = replica.isr
        state = (
            log.failure is None,
            is_listening and replica.leads,
            partition.leader_epoch,
            log.log_start_offset,
            partition.high_watermark,
            log.log_end_offset,
            None if isr is None else isr.committed,
            None if isr is None else isr.partition_epoch,
            partition.config.compacts,
            log.directory,
            None if log.is_being_cut else tuple(log.epochs.entries()),
        )
        if seen is not None:
            if seen.get(partition) == state:
                continue
            seen[partition] = state
        name = TopicPartition(partition.topic, partition.index)
        yield ReplicaView(partition.topic_id, name, partition, *state)


def broker_epoch_of(node: SimNode) -> int:
    """Return the epoch with which the running process has registered; -1 before that."""
    return getattr(node.broker, "broker_epoch", -1)


def leads(node: SimNode, directory: str) -> bool:
    """Return whether the broker leads the partition whose files are in a directory of this name."""
    broker = node.broker
    if broker is None or broker._services is None:
        return False
    return any(
        partition.replica.leads and partition.log.directory.rpartition("/")[2] == directory
        for partition in broker._services.partitions
    )


def needs_restart(node: SimNode) -> bool:
    """Return whether the broker runs but has stopped working, so that only a restart helps."""
    broker = node.broker
    if broker is None or broker._services is None:
        return False
    if broker._failed.done() or broker._services.partitions.offline_count > 0:
        return True
    # With a store of its own, a broker that has lost its lease refuses changes until a restart.
    has_own_store = not node._cluster.has_several_brokers
    return has_own_store and broker.controller is not None and broker.controller._refuses_until_restart


def stored_epochs(medium: Medium, directory: str) -> list[tuple[int, int]]:
    """Return the leader epochs in the checkpoint file of a log."""
    path = f"{directory}/{LEADER_EPOCHS}"
    try:
        return parse_epochs(bytes(medium.inode(path).cached), path)
    except OSError:  # it was not written yet
        return []


def batches_of(
    medium: Medium, view: ReplicaView, after: LogPosition, end_offset: int
) -> tuple[list[BatchView], LogPosition]:
    """Read the batches below `end_offset` that follow `after` in the files of the replica. Returns them and the new
    position. If the segment of `after` was removed or replaced, reading begins at the log start offset.
    """
    files = _segments(medium, view.directory)
    current = files.get(after.segment)
    if current is None or len(current.cached) < after.position:
        after = LogPosition(next_offset=view.log_start_offset)
    found: list[BatchView] = []
    segment, position, next_offset = after
    for name in sorted(files):
        if name < segment:
            continue
        content = files[name].cached
        if name != segment:
            segment, position = name, 0
        while position + _BATCH.size <= len(content):
            base, length, epoch, _, crc, _, delta = _BATCH.unpack_from(content, position)
            if length <= 0 or base + delta >= end_offset:
                break
            position += _LENGTH_FROM + length
            if base + delta >= next_offset:
                found.append(BatchView(base, base + delta, epoch, crc))
                next_offset = base + delta + 1
    return found, LogPosition(segment, position, next_offset)


def records_of(medium: Medium, directory: str) -> list[Record]:
    """Return all records in the files of a log, also those above the high watermark and below the log start offset."""
    files = _segments(medium, directory)
    found: list[Record] = []
    for name in sorted(files):
        content = bytes(files[name].cached)
        position = 0
        while position + _BATCH.size <= len(content):
            length = _BATCH.unpack_from(content, position)[1]
            if length <= 0 or position + _LENGTH_FROM + length > len(content):
                break
            end = position + _LENGTH_FROM + length
            found += _decoded(content[position:end])
            position = end
    return found


@lru_cache(maxsize=10_000)
def _decoded(batch: bytes) -> tuple[Record, ...]:
    return tuple(decode_records(batch, 0))


def _segments(medium: Medium, directory: str) -> dict[str, Inode]:
    try:
        node = medium.directory(directory)
    except OSError:  # deleted or moved
        return {}
    assert isinstance(node, Directory)
    return {name: inode for name, inode in node.cached.items() if name.endswith(_SEGMENT) and isinstance(inode, Inode)}
