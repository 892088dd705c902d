"""Reads lines of files while other programs append to them, as `tail -F` does.

The position of a stream is a number of bytes for each file. A file is identified by its device and inode, so it may be
renamed (`app.log` to `app.log.1`) if the pattern also matches its new name. Only whole lines are read. A file that is
shorter than its position was truncated, and is read from its beginning.
"""

import glob
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidelog.pipelines.declarations import PipelineError, SourceContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BYTES_MAX = 64 << 20
"""Upper bound on the bytes of one file that a micro-batch reads, and therefore also on the length of a line."""
SCHEMA = StructType().add("value", "string").add("path", "string").add("position", "long")
BEGINNINGS = "begun"
"""Key in an offset of the stream: where the first micro-batch begins in each file. A file without an entry is read from
its beginning."""
ENDS = "ends"
"""Key in an offset of the stream: where the micro-batch ends in each file."""


def load_tail(pattern: str, context: SourceContext) -> "DataFrame":
    if isinstance(context.begin, int):
        raise PipelineError(f"file {pattern}: a stream can begin with `earliest` or `latest`, but not with a timestamp")
    context.spark.dataSource.register(TailDataSource)
    options = {"pattern": pattern, "begin": context.begin or "earliest"}
    return context.spark.readStream.format(TailDataSource.name()).options(**options).load()


@dataclass(frozen=True)
class LineRange(InputPartition):
    """Whole lines of one file."""

    path: str
    inode: int
    """Inode of the file. Another file may have its path when a task reads it."""
    begin: int
    end: int
    """Exclusive, in bytes."""


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
        """The sizes of files at which a query with the trigger `availableNow` ends."""

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant. The first call of `latestOffset` decides where the query begins; its result says so."""
        return {}

    def prepareForTriggerAvailableNow(self) -> None:
        sizes = {name: size_of(name, path) for name, path in self._files().items()}
        self._sizes = {name: size for name, size in sizes.items() if size is not None}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        files = self._files()
        begins: dict[str, int] = dict(start.get(ENDS, {}))
        if not start and self._begins_with_latest:
            for name, path in files.items():
                end = path.stat().st_size if self._sizes is None else self._sizes.get(name, 0)
                begins[name] = end_of_lines(path, 0, end, bounded=False)
        ends = {}
        for name, path in files.items():
            size = size_of(name, path)
            if size is None:  # renamed a moment ago: the next call finds its new name
                ends[name] = begins.get(name, 0)
                continue
            begin = begins.get(name, 0)
            if self._sizes is not None:
                # Nothing is read of a file that appeared after the query had begun.
                size = min(size, self._sizes.get(name, begin))
            if size < begin:  # truncated
                begin = 0
            ends[name] = end_of_lines(path, begin, size)
        if not start:
            return {BEGINNINGS: begins, ENDS: ends}
        # The position in a file that no longer exists is forgotten: its inode may belong to another file later.
        return start if ends == start[ENDS] else {ENDS: ends}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        files = self._files()
        begins = start[ENDS] if start else end[BEGINNINGS]
        ranges: list[InputPartition] = []
        for name, last in end[ENDS].items():
            begin = begins.get(name, 0)
            begin = 0 if last < begin else begin
            if begin == last:
                continue
            size = size_of(name, files[name]) if name in files else None
            if size is None or size < last:
                raise PipelineError(
                    f"file {self._pattern}: a file whose lines up to byte {last} belong to this micro-batch was "
                    "removed, truncated or renamed to a name that the pattern does not match"
                )
            ranges.append(LineRange(str(files[name]), int(name.rpartition("-")[2]), begin, last))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str, int]]:
        assert isinstance(partition, LineRange)
        position = partition.begin
        with open(partition.path, "rb") as stream:
            # The device is not compared: it may have another number on the machine of an executor.
            if os.fstat(stream.fileno()).st_ino != partition.inode:
                raise PipelineError(
                    f"file {partition.path}: it was renamed after this micro-batch was planned. The next attempt finds "
                    "it under its new name, if the pattern matches that name"
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

    def _files(self) -> dict[str, Path]:
        """Return the files that match, by device and inode, in the order of their names."""
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
    """Return the name of a file in offsets: its device and inode."""
    return f"{found.st_dev}-{found.st_ino}"


def size_of(name: str, path: Path) -> int | None:
    """Return the size of a file in bytes; None if its path has no file any more, or another one."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size if name_of(found) == name else None


def end_of_lines(path: Path, begin: int, size: int, *, bounded: bool = True) -> int:
    """Return the position after the last whole line between `begin` and `size`.

    `bounded`: at most BYTES_MAX after `begin`; raises PipelineError if a line is longer.
    """
    end = min(size, begin + BYTES_MAX) if bounded else size
    step = 1 << 20
    with open(path, "rb") as stream:
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
