"""The data directories of one broker (`log.dirs`): which of them can be used, and which of them holds each
partition.

A directory that fails, at the start or later, is not used until the next start, and its partitions are offline. If no
usable directory holds a partition, the partition is created only in two cases: if it is new on this broker, or if all
directories can be used and none of them looks as if its disk were not mounted.
"""

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidelog.log.checkpoints import META_PROPERTIES, PARTITION_METADATA, read_partition_metadata, read_properties
from tidelog.log.directory import LOCK, DataDirectory
from tidelog.log.errors import CorruptLog
from tidelog.log.file_kinds import METADATA_STORE, partition_of
from tidelog.log.future_logs import UnfinishedCopy, unfinished_copy
from tidelog.log.interrupted_moves import InterruptedMoves, UnsettledMove
from tidelog.log.segment import TEMPORARY_ERRORS
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import StorageError

if TYPE_CHECKING:
    from tidelog.log.partition_log import PartitionLog
    from tidelog.runtime.interfaces import Disk

logger = logging.getLogger("tidelog.directory")


STRAYS_NAMED = 5
"""Maximum number of partitions that are named in the log line about partitions without a topic."""


class UnusableDirectories(Exception):
    """The broker cannot start with its current data directories. The message is one line with the cause and the next
    step.
    """


def missing_directories(disk: "Disk", paths: Sequence[str]) -> list[str]:
    """Return the paths that do not exist, and their missing parent directories. Each parent is listed before its
    children.
    """
    missing_paths: list[str] = []
    for path in paths:
        missing_chain = []
        while path and not disk.exists(path):
            missing_chain.append(path)
            path = path.rpartition("/")[0]
        missing_paths.extend(above for above in reversed(missing_chain) if above not in missing_paths)
    return missing_paths


class DataDirectories:
    """The open data directories.

    The attributes and `place`, `of`, `by_path`, `holders`, `clean_offset`, `moved`, `fail`, `forget` and
    `take_failures` are used on the event loop. The other methods block and may run on any thread. Those that write
    checkpoints (`write_...`, `try_checkpoints`, `retire`, `remove_retired`, `prepare_adoption`,
    `forget_stale_entries`) must be called one at a time.
    """

    def __init__(
        self,
        disk: "Disk",
        paths: Sequence[str],
        online: list[DataDirectory],
        failed: dict[str, str],
        *,
        metadata_elsewhere: bool = False,
    ) -> None:
        """`metadata_elsewhere`: the metadata store is not in a data directory."""
        self._disk = disk
        self._metadata_elsewhere = metadata_elsewhere
        self.paths = tuple(paths)
        """All configured paths, usable or not."""
        self.online = online
        self.failed = failed
        """The reason why a directory is out of use, by its path."""
        self.cordoned: Callable[[], Sequence[str]] = tuple
        """Returns the paths of directories that accept no new partitions (KIP-1066). At first it is `tuple`, which
        returns no paths."""
        self.interrupted: list[UnfinishedCopy] = []
        """Moves between directories that the previous process did not finish."""
        self._holders: dict[TopicPartition, list[DataDirectory]] = {}
        """The data directories that contain a directory of the partition. The first one has the partition's log."""
        self._counts: dict[str, int] = {directory.path: 0 for directory in online}
        """Number of partitions in each data directory, by path."""
        self._newly_failed: dict[str, str] = {}
        """Directories that have failed since the last call of `take_failures`, with the reasons."""
        self._missing: list[str] = []
        """Paths that do not exist; `acquire` creates the directories."""
        self._interrupted_moves = InterruptedMoves(disk)
        self.is_acquired = False
        """Whether `acquire` has locked every directory. If so, it may have changed the directories' content."""

    @classmethod
    def open(cls, disk: "Disk", paths: Sequence[str]) -> "DataDirectories":
        """Call `inspect`, then `acquire`."""
        directories = cls.inspect(disk, paths)
        directories.acquire()
        return directories

    @classmethod
    def inspect(cls, disk: "Disk", paths: Sequence[str], metadata_elsewhere: bool = False) -> "DataDirectories":
        """Read and index the existing directories without changing their content. A directory that cannot be used is
        omitted and logged.

        Raises UnusableDirectories and DirectoryInUse. Raises the OSError of a directory if it is the only configured
        one, or if the error is temporary.
        """
        directories = cls(disk, paths, [], {}, metadata_elsewhere=metadata_elsewhere)
        try:
            for path in paths:
                if disk.exists(path):
                    directories._open_and_index(path, DataDirectory.inspect)
                else:
                    directories._missing.append(path)
            directories._check()
            directories._choose_moved_copies()
            directories._check_duplicates()
        except BaseException:
            directories.release()
            raise
        return directories

    def acquire(self) -> None:
        """Create the missing directories, lock all directories, and begin to use them. After an error the caller must
        call `release`.

        Raises the errors of `inspect`. After an error that occurs before all directories are locked, the directories
        that this call created are removed.
        """
        created_paths = missing_directories(self._disk, self._missing)
        try:
            missing, self._missing = self._missing, []
            for path in missing:
                self._open_and_index(path, DataDirectory.open)
            self._sort_as_configured()
            self._check()  # before a lock file is created
            for directory in list(self.online):
                self._run_step(directory, directory.lock)
            self._check()
        except BaseException:
            self._remove_empty(created_paths)
            raise
        self.is_acquired = True
        for directory in list(self.online):
            self._run_step(directory, directory.begin)
        self._check()
        self._settle_moves()
        self._check()

    def _remove_empty(self, created_paths: Sequence[str]) -> None:
        """Remove new directories that contain at most a lock file. Remove children before their parents."""
        for path in reversed(created_paths):
            if self._disk.exists(path) and set(self._disk.list(path)) <= {LOCK}:
                self._disk.remove_tree(path)

    def _open_and_index(self, path: str, open_directory: Callable[["Disk", str], DataDirectory]) -> None:
        try:
            self.online.append(open_directory(self._disk, path))
            self._index_partitions(self.online[-1])
        except OSError as error:
            self._handle_open_error(path, error)

    def _run_step(self, directory: DataDirectory, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            self._handle_open_error(directory.path, error)

    def _handle_open_error(self, path: str, error: OSError) -> None:
        """Exclude the directory. But if it is the only directory, or if the error is temporary (a retry may succeed),
        raise `error` instead.
        """
        if len(self.paths) == 1 or error.errno in TEMPORARY_ERRORS:
            raise error
        self._exclude(path, error)

    def _exclude(self, path: str, error: OSError) -> None:
        for directory in [d for d in self.online if d.path == path]:
            directory.release()
            self.online.remove(directory)
            for holders in self._holders.values():
                if directory in holders:
                    holders.remove(directory)
        self._counts.pop(path, None)
        self.failed[path] = str(error)
        logger.error("directory offline path=%s reason=%s", path, error)

    def _sort_as_configured(self) -> None:
        """Sort the directories in the configured order, because missing directories were added last."""
        self.online.sort(key=lambda directory: self.paths.index(directory.path))

    def _index_partitions(self, directory: DataDirectory) -> None:
        self._counts[directory.path] = 0
        for name in self._disk.list(directory.path):
            path = f"{directory.path}/{name}"
            if not self._disk.is_dir(path):
                continue
            partition = partition_of(name)
            if partition is not None:
                self._holders.setdefault(partition, []).append(directory)
                self._counts[directory.path] += 1
            else:
                future = unfinished_copy(directory, name)
                if future is not None:
                    self.interrupted.append(future)

    def _check(self) -> None:
        """Raise UnusableDirectories if no directory can be used, if the metadata store is possibly in a directory that
        cannot be used, if two directories contain a store, or if two directories have the same id.
        """
        if not self.online and not self._missing:
            reasons = "; ".join(f"{path}: {reason}" for path, reason in self.failed.items())
            raise UnusableDirectories(f"none of the data directories (log.dirs) can be used: {reasons}")
        store_paths = [d.path for d in self.online if self._disk.exists(f"{d.path}/{METADATA_STORE}")]
        if len(store_paths) > 1:
            raise UnusableDirectories(
                f"{METADATA_STORE} lies in {' and in '.join(store_paths)}: the directories belong to two brokers, or "
                "one is a copy of the other; leave one of them out of log.dirs"
            )
        used_paths = [d.path for d in self.online if self._disk.exists(f"{d.path}/{META_PROPERTIES}")]
        may_be_in_failed_path = self.paths[0] in self.failed or (self.failed and used_paths)
        if not store_paths and may_be_in_failed_path and not self._metadata_elsewhere:
            reasons = "; ".join(f"{path}: {reason}" for path, reason in self.failed.items())
            raise UnusableDirectories(f"{METADATA_STORE} is in no data directory that can be used ({reasons})")
        ids: dict[str, str] = {}
        for path in used_paths:
            properties = _properties(self._disk, f"{path}/{META_PROPERTIES}")
            same_id_path = ids.setdefault(properties.get("directory.id") or path, path)
            if same_id_path != path:
                raise UnusableDirectories(f"{path} is a copy of {same_id_path}: both have the same directory.id")

    def _choose_moved_copies(self) -> None:
        """After an interrupted move, a log and its copy may both have the log's name. Choose one of them. Then only
        its directory counts as a holder of the partition.
        """
        for partition, holders in self._holders.items():
            discarded = self._interrupted_moves.choose(partition, holders)
            if discarded is not None:
                self._counts[discarded.path] -= 1
                holders.remove(discarded)

    def _settle_moves(self) -> None:
        """Rename the logs and copies that are not used, and remove their checkpoint entries and the marks of copies
        that are used. Then only the used one has the log's name, and is no copy any more.
        """
        moves = self._interrupted_moves
        for move in moves.unsettled:
            if move.copy.path in self.failed or move.old.path in self.failed:
                continue  # one of the two directories has failed in the meantime; the next start decides again
            self._run_step(move.discarded, partial(self._put_aside, move))
            if move.discarded is move.old and move.old.path not in self.failed:
                moves.lone_copies.append((move.partition, move.copy))
        absent_paths = list(self.failed) or [d.path for d in self.online if d.is_blank]
        for partition, copy in moves.lone_copies:
            if copy.path not in self.failed:
                self._run_step(copy, partial(moves.settle_lone_copy, partition, copy, absent_paths))

    def _put_aside(self, move: UnsettledMove) -> None:
        try:
            move.discarded.remove_entries(move.partition)
        except OSError as error:
            if error.errno not in TEMPORARY_ERRORS:
                raise
            # `forget_stale_entries` tries again. A full disk is a usual reason for a move.
            logger.warning("old entries stay in the checkpoints for now path=%s reason=%s", move.discarded.path, error)
        copy = self._interrupted_moves.put_aside(move)
        if copy is not None:
            self.interrupted.append(copy)

    def _check_duplicates(self) -> None:
        """Raise UnusableDirectories if two directories hold the same partition of the same topic, or may do so."""
        for partition, holders in self._holders.items():
            if len(holders) < 2:
                continue
            # An id that cannot be read may equal any other id, so the partition is treated as a duplicate.
            ids = [self._topic_id(d, partition) for d in holders]
            if None in ids or len(set(ids)) < len(ids):
                paths = " and in ".join(d.path for d in holders)
                raise UnusableDirectories(
                    f"partition {partition} lies in {paths}: keep the directory {partition} that is to be used, and "
                    f"move the other {partition} to a place outside log.dirs"
                )

    # Find the directory of a partition

    @property
    def metadata_path(self) -> str:
        """The directory that contains the metadata store, or will contain it."""
        for directory in self.online:
            if self._disk.exists(f"{directory.path}/{METADATA_STORE}"):
                return directory.path
        return self.online[0].path

    def first_id(self) -> str | None:
        """Return the directory.id of the first usable directory; None if it has none yet. Blocks."""
        path = f"{self.online[0].path}/{META_PROPERTIES}"
        return _properties(self._disk, path).get("directory.id") if self._disk.exists(path) else None

    @property
    def clean(self) -> bool:
        """Whether the last stop was clean in every usable directory."""
        return all(directory.clean for directory in self.online)

    def of(self, partition: TopicPartition) -> DataDirectory | None:
        """Return the directory that holds the partition; None if the directory is unknown or out of use."""
        holders = self._holders.get(partition)
        return holders[0] if holders and holders[0].path not in self.failed else None

    def by_path(self, path: str) -> DataDirectory | None:
        return next((directory for directory in self.online if directory.path == path), None)

    def place(self, partition: TopicPartition, topic_id: bytes, *, new: bool) -> DataDirectory:
        """Return the directory that holds the partition. If no directory holds it, choose, among the directories that
        are not cordoned, the one with the fewest partitions, and record that it holds the partition from now on.

        `new`: the partition is new on this broker. Raises StorageError if the directory of the partition is out of use,
        if the partition is possibly in a directory that is out of use or not mounted, or if no directory can be used.
        """
        holders = self._holders.get(partition)
        if holders:
            if len(holders) > 1:
                holders.sort(key=lambda d: self._topic_id(d, partition) != topic_id)
            if partition in self._interrupted_moves.unusable_copies:
                raise StorageError(self._interrupted_moves.unusable_copies[partition])
            if holders[0].path in self.failed:
                raise StorageError(
                    f"the partition's directory {holders[0].path} is out of use: {self.failed[holders[0].path]}"
                )
            return holders[0]
        if not new:
            if self.failed:
                raise StorageError(
                    f"the partition is in no directory that can be used; out of use: {', '.join(self.failed)}"
                )
            blank_paths = [d.path for d in self.online if d.is_blank]
            if blank_paths and len(blank_paths) < len(self.online):
                raise StorageError(
                    f"the partition is in no directory, and {', '.join(blank_paths)} is empty: is its disk not mounted?"
                )
        chosen = min(self._directories_for_new(), key=lambda d: self._counts[d.path])
        self._holders[partition] = [chosen]
        self._counts[chosen.path] += 1
        return chosen

    def _directories_for_new(self) -> list[DataDirectory]:
        usable = [d for d in self.online if d.path not in self.failed]
        if not usable:
            raise StorageError("no data directory can be used")
        # If all directories are cordoned, the controller refuses most new partitions. A partition that was created
        # nevertheless, for example because the request named its replicas, still needs a directory.
        cordoned_paths = self.cordoned()
        return [d for d in usable if d.path not in cordoned_paths] or usable

    def _topic_id(self, directory: DataDirectory, partition: TopicPartition) -> bytes | None:
        try:
            return read_partition_metadata(self._disk, f"{directory.path}/{partition}")
        except (OSError, CorruptLog):
            return None

    def moved(self, partition: TopicPartition, target: DataDirectory) -> None:
        """Record that the partition is in `target` from now on."""
        for holder in self._holders.get(partition, ()):
            self._counts[holder.path] -= 1
        self._holders[partition] = [target]
        self._counts[target.path] += 1

    # Failures

    def fail(self, path: str, reason: str) -> bool:
        """Take a directory out of use. It remains locked and listed in `online`. Returns False if it was already out
        of use.
        """
        if path in self.failed:
            return False
        self.failed[path] = reason
        return True

    @property
    def all_failed(self) -> bool:
        return all(directory.path in self.failed for directory in self.online)

    def take_failures(self) -> dict[str, str]:
        """Return the directories in which a write of checkpoints or a rename failed permanently since the last call,
        each with the reason.
        """
        failures, self._newly_failed = self._newly_failed, {}
        return failures

    # Operations on every directory

    def forget_stale_entries(self, exists: Callable[[TopicPartition], bool]) -> None:
        """Remove checkpoint entries of partitions that do not exist or are in another directory. Called once, at the
        start.

        Such entries remain after a move from a full disk. They also remain if the process is killed after a deletion.
        Directories of partitions that do not exist are kept and logged, because the metadata store may be an old copy
        that lacks their topics.
        """

        def drop_stale_entries(directory: DataDirectory) -> None:
            stale_keys = [key for key in directory.entries() if not exists(key) or self._is_elsewhere(directory, key)]
            if stale_keys:
                directory.remove_entries(*stale_keys)

        for path, error in self._in_each(drop_stale_entries).items():
            logger.warning("old entries stay in the checkpoints for now path=%s reason=%s", path, error)
        for directory in self._usable():
            strays = [
                str(key)
                for key, holders in self._holders.items()
                if directory in holders
                and not exists(key)
                and self._disk.exists(f"{directory.path}/{key}/{PARTITION_METADATA}")
            ]
            if strays:
                first_strays = ",".join(strays[:STRAYS_NAMED])
                logger.warning(
                    "unknown partition directories exist path=%s count=%d first=%s",
                    directory.path,
                    len(strays),
                    first_strays,
                )

    def _is_elsewhere(self, directory: DataDirectory, partition: TopicPartition) -> bool:
        holders = self._holders.get(partition, ())
        return len(holders) > 0 and directory not in holders

    def holders(self, partition: TopicPartition) -> list[DataDirectory]:
        """Return the usable directories that contain a directory of this partition."""
        return [d for d in self._holders.get(partition, ()) if d.path not in self.failed]

    def retire(self, logs: Mapping[str, Mapping[TopicPartition, tuple[bytes, "PartitionLog | None"]]]) -> list[str]:
        """Retire partitions with `DataDirectory.retire`. The keys of `logs` are paths of data directories. Returns
        the new paths.
        """
        retired: list[str] = []
        for path, partitions in logs.items():
            directory = self.by_path(path)
            assert directory is not None
            renamed_paths, error = directory.retire(partitions)
            retired += renamed_paths
            if error is not None and error.errno not in TEMPORARY_ERRORS:
                self._newly_failed[path] = str(error)
        return retired

    def forget(self, partition: TopicPartition) -> None:
        """Forget where a deleted partition is."""
        self._interrupted_moves.unusable_copies.pop(partition, None)
        for holder in self._holders.pop(partition, ()):
            self._counts[holder.path] -= 1

    def retired(self) -> list[str]:
        return [path for directory in self._usable() for path in directory.retired()]

    def empty_retired(self, path: str) -> None:
        self._holder_of(path).empty_retired(path)

    def remove_retired(self, path: str) -> None:
        self._holder_of(path).remove_retired(path)

    def _holder_of(self, path: str) -> DataDirectory:
        directory = self.by_path(path.rpartition("/")[0])
        assert directory is not None
        return directory

    def write_identity(self, cluster_id: str, node_id: int, new_ids: Sequence[str]) -> None:
        """Write meta.properties in each directory. `new_ids` contains one id for each directory. If a directory already
        has an id, its new id is not used. Raises CorruptLog, OSError.
        """
        for directory, directory_id in zip(self.online, new_ids, strict=True):
            directory.write_identity(cluster_id, node_id, directory_id)

    def prepare_adoption(self, topics: Container[str]) -> None:
        for directory in self._usable():
            directory.prepare_adoption(topics)

    def write_checkpoints(
        self,
        recovery_points: Mapping[TopicPartition, int],
        start_offsets: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
    ) -> None:
        """Write the checkpoints of each directory, with the entries of its own partitions.

        All directories are tried. After that, OSError is raised if an error was temporary (such as a full disk). Any
        other error is recorded as a failure of its directory (see `take_failures`).
        """
        _raise_temporary(self.try_checkpoints(recovery_points, start_offsets, high_watermarks))

    def try_checkpoints(
        self,
        recovery_points: Mapping[TopicPartition, int],
        start_offsets: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
    ) -> dict[str, OSError]:
        """Write the checkpoints as `write_checkpoints` does, but return all errors by directory, both temporary and
        permanent ones.
        """
        return self._in_each(
            lambda directory: directory.write_checkpoints(
                *(self._entries_of(directory, offsets) for offsets in (recovery_points, start_offsets, high_watermarks))
            )
        )

    def _in_each(self, write: Callable[[DataDirectory], None]) -> dict[str, OSError]:
        errors: dict[str, OSError] = {}
        for directory in self._usable():
            try:
                write(directory)
            except OSError as error:
                errors[directory.path] = error
                if error.errno not in TEMPORARY_ERRORS:
                    self._newly_failed[directory.path] = str(error)
        return errors

    def write_start_offsets(self, start_offsets: Mapping[TopicPartition, int]) -> dict[str, OSError]:
        """Persist start offsets, and return the errors by directory. Must be called before the log files below these
        offsets are removed. The caller must not remove files in a directory with an error.
        """
        return self._in_each(
            lambda directory: directory.write_start_offsets(self._entries_of(directory, start_offsets)),
        )

    @property
    def are_behind(self) -> bool:
        """Whether, in any directory, a full disk has prevented the write of a checkpoint or has caused the removal
        of one.
        """
        return any(directory.is_behind for directory in self._usable())

    def clean_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset up to which the partition is compacted, from the checkpoint of its directory; None if
        the offset is unknown.
        """
        holder = self.of(partition)
        return None if holder is None else holder.clean_offset(partition)

    def write_cleaner_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Persist the clean offsets of each directory's own partitions. Raises OSError as `write_checkpoints` does."""
        _raise_temporary(
            self._in_each(lambda directory: directory.write_cleaner_offsets(self._entries_of(directory, offsets)))
        )

    def _entries_of(
        self, directory: DataDirectory, offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        if len(self.online) == 1:
            return offsets
        holders = self._holders
        return {key: offset for key, offset in offsets.items() if directory in holders.get(key, ())[:1]}

    def _usable(self) -> list[DataDirectory]:
        return [directory for directory in self.online if directory.path not in self.failed]

    # Closing

    def close(self, unclean: Mapping[str, str]) -> None:
        """Mark each directory as stopped cleanly, and unlock all of them.

        A directory is not marked if it failed, or if `unclean` contains a reason for it.
        """
        for directory in self.online:
            reason = self.failed.get(directory.path) or unclean.get(directory.path)
            if reason is None:
                try:
                    directory.close_clean()
                except OSError as error:
                    reason = str(error)
            if reason is not None:
                logger.warning("clean mark not written path=%s reason=%s", directory.path, reason)
        self.release()

    def release(self) -> None:
        for directory in self.online:
            directory.release()


def _raise_temporary(errors: dict[str, OSError]) -> None:
    for error in errors.values():
        if error.errno in TEMPORARY_ERRORS:
            raise error


def _properties(disk: "Disk", path: str) -> dict[str, str]:
    try:
        return read_properties(disk.read(path), path)
    except CorruptLog as error:
        raise UnusableDirectories(str(error)) from None
