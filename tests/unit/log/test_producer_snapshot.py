"""Producer snapshots in Kafka's format."""

import pytest

from log_harness import NOW_MS
from tidelog.log.producer_snapshot import CorruptSnapshot, decode_snapshot, encode_snapshot
from tidelog.log.producer_state import SEQUENCE_MAX, ProducedBatch, ProducerState
from tidelog.wire.batches import COMMIT, TRANSACTIONAL_BIT

# Written by Kafka 4.3.1 at its shutdown: ids 2000 (epoch 3), 2001 (3) and 1000 (1), sequences wrapped for the first.
KAFKA = bytes.fromhex(
    "00018c2b238f00000003"
    "00000000000007d0000300000001000000000000000d00000000000001a21fffa0f5ffffffffffffffffffffffff"
    "00000000000007d1000300000000000000000000000f00000000000001a21fffa0f5ffffffffffffffffffffffff"
    "00000000000003e8000100000000000000000000000900000000000001a21fffa0f5ffffffffffffffffffffffff"
)


def test_kafkas_bytes_are_read_and_written_alike() -> None:
    entries = decode_snapshot(KAFKA)
    assert {i: (e.epoch, e.batches[-1].last_sequence, e.batches[-1].last_offset) for i, e in entries.items()} == {
        2000: (3, 1, 13),
        2001: (3, 0, 15),
        1000: (1, 0, 9),
    }
    state = ProducerState()
    state.restore(entries)
    assert encode_snapshot(state) == KAFKA


def test_an_empty_state() -> None:
    assert decode_snapshot(encode_snapshot(ProducerState())) == {}
    assert len(encode_snapshot(ProducerState())) == 10


def test_the_newest_batch_the_open_transaction_and_the_coordinator_are_kept() -> None:
    state = ProducerState()
    state.appended(5, 2, SEQUENCE_MAX, 40, 2, NOW_MS, TRANSACTIONAL_BIT)
    state.appended(5, 2, 2, 43, 0, NOW_MS + 1, TRANSACTIONAL_BIT)
    state.appended(6, 0, SEQUENCE_MAX - 1, 44, 3, NOW_MS, 0)
    state.marker_appended(8, 1, 9, 48, NOW_MS, COMMIT)
    restored = ProducerState()
    restored.restore(decode_snapshot(encode_snapshot(state)))
    assert restored.open_transactions == {40: 5}
    assert restored.entries[5].batches == [ProducedBatch(2, 2, 43, 43, NOW_MS + 1)]
    assert restored.entries[6].batches == [ProducedBatch(SEQUENCE_MAX - 1, 1, 44, 47, NOW_MS)]
    assert restored.entries[6].next_sequence == 2
    assert (restored.entries[8].batches, restored.entries[8].coordinator_epoch) == ([], 9)


@pytest.mark.parametrize("position", [0, 1, 2, 5, 6, 9, 10, 50, 147])
def test_any_flipped_byte_is_found(position: int) -> None:
    data = bytearray(KAFKA)
    data[position] ^= 1
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(bytes(data))


@pytest.mark.parametrize("size", [0, 9, 10, 147])
def test_a_cut_file_is_found(size: int) -> None:
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(KAFKA[:size])
