"""Writes the rows of a micro-batch as files, on the executors.

Each task writes its own files with names that are used only once, and returns a list of them to the driver. The driver
commits only files of these lists. It gets no list from a task that failed, and only one from a task that ran twice.
"""

import json
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.arrow_types import in_utc
from tidelog.pipelines.sinks.delta_rules import with_required_values
from tidelog.pipelines.sinks.stores import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

OPEN_FILES_MAX = 64
"""Upper bound on the files that a task writes at the same time. If a task has rows for more partitions of the table, it
completes the file that has not received rows for the longest time. If the partition of this file gets rows again, the
task begins another file for it."""
ROW_GROUP_BYTES = 32 << 20
"""Size of the rows in memory at which a row group of a Parquet file is written, in bytes."""
STATISTICS_TEXT_MAX = 64
"""If the minimum or the maximum of a text column has more characters than this, the statistics of a file contain
neither of them."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Stands for a null or an empty text in the name of a directory, as in Hive, Spark and Arrow."""
RESULT = "path string, size long, rows long, partition array<string>, statistics string, unbounded array<string>"


class WrittenFile(NamedTuple):
    path: str
    """Relative to the root of the store."""
    size: int
    """In bytes."""
    rows: int
    partition: list[str | None]
    """Values of the partition columns as texts."""
    statistics: str
    """JSON in Delta's format: numRecords, minValues, maxValues, nullCount. Empty unless the layout has statistics."""
    unbounded: list[str]
    """Columns whose minimum or maximum in a row group cannot be read: it is a text that is not UTF-8, or a date or time
    that Python cannot represent."""


@dataclass(frozen=True)
class Layout:
    """How the rows of a micro-batch become files."""

    directory: str = ""
    """Directory of the files in the store, with a slash at its end; empty for the root."""
    suffix: str = ".parquet"
    encoding: str = "parquet"
    """`parquet`, or `lines`: the texts of the only column that is not a partition column, one in each line."""
    partition_by: tuple[str, ...] = ()
    keeps_partition_columns: bool = False
    """Whether files contain the partition columns too (Iceberg). Otherwise only the names of directories (Hive) or the
    table's log (Delta) contain their values."""
    has_exact_directories: bool = False
    """Whether readers take the values of the partition columns from the names of the directories (Hive). Otherwise the
    names only help people, and unusual characters are replaced."""
    header: str = ""
    """First line of each file of lines; empty for none."""
    compression: str = "zstd"
    has_statistics: bool = False
    """Whether to return statistics of the files (Delta)."""
    required: "pa.Schema | None" = None
    """The table's columns, if some of their values must not be null (Delta)."""
    file_bytes_max: int | None = None
    """Size at which a task completes a file and begins another one, in bytes; None for no limit."""


def write_files(batch: "DataFrame", store: Store, layout: Layout, sink: str) -> list[WrittenFile]:
    """Write all rows of `batch` and return the files, which are complete and durable.

    Raises PipelineError, which names `sink`, if the rows cannot be partitioned as `layout` says. A task raises it if a
    value is null that must not be null.
    """

    def write(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return write_task(with_required_values(batches, layout.required, sink), store, layout)

    check_partition_columns(batch, layout.partition_by, sink, may_be_all=layout.keeps_partition_columns)
    return [WrittenFile(*row) for row in batch.mapInArrow(write, RESULT).collect()]


def check_partition_columns(batch: "DataFrame", names: tuple[str, ...], sink: str, *, may_be_all: bool = False) -> None:
    """Raise PipelineError, which names `sink`, if the rows cannot be partitioned by the columns `names`.

    `may_be_all`: the files also contain the partition columns, so `names` may contain all columns.
    """
    types = {column.name: column.dataType.simpleString() for column in batch.schema}
    for name in names:
        if name not in types:
            raise PipelineError(
                f"{sink}: partition_by contains {name}, but there is no such column: the rows have {', '.join(types)}"
            )
        if not re.match(r"string|boolean|tinyint|smallint|int|bigint|date|timestamp|decimal", types[name]):
            raise PipelineError(
                f"{sink}: column {name} of type {types[name]} cannot be in partition_by: cast it to a string"
            )
    if names and len(names) == len(types) and not may_be_all:
        raise PipelineError(
            f"{sink}: partition_by contains all columns, so the files would have no columns: remove a column from"
            " partition_by"
        )


def write_task(batches: "Iterator[pa.RecordBatch]", store: Store, layout: Layout) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    files: list[WrittenFile] = []
    writers: dict[tuple[str | None, ...], _FileWriter] = {}
    with removed_on_error(store, files), abandoned_on_error(store, writers):
        for batch in batches:
            for partition, rows in split(pa.Table.from_batches([in_utc(batch)]), layout.partition_by):
                # A partition with new rows moves to the end of `writers`. So the first partition has waited
                # longest for new rows.
                writer = writers.pop(partition, None)
                if writer is None:
                    if len(writers) >= OPEN_FILES_MAX:
                        complete(next(iter(writers)), writers, files)
                    writer = _FileWriter(store, layout, partition)
                writers[partition] = writer
                writer.write(rows if layout.keeps_partition_columns else rows.drop_columns(list(layout.partition_by)))
                if layout.file_bytes_max is not None and writer.size >= layout.file_bytes_max:
                    complete(partition, writers, files)
        while writers:
            complete(next(iter(writers)), writers, files)
    schema = pa.schema(
        [
            ("path", pa.string()),
            ("size", pa.int64()),
            ("rows", pa.int64()),
            ("partition", pa.list_(pa.string())),
            ("statistics", pa.string()),
            ("unbounded", pa.list_(pa.string())),
        ]
    )
    yield pa.RecordBatch.from_pylist([file._asdict() for file in files], schema)


def complete(
    partition: tuple[str | None, ...],
    writers: "dict[tuple[str | None, ...], _FileWriter]",
    files: list[WrittenFile],
) -> None:
    """Complete the file of a partition. If this fails, the writer remains in `writers`, so that its file is removed."""
    files.append(writers[partition].close())
    del writers[partition]


@contextmanager
def removed_on_error(store: Store, files: list[WrittenFile]) -> "Iterator[None]":
    """After an error, remove the files, to which nothing refers yet."""
    try:
        yield
    except BaseException:
        remove_files(store, [file.path for file in files])
        raise


@contextmanager
def abandoned_on_error(store: Store, writers: "dict[tuple[str | None, ...], _FileWriter]") -> "Iterator[None]":
    """After an error, close and remove the files of `writers`: the files that are not complete yet."""
    try:
        yield
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        remove_files(store, [writer.path for writer in writers.values()])
        raise


def remove_files(store: Store, paths: Iterable[str]) -> None:
    """Remove files to which nothing refers. If a file cannot be removed, it remains, but no reader sees it."""
    for path in paths:
        with suppress(Exception):  # each kind of store has errors of its own
            if path:
                store.remove(path)


@dataclass
class _FileWriter:
    """One file that a task writes."""

    store: Store
    layout: Layout
    partition: tuple[str | None, ...]
    _pending: "list[pa.Table]" = field(default_factory=list)
    _pending_bytes: int = 0
    _rows: int = 0
    path: str = ""
    """Relative to the root of the store; empty until the file is created."""
    _stream: Any = None
    _parquet: Any = None
    _footers: list[Any] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def write(self, rows: "pa.Table") -> None:
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()

    @property
    def size(self) -> int:
        """Number of bytes that are written to the file. Pending rows do not count."""
        return 0 if self._stream is None else int(self._stream.tell())

    def close(self) -> WrittenFile:
        self._flush()
        if self._parquet is not None:
            self._parquet.close()
        size = self._stream.tell()
        self._stack.close()
        footer = self._footers[0] if self._footers else None
        unbounded = unbounded_columns(footer) if footer is not None else []
        statistics = parquet_statistics(footer, unbounded) if footer is not None and self.layout.has_statistics else ""
        return WrittenFile(self.path, size, self._rows, list(self.partition), statistics, unbounded)

    def abandon(self) -> None:
        """Close the file without making it complete."""
        if self._parquet is not None:
            with suppress(Exception):
                self._parquet.close()  # else pyarrow closes it later, when the stream is closed, and prints an error
            self._parquet.is_open = False
        with ExitStack() as quiet:
            quiet.push(lambda *_: True)  # suppresses every error of the close
            self._stack.__exit__(InterruptedError, InterruptedError("the task failed"), None)

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._pending:
            return
        rows = pa.concat_tables(self._pending)
        if self._stream is None:
            layout = self.layout
            names = hive_directories(layout.partition_by, self.partition)
            if not layout.has_exact_directories:
                names = [re.sub(r"[^\w.=-]", "_", name, flags=re.ASCII) for name in names]
            directories = "".join(f"{name}/" for name in names)
            self.path = f"{layout.directory}{directories}part-{uuid.uuid4().hex}{layout.suffix}"
            self._stream = self._stack.enter_context(self.store.create(self.path))
            if layout.encoding == "parquet":
                self._parquet = pq.ParquetWriter(
                    self._stream, rows.schema, compression=layout.compression, metadata_collector=self._footers
                )
            elif layout.header:
                self._stream.write(layout.header.encode() + b"\n")
        if self._parquet is not None:
            self._parquet.write_table(rows, row_group_size=max(1, rows.num_rows))
        else:
            # Spark's texts may contain bytes that are not UTF-8. As in Spark's text files, a null is an empty line.
            self._stream.write(b"".join((line or b"") + b"\n" for line in rows.column(0).cast(pa.binary()).to_pylist()))
        self._rows += rows.num_rows
        self._pending, self._pending_bytes = [], 0


def split(rows: "pa.Table", names: tuple[str, ...]) -> "Iterator[tuple[tuple[str | None, ...], pa.Table]]":
    """Group `rows` by the values of the columns `names`. For each group, yield these values as texts, and the rows of
    the group in their order in `rows`."""
    import numpy as np
    import pyarrow as pa

    if rows.num_rows == 0:
        return
    if not names:
        yield (), rows
        return
    texts = [partition_texts(rows.column(name)) for name in names]
    combined = np.zeros(rows.num_rows, dtype=np.int64)
    for column in texts:
        encoded = pa.chunked_array([column]).combine_chunks().dictionary_encode("encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, combined = np.unique(combined * (len(encoded.dictionary) + 1) + codes, return_inverse=True)
    order = np.argsort(combined, kind="stable")
    ends = [*(np.flatnonzero(np.diff(combined[order])) + 1), rows.num_rows]
    begin = 0
    for end in ends:
        chosen = order[begin:end]
        first = int(chosen[0])
        yield tuple(column[first].as_py() for column in texts), rows.take(pa.array(chosen))
        begin = end


def partition_texts(column: "pa.ChunkedArray") -> "pa.Array":
    """Return the values of a partition column as texts, in the form that Delta prescribes.

    Names of directories and the logs of tables cannot contain bytes that are not UTF-8. Such bytes are replaced by
    U+FFFD, as in Spark.
    """
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us"))
    texts = column.cast(pa.string()).combine_chunks()
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        values = texts.cast(pa.binary()).to_pylist()
        return pa.array([None if value is None else value.decode(errors="replace") for value in values], pa.string())
    return texts


def hive_directories(names: tuple[str, ...], values: tuple[str | None, ...]) -> list[str]:
    """Return the names of the directories of a partition, as `country=FR`, with the escapes of Hive and Spark.

    An empty text becomes NULL_PARTITION, as in Spark: no reader accepts a directory named `country=`.
    """
    return [
        f"{escaped(name)}={escaped(value) if value else NULL_PARTITION}"
        for name, value in zip(names, values, strict=True)
    ]


def escaped(text: str) -> str:
    return re.sub(r"""[\x00-\x1f"#%'*/:=?\\\x7f{}\[\]^]""", lambda found: f"%{ord(found[0]):02X}", text)


def parquet_statistics(footer: Any, unbounded: list[str]) -> str:
    """Return the statistics of a Parquet file for the log of a Delta table.

    Nested columns have none. The columns `unbounded` have no minimum and maximum.
    """
    minima: dict[str, Any] = {}
    maxima: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, groups in flat_statistics(footer):
        if any(group is None or not group.has_null_count for group in groups):
            continue
        nulls[name] = sum(group.null_count for group in groups)
        if groups and all(group.has_min_max for group in groups) and name not in unbounded:
            lowest, highest = min(group.min for group in groups), max(group.max for group in groups)
            texts = [_statistic(lowest), _statistic(highest)]
            if None not in texts:
                minima[name], maxima[name] = texts
    return json.dumps({"numRecords": footer.num_rows, "minValues": minima, "maxValues": maxima, "nullCount": nulls})


def unbounded_columns(footer: Any) -> list[str]:
    """Return the columns, except nested ones, with a minimum or maximum that pyarrow cannot turn into an object."""
    names = []
    for name, groups in flat_statistics(footer):
        try:
            for group in groups:
                if group is not None and group.has_min_max:
                    _ = group.min, group.max
        except (UnicodeDecodeError, OverflowError):
            names.append(name)
    return names


def flat_statistics(footer: Any) -> "Iterator[tuple[str, list[Any]]]":
    """For each column that is not nested, yield its name and its statistics in all row groups."""
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        if "." not in column.path and not column.max_repetition_level and column.max_definition_level <= 1:
            yield (
                column.path,
                [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)],
            )


def _statistic(value: object) -> object:
    """Return a minimum or maximum as a value for JSON. Return None if it is a text that is too long, or if
    its type gets no statistics.
    """
    if isinstance(value, datetime):
        # A year has four digits, as in 0001-01-01. strftime would omit the zeros, and readers cannot parse such a year.
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text + ("Z" if value.tzinfo is not None else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, str):
        return value if len(value) <= STATISTICS_TEXT_MAX else None
    if isinstance(value, int):
        return value
    return None  # for decimals, and for floating-point numbers, because readers order NaN in different ways
