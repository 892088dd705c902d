"""The `.txnindex` file."""

import random

import pytest

from tidelog.log.errors import CorruptLog
from tidelog.log.transaction_index import AbortedTransaction, TransactionIndex
from tidelog.simulation.disk import SimDisk

FIRST = AbortedTransaction(producer_id=1, first_offset=10, last_offset=20, last_stable_offset=5)
SECOND = AbortedTransaction(producer_id=2, first_offset=5, last_offset=25, last_stable_offset=26)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(rng=random.Random(1))
    disk.make_dirs("/t")
    return disk


@pytest.fixture
def index(disk: SimDisk) -> TransactionIndex:
    return TransactionIndex(disk, "/t/x.txnindex", exists=False)


def test_no_file_is_made_before_the_first_abort(disk: SimDisk, index: TransactionIndex) -> None:
    assert index.read() == []
    index.truncate_to(0)
    assert not disk.exists(index.path)


def test_entries_are_kafkas_34_bytes(disk: SimDisk, index: TransactionIndex) -> None:
    index.append(FIRST)
    index.append(SECOND)
    data = disk.read(index.path)
    assert data[:34] == bytes.fromhex("00000000000000000001000000000000000a00000000000000140000000000000005")
    assert len(data) == 68
    assert index.read() == [FIRST, SECOND]
    assert index.unsynced


def test_truncate_drops_markers_from_the_offset_on(index: TransactionIndex) -> None:
    index.append(FIRST)
    index.append(SECOND)
    index.truncate_to(25)
    assert index.read() == [FIRST]
    index.truncate_to(20)
    assert index.read() == []


@pytest.mark.parametrize("bad", [b"\0\1" + bytes(32), bytes(34), b"\xff" * 34])
def test_what_is_no_entry_is_found_and_cut_off(disk: SimDisk, index: TransactionIndex, bad: bytes) -> None:
    index.append(FIRST)
    file = disk.open(index.path)
    file.pwrite(bad, 34)
    with pytest.raises(CorruptLog) as found:
        index.read()
    assert (found.value.path, found.value.position) == (index.path, 34)
    index.truncate_to(1000)
    assert index.read() == [FIRST]


def test_a_torn_entry_is_overwritten(disk: SimDisk, index: TransactionIndex) -> None:
    index.append(FIRST)
    disk.open(index.path).pwrite(b"\0\0\0", 34)
    assert index.read() == [FIRST]
    index.append(SECOND)
    assert index.read() == [FIRST, SECOND]
