"""A cut of a log's end in steps: what its readers see meanwhile, and what a power cut leaves."""

import errno
import random

import pytest

from log_harness import DIRECTORY, LogOnDisk
from tidelog.log.checkpoints import LEADER_EPOCHS, parse_epochs
from tidelog.log.config import LogConfig
from tidelog.log.cut import Cut
from tidelog.simulation.disk import SimDisk
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
