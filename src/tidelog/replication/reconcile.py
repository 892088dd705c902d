"""Apply the metadata to this broker's partitions: roles first, then files.

A new image is applied in two steps. `change_roles` is synchronous: when it returns, no partition acts in an old role,
and the requests that waited in an old leader epoch have got their errors. `apply` then opens, configures and removes
logs, which takes long. The old and the new image are compared partition by partition, so a change of one ISR affects
only one partition.

`change_roles` does not wait for `apply` (see `metadata/publisher.py`), so the roles may correspond to a newer image
than the files. Therefore `apply` looks at the newest image in these places:

- A partition whose log is opened gets its role from the newest image. A partition that this broker does not have any
  more in the newest image is not opened.
- The log of a partition that was removed from this broker is kept if this broker has the partition again in the newest
  image: the replica may already fetch or lead with this log. Like the log of a follower that was offline, this log may
  differ from the leader's log, and fetching corrects it.
- A partition whose settings change gets the `min.insync.replicas` of the newest image, because a leader may have got
  this value with its role already.

The partitions of a deleted topic go offline in `change_roles`, since their logs may be removed much later.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from tidelog.log.partition_log import PartitionLog
from tidelog.log.segment import TEMPORARY_ERRORS
from tidelog.metadata.image import CLUSTER_METADATA, EMPTY_IMAGE, NO_LEADER
from tidelog.model.ids import TopicPartition
from tidelog.replication.flusher import CHECKPOINTS_LANE
from tidelog.replication.opening import Opening, open_logs
from tidelog.replication.partition import Partition
from tidelog.replication.replica import (
    BecameFollower,
    BecameLeader,
    BrokersChanged,
    Event,
    Replica,
    WentOffline,
)
from tidelog.wire.errors import StorageError

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.metadata.image import MetadataImage, TopicImage
    from tidelog.metadata.records import PartitionState
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.partitions")

HOUSEKEEPING_BATCH = 50
"""Number of partitions that are configured or removed in one turn of the event loop."""
REMOVE_AGAIN_MS = 10_000
"""Delay before the next attempt to remove a deleted partition's files."""


class Reconciler:
    """Applies images to the partitions of the broker `node_id`."""

    def __init__(
        self,
        runtime: "Runtime",
        partitions: "Partitions",
        topic_config: Callable[["MetadataImage", str], "LogConfig"],
        node_id: int,
    ) -> None:
        self._runtime = runtime
        self._partitions = partitions
        self._topic_config = topic_config
        self._node_id = node_id
        self._image: MetadataImage = EMPTY_IMAGE
        """The newest image, whose roles the partitions have. The files may still correspond to an older image."""
        self._applied: MetadataImage = EMPTY_IMAGE
        """The image to which the files correspond. While `apply` is running, they may correspond to its new image."""
        self._min_isr: dict[str, int] = {}
        """The `min.insync.replicas` of topics in the newest image, as far as they were computed."""
        self._eligible: Mapping[int, int] = {}
        """Broker epochs of the brokers that may be in an ISR, by id."""
        self._lock = asyncio.Lock()
        """Locked while logs are opened or removed."""
        self.to_reopen: dict[tuple[str, int], LogConfig] = {}
        """Partitions that could not be opened because of a temporary error (TEMPORARY_ERRORS), with their settings."""

    @property
    def position(self) -> int:
        """The roles of the partitions correspond to the journal's entries before this position."""
        return self._image.position

    # Roles

    def change_roles(self, old: "MetadataImage", new: "MetadataImage") -> None:
        """Set the roles of the open partitions whose state differs between the two images, without waiting.

        A partition that is not open yet gets its role when its log is open.
        """
        self._image = new
        self._min_isr.clear()
        self._partitions.topics = new.topics
        if old.brokers is not new.brokers:
            self._eligible = {broker.broker_id: broker.epoch for broker in new.brokers.values() if broker.active}
            for partition in self._partitions:
                if not partition.replica.is_alone:
                    partition.step(BrokersChanged(self._eligible))
        leads_more = False
        for name, topic in new.topics.items():
            previous = old.topics.get(name)
            if previous is None or previous is topic or previous.topic_id != topic.topic_id:
                continue
            for index, (before, state) in enumerate(zip(previous.partitions, topic.partitions, strict=False)):
                if before is not state and before != state:
                    changed = self._partitions.find(name, index)
                    if changed is not None and changed.topic_id == topic.topic_id:
                        # If the image has several changes of the partition, the leader epoch may have begun before the
                        # last change.
                        is_late = state.partition_epoch != before.partition_epoch + 1
                        self._apply_role(changed, state, is_late=is_late)
                        leads_more |= before.leader != self._node_id and state.leader == self._node_id
        if leads_more:
            self._partitions.answer_followers_soon()
        for topic in _deleted_topics(old, new):
            self._end_roles(topic)

    def _end_roles(self, topic: "TopicImage") -> None:
        """Let the partitions of a deleted topic stop serving clients. A new topic may already have the same name."""
        self._partitions.topic_names.pop(topic.topic_id, None)
        for index in range(len(topic.partitions)):
            partition = self._partitions.find(topic.name, index)
            if partition is not None and partition.topic_id == topic.topic_id:
                partition.topic_deleted = True
                partition.step(WentOffline(partition.leader_epoch))

    def apply_roles_again(self) -> None:
        """Set the role of every open partition from the newest image again. Called when the broker has a lease again:
        it may have stopped leading partitions, although the metadata has not changed.
        """
        for partition in self._partitions:
            topic = self._image.topics.get(partition.topic)
            if topic is not None and topic.topic_id == partition.topic_id and not partition.deleted:
                self._apply_role(partition, topic.partitions[partition.index])

    def _apply_role(self, partition: Partition, state: "PartitionState", *, is_late: bool = True) -> None:
        """`is_late`: see `BecameLeader`."""
        if len(state.replicas) > 1:
            partition.step(BrokersChanged(self._eligible))
        partition.step(self._role(partition, state, is_late))

    def _role(self, partition: Partition, state: "PartitionState", is_late: bool) -> Event:
        if self._node_id not in state.replicas or state.leader == NO_LEADER:
            return WentOffline(state.leader_epoch)
        if state.leader != self._node_id:
            return BecameFollower(state.leader_epoch, state.leader)
        # The partition gets changed settings later, in `apply`. But a leader must not move its high watermark with a
        # new ISR and an old min.insync.replicas.
        min_isr = self._newest_min_isr(partition)
        partition.use_min_insync_replicas(min_isr)
        return BecameLeader(state.leader_epoch, state.partition_epoch, state.isr, state.replicas, min_isr, is_late)

    def _newest_min_isr(self, partition: Partition) -> int:
        """Return the `min.insync.replicas` of the partition's topic in the newest image."""
        newest, applied = self._image, self._applied
        topic, applied_topic = newest.topics.get(partition.topic), applied.topics.get(partition.topic)
        if topic is None or topic.topic_id != partition.topic_id:
            return partition.config.min_insync_replicas  # the topic is deleted
        are_settings_applied = (
            applied_topic is not None
            and applied_topic.topic_id == topic.topic_id
            and applied_topic.config is topic.config
            and applied.broker_configs is newest.broker_configs
        )
        if are_settings_applied:
            return partition.config.min_insync_replicas
        if topic.name not in self._min_isr:
            self._min_isr[topic.name] = self._topic_config(newest, topic.name).min_insync_replicas
        return self._min_isr[topic.name]

    def _has_replica(self, topic: "TopicImage", index: int) -> bool:
        """Return whether this broker has a replica of the topic's partition in the newest image."""
        newest = self._image.topics.get(topic.name)
        return (
            newest is not None
            and newest.topic_id == topic.topic_id
            and self._node_id in newest.partitions[index].replicas
        )

    # Files

    async def apply(self, old: "MetadataImage", new: "MetadataImage") -> None:
        """Open new partitions, remove partitions of which this broker has no replica any more, and apply changed
        settings. Returns when every new partition has its role.

        Call `change_roles` with the same two images first. If several images follow one another, call both functions in
        the order of the images.
        """
        async with self._lock:
            await self._apply(old, new)
            self._applied = new
            self._note_changed_partitions()

    async def _apply(self, old: "MetadataImage", new: "MetadataImage") -> None:
        if old.position == 0:  # the first image after the start
            await self._runtime.tasks.run_blocking(
                self._partitions.directories.forget_stale_entries,
                partial(_is_known, new),
                lane=CHECKPOINTS_LANE,
            )
        await self._remove_deleted_topics(old, new)
        to_open: list[tuple[TopicImage, int, LogConfig, bool]] = []
        removed: dict[int, list[tuple[TopicImage, int]]] = {}  # keys: delay in ms before the files are deleted
        checked_partitions = 0
        for name, topic in new.topics.items():
            previous = old.topics.get(name)
            if previous is topic and old.broker_configs is new.broker_configs:
                continue
            if previous is not None and previous.topic_id != topic.topic_id:
                previous = None
            self._partitions.topic_names[topic.topic_id] = name
            config = self._topic_config(new, name)
            is_configured = (
                previous is not None and previous.config is topic.config and old.broker_configs is new.broker_configs
            )
            states_before = () if previous is None else previous.partitions
            for index, state in enumerate(topic.partitions):
                checked_partitions += 1
                if checked_partitions % HOUSEKEEPING_BATCH == 0:
                    await self._runtime.tasks.sleep(0)
                partition = self._partitions.find(name, index)
                was_here = index < len(states_before) and self._node_id in states_before[index].replicas
                # A partition that this broker does not have in `new` gets the settings, too: its log may be kept.
                if partition is not None and not is_configured:
                    await self._configure(partition, config)
                elif (name, index) in self.to_reopen:
                    self.to_reopen[name, index] = config
                is_missing = partition is None and (name, index) not in self._partitions.unopened
                if self._node_id not in state.replicas:
                    if was_here:
                        removed.setdefault(config.file_delete_delay_ms, []).append((topic, index))
                elif is_missing and self._has_replica(topic, index):
                    # At the start, `old` is empty, so it does not say which partitions are new on this broker.
                    to_open.append((topic, index, config, old.position > 0 and not was_here))
        for delay_ms, partitions in removed.items():
            await self._remove(partitions, delay_ms)
        if to_open:
            await self._open_all(to_open)

    async def _configure(self, partition: Partition, config: "LogConfig") -> None:
        await self._withdraw_synced_mark([config])
        partition.log.configure(config)
        partition.configure(config.with_min_insync_replicas(self._newest_min_isr(partition)))

    async def _remove_deleted_topics(self, old: "MetadataImage", new: "MetadataImage") -> None:
        removed: dict[int, list[tuple[TopicImage, int]]] = {}  # keys: delay in ms before the files are deleted
        for topic in _deleted_topics(old, new):
            self._partitions.topic_names.pop(topic.topic_id, None)
            self._partitions.shared.warned_too_large.pop(topic.name, None)
            delay_ms = self._topic_config(old, topic.name).file_delete_delay_ms
            removed.setdefault(delay_ms, []).extend(
                (topic, index) for index, state in enumerate(topic.partitions) if self._node_id in state.replicas
            )
        for delay_ms, partitions in removed.items():
            await self._remove(partitions, delay_ms)

    # Opening

    async def _open_all(self, to_open: list[tuple["TopicImage", int, "LogConfig", bool]]) -> None:
        """Open the logs of partitions. Each item is a topic, an index, the settings, and whether the partition is new
        on this broker.

        If a partition is not new but has no log, its disk may be missing, and an empty log would hide this. Therefore
        `DataDirectories.place` refuses such a partition if a directory is out of use or seems not to be mounted.
        """
        partitions = self._partitions
        await self._withdraw_synced_mark(config for _, _, config, _ in to_open)
        openings: list[Opening] = []
        for topic, index, config, new in to_open:
            try:
                directory = partitions.directories.place(TopicPartition(topic.name, index), topic.topic_id, new=new)
                openings.append(Opening(topic, index, config, directory, new))
            except StorageError as error:
                self._note_open_failure(topic, index, config, error)
        for opening, result in await open_logs(self._runtime, openings):
            topic, index, config, directory, _ = opening
            if isinstance(result, Exception):
                self._note_open_failure(topic, index, config, result)
                if isinstance(result, OSError) and result.errno not in TEMPORARY_ERRORS:
                    partitions.fail_soon(directory.path, str(result))
                continue
            self._add(opening, result)
        partitions.answer_followers_soon()

    async def _withdraw_synced_mark(self, configs: Iterable["LogConfig"]) -> None:
        """Withdraw the synced mark if partitions with these settings may acknowledge records that are not synced.

        While the mark is on the disks, all records that this broker has acknowledged are synced.
        """
        mark = self._partitions.synced_mark
        if mark is not None and any(config.durability != "fsync" for config in configs):
            await mark.withdraw()

    def _note_changed_partitions(self) -> None:
        if self._partitions.synced_mark is not None:
            self._partitions.synced_mark.partitions_changed()

    def _add(self, opening: Opening, log: PartitionLog) -> None:
        """Add the partition to the table, in the role that the newest image says.

        The image may have changed while the log was being opened. The files are adapted later, but the role must be
        the newest one at once.
        """
        topic, index = opening.topic, opening.number
        partitions = self._partitions
        log.on_io_failure = partitions.handle_io_failure
        partitions.unopened.pop((topic.name, index), None)
        self.to_reopen.pop((topic.name, index), None)
        # The checkpoint is written at intervals, so its entry may be below the last high watermark, and also below the
        # log start offset.
        high_watermark = max(opening.directory.high_watermark(log.topic_partition), log.log_start_offset)
        partition = partitions.opened[topic.name, index] = Partition(
            topic.name,
            topic.topic_id,
            index,
            log,
            replica=Replica(self._node_id, log.log_end_offset, high_watermark, lag_max_ms=partitions.lag_max_ms),
            internal=topic.internal,
            clock=self._runtime.clock,
            tasks=self._runtime.tasks,
            flusher=partitions.flusher,
            shared=partitions.shared,
        )
        newest = self._image.topics.get(topic.name)
        if newest is not None and newest.topic_id == topic.topic_id:
            self._apply_role(partition, newest.partitions[index])
        partitions.offsets.update(partition)

    def _note_open_failure(self, topic: "TopicImage", index: int, config: "LogConfig", error: Exception) -> None:
        key = topic.name, index
        is_temporary = isinstance(error, OSError) and error.errno in TEMPORARY_ERRORS
        if not is_temporary or key not in self.to_reopen:
            logger.error("partition offline partition=%s-%d reason=%s", topic.name, index, error)
        self._partitions.unopened[key] = str(error)
        if is_temporary:
            self.to_reopen[key] = config
        else:
            self.to_reopen.pop(key, None)

    async def open_again(self) -> bool:
        """Try to open the partitions that could not be opened because of a full disk or another temporary error.
        Returns whether any could be opened.
        """
        if not self.to_reopen or self._lock.locked():  # if the lock is held, a later call tries again
            return False
        async with self._lock:
            keys = list(self.to_reopen)
            topics = self._applied.topics
            await self._open_all(
                [
                    (topics[name], index, config, False)
                    for (name, index), config in self.to_reopen.items()
                    if name in topics
                ]
            )
            self._note_changed_partitions()
            return any(key in self._partitions.opened for key in keys)

    async def replace_log(self, key: TopicPartition, may_be_replaced: Callable[["PartitionState"], bool]) -> None:
        """Replace the log of a partition by an empty log, if the newest state of the partition still allows this."""
        async with self._lock:
            topic, applied = self._image.topics.get(key.topic), self._applied.topics.get(key.topic)
            if topic is None or applied is None or applied.topic_id != topic.topic_id:
                return  # `apply` still has to remove the log of a deleted topic
            if key.partition >= len(applied.partitions):
                return
            if may_be_replaced(topic.partitions[key.partition]):
                logger.warning("damaged log renamed, to be fetched anew partition=%s", key)
                config = self._topic_config(self._image, key.topic)
                await self._remove([(topic, key.partition)], config.file_delete_delay_ms, replaces=True)
                await self._open_all([(topic, key.partition, config, True)])
                self._note_changed_partitions()

    # Removal

    async def _remove(self, removed: list[tuple["TopicImage", int]], delay_ms: int, *, replaces: bool = False) -> None:
        """Remove partitions whose topic is deleted or of which this broker has no replica any more. With `replaces`,
        remove partitions whose logs are to be replaced. Without `replaces`, a partition stays if this broker has a
        replica of it again in the newest image.

        All partitions are removed together, so that they share the syncs of their directories.
        """
        table, directories = self._partitions, self._partitions.directories
        closed: list[Partition] = []
        without_log: list[tuple[bytes, TopicPartition]] = []
        for number, (topic, index) in enumerate(removed, 1):
            if number % HOUSEKEEPING_BATCH == 0:
                await self._runtime.tasks.sleep(0)
            if not replaces and self._has_replica(topic, index):
                continue
            table.unopened.pop((topic.name, index), None)
            self.to_reopen.pop((topic.name, index), None)
            partition = table.opened.pop((topic.name, index), None)
            if partition is None:
                without_log.append((topic.topic_id, TopicPartition(topic.name, index)))
            else:
                partition.deleted = True
                # The partition's files are being deleted, so a missing file is not an error of the disk.
                partition.log.on_io_failure = None
                table.offsets.forget(partition)
                partition.fail()
                closed.append(partition)
        if closed:
            await table.wait_for_file_work()  # otherwise a running flush would find the files missing
        # Group the logs by directory. Logs in a failed directory stay there. They are renamed later, when a new topic
        # with the same name is created there.
        logs: dict[str, dict[TopicPartition, tuple[bytes, PartitionLog | None]]] = {}
        for topic_id, key in without_log:
            for directory in directories.holders(key):
                logs.setdefault(directory.path, {})[key] = topic_id, None
        for partition in closed:
            log = partition.log
            if directories.of(log.topic_partition) is not None:
                path = log.directory.rpartition("/")[0]
                logs.setdefault(path, {})[log.topic_partition] = partition.topic_id, log
        retired = await self._runtime.tasks.run_blocking(directories.retire, logs, lane=CHECKPOINTS_LANE)
        self._runtime.tasks.call_later(delay_ms / 1000, partial(self._remove_soon, retired))
        for key in [*(key for _, key in without_log), *(partition.log.topic_partition for partition in closed)]:
            directories.forget(key)
        table.handle_directory_failures()
        table.retry_late_checkpoints()

    def remove_later(self, retired: str, delay_ms: int, log: PartitionLog | None = None) -> None:
        """After `delay_ms`, delete `retired`: the renamed directory of a partition. Readers can finish
        within the delay.

        `log`: the partition's log, if it is still open. It is closed before the directory is deleted.
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
            await self._remove_files(path)

    async def _remove_files(self, retired: str) -> None:
        run_blocking, directories = self._runtime.tasks.run_blocking, self._partitions.directories
        try:
            await run_blocking(directories.empty_retired, retired)
            await run_blocking(directories.remove_retired, retired, lane=CHECKPOINTS_LANE)
        except OSError as error:
            logger.error("deleted partition not removed path=%s reason=%s", retired, error)
            if error.errno in TEMPORARY_ERRORS:
                self.remove_later(retired, REMOVE_AGAIN_MS)


def _deleted_topics(old: "MetadataImage", new: "MetadataImage") -> "Iterator[TopicImage]":
    """Yield the topics of `old` that do not exist in `new`, where another topic may have the same name."""
    if old.topics is new.topics:
        return
    for name, topic in old.topics.items():
        current = new.topics.get(name)
        if current is None or current.topic_id != topic.topic_id:
            yield topic


def _is_known(image: "MetadataImage", key: TopicPartition) -> bool:
    """Return whether the partition exists, or belongs to Kafka's own metadata topic, whose files are not touched."""
    if key.topic == CLUSTER_METADATA:
        return True
    topic = image.topics.get(key.topic)
    return topic is not None and key.partition < len(topic.partitions)
