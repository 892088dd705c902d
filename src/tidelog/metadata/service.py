"""Runs the controller's decisions: append to the store, replay into the image, tell the broker's parts, answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.endpoints import Endpoint
from tidelog.config.topic_config import topics_without_effect
from tidelog.metadata import controller, records
from tidelog.metadata.alterations import Alteration, AlterationResult, alter_configs
from tidelog.metadata.controller import (
    JournalDecision,
    MorePartitions,
    NewTopic,
    TakePartitions,
    TopicChoice,
    TopicResult,
    unlimited,
)
from tidelog.metadata.image import EMPTY_IMAGE, ImageBuilder, MetadataImage, snapshot
from tidelog.metadata.internal_topics import internal_topic
from tidelog.metadata.quota_alterations import QuotaAlteration, QuotaResult, alter_quotas
from tidelog.metadata.records import ClusterNamed, ControllerElected, JournalError, JournalRecord
from tidelog.metadata.store import (
    Lease,
    LeaseLost,
    PositionTaken,
    Snapshot,
    Store,
    StoredEntry,
    StoreFailed,
    StoreUnavailable,
)
from tidelog.model.ids import TopicId, uuid_text
from tidelog.model.steps import Steps
from tidelog.runtime.interfaces import Runtime
from tidelog.wire.errors import ApiError, ErrorCode

R = TypeVar("R")

logger = logging.getLogger("tidelog.metadata")

CONTROLLER_LEASE: Final = "controller"
SNAPSHOT_BYTES_MIN: Final = 256 * 1024
"""Entries since the last snapshot that are worth a new one; more when the last one was larger."""

ImageListener = Callable[[MetadataImage, MetadataImage], Awaitable[None] | None]
"""Told of the image before and the image after, one change at a time, in order. It may not ask the controller for
anything and wait for it: the next change waits for this one."""


Decide = Callable[[MetadataImage], JournalDecision[R] | Steps[JournalDecision[R]]]
"""One change, from the image before it."""


class MetadataCache:
    """The image that this broker answers from: everything in it has reached the broker's parts."""

    __slots__ = ("image",)

    def __init__(self) -> None:
        self.image: MetadataImage = EMPTY_IMAGE


class MetadataController:
    """The controller in this broker.

    A change is answered when its entry is durable in the store, and every listener has taken it: a created topic's
    partitions lead by then. Requests wait in line, and each is decided from the image that all before it gave.
    """

    def __init__(
        self, store: Store, config: BrokerConfig, runtime: Runtime, cache: MetadataCache, *, lease_ms: int | None = None
    ) -> None:
        """`lease_ms`: how long the controller's lease outlives it; None where nobody else can reach the store."""
        self._store = store
        self._config = config
        self._runtime = runtime
        self._turns = runtime.turns
        self._cache = cache
        self._lease_ms = lease_ms
        self._image = EMPTY_IMAGE
        self._builder = ImageBuilder(EMPTY_IMAGE)
        """Takes in the journal at the start."""
        self._lease: Lease | None = None
        self._failed: str | None = None
        self._deciding = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self._listeners: list[ImageListener] = []
        self._renewal: asyncio.Task[None] | None = None
        self._snapshot_task: asyncio.Task[None] | None = None
        self._bytes_since_snapshot = 0
        self._snapshot_bytes = 0

    # Starting and stopping

    async def look(self, cluster_id: str | None = None) -> None:
        """Replay what the store can tell without a change of anything; `start` goes on from there.

        Raises StoreFailed, JournalError.
        """
        stored = await self._store.look()
        if stored is not None:
            self._take_snapshot(stored.snapshot)
            self._take_entries(stored.entries)
            self._check_cluster(self._builder.build(), cluster_id)

    async def start(
        self,
        cluster_id: str | None = None,
        first_records: Callable[[], Awaitable[Sequence[JournalRecord]]] | None = None,
    ) -> None:
        """Take the controller's lease and replay the journal.

        An empty journal begins with `cluster_id` (a new one when None) and what `first_records` gives: an adopted
        directory's topics.
        Raises StoreFailed, StoreUnavailable, JournalError, and LeaseLost when another broker is the controller.
        """
        lease = await self._store.acquire(CONTROLLER_LEASE, f"broker-{self._config.node_id}", self._lease_ms)
        if lease is None:
            raise LeaseLost("another broker is the controller of this cluster")
        self._lease = lease
        self._image = image = await self._replay()
        opening: list[JournalRecord] = []
        if image.position == 0:
            opening.append(ClusterNamed(cluster_id or uuid_text(self._runtime.new_uuid())))
            if first_records is not None:
                opening += await first_records()
        self._check_cluster(image, cluster_id)
        opening.append(ControllerElected(self._config.node_id, lease.epoch))
        opening += controller.renew_leadership(image, self._config.node_id)
        await self._append(opening)
        self._cache.image = self._image
        self._apply_settings(self._image)
        if self._lease_ms is not None:
            self._renewal = self._runtime.tasks.spawn(self._renew(self._lease_ms), name="controller-lease")

    def _check_cluster(self, image: MetadataImage, cluster_id: str | None) -> None:
        if image.position and cluster_id is not None and image.cluster_id != cluster_id:
            raise JournalError(f"the metadata is of cluster {image.cluster_id}, the data of cluster {cluster_id}")

    async def _replay(self) -> MetadataImage:
        found = await self._store.snapshot()
        if found is not None and found.position > self._builder.position:
            self._take_snapshot(found)
        while stored := await self._store.read(self._builder.position):
            self._take_entries(stored)
        return self._builder.build()

    def _take_snapshot(self, found: Snapshot | None) -> None:
        if found is not None:
            self._builder = ImageBuilder(EMPTY_IMAGE)
            _replay_entry(self._builder, found.data, found.position)
            self._builder.position = found.position
            self._snapshot_bytes = len(found.data)
            self._bytes_since_snapshot = 0

    def _take_entries(self, stored: Sequence[StoredEntry]) -> None:
        for position, data in stored:
            if position != self._builder.position:
                raise JournalError(f"metadata entry {self._builder.position} is missing")
            _replay_entry(self._builder, data, position)
            self._bytes_since_snapshot += len(data)

    async def stop(self) -> None:
        """Finish what is under way, give the lease back, close the store."""
        for task in (self._renewal, self._snapshot_task):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        async with self._deciding:
            if self._lease is not None:
                await self._store.release(self._lease)
                self._lease = None
            self._failed = self._failed or "the broker stops"
        async with self._publishing:
            await self._store.close()

    async def subscribe(self, listener: ImageListener) -> None:
        """Tell it of everything from now on, beginning with the whole image as a change of an empty one."""
        async with self._publishing:
            await _tell(listener, EMPTY_IMAGE, self._cache.image)
            self._listeners.append(listener)

    # What brokers and clients ask

    async def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Let clients find this broker at `endpoints`. Its own part of the image must have been applied."""
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
        take: TakePartitions = unlimited,
    ) -> list[TopicResult]:
        """Raises ApiError with REQUEST_TIMED_OUT when they do not all lead in time; they will, later."""
        return await self._commit(
            lambda image: controller.create_topics(
                image, topics, self._config, self._new_topic_id, validate_only=validate_only, take=take
            ),
            timeout_ms,
        )

    async def ensure_topics(self, names: Sequence[str], *, take: TakePartitions = unlimited) -> list[TopicResult]:
        """Make those that are missing, with the broker's defaults, internal ones as their coordinators need them.

        A topic that exists by now is a success. Leaves it to the caller whether topics are made on demand.
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
            decision = yield from controller.create_topics(image, topics, self._config, self._new_topic_id, take=take)
            return JournalDecision(decision.records, present + decision.reply)

        return await self._commit(decide)

    async def delete_topics(
        self, choices: Sequence[TopicChoice], *, timeout_ms: int | None = None, take: TakePartitions = unlimited
    ) -> list[TopicResult]:
        return await self._commit(lambda image: controller.delete_topics(image, choices, take=take), timeout_ms)

    async def create_partitions(
        self,
        requests: Sequence[MorePartitions],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        take: TakePartitions = unlimited,
    ) -> list[TopicResult]:
        return await self._commit(
            lambda image: controller.create_partitions(
                image, requests, validate_only=validate_only, cordoned=self._config.takes_no_partitions, take=take
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
        """A block of ids that nobody had or will have."""
        return await self._commit(lambda image: controller.allocate_producer_ids(image, self._config.node_id))

    # Deciding, appending, telling

    async def _commit(self, decide: Decide[R], timeout_ms: int | None = None) -> R:
        """Raises ApiError. Once begun it goes on to its end, whatever becomes of who asked."""
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
            decided = decide(self._image)
            decision = decided if isinstance(decided, JournalDecision) else await self._turns.run(decided)
            if not decision.records:
                return decision.reply
            old = self._image
            await self._append_for_client(decision.records)
            new = self._image
            self._snapshot_if_due()
            # Started here, one after the other: asyncio's locks are fair, so listeners hear of changes in their order.
            published = self._runtime.tasks.spawn(self._publish(old, new), name="metadata-publish")
        await published
        return decision.reply

    async def _append(self, new_records: list[JournalRecord]) -> None:
        """Append one entry and take it into the image. Raises what `Store.append` raises."""
        lease, image = self._lease, self._image
        assert lease is not None, "only the controller appends"
        data = await self._turns.run(records.encode_in_steps(lease.epoch, new_records))
        await self._store.append(image.position, data, lease)
        self._bytes_since_snapshot += len(data)
        self._image = (await self._turns.run(ImageBuilder(image).apply_in_steps(new_records))).build()

    async def _append_for_client(self, new_records: list[JournalRecord]) -> None:
        """Raises ApiError; for good, unless the store says that it is as it was."""
        try:
            await self._append(new_records)
        except StoreUnavailable as error:
            logger.error("metadata not changed reason=%s", error)
            raise ApiError(f"metadata cannot be changed: {error}", ErrorCode.KAFKA_STORAGE_ERROR) from None
        except (PositionTaken, LeaseLost) as error:
            self._fail(f"another broker is the controller ({error})")
            raise ApiError(str(error), ErrorCode.NOT_CONTROLLER) from None
        except StoreFailed as error:
            # Whether the entry is there is not known: what follows could not be decided from the right image.
            self._fail(str(error))
            raise ApiError(str(error), ErrorCode.KAFKA_STORAGE_ERROR) from None

    def _fail(self, reason: str) -> None:
        self._failed = reason
        logger.error("metadata read-only until restart reason=%s", reason)

    async def _publish(self, old: MetadataImage, new: MetadataImage) -> None:
        async with self._publishing:
            self._apply_settings(new)
            for listener in self._listeners:
                try:
                    await _tell(listener, old, new)
                except Exception:
                    # The change stands in the journal: the others must hear of it all the same.
                    logger.exception("listener failed position=%d", new.position)
            self._cache.image = new
            _warn_of_no_effect(old, new)

    def _apply_settings(self, image: MetadataImage) -> None:
        configs = image.broker_configs
        self._config.apply_dynamic(configs.get("", {}), configs.get(str(self._config.node_id), {}))

    def _new_topic_id(self) -> TopicId:
        return TopicId(self._runtime.new_uuid())

    # Keeping the journal short, and the lease

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
            logger.warning("metadata snapshot not written reason=%s", error)  # the journal is whole without it
        else:
            self._snapshot_bytes = len(data)

    async def _renew(self, lease_ms: int) -> None:
        assert self._lease is not None
        while self._failed is None:
            await self._runtime.tasks.sleep(lease_ms / 3000)
            try:
                await self._store.renew(self._lease, lease_ms)
            except LeaseLost as error:
                self._fail(str(error))
            except (StoreUnavailable, StoreFailed) as error:
                logger.warning("controller lease not renewed reason=%s", error)


def _replay_entry(builder: ImageBuilder, data: bytes, position: int) -> None:
    """Raises JournalError."""
    try:
        builder.apply(records.decode(data, position).records)
    except (LookupError, AssertionError) as error:
        raise JournalError(f"metadata entry {position} does not follow from those before: {error!r}") from error


def _warn_of_no_effect(old: MetadataImage, new: MetadataImage) -> None:
    """Once per topic that gets settings which nothing reads."""
    if old.topics is new.topics:
        return
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        if topic.config and (before is None or before.config is not topic.config):
            idle = topics_without_effect(topic.config)
            if idle and (before is None or idle != topics_without_effect(before.config)):
                logger.warning("settings without effect here topic=%s settings=%s", name, ",".join(idle))


async def _tell(listener: ImageListener, old: MetadataImage, new: MetadataImage) -> None:
    answer = listener(old, new)
    if answer is not None:
        await answer


class ProducerIds:
    """Ids for idempotent producers, from blocks that the controller allocates."""

    def __init__(self, controller: MetadataController) -> None:
        self._controller = controller
        self._block = iter(range(0))
        self._allocating = asyncio.Lock()

    async def next(self) -> int:
        """An id that no producer of this cluster ever had. Raises ApiError."""
        found = next(self._block, None)
        while found is None:
            async with self._allocating:
                found = next(self._block, None)
                if found is None:
                    self._block = iter(await self._controller.allocate_producer_ids())
                    found = next(self._block)
        return found
