"""One data directory of a broker: its lock, its mark of a clean stop, its checkpoints, its partitions.

Every method blocks. `open`, `inspect`, `lock` and `begin` are called before the broker runs, and `close_clean` after it
has stopped. All other methods may be called from any thread. Two calls of methods that write checkpoints (`write_...`,
`prepare_adoption`, `retire`, `remove_retired`, `remove_entries`, `make_way`, `register_incoming`) must not overlap.

The entries of a deleted partition are removed from the checkpoints, durably, before a log of the same name is
created. Otherwise the new log would look as if it had lost records at its end or start.

A log's start offset is persisted before any file below this offset is removed. Therefore a missing file above the
start offset is noticed. There are two exceptions: the checkpoint of start offsets is missing or damaged, or Kafka wrote
the directory (Kafka writes this checkpoint only at intervals). In these cases a log may lack its first files, and its
start offset becomes the offset of the first file that exists.
"""

import logging
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Final

from tidelog.log.aside import make_way, put_aside, read_id, stem_of_retired
from tidelog.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    CheckpointText,
    OffsetsCopy,
    UncertainOffsets,
    format_partition_metadata,
    format_properties,
    overwrite,
    read_offsets,
    read_properties,
)
from tidelog.log.durability import FULL_DISK_ERRORS
from tidelog.log.errors import CorruptLog
from tidelog.log.file_kinds import CUT_MARK, DELETE_SUFFIX, Kind, aside_stem, file_kind, partition_of
from tidelog.log.indexes import IndexCache
from tidelog.log.kafka_snapshots import remove_unproved_snapshots
from tidelog.log.partition_log import PartitionLog
from tidelog.log.pinned_entries import LogOffsets, PinnedEntries
from tidelog.log.segment import TEMPORARY_ERRORS
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.runtime.interfaces import Disk, Lock

logger = logging.getLogger("tidelog.directory")

LOCK: Final = ".lock"
CLEAN_MARKER: Final = ".kafka_cleanshutdown"


class DirectoryInUse(Exception):
    """Another broker uses the directory."""


class InTheWay(Exception):
    """Files or checkpoint entries of an older topic with the same name exist, or those of a replica that was removed
    from this broker. The caller must call `make_way` and then open the partition again.
    """


class DataDirectory:
    """An open data directory. Only one process has it open at a time."""

    def __init__(self, disk: "Disk", path: str, lock: "Lock | None") -> None:
        self.path = path
        self.clean = disk.exists(f"{path}/{CLEAN_MARKER}")
        """Whether the last broker that used the directory stopped cleanly. If so, the logs need no recovery."""
        self.is_blank = not disk.exists(f"{path}/{META_PROPERTIES}")
        """Whether no broker has ever used the directory."""
        self._disk = disk
        self._lock = lock
        self._cache = IndexCache()
        self._checkpoints: dict[str, Mapping[TopicPartition, int]] = {}
        """Content of the checkpoints on the disk, by file name. If a checkpoint is missing or damaged, it has no entry
        here; only CLEANER_OFFSETS then has an empty entry. After a write that failed, the entry is UncertainOffsets."""
        self._latest: dict[str, Mapping[TopicPartition, int]] = {}
        """The newest content of each checkpoint. A full disk may have prevented its write."""
        self._texts: dict[str, CheckpointText] = {}
        """The text of the last write of each checkpoint, successful or not."""
        self._recovery_points = self._read(RECOVERY_POINTS)
        self._recovery_points_known = RECOVERY_POINTS in self._checkpoints
        self._start_offsets = self._read(LOG_START_OFFSETS)
        if LOG_START_OFFSETS not in self._checkpoints:
            self._take_start_offsets_from_files()
        self._checkpoints[CLEANER_OFFSETS] = self._read_hints(
            CLEANER_OFFSETS, "every log is compacted again from its start"
        )
        self._high_watermarks = self._read_hints(HIGH_WATERMARKS, "high watermarks are determined again")
        if self._high_watermarks:
            self._checkpoints[HIGH_WATERMARKS] = dict(self._high_watermarks)
        self._latest.update(self._checkpoints)
        self._latest[LOG_START_OFFSETS] = dict(self._start_offsets)
        self._preserved: dict[TopicPartition, None] = {}
        """Partitions that were just opened or moved here, or that could not be opened. Their known entries stay in the
        checkpoints until `write_checkpoints` gets the recovery points of these partitions."""
        self.pinned = PinnedEntries()
        self._retired: dict[TopicPartition, None] = {}
        """Partitions whose entries were removed. They get no new entries until a log of the same name is opened or
        moved here. If a checkpoint on the disk still has an old entry, the next write of this checkpoint removes it."""

    @classmethod
    def open(cls, disk: "Disk", path: str) -> "DataDirectory":
        """Create the directory if it is missing, lock it, and begin to use it. Raises DirectoryInUse, OSError."""
        disk.make_dirs(path)
        directory = cls.inspect(disk, path)
        try:
            directory.lock()
            directory.begin()
        except BaseException:
            directory.release()
            raise
        return directory

    @classmethod
    def inspect(cls, disk: "Disk", path: str) -> "DataDirectory":
        """Read the directory without changing its content. Lock it if it has a lock file. If it has none, no broker
        uses it.

        Raises DirectoryInUse, OSError.
        """
        lock = _acquire_lock(disk, path) if disk.exists(f"{path}/{LOCK}") else None
        try:
            return cls(disk, path, lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    def lock(self) -> None:
        """Lock the directory, unless `inspect` has locked it. Raises DirectoryInUse, OSError."""
        if self._lock is None:
            self._lock = _acquire_lock(self._disk, self.path)

    def begin(self) -> None:
        """Mark the directory as unclean until `close_clean`. Also make the names of the logs' directories durable: the
        opening of an existing log does not do this. Raises OSError.
        """
        marker = f"{self.path}/{CLEAN_MARKER}"
        if self._disk.exists(marker):
            self._disk.remove(marker)
        self._disk.sync_dir(self.path)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """Read a checkpoint into `_checkpoints` and return it. The result is empty if the checkpoint is missing or
        damaged.

        If it is damaged, the last stop no longer counts as clean, and logs are recovered as after a crash. No record
        is lost.
        """
        try:
            offsets = read_offsets(self._disk, f"{self.path}/{name}")
        except CorruptLog as error:
            logger.warning("checkpoint ignored, the logs are recovered as after a crash reason=%s", error)
            self.clean = False
            offsets = None
        if offsets is not None:
            self._checkpoints[name] = dict(offsets)
        return offsets or {}

    def _read_hints(self, name: str, consequence: str) -> dict[TopicPartition, int]:
        """Read a checkpoint that no recovery depends on. A damaged one is ignored."""
        try:
            return read_offsets(self._disk, f"{self.path}/{name}") or {}
        except CorruptLog as error:
            logger.warning("checkpoint ignored, %s reason=%s", consequence, error)
            return {}

    def prepare_adoption(self, topics: Container[str]) -> None:
        """Prepare the logs of Kafka's `topics` before they are opened here for the first time: persist their start
        offsets, and remove producer snapshots that do not prove that the records below them are on the disk.

        If the first file of a log begins above the log's entry in the checkpoint, the start offset becomes the
        file's offset, permanently. Raises OSError.
        """
        self._take_start_offsets_from_files()
        self.write_start_offsets(self._start_offsets)
        if not self.clean and self._recovery_points_known:
            for name in self._disk.list(self.path):
                key = partition_of(name)
                if key is not None and key.topic in topics and self._disk.is_dir(f"{self.path}/{name}"):
                    remove_unproved_snapshots(self._disk, f"{self.path}/{name}", self._recovery_points.get(key, 0))

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
        """Open or create the partition's log. `new`: the partition is new on this broker, so that no log of it can
        exist.

        Raises InTheWay, CorruptLog and OSError. After CorruptLog and OSError, the partition's entries remain in the
        checkpoints for the next start.
        """
        key = TopicPartition(topic, index)
        self._preserved[key] = None
        path = f"{self.path}/{key}"
        stored_id = read_id(self._disk, path, accept_damage=new)
        if stored_id == topic_id:
            # If the broker was killed while it removed an earlier replica, the replica's directory may be left, without
            # checkpoint entries.
            is_in_the_way = new
        else:
            is_in_the_way = stored_id is not None or self._belongs_to_older_topic(key, path, new=new)
        if is_in_the_way:
            raise InTheWay(f"{path} or its checkpoint entries belong to an older topic or replica of the same name")
        self._retired.pop(key, None)
        self.pinned.unpin(key)
        log = PartitionLog.open(
            self._disk,
            path,
            config,
            clean=self.clean,
            recovery_point=self._recovery_points.get(key, 0 if self._recovery_points_known else -1),
            log_start_offset=self._start_offsets.get(key, 0),
            now_ms=now_ms,
            cache=self._cache,
            clean_offset=self.clean_offset(key),
        )
        if stored_id is None:
            self._disk.sync_dir(self.path)  # a directory that has a topic id has a durable name
            self._disk.write_atomic(f"{path}/{PARTITION_METADATA}", format_partition_metadata(topic_id))
        self._recovery_points[key], self._start_offsets[key] = log.recovery_point, log.log_start_offset
        return log

    def _belongs_to_older_topic(self, key: TopicPartition, path: str, *, new: bool) -> bool:
        """Return whether files or checkpoint entries under the partition's name belong to an older topic. Called only
        if the partition has no directory, or if its directory has no topic id.

        If the partition is new on this broker, or a partition of this name was deleted before, all files and entries
        belong to an older topic. In any other case, entries without a directory belong to an older topic only if the
        directory of a deleted partition of this name still waits for its removal. If no such directory exists, the
        partition's own directory may have been lost, and the opening of the log reports that.
        """
        path_exists = self._disk.exists(path)
        if new or key in self._retired:
            return path_exists or self.has_entries_of(key)
        return not path_exists and self.has_entries_of(key) and aside_stem(key) in map(stem_of_retired, self.retired())

    def has_entries_of(self, key: TopicPartition) -> bool:
        """Return whether a checkpoint has an entry of the partition, on the disk or in its next write."""
        return any(key in offsets for offsets in self._all_entries())

    def entries(self) -> list[TopicPartition]:
        """Return the partitions that have an entry in a checkpoint, on the disk or in its next write."""
        return list(dict.fromkeys(key for offsets in self._all_entries() for key in list(offsets)))

    def _all_entries(self) -> list[Mapping[TopicPartition, int]]:
        return [self._recovery_points, self._start_offsets, *list(self._checkpoints.values())]

    def make_way(self, key: TopicPartition, topic_id: bytes) -> None:
        """Remove the partition's checkpoint entries, and rename its directory, if there is one. If the directory has
        the topic id `topic_id`, it belongs to a replica that was removed from this broker: the next start deletes it.
        If it has another topic id, or no readable one, it gets the suffix `-stray`.

        Called after InTheWay. Raises OSError.
        """
        if self.has_entries_of(key):
            self.remove_entries(key)
        make_way(self._disk, self.path, key, topic_id)

    def retire(
        self, logs: Mapping[TopicPartition, tuple[bytes, PartitionLog | None]]
    ) -> tuple[list[str], OSError | None]:
        """Remove the checkpoint entries of removed partitions, close their logs, and rename their directories.

        `logs`: for each partition the topic id, and the log, or None if the log is not open. After an error, the
        other partitions are still renamed. Returns the new paths and the first error. The caller passes the paths to
        `empty_retired` and `remove_retired`. If a full disk prevents the write of the checkpoints, this error is not
        returned, because `remove_retired` removes the entries before it removes the directory.
        """
        first_error: OSError | None = None
        try:
            # The checkpoints are written first, because a new topic of the same name must not find entries of these
            # logs.
            self.remove_entries(*logs)
        except OSError as error:
            logger.warning("old entries stay in the checkpoints for now path=%s reason=%s", self.path, error)
            first_error = None if error.errno in TEMPORARY_ERRORS else error
        retired = []
        for key, (topic_id, log) in logs.items():
            if log is not None:
                log.close(clean=False)
            try:
                path = put_aside(self._disk, self.path, key, topic_id, is_open=log is not None)
            except OSError as error:
                # At the next start, a warning reports this directory as unknown. When a topic of the same name is
                # created, the directory is renamed.
                logger.error("deleted partition not renamed partition=%s reason=%s", key, error)
                first_error = first_error or error
            else:
                retired += [path] if path is not None else []
        try:
            self._disk.sync_dir(self.path)
        except OSError as error:
            first_error = first_error or error
        return retired, first_error

    def remove_entries(self, *keys: TopicPartition) -> None:
        """Remove the entries of these partitions from all checkpoints.

        If the write of one checkpoint fails, this method still tries to write the others, and then raises OSError.
        After an error, the next write of each checkpoint removes the entries.
        """
        for key in keys:
            self._recovery_points.pop(key, None)
            self._start_offsets.pop(key, None)
            self._high_watermarks.pop(key, None)
            self._preserved.pop(key, None)
            self.pinned.unpin(key)
            self._retired[key] = None
        first_error: OSError | None = None
        for name in list(self._checkpoints):
            try:
                self._write(name, self._latest[name])
            except OSError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def register_incoming(self, log: PartitionLog, clean_offset: int | None, high_watermark: int) -> None:
        """Register a log that will be moved into this directory immediately after this call: write its entries into
        the checkpoints, and pin them. The caller must unpin them when the move has ended.

        `clean_offset`: the offset up to which the log is compacted, or None. Raises OSError.
        """
        key = log.topic_partition
        self._retired.pop(key, None)
        self._preserved[key] = None
        self._recovery_points[key], self._start_offsets[key] = log.recovery_point, log.log_start_offset
        self._high_watermarks[key] = high_watermark
        self.pinned.pin(key, LogOffsets(log.recovery_point, log.log_start_offset, high_watermark))
        # All entries are written, even if the checkpoint was removed because the disk was full: a checkpoint that
        # exists must be complete.
        for name in (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS):
            self._write(name, {**self._latest.get(name, {}), key: self.pinned.of(name)[key]})
        clean_offsets = {
            partition: offset for partition, offset in self._latest[CLEANER_OFFSETS].items() if partition != key
        }
        if clean_offset is not None:
            clean_offsets[key] = clean_offset
        self._write(CLEANER_OFFSETS, clean_offsets)

    def open_future(
        self, path: str, config: "LogConfig", log_start_offset: int, topic_id: bytes, now_ms: int
    ) -> PartitionLog:
        """Create an empty log in the directory `path`, for the copy of a partition that is being moved to this data
        directory. Raises CorruptLog, OSError.
        """
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
        """Open a log that was closed cleanly and moved into this directory. Raises CorruptLog, OSError."""
        return PartitionLog.open(
            self._disk,
            f"{self.path}/{log.topic_partition}",
            log.config,
            clean=True,
            recovery_point=log.recovery_point,
            log_start_offset=log.log_start_offset,
            now_ms=now_ms,
            cache=self._cache,
            clean_offset=self.clean_offset(log.topic_partition),
        )

    def retired(self) -> list[str]:
        """Return the directories that wait for their removal: those of deleted partitions and of moved logs."""
        return [f"{self.path}/{name}" for name in self._disk.list(self.path) if name.endswith(DELETE_SUFFIX)]

    def empty_retired(self, path: str) -> None:
        """Remove the content of a retired directory, which may take a long time. Raises OSError."""
        assert path.endswith(DELETE_SUFFIX)
        for name in self._disk.list(path):
            child = f"{path}/{name}"
            if self._disk.is_dir(child):
                self._disk.remove_tree(child)
            else:
                self._disk.remove(child)

    def remove_retired(self, path: str) -> None:
        """Remove the checkpoint entries of a retired directory, and then the directory itself. Raises OSError.

        The entries are kept if a new partition has the same name. The directory is removed last. If the broker stops
        before that, the directory shows at the next start that the entries belong to a removed log, not to a lost one.
        """
        stem = stem_of_retired(path)
        key = None if stem is None else partition_of(stem)
        if key is not None and CUT_MARK in key.topic:
            key = next((partition for partition in self.entries() if aside_stem(partition) == stem), None)
        if key is not None and self.has_entries_of(key) and not self._disk.exists(f"{self.path}/{key}"):
            self.remove_entries(key)
        self._disk.remove_tree(path)

    # Checkpoints and identity

    def write_identity(self, cluster_id: str, node_id: int, directory_id: str) -> None:
        """Write meta.properties in KRaft's version 1. An existing file is replaced only if it has this version, cluster
        id and node id, but no directory id. Raises CorruptLog, OSError.

        `directory_id` is the new id of the directory (KIP-858).

        In a new directory, an empty checkpoint of recovery points is written first. Without it, a start after a power
        cut would regard all closed segments as flushed, as in Kafka's directories, and so regard lost records as
        damage.
        """
        path = f"{self.path}/{META_PROPERTIES}"
        properties = {"version": "1", "cluster.id": cluster_id, "node.id": str(node_id)}
        if self._disk.exists(path) and read_properties(self._disk.read(path), path) != properties:
            return
        # Logs in a blank directory were copied there by a user. Their closed segments count as flushed.
        if self.is_blank and not self._recovery_points_known and not any(map(partition_of, self._disk.list(self.path))):
            self._write(RECOVERY_POINTS, {})
            self._recovery_points_known = True
        self._disk.write_atomic(path, format_properties({**properties, "directory.id": directory_id}))

    def write_checkpoints(
        self,
        recovery_points: Mapping[TopicPartition, int],
        start_offsets: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
    ) -> None:
        """Persist the checkpoints. Unchanged files are not written. Partitions that could not be opened keep their
        entries. Raises OSError.
        """
        for key in [key for key in list(self._preserved) if key in recovery_points]:
            del self._preserved[key]
        for name, offsets, older in (
            (RECOVERY_POINTS, recovery_points, self._recovery_points),
            (LOG_START_OFFSETS, start_offsets, self._start_offsets),
            (HIGH_WATERMARKS, high_watermarks, self._high_watermarks),
        ):
            self._write(name, self._complete(name, offsets, older))

    def high_watermark(self, key: TopicPartition) -> int:
        """Return the high watermark that the checkpoint had for the partition when the broker started, or when the log
        was moved into this directory; 0 if unknown.
        """
        return self._high_watermarks.get(key, 0)

    def clean_offset(self, key: TopicPartition) -> int | None:
        """Return the offset up to which the partition is compacted, as the checkpoint on the disk states it; None if
        the partition has no entry. After a write that failed, this is the lower one of the two possible offsets, or
        None if the disk possibly has no entry.
        """
        offsets = self._checkpoints[CLEANER_OFFSETS]
        return offsets.certain(key) if isinstance(offsets, UncertainOffsets) else offsets.get(key)

    def possible_clean_offset(self, key: TopicPartition) -> int | None:
        """Return the highest clean offset of the partition that the checkpoint on the disk may have; None without one.
        It differs from `clean_offset` only after a write that failed.
        """
        return self._checkpoints[CLEANER_OFFSETS].get(key)

    def write_cleaner_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Persist the offsets up to which partitions are compacted. Entries of other partitions are kept. Raises
        OSError.
        """
        self._write(CLEANER_OFFSETS, {**self._latest[CLEANER_OFFSETS], **offsets})

    def write_start_offsets(self, start_offsets: Mapping[TopicPartition, int]) -> None:
        """Persist start offsets before the log files below them are removed. Raises OSError.

        If the disk is full, the checkpoint is overwritten in place, because retention must be able to free space. If
        this fails, too, the checkpoint is removed. Without the checkpoint, each log begins with its first file, so
        records that DeleteRecords removed from this file would be back after a crash.
        """
        try:
            self._write(LOG_START_OFFSETS, self._complete(LOG_START_OFFSETS, start_offsets, self._start_offsets))
        except OSError as error:
            if error.errno not in FULL_DISK_ERRORS:
                raise
            path, latest = f"{self.path}/{LOG_START_OFFSETS}", self._latest[LOG_START_OFFSETS]
            exists = self._disk.exists(path)
            is_overwritten = exists and overwrite(self._disk, path, CheckpointText().format(latest, None))
            if exists and not is_overwritten:
                logger.warning("the disk is full, checkpoint removed path=%s", path)
                self._disk.remove(path)
            self._disk.sync_dir(self.path)
            self._checkpoints.pop(LOG_START_OFFSETS, None)
            if is_overwritten:
                self._checkpoints[LOG_START_OFFSETS] = latest

    @property
    def is_behind(self) -> bool:
        """Whether a full disk has prevented a write of a checkpoint, or has caused the removal of one."""
        return any(
            (written := self._checkpoints.get(name)) is not offsets and written != offsets
            for name, offsets in list(self._latest.items())
        )

    def _complete(
        self, name: str, offsets: Mapping[TopicPartition, int], older: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Return the entries of the checkpoint `name`: `offsets`, the preserved entries of `older` and the pinned
        entries. A mapping that may change later is copied.
        """
        preserved, pinned = {key: older[key] for key in list(self._preserved) if key in older}, self.pinned.of(name)
        if preserved or pinned or not isinstance(offsets, OffsetsCopy):
            offsets = {**preserved, **offsets, **pinned}
        return _above_zero(offsets) if name == LOG_START_OFFSETS else offsets

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        if any(map(offsets.__contains__, self._retired)):
            offsets = {key: offset for key, offset in offsets.items() if key not in self._retired}
        self._latest[name] = offsets
        written = self._checkpoints.get(name)
        changed = offsets.changes_since(written) if isinstance(offsets, OffsetsCopy) else None
        if changed is None and written == offsets:
            return
        if changed is None or changed:
            text = self._texts.setdefault(name, CheckpointText())
            try:
                self._disk.write_atomic(f"{self.path}/{name}", text.format(offsets, changed))
            except OSError:
                self._checkpoints[name] = UncertainOffsets(written or {}, offsets)
                raise
        # This assignment is necessary even if nothing was written: the next OffsetsCopy knows only its differences from
        # the OffsetsCopy `offsets`. With these differences, the CheckpointText formats only a part of its lines again.
        self._checkpoints[name] = offsets

    # Closing

    def close_clean(self) -> None:
        """Mark the stop as clean and unlock. Every log must be flushed and closed."""
        self._disk.write_atomic(f"{self.path}/{CLEAN_MARKER}", b'{"version":0,"brokerEpoch":-1}')
        self.release()

    def release(self) -> None:
        """Unlock. If `begin` was called and `close_clean` was not, the next start recovers logs as after a crash."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _above_zero(start_offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
    if 0 not in start_offsets.values():
        return start_offsets
    return {key: offset for key, offset in start_offsets.items() if offset > 0}


def _acquire_lock(disk: "Disk", path: str) -> "Lock":
    try:
        return disk.lock(f"{path}/{LOCK}")
    except BlockingIOError:
        raise DirectoryInUse(
            f"another broker runs in {path}: stop it, or choose another directory for this broker"
        ) from None
