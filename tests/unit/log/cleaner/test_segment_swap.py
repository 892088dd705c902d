"""A swap during reads: a reader with an old segment's file continues, and no reader finds a file missing."""

from collections.abc import Callable
from itertools import islice, product
from random import Random

import pytest

from log_harness import NOW_MS, LogOnDisk
from log_harness.compaction import (
    append_expired_tombstone,
    compact,
    job_of,
    reports_of,
    stored,
    swap_in,
)
from tidelog.log.cleaner.job import GroupReport
from tidelog.log.cleaner.swap import Swap
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reader import TimestampOffset
from tidelog.log.times import find_max_timestamp, find_timestamp
from tidelog.model.steps import Steps, run_all
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.medium import PowerCutOdds
from tidelog.wire.batches import ABORT
from tidelog.wire.records import Record, encode_batch


def filled(**settings: int) -> LogOnDisk:
    """Three sealed segments: plain, with an aborted transaction, plain; and an active one."""
    on = LogOnDisk(cleanup_policy="compact", index_interval_bytes=0, segment_bytes=1 << 20, **settings)
    for number in range(10):
        on.append_batch(encode_batch([Record(b"k%d" % (number % 5), b"%d" % number, NOW_MS + number)]))
    on.log.roll(NOW_MS)
    transaction = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    on.append_batch(encode_batch([Record(b"k0", b"never", NOW_MS)], base_sequence=0, **transaction))  # type: ignore[arg-type]
    marker = Record(b"\0\0" + ABORT.to_bytes(2), b"\0\0\0\0\0\1", NOW_MS)
    on.append_batch(encode_batch([marker], is_control=True, **transaction))  # type: ignore[arg-type]
    on.log.roll(NOW_MS)
    for number in range(10):
        on.append_batch(encode_batch([Record(b"k%d" % (number % 4), b"later %d" % number, NOW_MS + 100 + number)]))
    on.log.roll(NOW_MS)
    on.append(b"the active segment")
    on.flush()
    return on


def first_group(on: LogOnDisk) -> GroupReport:
    group = reports_of(on.disk, job_of(on.log, on.now_ms))[0]
    assert isinstance(group, GroupReport)
    return group


def look_everywhere(on: LogOnDisk) -> None:
    """Everything that a client can ask of a log."""
    records = list(stored(on.log))
    end = on.log.log_end_offset
    for offset in range(end):
        following = [r.offset for r in records if r.offset >= offset]
        part = on.log.read(offset, 1, end)
        assert bool(part.size) == bool(following)
    for record in records:
        found = run_all(find_timestamp(on.log, record.timestamp))
        assert found is not None
        assert found.timestamp >= record.timestamp
    on.log.aborted_transactions(0, end)
    assert run_all(find_max_timestamp(on.log)) is not None


def test_every_look_up_works_between_every_two_steps() -> None:
    on = filled(file_delete_delay_ms=0)
    before = list(stored(on.log))
    swap = Swap(on.disk, on.log, first_group(on))
    assert swap.begin()
    looks = 0

    def look(_operation: str, _path: str) -> None:
        nonlocal looks
        looks += 1
        on.disk.on_operation = None
        look_everywhere(on)
        on.disk.on_operation = look

    on.disk.on_operation = look
    swap.announce()
    assert list(stored(on.log)) == before
    swap.install()
    after = list(stored(on.log))
    assert len(after) < len(before)
    swap.finish()
    swap.end(NOW_MS)
    on.disk.on_operation = None
    assert list(stored(on.log)) == after
    assert looks > 12


@pytest.mark.parametrize("find", [find_max_timestamp, lambda log: find_timestamp(log, NOW_MS + 104)])
@pytest.mark.parametrize("steps_before", range(6))
def test_a_time_is_looked_for_while_segments_are_replaced(
    find: Callable[[PartitionLog], Steps[TimestampOffset | None]], steps_before: int
) -> None:
    on = filled(file_delete_delay_ms=0)
    on.restart()  # nothing is open, no time is known
    job = job_of(on.log, on.now_ms)
    group = reports_of(on.disk, job._replace(segments=job.segments[1:]))[0]  # the last of a pass over many
    assert isinstance(group, GroupReport)
    assert len(group.base_offsets) == 2
    look = find(on.log)
    began = sum(1 for _ in islice(look, steps_before))
    swap_in(on, group)
    removal = on.log.removal(on.now_ms)
    assert removal is not None
    removal.run()
    assert began < steps_before or run_all(look) == run_all(find(on.log))
    assert on.log.failure is None


def test_who_holds_a_part_of_an_old_segment_reads_it_to_its_end() -> None:
    on = filled(file_delete_delay_ms=1000)
    part = on.log.read(0, 1 << 20, on.log.log_end_offset)
    assert part.file is not None
    before = part.file.pread(part.size, part.position)
    compact(on)
    assert part.file.pread(part.size, part.position) == before
    part.file.hold()
    removal = on.log.removal(on.now_ms + 1000)
    assert removal is not None
    removal.run()
    assert not any(name.endswith(".deleted") for name in on.files())
    assert part.file.pread(part.size, part.position) == before
    part.file.release()


def test_retention_waits_while_names_change() -> None:
    on = filled()
    group = first_group(on)
    swap = Swap(on.disk, on.log, group)
    assert swap.begin()
    on.log.delete_before(on.log.log_end_offset)
    assert on.log.apply_retention(NOW_MS) == 0
    assert not Swap(on.disk, on.log, group).begin(), "one at a time"
    swap.announce()
    swap.install()
    swap.finish()
    swap.end(NOW_MS)
    assert on.log.apply_retention(NOW_MS) == 1


def test_a_group_whose_segments_are_gone_is_refused() -> None:
    on = filled()
    group = first_group(on)
    on.log.delete_before(on.log.segments.items[1].base_offset)
    assert on.log.apply_retention(NOW_MS) == 1
    swap = Swap(on.disk, on.log, group)
    assert not swap.begin()
    swap.discard()
    assert not any(name.endswith(".cleaned") for name in on.files())


def test_flushes_and_a_clean_end_go_on_after_it(caplog: pytest.LogCaptureFixture) -> None:
    on = filled()
    compact(on)
    records = list(stored(on.log))
    on.append(b"more")
    on.flush()
    on.restart()
    assert list(stored(on.log))[: len(records)] == records
    assert "index rebuilt" not in caplog.text


class NoOrder(Random):
    """Decides which of the changes that are not synced a power cut keeps, from the first one on."""

    def __init__(self, kept: tuple[bool, ...]) -> None:
        super().__init__(1)
        self.kept = list(kept)

    def random(self) -> float:
        return 0.0 if self.kept and self.kept.pop(0) else 0.99


def last_values(on: LogOnDisk, disk: SimDisk) -> dict[bytes | None, bytes | None]:
    """Return the last value of each key after a start from this disk."""
    found = LogOnDisk.__new__(LogOnDisk)
    found.config, found.now_ms, found.disk = on.config, on.now_ms, disk
    log = found.open(clean=False, recovery_point=on.persisted_recovery_point, log_start_offset=0, clean_offset=0)
    last = {record.key: record.value for record in stored(log)}
    return {key: value for key, value in last.items() if value is not None}


def test_a_deleted_key_does_not_come_back_when_a_swap_loses_power() -> None:
    """A pass removes a value, and in a later segment the tombstone that deletes it. A power cut may undo each rename
    that is not synced, and no other.
    """
    on = LogOnDisk(cleanup_policy="compact", segment_bytes=1000, file_delete_delay_ms=0)
    on.append_batch(encode_batch([Record(b"other", b"kept", NOW_MS)]))
    on.log.roll(NOW_MS)
    on.append_batch(encode_batch([Record(b"deleted", b"old", NOW_MS)]))
    on.log.roll(NOW_MS)
    append_expired_tombstone(on, b"deleted")
    on.log.roll(NOW_MS)
    on.append_batch(encode_batch([Record(b"large", bytes(900), NOW_MS)]))  # does not fit into the group
    on.log.roll(NOW_MS)
    on.append(b"the active segment")
    on.flush()
    values = last_values(on, on.disk.power_cut())
    assert list(values) == [b"other", b"large", b"k"]
    group = first_group(on)
    assert (group.base_offsets, group.records_after) == ([0, 1, 2], 1)
    cuts = 0

    def cut_power(_operation: str, _path: str) -> None:
        nonlocal cuts
        changes = len(on.disk.medium.unsynced_names)
        for kept in product([False, True], repeat=changes):
            cuts += 1
            left = on.disk.power_cut(NoOrder(kept), PowerCutOdds(keep=0.5, torn=0.0, wrong_size=0.0))
            assert last_values(on, left) == values

    on.disk.on_operation = cut_power
    swap_in(on, group)
    on.disk.on_operation = None
    assert cuts > 50
