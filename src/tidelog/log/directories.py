"""The data directories of one broker (`log.dirs`): which of them can be used, and which holds which partition.

A directory that fails, at the start or later, is out of use until the next start; its partitions are offline. A
partition that no usable directory holds is made only if it is new, or if every directory can be looked at.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.checkpoints import META_PROPERTIES, PARTITION_METADATA, read_partition_metadata, read_properties
from tidelog.log.directory import LOCK, DataDirectory
from tidelog.log.errors import CorruptLog
from tidelog.log.file_kinds import METADATA_STORE, partition_of
from tidelog.log.future_logs import FoundFuture, found_future, has_mark, is_final, put_aside, settled, take_back
from tidelog.log.segment import PASSING
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import StorageError

if TYPE_CHECKING:
    from tidelog.log.partition_log import PartitionLog
    from tidelog.runtime.interfaces import Disk

logger = logging.getLogger("tidelog.directory")


STRAYS_NAMED = 5


class UnusableDirectories(Exception):
    """The broker cannot start with its data directories as they are. One line that says why, and what to do."""


def missing_directories(disk: "Disk", paths: Sequence[str]) -> list[str]:
    """Those of `paths` that are not there, and those above them that are not: each before those below it."""
    found: list[str] = []
    for path in paths:
        missing = []
        while path and not disk.exists(path):
            missing.append(path)
            path = path.rpartition("/")[0]
        found.extend(above for above in reversed(missing) if above not in found)
    return found


class _Unsettled(NamedTuple):
    """A move that a crash has interrupted when both the log and its copy had the log's name."""

    partition: TopicPartition
    copy: DataDirectory
    old: DataDirectory
    gone: DataDirectory
    """The one of them that does not count."""


class DataDirectories:
    """The open data directories. `place` and what it remembers belong to the loop; the rest blocks, on any thread, and
    what writes checkpoints (`write_...`, `retire`, `remove_retired`, `forget_others`) one at a time.
    """

    def __init__(self, disk: "Disk", paths: Sequence[str], online: list[DataDirectory], failed: dict[str, str]) -> None:
        self._disk = disk
        self.paths = tuple(paths)
        """As configured, usable or not."""
        self.online = online
        self.failed = failed
        """Why a directory is out of use, by its path."""
        self.cordoned: Callable[[], Sequence[str]] = tuple
        """Those that take no new partitions (KIP-1066)."""
        self.interrupted: list[FoundFuture] = []
        """Moves between directories that the last broker here did not finish."""
        self._holders: dict[TopicPartition, list[DataDirectory]] = {}
        self._counts: dict[str, int] = {directory.path: 0 for directory in online}
        self._newly_failed: dict[str, str] = {}
        self._missing: list[str] = []
        """Paths where nothing is yet; `take` makes the directories."""
        self._unsettled: list[_Unsettled] = []
        self.is_taken = False
        """Whether `take` has begun to change what is in them."""

    @classmethod
    def open(cls, disk: "Disk", paths: Sequence[str]) -> "DataDirectories":
        """`look`, then `take`."""
        directories = cls.look(disk, paths)
        directories.take()
        return directories

    @classmethod
    def look(cls, disk: "Disk", paths: Sequence[str]) -> "DataDirectories":
        """Read those that are there, and change nothing. One that cannot be used is left out, with a line in the log.

        Raises UnusableDirectories, DirectoryInUse; OSError when there is but one, or all fail the same way.
        """
        directories = cls(disk, paths, [], {})
        try:
            for path in paths:
                if disk.exists(path):
                    directories._add(path, DataDirectory.look)
                else:
                    directories._missing.append(path)
            directories._check()
            directories._choose_moved()
            directories._refuse_duplicates()
        except BaseException:
            directories.release()
            raise
        return directories

    def take(self) -> None:
        """Make those that are missing, lock each, and begin to use them. The caller releases them after a failure.

        Raises as `look`: then the directories that were missing are gone again.
        """
        made = missing_directories(self._disk, self._missing)
        try:
            missing, self._missing = self._missing, []
            for path in missing:
                self._add(path, DataDirectory.open)
            self._order()
            self._check()  # before a lock file is made
            for directory in list(self.online):
                self._try(directory, directory.lock)
            self._check()
        except BaseException:
            self._remove_empty(made)
            raise
        self.is_taken = True
        for directory in list(self.online):
            self._try(directory, directory.begin)
        self._check()
        self._settle_moves()

    def _remove_empty(self, made: Sequence[str]) -> None:
        """Remove new directories that have nothing but a lock in them, those below others first."""
        for path in reversed(made):
            if self._disk.exists(path) and set(self._disk.list(path)) <= {LOCK}:
                self._disk.remove_tree(path)

    def _add(self, path: str, opened: Callable[["Disk", str], DataDirectory]) -> None:
        try:
            self.online.append(opened(self._disk, path))
            self._look_into(self.online[-1])
        except OSError as error:
            self._failed_to_open(path, error)

    def _try(self, directory: DataDirectory, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            self._failed_to_open(directory.path, error)

    def _failed_to_open(self, path: str, error: OSError) -> None:
        """Raises OSError where the broker cannot start without the directory, or may soon be able to use it."""
        if len(self.paths) == 1 or error.errno in PASSING:
            raise error
        self._leave_out(path, error)

    def _leave_out(self, path: str, error: OSError) -> None:
        for directory in [d for d in self.online if d.path == path]:
            directory.release()
            self.online.remove(directory)
            for holders in self._holders.values():
                if directory in holders:
                    holders.remove(directory)
        self._counts.pop(path, None)
        self.failed[path] = str(error)
        logger.error("directory offline path=%s reason=%s", path, error)

    def _order(self) -> None:
        """As configured, those that were missing too."""
        self.online.sort(key=lambda directory: self.paths.index(directory.path))

    def _look_into(self, directory: DataDirectory) -> None:
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
                future = found_future(directory, name)
                if future is not None:
                    self.interrupted.append(future)

    def _check(self) -> None:
        """Raise UnusableDirectories unless the metadata is there, and the directories belong together."""
        if not self.online and not self._missing:
            reasons = "; ".join(f"{path}: {reason}" for path, reason in self.failed.items())
            raise UnusableDirectories(f"none of the data directories (log.dirs) can be used: {reasons}")
        stores = [d.path for d in self.online if self._disk.exists(f"{d.path}/{METADATA_STORE}")]
        if len(stores) > 1:
            raise UnusableDirectories(
                f"{METADATA_STORE} lies in {' and in '.join(stores)}: directories of two brokers, or an old copy; "
                "leave one of them out of log.dirs"
            )
        used = [d.path for d in self.online if self._disk.exists(f"{d.path}/{META_PROPERTIES}")]
        if not stores and (self.paths[0] in self.failed or (self.failed and used)):
            reasons = "; ".join(f"{path}: {reason}" for path, reason in self.failed.items())
            raise UnusableDirectories(f"{METADATA_STORE} is in no data directory that can be used ({reasons})")
        ids: dict[str, str] = {}
        for path in used:
            properties = _properties(self._disk, f"{path}/{META_PROPERTIES}")
            other = ids.setdefault(properties.get("directory.id") or path, path)
            if other != path:
                raise UnusableDirectories(f"{path} is a copy of {other}: both have the same directory.id")

    def _choose_moved(self) -> None:
        """Of a log and its copy beside it, as an interrupted move leaves them, choose the one that counts."""
        for partition, holders in self._holders.items():
            marked = [d for d in holders if has_mark(self._disk, f"{d.path}/{partition}")] if len(holders) == 2 else ()
            if len(marked) != 1:
                continue
            [copy], [old] = marked, [d for d in holders if d is not marked[0]]
            gone = old if is_final(self._disk, f"{copy.path}/{partition}") else copy
            self._unsettled.append(_Unsettled(partition, copy, old, gone))
            self._counts[gone.path] -= 1
            holders.remove(gone)

    def _settle_moves(self) -> None:
        """Take its name from the log, or the copy, that does not count."""
        unsettled, self._unsettled = self._unsettled, []
        for partition, copy, old, gone in unsettled:
            if copy.path in self.failed or old.path in self.failed:
                continue  # which failed since: the next start looks again
            gone.give_up(partition)
            if gone is old:
                put_aside(self._disk, old.path, partition, bytes(16))
                settled(self._disk, copy.path, partition)
            else:
                self.interrupted.append(FoundFuture(partition, copy, take_back(self._disk, copy.path, partition)))

    def _refuse_duplicates(self) -> None:
        for partition, holders in self._holders.items():
            if len(holders) < 2:
                continue
            # An id that cannot be read may be anything: it is not the place for a guess.
            ids = [self._topic_id(d, partition) for d in holders]
            if None in ids or len(set(ids)) < len(ids):
                where = " and in ".join(d.path for d in holders)
                raise UnusableDirectories(
                    f"partition {partition} lies in {where}: keep the one that is to be used, and move the other "
                    "directory out of log.dirs"
                )

    # Which directory

    @property
    def metadata_path(self) -> str:
        """Where the metadata store is, or is to be."""
        for directory in self.online:
            if self._disk.exists(f"{directory.path}/{METADATA_STORE}"):
                return directory.path
        return self.online[0].path

    @property
    def clean(self) -> bool:
        """Whether the last broker here stopped in order, as far as can be seen."""
        return all(directory.clean for directory in self.online)

    def of(self, partition: TopicPartition) -> DataDirectory | None:
        """That which holds it; None when that is not known, or out of use."""
        holders = self._holders.get(partition)
        return holders[0] if holders and holders[0].path not in self.failed else None

    def by_path(self, path: str) -> DataDirectory | None:
        return next((directory for directory in self.online if directory.path == path), None)

    def place(self, partition: TopicPartition, topic_id: bytes, *, new: bool) -> DataDirectory:
        """The directory that holds the partition, or is to: of those that are not cordoned, the one with the fewest.

        Raises StorageError when it may be in a directory that is out of use.
        """
        holders = self._holders.get(partition)
        if holders:
            if len(holders) > 1:
                holders.sort(key=lambda d: self._topic_id(d, partition) != topic_id)
            if holders[0].path in self.failed:
                raise StorageError(f"its directory {holders[0].path} is out of use: {self.failed[holders[0].path]}")
            return holders[0]
        if not new:
            if self.failed:
                raise StorageError(f"it is in no directory that can be used; out of use: {', '.join(self.failed)}")
            blank = [d.path for d in self.online if d.blank]
            if blank and len(blank) < len(self.online):
                raise StorageError(
                    f"it is in no directory, and {', '.join(blank)} has nothing in it: a disk not mounted?"
                )
        chosen = min(self._open_to_new(), key=lambda d: self._counts[d.path])
        self._holders[partition] = [chosen]
        self._counts[chosen.path] += 1
        return chosen

    def _open_to_new(self) -> list[DataDirectory]:
        usable = [d for d in self.online if d.path not in self.failed]
        if not usable:
            raise StorageError("no data directory can be used")
        # What is made all the same (an internal topic) needs a place, though the controller refuses clients.
        cordoned = self.cordoned()
        return [d for d in usable if d.path not in cordoned] or usable

    def _topic_id(self, directory: DataDirectory, partition: TopicPartition) -> bytes | None:
        try:
            return read_partition_metadata(self._disk, f"{directory.path}/{partition}")
        except (OSError, CorruptLog):
            return None

    def moved(self, partition: TopicPartition, target: DataDirectory) -> None:
        """It lies in `target` from now on."""
        for holder in self._holders.get(partition, ()):
            self._counts[holder.path] -= 1
        self._holders[partition] = [target]
        self._counts[target.path] += 1

    # Failing

    def fail(self, path: str, reason: str) -> bool:
        """Take a directory out of use; False when it was already. Its lock and its place are kept."""
        if path in self.failed:
            return False
        self.failed[path] = reason
        return True

    @property
    def none_left(self) -> bool:
        return all(directory.path in self.failed for directory in self.online)

    def take_failures(self) -> dict[str, str]:
        """Directories whose small files could not be written or read since the last call, with the reasons."""
        found, self._newly_failed = self._newly_failed, {}
        return found

    # What every directory does

    def forget_others(self, exists: Callable[[TopicPartition], bool]) -> None:
        """At a start: the checkpoints tell no more of partitions that there are not, or that are in another directory.

        A broker that was killed after a deletion leaves such entries, and so does a move from a full disk. Directories
        of partitions that there are not stay, with a line in the log: an old copy of the metadata looks the same.
        """

        def forget(directory: DataDirectory) -> None:
            others = [key for key in directory.entries() if not exists(key) or self._is_elsewhere(directory, key)]
            if others:
                directory.give_up(*others)

        for path, error in self._in_each(forget).items():
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
                few = ",".join(strays[:STRAYS_NAMED])
                logger.warning(
                    "partitions of no topic left path=%s count=%d first=%s", directory.path, len(strays), few
                )

    def _is_elsewhere(self, directory: DataDirectory, partition: TopicPartition) -> bool:
        holders = self._holders.get(partition, ())
        return len(holders) > 0 and directory not in holders

    def holders(self, partition: TopicPartition) -> list[DataDirectory]:
        """Usable directories with a directory of its name in them."""
        return [d for d in self._holders.get(partition, ()) if d.path not in self.failed]

    def retire(self, logs: Mapping[str, Mapping[TopicPartition, tuple[bytes, "PartitionLog | None"]]]) -> list[str]:
        """See `DataDirectory.retire`; `logs` by the paths of their directories. Where they are now."""
        retired: list[str] = []
        for path, of_directory in logs.items():
            directory = self.by_path(path)
            assert directory is not None
            aside, error = directory.retire(of_directory)
            retired += aside
            if error is not None and error.errno not in PASSING:
                self._newly_failed[path] = str(error)
        return retired

    def forget(self, partition: TopicPartition) -> None:
        """Its topic was deleted."""
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
        """meta.properties of each; `new_ids` has one for every directory, in case it has none."""
        for directory, directory_id in zip(self.online, new_ids, strict=True):
            directory.write_identity(cluster_id, node_id, directory_id)

    def adopt_start_offsets(self) -> None:
        for directory in self._usable():
            directory.adopt_start_offsets()

    def write_checkpoints(
        self,
        recovery_points: Mapping[TopicPartition, int],
        start_offsets: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
    ) -> None:
        """Each directory its own partitions'. Raises OSError for a full disk, after all have been tried.

        Any other error is a failure of that directory.
        """
        _raise_passing(self.try_checkpoints(recovery_points, start_offsets, high_watermarks))

    def try_checkpoints(
        self,
        recovery_points: Mapping[TopicPartition, int],
        start_offsets: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
    ) -> dict[str, OSError]:
        """As `write_checkpoints`; the directories in which that failed, for whatever reason."""
        return self._in_each(
            lambda directory: directory.write_checkpoints(
                *(self._part(directory, offsets) for offsets in (recovery_points, start_offsets, high_watermarks))
            )
        )

    def _in_each(self, write: Callable[[DataDirectory], None]) -> dict[str, OSError]:
        failed: dict[str, OSError] = {}
        for directory in self._usable():
            try:
                write(directory)
            except OSError as error:
                failed[directory.path] = error
                if error.errno not in PASSING:
                    self._newly_failed[directory.path] = str(error)
        return failed

    def write_start_offsets(self, start_offsets: Mapping[TopicPartition, int]) -> dict[str, OSError]:
        """As `try_checkpoints`, before files below them go: none may go in the directories in which that failed."""
        return self._in_each(
            lambda directory: directory.write_start_offsets(self._part(directory, start_offsets)),
        )

    @property
    def are_behind(self) -> bool:
        """Whether a full disk has kept a checkpoint of one of them from being written, or has cost one."""
        return any(directory.is_behind for directory in self._usable())

    def clean_offset(self, partition: TopicPartition) -> int | None:
        """Up to where it is compacted, by the checkpoint of the directory that holds it."""
        holder = self.of(partition)
        return None if holder is None else holder.clean_offset(partition)

    def write_cleaner_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Each directory its own partitions'. Raises OSError as `write_checkpoints`."""
        _raise_passing(self._in_each(lambda directory: directory.write_cleaner_offsets(self._part(directory, offsets))))

    def _part(self, directory: DataDirectory, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if len(self.online) == 1:
            return dict(offsets)
        holders = self._holders
        return {key: offset for key, offset in offsets.items() if directory in holders.get(key, ())[:1]}

    def _usable(self) -> list[DataDirectory]:
        return [directory for directory in self.online if directory.path not in self.failed]

    # The end

    def close(self, unclean: Mapping[str, str]) -> None:
        """Mark each as left in order and unlock it, but those that failed or that `unclean` names, with the reasons."""
        for directory in self.online:
            reason = self.failed.get(directory.path) or unclean.get(directory.path)
            if reason is None:
                try:
                    directory.close_clean()
                except OSError as error:
                    reason = str(error)
            if reason is not None:
                logger.warning("not marked clean path=%s reason=%s", directory.path, reason)
        self.release()

    def release(self) -> None:
        for directory in self.online:
            directory.release()


def _raise_passing(failed: dict[str, OSError]) -> None:
    for error in failed.values():
        if error.errno in PASSING:
            raise error


def _properties(disk: "Disk", path: str) -> dict[str, str]:
    try:
        return read_properties(disk.read(path), path)
    except CorruptLog as error:
        raise UnusableDirectories(str(error)) from None
