"""What a start makes where nothing was, and takes away again when it fails before anybody could connect."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.directories import missing_directories
from tidelog.log.directory import LOCK

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk


class Fresh(NamedTuple):
    """Data directories in which nothing was before the start."""

    empty: list[str]
    """They were there."""
    missing: list[str]
    """They were not, nor those above them that are here too: each before those below it."""


def look_for_fresh(disk: "Disk", paths: Sequence[str]) -> Fresh | None:
    """None when there is anything in one of them, or that cannot be told: then a start removes nothing. Blocks."""
    try:
        return _look(disk, paths)
    except OSError:
        return None  # whoever opens it says why


def _look(disk: "Disk", paths: Sequence[str]) -> Fresh | None:
    there = [path for path in paths if disk.exists(path)]
    if any(not disk.is_dir(path) or disk.list(path) for path in there):
        return None
    return Fresh(there, missing_directories(disk, paths))


def is_fresh_still(disk: "Disk", paths: Sequence[str]) -> bool:
    """Whether the data directories, which are locked now, hold nothing else: another broker may have come and gone
    between the first look and the lock. Blocks.
    """
    try:
        return all(name == LOCK for path in paths for name in disk.list(path))
    except OSError:
        return False


def remove_made(disk: "Disk", fresh: Fresh, paths: Sequence[str]) -> None:
    """Take away what has come into the data directories `paths` since, and those that were not there. Blocks.

    Raises OSError.
    """
    for path in paths:
        for name in disk.list(path) if disk.exists(path) else ():
            child = f"{path}/{name}"
            if disk.is_dir(child):
                disk.remove_tree(child)
            else:
                disk.remove(child)
    for path in reversed(fresh.missing):
        if disk.exists(path) and not disk.list(path):  # somebody else may have come to use one above
            disk.remove_tree(path)
