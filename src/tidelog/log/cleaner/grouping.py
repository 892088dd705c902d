"""Group closed segments. A compaction pass rewrites each group as one segment. Pure.

Neighbouring segments form one group if the sums of their sizes before compaction are within the limits of one segment
and its indexes.
"""

from typing import NamedTuple

from tidelog.log.indexes import INT32_MAX


class SegmentSizes(NamedTuple):
    """A segment and the sizes of its files, in bytes."""

    base_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int


def group_segments(
    segments: list[SegmentSizes], *, end_offset: int, segment_bytes: int, index_bytes: int
) -> list[list[SegmentSizes]]:
    """Group `segments`, which are in the order of their offsets. The last segment ends at or before `end_offset`. A
    group has at least one segment.

    `segment_bytes` and `index_bytes` are the size limits of a log file and of an index.
    """
    groups: list[list[SegmentSizes]] = []
    remaining_bytes = remaining_index_bytes = remaining_time_index_bytes = 0
    for index, segment in enumerate(segments):
        last_offset = (segments[index + 1].base_offset if index + 1 < len(segments) else end_offset) - 1
        if (
            groups
            and segment.size <= remaining_bytes
            and segment.index_bytes <= remaining_index_bytes
            and segment.time_index_bytes <= remaining_time_index_bytes
            # Relative offsets are stored in 31 bits. An empty segment has no offsets.
            and (not segment.size or last_offset - groups[-1][0].base_offset <= INT32_MAX)
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            remaining_bytes, remaining_index_bytes, remaining_time_index_bytes = segment_bytes, index_bytes, index_bytes
        remaining_bytes -= segment.size
        remaining_index_bytes -= segment.index_bytes
        remaining_time_index_bytes -= segment.time_index_bytes
    return groups
