"""Parse and format the small text files of a data directory, in Kafka's formats. Below, `/` separates lines.

    recovery-point-, log-start-, replication- and cleaner-offset-checkpoint:
        0 / number of entries / TOPIC PARTITION OFFSET ...
    leader-epoch-checkpoint (one in each partition):  0 / number of entries / EPOCH FIRST_OFFSET ...
    meta.properties: Java properties (cluster.id, node.id or broker.id, version, directory.id)
    partition.metadata (one in each partition): version: 0 / topic_id: 22 characters

If a file is corrupt, the function that parses it raises CorruptLog with the position in bytes. Kafka may leave empty
files, so an empty checkpoint is accepted. It has no entries.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidelog.config.properties import parse_properties
from tidelog.log.errors import CorruptLog
from tidelog.log.segment import TEMPORARY_ERRORS
from tidelog.model.ids import TopicPartition, uuid_from_text, uuid_text

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"

VERSION = 0


def _line(key: TopicPartition, offset: int) -> str:
    topic, index = key
    return f"{topic} {index} {offset}"


def _join_lines(lines: list[str]) -> bytes:
    return "\n".join([f"{VERSION}", f"{len(lines)}", *lines, ""]).encode()


class OffsetsCopy(dict[TopicPartition, int]):
    """A copy of the offsets of all partitions. It also knows which partitions have changed since the previous copy.

    Formatting ten thousand entries takes several milliseconds, in which the event loop waits for the interpreter lock
    again and again. So a checkpoint that is written every second formats only the entries that changed.
    """

    __slots__ = ("_previous", "_touched", "_version")

    def __init__(
        self,
        offsets: Mapping[TopicPartition, int],
        version: object,
        previous: object,
        touched: Iterable[TopicPartition],
    ) -> None:
        """`version` identifies this copy, and `previous` identifies the copy before it. `touched` contains
        every key that was set or removed between the two copies.
        """
        super().__init__(offsets)
        self._version = version
        self._previous = previous
        self._touched = touched

    def changes_since(self, older: Mapping[TopicPartition, int] | None) -> list[TopicPartition] | None:
        """Return the keys that have different offsets in this copy and in `older`, or that only one of the two
        contains; None if `older` is not the copy directly before this one.
        """
        if isinstance(older, OffsetsCopy) and older._version is self._previous:
            return [key for key in self._touched if older.get(key) != self.get(key)]
        return None


class UncertainOffsets(dict[TopicPartition, int]):
    """The entries that a checkpoint possibly has after a write that failed: the new file may be in place although its
    name could not be made durable. It equals nothing, so every next write of the checkpoint is carried out.
    """

    def __init__(self, older: Mapping[TopicPartition, int], newer: Mapping[TopicPartition, int]) -> None:
        """Contains the entries of both contents. If both have an entry of a partition, the higher offset is taken."""
        super().__init__(newer)
        for key, offset in older.items():
            self[key] = max(offset, self.get(key, offset))
        certain = older._certain if isinstance(older, UncertainOffsets) else older
        self._certain: dict[TopicPartition, int] = {
            key: min(offset, certain[key]) for key, offset in newer.items() if key in certain
        }

    def certain(self, key: TopicPartition) -> int | None:
        """Return the partition's offset on the disk, or a lower one; None if the disk possibly has no entry of it."""
        return self._certain.get(key)

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True


class CheckpointText:
    """Formats one checkpoint file. It keeps the line of each entry, so only changed entries are formatted again."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[TopicPartition, str] = {}

    def format(self, offsets: Mapping[TopicPartition, int], changed: Iterable[TopicPartition] | None) -> bytes:
        """Return the text of a checkpoint file with these offsets.

        `changed` contains the keys whose offsets were changed, added or removed since the previous call. It is None if
        these keys are unknown.
        """
        lines = self._lines
        if changed is None:
            self._lines = lines = {key: _line(key, offset) for key, offset in offsets.items()}
            changed = ()
        for key in changed:
            offset = offsets.get(key)
            if offset is None:
                lines.pop(key, None)
            else:
                lines[key] = _line(key, offset)
        return _join_lines(list(lines.values()))


def overwrite(disk: "Disk", path: str, data: bytes) -> bool:
    """Replace the content of a checkpoint without a second file, for a disk that has no space for one. Blocks.

    If the new content needs no more blocks than the old one, most file systems need no free space for this. Returns
    False if there is not even enough space for this, or after another temporary error; the file is then possibly
    damaged. Raises any other OSError.

    The version at the beginning of the file is written last. If the broker is killed before, the file counts as
    damaged, and never as a checkpoint with wrong offsets.
    """
    file = disk.open(path)
    try:
        file.pwrite(b"#", 0)
        file.sync()
        file.pwrite(data[1:], 1)
        file.truncate(len(data))
        file.sync()
        file.pwrite(data[:1], 0)
        file.sync()
    except OSError as error:
        if error.errno not in TEMPORARY_ERRORS:
            raise
        return False
    finally:
        file.close()
    return True


def parse_offsets(data: bytes, path: str) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for position, words in _entries(data, path, 3):
        index, offset = _number(words[1], path, position), _number(words[2], path, position)
        offsets[TopicPartition(words[0], index)] = offset
    return offsets


def format_epochs(entries: list[tuple[int, int]]) -> bytes:
    lines = [f"{VERSION}", f"{len(entries)}", *(f"{epoch} {start}" for epoch, start in entries)]
    return ("\n".join(lines) + "\n").encode()


def parse_epochs(data: bytes, path: str) -> list[tuple[int, int]]:
    """Return (leader epoch, first offset) pairs in the order of the file."""
    return [
        (_number(words[0], path, position), _number(words[1], path, position))
        for position, words in _entries(data, path, 2)
    ]


def read_offsets(disk: "Disk", path: str) -> dict[TopicPartition, int] | None:
    """Return the offsets in a checkpoint file; None if there is no file."""
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return None
    return parse_offsets(data, path)


def format_properties(properties: Mapping[str, str]) -> bytes:
    """Format Java properties. Names and values must not contain characters that need escaping."""
    for name, value in properties.items():
        assert not set("\\=:#! \n\r\t") & set(name + value), f"{name} needs escaping"
    return "".join(["#\n", *(f"{name}={value}\n" for name, value in properties.items())]).encode()


def read_properties(data: bytes, path: str) -> dict[str, str]:
    """Parse `meta.properties`."""
    try:
        return {entry.name: entry.value for entry in parse_properties(data.decode())}
    except ValueError as error:
        raise CorruptLog(path, 0, f"the properties cannot be read: {error}") from error


def format_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: {VERSION}\ntopic_id: {uuid_text(topic_id)}".encode()


def parse_partition_metadata(data: bytes, path: str) -> bytes:
    """Parse `partition.metadata` and return the topic id (16 bytes)."""
    position = 0
    properties: dict[str, str] = {}
    for raw in data.split(b"\n"):
        name, _, value = _text(raw, path, position).partition(":")
        properties[name.strip()] = value.strip()
        position += len(raw) + 1
    if properties.get("version") != "0" or "topic_id" not in properties:
        raise CorruptLog(path, 0, "expected the lines 'version: 0' and 'topic_id: ...'")
    try:
        return uuid_from_text(properties["topic_id"])
    except ValueError as error:
        raise CorruptLog(path, 0, str(error)) from error


def read_partition_metadata(disk: "Disk", directory: str) -> bytes | None:
    """Return the topic id of a partition's directory; None if it has no `partition.metadata`."""
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return None
    return parse_partition_metadata(data, path)


def _entries(data: bytes, path: str, words_per_line: int) -> list[tuple[int, list[str]]]:
    """Return (position, words) of each entry. Before the entries, a line with the version and a line with the number
    of entries are expected.
    """
    if not data.strip():
        return []
    lines = data.split(b"\n")
    if lines[0].strip() != b"0":
        raise CorruptLog(path, 0, f"the checkpoint has version {lines[0][:20]!r}; only 0 is known")
    position = len(lines[0]) + 1
    stated = _number(_text(lines[1], path, position) if len(lines) > 1 else "", path, position)
    position += len(lines[1]) + 1
    entries = []
    for raw in lines[2:]:
        words = _text(raw, path, position).split()
        if words:
            if len(words) != words_per_line:
                raise CorruptLog(path, position, f"expected {words_per_line} words, found {raw[:80]!r}")
            entries.append((position, words))
        position += len(raw) + 1
    if len(entries) != stated:
        raise CorruptLog(path, 0, f"the checkpoint states {stated} entries, but has {len(entries)}")
    return entries


def _number(word: str, path: str, position: int) -> int:
    try:
        if len(word) <= 20:
            return int(word)
    except ValueError:
        pass
    raise CorruptLog(path, position, f"expected a number, found {word[:30]!r}")


def _text(raw: bytes, path: str, position: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CorruptLog(path, position, "this is not text") from error
