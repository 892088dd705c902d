"""The names of new directories are durable before something in them counts."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from tidelog.pipelines.sinks.directory import DirectoryTarget
from tidelog.pipelines.sinks.stores import LocalStore, create_directory, local_path
from tidelog.pipelines.sinks.written_files import WrittenFile
from tidelog.pipelines.sources.http import Staging
from tidelog.pipelines.state import PipelineState


def write_file(root: Path) -> None:
    with LocalStore(str(root)).create("country=FR/day=1/part") as stream:
        stream.write(b"x")


def write_micro_batch(root: Path) -> None:
    target = DirectoryTarget(str(root), "query", ".parquet", "parquet")
    staging = target.staging(0)
    path = f"{staging}country=FR/day=1/1.staged"
    with target.store.create(path) as stream:
        stream.write(b"x")
    target.commit(0, staging, [WrittenFile(path, 1, 1, [], "", [])])


def write_state(root: Path) -> None:
    PipelineState(root, "sales").create_identity(None)


def lock_and_write_state(root: Path) -> None:
    state = PipelineState(root, "sales")
    state.lock()
    state.create_identity(None)
    state.unlock()


def write_page(root: Path) -> None:
    assert Staging(root / "pages").add(1, {})


@pytest.mark.parametrize("write", [write_file, write_micro_batch, write_state, lock_and_write_state, write_page])
def test_each_new_name_is_durable(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path / "a/b/c")
    kept = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert tmp_path / "a/b/c" in kept
    assert {path.parent for path in kept} <= synced


def test_a_directory_that_exists_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("nothing is new"))
    create_directory(tmp_path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("file:///lake/a%20b", "/lake/a%20b"), ("file:/lake", "/lake"), ("/lake", "/lake"), ("file:x", "{}/file:x")],
)
def test_a_local_path_may_be_a_url(path: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Spark, which writes `file:/lake` in its messages, and where a percent sign stands for itself."""
    monkeypatch.chdir(tmp_path)
    assert local_path(path) == expected.format(tmp_path)
