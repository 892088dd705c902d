"""At the first bad batch of a recovery scan, decide between a torn tail and damage.

After a crash, bytes that were appended since the last sync may be missing, in whole or in part: the file is short,
or it contains zeros in place of sectors that were never written. Such a torn tail is cut off and logged.

In four cases a bad batch is damage, and nothing is cut off:
- It was synced before the crash.
- Its checksum is valid, but its offset is wrong.
- It has a message format from before Kafka 4.0.
- None of its sectors consists of zeros, but sound batches follow it.
"""

from typing import TYPE_CHECKING
from zlib import crc32

from tidelog.log.batch_scan import CRC, HEADER, LENGTH, MAGIC_AT, OFFSETS_MAX, Fields, defect
from tidelog.log.errors import CorruptLog
from tidelog.wire.batches import HEADER_BYTES, LENGTH_END, MAGIC
from tidelog.wire.checksums import crc32c

if TYPE_CHECKING:
    from tidelog.log.segment import Segment
    from tidelog.runtime.interfaces import File

SECTOR_BYTES = 512
_ZERO_SECTOR = bytes(SECTOR_BYTES)
_WINDOW_BYTES = 1 << 20
_MAGIC_POSITION = 16


def check_torn_tail(
    segment: "Segment",
    position: int,
    next_offset: int,
    problem: CorruptLog,
    *,
    flushed_end: int,
    has_later_records: bool,
) -> None:
    """Raise CorruptLog if the bytes from `position` on must not be cut off.

    `problem` is the reason why the batch at `position` is bad. This batch should begin with `next_offset`. All
    records below the offset `flushed_end` were flushed before the crash. `has_later_records`: later segments contain
    records.
    """
    if next_offset < flushed_end:
        reason = f"{problem.reason}; offset {next_offset} and all others below {flushed_end} were on the disk"
        raise CorruptLog(problem.path, position, reason) from problem
    file, end = segment.file, segment.size
    fields = _header_at(file, position, end)
    if fields is not None and _is_sound(file, position, end, fields, 0, 1 << 63):
        if _has_lost_sector(file, position, position + min(SECTOR_BYTES - position % SECTOR_BYTES, HEADER_BYTES)):
            return  # the sector with the batch's base offset was lost; the checksum covers only later sectors
        raise CorruptLog(problem.path, position, f"{problem.reason}; its checksum is valid") from problem
    if fields is not None and fields[MAGIC_AT] < MAGIC and _is_old_message(file, position, end):
        raise CorruptLog(problem.path, position, f"message format {fields[MAGIC_AT]} is not supported since Kafka 4.0")
    is_short = fields is None or fields[LENGTH] + LENGTH_END > end - position
    following = next_sound_batch(file, position, end, next_offset)
    if following is None and (is_short or not has_later_records):
        return
    # The bad batch ends where its header says. If the header itself is damaged, the batch ends no later than the next
    # sound batch begins. If a sector before one of these two ends was lost, the tail is torn.
    region_end = end if following is None else following
    stated_end = position + fields[LENGTH] + LENGTH_END if fields is not None else region_end
    ends = [end for end in (stated_end, region_end) if position < end <= region_end]
    if any(_has_lost_sector(file, position, end) for end in ends):
        return
    where = "in later segments" if following is None else f"at position {following}"
    raise CorruptLog(problem.path, position, f"{problem.reason}; sound batches follow {where}") from problem


def next_sound_batch(file: "File", position: int, end: int, offset_min: int) -> int | None:
    """Return the position of the next complete batch with a valid CRC after the bad batch at `position`; None if
    there is no such batch.

    The offsets of the returned batch are at or above `offset_min`, and less than 2^31 above it.
    """
    fields = _header_at(file, position, end)
    if fields is not None and fields[LENGTH] >= HEADER_BYTES - LENGTH_END:
        candidate = position + fields[LENGTH] + LENGTH_END
        header = _header_at(file, candidate, end)
        if header is not None and _is_sound(file, candidate, end, header, offset_min, offset_min + OFFSETS_MAX):
            return candidate
    at = position + 1
    while at + HEADER_BYTES <= end:
        window = file.pread(min(_WINDOW_BYTES, end - at), at)
        magic_at = window.find(MAGIC, _MAGIC_POSITION)
        while magic_at >= 0 and magic_at - _MAGIC_POSITION + HEADER_BYTES <= len(window):
            header = HEADER.unpack_from(window, magic_at - _MAGIC_POSITION)
            candidate = at + magic_at - _MAGIC_POSITION
            if _is_sound(file, candidate, end, header, offset_min, offset_min + OFFSETS_MAX):
                return candidate
            magic_at = window.find(MAGIC, magic_at + 1)
        at += max(len(window) - HEADER_BYTES + 1, 1)
    return None


def _header_at(file: "File", position: int, end: int) -> Fields | None:
    """Return the batch header at `position`, unchecked; None if it would end after `end`."""
    if position + HEADER_BYTES > end:
        return None
    return HEADER.unpack(file.pread(HEADER_BYTES, position))


def _is_sound(file: "File", position: int, end: int, fields: Fields, offset_min: int, offset_end: int) -> bool:
    if defect(fields, end - position, offset_min, offset_end) is not None:
        return False
    # The CRC covers all bytes after its own field.
    return crc32c(file.pread(fields[LENGTH] + LENGTH_END, position)[21:]) == fields[CRC]


def _is_old_message(file: "File", position: int, end: int) -> bool:
    """Return whether a complete message of format 0 or 1 is at `position`: offset, size, CRC-32, and the bytes that
    the CRC covers (from the magic on).
    """
    size = int.from_bytes(file.pread(4, position + 8), signed=True)
    if not 14 <= size <= end - position - LENGTH_END:
        return False
    message = file.pread(size, position + LENGTH_END)
    return crc32(message[4:]) == int.from_bytes(message[:4])


def _has_lost_sector(file: "File", position: int, end: int) -> bool:
    """Return whether a sector between `position` and `end` consists of zeros, or the file ends before `end`. In the
    first and the last sector, only the bytes between these positions are examined.
    """
    at = position
    while at < end:
        window = file.pread(min(_WINDOW_BYTES - at % SECTOR_BYTES, end - at), at)
        start = 0
        while start < len(window):
            stop = min(start + SECTOR_BYTES - (at + start) % SECTOR_BYTES, len(window))
            if window[start:stop] == _ZERO_SECTOR[: stop - start]:
                return True
            start = stop
        if not window:
            return True
        at += len(window)
    return False
