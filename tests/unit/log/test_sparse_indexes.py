"""Offset and time indexes: Kafka's entry formats, look-ups, preallocated tails, damage, bounded memory."""

import random
import struct

import pytest

from tidelog.log.indexes import PENDING_MAX, CorruptIndex, IndexCache, OffsetIndex, SparseIndex, TimeIndex
from tidelog.simulation.disk import SimDisk

BASE = 1000


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(rng=random.Random(1))
    disk.make_dirs("/i")
    return disk


def offset_index(disk: SimDisk, rows: list[tuple[int, int]] = ()) -> OffsetIndex:  # type: ignore[assignment]
    index = OffsetIndex(disk, "/i/index", BASE)
    index.create()
    for offset, position in rows:
        index.append(offset, position)
    return index


def write(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.pwrite(data, 0)
    file.close()


def test_offset_entries_are_kafkas_bytes(disk: SimDisk) -> None:
    index = offset_index(disk, [(1005, 4200), (1010, 0x01020304)])
    assert index.write_pending()
    assert disk.read("/i/index") == struct.pack(">iiii", 5, 4200, 10, 0x01020304)
    assert not index.write_pending()


def test_time_entries_are_kafkas_bytes(disk: SimDisk) -> None:
    index = TimeIndex(disk, "/i/times", BASE)
    index.create()
    assert index.append(0x0102030405060708, 1003)
    index.write_pending()
    assert disk.read("/i/times") == struct.pack(">qi", 0x0102030405060708, 3)


def test_position_for_gives_the_last_entry_at_or_before(disk: SimDisk) -> None:
    index = offset_index(disk, [(1005, 100), (1010, 200), (1020, 300)])
    looked_up = {offset: index.position_for(offset) for offset in (1000, 1004, 1005, 1009, 1010, 1019, 1020, 5000)}
    assert looked_up == {1000: 0, 1004: 0, 1005: 100, 1009: 100, 1010: 200, 1019: 200, 1020: 300, 5000: 300}


def test_boundary_gives_the_last_position_not_past_the_limit(disk: SimDisk) -> None:
    index = offset_index(disk, [(1005, 100), (1010, 200)])
    assert [index.boundary(limit) for limit in (0, 99, 100, 199, 200, 9999)] == [0, 0, 100, 100, 200, 200]


def test_times_that_do_not_grow_add_no_entry(disk: SimDisk) -> None:
    index = TimeIndex(disk, "/i/times", BASE)
    index.create()
    assert not index.append(-1, 1001)
    assert index.append(50, 1002)
    assert not index.append(50, 1003)
    assert not index.append(40, 1004)
    assert index.append(60, 1004)
    assert index.rows() == [(50, 2), (60, 4)]
    assert [index.offset_for(time) for time in (49, 50, 59, 60, 99)] == [BASE, 1002, 1002, 1004, 1004]


def test_rows_are_read_back_lazily_and_with_a_big_file_only_its_end(disk: SimDisk) -> None:
    rows = [(BASE + 3 * i, 100 * i) for i in range(1, 2000)]
    offset_index(disk, rows).write_pending()
    index = OffsetIndex(disk, "/i/index", BASE)
    assert index.last() == (3 * 1999, 100 * 1999)
    assert index.count == 1999
    assert index.memory_bytes == 8
    assert index.position_for(BASE + 3 * 700 + 1) == 70_000
    assert index.memory_bytes == 8 * 1999
    index.unload()
    assert index.memory_bytes == 8
    assert index.position_for(BASE + 3 * 1999) == 199_900  # from the row that stayed
    assert index.memory_bytes == 8


def test_what_is_appended_after_unloading_is_found_with_the_rest(disk: SimDisk) -> None:
    index = offset_index(disk, [(1005, 100), (1010, 200), (1020, 300)])
    index.write_pending()
    index.unload()
    index.append(1030, 400)
    index.unload()
    assert index.pending == 1
    assert index.rows() == [(5, 100), (10, 200), (20, 300), (30, 400)]
    index.write_pending()
    assert OffsetIndex(disk, "/i/index", BASE).rows() == index.rows()


@pytest.mark.parametrize("zeros", [8, 4096, 10 << 10])
def test_preallocated_zeros_are_no_entries(disk: SimDisk, zeros: int) -> None:
    # The last byte of an entry may be zero itself.
    write(disk, "/i/index", struct.pack(">iiii", 5, 0x1000, 9, 0x10000) + bytes(zeros))
    index = OffsetIndex(disk, "/i/index", BASE)
    assert index.last() == (9, 0x10000)
    assert index.count == 2
    index.append(1020, 0x20000)
    index.write_pending()
    assert OffsetIndex(disk, "/i/index", BASE).rows() == [(5, 0x1000), (9, 0x10000), (20, 0x20000)]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">iii", 5, 100, 9),
        struct.pack(">iiii", 5, 200, 9, 100),
        struct.pack(">iiii", 9, 100, 5, 200),
        struct.pack(">iiiiii", 5, 100, 0, 0, 9, 200),
        struct.pack(">iI", 5, 100) + struct.pack(">Ii", 0xFFFFFFFF, 200),
    ],
    ids=["not whole entries", "positions fall", "offsets fall", "a hole", "a negative offset"],
)
def test_a_file_that_cannot_be_right_is_found_out(disk: SimDisk, data: bytes) -> None:
    write(disk, "/i/index", data)
    with pytest.raises(CorruptIndex, match="/i/index"):
        OffsetIndex(disk, "/i/index", BASE).load_all()


def test_truncate_keeps_entries_below_the_offset_on_file_too(disk: SimDisk) -> None:
    index = offset_index(disk, [(1005, 100), (1010, 200), (1020, 300)])
    index.write_pending()
    index.append(1030, 400)
    index.truncate_to(1020)
    assert index.rows() == [(5, 100), (10, 200)]
    assert disk.size("/i/index") == 16
    times = TimeIndex(disk, "/i/times", BASE)
    times.create()
    times.append(7, 1005)
    times.append(8, 1010)
    times.truncate_to(1010)
    assert times.rows() == [(7, 5)]


def test_empty_drops_everything_and_rewrite_puts_back_what_a_rebuild_found(disk: SimDisk) -> None:
    index = offset_index(disk, [(1005, 100)])
    index.write_pending()
    index.empty()
    assert disk.size("/i/index") == 0
    assert index.last() is None
    index.append(1007, 70)
    index.rewrite()
    assert OffsetIndex(disk, "/i/index", BASE).rows() == [(7, 70)]


def test_the_cache_unloads_what_was_used_least_recently(disk: SimDisk) -> None:
    cache = IndexCache(bytes_max=8 * PENDING_MAX * 2)
    indexes: list[SparseIndex] = []
    for number in range(3):
        index = OffsetIndex(disk, f"/i/{number}", BASE)
        index.create()
        index.use_cache(cache)
        for row in range(1, PENDING_MAX + 1):
            index.append(BASE + row, row)
        index.write_pending()
        indexes.append(index)
    assert [index.memory_bytes for index in indexes] == [8, 8 * PENDING_MAX, 8 * PENDING_MAX]
    indexes[1].load_all()
    indexes[0].load_all()
    assert [index.memory_bytes for index in indexes] == [8 * PENDING_MAX, 8 * PENDING_MAX, 8]
    cache.forget(indexes[1])
    assert cache.bytes_held == 8 * PENDING_MAX
