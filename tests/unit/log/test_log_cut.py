"""A cut of a log's end in steps: what its readers see meanwhile, and what a power cut leaves."""

import errno
import random

import pytest

from log_harness import DIRECTORY, NOW_MS, LogOnDisk, make_batch
from tidelog.log.checkpoints import LEADER_EPOCHS, parse_epochs
from tidelog.log.config import LogConfig
from tidelog.log.cut import Cut
from tidelog.simulation.disk import SimDisk
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.errors import StorageError

VALUES = [b"%d" % number for number in range(12)]


def log_of_segments(**settings: object) -> LogOnDisk:
    """A log of twelve records in epochs 0 to 3 and in several segments, all durable."""
    on = LogOnDisk(segment_bytes=250, **settings)
    for number, value in enumerate(VALUES):
        on.append(value, leader_epoch=number // 3, producer_id=7, producer_epoch=0, base_sequence=number)
    on.flush()
    assert len(on.bases()) > 3
    return on


def begin(on: LogOnDisk, offset: int) -> Cut:
    on.persisted_recovery_point = min(on.persisted_recovery_point, on.log.recovery_point_for_cut(offset))
    return on.log.begin_cut(offset)


def test_until_it_is_installed_the_loop_sees_the_old_log_and_touches_no_file() -> None:
    on = log_of_segments()
    segments = list(on.log.segments.items)
    cut = begin(on, 4)

    def check() -> None:
        assert (on.log.log_end_offset, on.log.epochs.latest, on.log.segments.items) == (12, 3, segments)
        assert on.log.producers.entries[7].next_sequence == 12
        with pytest.raises(StorageError, match="is being truncated"):
            on.log.read(0, 100, 12)
        with pytest.raises(StorageError, match="is being truncated"):
            on.append(b"x", leader_epoch=4)
        with pytest.raises(StorageError, match="is being truncated"):
            on.log.aborted_transactions(0, 12)

    check()
    cut.run()
    assert len(on.bases()) == 2
    check()
    on.log.install_cut(cut)
    assert on.records() == list(enumerate(VALUES[:4]))
    assert (on.log.log_end_offset, on.log.epochs.entries()) == (4, [(0, 0), (1, 3)])
    assert on.log.producers.entries[7].next_sequence == 4
    assert on.append(b"x", leader_epoch=4).base_offset == 4


def test_the_epochs_on_the_disk_are_those_of_the_shorter_log() -> None:
    """A follower names its newest epoch in its next fetch, also after a power cut."""
    on = log_of_segments()
    on.truncate_to(4)
    on.disk = on.disk.power_cut(random.Random(1))
    path = f"{DIRECTORY}/{LEADER_EPOCHS}"
    assert parse_epochs(on.disk.read(path), path) == [(0, 0), (1, 3)]
    on.open(clean=False)
    assert on.log.epochs.entries() == [(0, 0), (1, 3)]


def test_a_cut_writes_epochs_that_were_not_written_before() -> None:
    on = LogOnDisk()
    on.append(b"a", leader_epoch=4)
    on.flush()
    on.append(b"b", leader_epoch=5)
    on.append(b"c", leader_epoch=5)
    on.truncate_to(2)
    on.kill()
    on.open(clean=True)
    assert on.log.epochs.entries() == [(4, 0), (5, 1)]


def test_a_cut_at_the_end_removes_only_epochs_without_records() -> None:
    on = log_of_segments()
    on.log.epochs.assign(9, 12)
    cut = begin(on, 12)
    cut.run()
    on.log.install_cut(cut)
    assert on.records() == list(enumerate(VALUES))
    assert on.log.epochs.latest == 3


def test_a_cut_inside_a_batch_removes_the_whole_batch() -> None:
    on = LogOnDisk()
    on.append(b"a")
    on.append(b"b", b"c", b"d")
    on.flush()
    on.truncate_to(2)
    assert (on.log.log_end_offset, on.log.recovery_point) == (1, 1)
    on.kill()
    assert on.records() == [(0, b"a")]


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("offset", [1, 4, 6, 11])
def test_a_power_cut_at_any_step_leaves_a_log_that_ends_between_the_two_ends(policy: str, offset: int) -> None:
    """In a compacted log a gap is no damage, so a segment that came back behind a gap would be served."""
    on = log_of_segments(cleanup_policy=policy)
    rng = random.Random(offset)
    ends: list[int] = []

    def power_cut(operation: str, path: str) -> None:
        for _ in range(4):
            ends.append(_check_after(on, on.disk.power_cut(rng), offset))

    cut = begin(on, offset)
    on.disk.on_operation = power_cut
    cut.run()
    on.disk.on_operation = None
    on.log.install_cut(cut)
    assert offset <= min(ends) <= max(ends) == len(VALUES), "the old log was seen, too"
    assert _check_after(on, on.disk.power_cut(rng), offset) == offset, "the cut is durable when it ends"
    on.append(b"new", leader_epoch=7)
    on.flush()
    assert _check_after(on, on.disk.power_cut(rng), offset, [*VALUES[:offset], b"new"]) == offset + 1


def _check_after(on: LogOnDisk, disk: SimDisk, offset: int, values: list[bytes] | None = None) -> int:
    """Open the log that a power cut left, and return its end. It holds a prefix of `values`."""
    values = VALUES if values is None else values
    after = LogOnDisk.__new__(LogOnDisk)
    after.config, after.disk, after.now_ms = on.config, disk, on.now_ms
    after.open(clean=False, recovery_point=on.persisted_recovery_point, log_start_offset=0)
    end = after.log.log_end_offset
    assert after.records() == list(enumerate(values[:end]))
    assert end >= offset
    assert after.log.epochs.latest <= 3 or len(values) == offset + 1
    return end


def test_a_cut_that_found_no_descriptor_continues_where_it_was() -> None:
    on = log_of_segments()
    cut = begin(on, 4)
    on.disk.fail("sync_dir", DIRECTORY, errno.EMFILE, skip=2)
    with pytest.raises(OSError, match=r"descriptor|open files"):
        cut.run()
    cut.run()
    on.log.install_cut(cut)
    assert on.records() == list(enumerate(VALUES[:4]))
    assert on.restart().log_end_offset == 4


def test_settings_that_come_meanwhile_hold_afterwards() -> None:
    on = log_of_segments()
    cut = begin(on, 4)
    on.log.configure(LogConfig(segment_bytes=1 << 20))
    with pytest.raises(StorageError, match="is being truncated"):
        on.append(b"x", leader_epoch=4)
    cut.run()
    on.log.install_cut(cut)
    for number in range(20):
        on.append(b"x%d" % number, leader_epoch=4)
    assert len(on.bases()) <= 2


def transactional_batches() -> list[bytearray]:
    """Transactions of three producers that overlap: committed, aborted and open ones. Each batch has one offset."""
    batches = []
    sequences: dict[tuple[int, int], int] = {}

    def write(producer: int, epoch: int) -> None:
        sequence = sequences.get((producer, epoch), 0)
        sequences[producer, epoch] = sequence + 1
        batches.append(
            make_batch(b"v", producer_id=producer, producer_epoch=epoch, base_sequence=sequence, is_transactional=True)
        )

    def end(producer: int, epoch: int, *, commit: bool) -> None:
        batches.append(marker_batch(producer, epoch, 0, is_commit=commit, timestamp=NOW_MS))

    for round_number in range(4):
        write(1, round_number)
        write(2, round_number)
        end(1, round_number + 1, commit=round_number % 2 == 0)  # transaction version 2: the marker has the next epoch
        write(3, 0)
        write(2, round_number)
        end(3, 0, commit=round_number % 2 == 1)  # version 1: the epoch stays
        end(2, round_number + 1, commit=False)
    write(3, 0)
    write(1, 4)
    return batches


def transactional_state(on: LogOnDisk) -> tuple[object, ...]:
    log = on.log
    return (
        log.log_end_offset,
        log.last_stable_offset,
        {
            producer_id: (entry.epoch, entry.next_sequence, entry.transaction_start, entry.coordinator_epoch)
            for producer_id, entry in log.producers.entries.items()
        },
        dict(log.producers.open_transactions),
        [log.aborted_transactions(offset, log.log_end_offset) for offset in range(log.log_end_offset)],
    )


@pytest.mark.parametrize("then", ["nothing", "restart", "kill", "power cut"])
@pytest.mark.parametrize("offset", range(31))
def test_a_cut_leaves_the_transactions_of_the_remaining_batches(offset: int, then: str) -> None:
    """A marker that is cut off leaves its transaction open, also after a start, although a later snapshot of the
    producers was written before the cut.
    """
    batches = transactional_batches()
    assert len(batches) == 30
    on, expected = (LogOnDisk(segment_bytes=400) for _ in range(2))
    for number, batch in enumerate(batches):
        on.append_batch(bytearray(batch))
        if number < offset:
            expected.append_batch(bytearray(batch))
    on.flush()
    assert len(on.bases()) > 5
    assert len([name for name in on.files() if name.endswith(".snapshot")]) > 1
    on.truncate_to(offset)
    if then == "restart":
        on.restart()
    elif then == "kill":
        on.kill()
    elif then == "power cut":
        on.flush()
        on.power_cut(offset)
    assert transactional_state(on) == transactional_state(expected)


def log_with_a_hole() -> LogOnDisk:
    """A follower of a leader that has compacted: batches at offsets 0 to 1, 20 and 21, all durable."""
    on = LogOnDisk(cleanup_policy="compact")
    for base_offset, epoch, values in ((0, 1, (b"a", b"b")), (20, 2, (b"c",)), (21, 3, (b"d",))):
        batch = make_batch(*values, base_offset=base_offset, leader_epoch=epoch)
        on.log.append_as_follower(memoryview(batch))
    on.flush()
    return on


@pytest.mark.parametrize("stop", ["clean", "kill", "power cut"])
@pytest.mark.parametrize("offset", [3, 10, 20])
def test_a_cut_after_offsets_that_compaction_removed_ends_with_the_last_batch(offset: int, stop: str) -> None:
    """Every start finds this end. A higher recovery point would mean that records are missing."""
    on = log_with_a_hole()
    on.truncate_to(offset)
    assert (on.log.log_end_offset, on.log.recovery_point) == (2, 2)
    on.flush()
    if stop == "clean":
        on.restart()
    elif stop == "kill":
        on.kill()
    else:
        on.power_cut(1)
    assert on.records() == [(0, b"a"), (1, b"b")]
    on.log.append_as_follower(memoryview(make_batch(b"e", base_offset=20, leader_epoch=4)))
    assert on.records() == [(0, b"a"), (1, b"b"), (20, b"e")]


@pytest.mark.parametrize("clean", [True, False])
def test_a_cut_after_offsets_that_compaction_removed_does_not_end_below_the_start(clean: bool) -> None:
    on = log_with_a_hole()
    on.log.delete_before(10)
    on.truncate_to(20)
    assert (on.log.log_start_offset, on.log.log_end_offset) == (10, 10)
    on.flush()
    on.persisted_log_start_offset = 10
    if clean:
        on.restart()
    else:
        on.kill()
    assert (on.log.log_start_offset, on.log.log_end_offset) == (10, 10)
    assert on.records() == []


def test_a_cut_may_end_with_an_empty_segment_after_offsets_that_compaction_removed() -> None:
    on = LogOnDisk(cleanup_policy="compact")
    on.append(b"a", b"b")
    on.log.log_end_offset = 10
    on.log.roll(NOW_MS)
    on.log.append_as_follower(memoryview(make_batch(b"c", base_offset=20, leader_epoch=2)))
    on.flush()
    on.truncate_to(20)
    assert on.log.log_end_offset == 10
    on.flush()
    on.kill()
    assert (on.log.log_end_offset, on.records()) == (10, [(0, b"a"), (1, b"b")])
