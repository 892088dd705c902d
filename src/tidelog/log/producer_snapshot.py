"""The `.snapshot` file: the producer state at an offset, in Kafka's format (ProducerSnapshot, version 1). Pure.

    version int16 | crc-32c uint32 of the rest | count int32 | for each producer, 46 bytes:
    producer id int64 | epoch int16 | last sequence int32 | last offset int64 | offset delta int32 | timestamp int64 |
    coordinator epoch int32 | first offset of the open transaction int64 (-1: none)

The producer state contains a producer's last five batches. Only the newest of them is stored.
"""

from struct import Struct

from tidelog.log.producer_state import NO_SEQUENCE, SEQUENCE_MAX, ProducedBatch, ProducerEntry, ProducerState
from tidelog.wire.checksums import crc32c

VERSION = 1
_HEAD = Struct(">hIi")
_ENTRY = Struct(">qhiqiqiq")


class CorruptSnapshot(Exception):
    """The file is not a complete and undamaged snapshot of a known version."""


def encode_snapshot(state: ProducerState) -> bytes:
    data = bytearray(_HEAD.size + _ENTRY.size * len(state.entries))
    position = _HEAD.size
    for producer_id, entry in state.entries.items():
        newest = entry.batches[-1] if entry.batches else None
        _ENTRY.pack_into(
            data,
            position,
            producer_id,
            entry.epoch,
            newest.last_sequence if newest else NO_SEQUENCE,
            newest.last_offset if newest else -1,
            newest.last_offset - newest.base_offset if newest else 0,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.transaction_start,
        )
        position += _ENTRY.size
    _HEAD.pack_into(data, 0, VERSION, 0, len(state.entries))  # the CRC, written next, covers the count
    _HEAD.pack_into(data, 0, VERSION, crc32c(memoryview(data)[6:]), len(state.entries))
    return bytes(data)


def decode_snapshot(data: bytes) -> dict[int, ProducerEntry]:
    """Decode a snapshot into producers by id. Raises CorruptSnapshot."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshot(f"the file has {len(data)} bytes, but a snapshot has {_HEAD.size} or more")
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshot(f"the snapshot has version {version}; only {VERSION} is known")
    if crc32c(memoryview(data)[6:]) != crc:
        raise CorruptSnapshot(f"the CRC-32C is not the stated {crc:#010x}")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"the file of {len(data)} bytes does not have the size for the stated {count} producers")
    entries: dict[int, ProducerEntry] = {}
    for fields in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, transaction_start = fields
        entry = entries[producer_id] = ProducerEntry(epoch, timestamp)
        if last_offset >= 0:
            first_sequence = last_sequence - delta
            if first_sequence < 0:
                first_sequence += SEQUENCE_MAX + 1
            entry.add(ProducedBatch(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp))
        entry.coordinator_epoch = coordinator_epoch
        entry.transaction_start = transaction_start
    return entries
