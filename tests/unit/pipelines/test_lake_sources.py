"""Delta and Iceberg tables, and files, as streams: what a micro-batch reads, also when it is repeated."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import json

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.errors import AnalysisException

from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines import delta, file, http, iceberg, parquet, topic
from tidelog.pipelines.declarations import PipelineError, Source, SourceContext, TemporaryError
from tidelog.pipelines.failures import cause_text, is_permanent
from tidelog.pipelines.sinks.bucket import BucketTarget
from tidelog.pipelines.sinks.iceberg import load_catalog
from tidelog.pipelines.sinks.object_stores import Objects
from tidelog.pipelines.sinks.stores import DeltaStore, IcebergStore
from tidelog.pipelines.sources.delta import DeltaDataSource, DeltaLog, DeltaReader, DeltaStreamReader
from tidelog.pipelines.sources.files import load_files
from tidelog.pipelines.sources.iceberg import IcebergDataSource, IcebergReader, IcebergStreamReader
from tidelog.pipelines.sources.tail import TailReader


def ids(reader: Any, parts: list[Any]) -> list[int]:
    return sorted(n for part in parts for batch in reader.read(part) for n in batch.to_pydict()["id"])


def read_on(reader: Any, start: dict[str, Any], again: Any = None) -> tuple[dict[str, Any], list[int]]:
    """Return the end of the next micro-batch and the ids of its rows, which must be the same when it is repeated."""
    end = json.loads(json.dumps(reader.latestOffset(start, None)))
    rows = ids(reader, reader.partitions(start, end))
    again = again or reader
    assert ids(again, again.partitions(start, end)) == rows
    return end, rows


class TestDelta:
    def reader(self, path: Path, begin: str | int | None = None, version: int | None = None) -> DeltaStreamReader:
        options = {"location": str(path), "storageSecrets": "{}", "beginIsVersion": str(version is not None)}
        options["begin"] = json.dumps(version if version is not None else begin)
        return DeltaStreamReader(options, DeltaDataSource(options).schema())

    def test_a_stream_reads_what_is_appended(self, tmp_path: Path) -> None:
        path = tmp_path / "t"
        writer = opened(delta(str(path)), None)
        writer.write(Rows.numbers(0, 10), 0)
        writer.write(Rows.numbers(10, 20), 1)
        reader = self.reader(path)
        end, rows = read_on(reader, reader.initialOffset())
        assert rows == list(range(20))
        assert reader.latestOffset(end, None) == end  # type: ignore[arg-type]
        writer.write(Rows.numbers(20, 30), 2)
        writer.write(Rows.numbers(30, 35), 3)
        assert read_on(reader, end, self.reader(path, "latest"))[1] == list(range(20, 35))
        assert read_on(self.reader(path, version=3), {})[1] == list(range(30, 35))
        latest = self.reader(path, "latest")
        end, rows = read_on(latest, {})
        writer.write(Rows.numbers(35, 40), 4)
        assert (rows, read_on(latest, end)[1]) == ([], list(range(35, 40)))
        bounded = self.reader(path)
        bounded.prepareForTriggerAvailableNow()
        writer.write(Rows.numbers(40, 50), 5)
        assert read_on(bounded, {})[1] == list(range(40))

    def test_partition_columns_and_new_columns(self, tmp_path: Path) -> None:
        path = tmp_path / "t"
        sink = opened(delta(str(path), partition_by=["place", "flag"]), None)
        rows: dict[str, Any] = {"id": [1, 2, 3], "place": ["a b/c%é", None, ""], "flag": [True, False, None]}
        sink.write(Rows(pa.table(rows)), 0)
        sink.write(Rows(pa.table({"id": [4], "place": ["x"], "flag": [True], "extra": [1.5]})), 1)
        reader = self.reader(path)
        end = reader.latestOffset({}, None)  # type: ignore[arg-type]
        found = [row for part in reader.partitions({}, end) for b in reader.read(part) for row in b.to_pylist()]
        assert sorted(found, key=lambda row: row["id"]) == [
            {"id": 1, "place": "a b/c%é", "flag": True, "extra": None},
            {"id": 2, "place": None, "flag": False, "extra": None},
            {"id": 3, "place": None, "flag": None, "extra": None},  # Delta has no empty text in a partition column
            {"id": 4, "place": "x", "flag": True, "extra": 1.5},
        ]
        streamed = [
            row
            for part in reader.partitions({"version": 0}, end)
            for batch in reader.read(part)
            for row in batch.to_pylist()
        ]
        assert sorted(streamed, key=lambda row: row["id"]) == sorted(found, key=lambda row: row["id"])

    def test_changed_columns_stop_a_stream_and_the_next_start_reads_them(self, tmp_path: Path) -> None:
        path = tmp_path / "t"
        sink = opened(delta(str(path)), None)
        sink.write(Rows(pa.table({"id": [1]})), 0)
        reader = self.reader(path)
        end, _ = read_on(reader, {})
        sink.write(Rows(pa.table({"id": [2], "extra": [1.5]})), 1)
        planned = reader.latestOffset(end, None)  # type: ignore[arg-type]
        sink.write(Rows(pa.table({"id": [3], "extra": [2.5], "more": ["a"]})), 2)
        with pytest.raises(TemporaryError, match="column extra is new, column more is new") as changed:
            reader.partitions(end, planned)
        assert not is_permanent(changed.value)
        restarted = self.reader(path)
        found = [
            row
            for part in restarted.partitions(end, planned)
            for batch in restarted.read(part)
            for row in batch.to_pylist()
        ]
        assert found == [{"id": 2, "extra": 1.5, "more": None}]
        assert read_on(restarted, planned)[1] == [3]
        later = restarted.latestOffset(planned, None)  # type: ignore[arg-type]
        write_deltalake(path, pa.table({"id": ["4"]}), mode="overwrite", schema_mode="overwrite")
        with pytest.raises(
            TemporaryError,
            match="column extra is gone, column more is gone, column id is string and was bigint",
        ):
            restarted.partitions(planned, later)

    def test_changes_that_are_not_appends_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "t"
        opened(delta(str(path)), None).write(Rows.numbers(0, 10), 0)
        reader = self.reader(path)
        end, _ = read_on(reader, {})
        write_deltalake(path, Rows.numbers(0, 5).table, mode="overwrite")
        later = reader.latestOffset(end, None)  # type: ignore[arg-type]
        with pytest.raises(PipelineError, match=r"version 2 updates or deletes rows.*begin_version=2"):
            reader.partitions(end, later)
        batch = DeltaReader({"location": str(path), "storageSecrets": "{}"}, DeltaDataSource.schema(_with(path)))
        assert ids(batch, batch.partitions()) == list(range(5))
        with pytest.raises(PipelineError, match="the table cannot be read"):
            self.reader(tmp_path / "none")

    @pytest.mark.parametrize("protocol", [(1, 2), (2, 5)])
    @pytest.mark.parametrize("mode", ["none", "name"])
    def test_only_mapped_columns_are_refused(self, tmp_path: Path, protocol: tuple[int, int], mode: str) -> None:
        path = tmp_path / "t"
        opened(delta(str(path)), None).write(Rows.numbers(0, 3), 0)
        log = path / "_delta_log/00000000000000000000.json"
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            if "metaData" in action:
                action["metaData"]["configuration"]["delta.columnMapping.mode"] = mode
                schema = json.loads(action["metaData"]["schemaString"])
                for number, field in enumerate(schema["fields"]):
                    names = {"id": number, "physicalName": field["name"]}
                    field["metadata"] = {f"delta.columnMapping.{name}": value for name, value in names.items()}
                action["metaData"]["schemaString"] = json.dumps(schema)
            if "protocol" in action:
                action["protocol"] = dict(zip(("minReaderVersion", "minWriterVersion"), protocol, strict=True))
        log.write_text("\n".join(map(json.dumps, actions)))
        if mode == "none" or protocol == (1, 2):
            assert read_on(self.reader(path), {})[1] == [0, 1, 2]
        else:
            with pytest.raises(PipelineError, match="the table uses column mapping"):
                self.reader(path)

    def test_only_a_missing_file_means_that_the_log_no_longer_has_a_version(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened(delta(str(tmp_path)), None).write(Rows.numbers(0, 10), 0)
        log = DeltaLog({"location": str(tmp_path), "storageSecrets": "{}"})
        with pytest.raises(PipelineError, match="the log no longer has version 7") as missing:
            log.added_files(7)
        assert is_permanent(missing.value)
        assert "Reset the pipeline: it then reads all rows of the newest version first (" in str(missing.value)
        begins = DeltaLog({"location": str(tmp_path), "storageSecrets": "{}", "declaredVersion": "6"})
        with pytest.raises(PipelineError, match="Leave out begin_version=6, and reset the pipeline: it then reads all"):
            begins.added_files(7)

        def refuse(name: str) -> None:
            raise OSError("Generic S3 error: 503 Slow Down")

        monkeypatch.setattr(log, "file_system", lambda: SimpleNamespace(open_input_stream=refuse))
        with pytest.raises(TemporaryError, match="version 1 of the log cannot be read: Generic S3 error: 503"):
            log.added_files(1)


def _with(path: Path) -> DeltaDataSource:
    return DeltaDataSource({"location": str(path), "storageSecrets": "{}"})


def test_an_iceberg_stream_reads_what_is_appended(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    table = iceberg("lake.rows", catalog=catalog, partition_by="text")
    writer = opened(table, None)
    writer.write(Rows.numbers(0, 6), 0)

    def reader(begin: str = "earliest") -> IcebergStreamReader:
        options = {"table": "lake.rows", "catalogSecrets": json.dumps(list(catalog.items())), "begin": begin}
        return IcebergStreamReader(options, IcebergDataSource(options).schema())

    stream = reader()
    end, rows = read_on(stream, {})
    assert rows == list(range(6))
    latest, _ = read_on(reader("latest"), {})
    writer.write(Rows.numbers(6, 9), 1)
    writer.write(Rows(Rows.numbers(9, 10).table.append_column("extra", pa.array([1]))), 2)
    with pytest.raises(TemporaryError, match=r"iceberg lake\.rows: the columns .*: column extra is new\. The"):
        stream.partitions(end, stream.latestOffset(end, None))  # type: ignore[arg-type]
    assert read_on(reader(), end, reader("latest"))[1] == list(range(6, 10))
    assert read_on(reader("latest"), latest)[1] == list(range(6, 10))
    stored = load_catalog(list(catalog.items()), "test").load_table("lake.rows")
    assert len(stored.scan(row_filter="text = 'text 7'").to_arrow()) == 1
    assert [each.summary["tidelog.batch"] for each in stored.snapshots() if each.summary] == ["0", "1", "2"]
    options = {"table": "lake.rows", "catalogSecrets": json.dumps(list(catalog.items())), "begin": "earliest"}
    batch = IcebergReader(options, IcebergDataSource(options).schema())
    assert ids(batch, batch.partitions()) == list(range(10))
    stored.delete("id = 3")
    last = reader().latestOffset(end, None)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="and a stream can only read rows that are appended"):
        reader().partitions(end, last)


def test_an_iceberg_table_may_be_partitioned_by_all_columns(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    opened(iceberg("lake.rows", catalog=catalog, partition_by="id"), None).write(Rows(pa.table({"id": [1, 2]})), 0)
    options = {"table": "lake.rows", "catalogSecrets": json.dumps(list(catalog.items())), "begin": "earliest"}
    reader = IcebergReader(options, IcebergDataSource(options).schema())
    assert ids(reader, reader.partitions()) == [1, 2]
    with pytest.raises(PipelineError, match="partition_by contains all columns, so the files would have no columns"):
        opened(delta(str(tmp_path / "t"), partition_by="id"), None).write(Rows(pa.table({"id": [1]})), 0)


def test_lines_are_read_while_files_grow(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"one\ntwo\r\nthr")

    def reader(begin: str = "earliest") -> TailReader:
        return TailReader({"pattern": str(tmp_path / "app.log*"), "begin": begin})

    def lines(stream: TailReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        end = json.loads(json.dumps(stream.latestOffset(start, None)))  # type: ignore[arg-type]
        rows = [row[0] for part in stream.partitions(start, end) for row in stream.read(part)]
        assert [row[0] for part in reader("latest").partitions(start, end) for row in stream.read(part)] == rows
        return end, rows

    stream = reader()
    end, rows = lines(stream, {})
    latest, nothing = lines(reader("latest"), {})
    assert (rows, nothing) == (["one", "two"], [])
    assert stream.latestOffset(end, None) == end  # type: ignore[arg-type]
    with log.open("ab") as file:
        file.write("ee\nvier \xff\n".encode("latin-1"))
    log.rename(tmp_path / "app.log.1")
    log.write_bytes(b"five\n")
    end, rows = lines(stream, end)
    assert sorted(rows) == ["five", "three", "vier \N{REPLACEMENT CHARACTER}"]
    assert sorted(lines(reader("latest"), latest)[1]) == sorted(rows)
    log.write_bytes(b"6\n")  # truncated
    end, rows = lines(stream, end)
    assert rows == ["6"]
    (tmp_path / "app.log.1").unlink()
    with log.open("ab") as file:
        file.write(b"7\n")
    following, rows = lines(stream, end)
    assert rows == ["7"]
    log.unlink()
    with pytest.raises(PipelineError, match="was removed, truncated, replaced or renamed"):
        stream.partitions(end, following)


class TestReplacedFiles:
    """A file system may give the inode of a removed file to a new file. Here, a file is written anew in place, which
    has the same effect: other content with the same device and inode.
    """

    def reader(self, log: Path) -> TailReader:
        return TailReader({"pattern": f"{log}*", "begin": "earliest"})

    def lines(self, stream: TailReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        return [row[0] for part in stream.partitions(start, end) for row in stream.read(part)]

    @pytest.mark.parametrize("new", ["2a\n2b\n", "3a\n", "2a\n2b\n2c\n"], ids=["as long", "shorter", "longer"])
    @pytest.mark.parametrize("header", [0, 5000])
    @pytest.mark.parametrize("once", [False, True])
    def test_a_new_file_with_a_known_inode_is_read_from_its_beginning(
        self, tmp_path: Path, new: str, header: int, once: bool
    ) -> None:
        log, first_line = tmp_path / "app.log", f"{'-' * header}\n" if header else ""
        log.write_text(first_line + "1a\n1b\n")
        stream = self.reader(log)
        end = stream.latestOffset({}, None)  # type: ignore[arg-type]
        inode = log.stat().st_ino
        log.write_text(first_line + new)
        assert log.stat().st_ino == inode
        if once:
            stream.prepareForTriggerAvailableNow()
        following = json.loads(json.dumps(stream.latestOffset(end, None)))  # type: ignore[arg-type]
        assert self.lines(stream, end, following) == (first_line + new).splitlines()
        assert self.lines(self.reader(log), end, following) == (first_line + new).splitlines(), "repeated"
        assert stream.latestOffset(following, None) == following  # type: ignore[arg-type]
        with log.open("a") as file:
            file.write("next\n")
        stream = self.reader(log)
        assert self.lines(stream, following, stream.latestOffset(following, None)) == ["next"]  # type: ignore[arg-type]

    def test_a_micro_batch_is_not_repeated_with_the_lines_of_another_file(self, tmp_path: Path) -> None:
        log = tmp_path / "app.log"
        log.write_text("1a\n1b\n")
        stream = self.reader(log)
        end = stream.latestOffset({}, None)  # type: ignore[arg-type]
        [planned] = stream.partitions({}, end)
        log.write_text("2a\n2b\n2c\n")
        with pytest.raises(PipelineError, match="was removed, truncated, replaced or renamed"):
            stream.partitions({}, end)
        with pytest.raises(PipelineError, match="were replaced by other lines after the micro-batch was planned"):
            next(stream.read(planned))

    def test_offsets_without_hashes_are_continued(self, tmp_path: Path) -> None:
        log = tmp_path / "app.log"
        log.write_text("1a\n1b\n")
        stream = self.reader(log)
        end = stream.latestOffset({}, None)  # type: ignore[arg-type]
        del end["hashes"]
        assert stream.latestOffset(end, None) == end  # type: ignore[arg-type]
        with log.open("a") as file:
            file.write("1c\n")
        following = stream.latestOffset(end, None)  # type: ignore[arg-type]
        assert self.lines(stream, end, following) == ["1c"]
        del following["hashes"]
        assert self.lines(stream, end, following) == ["1c"]


def test_a_file_that_changes_after_the_plan_is_not_read_as_another_one(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"one\ntwo\n")
    stream = TailReader({"pattern": f"{log}*", "begin": "earliest"})
    end = stream.latestOffset({}, None)  # type: ignore[arg-type]
    [planned] = stream.partitions({}, end)
    log.rename(tmp_path / "app.log.1")
    log.write_bytes(b"the new file\n")
    with pytest.raises(PipelineError, match="it was renamed or removed after this micro-batch was planned"):
        next(stream.read(planned))
    log.unlink()
    with pytest.raises(PipelineError, match="it was renamed or removed after this micro-batch was planned"):
        next(stream.read(planned))
    [again] = stream.partitions({}, end)
    (tmp_path / "app.log.1").write_bytes(b"one\n")
    lines = stream.read(again)
    assert next(lines)[0] == "one"
    with pytest.raises(PipelineError, match="it was truncated at byte 4"):
        next(lines)


def test_a_file_that_is_renamed_during_the_look_for_new_lines_keeps_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"one\n")
    stream = TailReader({"pattern": f"{log}*", "begin": "earliest"})
    end = stream.latestOffset({}, None)  # type: ignore[arg-type]
    found = stream._files()
    log.rename(tmp_path / "app.log.1")
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_files", lambda: found)
        assert stream.latestOffset(end, None) == end, "there is no file"  # type: ignore[arg-type]
        log.write_bytes(b"of another file\n")
        assert stream.latestOffset(end, None) == end, "there is another file"  # type: ignore[arg-type]
    log.unlink()
    with (tmp_path / "app.log.1").open("ab") as file:
        file.write(b"two\n")
    following = stream.latestOffset(end, None)  # type: ignore[arg-type]
    assert [row[0] for part in stream.partitions(end, following) for row in stream.read(part)] == ["two"]


def test_a_query_with_available_now_reads_a_truncated_file_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"one\ntwo\n")

    def reader() -> TailReader:
        stream = TailReader({"pattern": f"{log}*", "begin": "earliest"})
        stream.prepareForTriggerAvailableNow()
        return stream

    end = reader().latestOffset({}, None)  # type: ignore[arg-type]
    log.write_bytes(b"3\n")  # truncated between two queries
    stream = reader()
    with log.open("ab") as file:
        file.write(b"appended after the query had begun\n")
    (tmp_path / "app.log.new").write_bytes(b"a file that appeared after the query had begun\n")
    following = stream.latestOffset(end, None)  # type: ignore[arg-type]
    assert [row[0] for part in stream.partitions(end, following) for row in stream.read(part)] == ["3"]
    assert stream.latestOffset(following, None) == following  # type: ignore[arg-type]


def test_a_query_with_available_now_that_begins_with_latest_reads_nothing_of_a_growing_file(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"one\n")
    stream = TailReader({"pattern": str(log), "begin": "latest"})
    stream.prepareForTriggerAvailableNow()
    with log.open("ab") as file:
        file.write(b"appended after the query had begun\n")
    end = stream.latestOffset({}, None)  # type: ignore[arg-type]
    assert stream.partitions({}, end) == []


def test_a_store_does_not_show_its_options() -> None:
    secrets = (("secret_key", "hunter2"),)
    url = "s3://bucket/t"
    stores = [DeltaStore(url, secrets, ""), IcebergStore(url, secrets, ""), Objects(url, secrets, "")]
    assert "hunter2" not in repr([*stores, BucketTarget(url, "query", ".parquet", "", secrets)])


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("PATH_NOT_FOUND", r"there are no files yet, .* \(\[PATH_NOT_FOUND\] the text of Spark\)"),
        ("UNABLE_TO_INFER_SCHEMA", "there are no files yet"),
        ("INVALID_OPTIONS", r"^json /data/x: \[INVALID_OPTIONS\] the text of Spark$"),
    ],
)
def test_only_missing_files_are_reported_as_no_files(condition: str, message: str) -> None:
    error = AnalysisException("the text of Spark", errorClass=condition, messageParameters={})
    spark = MagicMock()
    spark.read.format.return_value.options.return_value.load.side_effect = error
    context = SourceContext(spark, "127.0.0.1:1", "trial", is_streaming=True)
    with pytest.raises(PipelineError, match=message):
        load_files(context, "json", "/data/x", None, {})


@pytest.mark.parametrize(("options", "age"), [({}, {"maxFileAge": "365000d"}), ({"MAXFILEAGE": "1d"}, {})])
@pytest.mark.parametrize("schema", [None, "id long"])
def test_a_stream_reads_files_of_any_age_unless_an_option_limits_it(
    options: dict[str, str], age: dict[str, str], schema: str | None
) -> None:
    spark = MagicMock()
    load_files(SourceContext(spark, "127.0.0.1:1", "trial", is_streaming=True), "parquet", "/data/x", schema, options)
    spark.readStream.format.return_value.options.assert_called_once_with(**options, **age)


MALFORMED = """An error occurred while calling o182.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:56)
Caused by: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file \
file:///data/a%20b.csv.  SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:856)
Caused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are \
detected in record parsing: [2,null].
Parse Mode: FAILFAST. To process malformed records as null result, try setting the option 'mode' as 'PERMISSIVE'. \
 SQLSTATE: 22023
\t... 26 more
Caused by: org.apache.spark.SparkRuntimeException: [MALFORMED_CSV_RECORD] Malformed CSV record: 2 SQLSTATE: KD000
\t... 33 more
"""
"""Captured from Spark 4."""


def test_a_malformed_line_of_a_file_is_a_permanent_failure_with_its_cause() -> None:
    error = RuntimeError(MALFORMED)
    assert is_permanent(error)
    assert cause_text(error).startswith(
        "file:///data/a%20b.csv: a line is malformed: [MALFORMED_CSV_RECORD] Malformed CSV record: 2. Correct the file"
    )


@pytest.mark.parametrize("is_streaming", [True, False])
@pytest.mark.parametrize(
    ("kind", "schema", "options", "mode"),
    [
        ("json", "id long", {}, "FAILFAST"),
        ("csv", "id long", {"header": "true"}, "FAILFAST"),
        ("json", None, {}, "FAILFAST"),
        ("json", "id long", {"MODE": "PERMISSIVE"}, None),
        ("csv", "id long", {"columnNameOfCorruptRecord": "bad"}, None),
        ("json", "id long, _corrupt_record string", {}, None),
        ("text", None, {}, None),
        ("parquet", None, {}, None),
    ],
)
def test_a_malformed_line_is_an_error_unless_the_declaration_says_otherwise(
    kind: str, schema: str | None, options: dict[str, str], mode: str | None, is_streaming: bool
) -> None:
    spark = MagicMock()
    load_files(SourceContext(spark, "127.0.0.1:1", "trial", is_streaming), kind, "/data/x", schema, options)
    for reader in (spark.readStream, spark.read):
        for call in reader.format.return_value.options.call_args_list:
            assert call.kwargs.get("mode") == mode
    assert spark.readStream.format.called == is_streaming


class TestBegin:
    """Where a stream begins, if `--from` or `replay --from` says so."""

    def context(self, begin: str | int | None, *, is_streaming: bool = True) -> SourceContext:
        return SourceContext(MagicMock(), "127.0.0.1:1", "trial", is_streaming, begin)

    @pytest.mark.parametrize("is_streaming", [True, False])
    @pytest.mark.parametrize(
        ("source", "begins"),
        [
            (file("/data/x"), ["latest", 1]),
            (file("/data/x", format="json", schema="id long"), ["latest", 1]),
            (parquet("/data/x"), ["latest", 1]),
            (http("http://host/x", staging="pages"), ["latest", 1]),
            (file("/data/x", tail=True), [1]),
            (iceberg("lake.rows", catalog={"type": "sql"}), [1]),
        ],
        ids=["lines", "json", "parquet", "http", "tail", "iceberg"],
    )
    def test_a_source_refuses_what_it_would_ignore(
        self, source: Source, begins: list[str | int], is_streaming: bool
    ) -> None:
        for begin in begins:
            with pytest.raises(PipelineError, match=r"leave out --from.* tidelog pipeline reset trial"):
                source.load(self.context(begin, is_streaming=is_streaming))

    @pytest.mark.parametrize("source", [file("/data/x"), parquet("/data/x"), file("/data/x", tail=True)])
    def test_files_begin_with_the_earliest(self, source: Source) -> None:
        for begin in (None, "earliest"):
            context = self.context(begin)
            source.load(context)
            spark: Any = context.spark
            assert spark.readStream.format.return_value.options.call_args.kwargs.get("begin", "earliest") == "earliest"

    def test_a_growing_file_can_begin_with_the_latest(self) -> None:
        context = self.context("latest")
        file("/data/x", tail=True).load(context)
        spark: Any = context.spark
        assert spark.readStream.format.return_value.options.call_args.kwargs["begin"] == "latest"
        sample = self.context("latest", is_streaming=False)
        assert file("/data/x", tail=True).load(sample) is not None, "a sample may have any lines"

    @pytest.mark.parametrize(("begin", "expected"), [(None, (3, "True")), ("earliest", ("earliest", "False"))])
    def test_the_begin_of_a_run_overrides_the_version_of_the_declaration(
        self, begin: str | None, expected: tuple[Any, str]
    ) -> None:
        context = self.context(begin)
        delta("/data/x", begin_version=3).load(context)
        spark: Any = context.spark
        options = spark.readStream.format.return_value.options.call_args.kwargs
        assert (json.loads(options["begin"]), options["beginIsVersion"]) == expected
        assert options["declaredVersion"] == "3"

    @pytest.mark.parametrize(
        "declared",
        [{"startingOffsets": '{"a":{"0":7}}'}, {"STARTINGTIMESTAMP": "7"}, {"startingOffsetsByTimestamp": "{}"}],
    )
    def test_the_begin_of_a_run_overrides_the_options_of_a_topic(self, declared: dict[str, str]) -> None:
        source = topic("a", options=declared | {"failOnDataLoss": "false"})
        [name] = declared

        def options(begin: str | int | None) -> dict[str, str]:
            context = self.context(begin)
            source.load(context)
            spark: Any = context.spark
            return dict(spark.readStream.format.return_value.options.call_args.kwargs)

        assert options(None)[name] == declared[name]
        assert options("latest")["startingOffsets"] == "latest"
        assert options(5)["startingTimestamp"] == "5"
        for begin in ("latest", 5):
            assert declared[name] not in options(begin).values()
            assert options(begin)["failOnDataLoss"] == "false"
