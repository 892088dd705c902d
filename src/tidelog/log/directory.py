"""The data directory of one broker: its lock, whether it was left in order, checkpoints, partitions' directories.

Every method blocks; all but `open` and `close_clean` may run on any thread while the broker works, but those that write
checkpoints (`write_...`, `retire`, `remove_retired`, `give_up`, `make_way`, `expect`) one at a time.

What the checkpoints tell of a partition goes from them, durably, before a log is made under its name again: a log that
was younger than what they tell would be taken for one that has lost its end, or its start.

A log's start offset is on the disk before the first file below it goes, so a file that is missing above it is noticed.
A directory without that checkpoint, or from Kafka, which writes it now and then, begins with what its files say.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidelog.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    format_offsets,
    format_partition_metadata,
    format_properties,
    read_offsets,
    read_partition_metadata,
    read_properties,
)
from tidelog.log.errors import CorruptLog
from tidelog.log.file_kinds import CUT, DELETE_SUFFIX, Kind, aside_stem, file_kind, partition_of, retired_stem
from tidelog.log.indexes import IndexCache
from tidelog.log.partition_log import PartitionLog
from tidelog.log.segment import PASSING
from tidelog.model.ids import TopicPartition, uuid_text

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.runtime.interfaces import Disk, Lock

logger = logging.getLogger("tidelog.directory")

LOCK: Final = ".lock"
CLEAN_MARKER: Final = ".kafka_cleanshutdown"
STRAY_SUFFIX: Final = "-stray"
UNREADABLE: Final = b""
"""For a topic id."""


class DirectoryInUse(Exception):
    """Another broker runs in the directory. One line that says so."""


class InTheWay(Exception):
    """Something of an earlier topic of that name is there yet: `make_way`, then open the partition."""


class DataDirectory:
    """An open data directory. Only one process has it open at a time."""

    def __init__(self, disk: "Disk", path: str, lock: "Lock | None") -> None:
        self.path = path
        self.clean = disk.exists(f"{path}/{CLEAN_MARKER}")
        """Whether the last broker here stopped in order: its logs need no recovery."""
        self.blank = not disk.exists(f"{path}/{META_PROPERTIES}")
        """Whether no broker has worked here before."""
        self._disk = disk
        self._lock = lock
        self._cache = IndexCache()
        self._checkpoints: dict[str, Mapping[TopicPartition, int]] = {}
        """As they stand on the disk; those that are not there, or damaged, are missing."""
        self._latest: dict[str, Mapping[TopicPartition, int]] = {}
        """As they were last to be written, which a full disk may have kept from the disk."""
        self._recovery_points = self._read(RECOVERY_POINTS)
        self._recovery_points_known = RECOVERY_POINTS in self._checkpoints
        self._start_offsets = self._read(LOG_START_OFFSETS)
        if LOG_START_OFFSETS not in self._checkpoints:
            self._take_start_offsets_from_files()
        self._checkpoints[CLEANER_OFFSETS] = self._read_cleaner_offsets()
        self._latest.update(self._checkpoints)
        self._latest[LOG_START_OFFSETS] = dict(self._start_offsets)
        self._unnamed: dict[TopicPartition, None] = {}
        """Partitions whose entries are kept until the caller's checkpoints name them: they opened just now, or could
        not be opened.
        """
        self._retired: dict[TopicPartition, None] = {}
        """Of which nothing may be written any more, until a log of that name is made. What the disk tells of them goes
        with the next write of each checkpoint.
        """

    @classmethod
    def open(cls, disk: "Disk", path: str) -> "DataDirectory":
        """Make it if it is missing, lock it, and begin to use it. Raises DirectoryInUse, OSError."""
        disk.make_dirs(path)
        directory = cls.look(disk, path)
        try:
            directory.lock()
            directory.begin()
        except BaseException:
            directory.release()
            raise
        return directory

    @classmethod
    def look(cls, disk: "Disk", path: str) -> "DataDirectory":
        """Read what is in it, and change nothing. It is locked if it has a lock file; without one nobody uses it.

        Raises DirectoryInUse, OSError.
        """
        lock = _locked(disk, path) if disk.exists(f"{path}/{LOCK}") else None
        try:
            return cls(disk, path, lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    def lock(self) -> None:
        """Lock it, if `look` has not. Raises DirectoryInUse, OSError."""
        if self._lock is None:
            self._lock = _locked(self._disk, self.path)

    def begin(self) -> None:
        """From here on the directory is as after a crash, until `close_clean`. Raises OSError."""
        marker = f"{self.path}/{CLEAN_MARKER}"
        if self._disk.exists(marker):
            self._disk.remove(marker)
            self._disk.sync_dir(self.path)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint that is missing or damaged costs a longer scan, never a record."""
        try:
            offsets = read_offsets(self._disk, f"{self.path}/{name}")
        except CorruptLog as error:
            logger.warning("checkpoint ignored, logs are scanned whole reason=%s", error)
            self.clean = False
            offsets = None
        if offsets is not None:
            self._checkpoints[name] = dict(offsets)
        return offsets or {}

    def _read_cleaner_offsets(self) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self._disk, f"{self.path}/{CLEANER_OFFSETS}") or {}
        except CorruptLog as error:
            logger.warning("checkpoint ignored, logs are compacted from their start reason=%s", error)
            return {}

    def adopt_start_offsets(self) -> None:
        """Before Kafka's logs are opened here for the first time: where a log's files begin above its checkpoint, it
        begins with its files, from now on for good. Raises OSError.
        """
        self._take_start_offsets_from_files()
        self.write_start_offsets(self._start_offsets)

    def _take_start_offsets_from_files(self) -> None:
        for name in self._disk.list(self.path):
            key = partition_of(name)
            if key is None or not self._disk.is_dir(f"{self.path}/{name}"):
                continue
            kinds = map(file_kind, self._disk.list(f"{self.path}/{name}"))
            first = next((base_offset for kind, base_offset in kinds if kind is Kind.SEGMENT), 0)
            self._start_offsets[key] = max(self._start_offsets.get(key, 0), first)

    # Partitions

    def open_partition(
        self, topic: str, index: int, topic_id: bytes, config: "LogConfig", now_ms: int, *, new: bool = False
    ) -> PartitionLog:
        """Open or make the partition's log. `new`: nobody can have opened it before, its topic is made just now.

        Raises InTheWay; CorruptLog, OSError: then the checkpoints keep what they say of it, for the next start.
        """
        key = TopicPartition(topic, index)
        self._unnamed[key] = None
        path = f"{self.path}/{key}"
        known_id = self._read_id(path, new=new)
        if known_id != topic_id and (known_id is not None or self._of_another(key, path, new=new)):
            raise InTheWay(f"{path} is of an earlier topic of that name, or the checkpoints beside it tell of one")
        self._retired.pop(key, None)
        log = PartitionLog.open(
            self._disk,
            path,
            config,
            clean=self.clean,
            recovery_point=self._recovery_points.get(key, 0 if self._recovery_points_known else -1),
            log_start_offset=self._start_offsets.get(key, 0),
            now_ms=now_ms,
            cache=self._cache,
        )
        if known_id is None:
            self._disk.write_atomic(f"{path}/{PARTITION_METADATA}", format_partition_metadata(topic_id))
            self._disk.sync_dir(self.path)
        self._recovery_points[key], self._start_offsets[key] = log.recovery_point, log.log_start_offset
        if self.clean_offset(key) is not None:
            log.reader.may_have_holes = True
        return log

    def _read_id(self, path: str, *, new: bool) -> bytes | None:
        """None when there is none. Where a topic is made or deleted, one that cannot be read is UNREADABLE."""
        try:
            return read_partition_metadata(self._disk, path)
        except CorruptLog:
            if new:
                return UNREADABLE
            raise

    def _of_another(self, key: TopicPartition, path: str, *, new: bool) -> bool:
        """Whether a directory without an id, or what the checkpoints tell where there is none, is of an earlier topic.

        If not, the directory may have been lost, which must be said.
        """
        there = self._disk.exists(path)
        if new or key in self._retired:
            return there or self.tells_of(key)
        return not there and self.tells_of(key) and aside_stem(key) in map(_retired, self.retired())

    def tells_of(self, key: TopicPartition) -> bool:
        """Whether there is an entry of the partition, on the disk or for the next write."""
        return any(key in offsets for offsets in self._told())

    def entries(self) -> list[TopicPartition]:
        """Partitions of which there is an entry, on the disk or for the next write."""
        return list(dict.fromkeys(key for offsets in self._told() for key in list(offsets)))

    def _told(self) -> list[Mapping[TopicPartition, int]]:
        return [self._recovery_points, self._start_offsets, *list(self._checkpoints.values())]

    def make_way(self, key: TopicPartition, topic_id: bytes) -> None:
        """After InTheWay: put a directory of another topic than `topic_id` aside as `-stray`, once the checkpoints tell
        of it no more. Raises OSError.
        """
        if self.tells_of(key):
            self.give_up(key)
        path = f"{self.path}/{key}"
        known_id = self._read_id(path, new=True)
        if known_id != topic_id and self._disk.exists(path):
            stray = self._free_name(key, known_id or topic_id, STRAY_SUFFIX)
            # Of a deleted topic of that name, mostly; but a damaged id looks the same, so it is said loudly.
            logger.error("partition of another topic put aside path=%s as=%s", path, stray)
            self._disk.rename(path, stray)
            self._disk.sync_dir(self.path)

    def _free_name(self, key: TopicPartition, topic_id: bytes, ending: str) -> str:
        name = f"{self.path}/{aside_stem(key)}.{uuid_text(topic_id)}"
        number = 0
        while self._disk.exists(path := f"{name}{f'_{number}' if number else ''}{ending}"):
            number += 1
        return path

    def retire(
        self, logs: Mapping[TopicPartition, tuple[bytes, PartitionLog | None]]
    ) -> tuple[list[str], OSError | None]:
        """Put partitions of deleted topics out of the way: the topic's id, and the log unless it is not open. Where
        they are now, for `empty_retired` and `remove_retired`, and the first error, after all have been tried.

        A full disk is no hindrance: what its checkpoints tell goes before the directories that were put aside do.
        """
        failed: OSError | None = None
        try:
            # The checkpoints first: they must not tell of these logs when a topic of the same name comes.
            self.give_up(*logs)
        except OSError as error:
            logger.warning("old entries stay in the checkpoints for now path=%s reason=%s", self.path, error)
            failed = None if error.errno in PASSING else error
        retired = []
        for key, (topic_id, log) in logs.items():
            if log is not None:
                log.close(clean=False)
            try:
                path = self._put_aside(key, topic_id, is_open=log is not None)
            except OSError as error:
                # The next start finds a directory that no topic has; the next topic of that name puts it aside.
                logger.error("deleted partition not put aside partition=%s reason=%s", key, error)
                failed = failed or error
            else:
                retired += [path] if path is not None else []
        try:
            self._disk.sync_dir(self.path)
        except OSError as error:
            failed = failed or error
        return retired, failed

    def _put_aside(self, key: TopicPartition, topic_id: bytes, *, is_open: bool) -> str | None:
        """Rename the directory of a deleted partition; where it is, if it is to be removed. Raises OSError."""
        path = f"{self.path}/{key}"
        ending = DELETE_SUFFIX
        if not is_open:
            known_id = self._read_id(path, new=True)
            if known_id not in (None, UNREADABLE, topic_id) or not self._disk.exists(path):
                return None  # never made; or of a topic before that one, for `make_way`
            if known_id == UNREADABLE:
                ending = STRAY_SUFFIX  # whose it is cannot be told: not for us to remove
                logger.error("partition with an unreadable id put aside path=%s", path)
        target = self._free_name(key, topic_id, ending)
        self._disk.rename(path, target)
        return target if ending == DELETE_SUFFIX else None

    def give_up(self, *keys: TopicPartition) -> None:
        """Partitions leave: the checkpoints tell of them no more. Raises OSError, when all have been tried: then the
        next write of each does it.
        """
        for key in keys:
            self._recovery_points.pop(key, None)
            self._start_offsets.pop(key, None)
            self._unnamed.pop(key, None)
            self._retired[key] = None
        failed: OSError | None = None
        for name in list(self._checkpoints):
            try:
                self._write(name, self._latest[name])
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def expect(self, log: PartitionLog, clean_offset: int | None) -> None:
        """A log that was made elsewhere gets its place here, at once after this: the checkpoints tell of it already.

        `clean_offset`: up to where it is compacted, None for not at all. Raises OSError.
        """
        key = log.topic_partition
        self._retired.pop(key, None)
        self._unnamed[key] = None
        self._recovery_points[key], self._start_offsets[key] = log.recovery_point, log.log_start_offset
        # Beside all others, also where a full disk has cost the checkpoint: one that is there must be whole.
        for name, offset in ((RECOVERY_POINTS, log.recovery_point), (LOG_START_OFFSETS, log.log_start_offset)):
            self._write(name, {**self._latest.get(name, {}), key: offset})
        clean_offsets = {known: offset for known, offset in self._latest[CLEANER_OFFSETS].items() if known != key}
        if clean_offset is not None:
            clean_offsets[key] = clean_offset
        self._write(CLEANER_OFFSETS, clean_offsets)

    def open_future(
        self, path: str, config: "LogConfig", log_start_offset: int, topic_id: bytes, now_ms: int
    ) -> PartitionLog:
        """A new, empty log in the directory `path`, which is made. Raises CorruptLog, OSError."""
        self._disk.make_dirs(path)
        self._disk.write_atomic(f"{path}/{PARTITION_METADATA}", format_partition_metadata(topic_id))
        return PartitionLog.open(
            self._disk,
            path,
            config,
            clean=True,
            recovery_point=log_start_offset,
            log_start_offset=log_start_offset,
            now_ms=now_ms,
            cache=self._cache,
        )

    def reopen(self, log: PartitionLog, now_ms: int) -> PartitionLog:
        """A log that was closed in order and has got its place here since. Raises CorruptLog, OSError."""
        reopened = PartitionLog.open(
            self._disk,
            f"{self.path}/{log.topic_partition}",
            log.config,
            clean=True,
            recovery_point=log.recovery_point,
            log_start_offset=log.log_start_offset,
            now_ms=now_ms,
            cache=self._cache,
        )
        if self.clean_offset(log.topic_partition) is not None:
            reopened.reader.may_have_holes = True
        return reopened

    def retired(self) -> list[str]:
        """Directories of deleted partitions that are still there."""
        return [f"{self.path}/{name}" for name in self._disk.list(self.path) if name.endswith(DELETE_SUFFIX)]

    def empty_retired(self, path: str) -> None:
        """Take what is in it off the disk, which may take long. Raises OSError."""
        assert path.endswith(DELETE_SUFFIX)
        for name in self._disk.list(path):
            child = f"{path}/{name}"
            if self._disk.is_dir(child):
                self._disk.remove_tree(child)
            else:
                self._disk.remove(child)

    def remove_retired(self, path: str) -> None:
        """The last of it, once the checkpoints do not tell of it: while it is there, a start knows that what they tell
        is of no log that is missing. Raises OSError.
        """
        stem = _retired(path)
        key = None if stem is None else partition_of(stem)
        if key is not None and CUT in key.topic:
            key = next((known for known in self.entries() if aside_stem(known) == stem), None)
        if key is not None and self.tells_of(key) and not self._disk.exists(f"{self.path}/{key}"):
            self.give_up(key)
        self._disk.remove_tree(path)

    # Small files

    def write_identity(self, cluster_id: str, node_id: int, directory_id: str) -> None:
        """meta.properties, in the form of KRaft's version 1, once. Raises CorruptLog, OSError.

        `directory_id` is for a directory that has none yet (KIP-858).
        """
        path = f"{self.path}/{META_PROPERTIES}"
        properties = {"version": "1", "cluster.id": cluster_id, "node.id": str(node_id)}
        if self._disk.exists(path) and read_properties(self._disk.read(path), path) != properties:
            return  # it has an id, or is of Kafka's form from before KRaft, which has none
        self._disk.write_atomic(path, format_properties({**properties, "directory.id": directory_id}))

    def write_checkpoints(
        self,
        recovery_points: Mapping[TopicPartition, int],
        start_offsets: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
    ) -> None:
        """Persist them; files that would not change are left alone. Partitions that did not open keep their entries."""
        for key in [key for key in list(self._unnamed) if key in recovery_points]:
            del self._unnamed[key]
        self._write(RECOVERY_POINTS, {**self._kept(self._recovery_points), **recovery_points})
        self._write(LOG_START_OFFSETS, self._moved({**self._kept(self._start_offsets), **start_offsets}))
        self._write(HIGH_WATERMARKS, high_watermarks)

    def clean_offset(self, key: TopicPartition) -> int | None:
        """Up to where it is compacted, by the checkpoint as it stands on the disk."""
        return self._checkpoints[CLEANER_OFFSETS].get(key)

    def write_cleaner_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Those of other partitions stay as they are. Raises OSError."""
        self._write(CLEANER_OFFSETS, {**self._latest[CLEANER_OFFSETS], **offsets})

    def write_start_offsets(self, start_offsets: Mapping[TopicPartition, int]) -> None:
        """Persist them before files below them go. Raises OSError.

        On a full disk, which retention is to make room on, the checkpoint is removed: without it logs begin with their
        files.
        """
        try:
            self._write(LOG_START_OFFSETS, self._moved({**self._kept(self._start_offsets), **start_offsets}))
        except OSError as error:
            if error.errno not in PASSING:
                raise
            path = f"{self.path}/{LOG_START_OFFSETS}"
            if self._disk.exists(path):
                logger.warning("checkpoint removed, the disk is full path=%s", path)
                self._disk.remove(path)
            self._disk.sync_dir(self.path)
            self._checkpoints.pop(LOG_START_OFFSETS, None)

    @property
    def is_behind(self) -> bool:
        """Whether a full disk has kept a checkpoint from being written, or has cost one."""
        return any(self._checkpoints.get(name) != offsets for name, offsets in list(self._latest.items()))

    def _kept(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {key: offsets[key] for key in list(self._unnamed) if key in offsets}

    def _moved(self, start_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {key: offset for key, offset in start_offsets.items() if offset > 0}

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        if self._retired:
            offsets = {key: offset for key, offset in offsets.items() if key not in self._retired}
        self._latest[name] = offsets
        if self._checkpoints.get(name) != offsets:
            self._disk.write_atomic(f"{self.path}/{name}", format_offsets(offsets))
            self._checkpoints[name] = offsets

    # The end

    def close_clean(self) -> None:
        """Every log is flushed and closed: say so to the next start, and unlock."""
        self._disk.write_atomic(f"{self.path}/{CLEAN_MARKER}", b'{"version":0,"brokerEpoch":-1}')
        self.release()

    def release(self) -> None:
        """Unlock; the directory is as after a crash unless `close_clean` was called."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _locked(disk: "Disk", path: str) -> "Lock":
    try:
        return disk.lock(f"{path}/{LOCK}")
    except BlockingIOError:
        raise DirectoryInUse(
            f"another broker runs in {path}: stop it, or choose another directory for this one"
        ) from None


def _retired(path: str) -> str | None:
    return retired_stem(path.rpartition("/")[2])
