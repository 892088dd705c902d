"""What stands in a partition's directory at its opening: half-done deletions and swaps are settled, the rest is sorted.

.deleted, .cleaned, .tmp    never finished or not wanted: removed
.swap                       a cleaned segment whose replacement of older ones had begun: finished
"""

import logging
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.batch_scan import BASE_OFFSET, LAST_OFFSET_DELTA, headers
from tidelog.log.file_kinds import OF_SEGMENT, Kind, file_kind
from tidelog.log.segment import DELETED_SUFFIX, LOG_SUFFIX, SUFFIXES, file_name

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

logger = logging.getLogger("tidelog.log")

SWAP_SUFFIX = ".swap"
CLEANED_SUFFIX = ".cleaned"
UNWANTED = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")


class Found(NamedTuple):
    """Base offsets of segments and of transaction indexes, offsets of snapshots, all rising."""

    segments: list[int]
    transaction_indexes: list[int]
    snapshots: list[int]
    has_epochs: bool


def settle_files(disk: "Disk", directory: str) -> Found:
    """Make the directory if it is missing, finish what a crash interrupted, and tell what is there. Raises OSError."""
    try:
        names = disk.list(directory)
    except FileNotFoundError:
        disk.make_dirs(directory)
        return Found([], [], [], has_epochs=False)
    if any(name.endswith((SWAP_SUFFIX, *UNWANTED)) for name in names):
        _finish_swaps(disk, directory, names)
        for name in names:
            if name.endswith(UNWANTED):
                disk.remove(f"{directory}/{name}")
        disk.sync_dir(directory)
        names = disk.list(directory)
    by_kind: dict[Kind, list[int]] = {kind: [] for kind in Kind}
    for name in names:
        kind, base_offset = file_kind(name)
        by_kind[kind].append(base_offset)
    segments = by_kind[Kind.SEGMENT]
    for kind in OF_SEGMENT[1:]:
        for base_offset in [offset for offset in by_kind[kind] if offset not in segments]:
            path = f"{directory}/{file_name(base_offset, '.' + kind.value)}"
            logger.warning("index without a segment removed path=%s", path)
            disk.remove(path)
            by_kind[kind].remove(base_offset)
    has_epochs = bool(by_kind[Kind.EPOCHS])
    return Found(segments, by_kind[Kind.TRANSACTION_INDEX], by_kind[Kind.PRODUCERS], has_epochs)


def _finish_swaps(disk: "Disk", directory: str, names: list[str]) -> None:
    """Put each `.swap` segment in the place of those whose offsets it covers.

    A swap set is complete only if no `.cleaned` file is left at or before it: then its files were all renamed.
    """
    cleaned = [int(name[:20]) for name in names if name.endswith(LOG_SUFFIX + CLEANED_SUFFIX) and name[:20].isdecimal()]
    incomplete_from = min(cleaned, default=1 << 63)
    swaps = [int(name[:20]) for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX) and name[:20].isdecimal()]
    for base_offset in swaps:
        path = f"{directory}/{file_name(base_offset, LOG_SUFFIX)}{SWAP_SUFFIX}"
        if base_offset >= incomplete_from:
            continue
        end_offset = _end_offset(disk, path, base_offset)
        for name in names:
            kind, offset = file_kind(name)
            if kind in OF_SEGMENT and base_offset <= offset < max(end_offset, base_offset + 1):
                disk.remove(f"{directory}/{name}")
        for suffix in SUFFIXES:
            swap = f"{directory}/{file_name(base_offset, suffix)}{SWAP_SUFFIX}"
            if disk.exists(swap):
                disk.rename(swap, swap[: -len(SWAP_SUFFIX)])
        logger.warning("cleaned segment swapped in path=%s", path)
    for name in names:
        if name.endswith(SWAP_SUFFIX) and disk.exists(f"{directory}/{name}"):
            disk.remove(f"{directory}/{name}")


def _end_offset(disk: "Disk", path: str, base_offset: int) -> int:
    file = disk.open(path)
    try:
        end_offset = base_offset
        for _, _, fields in headers(file, 0, file.size(), base_offset):
            end_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
        return end_offset
    finally:
        file.close()
