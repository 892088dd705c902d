"""Sinks and sources on an object store, through the S3 protocol: exactly once wherever the driver may end."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable

from sinks_harness.object_stores import REGION, Bucket
from sinks_harness.rows import Rows
from sinks_harness.trials import (
    PlantedError,
    check_another_writer,
    check_older_checkpoint,
    check_two_drivers,
    check_written_once,
    crash_at,
    opened,
)
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks import bucket as bucket_module
from tidelog.pipelines.sinks import parquet as parquet_module
from tidelog.pipelines.sinks import written_files
from tidelog.pipelines.sinks.bucket import BucketTarget
from tidelog.pipelines.sinks.delta import OpenedDelta, delta
from tidelog.pipelines.sinks.file import file
from tidelog.pipelines.sinks.iceberg import OpenedIceberg, iceberg, load_catalog
from tidelog.pipelines.sinks.parquet import parquet
from tidelog.pipelines.sources.delta import DeltaDataSource, DeltaReader, DeltaStreamReader
from tidelog.pipelines.sources.iceberg import IcebergDataSource, IcebergReader, IcebergStreamReader

DRIVER = Path(__file__).parents[2] / "sinks_harness/killed_driver.py"


class Target:
    """One kind of sink in a bucket: how to open it, and how to read it without it."""

    def __init__(self, bucket: Bucket, directory: Path) -> None:
        self.bucket = bucket
        self.directory = directory

    def open(self, query: str = "query-1") -> Any:
        raise NotImplementedError

    def ids(self) -> list[int]:
        raise NotImplementedError


class DeltaTarget(Target):
    def open(self, query: str = "query-1") -> Any:
        return opened(delta(self.bucket.url("t"), storage_options=self.bucket.server.options), None, query=query)

    def ids(self) -> list[int]:
        table = DeltaTable(self.bucket.url("t"), storage_options=self.bucket.server.options)
        return sorted(table.to_pyarrow_table().column("id").to_pylist())


class IcebergTarget(Target):
    @property
    def catalog(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.directory}/catalog.db",
            "warehouse": self.bucket.url("lake"),
            "s3.endpoint": self.bucket.server.endpoint,
            "s3.region": REGION,
        }

    def open(self, query: str = "query-1") -> Any:
        return opened(iceberg("lake.rows", catalog=self.catalog), None, query=query)

    def ids(self) -> list[int]:
        table = load_catalog(list(self.catalog.items()), "test").load_table("lake.rows")
        return sorted(table.scan().to_arrow().column("id").to_pylist())


class ParquetTarget(Target):
    def open(self, query: str = "query-1") -> Any:
        return opened(parquet(self.bucket.url("p"), storage_options=self.bucket.server.options), None, query=query)

    def ids(self) -> list[int]:
        """Read by readers that know nothing of the sink: they list the bucket."""
        objects = self.bucket.objects
        arrow = sorted(ds.dataset("p", filesystem=objects, format="parquet").to_table().column("id").to_pylist())
        listed = [name for name in self.bucket.names("p") if name.endswith(".parquet")]
        tables = [pq.read_table(name, filesystem=objects, partitioning=None) for name in listed]
        assert sorted(n for table in tables for n in table.column("id").to_pylist()) == arrow
        return arrow

    def staged(self) -> list[str]:
        return self.bucket.names("p/_tidelog/staged")


TARGETS = [DeltaTarget, IcebergTarget, ParquetTarget]


@pytest.fixture(params=TARGETS, ids=lambda kind: kind.__name__)
def target(request: pytest.FixtureRequest, bucket: Bucket, tmp_path: Path) -> Target:
    kind: type[Target] = request.param
    return kind(bucket, tmp_path)


def test_an_older_checkpoint_is_refused(target: Target) -> None:
    check_older_checkpoint(target)


def test_a_micro_batch_is_written_once(target: Target) -> None:
    check_written_once(target)


CRASHES = [
    (DeltaTarget, OpenedDelta, "_add_files", False, 10),
    (DeltaTarget, OpenedDelta, "_add_files", True, 30),
    (IcebergTarget, OpenedIceberg, "_commit", False, 10),
    (IcebergTarget, OpenedIceberg, "_commit", True, 30),
    (ParquetTarget, BucketTarget, "commit", False, 10),
    (ParquetTarget, BucketTarget, "_decide", False, 10),
    (ParquetTarget, BucketTarget, "_decide", True, 10),
    (ParquetTarget, BucketTarget, "_remove_attempts", False, 30),
    (ParquetTarget, BucketTarget, "_remove_attempts", True, 30),
]


@pytest.mark.parametrize(("kind", "owner", "name", "after", "visible"), CRASHES)
def test_after_a_crash(
    kind: type[Target],
    owner: type,
    name: str,
    after: bool,
    visible: int,
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    """The repeated micro-batch has fewer tasks, so that it would leave files of the first attempt with equal names."""
    target = kind(bucket, tmp_path)
    sink = target.open()
    sink.write(Rows.numbers(0, 10), 0)
    with crash_at(monkeypatch, owner, name, after), pytest.raises(PlantedError):
        sink.write(Rows.numbers(10, 30, tasks=3), 1)
    assert target.ids() == list(range(visible))
    target.open().write(Rows.numbers(10, 30, tasks=1), 1)
    target.open().write(Rows.numbers(30, 35), 2)
    assert target.ids() == list(range(35))
    if isinstance(target, ParquetTarget):
        assert target.staged() == []


def test_a_crash_between_two_copies(bucket: Bucket, tmp_path: Path, monkeypatch: Any) -> None:
    """A reader sees whole files only. The next start completes what was decided, whatever the repetition has."""
    target = ParquetTarget(bucket, tmp_path)
    real = bucket_module.publisher

    def fails_at_second(store: Any) -> Callable[[Any], str | None]:
        publish = real(store)

        def publish_or_fail(entry: Any) -> str | None:
            if entry["name"].endswith("00001.parquet"):
                raise PlantedError("copy")
            return publish(entry)

        return publish_or_fail

    with monkeypatch.context() as patch:
        patch.setattr(bucket_module, "publisher", fails_at_second)
        with pytest.raises(PlantedError):
            target.open().write(Rows.numbers(0, 30), 0)
    assert target.ids() == list(range(15))
    target.open().write(Rows.numbers(0, 30, tasks=5), 0)
    assert target.ids() == list(range(30))
    assert target.staged() == []
    manifest = json.loads(bucket.objects.open_input_stream(_manifest(bucket)).read())
    assert [entry["rows"] for entry in manifest["files"]] == [15, 15]


KILLS = [
    (DeltaTarget, "delta", "before the commit", [range(10)]),
    (IcebergTarget, "iceberg", "before the catalog", [range(10)]),
    (ParquetTarget, "parquet", "before the manifest", [range(10)]),
    (ParquetTarget, "parquet", "between two copies", [range(10), range(20)]),  # the first copy may be under way
    (ParquetTarget, "parquet", "before the clean-up", [range(30)]),
]


@pytest.mark.parametrize(("kind", "name", "step", "visible"), KILLS)
def test_a_killed_driver(
    kind: type[Target], name: str, step: str, visible: list[range], bucket: Bucket, tmp_path: Path
) -> None:
    """As `test_after_a_crash`, but the process ends at once, and nothing of it can help the next one."""
    target = kind(bucket, tmp_path)
    target.open().write(Rows.numbers(0, 10), 0)
    location: list[Any] = [bucket.url("t" if name == "delta" else "p"), {"storage_options": bucket.server.options}]
    if isinstance(target, IcebergTarget):
        location = ["lake.rows", {"catalog": target.catalog}]
    command = [sys.executable, DRIVER, name, json.dumps(location), step]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert target.ids() in [list(ids) for ids in visible]
    target.open().write(Rows.numbers(10, 30, tasks=3), 1)
    target.open().write(Rows.numbers(30, 35), 2)
    assert target.ids() == list(range(35))
    assert not isinstance(target, ParquetTarget) or target.staged() == []


@pytest.mark.parametrize("kind", TARGETS)
def test_two_drivers_of_one_query(kind: type[Target], bucket: Bucket, tmp_path: Path, monkeypatch: Any) -> None:
    """Both have written their files, and neither has found the micro-batch written, when the first one commits."""
    owners = {DeltaTarget: OpenedDelta, IcebergTarget: OpenedIceberg, ParquetTarget: BucketTarget}
    names = {DeltaTarget: "_add_files", IcebergTarget: "_change", ParquetTarget: "commit"}
    # The second driver has more files than the first one, whose names do not exist yet.
    check_two_drivers(monkeypatch, kind(bucket, tmp_path), owners[kind], names[kind], first_tasks=1, second_tasks=3)


def test_drivers_that_decide_at_the_same_time(bucket: Bucket, tmp_path: Path, monkeypatch: Any) -> None:
    """Four drivers of one query reach the manifest together: one of them decides each micro-batch."""
    target = ParquetTarget(bucket, tmp_path)
    together = threading.Barrier(4, timeout=60)
    real = BucketTarget._decide

    def decide(self: BucketTarget, batch_id: int, text: str) -> None:
        together.wait()
        real(self, batch_id, text)

    monkeypatch.setattr(BucketTarget, "_decide", decide)
    failures: list[BaseException] = []

    def drive(tasks: int) -> None:
        try:
            target.open().write(Rows.numbers(0, 30, tasks), 0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=drive, args=(tasks,)) for tasks in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert target.ids() == list(range(30))


@pytest.mark.parametrize("kind", [DeltaTarget, IcebergTarget])
def test_with_another_writer(kind: type[Target], bucket: Bucket, tmp_path: Path) -> None:
    check_another_writer(kind(bucket, tmp_path), 4)


@pytest.mark.parametrize(
    ("kind", "method", "path"),
    [
        (DeltaTarget, "PUT", r"_delta_log/\d*1.json"),
        (DeltaTarget, "PUT", r"_delta_log/\d*2.json"),
        (ParquetTarget, "PUT", r"_tidelog/\w+/\d+.json"),
        (ParquetTarget, "PUT", r"p/\w+-\d+-\d+.parquet"),
        (ParquetTarget, "PUT", r"conditional-writes"),
    ],
)
def test_the_answer_to_a_write_is_lost(
    kind: type[Target], method: str, path: str, bucket: Bucket, tmp_path: Path
) -> None:
    """The client cannot know that its request has succeeded, so it sends it again, and is refused by its own object."""
    target = kind(bucket, tmp_path)
    with bucket.server.fault("lost answer", method, path, times=1):
        sink = target.open()
        sink.write(Rows.numbers(0, 10), 0)
        sink.write(Rows.numbers(10, 30), 1)
    requests = [each for each in bucket.server.requests() if each["method"] == method]
    assert len([each for each in requests if each["path"].endswith(_first_like(requests, path))]) >= 2
    assert target.ids() == list(range(30))


def test_commits_are_conditional_writes(bucket: Bucket, tmp_path: Path) -> None:
    """Also deltalake writes a version of the log only if there is none, without any option."""
    for kind, path in ((DeltaTarget, "_delta_log/"), (ParquetTarget, "/_tidelog/")):
        target = kind(bucket, tmp_path)
        target.open().write(Rows.numbers(0, 10), 0)
        written = [each for each in bucket.server.requests() if each["method"] == "PUT" and path in each["path"]]
        commits = [each for each in written if each["path"].endswith(".json")]
        assert commits
        assert {each["if_none_match"] for each in commits} == {"*"}


def test_a_store_that_ignores_conditions_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    target = ParquetTarget(bucket, tmp_path)
    with (
        bucket.server.fault("unconditional", "PUT", "conditional-writes"),
        pytest.raises(PipelineError, match=rf"^parquet {bucket.url('p')}: the object store ignores the condition"),
    ):
        target.open()


def test_a_file_that_was_removed_on_purpose(bucket: Bucket, tmp_path: Path) -> None:
    target = ParquetTarget(bucket, tmp_path)
    target.open().write(Rows.numbers(0, 10, tasks=1), 0)
    [name] = [name for name in bucket.names("p") if name.endswith(".parquet")]
    bucket.objects.delete_file(name)
    with pytest.raises(PipelineError, match=rf"{Path(name).name} of micro-batch 0 is missing.* {bucket.url('p')}/_tid"):
        target.open().write(Rows.numbers(0, 10), 0)


def test_partitions_and_the_size_of_objects(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_module, "OBJECT_BYTES_MAX", 1)
    monkeypatch.setattr(written_files, "ROW_GROUP_BYTES", 1)
    places = ["a b/c%é", "x=y", ".", "a+b&c", "*?", "", None] * 4
    rows = Rows(pa.table({"id": list(range(28)), "place": places}), tasks=1)
    sink = parquet(bucket.url("a b/t"), partition_by="place", storage_options=bucket.server.options)
    opened(sink, None).write(rows, 0)  # type: ignore[arg-type]
    found = ds.dataset("a b/t", filesystem=bucket.objects, format="parquet", partitioning="hive").to_table()
    read = {row["id"]: row["place"] for row in found.to_pylist()}
    assert {number: place or None for number, place in read.items()} == {
        number: place or None for number, place in enumerate(places)
    }
    names = [name for name in bucket.names("a b/t") if "/_tidelog/" not in name]
    assert len(names) == 28, "each row group begins another file"
    assert {pq.read_table(name, filesystem=bucket.objects, partitioning=None).num_rows for name in names} == {1}


def test_lines(bucket: Bucket) -> None:
    sink = opened(file(bucket.url("lines"), files=1, storage_options=bucket.server.options), None)
    for batch in (0, 0, 1):
        sink.write(Rows(pa.table({"line": [f"batch {batch}", "é"]})), batch)  # type: ignore[arg-type]
    names = [name for name in bucket.names("lines") if name.endswith(".txt")]
    texts = [bucket.objects.open_input_stream(name).read().decode() for name in names]
    assert texts == ["batch 0\né\n", "batch 1\né\n"]
    written = [each for each in bucket.server.requests() if each["method"] == "PUT" and "/staged/" in each["path"]]
    assert len(written) == 2, "a repeated micro-batch writes nothing"


def test_tables_are_streams(bucket: Bucket, tmp_path: Path) -> None:
    """Sources read what the sinks have written, also after the credentials are read again in another process."""
    at_delta, at_iceberg = DeltaTarget(bucket, tmp_path), IcebergTarget(bucket, tmp_path)
    sinks = [at_delta.open(), at_iceberg.open()]
    for sink in sinks:
        sink.write(Rows.numbers(0, 10), 0)
    delta_options = {
        "location": bucket.url("t"),
        "storageSecrets": json.dumps(bucket.server.options),
        "begin": "null",
        "beginIsVersion": "False",
    }
    iceberg_options = {
        "table": "lake.rows",
        "catalogSecrets": json.dumps(sorted(at_iceberg.catalog.items())),
        "begin": "earliest",
    }
    sources: list[Any] = [
        (DeltaDataSource(delta_options).schema(), delta_options, DeltaStreamReader, DeltaReader),
        (IcebergDataSource(iceberg_options).schema(), iceberg_options, IcebergStreamReader, IcebergReader),
    ]
    for sink, (schema, options, stream_kind, batch_kind) in zip(sinks, sources, strict=True):
        stream = stream_kind(options, schema)
        begin = stream.latestOffset({}, None)
        assert _ids(stream, stream.partitions({}, begin)) == list(range(10))
        sink.write(Rows.numbers(10, 20), 1)
        end = stream.latestOffset(begin, None)
        assert _ids(stream_kind(options, schema), stream.partitions(begin, end)) == list(range(10, 20))
        batch = batch_kind(options, schema)
        assert _ids(batch, batch.partitions()) == list(range(20))


def _ids(reader: Any, parts: list[Any]) -> list[int]:
    return sorted(n for part in parts for batch in reader.read(part) for n in batch.to_pydict()["id"])


def _manifest(bucket: Bucket) -> str:
    [name] = [name for name in bucket.names("p/_tidelog") if name.endswith(".json")]
    return name


def _first_like(requests: list[dict[str, str]], path: str) -> str:
    return next(each["path"] for each in requests if re.search(path, each["path"]))
