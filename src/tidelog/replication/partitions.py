"""The partitions of this broker: open and remove logs as the metadata changes, and write their checkpoint files."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidelog.log.partition_log import PartitionLog
from tidelog.log.segment import TEMPORARY_ERRORS
from tidelog.metadata.image import CLUSTER_METADATA
from tidelog.model.ids import TopicPartition
from tidelog.replication.flusher import CHECKPOINTS_LANE, Flusher
from tidelog.replication.moves import Moves
from tidelog.replication.offsets import Offsets
from tidelog.replication.opening import DISK_THREADS, Opening, open_logs
from tidelog.replication.partition import Partition, SharedByPartitions
from tidelog.replication.retention import RetentionPasses
from tidelog.wire.errors import StorageError, UnknownTopicId, UnknownTopicOrPartition

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.directories import DataDirectories
    from tidelog.metadata.image import MetadataImage, TopicImage
    from tidelog.runtime.interfaces import Runtime

T = TypeVar("T")

logger = logging.getLogger("tidelog.partitions")

REMOVE_AGAIN_MS = 10_000
"""Delay before the next attempt to remove a deleted partition's files."""
HOUSEKEEPING_BATCH = 50
"""Number of partitions that are configured or removed in one turn of the event loop."""


WAKE_BUDGET_PER_TURN = 1000
"""Maximum work for parked fetches in one turn of the event loop, in the units that `ParkedFetch.wake` returns. It
takes some ms."""


class ParkedFetch(Protocol):
    def finish(self) -> None:
        """Respond now with the records that are available."""

    def wake(self) -> int:
        """Check the partitions whose high watermark has moved. Respond if there are enough bytes or the time limit
        has passed.

        Returns the amount of work done: about the number of partitions checked.
        """


class Partitions:
    """Every partition of this broker, by topic and index, and by topic id."""

    def __init__(
        self,
        runtime: "Runtime",
        directories: "DataDirectories",
        topic_config: Callable[["MetadataImage", str], "LogConfig"],
        *,
        flush_interval_ms: int,
    ) -> None:
        self._runtime = runtime
        self.directories = directories
        self._topic_config = topic_config
        self._shared = SharedByPartitions(runtime.turns)
        self._table: dict[tuple[str, int], Partition] = {}
        self._offline: dict[tuple[str, int], str] = {}
        self._topic_names: dict[bytes, str] = {}
        self.appending = False
        """Set by a request that appends several batches and then calls `wake_fetches`. This saves a turn of the
        event loop."""
        self._to_wake: deque[ParkedFetch] = deque()
        self._wake_budget = WAKE_BUDGET_PER_TURN
        """Remaining work until the budget is renewed. The renewal is scheduled for the loop's next turn when half of
        the budget is used."""
        self._renewal_scheduled = False
        self._parked: dict[ParkedFetch, None] = {}
        self._offsets = Offsets()
        self._retention_work: asyncio.Future[Any] | None = None
        """The running or last blocking call of retention. It continues if the task that waits for it is cancelled."""
        self._to_reopen: dict[tuple[str, int], tuple[TopicImage, LogConfig]] = {}
        """Partitions that could not be opened because of a temporary error (TEMPORARY_ERRORS), with their settings."""
        self._apply_lock = asyncio.Lock()
        """Held while logs are opened or removed."""
        self._failing_directories: dict[str, str] = {}
        self.on_all_failed: Callable[[str], None] | None = None
        """Called with the reason when the last data directory has failed."""
        self.on_opened_late: Callable[[], None] | None = None
        """Called when partitions that were offline have been opened and are led by this broker."""
        self.swapping: asyncio.Task[None] | None = None
        """The running or last swap of compaction. It continues if the pass is cancelled."""
        self.moves = Moves(runtime, self)
        self._retention = RetentionPasses(runtime, self)
        self.flusher = Flusher(runtime.tasks, flush_interval_ms, self.checkpoint, self._check_directories)
        self._shared.full.no_descriptors = self.flusher.sync_all_soon

    def get(self, topic: str, index: int) -> Partition:
        """Return the partition. Raises UnknownTopicOrPartition, or StorageError if its log could not be opened."""
        partition = self._table.get((topic, index))
        if partition is None:
            raise self._missing(topic, index)
        return partition

    def find(self, topic: str, index: int) -> Partition | None:
        return self._table.get((topic, index))

    def is_offline(self, topic: str, index: int) -> bool:
        """Return whether the partition's log could not be opened, or has failed since."""
        partition = self._table.get((topic, index))
        if partition is None:
            return (topic, index) in self._offline
        return partition.log.failure is not None

    def topic_name(self, topic_id: bytes) -> str:
        """Return the name of the topic with this id. Raises UnknownTopicId."""
        name = self._topic_names.get(topic_id)
        if name is None:
            raise UnknownTopicId("no topic has this id; it may have been deleted and created again")
        return name

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._table.values()))

    def __len__(self) -> int:
        return len(self._table)

    @property
    def count(self) -> int:
        """Number of partitions, including offline ones."""
        return len(self._table) + len(self._offline)

    @property
    def offline_count(self) -> int:
        """Number of partitions whose log could not be opened or has failed since."""
        return len(self._offline) + sum(p.log.failure is not None for p in self._table.values())

    def _missing(self, topic: str, index: int) -> Exception:
        reason = self._offline.get((topic, index))
        if reason is not None:
            return StorageError(f"{topic}-{index} is offline: {reason}")
        return UnknownTopicOrPartition(f"there is no partition {index} of topic {topic!r} here")

    # Waking parked fetches

    def wake_later(self, fetch: ParkedFetch) -> None:
        """Wake `fetch` after the produce request that is being appended; if there is none, in the loop's next turn.

        Called when the high watermark of one of its partitions has moved.
        """
        if not self._to_wake and not self.appending:
            self._runtime.tasks.call_soon(self.wake_fetches)
        self._to_wake.append(fetch)

    def wake_fetches(self) -> None:
        """Wake the queued parked fetches, in order. Fetches that exceed the budget are woken in later turns of the
        loop.

        Called when all batches of a produce request are appended.
        """
        self.appending = False
        if self._to_wake:
            self._wake()

    def wake_expired(self, fetch: ParkedFetch) -> None:
        """Wake `fetch`, whose time limit has passed, after the fetches that are queued already."""
        self._to_wake.append(fetch)
        self._wake()

    def _wake(self) -> None:
        while self._to_wake and self._wake_budget > 0:
            fetch = self._to_wake.popleft()
            self._wake_budget -= 1
            try:
                self._wake_budget -= fetch.wake()
            except Exception:
                # This runs inside a producer's request, which must not fail, and the other fetches must still be
                # woken.
                logger.exception("parked fetch failed")
        if self._wake_budget < WAKE_BUDGET_PER_TURN // 2 and not self._renewal_scheduled:
            self._renewal_scheduled = True
            self._runtime.tasks.call_soon(self._renew_wake_budget)

    def _renew_wake_budget(self) -> None:
        self._renewal_scheduled = False
        self._wake_budget = WAKE_BUDGET_PER_TURN
        self._wake()

    def park(self, fetch: ParkedFetch) -> None:
        """Register `fetch` until `unpark`, so that it is answered if the broker stops."""
        self._parked[fetch] = None

    def unpark(self, fetch: ParkedFetch) -> None:
        self._parked.pop(fetch, None)

    async def start(self) -> None:
        """Start the interval flush, and finish the removals and moves that were interrupted when the broker last
        ran.
        """
        self.flusher.start()
        for retired in await self._runtime.tasks.run_blocking(self.directories.retired):
            self.remove_later(retired, 0)
        await self.moves.resume(self.directories.interrupted)

    # Following the metadata

    async def apply(self, old: "MetadataImage", new: "MetadataImage") -> None:
        """Open new partitions, remove deleted ones, and apply changed settings. Returns when this broker leads every
        new partition.
        """
        async with self._apply_lock:
            await self._apply(old, new)

    async def _apply(self, old: "MetadataImage", new: "MetadataImage") -> None:
        if old.position == 0:
            await self._runtime.tasks.run_blocking(
                self.directories.forget_stale_entries, partial(_is_known, new), lane=CHECKPOINTS_LANE
            )
        removed_topics: dict[int, list[TopicImage]] = {}  # by the delay before their files are deleted
        for name, topic in old.topics.items():
            current = new.topics.get(name)
            if current is None or current.topic_id != topic.topic_id:
                removed_topics.setdefault(self._topic_config(old, name).file_delete_delay_ms, []).append(topic)
        for delay_ms, topics in removed_topics.items():
            await self._remove_topics(topics, delay_ms)
        to_open: list[tuple[TopicImage, int, LogConfig]] = []
        checked_partitions = 0
        for name, topic in new.topics.items():
            previous = old.topics.get(name)
            if previous is topic and old.broker_configs is new.broker_configs:
                continue
            config = self._topic_config(new, name)
            self._topic_names[topic.topic_id] = name
            for index in range(len(topic.partitions)):
                checked_partitions += 1
                if checked_partitions % HOUSEKEEPING_BATCH == 0:
                    await self._runtime.tasks.sleep(0)
                partition = self._table.get((name, index))
                if partition is None:
                    to_open.append((topic, index, config))
                else:
                    partition.leader_epoch = topic.partitions[index].leader_epoch
                    partition.log.configure(config)
                    partition.configure(config)
        if to_open:
            await self._open_all(to_open, new=old.position > 0)

    async def _open_all(self, to_open: list[tuple["TopicImage", int, "LogConfig"]], *, new: bool = False) -> None:
        openings: list[Opening] = []
        for topic, index, config in to_open:
            try:
                directory = self.directories.place(TopicPartition(topic.name, index), topic.topic_id, new=new)
                openings.append(Opening(topic, index, config, directory, new))
            except StorageError as error:
                self._note_open_failure(topic, index, config, error)
        for (topic, index, config, directory, _), result in await open_logs(self._runtime, openings):
            if isinstance(result, Exception):
                self._note_open_failure(topic, index, config, result)
                if isinstance(result, OSError) and result.errno not in TEMPORARY_ERRORS:
                    self.fail_soon(directory.path, str(result))
                continue
            result.on_io_failure = self._io_failed
            self._offline.pop((topic.name, index), None)
            self._to_reopen.pop((topic.name, index), None)
            partition = self._table[topic.name, index] = Partition(
                topic.name,
                topic.topic_id,
                index,
                result,
                leader_epoch=topic.partitions[index].leader_epoch,
                internal=topic.internal,
                clock=self._runtime.clock,
                tasks=self._runtime.tasks,
                flusher=self.flusher,
                shared=self._shared,
            )
            self._offsets.update(partition)

    def _note_open_failure(self, topic: "TopicImage", index: int, config: "LogConfig", error: Exception) -> None:
        if (topic.name, index) not in self._to_reopen:
            logger.error("partition offline partition=%s-%d reason=%s", topic.name, index, error)
        self._offline[topic.name, index] = str(error)
        if isinstance(error, OSError) and error.errno in TEMPORARY_ERRORS:
            self._to_reopen[topic.name, index] = topic, config

    async def _remove_topics(self, topics: list["TopicImage"], delay_ms: int) -> None:
        """Remove all partitions of `topics` together, so that they share the syncs of their directories."""
        removed: list[Partition] = []
        without_log: list[tuple[bytes, TopicPartition]] = []
        checked_partitions = 0
        for topic in topics:
            self._topic_names.pop(topic.topic_id, None)
            self._shared.warned_too_large.pop(topic.name, None)
            for index in range(len(topic.partitions)):
                checked_partitions += 1
                if checked_partitions % HOUSEKEEPING_BATCH == 0:
                    await self._runtime.tasks.sleep(0)
                self._offline.pop((topic.name, index), None)
                self._to_reopen.pop((topic.name, index), None)
                partition = self._table.pop((topic.name, index), None)
                if partition is None:
                    without_log.append((topic.topic_id, TopicPartition(topic.name, index)))
                else:
                    partition.deleted = True
                    # its files are being deleted, so a missing file is not an error of the disk
                    partition.log.on_io_failure = None
                    self._offsets.forget(partition)
                    partition.fail()
                    removed.append(partition)
        if removed:
            await self.wait_for_file_work()  # otherwise a running flush would find the files missing
        # Sort them by directory. Partitions in a failed directory stay there; they are put aside when a new topic
        # with that name is created there.
        logs: dict[str, dict[TopicPartition, tuple[bytes, PartitionLog | None]]] = {}
        for topic_id, key in without_log:
            for directory in self.directories.holders(key):
                logs.setdefault(directory.path, {})[key] = topic_id, None
        for partition in removed:
            log = partition.log
            if self.directories.of(log.topic_partition) is not None:
                path = log.directory.rpartition("/")[0]
                logs.setdefault(path, {})[log.topic_partition] = partition.topic_id, log
        retired = await self._runtime.tasks.run_blocking(self.directories.retire, logs, lane=CHECKPOINTS_LANE)
        self._runtime.tasks.call_later(delay_ms / 1000, partial(self._remove_soon, retired))
        for key in [*(key for _, key in without_log), *(partition.log.topic_partition for partition in removed)]:
            self.directories.forget(key)
        self.handle_directory_failures()
        self.retry_late_checkpoints()

    def remove_later(self, retired: str, delay_ms: int, log: PartitionLog | None = None) -> None:
        """Delete the files of a partition that was put aside, after `delay_ms`, when no reader uses them any more.

        `log` is the partition's log if it is still open; it is closed first.
        """

        def remove() -> None:
            if log is not None:
                log.close(clean=False)
            self._remove_soon([retired])

        self._runtime.tasks.call_later(delay_ms / 1000, remove)

    def _remove_soon(self, retired: list[str]) -> None:
        if retired:
            self._runtime.tasks.spawn(self._remove_all(retired), name="remove-deleted")

    async def _remove_all(self, retired: list[str]) -> None:
        for path in retired:
            await self._remove(path)

    async def _remove(self, retired: str) -> None:
        run_blocking = self._runtime.tasks.run_blocking
        try:
            await run_blocking(self.directories.empty_retired, retired)
            await run_blocking(self.directories.remove_retired, retired, lane=CHECKPOINTS_LANE)
        except OSError as error:
            logger.error("deleted partition not removed path=%s reason=%s", retired, error)
            if error.errno in TEMPORARY_ERRORS:
                self.remove_later(retired, REMOVE_AGAIN_MS)

    # Directories that fail

    def _io_failed(self, log: PartitionLog, error: OSError) -> None:
        """Take the log's directory out of use after an error of the disk.

        This happens in the loop's next turn, since the error may come from inside an append.
        """
        self.fail_soon(log.directory.rpartition("/")[0], str(error))

    def fail_soon(self, path: str, reason: str) -> None:
        """Take a data directory out of use in the next turn of the loop."""
        if not self._failing_directories:
            self._runtime.tasks.call_soon(self._fail_directories)
        self._failing_directories.setdefault(path, reason)

    def _fail_directories(self) -> None:
        """Take the failing directories and all their partitions offline. Logs one line for each directory."""
        failing, self._failing_directories = self._failing_directories, {}
        for path, reason in failing.items():
            if not self.directories.fail(path, reason):
                continue
            affected = [p for p in self._table.values() if p.log.directory.rpartition("/")[0] == path]
            logger.error("directory offline path=%s partitions=%d reason=%s", path, len(affected), reason)
            for partition in affected:
                partition.log.fail(f"its data directory {path} is out of use: {reason}", say=False)
                partition.fail()
            if self.directories.all_failed and self.on_all_failed is not None:
                self.on_all_failed(f"no data directory is left: {path}: {reason}")

    # Durability and housekeeping

    def _check_directories(self) -> None:
        """At each flush interval, handle failures that threads have recorded, and check whether full disks have
        space again.
        """
        self.handle_directory_failures()
        if self._shared.full or self._to_reopen:
            self._runtime.tasks.spawn(self._retry_refused(), name="retry-full-directories")

    def handle_directory_failures(self) -> None:
        for path, reason in self.directories.take_failures().items():
            self.fail_soon(path, reason)

    async def _retry_refused(self) -> None:
        full = self._shared.full
        full.mark_usable(await self._runtime.tasks.run_blocking(full.find_usable, self._runtime.disk))
        await self.open_again()

    def update_offsets(self, partition: Partition) -> None:
        """Store the partition's offsets for the next checkpoint, after retention or a switch of its log."""
        self._offsets.update(partition)

    def start_offsets(self) -> dict[TopicPartition, int]:
        """Return a copy of all log start offsets, for a thread to write."""
        return self._offsets.start_offsets()

    def checkpoint(self, changed: Iterable[Partition]) -> Callable[[], None]:
        """Return a function for a thread that persists recovery points, log start offsets and high watermarks.

        Only the offsets of the `changed` partitions are read anew, so the work on the loop is proportional to their
        number and not to the number of all partitions.
        """
        for partition in changed:
            if not partition.deleted:
                self._offsets.update(partition)
        return partial(self.directories.write_checkpoints, *self._offsets.copies())

    async def persist_start_offsets(self, changed: Iterable[Partition]) -> list[Partition]:
        """Persist the log start offsets of the `changed` partitions now. Returns the partitions for which this
        failed.

        Everything below the start offsets is made durable first; see `Offsets.update`.
        """
        not_persisted: list[Partition] = []
        remaining = list(changed)
        while remaining:
            for partition in remaining:
                await (
                    partition.wait_until_thawed()
                )  # during a move, the offset could be written into the wrong directory
                await self.flusher.flush_to(partition, partition.log.log_start_offset)
            logs = [(partition, partition.log) for partition in remaining]
            undurable = {p for p in remaining if p.log.durable_offset < p.log.log_start_offset}
            for partition in remaining:
                if not partition.deleted:
                    self._offsets.update(partition)
            failed = await self._runtime.tasks.run_blocking(
                self.directories.try_checkpoints, *self._offsets.copies(), lane=CHECKPOINTS_LANE
            )
            remaining = [partition for partition, log in logs if partition.frozen or partition.log is not log]
            for partition, log in logs:
                if partition not in remaining and (
                    partition.deleted
                    or partition in undurable
                    or log.failure is not None
                    or log.directory.rpartition("/")[0] in failed
                ):
                    not_persisted.append(partition)
        return not_persisted

    async def open_again(self) -> None:
        """Try to open the partitions that could not be opened because of a full disk or another temporary error."""
        if self._to_reopen and not self._apply_lock.locked():  # if the lock is held, the next interval tries again
            async with self._apply_lock:
                to_open = [(topic, index, config) for (_, index), (topic, config) in self._to_reopen.items()]
                await self._open_all(to_open)
                if self.on_opened_late is not None and len(self._to_reopen) < len(to_open):
                    self.on_opened_late()

    async def enforce_retention(self) -> None:
        """Delete whole segments according to the topics' retention settings. One call at a time."""
        await self._retention.enforce()

    def retry_late_checkpoints(self) -> None:
        """If checkpoints could not be written on a full disk, make the flusher write them at its next interval, even
        if nothing is appended.
        """
        if self.directories.are_behind:
            self.flusher.retry_checkpoint()

    async def run_file_work(self, function: Callable[..., T], *args: object, lane: str = "") -> T:
        """Run file work of retention on a thread; `wait_for_file_work` waits for it."""
        self._retention_work = running = self._runtime.tasks.run_blocking(function, *args, lane=lane)
        await asyncio.wait([running])
        return running.result()

    async def wait_for_file_work(self) -> None:
        """Wait until no thread uses files of partitions that were marked deleted before the call."""
        await self.flusher.wait_for_flushes()
        retention_work = self._retention_work
        if retention_work is not None:
            await asyncio.wait([retention_work])
            retention_work.exception()  # retrieve it: the task that waited for it may have been cancelled
        if self.swapping is not None:
            await asyncio.wait([self.swapping])

    def release_waiting(self) -> None:
        """Answer parked fetches with the records that are available, because the broker stops."""
        for fetch in list(self._parked):
            fetch.finish()

    async def close(self) -> dict[str, str]:
        """Sync and close every log, and write the checkpoints.

        Returns the directories that must not be marked clean, with the reasons: they hold an offline partition,
        whose log the next start must recover.
        """
        await self.moves.close()
        self._retention.cancel_time_searches()
        self.flusher.stop()
        await self.wait_for_file_work()
        for partition in self._table.values():
            partition.close_queue()
            # the callback must run on the loop, but the logs are closed by threads; and a failed directory changes
            # nothing now
            partition.log.on_io_failure = None
        closing = [p for p in self._table.values() if p.log.failure is None]
        run_blocking = self._runtime.tasks.run_blocking
        # In parallel, syncs share the file system's commits.
        shares = [closing[i::DISK_THREADS] for i in range(DISK_THREADS)]
        await asyncio.gather(*(run_blocking(_close_logs, share) for share in shares))
        unclean = {}
        for partition in self._table.values():
            if partition.log.failure is not None:
                unclean[partition.log.directory.rpartition("/")[0]] = f"{partition.log.topic_partition} is offline"
        for topic, index in self._offline:
            directory = self.directories.of(TopicPartition(topic, index))
            if directory is not None:
                unclean[directory.path] = f"{topic}-{index} is offline"
        await run_blocking(self.checkpoint(self._table.values()), lane=CHECKPOINTS_LANE)
        return unclean

    async def abandon(self) -> None:
        """Close the logs without syncing them, after a start that failed. The next start recovers them."""
        await self.moves.close()
        self._retention.cancel_time_searches()
        self.flusher.stop()
        await self.wait_for_file_work()
        for partition in self._table.values():
            partition.log.close(clean=False)


def _is_known(image: "MetadataImage", key: TopicPartition) -> bool:
    """Return whether the partition exists, or belongs to Kafka's own metadata topic, whose files are not touched."""
    if key.topic == CLUSTER_METADATA:
        return True
    topic = image.topics.get(key.topic)
    return topic is not None and key.partition < len(topic.partitions)


def _close_logs(partitions: list[Partition]) -> None:
    """Sync and close the logs, on a thread. A failure of one log does not stop the others."""
    for partition in partitions:
        partition.log.close(clean=True)
