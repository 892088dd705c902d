"""Offsets of a mirror: every translated offset leads to the record that follows in the source."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pipelines import mirror_offsets
from tidelog.pipelines.mirror_offsets import (
    CountsDiffer,
    Entry,
    PartitionOffsets,
    Run,
    Segment,
    entries_of,
    joined_runs,
    segments_of,
)

gaps = st.lists(st.integers(0, 4), min_size=1, max_size=60)
"""The number of offsets without a record before each record, in one cluster."""


def offsets_with(gaps_before: list[int], first: int) -> list[int]:
    offsets = []
    position = first
    for gap in gaps_before:
        offsets.append(position + gap)
        position += gap + 1
    return offsets


def runs_of(offsets: list[int]) -> list[Run]:
    return joined_runs(Run(offset, 1) for offset in offsets)


@given(gaps, gaps, st.integers(0, 100), st.integers(0, 100), st.integers(1, 4), st.integers(0, 5))
def test_a_reader_continues_with_the_next_record(
    source_gaps: list[int], target_gaps: list[int], source_first: int, target_first: int, parts: int, end_gap: int
) -> None:
    size = min(len(source_gaps), len(target_gaps))
    source = offsets_with(source_gaps[:size], source_first)
    target = offsets_with(target_gaps[:size], target_first)
    offsets = PartitionOffsets()
    borders = sorted({0, size, *(size * part // parts for part in range(1, parts))})
    for begin, end in pairwise(borders):
        segments = segments_of(runs_of(source[begin:end]), runs_of(target[begin:end]))
        target_end = target[end] if end < size else target[-1] + 1 + end_gap
        for entry in entries_of(segments, target_end):
            offsets.add(entry)
            offsets.add(entry)  # as after a repeated micro-batch
    assert offsets.source_end == source[-1] + 1
    assert offsets.target_end == target[-1] + 1 + end_gap
    for offset in range(source_first, source[-1] + 3):
        read_before = sum(1 for each in source if each < offset)
        translated = offsets.translate(offset)
        assert translated is not None
        assert sum(1 for each in target if each < translated) == read_before


@given(st.integers(1, 400), st.integers(1, 7), st.integers(5, 60))
def test_with_removed_entries_no_record_is_missed(entries: int, step: int, segments_max: int) -> None:
    offsets = PartitionOffsets()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror_offsets, "SEGMENTS_MAX", segments_max)
        kept = {}
        for number in range(entries):
            entry = Entry((Segment(number * step, number * 3, 2 if step > 1 else 1),), number * 3 + 3)
            offsets.add(entry)
            kept[entry.source] = entry
            for removed in offsets.remove_surplus():
                del kept[removed.source]
    assert len(kept) <= segments_max
    assert 0 in kept
    newest = (entries - 1) * step
    assert newest in kept
    for number in range(entries):
        translated = offsets.translate(number * step)
        assert translated is not None
        assert translated <= number * 3
        if number * step in kept:
            assert translated == number * 3
    reloaded = PartitionOffsets(kept.values())
    assert all(reloaded.translate(n) == offsets.translate(n) for n in range(newest + 3))


def test_a_partition_without_records_translates_nothing() -> None:
    assert PartitionOffsets().translate(5) is None
    assert PartitionOffsets().source_end is None


def test_an_offset_before_the_first_record_is_the_first_target_offset() -> None:
    [entry] = entries_of([Segment(100, 40, 10)], 51)
    assert PartitionOffsets([entry]).translate(3) == 40


def test_segments_are_divided_among_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_offsets, "SEGMENTS_PER_ENTRY_MAX", 2)
    segments = [Segment(n * 2, n * 3, 1) for n in range(5)]
    entries = list(entries_of(segments, 99))
    assert [len(entry.segments) for entry in entries] == [2, 2, 1]
    assert [entry.target_end for entry in entries] == [4, 10, 99]


@pytest.mark.parametrize(
    ("source", "target"), [([Run(0, 3)], [Run(0, 2)]), ([Run(0, 2)], [Run(0, 1), Run(5, 2)]), ([], [Run(0, 1)])]
)
def test_other_records_in_the_target_are_found(source: list[Run], target: list[Run]) -> None:
    with pytest.raises(CountsDiffer):
        segments_of(source, target)


def test_runs_are_joined_and_repeated_ones_removed() -> None:
    assert joined_runs([Run(5, 2), Run(0, 5), Run(5, 2), Run(9, 1)]) == [Run(0, 7), Run(9, 1)]
