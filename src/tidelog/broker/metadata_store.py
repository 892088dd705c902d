"""Create the metadata store that a broker uses (`metadata.store`), and check that the broker's data directories
belong to this store.

If the store is not the file metadata.sqlite in a data directory, the broker writes a mark into each of its data
directories. Without the mark, a later start without the setting metadata.store would create an empty store, and would
lose every topic.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.log.directories import UnusableDirectories
from tidelog.log.file_kinds import METADATA_STORE, METADATA_STORE_MARK
from tidelog.metadata.sqlite import SqliteStore

if TYPE_CHECKING:
    from tidelog.config.metadata_store import StoreAddress
    from tidelog.metadata.store import Store
    from tidelog.runtime.interfaces import Disk, Runtime


def make_store(address: "StoreAddress", path: str, runtime: "Runtime", *, node_id: int = 0) -> "Store":
    """Return the store at `address`. If `address` is SQLite without a path, the store is the file `path`.

    With etcd, the broker's `node_id` decides which server the store uses first.
    """
    if address.kind == "zookeeper":
        from tidelog.metadata.zookeeper import ZooKeeperStore

        return ZooKeeperStore(str(address), list(address.servers), address.path, runtime)
    if address.kind == "etcd":
        from tidelog.metadata.etcd import EtcdStore

        return EtcdStore(str(address), list(address.servers), address.path, runtime, first_server=node_id)
    return SqliteStore(address.path or path, runtime.clock, runtime.tasks, runtime.disk)


def is_elsewhere(address: "StoreAddress", paths: Sequence[str]) -> bool:
    """Return whether the store is something other than the store file in one of the data directories `paths`."""
    return address.kind != "sqlite" or address.path not in ("", *(f"{path}/{METADATA_STORE}" for path in paths))


def check_directories(disk: "Disk", address: "StoreAddress", paths: Sequence[str], *, elsewhere: bool) -> bool:
    """Return whether one of the directories has a mark. Blocks.

    `elsewhere` is the result of `is_elsewhere`. Raises UnusableDirectories if a directory's metadata is in another
    store: if `elsewhere` is False and a directory has a mark, or if `elsewhere` is True and a directory has a store
    file.
    """
    marks = {path: f"{path}/{METADATA_STORE_MARK}" for path in paths if disk.exists(f"{path}/{METADATA_STORE_MARK}")}
    for path, mark in marks.items():
        if not elsewhere:
            stored_address = disk.read(mark).decode(errors="replace").strip()
            raise UnusableDirectories(
                f"the metadata of {path} is in {stored_address}: set metadata.store={stored_address}"
            )
    for path in paths:
        if elsewhere and disk.exists(f"{path}/{METADATA_STORE}"):
            raise UnusableDirectories(
                f"the metadata of {path} is in its file {METADATA_STORE}, but metadata.store is set to {address}: "
                "remove the setting, or choose an empty or a new directory (--data)"
            )
    return bool(marks)


def refuse_empty_store(disk: "Disk", address: "StoreAddress", path: str) -> None:
    """Raise UnusableDirectories, unless the store is a SQLite file that exists. Blocks.

    Called if the directory has a mark, but no metadata was found in the store: the store has lost its metadata, or it
    is not the store to which the directory belongs.
    """
    if address.kind == "sqlite" and disk.exists(address.path):
        # The file may have metadata that was not read yet: after a crash, SQLite must write to the file before SQLite
        # can read the file, but the checks before the start change no file. The start reads the file later.
        return
    raise UnusableDirectories(
        f"{address} has no metadata, but {path} has data: correct metadata.store, or restore the store from a backup"
    )


def write_marks(disk: "Disk", address: "StoreAddress", paths: Sequence[str]) -> None:
    """Mark the directories. Blocks. Raises OSError."""
    content = f"{address}\n".encode()
    for path in paths:
        mark = f"{path}/{METADATA_STORE_MARK}"
        if not disk.exists(mark) or disk.read(mark) != content:
            disk.write_atomic(mark, content)
