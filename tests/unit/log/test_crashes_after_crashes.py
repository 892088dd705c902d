"""A second fault soon after a first one: what recovery kept is on the disk."""

import errno

import pytest

from log_harness import LogOnDisk
from tidelog.log import recovery
from tidelog.simulation.disk import SimFile


def failed_flush(on: LogOnDisk, skip: int) -> bool:
    """Flush the log. The sync of a log file fails, after `skip` successful ones. Returns whether that happened."""
    on.disk.fail("sync", "*.log", errno.EIO, skip=skip)
    plan = on.log.flush_plan()
    try:
        plan.run()
    except OSError as error:
        on.log.fail("sync failed", error)
        return True
    return False


@pytest.mark.parametrize("record_bytes", [20, 500])
@pytest.mark.parametrize("recovery_point", [0, 3])
def test_after_a_failed_sync_recovery_writes_the_batches_to_the_disk(
    recovery_point: int, record_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel marks pages clean although their sync has failed: the next sync succeeds and writes nothing."""
    monkeypatch.setattr(recovery, "REWRITE_BYTES", 300)
    values = [b"%d" % number * record_bytes for number in range(9)]
    failures = 0
    for skip in range(5):
        on = LogOnDisk(segment_bytes=1300)
        for value in values[:3]:
            on.append(value)
        if recovery_point:
            on.flush()
        for value in values[3:]:
            on.append(value)
        failures += failed_flush(on, skip)
        on.kill()
        assert (on.log.log_end_offset, on.log.recovery_point) == (9, 9)
        on.persisted_recovery_point = on.log.recovery_point
        for seed in range(10):
            disk = on.disk
            on.power_cut(seed)
            assert on.records() == list(enumerate(values))
            on.disk = disk
    assert failures


def test_only_batches_that_were_not_flushed_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    on = LogOnDisk(segment_bytes=6000)
    on.append(b"a" * 5000)
    on.flush()
    flushed_bytes = on.log.size_bytes
    on.append(b"b" * 50)
    on.append(b"c" * 5000)
    written: list[tuple[str, int, int]] = []
    write_again = recovery._write_again

    def note(file: SimFile, position: int, end: int) -> None:
        written.append((file.path, position, end))
        write_again(file, position, end)

    monkeypatch.setattr(recovery, "_write_again", note)
    on.kill()
    sizes = [segment.size for segment in on.log.segments.items]
    assert written == [(on.path(0), flushed_bytes, sizes[0]), (on.path(2), 0, sizes[1])]
