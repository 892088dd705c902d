"""Classify the files of a partition's directory when the log is opened, and finish interrupted deletions and swaps.

.deleted, .cleaned, .tmp   incomplete files, or files that are no longer needed: they are removed
.swap                      files of a compacted segment: if their swap had begun, it is finished;
                           otherwise they are removed
"""

import logging
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.batch_scan import BASE_OFFSET, LAST_OFFSET_DELTA, headers
from tidelog.log.file_kinds import SEGMENT_FILE_KINDS, Kind, file_kind
from tidelog.log.segment import DELETED_SUFFIX, LOG_SUFFIX, SUFFIXES, file_name

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

logger = logging.getLogger("tidelog.log")

SWAP_SUFFIX = ".swap"
CLEANED_SUFFIX = ".cleaned"
REMOVED_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")
TEMPORARY_SUFFIXES = (SWAP_SUFFIX, *REMOVED_SUFFIXES)
"""Suffixes of file names. After `settle_files`, no file has a name with one of them."""


class DirectoryFiles(NamedTuple):
    """Base offsets of segments and of transaction indexes, and offsets of producer snapshots, all ascending.
    `has_epochs` says whether there is a checkpoint of leader epochs.
    """

    segments: list[int]
    transaction_indexes: list[int]
    snapshots: list[int]
    has_epochs: bool


def settle_files(disk: "Disk", directory: str) -> DirectoryFiles:
    """Create the directory if it is missing, finish interrupted deletions and swaps, remove indexes without a segment,
    and classify the files that remain. Raises OSError, and CorruptLog if a `.swap` log file is damaged.
    """
    try:
        names = disk.list(directory)
    except FileNotFoundError:
        disk.make_dirs(directory)
        return DirectoryFiles([], [], [], has_epochs=False)
    if any(name.endswith(TEMPORARY_SUFFIXES) for name in names):
        _finish_swaps(disk, directory, names)
        for name in disk.list(directory):
            if name.endswith(REMOVED_SUFFIXES):
                disk.remove(f"{directory}/{name}")
        disk.sync_dir(directory)
        names = disk.list(directory)
    by_kind: dict[Kind, list[int]] = {kind: [] for kind in Kind}
    for name in names:
        kind, base_offset = file_kind(name)
        by_kind[kind].append(base_offset)
    segments = by_kind[Kind.SEGMENT]
    for kind in SEGMENT_FILE_KINDS[1:]:
        for base_offset in [offset for offset in by_kind[kind] if offset not in segments]:
            path = f"{directory}/{file_name(base_offset, '.' + kind.value)}"
            logger.warning("orphaned index removed path=%s", path)
            disk.remove(path)
            by_kind[kind].remove(base_offset)
    has_epochs = bool(by_kind[Kind.EPOCHS])
    return DirectoryFiles(segments, by_kind[Kind.TRANSACTION_INDEX], by_kind[Kind.PRODUCERS], has_epochs)


def _finish_swaps(disk: "Disk", directory: str, names: list[str]) -> None:
    """Finish the swaps that had begun: replace the segments whose offsets are covered by a `.swap` segment.

    A `.log.cleaned` file shows that its swap had not begun. Therefore `.swap` files at the offset of this file or above
    are discarded, and only the swaps at lower offsets are finished.
    """
    incomplete_from = min(_base_offsets(names, LOG_SUFFIX + CLEANED_SUFFIX), default=1 << 63)
    for base_offset in sorted(
        dict.fromkeys(b for suffix in SUFFIXES for b in _base_offsets(names, suffix + SWAP_SUFFIX))
    ):
        if base_offset >= incomplete_from:
            continue
        path = f"{directory}/{file_name(base_offset, LOG_SUFFIX)}"
        # While the name of the new log file ends with `.swap`, some of the replaced files may still have final names.
        if disk.exists(path + SWAP_SUFFIX):
            end_offset = max(_end_offset(disk, path + SWAP_SUFFIX, base_offset), base_offset + 1)
            for name in names:
                kind, offset = file_kind(name)
                if kind in SEGMENT_FILE_KINDS and base_offset <= offset < end_offset:
                    disk.remove(f"{directory}/{name}")
            # Rename the new index files to `.swap`, too. A crash may have prevented or undone these renames.
            for suffix in SUFFIXES[1:]:
                cleaned = f"{directory}/{file_name(base_offset, suffix)}{CLEANED_SUFFIX}"
                if disk.exists(cleaned):
                    disk.rename(cleaned, cleaned[: -len(CLEANED_SUFFIX)] + SWAP_SUFFIX)
            disk.sync_dir(directory)
        put_in_place(disk, directory, base_offset)
        logger.warning("interrupted swap of a compacted segment completed path=%s", path)
    remaining = [name for name in names if name.endswith(SWAP_SUFFIX) and disk.exists(f"{directory}/{name}")]
    for name in remaining:
        disk.remove(f"{directory}/{name}")
    if remaining:
        # The removal must be durable before the `.cleaned` log is removed. Otherwise, after another crash, an index
        # from the discarded `.swap` set could remain without its log. The next start would then install this index as
        # an index of the segment in use.
        disk.sync_dir(directory)


def remove_cleaned(disk: "Disk", directory: str) -> None:
    """Remove the `.cleaned` files of an interrupted compaction pass. If a `.log.cleaned` file remained, the next
    start would discard every swap at the offset of this file or above, even a swap that had begun.

    Must not be called while there are `.swap` files, because an incomplete set of `.swap` files would then look
    complete. Blocks. A missing directory is not an error. Raises OSError.
    """
    if disk.exists(directory):
        for name in disk.list(directory):
            if name.endswith(CLEANED_SUFFIX):
                disk.remove(f"{directory}/{name}")


def put_in_place(disk: "Disk", directory: str, base_offset: int) -> None:
    """Rename the `.swap` files of a segment to their final names. Before this call, the replaced files must have
    been removed or renamed to `.deleted`, durably. Raises OSError.

    The log file is renamed first, and durably. While its name ends with `.swap`, a start removes all index files
    with final names in its range of offsets, because they belong to the replaced segments.
    """
    for suffixes in (SUFFIXES[:1], SUFFIXES[1:]):
        for suffix in suffixes:
            path = f"{directory}/{file_name(base_offset, suffix)}"
            if disk.exists(path + SWAP_SUFFIX):
                disk.rename(path + SWAP_SUFFIX, path)
        disk.sync_dir(directory)


def _base_offsets(names: list[str], ending: str) -> list[int]:
    return [int(name[:20]) for name in names if name[20:] == ending and name[:20].isdecimal()]


def _end_offset(disk: "Disk", path: str, base_offset: int) -> int:
    file = disk.open(path)
    try:
        end_offset = base_offset
        for _, _, fields in headers(file, 0, file.size(), base_offset):
            end_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
        return end_offset
    finally:
        file.close()
