"""The segments of one log in the order of their base offsets. The last one is the active segment."""

from bisect import bisect_right

from tidelog.log.segment import Segment


class SegmentList:
    """The segments. The list is never empty once the log is open."""

    __slots__ = ("_base_offsets", "items", "swapping")

    def __init__(self, items: list[Segment]) -> None:
        self.items = items
        self.swapping = False
        """True while compaction replaces segments and renames their files. Retention and other compactions wait for the
        end of this swap."""
        self._base_offsets = [segment.base_offset for segment in items]

    @property
    def active(self) -> Segment:
        return self.items[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.items)

    def floor(self, offset: int) -> int:
        """Return the index of the segment that would contain `offset`; 0 if `offset` is below all segments."""
        return max(bisect_right(self._base_offsets, offset) - 1, 0)

    def add(self, segment: Segment) -> None:
        self.items.append(segment)
        self._base_offsets.append(segment.base_offset)

    def take_first(self, count: int) -> list[Segment]:
        """Remove and return the oldest `count` segments."""
        removed = self.items[:count]
        del self.items[:count], self._base_offsets[:count]
        return removed

    def take_from(self, index: int) -> list[Segment]:
        """Remove and return the segments from `index` on."""
        removed = self.items[index:]
        del self.items[index:], self._base_offsets[index:]
        return removed

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Replace the neighbouring segments `old` by `new`."""
        index = self.items.index(old[0])
        assert self.items[index : index + len(old)] == old, "the segments are not neighbours"
        self.items[index : index + len(old)] = [new]
        self._base_offsets[index : index + len(old)] = [new.base_offset]
