"""Sinks at every point where the driver may end, with two drivers of one query, and with other writers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake

from sinks_harness.object_stores import Bucket
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
from tidelog.pipelines.declarations import PipelineError, TemporaryError
from tidelog.pipelines.sinks import targets, written_files
from tidelog.pipelines.sinks.delta import OpenedDelta, delta
from tidelog.pipelines.sinks.directory import DirectoryTarget
from tidelog.pipelines.sinks.iceberg import OpenedIceberg, iceberg, load_catalog
from tidelog.pipelines.sinks.keyed_rows import DELETED
from tidelog.pipelines.sinks.object_stores import Objects
from tidelog.pipelines.sinks.parquet import parquet
from tidelog.pipelines.sinks.stores import DeltaStore, IcebergStore, LocalStore, Store
from tidelog.pipelines.sinks.written_files import Layout, write_task


class Target:
    """One kind of sink in a directory: how to open it, and how to read it without it."""

    def __init__(self, path: Path) -> None:
        self.path = path / "target"

    def open(self, query: str = "query-1", mode: str = "append") -> Any:
        raise NotImplementedError

    def ids(self) -> list[int]:
        raise NotImplementedError


class DeltaTarget(Target):
    def open(self, query: str = "query-1", mode: str = "append") -> Any:
        return opened(delta(str(self.path)), None, mode, query)

    def ids(self) -> list[int]:
        ids = sorted(DeltaTable(self.path).to_pyarrow_table().column("id").to_pylist())
        listed = ", ".join(f"'{uri}'" for uri in DeltaTable(self.path).file_uris())
        assert not listed or ids == sorted(
            row[0] for row in duckdb.sql(f"select id from read_parquet([{listed}])").fetchall()
        )
        return ids


class IcebergTarget(Target):
    @property
    def catalog(self) -> dict[str, str]:
        self.path.mkdir(exist_ok=True)
        return {"type": "sql", "uri": f"sqlite:///{self.path}/catalog.db", "warehouse": f"file://{self.path}"}

    def open(self, query: str = "query-1", mode: str = "append") -> Any:
        return opened(iceberg("lake.rows", catalog=self.catalog), None, mode, query)

    def ids(self) -> list[int]:
        table = load_catalog(list(self.catalog.items()), "test").load_table("lake.rows")
        ids = sorted(table.scan().to_arrow().column("id").to_pylist())
        paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
        listed = ", ".join(f"'{path}'" for path in paths)
        assert not listed or ids == sorted(
            row[0] for row in duckdb.sql(f"select id from read_parquet([{listed}])").fetchall()
        )
        return ids


class ParquetTarget(Target):
    def open(self, query: str = "query-1", mode: str = "append") -> Any:
        return opened(parquet(str(self.path)), None, mode, query)

    def ids(self) -> list[int]:
        """Read by readers that know nothing of the sink: they list the directory."""
        arrow = sorted(ds.dataset(self.path, format="parquet").to_table().column("id").to_pylist())
        found = duckdb.sql(f"select id from read_parquet('{self.path}/**/*.parquet')").fetchall()
        assert sorted(row[0] for row in found) == arrow
        return arrow


TARGETS = [DeltaTarget, IcebergTarget, ParquetTarget]


@pytest.fixture(params=TARGETS, ids=lambda kind: kind.__name__)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    kind: type[Target] = request.param
    return kind(tmp_path)


def test_an_older_checkpoint_is_refused(target: Target) -> None:
    check_older_checkpoint(target)


def test_a_micro_batch_is_written_once(target: Target) -> None:
    check_written_once(target)


CRASHES = [
    (DeltaTarget, OpenedDelta, "_add_files", False, 10),
    (DeltaTarget, OpenedDelta, "_add_files", True, 30),
    (DeltaTarget, OpenedDelta, "_commit", False, 10),
    (IcebergTarget, OpenedIceberg, "_change", False, 10),
    (IcebergTarget, OpenedIceberg, "_change", True, 10),
    (IcebergTarget, OpenedIceberg, "_commit", False, 10),
    (IcebergTarget, OpenedIceberg, "_commit", True, 30),
    (ParquetTarget, DirectoryTarget, "commit", False, 10),
    (ParquetTarget, DirectoryTarget, "_decide", False, 10),
    (ParquetTarget, DirectoryTarget, "_decide", True, 10),
    (ParquetTarget, DirectoryTarget, "_remove_attempts", False, 30),
    (ParquetTarget, DirectoryTarget, "_remove_attempts", True, 30),
]


@pytest.mark.parametrize(("kind", "owner", "name", "after", "visible"), CRASHES)
def test_after_a_crash(
    kind: type[Target], owner: type, name: str, after: bool, visible: int, tmp_path: Path, monkeypatch: Any
) -> None:
    target = kind(tmp_path)
    sink = target.open()
    sink.write(Rows.numbers(0, 10), 0)
    with crash_at(monkeypatch, owner, name, after), pytest.raises(PlantedError):
        sink.write(Rows.numbers(10, 30), 1)
    assert target.ids() == list(range(visible))
    target.open().write(Rows.numbers(10, 30, tasks=3), 1)
    target.open().write(Rows.numbers(30, 35), 2)
    assert target.ids() == list(range(35))


def test_files_of_a_crash_are_unreferenced_until_vacuum(tmp_path: Path, monkeypatch: Any) -> None:
    target = DeltaTarget(tmp_path)
    sink = target.open()
    sink.write(Rows.numbers(0, 10), 0)
    with crash_at(monkeypatch, OpenedDelta, "_commit"), pytest.raises(PlantedError):
        sink.write(Rows.numbers(10, 30), 1)
    table = DeltaTable(target.path)
    assert len(table.vacuum(0, enforce_retention_duration=False, full=True)) == 2
    assert target.ids() == list(range(10))


def test_a_crash_between_two_renames(tmp_path: Path, monkeypatch: Any) -> None:
    target = ParquetTarget(tmp_path)
    real = Path.rename
    renamed: list[Path] = []

    def fail_at_second(self: Path, name: Path) -> Path:
        if renamed:
            raise PlantedError("rename")
        renamed.append(name)
        return real(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail_at_second)
        with pytest.raises(PlantedError):
            target.open().write(Rows.numbers(0, 30), 0)
    assert target.ids() == list(range(15))
    target.open().write(Rows.numbers(0, 30, tasks=5), 0)
    assert target.ids() == list(range(30))
    assert not list((target.path / "_tidelog/staged").iterdir())


STORES = [
    lambda directory, bucket: LocalStore(str(directory), "trial"),
    lambda directory, bucket: IcebergStore(str(directory), (), "iceberg"),
    lambda directory, bucket: DeltaStore(bucket.url("t"), tuple(bucket.server.options.items()), "delta"),
    lambda directory, bucket: Objects(bucket.url("t"), tuple(bucket.server.options.items()), "parquet"),
]


@pytest.mark.parametrize("make", STORES, ids=["local", "iceberg", "delta", "objects"])
def test_a_task_that_fails_removes_its_files(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Store]
) -> None:
    """Complete files as well as begun ones."""
    monkeypatch.setattr(written_files, "OPEN_FILES_MAX", 2)
    monkeypatch.setattr(written_files, "ROW_GROUP_BYTES", 1)
    before = bucket.names()

    def found() -> list[str]:
        return [name for name in bucket.names() if name not in before] + [str(p) for p in tmp_path.rglob("*.parquet")]

    at_error: list[str] = []

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"p": ["a", "b", "c"], "n": [1, 2, 3]})
        at_error.extend(found())
        raise PlantedError("the task fails")

    layout = Layout(partition_by=("p",))
    store = make(tmp_path, bucket)
    with pytest.raises(PlantedError):
        list(write_task(batches(), store, layout))
    assert at_error
    assert found() == []
    list(write_task(iter([pa.RecordBatch.from_pydict({"p": ["a"], "n": [1]})]), store, layout))
    assert len(found()) == 1


def test_a_file_that_cannot_be_completed_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    rows = [pa.RecordBatch.from_pydict({"n": [1]})]
    with pytest.raises(TemporaryError, match="No space left"):
        list(write_task(iter(rows), LocalStore(str(tmp_path), "trial"), Layout()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", TARGETS)
def test_two_drivers_of_one_query(kind: type[Target], tmp_path: Path, monkeypatch: Any) -> None:
    """Both have written their files, and neither has found the micro-batch written, when the first one commits."""
    owners = {DeltaTarget: OpenedDelta, IcebergTarget: OpenedIceberg, ParquetTarget: DirectoryTarget}
    names = {DeltaTarget: "_add_files", IcebergTarget: "_change", ParquetTarget: "commit"}
    check_two_drivers(monkeypatch, kind(tmp_path), owners[kind], names[kind], first_tasks=3, second_tasks=2)


@pytest.mark.parametrize("kind", [DeltaTarget, IcebergTarget])
def test_with_another_writer(kind: type[Target], tmp_path: Path) -> None:
    """Another query commits all the time. Both queries' rows are there once."""
    check_another_writer(kind(tmp_path), 8)


def keyed(*rows: tuple[str | None, int, str, bool]) -> Rows:
    countries, ids, names, deleted = zip(*rows, strict=True)
    columns = {"country": pa.array(countries, pa.string()), "id": pa.array(ids, pa.int64())}
    return Rows(pa.table(columns | {"name": pa.array(names), DELETED: pa.array(deleted)}))


def test_delta_merges_once_with_another_writer(tmp_path: Path, monkeypatch: Any) -> None:
    """The rows are prepared as KeyedRows prepares them; tests/spark shows this preparation."""
    monkeypatch.setattr("tidelog.pipelines.sinks.keyed_rows.KeyedRows.prepare", lambda self, batch, sink: batch)
    path = tmp_path / "t"
    sink = opened(delta(str(path), key=["country", "id"]), None, "update")
    sink.write(keyed(("FR", 1, "a", False), ("DE", 1, "b", False), (None, 7, "n", False)), 0)
    change = keyed(("FR", 1, "a", True), ("DE", 1, "c", False), ("DE", 9, "x", True), (None, 7, "m", False))
    with crash_at(monkeypatch, OpenedDelta, "_commit"), pytest.raises(PlantedError):
        sink.write(change, 1)
    import tidelog.pipelines.sinks.delta_merge as module

    real = module.merge
    interruptions: list[int] = []

    def after_another(*arguments: Any) -> None:
        if not interruptions:
            interruptions.append(1)
            rows = pa.table({"country": ["DE"], "id": [1], "name": ["other"]})
            write_deltalake(path, rows, mode="overwrite")
        real(*arguments)

    monkeypatch.setattr(module, "merge", after_another)
    sink.write(change, 1)
    sink.write(change, 1)
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert interruptions
    assert sorted((row["country"] or "", row["id"], row["name"]) for row in rows) == [("", 7, "m"), ("DE", 1, "c")]


def test_delta_refuses_a_repeated_key(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tidelog.pipelines.sinks.keyed_rows.KeyedRows.prepare", lambda self, batch, sink: batch)
    sink = opened(delta(str(tmp_path / "t"), key=["country", "id"]), None, "update")
    with pytest.raises(PipelineError, match="several rows of one micro-batch have the key country=None, id=7: name"):
        sink.write(keyed((None, 7, "n", False), ("FR", 7, "n", False), (None, 7, "m", False)), 0)


@pytest.mark.parametrize("kind", [DeltaTarget, IcebergTarget])
def test_complete_replaces_all_rows(kind: type[Target], tmp_path: Path) -> None:
    target = kind(tmp_path)
    sink = target.open(mode="complete")
    sink.write(Rows.numbers(0, 10), 0)
    sink.write(Rows.numbers(5, 20), 1)
    sink.write(Rows.numbers(0, 10), 1)
    assert target.ids() == list(range(5, 20))
    sink.write(Rows.numbers(0, 0), 2)
    assert target.ids() == []
    with pytest.raises(PipelineError, match="the output mode update needs"):
        target.open(mode="update")


def test_only_the_newest_manifests_remain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a micro-batch has no rows, or the driver ends after the manifest was created."""
    monkeypatch.setattr(targets, "MANIFESTS_MAX", 2)
    target = ParquetTarget(tmp_path)
    sink = target.open()
    sink.write(Rows.numbers(0, 10), 0)
    sink.write(Rows.numbers(10, 20), 1)
    sink.write(Rows.numbers(20, 20), 2)
    with crash_at(monkeypatch, DirectoryTarget, "_publish"), pytest.raises(PlantedError):
        sink.write(Rows.numbers(20, 30), 3)
    target.open().write(Rows.numbers(20, 30), 3)
    assert [path.stem for path in target.path.glob("_tidelog/*/*.json")] == ["000000003"]
    assert target.ids() == list(range(30))
