"""All partitions of this broker, and the work that is done for all of them: waking of fetches, failed data directories,
syncs, retention, and the checkpoint files.

`table.py` finds partitions by topic or id. `reconcile.py` applies the metadata.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidelog.model.ids import TopicPartition
from tidelog.replication.cuts import Cuts
from tidelog.replication.flusher import CHECKPOINTS_LANE, Flusher
from tidelog.replication.moves import Moves
from tidelog.replication.offsets import Offsets
from tidelog.replication.opening import DISK_THREADS
from tidelog.replication.partition import Partition
from tidelog.replication.reconcile import Reconciler
from tidelog.replication.replica import LAG_MAX_MS, AskForIsr, CutTo, FetchFrom
from tidelog.replication.retention import RetentionPasses
from tidelog.replication.shared_state import PeerWork, SharedByPartitions
from tidelog.replication.table import PartitionTable

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.directories import DataDirectories
    from tidelog.log.partition_log import PartitionLog
    from tidelog.metadata.image import MetadataImage
    from tidelog.replication.synced_mark import SyncedMark
    from tidelog.runtime.interfaces import Runtime

T = TypeVar("T")

logger = logging.getLogger("tidelog.partitions")

WAKE_BUDGET_PER_TURN = 1000
"""Maximum work for parked fetches in one turn of the event loop, in the units that `ParkedFetch.wake` returns. This
amount of work takes some ms."""


class ParkedFetch(Protocol):
    """A fetch request that waits for records."""

    def finish(self) -> None:
        """Respond now with the records that are available."""

    def wake(self) -> int:
        """Check the partitions whose high watermark has moved. Respond if there are enough bytes or the time limit
        has passed.

        Returns the amount of work done: about the number of partitions checked.
        """


class Partitions(PartitionTable):
    """Every partition of this broker, by topic and index, and by topic id."""

    def __init__(
        self,
        runtime: "Runtime",
        directories: "DataDirectories",
        topic_config: Callable[["MetadataImage", str], "LogConfig"],
        *,
        node_id: int,
        flush_interval_ms: int,
        lag_max_ms: int = LAG_MAX_MS,
    ) -> None:
        super().__init__(node_id)
        self._runtime = runtime
        self.directories = directories
        self.shared = SharedByPartitions(runtime.turns)
        self.lag_max_ms = lag_max_ms
        """`replica.lag.time.max.ms`"""
        self.appending = False
        """True while a produce request appends its batches. The request then calls `wake_fetches`, so the fetches are
        woken by this call, and not in the next turn of the event loop."""
        self._to_wake: deque[ParkedFetch] = deque()
        self._followers_to_wake: list[ParkedFetch] = []
        self._must_answer_followers = False
        self._wake_budget = WAKE_BUDGET_PER_TURN
        """How much work may still be done before the budget is renewed. When more than half of the budget is used, its
        renewal is scheduled for the loop's next turn."""
        self._renewal_scheduled = False
        self._parked: dict[ParkedFetch, None] = {}
        self.offsets = Offsets()
        self._retention_work: asyncio.Future[Any] | None = None
        """The blocking call of retention that is running, or else the last one. A running call continues even if the
        task that waits for it is cancelled."""
        self._failing_directories: dict[str, str] = {}
        self.on_all_failed: Callable[[str], None] | None = None
        """Called with the reason when all data directories have failed."""
        self.swapping: asyncio.Task[None] | None = None
        """The call that is replacing segments by compacted ones, or else the last such call. A running call continues
        even if the pass of compaction is cancelled."""
        self.moves = Moves(runtime, self)
        self.cuts = Cuts(runtime, self)
        self.reconciler = Reconciler(runtime, self, topic_config, node_id)
        self._retention = RetentionPasses(runtime, self)
        self.flusher = Flusher(runtime.tasks, flush_interval_ms, self.checkpoint, self._check_directories)
        self.shared.full_directories.on_no_descriptor = self.flusher.sync_all_soon
        self.shared.on_peer_work = self._begin_peer_work
        self.on_peer_work: Callable[[Partition, AskForIsr | FetchFrom], None] | None = None
        """Called when a replica needs the controller or another broker. This function must not wait."""
        self.synced_mark: SyncedMark | None = None
        """None if this broker is alone in its cluster, and before it is registered."""

    def may_be_offline(self, topic: str) -> bool:
        """Return whether a partition of this topic may be offline. If the result is False, no partition of the topic is
        offline.
        """
        return bool(self.unopened) or topic in self.shared.failed_topics

    def watch_roles(self, topic: str, watcher: Callable[[Partition], None]) -> None:
        """Call `watcher` whenever this broker begins or stops leading a partition of the topic, and whenever a
        replica of the topic on this broker gets a new leader epoch, goes offline or is deleted. The call is made
        immediately, before the waiting requests get their errors. `watcher` must not wait or raise.

        Each topic has at most one watcher.
        """
        self.shared.role_watchers[topic] = watcher

    def _begin_peer_work(self, partition: Partition, work: "PeerWork") -> None:
        if isinstance(work, CutTo):
            self.cuts.begin(partition, work)
        elif self.on_peer_work is not None:
            self.on_peer_work(partition, work)

    # Waking parked fetches

    def wake_later(self, fetch: ParkedFetch) -> None:
        """Wake `fetch` after the produce request that is being appended, or in the loop's next turn if no request is
        being appended.

        Called when the high watermark of one of its partitions has moved.
        """
        if not self._to_wake and not self.appending:
            self._runtime.tasks.call_soon(self.wake_fetches)
        self._to_wake.append(fetch)

    def wake_follower_later(self, fetch: ParkedFetch) -> None:
        """Wake `fetch`, the request of a follower, in the loop's next turn. Until then, the produce requests that have
        already arrived on any connection are appended, so one answer contains the records of all of them.
        """
        if not self._followers_to_wake:
            self._runtime.tasks.call_soon(self._wake_followers)
        self._followers_to_wake.append(fetch)

    def _wake_followers(self) -> None:
        self._to_wake.extend(self._followers_to_wake)
        self._followers_to_wake.clear()
        self._wake()

    def answer_followers_soon(self) -> None:
        """Respond to the waiting fetches of followers in the loop's next turn. Called after this broker has become the
        leader of more partitions.

        A follower can name these partitions only in its next fetch. Without this call, the follower would wait until
        the time limit of its present fetch (`replica.fetch.wait.max.ms`). Until then, no write with acks=all to these
        partitions could be acknowledged.
        """
        if self.shared.end_watchers and not self._must_answer_followers:
            self._must_answer_followers = True
            self._runtime.tasks.call_soon(self._answer_followers)

    def _answer_followers(self) -> None:
        self._must_answer_followers = False
        watchers: Container[object] = self.shared.end_watchers
        for fetch in [fetch for fetch in self._parked if fetch in watchers]:
            fetch.finish()

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
                # This may run inside a produce request, which must not fail. The other fetches must still be woken.
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
        """Start the interval flush, and resume the removals and moves that the last stop of the broker interrupted."""
        self.flusher.start()
        for retired in await self._runtime.tasks.run_blocking(self.directories.retired):
            self.reconciler.remove_later(retired, 0)
        await self.moves.resume(self.directories.interrupted)

    # Directories that fail

    def handle_io_failure(self, log: "PartitionLog", error: OSError) -> None:
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
            affected = [p for p in self.opened.values() if p.log.directory.rpartition("/")[0] == path]
            logger.error("directory offline path=%s partitions=%d reason=%s", path, len(affected), reason)
            for partition in affected:
                partition.log.fail(f"its data directory {path} is out of use: {reason}", say=False)
                partition.fail()
            if self.directories.all_failed and self.on_all_failed is not None:
                self.on_all_failed(f"no usable data directory is left, because {path} failed: {reason}")

    # Durability and housekeeping

    def _check_directories(self) -> None:
        """At each flush interval, handle failures that threads have recorded, and check whether full disks have
        space again.
        """
        self.handle_directory_failures()
        if self.shared.full_directories or self.reconciler.to_reopen:
            self._runtime.tasks.spawn(self._retry_refused(), name="retry-full-directories")

    def handle_directory_failures(self) -> None:
        for path, reason in self.directories.take_failures().items():
            self.fail_soon(path, reason)

    async def _retry_refused(self) -> None:
        full_directories = self.shared.full_directories
        usable = await self._runtime.tasks.run_blocking(full_directories.find_usable, self._runtime.disk)
        full_directories.mark_usable(usable)
        await self.open_again()

    def update_offsets(self, partition: Partition) -> None:
        """Store the partition's offsets for the next checkpoint, after the log or its start has changed."""
        self.offsets.update(partition)

    def start_offsets(self) -> dict[TopicPartition, int]:
        """Return a copy of all log start offsets, which a thread can then write."""
        return self.offsets.start_offsets()

    def checkpoint(self, changed: Iterable[Partition]) -> Callable[[], None]:
        """Return a blocking function that persists recovery points, log start offsets and high watermarks.

        Only the offsets of the `changed` partitions are read again. So the work on the loop is proportional to the
        number of changed partitions, not to the number of all partitions.
        """
        for partition in changed:
            if not partition.deleted:
                self.offsets.update(partition)
        return partial(self.directories.write_checkpoints, *self.offsets.copies())

    async def persist_start_offsets(self, changed: Iterable[Partition]) -> list[Partition]:
        """Persist the log start offsets of the `changed` partitions now. Returns the partitions for which this
        failed.

        Everything below the start offsets is made durable first; see `Offsets.update`.
        """
        not_persisted: list[Partition] = []
        remaining = list(changed)
        while remaining:
            for partition in remaining:
                # During a move, the offset could be written into the wrong directory.
                await partition.wait_until_thawed()
                await self.flusher.flush_to(partition, partition.log.log_start_offset)
            logs = [(partition, partition.log) for partition in remaining]
            undurable = {p for p in remaining if p.log.durable_offset < p.log.log_start_offset}
            for partition in remaining:
                if not partition.deleted:
                    self.offsets.update(partition)
            failed = await self._runtime.tasks.run_blocking(
                self.directories.try_checkpoints, *self.offsets.copies(), lane=CHECKPOINTS_LANE
            )
            # If a cut or move of a partition began while the files were written, the files may lack its offset.
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
        await self.reconciler.open_again()

    async def enforce_retention(self) -> None:
        """Delete whole segments according to the topics' retention settings. Only one call may run at a time."""
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
        """Wait for the file work that is running now. Afterwards, no thread uses files of partitions that were marked
        deleted or frozen before the call.
        """
        await self.flusher.wait_for_flushes()
        await self.cuts.wait_for_threads()
        retention_work = self._retention_work
        if retention_work is not None:
            await asyncio.wait([retention_work])
            retention_work.exception()  # retrieve the exception: the task that waited for the work may be cancelled
        if self.swapping is not None:
            await asyncio.wait([self.swapping])

    def release_waiting(self) -> None:
        """Answer parked fetches with the records that are available. Called when the broker stops."""
        for fetch in list(self._parked):
            fetch.finish()

    async def close(self) -> dict[str, str]:
        """Sync and close every log, and write the checkpoints.

        Returns the directories that must not be marked clean, with the reasons. Each contains the log of an offline
        partition, which the next start must recover.
        """
        await self.moves.close()
        await self.cuts.close()
        self._retention.cancel_time_searches()
        self.flusher.stop()
        if self.synced_mark is not None:
            await self.synced_mark.close()
        await self.wait_for_file_work()
        for partition in self.opened.values():
            partition.close_queue()
            # Threads close the logs, but this callback must run on the loop. The broker stops, so it does not need the
            # callback any more.
            partition.log.on_io_failure = None
        closing = [p for p in self.opened.values() if p.log.failure is None]
        run_blocking = self._runtime.tasks.run_blocking
        # Syncs that run in parallel share the file system's commits.
        shares = [closing[i::DISK_THREADS] for i in range(DISK_THREADS)]
        await asyncio.gather(*(run_blocking(_close_logs, share) for share in shares))
        unclean = {}
        for partition in self.opened.values():
            if partition.log.failure is not None:
                unclean[partition.log.directory.rpartition("/")[0]] = f"{partition.log.topic_partition} is offline"
        for topic, index in self.unopened:
            directory = self.directories.of(TopicPartition(topic, index))
            if directory is not None:
                unclean[directory.path] = f"{topic}-{index} is offline"
        await run_blocking(self.checkpoint(self.opened.values()), lane=CHECKPOINTS_LANE)
        return unclean

    async def abandon(self) -> None:
        """Close the logs without syncing them, after a start that failed. The next start recovers them."""
        await self.moves.close()
        await self.cuts.close()
        self._retention.cancel_time_searches()
        self.flusher.stop()
        if self.synced_mark is not None:
            await self.synced_mark.close()
        await self.wait_for_file_work()
        for partition in self.opened.values():
            partition.log.close(clean=False)


def _close_logs(partitions: list[Partition]) -> None:
    """Sync and close the logs, on a thread. If one log fails, the other logs are still closed."""
    for partition in partitions:
        partition.log.close(clean=True)
