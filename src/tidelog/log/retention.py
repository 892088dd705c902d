"""Which whole segments the topic's settings no longer keep, and the second, blocking step of their removal."""

from typing import TYPE_CHECKING

from tidelog.log.segment import NO_TIMESTAMP

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.segment import Segment
    from tidelog.log.segment_list import SegmentList


class Removal:
    """Segments whose files were renamed and whose time to stay readable is over. `run` blocks, on any thread."""

    __slots__ = ("segments",)

    def __init__(self, segments: list["Segment"]) -> None:
        self.segments = segments

    def run(self) -> None:
        """Raises OSError."""
        for segment in self.segments:
            segment.remove()


def count_expired(
    segments: "SegmentList", config: "LogConfig", *, log_start_offset: int, log_end_offset: int, limit: int, now_ms: int
) -> int:
    """How many of the oldest segments go: too old, too much in all, or wholly below the log start offset.

    `limit` is the high watermark: nothing of a segment that reaches it goes. An empty active segment stays. May be all
    of them: then the caller rolls first. Raises CorruptLog, OSError from an index that must be read.
    """
    items = segments.items
    excess = -1
    if config.deletes and config.retention_bytes >= 0:
        excess = segments.size_bytes - config.retention_bytes
    count = 0
    for place, segment in enumerate(items):
        end_offset = items[place + 1].base_offset if place + 1 < len(items) else log_end_offset
        if end_offset > limit or (place + 1 == len(items) and not segment.size):
            break
        excess -= segment.size
        below_start = end_offset <= log_start_offset and place + 1 < len(items)
        if not (below_start or excess >= 0 or _too_old(segment, config, now_ms)):
            break
        count += 1
    return count


def _too_old(segment: "Segment", config: "LogConfig", now_ms: int) -> bool:
    if not config.deletes or config.retention_ms < 0:
        return False
    latest = segment.latest_timestamp()
    # Records without timestamps age from when the broker first saw their segment.
    return now_ms - (latest if latest != NO_TIMESTAMP else segment.created_ms) > config.retention_ms
