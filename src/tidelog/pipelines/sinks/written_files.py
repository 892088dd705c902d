"""Writes the rows of a micro-batch as files, on the executors.

Each task writes its own files with names that are used only once, and returns a list of them to the driver. The driver
commits only files of these lists. It gets no list of a task that failed, and one list of a task that ran twice.
"""

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.arrow_types import in_utc
from tidelog.pipelines.sinks.stores import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

OPEN_FILES_MAX = 64
"""Upper bound on the files that a task writes at the same time. If a task has rows for more partitions of the table, it
completes the file that has not received rows for the longest time. For later rows of that partition it begins another
file."""
ROW_GROUP_BYTES = 32 << 20
"""Size of the rows in memory at which a row group of a Parquet file is written, in bytes."""
STATISTICS_TEXT_MAX = 64
"""Longest minimum or maximum of a text column that the statistics of a file contain, in characters."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Stands for a null in the name of a directory, as in Hive, Spark and Arrow."""
RESULT = "path string, size long, rows long, partition array<string>, statistics string"


class WrittenFile(NamedTuple):
    path: str
    """Relative to the root of the store."""
    size: int
    """In bytes."""
    rows: int
    partition: list[str | None]
    """Values of the partition columns as texts."""
    statistics: str
    """JSON in Delta's format: numRecords, minValues, maxValues, nullCount. Empty for a file of lines."""


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
    file_bytes_max: int | None = None
    """Size at which a task completes a file and begins another one, in bytes; None for no limit."""


def write_files(batch: "DataFrame", store: Store, layout: Layout, sink: str) -> list[WrittenFile]:
    """Write all rows of `batch` and return the files, which are complete and durable.

    Raises PipelineError, which names `sink`, if the rows cannot be partitioned as `layout` says.
    """

    def write(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return write_task(batches, store, layout)

    check_partition_columns(batch, layout.partition_by, sink)
    return [WrittenFile(*row) for row in batch.mapInArrow(write, RESULT).collect()]


def check_partition_columns(batch: "DataFrame", names: tuple[str, ...], sink: str) -> None:
    """Raise PipelineError, which names `sink`, if the rows cannot be partitioned by the columns `names`."""
    types = {column.name: column.dataType.simpleString() for column in batch.schema}
    for name in names:
        if name not in types:
            raise PipelineError(
                f"{sink}: there is no column {name}, which partition_by names; the rows have {', '.join(types)}"
            )
        if not re.match(r"string|boolean|tinyint|smallint|int|bigint|date|timestamp|decimal", types[name]):
            raise PipelineError(
                f"{sink}: column {name} of type {types[name]} cannot be in partition_by: cast it to a string"
            )
    if names and len(names) == len(types):
        raise PipelineError(
            f"{sink}: all columns are in partition_by, so the files would have no columns: leave one of them out"
        )


def write_task(batches: "Iterator[pa.RecordBatch]", store: Store, layout: Layout) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    files: list[WrittenFile] = []
    writers: dict[tuple[str | None, ...], _FileWriter] = {}
    with ExitStack() as on_error:
        on_error.callback(abandon, writers)  # without an error, no writer is left at the end of the block
        for batch in batches:
            for partition, rows in split(pa.Table.from_batches([in_utc(batch)]), layout.partition_by):
                # A partition with new rows moves to the end, so the first one has not had rows for the longest time.
                writer = writers.pop(partition, None)
                if writer is None:
                    if len(writers) >= OPEN_FILES_MAX:
                        files.append(writers.pop(next(iter(writers))).close())
                    writer = _FileWriter(store, layout, partition)
                writers[partition] = writer
                writer.write(rows if layout.keeps_partition_columns else rows.drop_columns(list(layout.partition_by)))
                if layout.file_bytes_max is not None and writer.size >= layout.file_bytes_max:
                    files.append(writers.pop(partition).close())
        while writers:
            files.append(writers.pop(next(iter(writers))).close())
    schema = pa.schema(
        [
            ("path", pa.string()),
            ("size", pa.int64()),
            ("rows", pa.int64()),
            ("partition", pa.list_(pa.string())),
            ("statistics", pa.string()),
        ]
    )
    yield pa.RecordBatch.from_pylist([file._asdict() for file in files], schema)


def abandon(writers: "dict[tuple[str | None, ...], _FileWriter]") -> None:
    for writer in writers.values():
        writer.abandon()


@dataclass
class _FileWriter:
    """One file that a task writes."""

    store: Store
    layout: Layout
    partition: tuple[str | None, ...]
    _pending: "list[pa.Table]" = field(default_factory=list)
    _pending_bytes: int = 0
    _rows: int = 0
    _path: str = ""
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
        statistics = parquet_statistics(self._footers[0]) if self._footers else ""
        return WrittenFile(self._path, size, self._rows, list(self.partition), statistics)

    def abandon(self) -> None:
        """Close the file without making it complete. Nothing refers to it."""
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
            self._path = f"{layout.directory}{directories}part-{uuid.uuid4().hex}{layout.suffix}"
            self._stream = self._stack.enter_context(self.store.create(self._path))
            if layout.encoding == "parquet":
                self._parquet = pq.ParquetWriter(
                    self._stream, rows.schema, compression=layout.compression, metadata_collector=self._footers
                )
            elif layout.header:
                self._stream.write(layout.header.encode() + b"\n")
        if self._parquet is not None:
            self._parquet.write_table(rows, row_group_size=max(1, rows.num_rows))
        else:
            self._stream.write("".join(f"{line}\n" for line in rows.column(0).to_pylist()).encode())
        self._rows += rows.num_rows
        self._pending, self._pending_bytes = [], 0


def split(rows: "pa.Table", names: tuple[str, ...]) -> "Iterator[tuple[tuple[str | None, ...], pa.Table]]":
    """Yield the rows of each partition of the table that occurs in `rows`, in order. Yield nothing for no rows."""
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
    """Return the values of a partition column as texts, in the form that Delta prescribes."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        values = [None if value is None else value.strftime("%Y-%m-%d %H:%M:%S.%f") for value in column.to_pylist()]
        return pa.array(values, pa.string())
    return column.cast(pa.string()).combine_chunks()


def hive_directories(names: tuple[str, ...], values: tuple[str | None, ...]) -> list[str]:
    """Return the names of the directories of a partition, as `country=FR`, with the escapes of Hive and Spark."""
    return [
        f"{escaped(name)}={NULL_PARTITION if value is None else escaped(value)}"
        for name, value in zip(names, values, strict=True)
    ]


def escaped(text: str) -> str:
    return re.sub(r"""[\x00-\x1f"#%'*/:=?\\\x7f{}\[\]^]""", lambda found: f"%{ord(found[0]):02X}", text)


def parquet_statistics(footer: Any) -> str:
    """Return the statistics of a Parquet file for the log of a Delta table. Nested columns have none."""
    minima: dict[str, Any] = {}
    maxima: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        groups = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if footer.schema.column(index).max_repetition_level or footer.schema.column(index).max_definition_level > 1:
            continue
        if "." in name or any(group is None or not group.has_null_count for group in groups):
            continue
        nulls[name] = sum(group.null_count for group in groups)
        bounded = [group for group in groups if group.has_min_max]
        if len(bounded) == len(groups) and groups:
            lowest, highest = min(g.min for g in bounded), max(g.max for g in bounded)
            texts = [_statistic(lowest), _statistic(highest)]
            if None not in texts:
                minima[name], maxima[name] = texts
    return json.dumps({"numRecords": footer.num_rows, "minValues": minima, "maxValues": maxima, "nullCount": nulls})


def _statistic(value: object) -> object:
    """Return a minimum or maximum as a value for JSON, or None for a type or length without statistics."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%f") + ("Z" if value.tzinfo is not None else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, str):
        return value if len(value) <= STATISTICS_TEXT_MAX else None
    if isinstance(value, int):
        return value
    return None  # decimals have no statistics here, nor have floating-point numbers: readers order NaN differently
