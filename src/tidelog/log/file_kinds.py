"""Classify the files in a data directory by their names: Kafka's files, and files that remain after a crash."""

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
"""Tidelog's metadata store. If a data directory contains this file, each log start offset in the directory is persisted
before the segments below this offset are deleted."""

METADATA_STORE_MARK = "metadata.store"
"""This file contains the address of the metadata store. It exists in a directory whose broker does not use
METADATA_STORE."""

DELETE_SUFFIX = "-delete"
"""If the name of a partition's directory ends with this suffix (TOPIC-INDEX.ANYTHING-delete), the directory will be
removed."""
STEM_MAX = 209
"""Maximum length, in bytes, of TOPIC-INDEX in TOPIC-INDEX.ANYTHING-delete. If an id of 32 digits and a suffix follow
TOPIC-INDEX, the name is still a legal file name."""
CUT_MARK = "~"
"""Appended to a topic's name that was shortened because of STEM_MAX."""

_SEGMENT_FILE = re.compile(r"([0-9]{20})\.(log|index|timeindex|txnindex|snapshot)")
_METADATA_SNAPSHOT = re.compile(r"[0-9]{20}-[0-9]{10}\.checkpoint")
_PARTITION = re.compile(r"(.+)-([0-9]{1,10})")
_LEFTOVER_SUFFIXES = (".deleted", ".cleaned", ".swap", ".tmp")


class Kind(Enum):
    SEGMENT = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    PRODUCERS = "snapshot"
    METADATA_SNAPSHOT = "metadata snapshot"
    """A snapshot of the metadata, written by Kafka's controllers as record batches. Its first batch has offset 0."""
    OFFSETS = "offsets"
    EPOCHS = "epochs"
    PARTITION = "partition"
    PROPERTIES = "properties"
    LEFTOVER = "left"
    """A file that an interrupted deletion, compaction or write has left behind."""
    OTHER = "other"

    # Enum's own __hash__ is a Python function, and would be called for each file at a start
    __hash__ = object.__hash__


class FileKind(NamedTuple):
    kind: Kind
    base_offset: int
    """The offset in the name of a segment's file or of a producer snapshot; 0 for all other kinds."""


SEGMENT_FILE_KINDS = (Kind.SEGMENT, Kind.OFFSET_INDEX, Kind.TIME_INDEX, Kind.TRANSACTION_INDEX)

_BY_SUFFIX = {kind.value: kind for kind in (*SEGMENT_FILE_KINDS, Kind.PRODUCERS)}
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
    """Return the kind and the base offset of the file with this name."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match:
        return FileKind(_BY_SUFFIX[match[2]], int(match[1]))
    if name in _BY_NAME:
        return FileKind(_BY_NAME[name], 0)
    if _METADATA_SNAPSHOT.fullmatch(name):
        return FileKind(Kind.METADATA_SNAPSHOT, 0)
    return FileKind(Kind.LEFTOVER if name.endswith(_LEFTOVER_SUFFIXES) else Kind.OTHER, 0)


def partition_of(name: str) -> TopicPartition | None:
    """Return the partition whose log directory is named `name` (TOPIC-INDEX); None if `name` has another form."""
    match = _PARTITION.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match else None


def aside_stem(partition: TopicPartition) -> str:
    """Return the first part of the name that a partition's directory gets when it is renamed. The second part of
    the name is `.ID-delete` or similar.

    The first part is TOPIC-INDEX. A long topic name is shortened and marked by a character that no topic name
    contains.
    """
    stem = str(partition)
    if len(stem) <= STEM_MAX:
        return stem
    ending = f"{CUT_MARK}-{partition.partition}"
    return partition.topic[: STEM_MAX - len(ending)] + ending


def retired_stem(name: str) -> str | None:
    """Return the `aside_stem` in the name of a directory that will be removed; None if `name` does not end with
    DELETE_SUFFIX.
    """
    return name.rpartition(".")[0] if name.endswith(DELETE_SUFFIX) else None


def log_name(path: str) -> str:
    """Return TOPIC-INDEX for the path of a log directory. The directory may be the copy of a partition that is being
    moved to another data directory.
    """
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] if name.endswith("-future") else name
