"""Reads lines of files while other programs append to them, as `tail -F` does.

The position of a stream is a number of bytes for each file. A file is identified by its device and inode, so it may be
renamed (`app.log` to `app.log.1`) if the pattern also matches its new name. Only whole lines are read.

A file system may give the inode of a removed file to a new file. So the stream also stores a hash of bytes before the
position. If these bytes have changed, the file is another one or was truncated, and it is read from its beginning.

A file may be missing for a while: it is being renamed, or its directory cannot be read or is not mounted. So its
position remains in the offset of the stream. After a mount or a reboot, the device may have another number: a file with
another device, the same inode and the same bytes before the position is the same file.
"""

import glob
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidelog.pipelines.declarations import PipelineError, SourceContext, TemporaryError, refused_begin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BYTES_MAX = 64 << 20
"""Upper bound on the bytes of one file that a micro-batch reads, and therefore also on the length of a line."""
SCHEMA = StructType().add("value", "string").add("path", "string").add("position", "long")
HASHED_BYTES = 1024
"""A hash is made of at most this many bytes at the beginning of a file, and at most this many before a position."""
MISSING_MAX = 10_000
"""Upper bound on the missing files whose positions an offset contains. If more files are missing, the positions of the
files that have been missing longest are forgotten."""
BEGINNINGS = "begun"
"""Key in an offset of the stream. An offset describes one micro-batch. The value has the positions from which the
micro-batch reads these files: in the first micro-batch, each file that is not read from position 0; in any other
micro-batch, each file that was replaced or truncated, or whose device has another number. The micro-batch reads all
other files from the position where the previous micro-batch ended, and new files from 0."""
ENDS = "ends"
"""Key in an offset of the stream. Its value has, for each file, the position at which the micro-batch ends. Missing
files come first, in the order in which they were found to be missing."""
HASHES = "hashes"
"""Key in an offset of the stream. Its value has, for each file, the result of `hash_before` for the position in ENDS.
Offsets that were stored by an early version have no hashes."""


def check_begin(pattern: str, context: SourceContext) -> None:
    """Raise PipelineError if a stream cannot begin at `context.begin`."""
    if isinstance(context.begin, int):
        accepted = "a stream can begin with `earliest` or `latest`, but not with a timestamp"
        raise refused_begin(f"file {pattern}", accepted, context)


def load_tail(pattern: str, context: SourceContext) -> "DataFrame":
    check_begin(pattern, context)
    context.spark.dataSource.register(TailDataSource)
    options = {"pattern": pattern, "begin": context.begin or "earliest"}
    return context.spark.readStream.format(TailDataSource.name()).options(**options).load()


@dataclass(frozen=True)
class LineRange(InputPartition):
    """Whole lines of one file."""

    path: str
    inode: int
    """Inode of the file. When a task opens `path`, another file may be there."""
    begin: int
    end: int
    """Exclusive, in bytes."""
    end_hash: str | None
    """The result of `hash_before` for `end`; None if it is unknown."""


class TailDataSource(DataSource):
    """The class behind `format("tidelog-tail")`."""

    @classmethod
    def name(cls) -> str:
        return "tidelog-tail"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TailReader(self.options)


class TailReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the lines that are appended to files."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._pattern = options["pattern"]
        self._begins_with_latest = options["begin"] == "latest"
        self._sizes: dict[str, int] | None = None
        """With the trigger `availableNow`: the sizes of the files when the query began. The query reads only up to
        these sizes."""

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant. The first call of `latestOffset` returns the positions where the query begins."""
        return {}

    def prepareForTriggerAvailableNow(self) -> None:
        self._sizes = {}
        for name, path in self._files().items():
            with opened(name, path) as stream:
                if stream is not None:
                    self._sizes[name] = size_of(stream)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        files = self._files()
        begins: dict[str, int] = dict(start.get(ENDS, {}))
        if not start and self._begins_with_latest:
            begins = {name: self._end_of_file(name, path) for name, path in files.items()}
        known_hashes: dict[str, str] = dict(start.get(HASHES, {}))
        adopted = adopt_from_other_devices(files, begins, known_hashes)
        # Without a hash, a missing file could not be distinguished from a new file that has the same inode.
        missing = [name for name in begins if name not in files and name in known_hashes][-MISSING_MAX:]
        ends: dict[str, int] = {name: begins[name] for name in missing}
        hashes: dict[str, str] = {name: known_hashes[name] for name in missing}
        begun: dict[str, int] = {name: begins[name] for name in adopted}
        for name, path in files.items():
            begin = begins.get(name, 0)
            known_hash = known_hashes.get(name)
            with opened(name, path) as stream:
                if stream is None:  # renamed a moment ago: the next call finds its new name
                    ends[name] = begin
                    hashes |= {} if known_hash is None else {name: known_hash}
                    continue
                size = size_of(stream)
                is_another_file = known_hash is not None and hash_before(stream, begin) != known_hash
                if size < begin or is_another_file:
                    begin = 0
                if self._sizes is not None:
                    # A file that appeared after the query had begun is not read.
                    size = min(size, self._sizes.get(name, begin))
                if size < begin:  # when the query began, the file was shorter than `begin`; now it is not
                    begin = 0
                if begin < begins.get(name, 0):
                    begun[name] = begin
                ends[name] = end_of_lines(stream, path, begin, size)
                if (end_hash := hash_before(stream, ends[name])) is not None:
                    hashes[name] = end_hash
        if not start:
            return {BEGINNINGS: begins, ENDS: ends, HASHES: hashes}
        if ends == start[ENDS] and not begun:
            return start
        return {ENDS: ends, HASHES: hashes} | ({BEGINNINGS: begun} if begun else {})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            return []
        files = self._files()
        begins = start.get(ENDS, {}) | end.get(BEGINNINGS, {})
        ranges: list[InputPartition] = []
        for name, last in end[ENDS].items():
            begin = begins.get(name, 0)
            begin = 0 if last < begin else begin
            if begin == last:
                continue
            end_hash = end.get(HASHES, {}).get(name)
            if name not in files and end_hash is not None:  # perhaps the device has another number now
                found = same_inode(name, files)
                name = next((each for each in found if has_lines_until(each, files[each], last, end_hash)), name)
            if name not in files or not has_lines_until(name, files[name], last, end_hash):
                raise PipelineError(
                    f"file {self._pattern}: a file whose lines up to byte {last} belong to this micro-batch was "
                    "removed, truncated, replaced or renamed to a name that the pattern does not match"
                )
            ranges.append(LineRange(str(files[name]), inode_of(name), begin, last, end_hash))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str, int]]:
        assert isinstance(partition, LineRange)
        position = partition.begin
        moved = PipelineError(
            f"file {partition.path}: it was renamed or removed after this micro-batch was planned. If it was renamed,"
            " and the pattern matches its new name, the next attempt finds it"
        )
        try:
            stream = open(partition.path, "rb")  # noqa: SIM115  # closed below
        except FileNotFoundError:
            raise moved from None
        with stream:
            # The device is not compared: it may have another number on the machine of an executor.
            if os.fstat(stream.fileno()).st_ino != partition.inode:
                raise moved
            # `hash_before` returns None if the file is now shorter than the plan requires. Then the loop below raises.
            if partition.end_hash is not None and hash_before(stream, partition.end) not in (None, partition.end_hash):
                raise PipelineError(
                    f"file {partition.path}: its lines up to byte {partition.end} belong to this micro-batch, and were "
                    "replaced by other lines after the micro-batch was planned"
                )
            stream.seek(position)
            while position < partition.end:
                line = stream.readline()
                if not line:
                    raise PipelineError(
                        f"file {partition.path}: it was truncated at byte {position}, and lines up to byte "
                        f"{partition.end} belong to this micro-batch"
                    )
                yield line.rstrip(b"\r\n").decode("utf-8", "replace"), partition.path, position
                position += len(line)

    def _end_of_file(self, name: str, path: Path) -> int:
        """Return the position after the last whole line of a file. With the trigger `availableNow`, only lines that the
        file had when the query began are considered.
        """
        with opened(name, path) as stream:
            if stream is None:
                raise TemporaryError(f"file {path}: it was renamed while the pipeline searched for the file's end")
            end = size_of(stream) if self._sizes is None else self._sizes.get(name, 0)
            return end_of_lines(stream, path, 0, end, bounded=False)

    def _files(self) -> dict[str, Path]:
        """Return the sorted paths of the files that match the pattern. The key of each is the result of `name_of`."""
        root = Path(self._pattern)
        pattern = str(root / "*") if root.is_dir() else self._pattern
        files: dict[str, Path] = {}
        for path in map(Path, sorted(glob.glob(pattern))):  # noqa: PTH207  # an absolute pattern
            try:
                found = path.stat()
            except FileNotFoundError:  # renamed a moment ago
                continue
            if stat.S_ISREG(found.st_mode):
                files.setdefault(name_of(found), path)
        return files


def name_of(found: os.stat_result) -> str:
    """Return the name that offsets of the stream use for a file: its device and inode."""
    return f"{found.st_dev}-{found.st_ino}"


def inode_of(name: str) -> int:
    """Return the inode in the result of `name_of`."""
    return int(name.rpartition("-")[2])


def same_inode(name: str, files: Mapping[str, Path]) -> list[str]:
    """Return the names of the files that have the same inode as `name`, and another device."""
    return [each for each in files if each != name and inode_of(each) == inode_of(name)]


def adopt_from_other_devices(files: Mapping[str, Path], positions: dict[str, int], hashes: dict[str, str]) -> list[str]:
    """Give each file without a position the position of a missing file that has the same inode, if the bytes before
    this position have not changed. Changes `positions` and `hashes`. Return the names of the files that got a position.
    """
    missing = {inode_of(name): name for name in positions if name not in files and name in hashes}
    adopted = []
    for name, path in files.items():
        old = missing.get(inode_of(name))
        if old is None or name in positions or not has_lines_until(name, path, positions[old], hashes[old]):
            continue
        positions[name], hashes[name] = positions.pop(old), hashes.pop(old)
        del missing[inode_of(name)]
        adopted.append(name)
    return adopted


@contextmanager
def opened(name: str, path: Path) -> Iterator[BinaryIO | None]:
    """Open a file for reading. Yields None if there is no file at `path` any more, or if it is not the file `name`."""
    try:
        stream = open(path, "rb")  # noqa: SIM115  # closed below
    except FileNotFoundError:
        yield None
        return
    with stream:
        yield stream if name_of(os.fstat(stream.fileno())) == name else None


def size_of(stream: BinaryIO) -> int:
    """Return the size of an open file in bytes."""
    return os.fstat(stream.fileno()).st_size


def hash_before(stream: BinaryIO, position: int) -> str | None:
    """Return a hash of the first bytes of a file and the last bytes before `position`, at most HASHED_BYTES of each;
    None if the file is shorter than `position`.

    The first bytes alone would not distinguish files that begin with the same long header.
    """
    if size_of(stream) < position:
        return None
    length = min(position, HASHED_BYTES)
    stream.seek(0)
    content = stream.read(length)
    stream.seek(position - length)
    return hashlib.sha256(content + stream.read(length)).hexdigest()[:16]


def has_lines_until(name: str, path: Path, end: int, end_hash: str | None) -> bool:
    """Return whether the file `name` is still at `path`, and its lines up to `end` have not changed.

    `end_hash` is the earlier result of `hash_before` for `end`. If it is None, only the size of the file is checked.
    """
    with opened(name, path) as stream:
        if stream is None or size_of(stream) < end:
            return False
        return end_hash is None or hash_before(stream, end) == end_hash


def end_of_lines(stream: BinaryIO, path: Path, begin: int, size: int, *, bounded: bool = True) -> int:
    """Return the position after the last whole line between `begin` and `size`.

    If `bounded`, the position is at most BYTES_MAX after `begin`, and a longer line raises PipelineError. The error
    names `path`.
    """
    end = min(size, begin + BYTES_MAX) if bounded else size
    step = 1 << 20
    position = end
    while position > begin:
        first = max(begin, position - step)
        stream.seek(first)
        found = stream.read(position - first).rfind(b"\n")
        if found >= 0:
            return first + found + 1
        position = first
    if bounded and end - begin >= BYTES_MAX:
        raise PipelineError(f"file {path}: the line at byte {begin} is longer than {BYTES_MAX} bytes")
    return begin
