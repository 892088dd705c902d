"""The kinds of files in a data directory, by their names: Kafka's, with what a crash leaves of them."""

import re
from enum import Enum
from typing import NamedTuple

from tidelog.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
)
from tidelog.model.ids import TopicPartition

METADATA_STORE = "metadata.sqlite"
"""Tidelog's own; in a directory that has it, start offsets are persisted before the files below them go."""

DELETE_SUFFIX = "-delete"
"""Of a partition's directory that is to be removed: TOPIC-INDEX.ANYTHING-delete."""
STEM_MAX = 209
"""Of the part before the dot, in bytes: with an id of 32 digits, a number and an ending it is a file's name still."""
CUT = "~"
"""Ends a topic's name that was cut to that."""

_OF_SEGMENT = re.compile(r"([0-9]{20})\.(log|index|timeindex|txnindex|snapshot)")
_METADATA_SNAPSHOT = re.compile(r"[0-9]{20}-[0-9]{10}\.checkpoint")
_PARTITION = re.compile(r"(.+)-([0-9]{1,10})")
_LEFT = (".deleted", ".cleaned", ".swap", ".tmp")


class Kind(Enum):
    SEGMENT = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    PRODUCERS = "snapshot"
    METADATA_SNAPSHOT = "metadata snapshot"
    """Record batches from offset 0 on, of Kafka's controllers."""
    OFFSETS = "offsets"
    EPOCHS = "epochs"
    PARTITION = "partition"
    PROPERTIES = "properties"
    LEFT = "left"
    """By an interrupted deletion, cleaning or write."""
    OTHER = "other"

    __hash__ = object.__hash__  # Enum's own is a call into Python, for each file of a start


class FileKind(NamedTuple):
    kind: Kind
    base_offset: int
    """That the name states; 0 when it states none."""


OF_SEGMENT = (Kind.SEGMENT, Kind.OFFSET_INDEX, Kind.TIME_INDEX, Kind.TRANSACTION_INDEX)

_BY_SUFFIX = {kind.value: kind for kind in (*OF_SEGMENT, Kind.PRODUCERS)}
_BY_NAME = {
    "bootstrap.checkpoint": Kind.METADATA_SNAPSHOT,
    RECOVERY_POINTS: Kind.OFFSETS,
    LOG_START_OFFSETS: Kind.OFFSETS,
    HIGH_WATERMARKS: Kind.OFFSETS,
    CLEANER_OFFSETS: Kind.OFFSETS,
    LEADER_EPOCHS: Kind.EPOCHS,
    PARTITION_METADATA: Kind.PARTITION,
    META_PROPERTIES: Kind.PROPERTIES,
}


def file_kind(name: str) -> FileKind:
    match = _OF_SEGMENT.fullmatch(name)
    if match:
        return FileKind(_BY_SUFFIX[match[2]], int(match[1]))
    if name in _BY_NAME:
        return FileKind(_BY_NAME[name], 0)
    if _METADATA_SNAPSHOT.fullmatch(name):
        return FileKind(Kind.METADATA_SNAPSHOT, 0)
    return FileKind(Kind.LEFT if name.endswith(_LEFT) else Kind.OTHER, 0)


def partition_of(name: str) -> TopicPartition | None:
    """Whose log a directory of this name holds, TOPIC-INDEX; None when it is no live partition's."""
    match = _PARTITION.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match else None


def aside_stem(partition: TopicPartition) -> str:
    """What the name of a partition's directory begins with once it is put aside, before `.ID-delete` or the like:
    TOPIC-INDEX; a long topic is cut there, and marked by what no topic's name has.
    """
    stem = str(partition)
    if len(stem) <= STEM_MAX:
        return stem
    ending = f"{CUT}-{partition.partition}"
    return partition.topic[: STEM_MAX - len(ending)] + ending


def retired_stem(name: str) -> str | None:
    """The `aside_stem` of the partition whose log a directory of this name held before it was put aside to be
    removed.
    """
    return name.rpartition(".")[0] if name.endswith(DELETE_SUFFIX) else None


def log_name(path: str) -> str:
    """TOPIC-INDEX of a log's directory, also of a copy that is on its way to another data directory."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] if name.endswith("-future") else name
