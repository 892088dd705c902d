"""The partitions on this broker: follows the metadata image, opens and removes logs, keeps their checkpoints."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.log.errors import CorruptLog
from tidelog.log.partition_log import PartitionLog
from tidelog.replication.flusher import CHECKPOINTS_LANE, Flusher
from tidelog.replication.offsets import Offsets
from tidelog.replication.partition import Partition
from tidelog.wire.errors import StorageError, UnknownTopicId, UnknownTopicOrPartition

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.directory import DataDirectory
    from tidelog.log.retention import Removal
    from tidelog.metadata.image import MetadataImage, TopicImage
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.partitions")

DISK_THREADS = 4
HOUSEKEEPING_BATCH = 50
"""Partitions that retention looks at in one turn of the loop, and whose start offsets are persisted at once."""


class ParkedFetch(Protocol):
    def finish(self) -> None:
        """Answer now, with what there is."""

    def wake(self) -> None:
        """Look again at what moved, and answer if that is enough."""


class Partitions:
    """Every partition of this broker, by topic and index, and by topic id."""

    def __init__(
        self,
        runtime: "Runtime",
        directory: "DataDirectory",
        topic_config: Callable[["MetadataImage", str], "LogConfig"],
        *,
        flush_interval_ms: int,
    ) -> None:
        self._runtime = runtime
        self._directory = directory
        self._topic_config = topic_config
        self._table: dict[tuple[str, int], Partition] = {}
        self._offline: dict[tuple[str, int], str] = {}
        self._topic_names: dict[bytes, str] = {}
        self.appending = False
        """Set by who appends several batches and calls `wake_fetches` after them: a turn of the loop is saved."""
        self._to_wake: list[ParkedFetch] = []
        self._parked: dict[ParkedFetch, None] = {}
        self._offsets = Offsets()
        self._housework: asyncio.Future[Any] | None = None
        """Retention's blocking call that runs or was the last: it outlives the task that waits for it."""
        self._passing: dict[tuple[str, int], tuple[TopicImage, LogConfig]] = {}  # not opened for want of something
        self.flusher = Flusher(runtime.tasks, flush_interval_ms, self.checkpoint)

    def get(self, topic: str, index: int) -> Partition:
        """Raises UnknownTopicOrPartition, or StorageError for one whose log could not be opened."""
        found = self._table.get((topic, index))
        if found is None:
            raise self._missing(topic, index)
        return found

    def find(self, topic: str, index: int) -> Partition | None:
        return self._table.get((topic, index))

    def topic_name(self, topic_id: bytes) -> str:
        """Raises UnknownTopicId."""
        name = self._topic_names.get(topic_id)
        if name is None:
            raise UnknownTopicId("no topic has this id; it may have been deleted and made again")
        return name

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._table.values()))

    def __len__(self) -> int:
        return len(self._table)

    @property
    def offline_count(self) -> int:
        """Partitions that could not be opened, or whose log has failed since."""
        return len(self._offline) + sum(p.log.failure is not None for p in self._table.values())

    def _missing(self, topic: str, index: int) -> Exception:
        reason = self._offline.get((topic, index))
        if reason is not None:
            return StorageError(f"{topic}-{index} is offline: {reason}")
        return UnknownTopicOrPartition(f"there is no partition {index} of topic {topic!r} here")

    # Waking parked fetches

    def wake_later(self, fetch: ParkedFetch) -> None:
        """`fetch` has news; it is woken when the request that is being appended is, else in the loop's next turn."""
        if not self._to_wake and not self.appending:
            self._runtime.tasks.call_soon(self.wake_fetches)
        self._to_wake.append(fetch)

    def wake_fetches(self) -> None:
        """Let every parked fetch with news look again. Called when all of a request's batches are appended."""
        self.appending = False
        while self._to_wake:
            waking, self._to_wake = self._to_wake, []
            for fetch in waking:
                try:
                    fetch.wake()
                except Exception:
                    # Called for a producer, who is not at fault, and on behalf of all the others.
                    logger.exception("parked fetch failed")

    def park(self, fetch: ParkedFetch) -> None:
        """Remember it until `unpark`, for the day when the broker stops."""
        self._parked[fetch] = None

    def unpark(self, fetch: ParkedFetch) -> None:
        self._parked.pop(fetch, None)

    async def start(self) -> None:
        """Begin to flush now and then; finish removals that the last broker here did not come to."""
        self.flusher.start()
        for retired in await self._runtime.tasks.run_blocking(self._directory.retired):
            self._remove_later(retired, 0)

    # Following the metadata

    async def apply(self, old: "MetadataImage", new: "MetadataImage") -> None:
        """Open what is new, remove what is gone, take changed settings. Returns when every new partition leads."""
        for name, topic in old.topics.items():
            now = new.topics.get(name)
            if now is None or now.topic_id != topic.topic_id:
                await self._remove_topic(topic)
        opening: list[tuple[TopicImage, int, LogConfig]] = []
        breath = HOUSEKEEPING_BATCH
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is topic and old.broker_configs is new.broker_configs:
                continue
            if len(opening) >= breath:
                breath = len(opening) + HOUSEKEEPING_BATCH
                await self._runtime.tasks.sleep(0)
            config = self._topic_config(new, name)
            self._topic_names[topic.topic_id] = name
            for index in range(len(topic.partitions)):
                known = self._table.get((name, index))
                if known is None:
                    opening.append((topic, index, config))
                else:
                    known.leader_epoch = topic.partitions[index].leader_epoch
                    known.log.configure(config)
                    known.configure(config)
        if opening:
            await self._open_all(opening)

    async def _open_all(self, opening: list[tuple["TopicImage", int, "LogConfig"]]) -> None:
        # Side by side, syncs of new directories share the file system's commits.
        shares = [opening[i::DISK_THREADS] for i in range(min(DISK_THREADS, len(opening)))]
        run_blocking = self._runtime.tasks.run_blocking
        results = await asyncio.gather(*(run_blocking(self._open_blocking, share) for share in shares))
        for (topic, index, config), result in zip(chain(*shares), chain(*results), strict=True):
            if isinstance(result, Exception):
                self._offline[topic.name, index] = str(result)
                if isinstance(result, OSError):
                    self._passing[topic.name, index] = topic, config
                logger.error("partition offline partition=%s-%d reason=%s", topic.name, index, result)
                continue
            self._offline.pop((topic.name, index), None)
            self._passing.pop((topic.name, index), None)
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
            )
            self._offsets.note(partition)

    def _open_blocking(
        self, opening: list[tuple["TopicImage", int, "LogConfig"]]
    ) -> list["PartitionLog | CorruptLog | OSError"]:
        results: list[PartitionLog | CorruptLog | OSError] = []
        now_ms = self._runtime.clock.now_ms()
        for topic, index, config in opening:
            try:
                results.append(self._directory.open_partition(topic.name, index, topic.topic_id, config, now_ms))
            except (CorruptLog, OSError) as error:
                results.append(error)
        return results

    async def _remove_topic(self, topic: "TopicImage") -> None:
        self._topic_names.pop(topic.topic_id, None)
        removed: list[Partition] = []
        for index in range(len(topic.partitions)):
            self._offline.pop((topic.name, index), None)
            self._passing.pop((topic.name, index), None)
            partition = self._table.pop((topic.name, index), None)
            if partition is not None:
                partition.deleted = True
                self._offsets.forget(partition)
                partition.fail()
                removed.append(partition)
        if removed:
            await self._settled()  # a flush that runs would find the files gone
        for partition in removed:
            try:
                retired = await self._runtime.tasks.run_blocking(
                    self._directory.retire_partition, partition.log, partition.topic_id, lane=CHECKPOINTS_LANE
                )
            except OSError as error:
                # The next start finds a directory that no topic has, and says so.
                logger.error(
                    "deleted partition not put aside partition=%s-%d reason=%s", topic.name, partition.index, error
                )
                continue
            self._remove_later(retired, partition.config.file_delete_delay_ms)

    def _remove_later(self, retired: str, delay_ms: int) -> None:
        """Take a deleted partition off the disk when no reader can be in it any more."""

        def remove() -> None:
            self._runtime.tasks.spawn(self._remove(retired), name="remove-deleted")

        self._runtime.tasks.call_later(delay_ms / 1000, remove)

    async def _remove(self, retired: str) -> None:
        try:
            await self._runtime.tasks.run_blocking(self._directory.remove_retired, retired)
        except OSError as error:
            logger.error("deleted partition not removed path=%s reason=%s", retired, error)

    # Durability and housekeeping

    def checkpoint(self, moved: Iterable[Partition]) -> Callable[[], None]:
        """What to run on a thread to persist recovery points, log start offsets and high watermarks, once those of the
        `moved` are looked at. The work on the loop is in proportion to these, not to all that are held.
        """
        for partition in moved:
            if not partition.deleted:
                self._offsets.note(partition)
        return partial(self._directory.write_checkpoints, *self._offsets.copies())

    async def open_again(self) -> None:
        """Try partitions that a full disk, or another passing error, kept from being opened."""
        if self._passing:
            await self._open_all([(topic, index, config) for (_, index), (topic, config) in self._passing.items()])

    async def enforce_retention(self) -> None:
        """Drop whole segments that the topics' settings no longer keep. One call at a time."""
        every = iter(self)
        while batch := list(islice(every, HOUSEKEEPING_BATCH)):
            removals = [(p, removal) for p in batch if (removal := await self._retire(p)) is not None]
            if any(removal.begins for _, removal in removals):
                starts = self._offsets.start_offsets()
                await self._work(self._directory.write_start_offsets, starts, lane=CHECKPOINTS_LANE)
            for partition, removal in removals:
                if not partition.deleted:
                    try:
                        await self._work(removal.run)
                    except OSError as error:
                        self._retention_failed(partition, error)
            await self._runtime.tasks.sleep(0)

    async def _retire(self, partition: Partition) -> "Removal | None":
        """Take segments out of the log; what to do about their files."""
        log = partition.log
        now_ms = self._runtime.clock.now_ms()
        try:
            look = log.times_look(now_ms) if not partition.deleted else None
            if look is not None:
                await self._work(look.run)
                look.take()
            if partition.deleted or log.failure is not None:
                return None
            if log.apply_retention(now_ms, partition.high_watermark):
                self._offsets.note(partition)
        except (StorageError, OSError, CorruptLog) as error:
            if isinstance(error, CorruptLog):
                log.fail(str(error))
            self._retention_failed(partition, error)
            return None
        return log.removal(now_ms)

    def _retention_failed(self, partition: Partition, error: Exception) -> None:
        if not partition.deleted:
            logger.error("retention failed partition=%s-%d reason=%s", partition.topic, partition.index, error)
            if partition.log.failure is not None:
                partition.fail()

    async def _work(self, function: Callable[..., object], *args: object, lane: str = "") -> None:
        self._housework = running = self._runtime.tasks.run_blocking(function, *args, lane=lane)
        await asyncio.wait([running])
        running.result()

    async def _settled(self) -> None:
        """Return once nothing on a thread touches files of partitions that were marked deleted before the call."""
        await self.flusher.settled()
        housework = self._housework
        if housework is not None:
            await asyncio.wait([housework])
            housework.exception()  # whoever waited for it has it, unless that task was cancelled

    def release_waiting(self) -> None:
        """Answer parked fetches with what there is; the broker stops."""
        for fetch in list(self._parked):
            fetch.finish()

    async def close(self) -> bool:
        """Sync and close every log, write the checkpoints. Whether the directory may be marked clean.

        It may not while a partition is offline: the next start must look at that log again, not trust it.
        """
        self.flusher.stop()
        await self._settled()
        closing = [p for p in self._table.values() if p.log.failure is None]
        clean = len(closing) == len(self._table) and not self._offline
        run_blocking = self._runtime.tasks.run_blocking
        # Side by side, syncs share the file system's commits.
        parts = [closing[i::DISK_THREADS] for i in range(DISK_THREADS)]
        for failures in await asyncio.gather(*(run_blocking(_close_logs, part) for part in parts)):
            clean = clean and not failures
        await run_blocking(self.checkpoint(self._table.values()), lane=CHECKPOINTS_LANE)
        return clean

    async def abandon(self) -> None:
        """Close the logs as they are, after a start that failed; the next start recovers them."""
        self.flusher.stop()
        await self._settled()
        for partition in self._table.values():
            partition.log.close(clean=False)


def _close_logs(partitions: list[Partition]) -> list[Partition]:
    """Those that could not be closed in order. On a thread; one failure does not keep the others from the disk."""
    for partition in partitions:
        partition.log.close(clean=True)
    return [p for p in partitions if p.log.failure is not None]
