"""The choice of the metadata store, and the marks in data directories."""

import asyncio
import sys
from pathlib import Path

import pytest

from tidelog.broker.metadata_store import (
    check_directories,
    is_elsewhere,
    make_store,
    refuse_empty_store,
    write_marks,
)
from tidelog.config.metadata_store import parse_store_address
from tidelog.log.directories import UnusableDirectories
from tidelog.metadata.store import StoreFailed
from tidelog.runtime.disk import LocalDisk
from tidelog.runtime.real import real_runtime

ETCD = parse_store_address("etcd://a:1/x")
LOCAL = parse_store_address("sqlite:")


def test_without_kazoo_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo", None)

    async def make() -> None:
        runtime = real_runtime()
        try:
            with pytest.raises(StoreFailed, match=r"pip install 'tidelog\[zookeeper\]'"):
                make_store(parse_store_address("zookeeper://a"), "", runtime)
        finally:
            await runtime.close()

    asyncio.run(make())


def test_the_default_file_may_be_named_explicitly() -> None:
    assert not is_elsewhere(LOCAL, ["/a", "/b"])
    assert not is_elsewhere(parse_store_address("sqlite:/a/metadata.sqlite"), ["/a", "/b"])
    assert is_elsewhere(parse_store_address("sqlite:/c/metadata.sqlite"), ["/a", "/b"])
    assert is_elsewhere(ETCD, ["/a"])


def test_a_marked_directory_is_refused_without_its_store(tmp_path: Path) -> None:
    disk, paths = LocalDisk(), [str(tmp_path / "a"), str(tmp_path / "b")]
    for path in paths:
        disk.make_dirs(path)
    assert not check_directories(disk, ETCD, paths, elsewhere=True)
    write_marks(disk, ETCD, paths)
    assert check_directories(disk, ETCD, paths[1:], elsewhere=True)
    with pytest.raises(UnusableDirectories, match=r"set metadata\.store=etcd://a:1/x"):
        check_directories(disk, LOCAL, paths, elsewhere=False)
    with pytest.raises(UnusableDirectories, match="restore the store"):
        refuse_empty_store(disk, ETCD, paths[0])
    moved = parse_store_address("etcd://b:2/x")  # the servers may move
    assert check_directories(disk, moved, paths, elsewhere=True)
    write_marks(disk, moved, paths)
    assert (tmp_path / "b/metadata.store").read_text() == "etcd://b:2/x\n"


def test_a_directory_with_its_own_metadata_is_refused_with_a_store_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").write_bytes(b"")
    with pytest.raises(UnusableDirectories, match="remove the setting"):
        check_directories(LocalDisk(), ETCD, [str(tmp_path)], elsewhere=True)
