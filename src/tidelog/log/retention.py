"""Which whole segments the topic's settings no longer keep, and how they leave: off the loop, in steps.

    look      (a thread)  the latest times of segments that nobody has looked at since the start
    take      (the loop)  segments leave the log; the log start offset moves
              (a thread)  the caller persists the log start offset
    removal   (a thread)  files are renamed to .deleted and stay readable; they go after file.delete.delay.ms

The start offset is on the disk before the first file goes: a first segment above it is a file that somebody else took.
"""

from typing import TYPE_CHECKING

from tidelog.log.segment import NO_TIMESTAMP, UNKNOWN

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.segment import Segment
    from tidelog.log.segment_list import SegmentList


class TimesLook:
    """Learns how old segments are. `run` blocks, on any thread, and changes nothing; `take` on the loop uses it."""

    __slots__ = ("_found", "_kept_from_ms", "_segments")

    def __init__(self, segments: list["Segment"], kept_from_ms: int) -> None:
        self._segments = segments
        self._kept_from_ms = kept_from_ms
        self._found: list[tuple[Segment, int, int]] = []

    def run(self) -> None:
        """Raises CorruptLog, OSError."""
        for segment in self._segments:
            latest, offset = segment.read_latest_timestamp()
            self._found.append((segment, latest, offset))
            if _age_from(latest, segment) >= self._kept_from_ms:
                return  # it stays, and so do all after it

    @property
    def outdated(self) -> bool:
        """Whether compaction put other files in the place of those that are looked at: what was found says nothing."""
        return any(segment.deleted for segment in self._segments)

    def take(self) -> None:
        for segment, latest, offset in self._found:
            if segment.max_timestamp == UNKNOWN:
                segment.max_timestamp, segment.max_timestamp_offset = latest, offset


class Retired:
    """Segments that left the log together."""

    __slots__ = ("due_ms", "renamed", "segments")

    def __init__(self, segments: list["Segment"], due_ms: int) -> None:
        self.segments = segments
        self.due_ms = due_ms
        """When their files may go."""
        self.renamed = False


class Removal:
    """File work on retired segments. `run` blocks, on any thread; what fails is in the log's next removal again."""

    __slots__ = ("_due", "_fresh")

    def __init__(self, fresh: list[Retired], due: list[Retired]) -> None:
        self._fresh = fresh
        self._due = due

    @property
    def begins(self) -> bool:
        """Whether files leave the log with it: not before the log start offset has been persisted."""
        return bool(self._fresh)

    def run(self) -> None:
        """Raises OSError."""
        for retired in self._fresh:
            for segment in retired.segments:
                segment.rename_deleted()
            retired.renamed = True
        for retired in self._due:
            while retired.segments:
                retired.segments[-1].remove()
                retired.segments.pop()


class Retention:
    """The loop's part of retention, for the segments of one log."""

    __slots__ = ("_retired", "_segments")

    def __init__(self, segments: "SegmentList") -> None:
        self._segments = segments
        self._retired: list[Retired] = []

    def look(self, config: "LogConfig", now_ms: int) -> TimesLook | None:
        """What must be known before `count` can tell which segments are too old; None when all of it is."""
        if not _by_time(config):
            return None
        unknown: list[Segment] = []
        for segment in self._segments.items:
            if segment.max_timestamp == UNKNOWN:
                unknown.append(segment)
            elif not _too_old(segment, config, now_ms):
                break
        return TimesLook(unknown, now_ms - config.retention_ms) if unknown else None

    def count(self, config: "LogConfig", *, log_start_offset: int, log_end_offset: int, limit: int, now_ms: int) -> int:
        """How many of the oldest segments go: too old, too much in all, or wholly below the log start offset.

        `limit` is the high watermark: nothing of a segment that reaches it goes. An empty active segment stays, and one
        of whose age nothing is known. May be all of them: then the caller rolls first.
        """
        items = self._segments.items
        if self._segments.swapping:
            return 0
        excess = -1
        if config.deletes and config.retention_bytes >= 0:
            excess = self._segments.size_bytes - config.retention_bytes
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

    def take(self, count: int, due_ms: int) -> list["Segment"]:
        """Take the oldest out of the log; their files may go at `due_ms`."""
        gone = self._segments.take_first(count)
        for segment in gone:
            segment.retire()
        self._retired.append(Retired(gone, due_ms))
        return gone

    def keep(self, renamed: list["Segment"], due_ms: int) -> None:
        """Segments that compaction has replaced; their files, which are renamed already, may go at `due_ms`."""
        retired = Retired(renamed, due_ms)
        retired.renamed = True
        self._retired.append(retired)

    def removal(self, now_ms: int) -> Removal | None:
        """Run one at a time; see `Removal.begins`."""
        self._retired = [retired for retired in self._retired if retired.segments]
        fresh = [retired for retired in self._retired if not retired.renamed]
        due = [retired for retired in self._retired if retired.due_ms <= now_ms]
        return Removal(fresh, due) if fresh or due else None

    def retired(self) -> list["Segment"]:
        """Segments whose files are there still."""
        return [segment for retired in self._retired for segment in retired.segments]


def _by_time(config: "LogConfig") -> bool:
    return config.deletes and config.retention_ms >= 0


def _too_old(segment: "Segment", config: "LogConfig", now_ms: int) -> bool:
    if not _by_time(config) or segment.max_timestamp == UNKNOWN:
        return False
    return now_ms - _age_from(segment.max_timestamp, segment) > config.retention_ms


def _age_from(latest: int, segment: "Segment") -> int:
    """Records without timestamps age from when the broker first saw their segment."""
    return latest if latest != NO_TIMESTAMP else segment.created_ms
