"""The coordinators of one internal topic on this broker.

One `CoordinatorHost` serves all groups, and another one serves all transactions.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from tidelog.coordinator.group.hashing import partition_of
from tidelog.coordinator.group_log import GroupLog
from tidelog.metadata.link import CONTROLLER_TIMEOUT_MS, EnsureTopics
from tidelog.wire.errors import ApiError, CoordinatorNotAvailable, ErrorCode, NotCoordinator

if TYPE_CHECKING:
    import asyncio

    from tidelog.config.endpoints import Endpoint
    from tidelog.coordinator.runtime import CoordinatorPartition, Core, Perform
    from tidelog.metadata.image import MetadataImage
    from tidelog.metadata.link import ControllerLink
    from tidelog.metadata.publisher import MetadataCache
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.coordinator")

WITHOUT_CONTROLLER = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
"""Errors with which a metadata change fails if there is no controller, or if the controller does not answer in time."""
C = TypeVar("C", bound="Core")

CACHED_KEYS_MAX = 20_000
"""Upper bound on the number of keys whose partitions are cached. A key is a group id or a transactional id."""


class CoordinatorHost(Generic[C]):
    """The coordinators of the internal topic `topic` on this broker: one for each partition that the broker leads.

    A coordinator belongs to one leader epoch of its partition. It is created when the epoch begins on this broker.
    If the partition's log is still being truncated at that time, because this broker was a follower, the coordinator
    is created after the truncation. The coordinator is closed in the same step of the event loop in which the epoch
    ends or the log goes offline. Therefore no coordinator uses state that another leader may have changed, even if this
    broker loses the leadership and regains it between two metadata images.
    """

    def __init__(
        self,
        topic: str,
        *,
        runtime: "Runtime",
        node_id: int,
        partitions: "Partitions",
        metadata: "MetadataCache",
        controller: "ControllerLink",
        new_core: Callable[[], C],
        commit_timeout_ms: int,
        incarnation: str | None,
        perform: "Perform | None" = None,
    ) -> None:
        """`perform` carries out the effects of the cores' decisions. It is None if no decision has an effect.

        `incarnation` identifies this run of the broker. It is None if no other broker uses the metadata store. In
        that case, every leader epoch in the metadata belongs to this run. If `incarnation` is not None, the metadata
        may still contain leader epochs of the broker's previous run. So no partition is served until the metadata says
        that this run is registered.
        """
        self.topic = topic
        self._runtime = runtime
        self._node_id = node_id
        self._partitions = partitions
        self._metadata = metadata
        self._controller = controller
        self._new_core = new_core
        self._commit_timeout_ms = commit_timeout_ms
        self._perform = perform
        self._incarnation = incarnation
        self._is_registered = incarnation is None
        self._is_closed = False
        self._coordinators: dict[int, CoordinatorPartition[C]] = {}
        self._partition_count = 0
        self._partition_by_key: dict[str, int] = {}
        """The partition number of each key. It is cached because its computation costs time."""
        self._group_log = GroupLog(runtime.clock, runtime.tasks)
        self._sweeps: list[asyncio.Task[None]] = []
        self.check_lease: Callable[[], None] | None = None
        """Called before a request is handled. If this broker's lease has ended, this function ends the roles of the
        partitions that another broker may coordinate now. None if there is no other broker."""
        partitions.watch_roles(topic, self._role_changed)

    # Life cycle

    def change_roles(self, old: "MetadataImage", new: "MetadataImage") -> None:
        """Apply a change of the metadata after the partitions have changed their roles, in the same step."""
        topic = new.topics.get(self.topic)
        count = 0 if topic is None else len(topic.partitions)
        if count != self._partition_count:
            self._partition_count = count
            self._partition_by_key.clear()
        if self._incarnation is None or old.brokers is new.brokers:
            return
        broker = new.brokers.get(self._node_id)
        is_registered = broker is not None and broker.incarnation == self._incarnation
        if is_registered != self._is_registered:
            self._is_registered = is_registered
            for index in range(count):
                partition = self._partitions.find(self.topic, index)
                if partition is not None:
                    self._role_changed(partition)

    def _role_changed(self, partition: "Partition") -> None:
        """Serve the partition in its current leader epoch, or stop serving it.

        Called in the same step that changes the partition's role or marks its log as offline.
        """
        try:
            self._serve(partition)
        except Exception:  # the other partitions must still change their roles
            logger.exception("coordinator role change failed partition=%s-%d", partition.topic, partition.index)

    def _serve(self, partition: "Partition") -> None:
        """Create or close the coordinator of the partition, so that it fits the role of the partition."""
        index = partition.index
        coordinator = self._coordinators.get(index)
        is_current = self._partitions.find(self.topic, index) is partition  # otherwise it is being deleted
        is_led = partition.replica.leads and not partition.deleted and partition.log.failure is None
        serves = is_led and is_current and self._is_registered and not self._is_closed
        if coordinator is not None:
            if coordinator.partition is not partition and not is_current:
                return  # `partition` was deleted, and a newer partition of the same name has this coordinator
            if serves and coordinator.partition is partition and coordinator.leader_epoch == partition.leader_epoch:
                return
            del self._coordinators[index]
            coordinator.close()
        if serves:
            # Imported only when coordinators are used, because the import takes time.
            from tidelog.coordinator.runtime import CoordinatorPartition

            coordinator = CoordinatorPartition(
                partition, self._new_core, self._runtime, self._group_log, self._commit_timeout_ms, self._perform
            )
            self._coordinators[index] = coordinator
            coordinator.load()

    def sweep_periodically(self, interval_ms: int, sweep: Callable[[], Awaitable[None]]) -> None:
        """Call `sweep` at this interval, until `close`."""
        self._sweeps.append(self._runtime.tasks.spawn(self._sweep(interval_ms, sweep), name=f"{self.topic}-sweep"))

    async def _sweep(self, interval_ms: int, sweep: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._runtime.tasks.sleep(interval_ms / 1000)
            try:
                await sweep()
            except Exception:
                logger.exception("sweep failed topic=%s", self.topic)  # the next sweep tries again

    def close(self) -> None:
        """Answer all waiting requests, and refuse new requests from now on."""
        self._is_closed = True
        for task in self._sweeps:
            task.cancel()
        coordinators, self._coordinators = self._coordinators, {}
        for coordinator in coordinators.values():
            coordinator.close()

    # The coordinators of this broker

    def coordinator(self, key: str) -> "CoordinatorPartition[C]":
        """Return the coordinator of the key. Raises NotCoordinator if it is not on this broker."""
        if self.check_lease is not None:
            self.check_lease()
        count = self._partition_count
        coordinator = self._coordinators.get(self._partition_index(key, count)) if count else None
        if coordinator is None:
            raise NotCoordinator  # without a message, as in Kafka
        return coordinator

    def coordinator_of(self, index: int) -> "CoordinatorPartition[C]":
        """Return the coordinator of a partition. Raises NotCoordinator if it is not on this broker."""
        if self.check_lease is not None:
            self.check_lease()
        coordinator = self._coordinators.get(index)
        if coordinator is None:
            raise NotCoordinator
        return coordinator

    def coordinators(self) -> "list[CoordinatorPartition[C]]":
        return list(self._coordinators.values())

    def loaded(self) -> "Iterator[CoordinatorPartition[C]]":
        """Yield the loaded coordinators. During the iteration, coordinators may be closed and other ones may be
        loaded.
        """
        for coordinator in self.coordinators():
            if coordinator.is_loaded:
                yield coordinator

    async def wait_for_loads(self) -> None:
        """Wait until no coordinator is being loaded."""
        for coordinator in self.coordinators():
            await coordinator.wait_for_load()

    # The coordinators of the cluster

    @property
    def has_topic(self) -> bool:
        """Whether the topic exists. Without the topic, no key has a coordinator."""
        return self.topic in self._metadata.image.topics

    def partition_index(self, key: str) -> int:
        """Return the partition to which the key belongs. Raises CoordinatorNotAvailable if there is no topic."""
        if not self._partition_count:
            raise CoordinatorNotAvailable(f"{self.topic} does not exist yet")
        return self._partition_index(key, self._partition_count)

    async def make_topic(self) -> None:
        """Create the topic if it does not exist yet. Raises CoordinatorNotAvailable if it cannot be created."""
        timeout_ms = None if self._incarnation is None else CONTROLLER_TIMEOUT_MS
        try:
            (topic_result,) = (
                await self._controller.ensure_topics(EnsureTopics([self.topic], timeout_ms=timeout_ms))
            ).result()
            error, message = topic_result.error, topic_result.message
        except ApiError as refusal:
            error, message = refusal.code, refusal.message
        if error is not ErrorCode.NONE:
            # A missing controller is only a warning: the client asks again, and the cluster usually has a controller by
            # that time.
            level = logging.WARNING if error in WITHOUT_CONTROLLER else logging.ERROR
            logger.log(level, "cannot create topic=%s reason=%s", self.topic, message or error.name)
            raise CoordinatorNotAvailable(f"cannot create {self.topic}: {message or error.name}")
        await self.wait_for_loads()  # Empty logs load immediately, so the client need not retry.

    def address_of(self, key: str, listener: str) -> "tuple[int, Endpoint]":
        """Return the id of the broker that coordinates the key, and the address of that broker for clients that use
        `listener`.

        Raises CoordinatorNotAvailable if no broker coordinates the key now.
        """
        image = self._metadata.newest
        topic = image.topics.get(self.topic)
        if topic is None:
            raise CoordinatorNotAvailable(f"{self.topic} does not exist yet")
        index = self._partition_index(key, len(topic.partitions))
        broker = image.brokers.get(topic.partitions[index].leader)
        if broker is None or broker.fenced or self._is_offline_here(broker.broker_id, index):
            raise CoordinatorNotAvailable(f"{self.topic}-{index}, the partition of {key!r}, has no leader")
        return broker.broker_id, broker.endpoint(listener)

    def _is_offline_here(self, leader: int, index: int) -> bool:
        return leader == self._node_id and self._partitions.is_offline(self.topic, index)

    def _partition_index(self, key: str, count: int) -> int:
        index = self._partition_by_key.get(key)
        if index is None:
            if len(self._partition_by_key) >= CACHED_KEYS_MAX:
                self._partition_by_key.clear()
            index = self._partition_by_key[key] = partition_of(key, count)
        return index
