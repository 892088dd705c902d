"""The partitions on this broker: follows the metadata image, opens and removes logs, keeps their checkpoints."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidelog.log.partition_log import PartitionLog
from tidelog.log.segment import PASSING
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
"""When a deleted partition could not be taken off the disk."""
HOUSEKEEPING_BATCH = 50
"""Partitions that take new settings in one turn of the loop, or leave."""


WAKING_PER_TURN = 1000
"""Of parked fetches that are woken, as their `wake` counts it: some ms; then the loop has its next turn."""


class ParkedFetch(Protocol):
    def finish(self) -> None:
        """Answer now, with what there is."""

    def wake(self) -> int:
        """Look again at what moved, and answer if that is enough or the time is over. How much that was: about the
        number of partitions that were looked at.
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
        """Set by who appends several batches and calls `wake_fetches` after them: a turn of the loop is saved."""
        self._to_wake: deque[ParkedFetch] = deque()
        self._waking_left = WAKING_PER_TURN
        """Until it is renewed: in the loop's next turn, once half of it is used."""
        self._renewing = False
        self._parked: dict[ParkedFetch, None] = {}
        self._offsets = Offsets()
        self._housework: asyncio.Future[Any] | None = None
        """Retention's blocking call that runs or was the last: it outlives the task that waits for it."""
        self._passing: dict[tuple[str, int], tuple[TopicImage, LogConfig]] = {}  # not opened for want of something
        self._following = asyncio.Lock()
        """Held by whoever opens and removes logs."""
        self._failing: dict[str, str] = {}
        self.none_left: Callable[[str], None] | None = None
        """Told when the last data directory has failed."""
        self.opened_late: Callable[[], None] | None = None
        """Told when partitions lead that were offline before."""
        self.swapping: asyncio.Task[None] | None = None
        """Compaction's work on files that runs or was the last: it outlives the pass."""
        self.moves = Moves(runtime, self)
        self._retention = RetentionPasses(runtime, self)
        self.flusher = Flusher(runtime.tasks, flush_interval_ms, self.checkpoint, self._look_at_directories)
        self._shared.full.no_descriptors = self.flusher.sync_all_soon

    def get(self, topic: str, index: int) -> Partition:
        """Raises UnknownTopicOrPartition, or StorageError for one whose log could not be opened."""
        found = self._table.get((topic, index))
        if found is None:
            raise self._missing(topic, index)
        return found

    def find(self, topic: str, index: int) -> Partition | None:
        return self._table.get((topic, index))

    def is_offline(self, topic: str, index: int) -> bool:
        """Whether its log could not be opened, or has failed since."""
        found = self._table.get((topic, index))
        if found is None:
            return (topic, index) in self._offline
        return found.log.failure is not None

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
    def count(self) -> int:
        """All partitions, those that are offline included."""
        return len(self._table) + len(self._offline)

    @property
    def offline_count(self) -> int:
        """Those that could not be opened, or whose log has failed since."""
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
        """Let parked fetches with news look again: all of them, or when they are very many the rest in later turns of
        the loop, in their order. Called when all of a request's batches are appended.
        """
        self.appending = False
        if self._to_wake:
            self._wake()

    def wake_expired(self, fetch: ParkedFetch) -> None:
        """The time of `fetch` is over: it is woken behind those who were before it."""
        self._to_wake.append(fetch)
        self._wake()

    def _wake(self) -> None:
        while self._to_wake and self._waking_left > 0:
            fetch = self._to_wake.popleft()
            self._waking_left -= 1
            try:
                self._waking_left -= fetch.wake()
            except Exception:
                # Called for a producer, who is not at fault, and on behalf of all the others.
                logger.exception("parked fetch failed")
        if self._waking_left < WAKING_PER_TURN // 2 and not self._renewing:
            self._renewing = True
            self._runtime.tasks.call_soon(self._wake_on)

    def _wake_on(self) -> None:
        self._renewing = False
        self._waking_left = WAKING_PER_TURN
        self._wake()

    def park(self, fetch: ParkedFetch) -> None:
        """Remember it until `unpark`, for the day when the broker stops."""
        self._parked[fetch] = None

    def unpark(self, fetch: ParkedFetch) -> None:
        self._parked.pop(fetch, None)

    async def start(self) -> None:
        """Begin to flush now and then; finish removals that the last broker here did not come to."""
        self.flusher.start()
        for retired in await self._runtime.tasks.run_blocking(self.directories.retired):
            self.remove_later(retired, 0)
        await self.moves.resume(self.directories.interrupted)

    # Following the metadata

    async def apply(self, old: "MetadataImage", new: "MetadataImage") -> None:
        """Open what is new, remove what is gone, take changed settings. Returns when every new partition leads."""
        async with self._following:
            await self._apply(old, new)

    async def _apply(self, old: "MetadataImage", new: "MetadataImage") -> None:
        if old.position == 0:
            await self._runtime.tasks.run_blocking(
                self.directories.forget_others, partial(_is_known, new), lane=CHECKPOINTS_LANE
            )
        gone: dict[int, list[TopicImage]] = {}  # by how long their files are kept
        for name, topic in old.topics.items():
            now = new.topics.get(name)
            if now is None or now.topic_id != topic.topic_id:
                gone.setdefault(self._topic_config(old, name).file_delete_delay_ms, []).append(topic)
        for delay_ms, topics in gone.items():
            await self._remove_topics(topics, delay_ms)
        opening: list[tuple[TopicImage, int, LogConfig]] = []
        done = 0
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is topic and old.broker_configs is new.broker_configs:
                continue
            config = self._topic_config(new, name)
            self._topic_names[topic.topic_id] = name
            for index in range(len(topic.partitions)):
                done += 1
                if done % HOUSEKEEPING_BATCH == 0:
                    await self._runtime.tasks.sleep(0)
                known = self._table.get((name, index))
                if known is None:
                    opening.append((topic, index, config))
                else:
                    known.leader_epoch = topic.partitions[index].leader_epoch
                    known.log.configure(config)
                    known.configure(config)
        if opening:
            await self._open_all(opening, new=old.position > 0)

    async def _open_all(self, opening: list[tuple["TopicImage", int, "LogConfig"]], *, new: bool = False) -> None:
        placed: list[Opening] = []
        for topic, index, config in opening:
            try:
                directory = self.directories.place(TopicPartition(topic.name, index), topic.topic_id, new=new)
                placed.append(Opening(topic, index, config, directory, new))
            except StorageError as error:
                self._not_opened(topic, index, config, error)
        for (topic, index, config, directory, _), result in await open_logs(self._runtime, placed):
            if isinstance(result, Exception):
                self._not_opened(topic, index, config, result)
                if isinstance(result, OSError) and result.errno not in PASSING:
                    self.fail_soon(directory.path, str(result))
                continue
            result.on_io_failure = self._io_failed
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
                shared=self._shared,
            )
            self._offsets.update(partition)

    def _not_opened(self, topic: "TopicImage", index: int, config: "LogConfig", error: Exception) -> None:
        if (topic.name, index) not in self._passing:
            logger.error("partition offline partition=%s-%d reason=%s", topic.name, index, error)
        self._offline[topic.name, index] = str(error)
        if isinstance(error, OSError) and error.errno in PASSING:
            self._passing[topic.name, index] = topic, config

    async def _remove_topics(self, topics: list["TopicImage"], delay_ms: int) -> None:
        """All at once: what is synced is synced once for all."""
        removed: list[Partition] = []
        unopened: list[tuple[bytes, TopicPartition]] = []
        done = 0
        for topic in topics:
            self._topic_names.pop(topic.topic_id, None)
            self._shared.warned_too_large.pop(topic.name, None)
            for index in range(len(topic.partitions)):
                done += 1
                if done % HOUSEKEEPING_BATCH == 0:
                    await self._runtime.tasks.sleep(0)
                self._offline.pop((topic.name, index), None)
                self._passing.pop((topic.name, index), None)
                partition = self._table.pop((topic.name, index), None)
                if partition is None:
                    unopened.append((topic.topic_id, TopicPartition(topic.name, index)))
                else:
                    partition.deleted = True
                    partition.log.on_io_failure = None  # its files go: one that is not there is no fault of the disk
                    self._offsets.forget(partition)
                    partition.fail()
                    removed.append(partition)
        if removed:
            await self.settled()  # a flush that runs would find the files gone
        # By directory. What lies in one that is out of use is put aside when the next topic of that name comes there.
        logs: dict[str, dict[TopicPartition, tuple[bytes, PartitionLog | None]]] = {}
        for topic_id, key in unopened:
            for directory in self.directories.holders(key):
                logs.setdefault(directory.path, {})[key] = topic_id, None
        for partition in removed:
            log = partition.log
            if self.directories.of(log.topic_partition) is not None:
                path = log.directory.rpartition("/")[0]
                logs.setdefault(path, {})[log.topic_partition] = partition.topic_id, log
        retired = await self._runtime.tasks.run_blocking(self.directories.retire, logs, lane=CHECKPOINTS_LANE)
        self._runtime.tasks.call_later(delay_ms / 1000, partial(self._remove_soon, retired))
        for key in [*(key for _, key in unopened), *(partition.log.topic_partition for partition in removed)]:
            self.directories.forget(key)
        self.look_at_failures()
        self.write_checkpoints_again()

    def remove_later(self, retired: str, delay_ms: int, log: PartitionLog | None = None) -> None:
        """Take a partition that was put aside off the disk when no reader can be in it any more.

        `log` is its log, if that is open still.
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
            if error.errno in PASSING:
                self.remove_later(retired, REMOVE_AGAIN_MS)

    # Directories that fail

    def _io_failed(self, log: PartitionLog, error: OSError) -> None:
        """A log met an error that is its disk's. In the next turn, as it may come from within an append."""
        self.fail_soon(log.directory.rpartition("/")[0], str(error))

    def fail_soon(self, path: str, reason: str) -> None:
        """Take a data directory out of use in the next turn of the loop."""
        if not self._failing:
            self._runtime.tasks.call_soon(self._fail_directories)
        self._failing.setdefault(path, reason)

    def _fail_directories(self) -> None:
        """Take directories out of use, with all their partitions; said once for each."""
        failing, self._failing = self._failing, {}
        for path, reason in failing.items():
            if not self.directories.fail(path, reason):
                continue
            lost = [p for p in self._table.values() if p.log.directory.rpartition("/")[0] == path]
            logger.error("directory offline path=%s partitions=%d reason=%s", path, len(lost), reason)
            for partition in lost:
                partition.log.fail(f"its data directory {path} is out of use: {reason}", say=False)
                partition.fail()
            if self.directories.none_left and self.none_left is not None:
                self.none_left(f"no data directory is left: {path}: {reason}")

    # Durability and housekeeping

    def _look_at_directories(self) -> None:
        """Now and then: what failed on a thread, and whether a full disk has room again."""
        self.look_at_failures()
        if self._shared.full or self._passing:
            self._runtime.tasks.spawn(self._look_for_room(), name="look-for-room")

    def look_at_failures(self) -> None:
        for path, reason in self.directories.take_failures().items():
            self.fail_soon(path, reason)

    async def _look_for_room(self) -> None:
        full = self._shared.full
        full.mark_usable(await self._runtime.tasks.run_blocking(full.recovered, self._runtime.disk))
        await self.open_again()

    def note_offsets(self, partition: Partition) -> None:
        """Its log is another one."""
        self._offsets.update(partition)

    def start_offsets(self) -> dict[TopicPartition, int]:
        """A copy of all log start offsets, for a thread to write."""
        return self._offsets.start_offsets()

    def checkpoint(self, moved: Iterable[Partition]) -> Callable[[], None]:
        """What to run on a thread to persist recovery points, log start offsets and high watermarks, once those of the
        `moved` are looked at. The work on the loop is in proportion to these, not to all that are held.
        """
        for partition in moved:
            if not partition.deleted:
                self._offsets.update(partition)
        return partial(self.directories.write_checkpoints, *self._offsets.copies())

    async def persist_starts(self, moved: Iterable[Partition]) -> list[Partition]:
        """Write down now where the logs of the `moved` begin, each in its own directory; those where that failed.

        What lies below is made durable first: see `Offsets.note`.
        """
        lost: list[Partition] = []
        waiting = list(moved)
        while waiting:
            for partition in waiting:
                await partition.thawed()  # what is written while a log changes its directory may be in the wrong one
                await self.flusher.flush_to(partition, partition.log.log_start_offset)
            logs = [(partition, partition.log) for partition in waiting]
            undurable = {p for p in waiting if p.log.durable_offset < p.log.log_start_offset}
            for partition in waiting:
                if not partition.deleted:
                    self._offsets.update(partition)
            failed = await self._runtime.tasks.run_blocking(
                self.directories.try_checkpoints, *self._offsets.copies(), lane=CHECKPOINTS_LANE
            )
            waiting = [partition for partition, log in logs if partition.frozen or partition.log is not log]
            for partition, log in logs:
                if partition not in waiting and (
                    partition.deleted
                    or partition in undurable
                    or log.failure is not None
                    or log.directory.rpartition("/")[0] in failed
                ):
                    lost.append(partition)
        return lost

    async def open_again(self) -> None:
        """Try partitions that a full disk, or another passing error, kept from being opened."""
        if self._passing and not self._following.locked():  # else it is tried another time
            async with self._following:
                wanted = [(topic, index, config) for (_, index), (topic, config) in self._passing.items()]
                await self._open_all(wanted)
                if self.opened_late is not None and len(self._passing) < len(wanted):
                    self.opened_late()

    async def enforce_retention(self) -> None:
        """Drop whole segments that the topics' settings no longer keep. One call at a time."""
        await self._retention.enforce()

    def write_checkpoints_again(self) -> None:
        """What a full disk kept from them is written as soon as there is room, though nothing is appended."""
        if self.directories.are_behind:
            self.flusher.retry_checkpoint()

    async def work(self, function: Callable[..., T], *args: object, lane: str = "") -> T:
        """Run retention's file work on a thread; `settled` waits for it."""
        self._housework = running = self._runtime.tasks.run_blocking(function, *args, lane=lane)
        await asyncio.wait([running])
        return running.result()

    async def settled(self) -> None:
        """Return once nothing on a thread touches files of partitions that were marked deleted before the call."""
        await self.flusher.settled()
        housework = self._housework
        if housework is not None:
            await asyncio.wait([housework])
            housework.exception()  # whoever waited for it has it, unless that task was cancelled
        if self.swapping is not None:
            await asyncio.wait([self.swapping])

    def release_waiting(self) -> None:
        """Answer parked fetches with what there is; the broker stops."""
        for fetch in list(self._parked):
            fetch.finish()

    async def close(self) -> dict[str, str]:
        """Sync and close every log, write the checkpoints. The directories that may not be marked clean, and why.

        They may not while a partition is offline: the next start must look at that log again, not trust it.
        """
        await self.moves.close()
        self._retention.end_looks()
        self.flusher.stop()
        await self.settled()
        for partition in self._table.values():
            partition.close_queue()
            partition.log.on_io_failure = None  # it belongs to the loop, and a directory's failure changes nothing now
        closing = [p for p in self._table.values() if p.log.failure is None]
        run_blocking = self._runtime.tasks.run_blocking
        # Side by side, syncs share the file system's commits.
        parts = [closing[i::DISK_THREADS] for i in range(DISK_THREADS)]
        await asyncio.gather(*(run_blocking(_close_logs, part) for part in parts))
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
        """Close the logs as they are, after a start that failed; the next start recovers them."""
        await self.moves.close()
        self._retention.end_looks()
        self.flusher.stop()
        await self.settled()
        for partition in self._table.values():
            partition.log.close(clean=False)


def _is_known(image: "MetadataImage", key: TopicPartition) -> bool:
    """Whether there is that partition, or it is Kafka's own metadata, which is left alone."""
    if key.topic == CLUSTER_METADATA:
        return True
    topic = image.topics.get(key.topic)
    return topic is not None and key.partition < len(topic.partitions)


def _close_logs(partitions: list[Partition]) -> None:
    """On a thread; one failure does not keep the others from the disk."""
    for partition in partitions:
        partition.log.close(clean=True)
