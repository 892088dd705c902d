"""The files of a partition that is being moved to another data directory (KIP-113).

    1. TARGET/TOPIC-N.RANDOM-future/   the copy grows until it has all records
    2. TARGET/TOPIC-N/                 the mark `takes-over` is written into the copy; then the copy is renamed to
                                       this name, durably
    3. SOURCE/TOPIC-N.RANDOM-delete/   the old log is renamed, durably; then the mark is removed, durably

Records that are appended during step 2 are copied after step 2. Records that are appended during step 2 or 3 are
acknowledged only after step 3. If a crash leaves two logs of the same name, the old one is used, because it has every
acknowledged record. There is one exception: a mark with the content `final` means that the old log could not be
renamed, and that the copy may have newer records. `interrupted_moves` makes this decision, also for the case that a
data directory is missing.

A partition is not compacted while it is being moved, so a copy has no `.cleaned` and `.swap` files.
"""

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.log.checkpoints import read_partition_metadata
from tidelog.log.errors import CorruptLog
from tidelog.log.file_kinds import DELETE_SUFFIX, aside_stem
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog.log.directory import DataDirectory
    from tidelog.runtime.interfaces import Disk

FUTURE_SUFFIX: Final = "-future"
TAKES_OVER: Final = "takes-over"
FINAL: Final = b"final"
_FUTURE = re.compile(r"(.+)-([0-9]{1,10})\.[0-9a-f]{32}-future")


class UnfinishedCopy(NamedTuple):
    """The copy of an interrupted move, which the broker has found when it started."""

    partition: TopicPartition
    target: "DataDirectory"
    path: str


def can_move(partition: TopicPartition) -> bool:
    """Return whether the partition's name is short enough that the name of a copy is a legal file name."""
    return aside_stem(partition) == str(partition)


def future_path(target: str, partition: TopicPartition, random: bytes) -> str:
    """Return the path of a new copy; `random` is 16 bytes."""
    return f"{target}/{partition}.{random.hex()}{FUTURE_SUFFIX}"


def unfinished_copy(directory: "DataDirectory", name: str) -> UnfinishedCopy | None:
    """Return the unfinished copy in the subdirectory `name`; None if `name` is not the name of a copy."""
    match = _FUTURE.fullmatch(name)
    if match is None:
        return None
    return UnfinishedCopy(TopicPartition(match[1], int(match[2])), directory, f"{directory.path}/{name}")


def rename_copy(disk: "Disk", future: str, source: str, partition: TopicPartition) -> None:
    """Durably rename the finished and synced copy to the log's name. Blocks.

    Raises OSError. After an error, the copy has its old or its new name, and the log in `source` is still the valid
    one.
    """
    target = future.rpartition("/")[0]
    old_mark = f"{source}/{partition}/{TAKES_OVER}"
    if disk.exists(old_mark):  # it remained from the move that brought the log to `source`
        disk.remove(old_mark)
        disk.sync_dir(f"{source}/{partition}")
    disk.write_atomic(f"{future}/{TAKES_OVER}", b"")
    disk.rename(future, f"{target}/{partition}")
    disk.sync_dir(target)


def may_belong_to(disk: "Disk", directory: str, partition: TopicPartition, topic_id: bytes, random: bytes) -> bool:
    """Return whether `retire_log` with the same arguments may be called for a log of the topic `topic_id`. It may not
    if the partition's name in `directory` belongs to a newer topic, or does not exist any more. Raises OSError.
    """
    path = f"{directory}/{partition}"
    if disk.exists(f"{path}.{random.hex()}{DELETE_SUFFIX}"):
        return True  # an earlier call of `retire_log` has renamed the log
    try:
        return read_partition_metadata(disk, path) == topic_id
    except CorruptLog:
        return True  # the file is damaged; in a new log it would be complete


def retire_log(disk: "Disk", source: str, partition: TopicPartition, random: bytes) -> str:
    """Durably rename the log in `source` to a name that marks it for removal. Return its new path. Blocks.

    Raises OSError. After an error, this function may be called again with the same `random`. If the process ends
    without a successful call, the next start uses this log and not the copy, unless `make_final` was called.
    """
    retired = f"{source}/{partition}.{random.hex()}{DELETE_SUFFIX}"
    if not disk.exists(retired):
        disk.rename(f"{source}/{partition}", retired)
    disk.sync_dir(source)
    return retired


def make_final(disk: "Disk", target: str, partition: TopicPartition) -> None:
    """Mark the copy as the valid log, because the old log could not be renamed. Blocks. Raises OSError."""
    disk.write_atomic(f"{target}/{partition}/{TAKES_OVER}", FINAL)


def remove_mark(disk: "Disk", target: str, partition: TopicPartition) -> None:
    """Durably remove the mark `takes-over` at the end of the move. Raises OSError.

    If the mark came back later, and the old log, too, for example with a disk that was away, the next start would use
    the old log.
    """
    disk.remove(f"{target}/{partition}/{TAKES_OVER}")
    disk.sync_dir(f"{target}/{partition}")


def has_mark(disk: "Disk", path: str) -> bool:
    """Return whether the log in `path` has the mark `takes-over`. If so, it is a copy that already has its final
    name, and the old log in the source directory may still have the same name.
    """
    return disk.exists(f"{path}/{TAKES_OVER}")


def is_final(disk: "Disk", path: str) -> bool:
    return disk.read(f"{path}/{TAKES_OVER}") == FINAL


def rename_back(disk: "Disk", target: str, partition: TopicPartition, random: bytes) -> str:
    """Durably rename the copy back to the name of an unfinished copy, because the old log is valid. Returns the new
    path. Blocks. Raises OSError.
    """
    path = future_path(target, partition, random)
    disk.rename(f"{target}/{partition}", path)
    disk.sync_dir(target)
    return path
