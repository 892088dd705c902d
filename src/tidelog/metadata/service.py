"""Run the controller's decisions: append to the store, replay into the image, notify the broker's parts, answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.endpoints import Endpoint
from tidelog.config.topic_config import topic_settings_without_effect
from tidelog.metadata import controller, records
from tidelog.metadata.alterations import Alteration, AlterationResult, alter_configs
from tidelog.metadata.controller import (
    JournalDecision,
    MorePartitions,
    NewTopic,
    ReservePartitions,
    TopicChoice,
    TopicResult,
    unlimited,
)
from tidelog.metadata.controller_lease import ControllerLease
from tidelog.metadata.image import EMPTY_IMAGE, ImageBuilder, MetadataImage, snapshot
from tidelog.metadata.internal_topics import internal_topic
from tidelog.metadata.quota_alterations import QuotaAlteration, QuotaResult, alter_quotas
from tidelog.metadata.records import ClusterNamed, ControllerElected, JournalError, JournalRecord
from tidelog.metadata.store import (
    AppendUnknown,
    EntryTooLarge,
    Lease,
    LeaseLost,
    PositionTaken,
    Snapshot,
    Store,
    StoredEntry,
    StoreFailed,
    StoreUnavailable,
    settle_append,
)
from tidelog.model.ids import TopicId, uuid_text
from tidelog.model.steps import Steps
from tidelog.runtime.interfaces import Runtime
from tidelog.wire.errors import ApiError, ErrorCode

R = TypeVar("R")

logger = logging.getLogger("tidelog.metadata")

SETTLE_S: Final = 10.0
"""After the answer to an append was lost, a change waits this long for its outcome before its client gets an error."""
SETTLE_POLL_S: Final = 0.5
SNAPSHOT_BYTES_MIN: Final = 256 * 1024
"""Write a new snapshot after this many bytes of entries, or after twice the last snapshot's size if that is more."""

ImageListener = Callable[[MetadataImage, MetadataImage], Awaitable[None] | None]
"""Called with the old and the new image for each change, in order. The next change waits until the call has ended.
So a listener must not wait for a change that it requests from the controller."""


Decide = Callable[[MetadataImage], JournalDecision[R] | Steps[JournalDecision[R]]]
"""Decides one change from the current image."""


class UnsettledAppend(NamedTuple):
    """An append of unknown outcome. Nothing is decided before its outcome is known."""

    position: int
    data: bytes
    records: Sequence[JournalRecord]
    lease: Lease
    number: int


class MetadataCache:
    """The image from which this broker answers requests. All listeners have processed everything in it."""

    __slots__ = ("image",)

    def __init__(self) -> None:
        self.image: MetadataImage = EMPTY_IMAGE


class MetadataController:
    """The cluster's controller, which runs in this broker.

    A change is answered when its entry is durable in the store and every listener has processed it. So the
    partitions of a created topic have a leader when CreateTopics answers. Changes are decided one at a time, each
    from the image that results from the changes before it.
    """

    def __init__(
        self,
        store: Store,
        config: BrokerConfig,
        runtime: Runtime,
        cache: MetadataCache,
        *,
        lease_ms: int | None = None,
    ) -> None:
        """`lease_ms` is the time after which the controller lease expires if it is not renewed.

        None: it does not expire, since no other process can reach the store.
        """
        self._store = store
        self._config = config
        self._runtime = runtime
        self._turns = runtime.turns
        self._cache = cache
        self._lease = ControllerLease(store, runtime, lease_ms)
        self._image = EMPTY_IMAGE
        self._builder = ImageBuilder(EMPTY_IMAGE)
        """Collects the replayed journal until the start is complete."""
        self._appends = 0
        """Appends under all leases of this process; distinguishes them in the journal."""
        self._unsettled: UnsettledAppend | None = None
        self._failed: str | None = None
        self._deciding = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self._listeners: list[ImageListener] = []
        self._renewal: asyncio.Task[None] | None = None
        self._snapshot_task: asyncio.Task[None] | None = None
        self._bytes_since_snapshot = 0
        self._snapshot_bytes = 0

    # Starting and stopping

    async def inspect(self, cluster_id: str | None = None) -> bool:
        """Replay the part of the stored journal that the store can read without changing the disk. `start` replays
        the rest. Return whether there was any.

        Raises StoreFailed, StoreUnavailable and JournalError.
        """
        stored_journal = await self._store.inspect()
        if stored_journal is not None:
            self._replay_snapshot(stored_journal.snapshot)
            self._replay_entries(stored_journal.entries)
            self._check_cluster(self._builder.build(), cluster_id)
        return stored_journal is not None

    async def start(
        self,
        cluster_id: str | None = None,
        first_records: Callable[[], Awaitable[Sequence[JournalRecord]]] | None = None,
        holder: str | None = None,
    ) -> None:
        """Acquire the controller lease and replay the journal.

        `holder` identifies this broker among all processes that can reach the store, and is the same after a restart.
        The default is its node id.
        The first entry of an empty journal holds `cluster_id` (a new id if it is None) and the result of
        `first_records`: the topics of an adopted directory.

        Raises StoreFailed, StoreUnavailable, JournalError, and LeaseLost when another broker is the controller.
        """
        lease = await self._lease.acquire(holder or f"broker-{self._config.node_id}")
        self._image = image = await self._replay()
        new_records: list[JournalRecord] = []
        if image.position == 0:
            new_records.append(ClusterNamed(cluster_id or uuid_text(self._runtime.new_uuid())))
            if first_records is not None:
                new_records += await first_records()
        self._check_cluster(image, cluster_id)
        new_records.append(ControllerElected(self._config.node_id, lease.epoch))
        new_records += controller.renew_leadership(image, self._config.node_id)
        await self._append(new_records)
        self._cache.image = self._image
        self._apply_settings(self._image)
        if self._lease.renewal_s is not None:
            self._renewal = self._runtime.tasks.spawn(self._renew(self._lease.renewal_s), name="controller-lease")

    def _check_cluster(self, image: MetadataImage, cluster_id: str | None) -> None:
        if image.position and cluster_id is not None and image.cluster_id != cluster_id:
            raise JournalError(f"the metadata belongs to cluster {image.cluster_id}, the data to cluster {cluster_id}")

    async def _replay(self) -> MetadataImage:
        stored_snapshot = await self._store.snapshot()
        if stored_snapshot is not None and stored_snapshot.position > self._builder.position:
            self._replay_snapshot(stored_snapshot)
        while entries := await self._store.read(self._builder.position):
            self._replay_entries(entries)
        image = self._builder.build()
        self._builder = ImageBuilder(EMPTY_IMAGE)  # otherwise the first image would stay in memory
        return image

    def _replay_snapshot(self, stored_snapshot: Snapshot | None) -> None:
        if stored_snapshot is not None:
            self._builder = ImageBuilder(EMPTY_IMAGE)
            _replay_entry(self._builder, stored_snapshot.data, stored_snapshot.position)
            self._builder.position = stored_snapshot.position
            self._snapshot_bytes = len(stored_snapshot.data)
            self._bytes_since_snapshot = 0

    def _replay_entries(self, entries: Sequence[StoredEntry]) -> None:
        for position, data, *_ in entries:
            if position != self._builder.position:
                raise JournalError(f"metadata entry {self._builder.position} is missing")
            _replay_entry(self._builder, data, position)
            self._bytes_since_snapshot += len(data)

    async def stop(self) -> None:
        """Finish the change that is in progress, release the lease, close the store."""
        for task in (self._renewal, self._snapshot_task):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        async with self._deciding:
            try:
                await self._lease.release()
            except (StoreUnavailable, StoreFailed) as error:
                logger.warning("controller lease not released reason=%s", error)  # it ends by itself, or stays ours
            self._failed = self._failed or "the broker stops"
        async with self._publishing:
            await self._store.close()

    async def subscribe(self, listener: ImageListener) -> None:
        """Call `listener` for every change from now on, beginning with a change from the empty to the current image."""
        async with self._publishing:
            await _notify(listener, EMPTY_IMAGE, self._cache.image)
            self._listeners.append(listener)

    # Requests of brokers and clients

    async def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Register this broker with its `endpoints`, so that clients find it.

        All listeners must have processed the image before, so that the broker can serve its partitions.
        """
        config = self._config
        incarnation = uuid_text(self._runtime.new_uuid())
        await self._commit(
            lambda image: controller.register_broker(
                image, config.node_id, incarnation, endpoints, config.broker_rack or None
            )
        )

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        reserve: ReservePartitions = unlimited,
    ) -> list[TopicResult]:
        """Create topics. Raises ApiError (REQUEST_TIMED_OUT) if their partitions are not all led within `timeout_ms`.

        The topics are created even after a timeout.
        """
        return await self._commit(
            lambda image: controller.create_topics(
                image, topics, self._config, self._new_topic_id, validate_only=validate_only, reserve=reserve
            ),
            timeout_ms,
        )

    async def ensure_topics(self, names: Sequence[str], *, reserve: ReservePartitions = unlimited) -> list[TopicResult]:
        """Create the topics that do not exist, with the broker's defaults, or with the settings of an internal
        topic.

        A topic that exists is a success. The caller must have checked that topics may be created automatically.
        """

        def decide(image: MetadataImage) -> Steps[JournalDecision[list[TopicResult]]]:
            missing: dict[str, NewTopic] = {}
            present: list[TopicResult] = []
            for name in names:
                yield
                if name in image.topics:
                    present.append(TopicResult(name, image.topics[name].topic_id))
                elif name not in missing:
                    missing[name] = internal_topic(name, self._config, len(image.brokers)) or NewTopic(name)
            topics = list(missing.values())
            decision = yield from controller.create_topics(
                image, topics, self._config, self._new_topic_id, reserve=reserve
            )
            return JournalDecision(decision.records, present + decision.reply)

        return await self._commit(decide)

    async def delete_topics(
        self, choices: Sequence[TopicChoice], *, timeout_ms: int | None = None, reserve: ReservePartitions = unlimited
    ) -> list[TopicResult]:
        return await self._commit(lambda image: controller.delete_topics(image, choices, reserve=reserve), timeout_ms)

    async def create_partitions(
        self,
        requests: Sequence[MorePartitions],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        reserve: ReservePartitions = unlimited,
    ) -> list[TopicResult]:
        return await self._commit(
            lambda image: controller.create_partitions(
                image, requests, validate_only=validate_only, cordoned=self._config.is_cordoned, reserve=reserve
            ),
            timeout_ms,
        )

    async def alter_configs(
        self, alterations: Sequence[Alteration], *, validate_only: bool = False
    ) -> list[AlterationResult]:
        return await self._commit(
            lambda image: alter_configs(image, alterations, self._config, validate_only=validate_only)
        )

    async def alter_quotas(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
    ) -> list[QuotaResult]:
        return await self._commit(lambda image: alter_quotas(image, alterations, validate_only=validate_only))

    async def allocate_producer_ids(self) -> range:
        """Allocate a block of producer ids that no producer has had or will have."""
        return await self._commit(lambda image: controller.allocate_producer_ids(image, self._config.node_id))

    # Deciding, appending, publishing

    async def _commit(self, decide: Decide[R], timeout_ms: int | None = None) -> R:
        """Run one change and wait for it, for at most `timeout_ms`. Raises ApiError.

        A change that has begun runs to its end, even if the waiting request is cancelled or times out.
        """
        if timeout_ms is not None and timeout_ms <= 0:
            raise ApiError("", ErrorCode.REQUEST_TIMED_OUT)
        change = self._runtime.tasks.spawn(self._change(decide), name="metadata-change")
        try:
            return await asyncio.wait_for(asyncio.shield(change), None if timeout_ms is None else timeout_ms / 1000)
        except TimeoutError:
            raise ApiError("", ErrorCode.REQUEST_TIMED_OUT) from None

    async def _change(self, decide: Decide[R]) -> R:
        async with self._deciding:
            if self._failed is not None:
                raise ApiError(f"metadata cannot be changed: {self._failed}", ErrorCode.NOT_CONTROLLER)
            await self._finish_unsettled()
            decided = decide(self._image)
            decision = decided if isinstance(decided, JournalDecision) else await self._turns.run(decided)
            if not decision.records:
                return decision.reply
            old = self._image
            await self._append_for_client(decision.records)
            new = self._image
            self._snapshot_if_due()
            # Started while `_deciding` is held: asyncio's locks are fair, so changes are published in order.
            published = self._runtime.tasks.spawn(self._publish(old, new), name="metadata-publish")
        await published
        return decision.reply

    async def _append(self, new_records: Sequence[JournalRecord]) -> None:
        """Append one entry and apply it to the image. Raises the exceptions of `Store.append`."""
        lease, image = self._lease.current, self._image
        assert lease is not None, "only the controller appends"
        if self._lease.is_over:
            raise LeaseLost(f"the lease {lease.name} was not renewed in time")
        data = await self._turns.run(records.encode_in_steps(lease.epoch, new_records))
        number = self._appends
        self._appends += 1
        try:
            await self._store.append(image.position, data, lease, _writer(lease), number)
        except AppendUnknown as error:
            await self._settle(UnsettledAppend(image.position, data, new_records, lease, number), error)
        self._bytes_since_snapshot += len(data)
        await self._apply(new_records)

    async def _apply(self, new_records: Sequence[JournalRecord]) -> None:
        self._image = (await self._turns.run(ImageBuilder(self._image).apply_in_steps(new_records))).build()

    async def _settle(self, append: UnsettledAppend, error: AppendUnknown) -> None:
        """Wait for the outcome of an append. Raises AppendUnknown if it is still unknown after SETTLE_S."""
        latest_s = self._runtime.clock.monotonic() + SETTLE_S
        while True:
            try:
                await settle_append(
                    self._store, append.position, append.data, append.lease, _writer(append.lease), append.number
                )
                return
            except (AppendUnknown, StoreUnavailable):
                if self._runtime.clock.monotonic() >= latest_s:
                    self._unsettled = append
                    raise error from None
            await self._runtime.tasks.sleep(SETTLE_POLL_S)

    async def _finish_unsettled(self) -> None:
        """Find out the outcome of the append whose outcome is unknown, if there is one, and publish its change.

        Raises ApiError if it is still unknown, or if another broker is the controller. The caller holds `_deciding`.
        """
        append = self._unsettled
        if append is None:
            return
        try:
            await settle_append(
                self._store, append.position, append.data, append.lease, _writer(append.lease), append.number
            )
        except LeaseLost:
            self._unsettled = None  # the entry is not in the journal and never will be
            return
        except (AppendUnknown, StoreUnavailable) as error:
            raise ApiError(f"metadata cannot be changed: {error}", ErrorCode.KAFKA_STORAGE_ERROR) from None
        except (PositionTaken, StoreFailed) as error:
            self._fail(str(error))
            raise ApiError(str(error), ErrorCode.NOT_CONTROLLER) from None
        self._unsettled = None
        old = self._image
        await self._apply(append.records)
        self._runtime.tasks.spawn(self._publish(old, self._image), name="metadata-publish")

    async def _append_for_client(self, new_records: Sequence[JournalRecord]) -> None:
        """Append for a client's request. Raises ApiError.

        After StoreUnavailable the next change is tried again, and after AppendUnknown the next change first finds out
        the outcome; after any other failure all changes are refused.
        """
        try:
            try:
                await self._append(new_records)
            except LeaseLost:
                await self._regain_lease()
                await self._append(new_records)
        except EntryTooLarge:
            # As in Kafka for a request that creates too many partitions
            text = f"the change exceeds the {self._store.entry_bytes_max} bytes of one entry in the metadata store"
            raise ApiError(f"{text}: divide it into several requests", ErrorCode.POLICY_VIOLATION) from None
        except StoreUnavailable as error:
            logger.error("metadata not changed reason=%s", error)
            raise ApiError(f"metadata cannot be changed: {error}", ErrorCode.KAFKA_STORAGE_ERROR) from None
        except AppendUnknown as error:
            logger.error("metadata change of unknown outcome reason=%s", error)
            raise ApiError(str(error), ErrorCode.REQUEST_TIMED_OUT) from None
        except (PositionTaken, LeaseLost) as error:
            self._fail(f"another broker is the controller ({error})")
            raise ApiError(str(error), ErrorCode.NOT_CONTROLLER) from None
        except StoreFailed as error:
            # It is unknown whether the entry was stored, so the next change could be decided from a wrong image.
            self._fail(str(error))
            raise ApiError(str(error), ErrorCode.KAFKA_STORAGE_ERROR) from None

    async def _regain_lease(self) -> None:
        """Acquire the lease again, after the store was away for longer than the lease's term.

        Raises LeaseLost or PositionTaken if another broker was the controller meanwhile, and the exceptions of
        `_append`. The caller holds `_deciding`.
        """
        lease = await self._lease.regain()
        if await self._store.read(self._image.position, 1):
            raise PositionTaken("another broker has changed the metadata meanwhile")
        logger.warning("controller lease acquired again epoch=%d", lease.epoch)
        await self._append([ControllerElected(self._config.node_id, lease.epoch)])

    def _fail(self, reason: str) -> None:
        self._failed = reason
        logger.error("metadata read-only until restart reason=%s", reason)

    async def _publish(self, old: MetadataImage, new: MetadataImage) -> None:
        async with self._publishing:
            self._apply_settings(new)
            for listener in self._listeners:
                try:
                    await _notify(listener, old, new)
                except Exception:
                    # The change is in the journal, so the other listeners must process it even if one of them
                    # failed.
                    logger.exception("listener failed position=%d", new.position)
            self._cache.image = new
            _warn_of_settings_without_effect(old, new)

    def _apply_settings(self, image: MetadataImage) -> None:
        configs = image.broker_configs
        self._config.apply_dynamic(configs.get("", {}), configs.get(str(self._config.node_id), {}))

    def _new_topic_id(self) -> TopicId:
        return TopicId(self._runtime.new_uuid())

    # Snapshots and the lease

    def _snapshot_if_due(self) -> None:
        due = self._bytes_since_snapshot >= max(SNAPSHOT_BYTES_MIN, 2 * self._snapshot_bytes)
        if due and (self._snapshot_task is None or self._snapshot_task.done()):
            self._bytes_since_snapshot = 0
            self._snapshot_task = self._runtime.tasks.spawn(self._save_snapshot(self._image), name="metadata-snapshot")

    async def _save_snapshot(self, image: MetadataImage) -> None:
        def encode() -> bytes:
            return records.encode(image.controller_epoch, snapshot(image))

        data = await self._runtime.tasks.run_blocking(encode)
        try:
            await self._store.save_snapshot(Snapshot(image.position, data))
        except (StoreUnavailable, StoreFailed) as error:
            logger.warning("metadata snapshot not written reason=%s", error)  # the journal is complete without it
        else:
            self._snapshot_bytes = len(data)

    async def _renew(self, interval_s: float) -> None:
        while self._failed is None:
            await self._runtime.tasks.sleep(interval_s)
            try:
                await self._lease.renew()
            except LeaseLost:
                await self._regain_in_background()
            except (StoreUnavailable, StoreFailed) as error:
                logger.warning("controller lease not renewed reason=%s", error)
            if self._unsettled is not None:
                async with self._deciding:
                    with suppress(ApiError):  # still unknown: the next round tries again
                        await self._finish_unsettled()

    async def _regain_in_background(self) -> None:
        async with self._deciding:
            if self._failed is not None or self._unsettled is not None:
                return
            old = self._image
            try:
                await self._regain_lease()
            except (LeaseLost, PositionTaken) as error:
                self._fail(str(error))
            except (StoreUnavailable, StoreFailed) as error:
                logger.warning("controller lease not renewed reason=%s", error)
            else:
                self._runtime.tasks.spawn(self._publish(old, self._image), name="metadata-publish")


def _writer(lease: Lease) -> str:
    """Return the writer's id of appends under this lease. No other process has the lease in the same epoch."""
    return f"{lease.holder}/{lease.epoch}"


def _replay_entry(builder: ImageBuilder, data: bytes, position: int) -> None:
    """Apply one stored entry or snapshot to the builder. Raises JournalError."""
    try:
        builder.apply(records.decode(data, position).records)
    except (LookupError, AssertionError) as error:
        raise JournalError(f"metadata entry {position} does not follow from those before: {error!r}") from error


def _warn_of_settings_without_effect(old: MetadataImage, new: MetadataImage) -> None:
    """Log a warning for each topic that got settings without effect in this change."""
    if old.topics is new.topics:
        return
    for name, topic in new.topics.items():
        old_topic = old.topics.get(name)
        if topic.config and (old_topic is None or old_topic.config is not topic.config):
            without_effect = topic_settings_without_effect(topic.config)
            if without_effect and (
                old_topic is None or without_effect != topic_settings_without_effect(old_topic.config)
            ):
                logger.warning("settings without effect here topic=%s settings=%s", name, ",".join(without_effect))


async def _notify(listener: ImageListener, old: MetadataImage, new: MetadataImage) -> None:
    result = listener(old, new)
    if result is not None:
        await result


class ProducerIds:
    """Hands out producer ids from blocks that the controller allocates."""

    def __init__(self, controller: MetadataController) -> None:
        self._controller = controller
        self._block = iter(range(0))
        self._allocating = asyncio.Lock()

    async def next(self) -> int:
        """Return an id that no producer of this cluster has had. Raises ApiError."""
        producer_id = next(self._block, None)
        while producer_id is None:
            async with self._allocating:
                producer_id = next(self._block, None)
                if producer_id is None:
                    self._block = iter(await self._controller.allocate_producer_ids())
                    producer_id = next(self._block)
        return producer_id
