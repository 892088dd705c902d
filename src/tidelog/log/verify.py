"""Find every defect in log files, including files that Kafka wrote. `tidelog log verify` uses this module.

All data is read and decoded: batches and their records, indexes (compared with the log), snapshots, transaction
indexes and checkpoints. The CRC of each batch and the order of the offsets are checked. The start and end of a log are
compared with the data directory's checkpoints. No file is changed. The calling thread is blocked until every byte is
read.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.batch_scan import (
    BASE_OFFSET,
    COUNT,
    CRC,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    Fields,
    batches,
    is_unwritten,
)
from tidelog.log.checkpoints import (
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    parse_epochs,
    parse_offsets,
    parse_partition_metadata,
    read_offsets,
    read_properties,
)
from tidelog.log.damage import next_sound_batch
from tidelog.log.errors import CorruptLog
from tidelog.log.file_kinds import (
    DELETE_SUFFIX,
    SEGMENT_FILE_KINDS,
    Kind,
    file_kind,
    partition_of,
)
from tidelog.log.indexes import CorruptIndex, OffsetIndex, TimeIndex
from tidelog.log.ownership import TidelogDirectories
from tidelog.log.producer_snapshot import CorruptSnapshot, decode_snapshot
from tidelog.log.transaction_index import TransactionIndex
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import LENGTH_END
from tidelog.wire.checksums import crc32c
from tidelog.wire.records import decode_records

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

DAMAGE = "damage"
NOTE = "note"
"""Severity of a finding that is not damage, for example offsets that compaction removed, files that will be deleted, or
zeros that Kafka preallocated."""

LEFTOVER_REASONS = {
    ".deleted": "a retired file: it will be removed after file.delete.delay.ms, or by the broker's next start",
    ".cleaned": "written by a compaction pass that is running or was interrupted",
    ".swap": "written by a compaction pass, and not renamed to its final name yet",
    ".tmp": "part of a write that is running or was interrupted",
}
"""The reason in the note about a leftover file, by the suffix of its name."""
DIRECTORY_REASONS = {
    DELETE_SUFFIX: (
        "a deleted or moved partition: it will be removed after file.delete.delay.ms, or by the broker's next start"
    ),
    "-future": "a partition that moves here from another data directory",
    "-stray": "a renamed partition of a topic that no longer exists: delete it if you do not need it",
}
OTHER_DIRECTORY_REASON = "not the directory of a partition"

UNKNOWN_END = -1
"""The end offset of a segment that cannot be read."""


class Finding(NamedTuple):
    """A defect or a note. `position` is a byte position in the file `path`. `severity` is DAMAGE or NOTE."""

    path: str
    position: int
    severity: str
    reason: str


class VerifyReport:
    """The result: how many files, bytes, batches and records were read, and the findings."""

    __slots__ = ("batches", "bytes", "files", "findings", "records")

    def __init__(self) -> None:
        self.files = self.bytes = self.batches = self.records = 0
        self.findings: list[Finding] = []

    @property
    def damaged(self) -> bool:
        return any(finding.severity == DAMAGE for finding in self.findings)

    def add(self, other: "VerifyReport") -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.batches += other.batches
        self.records += other.records
        self.findings += other.findings

    def add_finding(self, path: str, position: int, reason: str, severity: str = DAMAGE) -> None:
        self.findings.append(Finding(path, position, severity, reason))


def verify(
    disk: "Disk", path: str, *, records: bool = True, tidelog_directories: TidelogDirectories | None = None
) -> VerifyReport:
    """Verify a file, a partition's directory or a whole data directory. `records`: decode every record.

    `tidelog_directories` says which data directories belong to Tidelog. The default contains only directories with a
    file `metadata.sqlite` (the metadata store itself) or `metadata.store` (the address of the metadata store). Data
    that cannot be read becomes a finding. Raises OSError if `path` does not exist.
    """
    path = path.rstrip("/")
    if not disk.is_dir(path):
        disk.size(path)  # raises OSError if it does not exist
    directories = TidelogDirectories(disk) if tidelog_directories is None else tidelog_directories
    return _Verifier(disk, directories, decode=records).run(path)


def unreadable(error: OSError) -> str:
    """Return the `reason` of a finding about a file or directory that the operating system cannot read."""
    return f"it cannot be read: {error.strerror}"


def reason_by_suffix(reasons: Mapping[str, str], name: str, default: str = "left behind") -> str:
    return next((reason for ending, reason in reasons.items() if name.endswith(ending)), default)


class _Verifier:
    """One verification of a file or directory. `decode` says whether every record is decoded."""

    def __init__(self, disk: "Disk", tidelog_directories: TidelogDirectories, *, decode: bool) -> None:
        self._disk = disk
        self._tidelog_directories = tidelog_directories
        self._decode = decode
        self._result = VerifyReport()
        self._checkpoints: dict[str, dict[TopicPartition, int] | None] = {}
        """Offsets of the checkpoints that were read, by path; None for a missing or damaged one."""
        self._next_base_offsets: dict[str, int] = {}
        """For each segment of the current partition except the last one, by path: the offset at which the next
        segment begins."""

    def run(self, path: str) -> VerifyReport:
        if self._disk.is_dir(path):
            with self._recording_errors(path):
                self._verify_directory(path)
        else:
            self._verify_file(path)
        return self._result

    @contextmanager
    def _recording_errors(self, path: str) -> Iterator[None]:
        """Record an OSError of the block as a finding about `path`, so that the verification continues."""
        try:
            yield
        except OSError as error:
            self._result.add_finding(path, 0, unreadable(error))

    def _verify_directory(self, path: str) -> None:
        """Verify the directory of a partition, or a data directory."""
        names = self._disk.list(path)
        has_partitions = any(partition_of(name) and self._disk.is_dir(f"{path}/{name}") for name in names)
        # A data directory may have a name such as `kafka-logs-1`, which looks like a partition's.
        if any(file_kind(name).kind is Kind.SEGMENT for name in names) or (
            partition_of(path.rpartition("/")[2]) and not has_partitions
        ):
            self._verify_partition(path)
            return
        for name in names:
            child = f"{path}/{name}"
            if not self._disk.is_dir(child):
                self._verify_file(child)
            elif partition_of(name):
                with self._recording_errors(child):
                    self._verify_partition(child)
            else:
                self._result.add_finding(
                    child, 0, reason_by_suffix(DIRECTORY_REASONS, name, OTHER_DIRECTORY_REASON), NOTE
                )

    def _verify_partition(self, directory: str) -> None:
        """Verify the segments in order, each with its indexes, and then the other files."""
        end_offset = UNKNOWN_END
        epochs: list[tuple[int, int, str]] = []
        names = self._disk.list(directory)
        segments = [name for name in names if file_kind(name).kind is Kind.SEGMENT]
        base_offsets = [file_kind(name).base_offset for name in segments]
        self._next_base_offsets = {
            f"{directory}/{name}": base for name, base in zip(segments, base_offsets[1:], strict=False)
        }
        for name in segments:
            path, base_offset = f"{directory}/{name}", file_kind(name).base_offset
            if end_offset > base_offset:
                self._result.add_finding(
                    path, 0, f"the segment begins below offset {end_offset}, where the previous segment ends"
                )
            elif UNKNOWN_END < end_offset < base_offset:
                severity = NOTE if self._may_have_holes(directory, base_offset) else DAMAGE
                self._result.add_finding(
                    path, 0, f"offsets {end_offset} to {base_offset - 1} are in no segment", severity
                )
            end_offset = self._verify_segment(path, base_offset, epochs)
        self._check_ends(directory, segments, end_offset if segments else 0)
        for name in names:
            kind = file_kind(name).kind
            if kind is Kind.EPOCHS:
                with self._recording_errors(f"{directory}/{name}"):
                    self._verify_epochs(f"{directory}/{name}", epochs)
            elif kind not in SEGMENT_FILE_KINDS:
                self._verify_file(f"{directory}/{name}")
            elif f"{name.partition('.')[0]}.log" not in names:
                self._result.add_finding(f"{directory}/{name}", 0, "an index without its segment", NOTE)

    def _may_have_holes(self, directory: str, offset: int) -> bool:
        """Return whether the offsets before `offset` may be missing without damage: because compaction removed them,
        or because they are below the log start offset.

        The result is True if the data directory is not known to belong to Tidelog, because Kafka's checkpoints may
        be out of date. It is also True if the checkpoint of compaction is damaged.
        """
        parent, _, name = directory.rpartition("/")
        key = partition_of(name)
        if key is None or parent not in self._tidelog_directories:
            return True
        path = f"{parent}/{CLEANER_OFFSETS}"
        if self._disk.exists(path) and self._checkpoint_offset(path, key) is None:
            return True  # the damage is reported when the checkpoint itself is verified
        is_compacted = key in (self._checkpoints.get(path) or {})
        return is_compacted or offset <= (self._checkpoint_offset(f"{parent}/{LOG_START_OFFSETS}", key) or 0)

    def _check_ends(self, directory: str, segments: list[str], end_offset: int) -> None:
        """Check that the first segment does not begin above the log start offset, and that the log does not end below
        its recovery point. Both offsets come from the data directory's checkpoints. A missing checkpoint is ignored; a
        missing entry means 0.
        """
        parent, _, name = directory.rpartition("/")
        key = partition_of(name)
        if key is None:
            return
        start = self._checkpoint_offset(f"{parent}/{LOG_START_OFFSETS}", key)
        recovery_point = self._recovery_point(directory)
        first_offset = file_kind(segments[0]).base_offset if segments else 0
        if start is not None and first_offset > start:
            # Kafka writes this checkpoint only at intervals, so its offset may be out of date.
            reason = (
                f"the log begins at offset {first_offset}, but {LOG_START_OFFSETS} says {start}: "
                "earlier segments are missing"
            )
            self._result.add_finding(
                f"{directory}/{segments[0]}", 0, reason, DAMAGE if parent in self._tidelog_directories else NOTE
            )
        if recovery_point is not None and end_offset != UNKNOWN_END and max(end_offset, start or 0) < recovery_point:
            path = f"{directory}/{segments[-1]}" if segments else directory
            reason = (
                f"the log ends at offset {end_offset}, but {RECOVERY_POINTS} says that every offset below "
                f"{recovery_point} was on the disk"
            )
            self._result.add_finding(path, self._disk.size(path) if segments else 0, reason)

    def _recovery_point(self, directory: str) -> int | None:
        """Return the recovery point of the partition in `directory`; None if it is unknown."""
        parent, _, name = directory.rpartition("/")
        partition = partition_of(name)
        return None if partition is None else self._checkpoint_offset(f"{parent}/{RECOVERY_POINTS}", partition)

    def _checkpoint_offset(self, path: str, partition: TopicPartition) -> int | None:
        """Return the partition's offset in a checkpoint; 0 if it has no entry, None if the checkpoint is missing or
        damaged.
        """
        if path not in self._checkpoints:
            try:
                self._checkpoints[path] = read_offsets(self._disk, path)
            except (CorruptLog, OSError):
                self._checkpoints[path] = None  # reported when the file itself is verified
        offsets = self._checkpoints[path]
        return None if offsets is None else offsets.get(partition, 0)

    def _verify_file(self, path: str) -> None:
        """Verify a single file according to its name. An index is verified together with the `.log` file beside it."""
        kind, base_offset = file_kind(path.rpartition("/")[2])
        if kind in SEGMENT_FILE_KINDS:
            self._verify_segment(f"{path.rpartition('.')[0]}.log", base_offset, [])
            return
        with self._recording_errors(path):
            if kind is Kind.METADATA_SNAPSHOT:
                self._verify_batches(path, 0, [], {}, {})
            elif kind in (Kind.LEFTOVER, Kind.OTHER):
                self._result.files += 1
                self._result.bytes += self._disk.size(path)
                if kind is Kind.LEFTOVER:
                    self._result.add_finding(path, 0, reason_by_suffix(LEFTOVER_REASONS, path), NOTE)
            else:
                self._verify_small_file(path, kind)

    def _verify_small_file(self, path: str, kind: Kind) -> None:
        """Verify a file that is read as a whole."""
        data = self._read_counted(path)
        try:
            if kind is Kind.PRODUCERS:
                decode_snapshot(data)
            elif kind is Kind.OFFSETS:
                parse_offsets(data, path)
            elif kind is Kind.EPOCHS:
                parse_epochs(data, path)
            elif kind is Kind.PARTITION:
                parse_partition_metadata(data, path)
            elif kind is Kind.PROPERTIES:
                read_properties(data, path)
        except CorruptSnapshot as error:
            self._result.add_finding(path, 0, str(error))
        except CorruptLog as error:
            self._result.add_finding(error.path, error.position, error.reason)

    def _verify_epochs(self, path: str, batch_epochs: list[tuple[int, int, str]]) -> None:
        """Check that the checkpoint contains each epoch of the batches, with the same or an earlier first offset.

        `batch_epochs` has (epoch, first offset, segment path) of each epoch in the batches.
        """
        try:
            entries = parse_epochs(self._read_counted(path), path)
        except CorruptLog as error:
            self._result.add_finding(error.path, error.position, error.reason)
            return
        for (epoch, start), (next_epoch, next_start) in pairwise(entries):
            if next_epoch <= epoch or next_start < start:
                self._result.add_finding(
                    path, 0, f"epoch {next_epoch} from offset {next_start} follows epoch {epoch} from offset {start}"
                )
        starts = dict(entries)
        recovery_point = self._recovery_point(path.rpartition("/")[0]) or 0
        for epoch, offset, segment in batch_epochs:
            if not entries or (epoch > entries[-1][0] and offset >= recovery_point):
                self._result.add_finding(
                    path, 0, f"epoch {epoch} from offset {offset} is not in the checkpoint yet", NOTE
                )
            elif epoch > entries[-1][0]:
                # The batch is below the recovery point, so the checkpoint was written after the batch. Therefore the
                # epoch in the batch, which no checksum covers, is wrong.
                self._result.add_finding(segment, 0, f"epoch {epoch} from offset {offset} is not in {path}")
            elif epoch <= entries[0][0] and offset < entries[0][1]:
                self._result.add_finding(
                    path,
                    0,
                    f"a batch at offset {offset} lies before the first epoch of the checkpoint, which begins at offset "
                    f"{entries[0][1]}: the batch's records were deleted",
                    NOTE,
                )
            elif starts.get(epoch, offset + 1) > offset:
                stated = f"begins at offset {starts[epoch]}" if epoch in starts else "does not exist"
                self._result.add_finding(
                    path,
                    0,
                    f"a batch at offset {offset} in {segment} has epoch {epoch}, but according to the checkpoint, "
                    f"epoch {epoch} {stated}",
                )

    # Segments

    def _verify_segment(self, path: str, base_offset: int, epochs: list[tuple[int, int, str]]) -> int:
        """Verify a segment with its indexes. Returns the offset at which it ends, or UNKNOWN_END."""
        stem = path[: -len(".log")]
        offset_rows = self._index_rows(OffsetIndex(self._disk, stem + ".index", base_offset))
        time_rows = self._index_rows(TimeIndex(self._disk, stem + ".timeindex", base_offset))
        positions = {position: (row, relative + base_offset) for row, (relative, position) in enumerate(offset_rows)}
        times = {relative + base_offset: (row, time) for row, (time, relative) in enumerate(time_rows)}
        end_offset = UNKNOWN_END
        with self._recording_errors(path):
            end_offset = self._verify_batches(path, base_offset, epochs, positions, times)
            for row, offset in positions.values():
                reason = f"offset {offset} is not in the batch at its indexed position"
                self._result.add_finding(f"{stem}.index", row * 8, reason)
            for offset, (row, time) in times.items():
                self._result.add_finding(
                    f"{stem}.timeindex", row * 12, f"offset {offset} with time {time} is not in the log"
                )
        transactions = f"{stem}.txnindex"
        if self._disk.exists(transactions):
            with self._recording_errors(transactions):
                self._verify_transactions(transactions)
        return end_offset

    def _verify_transactions(self, path: str) -> None:
        self._result.files += 1
        self._result.bytes += self._disk.size(path)
        try:
            TransactionIndex(self._disk, path, exists=True).read()
        except CorruptLog as error:
            self._result.add_finding(error.path, error.position, error.reason)

    def _index_rows(self, index: OffsetIndex | TimeIndex) -> list[tuple[int, int]]:
        if not self._disk.exists(index.path):
            return []
        with self._recording_errors(index.path):
            self._result.files += 1
            self._result.bytes += self._disk.size(index.path)
            try:
                return index.rows()
            except CorruptIndex as error:
                self._result.add_finding(index.path, 0, str(error).partition(": ")[2])
        return []

    def _verify_batches(
        self,
        path: str,
        base_offset: int,
        epochs: list[tuple[int, int, str]],
        positions: dict[int, tuple[int, int]],
        times: dict[int, tuple[int, int]],
    ) -> int:
        """Verify every batch of a file, and return the end offset. Index entries that agree with the batches are
        removed from `positions` and `times`.

        `positions` maps a position to (row, offset), and `times` an offset to (row, timestamp). The offset in an
        entry differs between Kafka's versions. Before Kafka 4.0, an offset entry contained the last offset of an
        append and the position of its first batch. An append of a follower or of compaction may consist of several
        batches. Up to Kafka 3.7, a time entry contained the offset of the first record with the timestamp, not the
        batch's last offset. Look-ups return the same result in all cases.
        """
        next_offset = base_offset
        latest = -1
        entry_position = -1
        time_offsets = sorted(times)
        next_time = 0
        for position, batch, fields in self._readable_batches(path, base_offset):
            self._result.batches += 1
            if crc32c(batch[21:]) != fields[CRC]:  # the CRC covers all bytes after its own field
                self._result.add_finding(path, position, f"the batch's CRC-32C is not the stated {fields[CRC]:#010x}")
            elif self._decode:
                self._verify_records(path, position, batch, fields)
            epoch, offset = fields[LEADER_EPOCH], fields[BASE_OFFSET]
            if epochs and epoch < epochs[-1][0]:
                self._result.add_finding(path, position, f"leader epoch {epoch} follows epoch {epochs[-1][0]}")
            elif epoch >= 0 and (not epochs or epoch > epochs[-1][0]):
                epochs.append((epoch, offset, path))
            last_offset = offset + fields[LAST_OFFSET_DELTA]
            if fields[COUNT]:  # compaction may leave batches without records; their timestamp has no meaning
                latest = max(latest, fields[MAX_TIMESTAMP])
            if position in positions:
                entry_position = position
            if entry_position in positions and offset <= positions[entry_position][1] <= last_offset:
                del positions[entry_position]
            while next_time < len(time_offsets) and time_offsets[next_time] <= last_offset:
                if time_offsets[next_time] >= offset and times[time_offsets[next_time]][1] == latest:
                    del times[time_offsets[next_time]]
                next_time += 1
            next_offset = last_offset + 1
        return next_offset

    def _readable_batches(self, path: str, base_offset: int) -> Iterator[tuple[int, memoryview, Fields]]:
        """Yield (position, batch, header) of each batch of a file. A wrong batch header becomes a finding. After it,
        reading continues with the next sound batch.
        """
        file = self._disk.open(path)
        try:
            end = file.size()
            self._result.files += 1
            self._result.bytes += end
            start, next_offset = 0, base_offset
            while True:
                try:
                    for position, batch, fields in batches(file, start, end, base_offset, next_offset):
                        yield position, batch, fields
                        next_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
                    return
                except CorruptLog as error:
                    # Fewer zeros than LENGTH_END may also be the beginning of a batch. They count as unwritten only
                    # if no record is missing.
                    next_base = self._next_base_offsets.get(path, next_offset)
                    may_be_unwritten = end - error.position >= LENGTH_END or next_base == next_offset
                    if may_be_unwritten and is_unwritten(file, error.position, end):
                        reason = f"{end - error.position} bytes are not written yet: zeros after the last batch"
                        self._result.add_finding(path, error.position, reason, NOTE)
                        return
                    next_position = next_sound_batch(file, error.position, end, next_offset)
                    lost_bytes = (end if next_position is None else next_position) - error.position
                    self._result.add_finding(path, error.position, f"{error.reason}; {lost_bytes} bytes are unreadable")
                    if next_position is None:
                        return
                    start = next_position
        finally:
            file.close()

    def _verify_records(self, path: str, position: int, batch: memoryview, fields: Fields) -> None:
        try:
            records = decode_records(batch, 0)
        except ValueError as error:
            self._result.add_finding(path, position, f"the batch's records cannot be decoded: {error}")
            return
        self._result.records += len(records)
        offsets = [record.offset for record in records]
        last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
        if len(records) != fields[COUNT]:
            self._result.add_finding(
                path, position, f"the batch states {fields[COUNT]} records and holds {len(records)}"
            )
        elif any(b <= a for a, b in pairwise(offsets)):
            self._result.add_finding(path, position, "the offsets of the batch's records do not rise")
        elif offsets and not fields[BASE_OFFSET] <= offsets[0] <= offsets[-1] <= last_offset:
            reason = (
                f"the batch's records have offsets {offsets[0]} to {offsets[-1]}, but the batch states offsets "
                f"{fields[BASE_OFFSET]} to {last_offset}"
            )
            self._result.add_finding(path, position, reason)

    def _read_counted(self, path: str) -> bytes:
        data = self._disk.read(path)
        self._result.files += 1
        self._result.bytes += len(data)
        return data
