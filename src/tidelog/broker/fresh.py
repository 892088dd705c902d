"""Data directories that were missing or empty before the broker's start. If the start fails before a client could
connect, all files that the start has created in these directories are removed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.directories import missing_directories
from tidelog.log.directory import LOCK

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk


class FreshDirectories(NamedTuple):
    """The data directories of a broker, if all of them were empty or missing before the start."""

    empty: list[str]
    """Directories that existed and were empty."""
    missing: list[str]
    """Directories that did not exist, with their missing parents. Each parent comes before its children."""


def find_fresh_directories(disk: "Disk", paths: Sequence[str]) -> FreshDirectories | None:
    """Return the directories, or None if one of them is not empty or cannot be read. If the result is None, a failed
    start removes no files. Blocks.
    """
    try:
        return _inspect(disk, paths)
    except OSError:
        return None  # the code that opens the directory reports the error


def _inspect(disk: "Disk", paths: Sequence[str]) -> FreshDirectories | None:
    existing = [path for path in paths if disk.exists(path)]
    if any(not disk.is_dir(path) or disk.list(path) for path in existing):
        return None
    return FreshDirectories(existing, missing_directories(disk, paths))


def are_still_fresh(disk: "Disk", paths: Sequence[str]) -> bool:
    """Return whether the data directories, which are locked now, contain only the lock file. Another broker may have
    used them between the first check and the lock. Blocks.
    """
    try:
        return all(name == LOCK for path in paths for name in disk.list(path))
    except OSError:
        return False


def remove_created_files(disk: "Disk", fresh: FreshDirectories, paths: Sequence[str]) -> None:
    """Remove the content of the data directories `paths`, and the directories that did not exist before the start.
    Blocks.
    """
    for path in paths:
        for name in disk.list(path) if disk.exists(path) else ():
            child = f"{path}/{name}"
            if disk.is_dir(child):
                disk.remove_tree(child)
            else:
                disk.remove(child)
    for path in reversed(fresh.missing):
        if disk.exists(path) and not disk.list(path):  # another program may use a parent directory now
            disk.remove_tree(path)
