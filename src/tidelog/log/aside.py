"""Rename the directories of partitions that are no longer used. Every function blocks and raises OSError.

-delete    a deleted partition, or a replica that was removed from this broker: the directory is deleted later
-stray     the directory possibly belongs to another topic: it is kept
"""

import logging
from typing import TYPE_CHECKING, Final

from tidelog.log.checkpoints import read_partition_metadata
from tidelog.log.errors import CorruptLog
from tidelog.log.file_kinds import DELETE_SUFFIX, aside_stem, retired_stem
from tidelog.model.ids import uuid_text

if TYPE_CHECKING:
    from tidelog.model.ids import TopicPartition
    from tidelog.runtime.interfaces import Disk

logger = logging.getLogger("tidelog.directory")

STRAY_SUFFIX: Final = "-stray"
UNREADABLE_ID: Final = b""
"""Used in place of a topic id that cannot be read."""


def read_id(disk: "Disk", path: str, *, accept_damage: bool) -> bytes | None:
    """Return the topic id in the file `partition.metadata`, or None if this file is missing. If the file is damaged,
    return UNREADABLE_ID if `accept_damage` is true, and raise CorruptLog otherwise.
    """
    try:
        return read_partition_metadata(disk, path)
    except CorruptLog:
        if accept_damage:
            return UNREADABLE_ID
        raise


def make_way(disk: "Disk", directory: str, key: "TopicPartition", topic_id: bytes) -> None:
    """Rename the partition's directory in the data directory `directory`, if there is one. If it has the topic id
    `topic_id`, it belongs to a replica that was removed from this broker, and the next start deletes it. If it has
    another topic id, or no readable one, it gets the suffix `-stray`.
    """
    path = f"{directory}/{key}"
    stored_id = read_id(disk, path, accept_damage=True)
    if not disk.exists(path):
        return
    if stored_id == topic_id:
        target = _free_name(disk, directory, key, topic_id, DELETE_SUFFIX)
        logger.warning("removed replica renamed path=%s as=%s", path, target)
    else:
        target = _free_name(disk, directory, key, stored_id or topic_id, STRAY_SUFFIX)
        # The directory usually belongs to a deleted topic. But it may also be the directory of this topic, with a
        # damaged topic id. Therefore an error is logged.
        logger.error("partition of another topic renamed path=%s as=%s", path, target)
    disk.rename(path, target)
    disk.sync_dir(directory)


def put_aside(disk: "Disk", directory: str, key: "TopicPartition", topic_id: bytes, *, is_open: bool) -> str | None:
    """Rename the directory of a deleted partition; the caller syncs `directory`. Returns the new path, or None if the
    caller has no directory to remove: the directory does not exist, it belongs to another topic (then it keeps its
    name), or its topic id is unreadable (then it gets the suffix `-stray`).

    `is_open`: the partition's log is open, so its directory exists and has the topic id.
    """
    path = f"{directory}/{key}"
    suffix = DELETE_SUFFIX
    if not is_open:
        stored_id = read_id(disk, path, accept_damage=True)
        if stored_id not in (None, UNREADABLE_ID, topic_id) or not disk.exists(path):
            return None  # if it belongs to an older topic, `make_way` will rename it
        if stored_id == UNREADABLE_ID:
            suffix = STRAY_SUFFIX  # it may belong to another topic, so it must not be removed
            logger.error("partition with an unreadable id renamed path=%s", path)
    target = _free_name(disk, directory, key, topic_id, suffix)
    disk.rename(path, target)
    return target if suffix == DELETE_SUFFIX else None


def stem_of_retired(path: str) -> str | None:
    """Return the part of the directory's name that names the partition (see `aside_stem`). Return None if the name does
    not end with DELETE_SUFFIX.
    """
    return retired_stem(path.rpartition("/")[2])


def _free_name(disk: "Disk", directory: str, key: "TopicPartition", topic_id: bytes, suffix: str) -> str:
    name = f"{directory}/{aside_stem(key)}.{uuid_text(topic_id)}"
    number = 0
    while disk.exists(path := f"{name}{f'_{number}' if number else ''}{suffix}"):
        number += 1
    return path
