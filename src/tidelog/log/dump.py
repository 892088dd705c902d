"""Yield the content of log files, entry by entry. `tidelog log dump` uses this module.

Each entry is a dict with `file`, `kind`, `position` and other plain values. Keys and values of records are bytes or
None. An entry of kind `damage` is the last entry of its file. An entry of kind `unwritten` is also the last entry of
its file. It means that the rest of the segment consists of zeros, which Kafka preallocated. The functions block the
caller while they read files. They change no file.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from tidelog.log.batch_scan import ATTRIBUTES, CRC, Fields, batches, is_unwritten
from tidelog.log.checkpoints import parse_epochs, parse_offsets, parse_partition_metadata, read_properties
from tidelog.log.errors import CorruptLog
from tidelog.log.file_kinds import Kind, file_kind
from tidelog.log.indexes import CorruptIndex, OffsetIndex, TimeIndex
from tidelog.log.producer_snapshot import CorruptSnapshot, decode_snapshot
from tidelog.log.replay import end_marker
from tidelog.log.transaction_index import TransactionIndex
from tidelog.log.verify import unreadable
from tidelog.model.ids import uuid_text
from tidelog.wire.batches import CODEC_MASK, CONTROL_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, Codec
from tidelog.wire.checksums import crc32c
from tidelog.wire.records import decode_records

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

Entry: TypeAlias = dict[str, object]

MARKERS = ("abort", "commit")
"""Names of the transaction markers, indexed by their type."""


def dump(disk: "Disk", path: str, *, records: bool = False) -> Iterator[Entry]:
    """Yield every entry of a file, or of each file in a directory and its subdirectories.

    `records`: also yield the records of batches. Data that cannot be read is an entry of kind `damage`. Raises
    OSError if `path` does not exist.
    """
    path = path.rstrip("/")
    if not disk.is_dir(path):
        disk.size(path)  # raises OSError if it does not exist
    yield from _dump_path(disk, path, records=records)


def _dump_path(disk: "Disk", path: str, *, records: bool) -> Iterator[Entry]:
    try:
        if disk.is_dir(path):
            for name in disk.list(path):
                yield from _dump_path(disk, f"{path}/{name}", records=records)
            return
        for entry in _file_entries(disk, path, path.rpartition("/")[2], records=records):
            yield {"file": path, **entry}
    except OSError as error:
        yield {"file": path, "kind": "damage", "position": 0, "reason": unreadable(error)}
    except CorruptLog as error:
        yield {"file": error.path, "kind": "damage", "position": error.position, "reason": error.reason}
    except (CorruptIndex, CorruptSnapshot) as error:
        yield {"file": path, "kind": "damage", "position": 0, "reason": str(error)}


def _file_entries(disk: "Disk", path: str, name: str, *, records: bool) -> Iterator[Entry]:
    kind, base_offset = file_kind(name)
    if kind in (Kind.SEGMENT, Kind.METADATA_SNAPSHOT):
        return _batch_entries(disk, path, base_offset, records=records)
    if kind is Kind.OFFSET_INDEX:
        return _offset_index_entries(disk, path, base_offset)
    if kind is Kind.TIME_INDEX:
        return _time_index_entries(disk, path, base_offset)
    if kind is Kind.TRANSACTION_INDEX:
        return _transaction_entries(disk, path)
    if kind is Kind.PRODUCERS:
        return _producer_entries(disk, path)
    if kind in (Kind.LEFTOVER, Kind.OTHER):
        return iter([{"kind": "file", "position": 0, "size": disk.size(path)}])
    return _TEXT_FILE_ENTRIES[kind](disk.read(path), path)


def _batch_entries(disk: "Disk", path: str, base_offset: int, *, records: bool) -> Iterator[Entry]:
    file = disk.open(path)
    end = file.size()
    try:
        for position, batch, fields in batches(file, 0, end, base_offset):
            yield _batch_entry(position, batch, fields)
            if records:
                yield from _record_entries(path, position, batch, fields)
    except CorruptLog as error:
        if not is_unwritten(file, error.position, end):
            raise
        yield {"kind": "unwritten", "position": error.position, "size": end - error.position}
    finally:
        file.close()


def _batch_entry(position: int, batch: memoryview, fields: Fields) -> Entry:
    (
        base_offset,
        _,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    ) = fields
    codec = attributes & CODEC_MASK
    return {
        "kind": "batch",
        "position": position,
        "size": len(batch),
        "base_offset": base_offset,
        "last_offset": base_offset + last_offset_delta,
        "count": count,
        "leader_epoch": leader_epoch,
        "magic": magic,
        "crc": crc,
        "crc_ok": crc32c(batch[21:]) == fields[CRC],
        "codec": Codec(codec).name.lower() if codec <= Codec.ZSTD else codec,
        "timestamp_type": "LogAppendTime" if attributes & TIMESTAMP_TYPE_BIT else "CreateTime",
        "base_timestamp": base_timestamp,
        "max_timestamp": max_timestamp,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "base_sequence": base_sequence,
        "transactional": bool(attributes & TRANSACTIONAL_BIT),
        "control": bool(attributes & CONTROL_BIT),
    }


def _record_entries(path: str, position: int, batch: memoryview, fields: Fields) -> Iterator[Entry]:
    try:
        marker = end_marker(batch) if fields[ATTRIBUTES] & CONTROL_BIT else None
        for record in decode_records(batch, 0):
            entry: Entry = {
                "kind": "record",
                "position": position,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": record.key,
                "value": record.value,
                "headers": list(record.headers),
            }
            if marker is not None:
                entry["marker"], entry["coordinator_epoch"] = MARKERS[marker[0]], marker[1]
            yield entry
    except ValueError as error:
        raise CorruptLog(path, position, f"the batch's records cannot be decoded: {error}") from error


def _offset_index_entries(disk: "Disk", path: str, base_offset: int) -> Iterator[Entry]:
    for row, (relative, position) in enumerate(OffsetIndex(disk, path, base_offset).rows()):
        offset = base_offset + relative
        yield {"kind": "offset-index", "position": row * 8, "offset": offset, "batch_position": position}


def _time_index_entries(disk: "Disk", path: str, base_offset: int) -> Iterator[Entry]:
    for row, (timestamp, relative) in enumerate(TimeIndex(disk, path, base_offset).rows()):
        yield {"kind": "time-index", "position": row * 12, "timestamp": timestamp, "offset": base_offset + relative}


def _transaction_entries(disk: "Disk", path: str) -> Iterator[Entry]:
    for row, aborted in enumerate(TransactionIndex(disk, path, exists=True).read()):
        yield {"kind": "aborted-transaction", "position": row * 34, **aborted._asdict()}


def _producer_entries(disk: "Disk", path: str) -> Iterator[Entry]:
    for row, (producer_id, entry) in enumerate(decode_snapshot(disk.read(path)).items()):
        newest = entry.batches[-1] if entry.batches else None
        yield {
            "kind": "producer",
            "position": 10 + row * 46,  # a header of 10 bytes, then 46 bytes for each producer
            "producer_id": producer_id,
            "producer_epoch": entry.epoch,
            "first_sequence": newest.first_sequence if newest else -1,
            "last_sequence": newest.last_sequence if newest else -1,
            "last_offset": newest.last_offset if newest else -1,
            "last_timestamp": entry.last_timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "transaction_start": entry.transaction_start,
        }


def _checkpoint_entries(data: bytes, path: str) -> Iterator[Entry]:
    for key, offset in parse_offsets(data, path).items():
        yield {"kind": "checkpoint", "position": 0, "topic": key.topic, "partition": key.partition, "offset": offset}


def _epoch_entries(data: bytes, path: str) -> Iterator[Entry]:
    for epoch, start in parse_epochs(data, path):
        yield {"kind": "leader-epoch", "position": 0, "leader_epoch": epoch, "start_offset": start}


def _metadata_entries(data: bytes, path: str) -> Iterator[Entry]:
    yield {"kind": "partition", "position": 0, "topic_id": uuid_text(parse_partition_metadata(data, path))}


def _property_entries(data: bytes, path: str) -> Iterator[Entry]:
    yield {"kind": "properties", "position": 0, **read_properties(data, path)}


_TEXT_FILE_ENTRIES: dict[Kind, Callable[[bytes, str], Iterator[Entry]]] = {
    Kind.OFFSETS: _checkpoint_entries,
    Kind.EPOCHS: _epoch_entries,
    Kind.PARTITION: _metadata_entries,
    Kind.PROPERTIES: _property_entries,
}
