"""Finding every defect in log files, those that Kafka wrote included: the library behind `tidelog log verify`.

Everything is read and decoded: chain and CRC of the batches, their records, indexes against the log, snapshots,
transaction indexes, checkpoints; and where a log begins and ends against what the data directory's checkpoints say.
Nothing is changed. Blocks; slow by nature.
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
from tidelog.log.file_kinds import DELETE_SUFFIX, METADATA_STORE, OF_SEGMENT, Kind, file_kind, partition_of
from tidelog.log.indexes import CorruptIndex, OffsetIndex, TimeIndex
from tidelog.log.producer_snapshot import CorruptSnapshot, decode_snapshot
from tidelog.log.transaction_index import TransactionIndex
from tidelog.model.ids import TopicPartition
from tidelog.wire.checksums import crc32c
from tidelog.wire.records import decode_records

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

DAMAGE = "damage"
NOTE = "note"
"""Not wrong by itself: offsets that compaction took away, files that wait for their deletion, zeros that Kafka
preallocated.
"""

LEFT = {
    ".deleted": "a retired file: it goes once file.delete.delay.ms is over, or with the broker's next start",
    ".cleaned": "written by a compaction that goes on or was broken off",
    ".swap": "written by a compaction, and about to be put in place",
    ".tmp": "of a write that goes on or was broken off",
}
"""What files are, by how their names end."""
LEFT_DIRECTORIES = {
    DELETE_SUFFIX: "a deleted or moved partition: it goes after file.delete.delay.ms, or with the broker's next start",
    "-future": "a partition that moves here from another data directory",
    "-stray": "a partition that no topic has any more, put aside: yours to delete",
}
OTHER_DIRECTORY = "a directory that holds no live partition"

UNKNOWN = -1
"""Where a segment ends that cannot be read."""


class Finding(NamedTuple):
    """`position` in bytes of the file `path`; `severity` is DAMAGE or NOTE."""

    path: str
    position: int
    severity: str
    reason: str


class Verified:
    """What was read, and what was found on the way."""

    __slots__ = ("batches", "bytes", "files", "findings", "records")

    def __init__(self) -> None:
        self.files = self.bytes = self.batches = self.records = 0
        self.findings: list[Finding] = []

    @property
    def damaged(self) -> bool:
        return any(finding.severity == DAMAGE for finding in self.findings)

    def add(self, other: "Verified") -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.batches += other.batches
        self.records += other.records
        self.findings += other.findings

    def found(self, path: str, position: int, reason: str, severity: str = DAMAGE) -> None:
        self.findings.append(Finding(path, position, severity, reason))


def verify(disk: "Disk", path: str, *, records: bool = True) -> Verified:
    """Verify a file, a partition's directory or a whole data directory. `records`: decode every record.

    What cannot be read is damage. Raises OSError for a path that is not there.
    """
    path = path.rstrip("/")
    if not disk.is_dir(path):
        disk.size(path)  # it must be there
    return _Verifier(disk, decode=records).run(path)


def unreadable(error: OSError) -> str:
    """What is said of a file or a directory that the system refuses to read."""
    return f"it cannot be read: {error.strerror}"


def by_ending(reasons: Mapping[str, str], name: str, otherwise: str = "left behind") -> str:
    return next((reason for ending, reason in reasons.items() if name.endswith(ending)), otherwise)


class _Verifier:
    def __init__(self, disk: "Disk", *, decode: bool) -> None:
        self._disk = disk
        self._decode = decode
        self._result = Verified()
        self._offsets: dict[str, dict[TopicPartition, int] | None] = {}
        """Checkpoints that were read, by path."""

    def run(self, path: str) -> Verified:
        if self._disk.is_dir(path):
            with self._noting(path):
                self._directory(path)
        else:
            self._file(path)
        return self._result

    @contextmanager
    def _noting(self, path: str) -> Iterator[None]:
        """That `path` cannot be read is a finding: the rest is verified all the same."""
        try:
            yield
        except OSError as error:
            self._result.found(path, 0, unreadable(error))

    def _directory(self, path: str) -> None:
        """A partition's, or a data directory."""
        names = self._disk.list(path)
        if partition_of(path.rpartition("/")[2]) or any(file_kind(name).kind is Kind.SEGMENT for name in names):
            self._partition(path)
            return
        for name in names:
            child = f"{path}/{name}"
            if not self._disk.is_dir(child):
                self._file(child)
            elif partition_of(name):
                with self._noting(child):
                    self._partition(child)
            else:
                self._result.found(child, 0, by_ending(LEFT_DIRECTORIES, name, OTHER_DIRECTORY), NOTE)

    def _partition(self, directory: str) -> None:
        """The segments in their order, each with its indexes, then the other files."""
        end_offset = UNKNOWN
        epochs: list[tuple[int, int, str]] = []
        names = self._disk.list(directory)
        segments = [name for name in names if file_kind(name).kind is Kind.SEGMENT]
        for name in segments:
            path, base_offset = f"{directory}/{name}", file_kind(name).base_offset
            if end_offset > base_offset:
                self._result.found(path, 0, f"the segment before it reaches offset {end_offset}")
            elif UNKNOWN < end_offset < base_offset:
                severity = NOTE if self._may_have_holes(directory, base_offset) else DAMAGE
                self._result.found(path, 0, f"offsets {end_offset} to {base_offset - 1} are in no segment", severity)
            end_offset = self._segment(path, base_offset, epochs)
        self._ends(directory, segments, end_offset if segments else 0)
        for name in names:
            kind = file_kind(name).kind
            if kind is Kind.EPOCHS:
                with self._noting(f"{directory}/{name}"):
                    self._epochs(f"{directory}/{name}", epochs)
            elif kind not in OF_SEGMENT:
                self._file(f"{directory}/{name}")
            elif f"{name.partition('.')[0]}.log" not in names:
                self._result.found(f"{directory}/{name}", 0, "an index without its segment", NOTE)

    def _may_have_holes(self, directory: str, offset: int) -> bool:
        """Whether what is missing before `offset` may be the work of compaction or lie below the log's start; of a
        directory of Kafka's nobody can tell."""
        parent, _, name = directory.rpartition("/")
        key = partition_of(name)
        if key is None or not self._disk.exists(f"{parent}/{METADATA_STORE}"):
            return True
        path = f"{parent}/{CLEANER_OFFSETS}"
        if self._disk.exists(path) and self._checkpointed(path, key) is None:
            return True  # it is damaged, which is found when it is verified itself
        compacted = key in (self._offsets.get(path) or {})
        return compacted or offset <= (self._checkpointed(f"{parent}/{LOG_START_OFFSETS}", key) or 0)

    def _ends(self, directory: str, segments: list[str], end_offset: int) -> None:
        """The log begins and ends where the checkpoints beside its directory say, if they are there and know it."""
        parent, _, name = directory.rpartition("/")
        key = partition_of(name)
        if key is None:
            return
        start = self._checkpointed(f"{parent}/{LOG_START_OFFSETS}", key)
        flushed = self._recovery_point(directory)
        first = file_kind(segments[0]).base_offset if segments else 0
        if start is not None and first > start:
            # Kafka writes this checkpoint now and then: it may lag behind.
            own = self._disk.exists(f"{parent}/{METADATA_STORE}")
            reason = f"the log begins at offset {first}, {LOG_START_OFFSETS} says {start}: earlier segments are missing"
            self._result.found(f"{directory}/{segments[0]}", 0, reason, DAMAGE if own else NOTE)
        if flushed is not None and end_offset != UNKNOWN and max(end_offset, start or 0) < flushed:
            path = f"{directory}/{segments[-1]}" if segments else directory
            reason = f"the log ends at offset {end_offset}, {RECOVERY_POINTS} says that {flushed} was on the disk"
            self._result.found(path, self._disk.size(path) if segments else 0, reason)

    def _recovery_point(self, directory: str) -> int | None:
        """Of the partition in that directory; None when none is known."""
        parent, _, name = directory.rpartition("/")
        partition = partition_of(name)
        return None if partition is None else self._checkpointed(f"{parent}/{RECOVERY_POINTS}", partition)

    def _checkpointed(self, path: str, partition: TopicPartition) -> int | None:
        """What the checkpoint says; 0 when it is there without the partition, None when it is missing or damaged."""
        if path not in self._offsets:
            try:
                self._offsets[path] = read_offsets(self._disk, path)
            except (CorruptLog, OSError):
                self._offsets[path] = None  # found when the file is verified itself
        offsets = self._offsets[path]
        return None if offsets is None else offsets.get(partition, 0)

    def _file(self, path: str) -> None:
        """One file alone, by its name. An index is checked with the `.log` beside it."""
        kind, base_offset = file_kind(path.rpartition("/")[2])
        if kind in OF_SEGMENT:
            self._segment(f"{path.rpartition('.')[0]}.log", base_offset, [])
            return
        with self._noting(path):
            if kind is Kind.METADATA_SNAPSHOT:
                self._chain(path, 0, [], {}, {})
            elif kind in (Kind.LEFT, Kind.OTHER):
                self._result.files += 1
                self._result.bytes += self._disk.size(path)
                if kind is Kind.LEFT:
                    self._result.found(path, 0, by_ending(LEFT, path), NOTE)
            else:
                self._small_file(path, kind)

    def _small_file(self, path: str, kind: Kind) -> None:
        """One that is read in one go."""
        data = self._read(path)
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
            self._result.found(path, 0, str(error))
        except CorruptLog as error:
            self._result.found(error.path, error.position, error.reason)

    def _epochs(self, path: str, seen: list[tuple[int, int, str]]) -> None:
        """The checkpoint knows each epoch that the batches show, at no later offset: (epoch, offset, segment)."""
        try:
            entries = parse_epochs(self._read(path), path)
        except CorruptLog as error:
            self._result.found(error.path, error.position, error.reason)
            return
        for (epoch, start), (next_epoch, next_start) in pairwise(entries):
            if next_epoch <= epoch or next_start < start:
                self._result.found(path, 0, f"epoch {next_epoch} from {next_start} follows epoch {epoch} from {start}")
        starts = dict(entries)
        flushed = self._recovery_point(path.rpartition("/")[0]) or 0
        for epoch, offset, segment in seen:
            if not entries or (epoch > entries[-1][0] and offset >= flushed):
                self._result.found(path, 0, f"epoch {epoch} from {offset} is not written down yet", NOTE)
            elif epoch > entries[-1][0]:
                # No checksum covers it, but the checkpoint is written before the recovery point.
                self._result.found(segment, 0, f"epoch {epoch} from {offset} is not in {path}")
            elif epoch <= entries[0][0] and offset < entries[0][1]:
                self._result.found(
                    path,
                    0,
                    f"a batch at offset {offset} is older than the list of epochs: records there were deleted",
                    NOTE,
                )
            elif starts.get(epoch, offset + 1) > offset:
                self._result.found(
                    path, 0, f"a batch at offset {offset} in {segment} is of epoch {epoch}, the checkpoint disagrees"
                )

    # Segments

    def _segment(self, path: str, base_offset: int, epochs: list[tuple[int, int, str]]) -> int:
        """A segment with its indexes; the offset at which it ends, or UNKNOWN."""
        stem = path[: -len(".log")]
        by_position = self._index_rows(OffsetIndex(self._disk, stem + ".index", base_offset))
        by_offset = self._index_rows(TimeIndex(self._disk, stem + ".timeindex", base_offset))
        positions = {position: (row, relative + base_offset) for row, (relative, position) in enumerate(by_position)}
        times = {relative + base_offset: (row, time) for row, (time, relative) in enumerate(by_offset)}
        end_offset = UNKNOWN
        with self._noting(path):
            end_offset = self._chain(path, base_offset, epochs, positions, times)
            for row, offset in positions.values():
                reason = f"offset {offset} is not in what begins where it is indexed"
                self._result.found(f"{stem}.index", row * 8, reason)
            for offset, (row, time) in times.items():
                self._result.found(f"{stem}.timeindex", row * 12, f"offset {offset} with time {time} is not in the log")
        transactions = f"{stem}.txnindex"
        if self._disk.exists(transactions):
            with self._noting(transactions):
                self._transactions(transactions)
        return end_offset

    def _transactions(self, path: str) -> None:
        self._result.files += 1
        self._result.bytes += self._disk.size(path)
        try:
            TransactionIndex(self._disk, path, exists=True).read()
        except CorruptLog as error:
            self._result.found(error.path, error.position, error.reason)

    def _index_rows(self, index: OffsetIndex | TimeIndex) -> list[tuple[int, int]]:
        if not self._disk.exists(index.path):
            return []
        with self._noting(index.path):
            self._result.files += 1
            self._result.bytes += self._disk.size(index.path)
            try:
                return index.rows()
            except CorruptIndex as error:
                self._result.found(index.path, 0, str(error).partition(": ")[2])
        return []

    def _chain(
        self,
        path: str,
        base_offset: int,
        epochs: list[tuple[int, int, str]],
        positions: dict[int, tuple[int, int]],
        times: dict[int, tuple[int, int]],
    ) -> int:
        """Every batch of a file; index entries that agree with it are taken out of `positions` and `times`.

        Which offset an entry has changed with Kafka's versions. Before 4.0 it was the last one of an append, which may
        be several batches (a follower's, compaction's), at the position of the first of them; up to 3.7 a time had the
        first record's of that time, not the batch's last. Look-ups find the same with either.
        """
        next_offset = base_offset
        latest = -1
        indexed = -1
        timed = sorted(times)
        seen = 0
        for position, batch, fields in self._sound_chain(path, base_offset):
            self._result.batches += 1
            if crc32c(batch[21:]) != fields[CRC]:
                self._result.found(path, position, f"the batch's CRC-32C is not the stated {fields[CRC]:#010x}")
            elif self._decode:
                self._records(path, position, batch, fields)
            epoch, offset = fields[LEADER_EPOCH], fields[BASE_OFFSET]
            if epochs and epoch < epochs[-1][0]:
                self._result.found(path, position, f"leader epoch {epoch} follows epoch {epochs[-1][0]}")
            elif epoch >= 0 and (not epochs or epoch > epochs[-1][0]):
                epochs.append((epoch, offset, path))
            last_offset = offset + fields[LAST_OFFSET_DELTA]
            if fields[COUNT]:  # compaction leaves batches without records, whose time says nothing
                latest = max(latest, fields[MAX_TIMESTAMP])
            if position in positions:
                indexed = position
            if indexed in positions and offset <= positions[indexed][1] <= last_offset:
                del positions[indexed]
            while seen < len(timed) and timed[seen] <= last_offset:
                if timed[seen] >= offset and times[timed[seen]][1] == latest:
                    del times[timed[seen]]
                seen += 1
            next_offset = last_offset + 1
        return next_offset

    def _sound_chain(self, path: str, base_offset: int) -> Iterator[tuple[int, memoryview, Fields]]:
        """The batches of a file. Where the chain breaks, that is a finding, and the next sound batch is looked for."""
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
                    if is_unwritten(file, error.position, end):
                        reason = f"{end - error.position} bytes are not written yet: zeros after the last batch"
                        self._result.found(path, error.position, reason, NOTE)
                        return
                    found = next_sound_batch(file, error.position, end, next_offset)
                    lost = (end if found is None else found) - error.position
                    self._result.found(path, error.position, f"{error.reason}; {lost} bytes are unreadable")
                    if found is None:
                        return
                    start = found
        finally:
            file.close()

    def _records(self, path: str, position: int, batch: memoryview, fields: Fields) -> None:
        try:
            found = decode_records(batch, 0)
        except ValueError as error:
            self._result.found(path, position, f"its records cannot be decoded: {error}")
            return
        self._result.records += len(found)
        offsets = [record.offset for record in found]
        last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
        if len(found) != fields[COUNT]:
            self._result.found(path, position, f"the batch states {fields[COUNT]} records and holds {len(found)}")
        elif any(b <= a for a, b in pairwise(offsets)):
            self._result.found(path, position, "the offsets of its records do not rise")
        elif offsets and not fields[BASE_OFFSET] <= offsets[0] <= offsets[-1] <= last_offset:
            self._result.found(path, position, f"its records have offsets {offsets[0]} to {offsets[-1]}")

    def _read(self, path: str) -> bytes:
        data = self._disk.read(path)
        self._result.files += 1
        self._result.bytes += len(data)
        return data
