"""The data directory of one broker: its lock, whether it was left in order, checkpoints, partitions' directories.

Every method blocks; all but `open` and `close_clean` may run on any thread while the broker works, but those that write
checkpoints (`write_...`, `retire_partition`, `give_up`, `expect`) one at a time.

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
from tidelog.log.file_kinds import Kind, file_kind, partition_of
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
DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"


class DirectoryInUse(Exception):
    """Another broker runs in the directory. One line that says so."""


class DataDirectory:
    """An open data directory. Only one process has it open at a time."""

    def __init__(self, disk: "Disk", path: str, lock: "Lock", *, clean: bool) -> None:
        self.path = path
        self.clean = clean
        """Whether the last broker here stopped in order: its logs need no recovery."""
        self.blank = not disk.exists(f"{path}/{META_PROPERTIES}")
        """Whether no broker has worked here before."""
        self._disk = disk
        self._lock: Lock | None = lock
        self._cache = IndexCache()
        self._checkpoints: dict[str, Mapping[TopicPartition, int]] = {}
        """As they stand on the disk; those that are not there, or damaged, are missing."""
        self._recovery_points = self._read(RECOVERY_POINTS)
        self._recovery_points_known = RECOVERY_POINTS in self._checkpoints
        self._start_offsets = self._read(LOG_START_OFFSETS)
        if LOG_START_OFFSETS not in self._checkpoints:
            self._take_start_offsets_from_files()
        self._clean_offsets = self._read_cleaner_offsets()
        self._checkpoints[CLEANER_OFFSETS] = dict(self._clean_offsets)
        self._unnamed: dict[TopicPartition, None] = {}
        """Partitions whose entries are kept until the caller's checkpoints name them: they opened just now, or could
        not be opened.
        """
        self._retired: dict[TopicPartition, None] = {}

    @classmethod
    def open(cls, disk: "Disk", path: str) -> "DataDirectory":
        """Make it if it is missing, lock it. Raises DirectoryInUse, OSError."""
        disk.make_dirs(path)
        try:
            lock = disk.lock(f"{path}/{LOCK}")
        except BlockingIOError:
            raise DirectoryInUse(
                f"another broker runs in {path}: stop it, or choose another directory for this one"
            ) from None
        try:
            marker = f"{path}/{CLEAN_MARKER}"
            clean = disk.exists(marker)
            directory = cls(disk, path, lock, clean=clean)
            if clean:
                # From here on the directory is as after a crash, until `close_clean`.
                disk.remove(marker)
                disk.sync_dir(path)
        except BaseException:
            lock.release()
            raise
        return directory

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

    def open_partition(self, topic: str, index: int, topic_id: bytes, config: "LogConfig", now_ms: int) -> PartitionLog:
        """Open or make the partition's log. A directory of another topic of that name is put aside as `-stray`.

        Raises CorruptLog, OSError; then the checkpoints keep what they say of it, for the next start.
        """
        key = TopicPartition(topic, index)
        self._unnamed[key] = None
        path = f"{self.path}/{key}"
        known_id = read_partition_metadata(self._disk, path)
        if known_id is not None and known_id != topic_id:
            stray = f"{self.path}/{key}.{uuid_text(known_id)}{STRAY_SUFFIX}"
            # Of a deleted topic of that name, mostly; but a damaged id looks the same, so it is said loudly.
            logger.error("partition of another topic put aside path=%s as=%s", path, stray)
            self._disk.rename(path, stray)
            self._disk.sync_dir(self.path)
            known_id = None
            self.is_elsewhere(key)
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
        self._retired.pop(key, None)
        return log

    def retire_partition(self, log: PartitionLog, topic_id: bytes) -> str:
        """Put a deleted topic's partition out of the way; `remove_retired` takes it off the disk later."""
        # The checkpoints first: they must not tell of this log when a topic of the same name comes.
        self.give_up(log.topic_partition)
        log.close(clean=False)
        retired = f"{log.directory}.{uuid_text(topic_id)}{DELETE_SUFFIX}"
        self._disk.rename(log.directory, retired)
        self._disk.sync_dir(self.path)
        return retired

    def give_up(self, key: TopicPartition) -> None:
        """A partition leaves: the checkpoints tell of it no more. Raises OSError."""
        self.is_elsewhere(key)
        self._unnamed.pop(key, None)
        self._retired[key] = None
        for name, offsets in list(self._checkpoints.items()):
            self._write(name, offsets)

    def is_elsewhere(self, key: TopicPartition) -> None:
        """Another directory holds it: what the checkpoints tell of it is old."""
        self._recovery_points.pop(key, None)
        self._start_offsets.pop(key, None)
        self._clean_offsets.pop(key, None)

    def expect(self, log: PartitionLog, clean_offset: int | None) -> None:
        """A log that was made elsewhere gets its place here, at once after this: the checkpoints tell of it already.

        `clean_offset`: up to where it is compacted, None for not at all. Raises OSError.
        """
        key = log.topic_partition
        self._retired.pop(key, None)
        self._unnamed[key] = None
        self._recovery_points[key], self._start_offsets[key] = log.recovery_point, log.log_start_offset
        for name, offset in ((RECOVERY_POINTS, log.recovery_point), (LOG_START_OFFSETS, log.log_start_offset)):
            self._write(name, {**self._checkpoints.get(name, {}), key: offset})
        clean_offsets = {known: offset for known, offset in self._checkpoints[CLEANER_OFFSETS].items() if known != key}
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
        return PartitionLog.open(
            self._disk,
            f"{self.path}/{log.topic_partition}",
            log.config,
            clean=True,
            recovery_point=log.recovery_point,
            log_start_offset=log.log_start_offset,
            now_ms=now_ms,
            cache=self._cache,
        )

    def retired(self) -> list[str]:
        """Directories of deleted partitions that are still there."""
        return [f"{self.path}/{name}" for name in self._disk.list(self.path) if name.endswith(DELETE_SUFFIX)]

    def remove_retired(self, path: str) -> None:
        assert path.endswith(DELETE_SUFFIX)
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

    def cleaner_offsets(self) -> dict[TopicPartition, int]:
        """Up to where each compacted log was clean when the last broker here wrote it down."""
        return dict(self._clean_offsets)

    def clean_offset(self, key: TopicPartition) -> int | None:
        """Up to where it is compacted, by the checkpoint as it stands on the disk."""
        return self._checkpoints[CLEANER_OFFSETS].get(key)

    def write_cleaner_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises OSError."""
        self._write(CLEANER_OFFSETS, {**self._kept(self._checkpoints[CLEANER_OFFSETS]), **offsets})
        self._clean_offsets = dict(offsets)

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

    def _kept(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {key: offsets[key] for key in list(self._unnamed) if key in offsets}

    def _moved(self, start_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {key: offset for key, offset in start_offsets.items() if offset > 0}

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        if self._retired:
            offsets = {key: offset for key, offset in offsets.items() if key not in self._retired}
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
