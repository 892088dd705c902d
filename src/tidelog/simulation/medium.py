"""The content of a simulated disk: the cached view that processes see, and the content that a power cut would leave.

Within the rules of POSIX, this file system is deliberately less reliable than any real one. Bytes are durable after the
file's sync, and names are durable after the sync of their directory. Of the changes after the last sync, any part may
survive a power cut: a change may survive although an earlier one is lost. Only changes of the same file's name keep
their order.
"""

import errno
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

SECTOR_BYTES = 512
"""The unit that a disk writes atomically."""


@dataclass(slots=True, eq=False)
class Inode:
    """A file: its bytes as processes see them, its durable bytes, and the changes since the last sync."""

    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Each change: (position, data) for a write, (size, None) for a truncation."""
    modified_ms: int = 0

    def write(self, data: bytes, position: int, now_ms: int) -> None:
        _overlay(self.cached, data, position)
        self.unsynced.append((position, data))
        self.modified_ms = now_ms

    def truncate(self, size: int, now_ms: int) -> None:
        _resize(self.cached, size)
        self.unsynced.append((size, None))
        self.modified_ms = now_ms

    def sync(self) -> None:
        for position, data in self.unsynced:
            if data is None:
                _resize(self.durable, position)
            else:
                _overlay(self.durable, data, position)
        self.unsynced.clear()

    def forget_unsynced(self) -> None:
        """Drop the unsynced changes after a failed sync. In this case a real kernel marks the pages clean, so they are
        never written.
        """
        self.unsynced.clear()

    def survivor(self, rng: random.Random, odds: "PowerCutOdds") -> "Inode":
        """Return the file as it is after a power cut."""
        content = bytearray(self.durable)
        size = len(content)
        sizes = [size]
        for position, data in self.unsynced:
            if data is None:
                size = position
                if rng.random() < odds.keep:
                    _resize(content, position)
            else:
                size = max(size, position + len(data))
                pieces = _survivors(data, position, rng, odds)
                odds.effects[_effect(len(data), pieces)] += 1
                for piece, at in pieces:
                    _overlay(content, piece, at)
            sizes.append(size)
        if self.unsynced and rng.random() < odds.wrong_size:
            # The size becomes durable independently of the bytes: the file may be too short, or end with zeros.
            _resize(content, rng.choice(sizes))
        return Inode(bytearray(content), content, modified_ms=self.modified_ms)


@dataclass(slots=True, eq=False)
class Directory:
    """A directory: the names as processes see them, and the durable names."""

    cached: dict[str, "Node"] = field(default_factory=dict)
    durable: dict[str, "Node"] = field(default_factory=dict)


Node: TypeAlias = Inode | Directory


@dataclass(slots=True, eq=False)
class NameChange:
    """One change of names that is not yet durable. After a power cut, the change is either complete or lost."""

    node: Node
    """The file or directory that was created, removed or renamed."""
    removed: tuple[Directory, str] | None
    """The directory and the name that the change removes; None for a creation."""
    added: tuple[Directory, str] | None
    """The directory and the name that the change adds; None for a removal."""

    def affects(self, directory: Directory) -> bool:
        return any(entry is not None and entry[0] is directory for entry in (self.removed, self.added))

    def make_durable(self) -> None:
        if self.removed is not None:
            self.removed[0].durable.pop(self.removed[1], None)
        if self.added is not None:
            self.added[0].durable[self.added[1]] = self.node


@dataclass(slots=True, frozen=True)
class PowerCutOdds:
    """Probabilities of the effects of a power cut on unsynced changes."""

    keep: float
    """Probability that a change survives completely."""
    torn: float
    """Probability that a write survives in part if it does not survive completely."""
    wrong_size: float
    """Probability that a file with unsynced changes gets a random one of its sizes since the last sync."""
    effects: Counter[str] = field(default_factory=Counter)
    """Numbers of unsynced writes that were kept, lost or torn, by the name of the effect."""

    @staticmethod
    def draw(rng: random.Random) -> "PowerCutOdds":
        """Choose the probabilities at random. The extremes (everything lost, everything kept) find most defects, so
        they are chosen often.
        """
        draw = rng.random()
        if draw < 0.25:
            return PowerCutOdds(keep=0.0, torn=0.0, wrong_size=0.0)
        if draw < 0.35:
            return PowerCutOdds(keep=1.0, torn=0.0, wrong_size=0.0)
        return PowerCutOdds(keep=rng.random(), torn=rng.random(), wrong_size=rng.choice((0.0, 0.0, 0.3)))


class Medium:
    """A file system. Paths are absolute. The methods raise the same errors as the system calls."""

    def __init__(self) -> None:
        self.root = Directory()
        self.unsynced_names: list[NameChange] = []
        self.capacity_bytes: int | None = None
        self.locked: dict[str, object] = {}
        """The holder of each lock, by path."""
        self.power_cut_effects: Counter[str] = Counter()
        """The effects of the power cut that produced this medium; see `PowerCutOdds.effects`."""

    def node(self, path: str) -> Node:
        node: Node = self.root
        for name in _parts(path):
            if not isinstance(node, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if name not in node.cached:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = node.cached[name]
        return node

    def inode(self, path: str) -> Inode:
        node = self.node(path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def directory(self, path: str) -> Directory:
        node = self.node(path)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def create(self, path: str, node: Node) -> None:
        """Create a name for a new node. The parent directory must exist and the name must not exist."""
        parent, name = self._parent_and_name(path)
        assert name not in parent.cached
        self._change(NameChange(node, None, (parent, name)))

    def rename(self, source: str, target: str) -> None:
        node = self.node(source)
        new_parent, new_name = self._parent_and_name(target)
        existing = new_parent.cached.get(new_name)
        if existing is node:
            return
        if isinstance(existing, Directory) and (existing.cached or not isinstance(node, Directory)):
            error = errno.ENOTEMPTY if isinstance(node, Directory) else errno.EISDIR
            raise OSError(error, os.strerror(error), target)
        if isinstance(existing, Inode) and isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target)
        self._change(NameChange(node, self._parent_and_name(source), (new_parent, new_name)))

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory."""
        node = self.node(path)
        if isinstance(node, Directory) and node.cached:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._change(NameChange(node, self._parent_and_name(path), None))

    def sync_names(self, directory: Directory) -> None:
        """Make all changes of names in this directory durable. If one of these changes concerns the name of a file,
        earlier changes of the same file's name in other directories also become durable. The name of a
        subdirectory is treated like the name of a file.
        """
        nodes: list[Node] = []
        remaining: list[NameChange] = []
        synced: list[NameChange] = []
        for change in reversed(self.unsynced_names):
            if change.affects(directory) or any(change.node is node for node in nodes):
                nodes.append(change.node)
                synced.append(change)
            else:
                remaining.append(change)
        for change in reversed(synced):
            change.make_durable()
        self.unsynced_names = remaining[::-1]

    def used_bytes(self) -> int:
        def size(node: Node) -> int:
            if isinstance(node, Inode):
                return len(node.cached)
            return sum(size(child) for child in node.cached.values())

        return size(self.root)

    def survivor(self, rng: random.Random, odds: PowerCutOdds | None = None) -> "Medium":
        """Return a new medium with the content that a power cut leaves; `self` is not changed. If `odds` is None, the
        odds are chosen at random.
        """
        odds = odds or PowerCutOdds.draw(rng)
        lost: list[Node] = []
        kept: list[NameChange] = []
        for change in self.unsynced_names:
            # A change of a file's name cannot survive if an earlier change of the same file's name is lost, since a
            # file never has two names.
            if any(change.node is node for node in lost) or rng.random() >= odds.keep:
                lost.append(change.node)
            else:
                kept.append(change)
        medium = Medium()
        medium.capacity_bytes = self.capacity_bytes
        medium.root = _surviving_directory(self.root, kept, rng, odds)
        medium.power_cut_effects = odds.effects
        return medium

    def files(self) -> Iterator[tuple[str, Inode]]:
        """Yield every file with its path, in the order of the paths."""

        def walk(directory: Directory, path: str) -> Iterator[tuple[str, Inode]]:
            for name, node in sorted(directory.cached.items()):
                if isinstance(node, Directory):
                    yield from walk(node, f"{path}/{name}")
                else:
                    yield f"{path}/{name}", node

        return walk(self.root, "")

    def _parent_and_name(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self.directory(parent), name

    def _change(self, change: NameChange) -> None:
        if change.removed is not None:
            del change.removed[0].cached[change.removed[1]]
        if change.added is not None:
            change.added[0].cached[change.added[1]] = change.node
        self.unsynced_names.append(change)


def _parts(path: str) -> list[str]:
    if not path.startswith("/") and path:
        raise ValueError(f"not an absolute path: {path}")
    return [part for part in path.split("/") if part]


def _surviving_directory(
    directory: Directory, kept: list[NameChange], rng: random.Random, odds: PowerCutOdds
) -> Directory:
    entries = dict(directory.durable)
    for change in kept:
        if change.removed is not None and change.removed[0] is directory:
            entries.pop(change.removed[1], None)
        if change.added is not None and change.added[0] is directory:
            entries[change.added[1]] = change.node
    survivors: dict[str, Node] = {}
    for name in sorted(entries):
        node = entries[name]
        if isinstance(node, Directory):
            survivors[name] = _surviving_directory(node, kept, rng, odds)
        else:
            survivors[name] = node.survivor(rng, odds)
    return Directory(survivors, dict(survivors))


def _survivors(data: bytes, position: int, rng: random.Random, odds: PowerCutOdds) -> list[tuple[bytes, int]]:
    """Return the pieces of one write that survive, with their positions."""
    if rng.random() < odds.keep:
        return [(data, position)]
    if rng.random() >= odds.torn:
        return []
    pieces = []
    start = 0
    while start < len(data):
        end = min(start + SECTOR_BYTES - (position + start) % SECTOR_BYTES, len(data))
        if rng.random() < 0.5:
            pieces.append((data[start:end], position + start))
        start = end
    return pieces


def _effect(size: int, pieces: list[tuple[bytes, int]]) -> str:
    """Return the name of a power cut's effect on a write of `size` bytes. `pieces` are the parts that survive."""
    if not pieces:
        return "lost writes"
    return "torn writes" if sum(len(piece) for piece, _ in pieces) < size else "kept writes"


def _overlay(content: bytearray, data: bytes, position: int) -> None:
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
