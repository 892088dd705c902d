"""Leader epochs: KIP-101 and KIP-279."""

import pytest

from tidelog.log.leader_epochs import EpochEnd, LeaderEpochs

UNKNOWN = EpochEnd(-1, -1)


def test_end_offset_for_as_the_kips_define_it() -> None:
    epochs = LeaderEpochs([(2, 10), (4, 25), (7, 40)])
    ends = {epoch: epochs.end_offset_for(epoch, 50) for epoch in (-1, 0, 1, 2, 3, 4, 5, 6, 7, 8)}
    assert ends == {
        -1: UNKNOWN,
        0: EpochEnd(0, 10),  # older than all: it can have written nothing from offset 10 on
        1: EpochEnd(1, 10),
        2: EpochEnd(2, 25),
        3: EpochEnd(2, 25),  # never seen here: the largest below it
        4: EpochEnd(4, 40),
        5: EpochEnd(4, 40),
        6: EpochEnd(4, 40),
        7: EpochEnd(7, 50),
        8: UNKNOWN,
    }
    assert LeaderEpochs().end_offset_for(0, 0) == UNKNOWN


@pytest.mark.parametrize(
    ("given", "assigned", "left"),
    [
        ([(1, 5)], (2, 9), [(1, 5), (2, 9)]),
        ([(1, 5)], (1, 9), [(1, 5)]),
        ([(1, 5)], (1, 3), [(1, 3)]),
        ([(1, 5), (3, 9)], (2, 7), [(1, 5), (2, 7)]),
        ([(1, 5), (3, 9)], (4, 9), [(1, 5), (4, 9)]),
        ([(1, 5), (3, 9)], (4, 2), [(4, 2)]),
        ([(1, 5)], (-1, 9), [(1, 5)]),
    ],
)
def test_assign_settles_contradictions_for_the_newer(
    given: list[tuple[int, int]], assigned: tuple[int, int], left: list[tuple[int, int]]
) -> None:
    epochs = LeaderEpochs(given)
    assert not epochs.dirty
    epochs.assign(*assigned)
    assert epochs.entries() == left
    assert epochs.dirty == (left != given)
    assert epochs.latest == left[-1][0]


@pytest.mark.parametrize(
    ("entries", "epoch", "end"),
    [
        ([(2, 0), (4, 5)], 9, (9, 8)),  # the leader's own epoch
        ([(2, 0), (4, 5)], 7, (4, 7)),  # no record has it: the newest epoch before it ended where the leader's began
        ([(2, 0), (4, 5)], 4, (4, 8)),
        ([(2, 0), (4, 5)], 3, (2, 5)),
        ([(2, 0), (4, 5)], 10, (-1, -1)),
        ([], 3, (3, 7)),  # an empty log: as an epoch below the first one
        ([], 9, (9, 8)),
        ([], -1, (-1, -1)),
    ],
)
def test_a_leader_knows_the_start_of_its_own_epoch_before_its_first_record(
    entries: list[tuple[int, int]], epoch: int, end: tuple[int, int]
) -> None:
    """Kafka writes the entry when the leadership begins; its answers are the same."""
    epochs = LeaderEpochs(entries)
    assert epochs.end_offset_at_leader(epoch, 9, 7, 8) == end


def test_epoch_at_an_offset() -> None:
    epochs = LeaderEpochs([(2, 10), (4, 25)])
    assert [epochs.epoch_at(offset) for offset in (9, 10, 24, 25, 99)] == [-1, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("start", "left"),
    [(5, [(2, 10), (4, 25)]), (10, [(2, 10), (4, 25)]), (12, [(2, 12), (4, 25)]), (25, [(4, 25)]), (90, [(4, 90)])],
)
def test_truncate_from_start_keeps_the_epoch_that_holds_it(start: int, left: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs([(2, 10), (4, 25)])
    epochs.truncate_from_start(start)
    assert epochs.entries() == left
    assert epochs.dirty == (left != [(2, 10), (4, 25)])


@pytest.mark.parametrize(("end", "left"), [(26, [(2, 10), (4, 25)]), (25, [(2, 10)]), (10, []), (0, [])])
def test_truncate_from_end(end: int, left: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs([(2, 10), (4, 25)])
    epochs.truncate_from_end(end)
    assert epochs.entries() == left
    assert epochs.dirty == (len(left) < 2)
