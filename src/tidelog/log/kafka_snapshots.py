"""Remove Kafka's producer snapshots if it is not certain that all records below their offsets are on the disk.

Tidelog writes a snapshot only after all records below its offset are durable, and recovery relies on this. When Kafka
begins a new segment, it writes the snapshot first, and then syncs the closed segment. After a power cut, such a
snapshot may exist although the segment lacks records. Only the recovery point shows which records Kafka has synced.
"""

import logging
from typing import TYPE_CHECKING

from tidelog.log.file_kinds import Kind, file_kind
from tidelog.log.leftovers import CLEANED_SUFFIX, SWAP_SUFFIX
from tidelog.log.segment import DELETED_SUFFIX, LOG_SUFFIX, file_name

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

logger = logging.getLogger("tidelog.log")


def remove_unproved_snapshots(disk: "Disk", directory: str, recovery_point: int) -> None:
    """Remove, durably, the snapshots above the recovery point in the log directory `directory`. Must be called before
    the log is opened, and only if Kafka did not stop cleanly. Blocks. Raises OSError.

    A log that was being compacted keeps its snapshots. Above the recovery point, it may have gaps although no record is
    lost. Without a snapshot after such a gap, recovery would remove the segments after the gap. The clean offset does
    not explain these gaps, because Kafka writes it only at the end of a pass.
    """
    names = disk.list(directory)
    kinds = [file_kind(name) for name in names]
    first = min((base_offset for kind, base_offset in kinds if kind is Kind.SEGMENT), default=0)
    known_end = max(recovery_point, first)
    unproved = [offset for kind, offset in kinds if kind is Kind.PRODUCERS and offset > known_end]
    if not unproved or _was_being_compacted(names, first):
        return
    for offset in unproved:
        disk.remove(f"{directory}/{file_name(offset, '.snapshot')}")
    disk.sync_dir(directory)
    logger.info(
        "producer snapshots removed path=%s count=%d reason=Kafka did not stop cleanly, and records from offset %d on "
        "may be missing",
        directory,
        len(unproved),
        known_end,
    )


def _was_being_compacted(names: list[str], first_base_offset: int) -> bool:
    """Return whether files show that a pass of compaction was running. The replaced files of a pass remain for
    `file.delete.delay.ms`. By default, this is as long as the interval at which Kafka writes recovery points. Retention
    also leaves `.deleted` files, but only below the first segment.
    """
    deleted_log = LOG_SUFFIX + DELETED_SUFFIX
    return any(
        name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))
        or (name[20:] == deleted_log and name[:20].isdecimal() and int(name[:20]) >= first_base_offset)
        for name in names
    )
