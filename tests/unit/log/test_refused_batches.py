"""A full disk refuses a batch or a new segment, and later the power fails."""

import errno
import random
from collections.abc import Callable

import pytest

from log_harness import NOW_MS, LogOnDisk, make_batch
from tidelog.wire.errors import StorageError

Append = Callable[[LogOnDisk, bytes], None]


def as_leader(on: LogOnDisk, value: bytes) -> None:
    on.append(value)


def as_follower(on: LogOnDisk, value: bytes) -> None:
    on.log.append_as_follower(memoryview(make_batch(value, base_offset=on.log.log_end_offset, leader_epoch=0)))


def refuse(on: LogOnDisk, append: Append, value: bytes) -> None:
    on.disk.fail("write", "*.log", errno.ENOSPC)
    with pytest.raises(StorageError):
        append(on, value)


@pytest.mark.parametrize("append", [as_leader, as_follower])
def test_a_power_cut_after_a_refused_batch_is_no_damage(append: Append) -> None:
    """The bytes of the refused batch may be on the disk, between those of the next batch."""
    values = random.Random(4)
    ends = set()
    for seed in range(150):
        on = LogOnDisk()
        append(on, b"x")
        on.flush()
        on.disk.rng = random.Random(seed)
        refuse(on, append, values.randbytes(6000).replace(b"\0", b"\1"))
        kept = [b"x", *(values.randbytes(700).replace(b"\0", b"\1") for _ in range(4))]
        for number, value in enumerate(kept[1:]):
            if number == 2:
                refuse(on, append, values.randbytes(6000).replace(b"\0", b"\1"))
            append(on, value)
        on.power_cut(seed)
        end = on.log.log_end_offset
        assert on.records() == list(enumerate(kept[:end]))
        ends.add(end)
    assert len(ends) > 1, "some power cuts lost records that were not flushed"


def test_a_power_cut_after_a_refused_batch_at_the_end_of_a_segment_is_no_damage() -> None:
    """No flush syncs the segment again, because its batches were synced before."""
    for seed in range(100):
        on = LogOnDisk()
        on.append(b"x")
        on.flush()
        refuse(on, as_leader, b"r" * 6000)
        on.log.roll(NOW_MS)
        on.append(b"y")
        on.flush()
        on.power_cut(seed)
        assert on.records() == [(0, b"x"), (1, b"y")]


def test_refused_batches_are_synced_once_when_the_disk_has_space_again() -> None:
    """A sync for each refused batch would block the broker while its disk is full."""
    on = LogOnDisk()
    on.append(b"x")
    on.flush()
    syncs: list[str] = []
    on.disk.on_operation = lambda operation, path: syncs.append(path) if operation.startswith("sync") else None
    for number in range(5):
        refuse(on, as_leader, b"%d" % number * 6000)
    on.append(b"a")
    assert syncs == []
    on.append(b"b")
    assert syncs == [on.path(0)]
    on.append(b"c")
    assert syncs == [on.path(0)]


def test_a_flush_makes_the_sync_after_a_refused_batch_unnecessary() -> None:
    on = LogOnDisk()
    refuse(on, as_leader, b"r" * 6000)
    on.append(b"a")
    on.flush()
    syncs: list[str] = []
    on.disk.on_operation = lambda operation, path: syncs.append(path) if operation.startswith("sync") else None
    on.append(b"b")
    assert syncs == []


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_a_power_cut_after_a_refused_segment_is_no_damage(suffix: str) -> None:
    """A smaller batch is appended to the previous segment, so the new segment's file must not come back."""
    for seed in range(60):
        on = LogOnDisk(segment_bytes=400)
        for value in (b"x0", b"x1", b"x2"):
            on.append(value)
        on.flush()
        on.disk.fail("create", f"*{suffix}", errno.ENOSPC)
        with pytest.raises(StorageError):
            on.append(b"L" * 300)
        on.append(b"s")
        if seed % 2:
            on.flush()
        on.power_cut(seed)
        assert on.log.log_end_offset == 4 or (seed % 2 == 0 and on.log.log_end_offset == 3)


def test_a_refused_segment_whose_removal_could_not_be_synced_is_synced_by_the_next_flush() -> None:
    for seed in range(60):
        on = LogOnDisk(segment_bytes=400)
        for value in (b"x0", b"x1", b"x2"):
            on.append(value)
        on.flush()
        on.disk.fail("create", "*.index", errno.EMFILE)
        on.disk.fail("sync_dir", "/data/orders-0", errno.EMFILE)
        with pytest.raises(StorageError):
            on.append(b"L" * 300)
        assert on.log.failure is None
        on.append(b"s")
        on.flush()
        on.power_cut(seed)
        assert on.log.log_end_offset == 4
