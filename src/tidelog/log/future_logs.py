"""The copy of a partition that is on its way to another data directory, on the disk (KIP-113).

    TARGET/TOPIC-N.RANDOM-future/    grows until it holds what the log holds
    TARGET/TOPIC-N/                  then gets the log's name, with the mark `takes-over` in it; durable before
    SOURCE/TOPIC-N.RANDOM-delete/    the old log loses its name; when that is durable the mark goes

What is appended between the second step and the end of the third is not acknowledged. Of two logs with the name, as a
crash may leave them, the old one counts: it holds everything that was acknowledged. Unless the mark says `final`: the
old one could not be renamed, and appends went on in the copy.

Nothing is compacted while it moves: `.cleaned` and `.swap` files are never those of a copy.
"""

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.log.file_kinds import DELETE_SUFFIX, aside_stem
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog.log.directory import DataDirectory
    from tidelog.runtime.interfaces import Disk

FUTURE_SUFFIX: Final = "-future"
TAKES_OVER: Final = "takes-over"
FINAL: Final = b"final"
_FUTURE = re.compile(r"(.+)-([0-9]{1,10})\.[0-9a-f]{32}-future")


class FoundFuture(NamedTuple):
    """A copy that an earlier broker had begun to make."""

    partition: TopicPartition
    target: "DataDirectory"
    path: str


def can_move(partition: TopicPartition) -> bool:
    """Whether a copy's name is short enough to be a file's."""
    return aside_stem(partition) == str(partition)


def future_path(target: str, partition: TopicPartition, random: bytes) -> str:
    """Where a new copy is made; `random` is 16 bytes."""
    return f"{target}/{partition}.{random.hex()}{FUTURE_SUFFIX}"


def found_future(directory: "DataDirectory", name: str) -> FoundFuture | None:
    match = _FUTURE.fullmatch(name)
    if match is None:
        return None
    return FoundFuture(TopicPartition(match[1], int(match[2])), directory, f"{directory.path}/{name}")


def put_beside(disk: "Disk", future: str, source: str, partition: TopicPartition) -> None:
    """Give the finished copy, in which everything is durable, the log's name, durably. Blocks.

    Raises OSError: then the copy is under either name, and the log in `source` is still the one that counts.
    """
    target = future.rpartition("/")[0]
    stale = f"{source}/{partition}/{TAKES_OVER}"
    if disk.exists(stale):
        disk.remove(stale)
        disk.sync_dir(f"{source}/{partition}")
    disk.write_atomic(f"{future}/{TAKES_OVER}", b"")
    disk.rename(future, f"{target}/{partition}")
    disk.sync_dir(target)


def put_aside(disk: "Disk", source: str, partition: TopicPartition, random: bytes) -> str:
    """Take the old log's name from it, durably; where it is now. Blocks.

    Raises OSError: then it may be called again, or the next start does it.
    """
    old = f"{source}/{partition}.{random.hex()}{DELETE_SUFFIX}"
    if not disk.exists(old):
        disk.rename(f"{source}/{partition}", old)
    disk.sync_dir(source)
    return old


def make_final(disk: "Disk", target: str, partition: TopicPartition) -> None:
    """The old log could not be put aside: from now on the copy counts all the same. Blocks. Raises OSError."""
    disk.write_atomic(f"{target}/{partition}/{TAKES_OVER}", FINAL)


def settled(disk: "Disk", target: str, partition: TopicPartition) -> None:
    """The move is over: the mark goes."""
    disk.remove(f"{target}/{partition}/{TAKES_OVER}")


def has_mark(disk: "Disk", path: str) -> bool:
    """Whether the log in the directory `path` is a copy that was put beside another."""
    return disk.exists(f"{path}/{TAKES_OVER}")


def is_final(disk: "Disk", path: str) -> bool:
    return disk.read(f"{path}/{TAKES_OVER}") == FINAL


def take_back(disk: "Disk", target: str, partition: TopicPartition) -> str:
    """Make the copy a copy again, durably, where the old log counts; its path. Blocks. Raises OSError."""
    path = future_path(target, partition, bytes(16))
    disk.rename(f"{target}/{partition}", path)
    disk.sync_dir(target)
    return path
