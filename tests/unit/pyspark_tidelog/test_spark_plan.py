"""Ranges: how a limit is shared, how ranges are split for tasks, and which offsets remain in the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidelog.errors import DataLoss, OptionError
from pyspark_tidelog.lookup import Lookup, loss_reporter, refuse_backward_ranges, without_lost
from pyspark_tidelog.offsets import ByTimestamp, Everywhere, Offsets, Specific, from_json_object, to_json_object
from pyspark_tidelog.options import Subscription
from pyspark_tidelog.plan import OffsetRange, grouped, limited_ends, split
from tidelog.client.cluster import PartitionLeader, Topic
from tidelog.client.operations import EARLIEST, LATEST, ListedOffset
from tidelog.model.ids import NO_TOPIC_ID, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
partitions = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 3))


@given(st.dictionaries(partitions, st.tuples(st.integers(0, 10**12), st.integers(0, 10**6))), st.integers(1, 10**6))
def test_a_limit_is_shared_out_and_no_partition_starves(
    sizes: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    begin = {tp: start for tp, (start, _) in sizes.items()}
    end = {tp: start + size for tp, (start, size) in sizes.items()}
    cut = limited_ends(limit, begin, end)
    taken = {tp: cut[tp] - begin[tp] for tp in sizes}
    assert sum(taken.values()) <= max(limit, sum(1 for _, size in sizes.values() if size)) + len(sizes)
    for tp, (_, size) in sizes.items():
        assert (1 if size else 0) <= taken[tp] <= size
    if sum(size for _, size in sizes.values()) <= limit:
        assert cut == end


def test_a_limit_is_shared_in_proportion() -> None:
    assert limited_ends(100, {A0: 0, A1: 1000, B0: 5}, {A0: 900, A1: 1100, B0: 5}) == {A0: 90, A1: 1010, B0: 5}
    assert limited_ends(10, {A0: 50}, {A0: 20}) == {A0: 20}


@given(
    st.lists(st.tuples(partitions, st.integers(0, 10**9), st.integers(0, 1000)), unique_by=lambda each: each[0]),
    st.integers(0, 50),
    st.integers(0, 200),
)
def test_pieces_cover_the_ranges_exactly(
    shape: list[tuple[TopicPartition, int, int]], min_partitions: int, max_records: int
) -> None:
    ranges = [OffsetRange(*tp, start, start + size) for tp, start, size in shape]
    pieces = split(ranges, min_partitions, max_records)
    whole = [(r.topic_partition, offset) for r in ranges for offset in range(r.start, r.end)]
    assert [(p.topic_partition, offset) for p in pieces for offset in range(p.start, p.end)] == whole
    assert all(piece.size > 0 for piece in pieces)
    assert len(pieces) >= min(min_partitions, len(whole))
    if max_records:
        assert all(piece.size <= max_records for piece in pieces)


def test_ranges_stay_whole_unless_more_are_wanted() -> None:
    ranges = [OffsetRange("a", 0, 0, 900), OffsetRange("a", 1, 0, 100), OffsetRange("b", 0, 7, 7)]
    assert split(ranges, 0, 0) == split(ranges, 2, 0) == ranges[:2]
    assert sum(piece.topic_partition == A0 for piece in split(ranges, 10, 0)) == 9


@given(
    st.lists(st.tuples(partitions, st.integers(0, 10**9), st.integers(1, 1000))),
    st.integers(1, 12),
)
def test_groups_hold_every_range_once_in_order(shape: list[tuple[TopicPartition, int, int]], number: int) -> None:
    ranges = [OffsetRange(*tp, start, start + size) for tp, start, size in shape]
    groups = grouped(ranges, number)
    assert sorted(each for group in groups for each in group) == sorted(ranges)
    assert len(groups) == min(number, len(ranges))
    assert all(group and list(group) == sorted(group) for group in groups)


def test_groups_have_about_equal_numbers_of_offsets() -> None:
    ranges = [OffsetRange("a", index, 0, size) for index, size in enumerate([10, 500, 20, 480, 30, 460])]
    assert [sum(each.size for each in group) for group in grouped(ranges, 3)] == [500, 500, 500]
    assert grouped(ranges, 0) == grouped(ranges, 6) == [(each,) for each in ranges]


def test_what_is_lost_is_reported_and_left_out() -> None:
    reports: list[str] = []
    ranges = [
        OffsetRange("a", 0, 5, 10),
        OffsetRange("a", 1, 5, 10),
        OffsetRange("b", 0, 5, 10),
        OffsetRange("b", 1, 10, 5),
        OffsetRange("b", 2, 5, 5),
    ]
    kept = without_lost(ranges, {A0: 0, A1: 7, B0: 20, TopicPartition("b", 2): 9}, reports.append)
    assert kept == [OffsetRange("a", 0, 5, 10), OffsetRange("a", 1, 7, 10), OffsetRange("b", 0, 10, 10), ranges[4]]
    assert reports == [
        "a-1: offsets 5 to 6 are gone, the log begins at 7",
        "b-0: offsets 5 to 9 are gone, the log begins at 20",
        "b-1: the log ends at 5, but reading starts at 10",
    ]
    with pytest.raises(DataLoss, match="a-1: offsets 5 to 6 are gone"):
        without_lost(ranges, {A1: 7}, loss_reporter(True))


class Brokers:
    """Topics a (two partitions), b (one) and an internal one; offsets as given."""

    def __init__(self, earliest: Offsets, latest: Offsets, by_time: Offsets | None = None) -> None:
        self.answers = {EARLIEST: earliest, LATEST: latest}
        self.by_time = by_time or {}

    def topics(self, names: list[str]) -> dict[str, Topic]:
        return {name: self.all_topics()[name] for name in names}

    def all_topics(self) -> dict[str, Topic]:
        counts = {"a": 2, "b": 1, "__consumer_offsets": 3}
        return {
            name: Topic(name, NO_TOPIC_ID, name.startswith("__"), {n: PartitionLeader(1, 0) for n in range(count)})
            for name, count in counts.items()
        }

    def list_offsets(self, timestamps: Offsets, isolation: int) -> dict[TopicPartition, ListedOffset]:
        return {tp: ListedOffset(self.answers.get(t, self.by_time)[tp], -1) for tp, t in timestamps.items()}


def lookup(subscription: Subscription, by_time: Offsets | None = None) -> Lookup:
    return Lookup(Brokers({A0: 3, A1: 4, B0: 5}, {A0: 30, A1: 40, B0: 50}, by_time), subscription, 0)


def test_which_partitions_are_meant() -> None:
    assert lookup(Subscription(topics=("b", "a"))).partitions() == [A0, A1, B0]
    assert lookup(Subscription(partitions=(A1,))).partitions() == [A1]


def test_a_pattern_means_every_topic_in_whose_name_it_is_found_but_no_internal_one() -> None:
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")
    assert lookup(Subscription(pattern="a|.*offsets")).partitions() == [A0, A1]
    assert lookup(Subscription(pattern="[a-z&&[^a]]")).partitions() == [B0]
    assert lookup(Subscription(pattern="^$")).partitions() == []


def test_a_range_that_ends_before_it_starts_is_refused() -> None:
    forward = [OffsetRange("a", 0, 3, 3), OffsetRange("a", 1, 4, 9)]
    refuse_backward_ranges(forward, Everywhere(LATEST))
    backward = [*forward, OffsetRange("b", 0, 60, 50)]
    for ending, end in [
        (Everywhere(LATEST), "the log ends"),
        (Specific({B0: LATEST}), "the log ends"),
        (Specific({B0: 50}), "the range ends"),
        (ByTimestamp(7, True), "the range ends"),
    ]:
        with pytest.raises(
            OptionError,
            match=rf"\[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET\] b-0: {end} at 50, but reading starts at 60",
        ):
            refuse_backward_ranges(backward, ending)


def test_bounds_become_offsets() -> None:
    there = lookup(Subscription(topics=("a",)), {A0: 12, A1: -1})
    both = [A0, A1]
    assert there.resolve("startingOffsets", Everywhere(EARLIEST), both) == {A0: 3, A1: 4}
    assert there.resolve("endingOffsets", Everywhere(LATEST), both) == {A0: 30, A1: 40}
    assert there.resolve("startingOffsets", Specific({A0: 7, A1: EARLIEST}), both) == {A0: 7, A1: 4}
    assert there.resolve("endingOffsets", ByTimestamp(99, True), both) == {A0: 12, A1: 40}
    with pytest.raises(
        OptionError, match=r"a-1: no record has the starting timestamp .* startingOffsetsByTimestampStrategy=latest"
    ):
        there.resolve("startingOffsets", ByTimestamp({A0: 9, A1: 9}, False), both)


def test_a_record_that_arrives_while_a_begin_by_time_is_looked_up_is_read() -> None:
    """The partition has no such record when the time is looked up, and gets some before the end is looked up."""

    class Growing(Brokers):
        def list_offsets(self, timestamps: Offsets, isolation: int) -> dict[TopicPartition, ListedOffset]:
            found = super().list_offsets(timestamps, isolation)
            self.answers[LATEST] = {tp: end + 2 for tp, end in self.answers[LATEST].items()}
            return found

    there = Lookup(Growing({}, {A0: 30, A1: 40}, {A0: 12, A1: -1}), Subscription(topics=("a",)), 0)
    assert there.resolve("startingOffsets", ByTimestamp(99, True), [A0, A1]) == {A0: 12, A1: 40}


def test_bounds_must_name_exactly_what_is_read() -> None:
    there = lookup(Subscription(topics=("a",)))
    with pytest.raises(OptionError, match=r"option startingOffsets must name every partition .* missing: a-1"):
        there.resolve("startingOffsets", Specific({A0: 1}), [A0, A1])
    with pytest.raises(OptionError, match=r"option startingOffsets names partitions that are not read: b-0"):
        there.resolve("startingOffsets", Specific({A0: 1, B0: 1}), [A0])
    with pytest.raises(OptionError, match=r"option endingOffsetsByTimestamp must name every partition"):
        there.resolve("endingOffsets", ByTimestamp({A0: 1}, True), [A0, A1])


@given(st.dictionaries(partitions, st.integers(0, 1 << 62)))
def test_offsets_survive_json_and_equal_ones_are_equal_texts(offsets: Offsets) -> None:
    document = to_json_object(offsets)
    assert from_json_object(document) == offsets
    assert str(document) == str(to_json_object(dict(reversed(offsets.items()))))
