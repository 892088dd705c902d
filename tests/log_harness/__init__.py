"""Logs on a simulated disk, and batches for them, shared by the tests of `tidelog.log`."""

import random
from collections.abc import Sequence
from typing import Any

from tidelog.log.config import LogConfig
from tidelog.log.cut import end_of_cut
from tidelog.log.partition_log import Appended, PartitionLog
from tidelog.log.record_times import find_times
from tidelog.replication.replica import BecameLeader, Replica
from tidelog.simulation.disk import SimDisk
from tidelog.wire.batches import HEADER_BYTES, LENGTH_END, BatchHeader, Codec
from tidelog.wire.checksums import crc32c
from tidelog.wire.compression import compress
from tidelog.wire.primitives import varint
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

NOW_MS = 1_767_225_600_000
DIRECTORY = "/data/orders-0"


def make_batch(*values: bytes, timestamps: Sequence[int] | None = None, **fields: Any) -> bytearray:
    """Return a batch of records with these values and the key `k`, as a producer sends it."""
    times = timestamps or [NOW_MS] * len(values)
    return encode_batch([Record(b"k", value, time) for value, time in zip(values, times, strict=True)], **fields)


def false_batch(
    *timestamps: int, base: int | None = None, largest: int | None = None, codec: int = Codec.NONE, **fields: Any
) -> bytearray:
    """Return a batch with a record for each timestamp; its header may hold other timestamps, `base` and `largest`."""
    base = timestamps[0] if base is None else base
    body = b""
    for number, timestamp in enumerate(timestamps):
        record = b"\0" + varint(timestamp - base) + varint(number) + varint(1) + b"k" + varint(1) + b"v" + b"\0"
        body += varint(len(record)) + record
    batch = encode_batch([Record(b"k", b"v", 0)] * len(timestamps), codec=codec, **fields)
    del batch[HEADER_BYTES:]
    batch += compress(codec, body) if codec else body
    batch[8:12] = (len(batch) - LENGTH_END).to_bytes(4, "big")
    batch[27:35] = base.to_bytes(8, "big", signed=True)
    batch[35:43] = (max(timestamps) if largest is None else largest).to_bytes(8, "big", signed=True)
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return batch


def leads_alone(log: PartitionLog, leader_epoch: int = 0) -> Replica:
    """Return the replica of a partition that broker 1 leads, and that no other broker has."""
    replica = Replica(1, log.log_end_offset, log.log_end_offset)
    replica.step(BecameLeader(leader_epoch, 0, (1,), (1,), 1), 0)
    return replica


class LogOnDisk:
    """One partition's log on a SimDisk, with a method for each operation of a broker."""

    def __init__(
        self,
        config: LogConfig | None = None,
        disk: SimDisk | None = None,
        *,
        log_start_offset: int = 0,
        **settings: Any,
    ) -> None:
        self.config = config or LogConfig(**settings)
        self.disk = disk or SimDisk(rng=random.Random(1))
        self.disk.make_dirs("/data")
        self.disk.sync_dir("/")
        self.now_ms = NOW_MS
        self.persisted_recovery_point = 0
        self.persisted_log_start_offset = log_start_offset
        self.log = self.open(clean=False)

    def open(
        self,
        *,
        clean: bool,
        recovery_point: int | None = None,
        log_start_offset: int | None = None,
        clean_offset: int | None = None,
    ) -> PartitionLog:
        self.disk.now_ms = lambda: self.now_ms
        self.log = PartitionLog.open(
            self.disk,
            DIRECTORY,
            self.config,
            clean=clean,
            recovery_point=self.persisted_recovery_point if recovery_point is None else recovery_point,
            log_start_offset=self.persisted_log_start_offset if log_start_offset is None else log_start_offset,
            now_ms=self.now_ms,
            clean_offset=clean_offset,
        )
        return self.log

    def append(self, *values: bytes, leader_epoch: int = 0, **fields: Any) -> Appended:
        return self.append_batch(make_batch(*values, **fields), leader_epoch=leader_epoch)

    def repeats(self, *values: bytes, **fields: Any) -> bool:
        """Return whether the batch is answered without an append, as a producer's repeated batch is."""
        end_offset = self.log.log_end_offset
        return self.append(*values, **fields).next_offset <= end_offset == self.log.log_end_offset

    def append_batch(self, batch: bytearray, *, leader_epoch: int = 0) -> Appended:
        return self.log.append(memoryview(batch), BatchHeader(batch), leader_epoch=leader_epoch, now_ms=self.now_ms)

    def append_unchecked(self, batch: bytearray) -> Appended:
        """Append without a check of the header's timestamps, like an earlier version of Tidelog."""
        header = BatchHeader(batch)
        return self.log.append(memoryview(batch), header, leader_epoch=0, now_ms=self.now_ms, limits=False)

    def flush(self, *, checkpoint: bool = True) -> None:
        plan = self.log.flush_plan()
        plan.run()
        self.log.flushed(plan)
        if checkpoint:
            self.persisted_recovery_point = self.log.recovery_point

    def truncate_to(self, offset: int) -> None:
        """Cut the log as a broker does: first the checkpoints are set to offsets that fit to every step of the cut."""
        offset = end_of_cut(self.log.segments, min(offset, self.log.log_end_offset), self.log.log_start_offset)
        if offset < self.log.log_start_offset:
            self.flush()
            self.persisted_log_start_offset = self.log.log_start_offset
            self.persisted_recovery_point = min(self.persisted_recovery_point, self.log.log_start_offset)
        else:
            lowered = self.log.recovery_point_for_cut(offset)
            self.persisted_recovery_point = min(self.persisted_recovery_point, lowered)
        cut = self.log.begin_cut(offset)
        cut.run()
        if cut.empties:
            self.persisted_log_start_offset = self.persisted_recovery_point = offset
        self.log.install_cut(cut)

    def retain(self, now_ms: int, high_watermark: int | None = None) -> int:
        """Run retention as a broker does, until the due files are deleted. Return the number of segments removed
        from the log.
        """
        search = self.log.segment_age_search(now_ms)
        if search is not None:
            search.run()
            while search.wanted_part is not None:
                search.add_record_times(find_times(self.disk.open(search.wanted_part.path), search.wanted_part))
                search.run()
            search.store_result()
        limit = self.log.log_end_offset if high_watermark is None else high_watermark
        if self.log.retention_needs_flush(now_ms, limit):
            self.flush()
        count = self.log.apply_retention(now_ms, high_watermark)
        self.persisted_log_start_offset = self.log.log_start_offset
        removal = self.log.removal(now_ms)
        if removal is not None:
            removal.run()
        return count

    def restart(self) -> PartitionLog:
        """Stop the broker cleanly and start it again."""
        self.log.close(clean=True)
        self.persisted_recovery_point = self.log.recovery_point
        self.persisted_log_start_offset = self.log.log_start_offset
        return self.open(clean=True)

    def kill(self) -> PartitionLog:
        """Kill the process and start it again; the page cache is kept."""
        self.disk = self.disk.kill()
        return self.open(clean=False)

    def power_cut(self, seed: int) -> PartitionLog:
        self.disk = self.disk.power_cut(random.Random(seed))
        return self.open(clean=False)

    def files(self) -> list[str]:
        return self.disk.list(DIRECTORY)

    def bases(self) -> list[int]:
        """Return the base offsets of the segments."""
        return [int(name[:20]) for name in self.files() if name.endswith(".log")]

    def path(self, base_offset: int, suffix: str = ".log") -> str:
        return f"{DIRECTORY}/{base_offset:020d}{suffix}"

    def flip(self, path: str, position: int, mask: int = 0xFF) -> None:
        """Damage one byte of a file."""
        file = self.disk.open(path)
        byte = file.pread(1, position)
        file.pwrite(bytes([byte[0] ^ mask]), position)
        file.sync()
        file.close()

    def records(
        self, start: int | None = None, end: int | None = None, bytes_max: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        """Return (offset, value) of every record, read as a consumer reads."""
        return read_records(self.log, start, end, bytes_max)


def read_records(
    log: PartitionLog, start: int | None = None, end: int | None = None, bytes_max: int = 1 << 20
) -> list[tuple[int, bytes]]:
    offset = log.log_start_offset if start is None else start
    end = log.log_end_offset if end is None else end
    first = offset
    found = []
    while offset < end:
        data, next_offset = read_once(log, offset, bytes_max, end)
        if not data:
            break
        found += [(record.offset, record.value or b"") for record in data if record.offset >= first]
        offset = next_offset
    return found


def read_once(log: PartitionLog, offset: int, bytes_max: int, end: int) -> tuple[list[Record], int]:
    """Return the records of one read, and the offset of the next read. Check the guarantees of every read."""
    part = log.read(offset, bytes_max, end)
    if not part.size:
        return [], offset
    assert part.file is not None
    data = part.file.pread(part.size, part.position)
    headers = list(batches_in(data))
    assert sum(header.size for header in headers) == len(data) == part.size, "whole batches only"
    assert headers[0].base_offset == part.first_batch_offset
    assert headers[0].base_offset <= offset <= headers[0].last_offset or headers[0].base_offset > offset
    assert part.size <= bytes_max or len(headers) == 1
    assert headers[-1].next_offset <= end
    assert all(header.crc_ok() for header in headers)
    records = [record for header in headers for record in decode_records(data, header.position)]
    return records, headers[-1].next_offset
