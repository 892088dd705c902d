"""Publish each new metadata image to the parts of this broker.

Publishing an image has two steps:

    1. at once, in one step of the event loop: the broker's settings, then the role listeners (`RoleListener`)
    2. later, one image after another: the other listeners (`ImageListener`), which may wait for the disk; then the
       image becomes the `processed` image of the cache

So the first step of an image may run while the second step of an older image still waits for a slow disk. This is
necessary because an election or a fencing must not wait for the creation or deletion of partitions. Both steps process
the images in the order of the journal. What this means for the parts of the broker:

- Roles correspond to the newest image (`MetadataCache.newest`). Files correspond to the newest image or to an older
  one. A partition whose log is being opened gets its newest role when its log is open. Before an image listener removes
  a log, or changes something on which a partition's role depends, it looks at the newest image
  (`replication/reconcile.py`).
- Each image listener gets every change. The image listeners process a change one after another, in the order in which
  they have subscribed. The coordinators of groups depend on this order: they delete the offsets of a deleted topic
  after its partitions are removed, and before clients see the new image.
- Clients' requests are answered from `MetadataCache.image`. It has the topics and partitions of the processed image, so
  a client sees a new topic when its partitions can be used. It has the leaders of the newest image, so a client finds a
  new leader at once.
- The other parts of the broker ask `MetadataCache.newest` which broker is the controller, which brokers are registered,
  and which broker leads a partition. Otherwise a broker with a slow disk would send its requests to a controller or
  leader that has died, and would refuse a follower that has been registered again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.topic_config import topic_settings_without_effect
from tidelog.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from tidelog.runtime.interfaces import Runtime, Tasks

logger = logging.getLogger("tidelog.metadata")

RoleListener = Callable[[MetadataImage, MetadataImage], None]
"""A function that changes the roles of partitions, or something else that needs no file. It is called with the old and
the new image of each change, in the order of the changes, in the same turn of the event loop in which the change is
published. It must not wait.

The role listeners of all parts run in the same turn, in the order in which they have subscribed, and before the first
`ImageListener` of this change.
"""

ImageListener = Callable[[MetadataImage, MetadataImage], Awaitable[None] | None]
"""A function that is called with the old and the new image of each change, in the order of the changes. During the
call, later changes may be published: the role listeners process them at once, and the image listeners only after the
call. So a listener must not assume that the new image of its call is the newest one, and it must not wait for a change
that it has requested from the controller."""


class MetadataCache:
    """The images that this broker knows."""

    __slots__ = ("_image", "newest", "processed")

    def __init__(self) -> None:
        self.processed: MetadataImage = EMPTY_IMAGE
        """The image that all listeners have processed."""
        self.newest: MetadataImage = EMPTY_IMAGE
        """The newest image. The settings of this broker and the roles of its partitions correspond to it. The file work
        of this image may still be unfinished.
        """
        self._image: MetadataImage | None = EMPTY_IMAGE

    @property
    def image(self) -> MetadataImage:
        """The image from which this broker answers clients' requests: the processed image, in which the brokers,
        the topics' settings, and the partitions' leaders and replicas are those of the newest image.
        """
        if self._image is None:
            self._image = _with_newest_states(self.processed, self.newest)
        return self._image

    @image.setter
    def image(self, image: MetadataImage) -> None:
        """Store an image that is the newest one and that all listeners have processed."""
        self._image = self.processed = self.newest = image

    def begin(self, new: MetadataImage) -> None:
        """Store the newest image."""
        self.newest = new
        self._image = None

    def complete(self, new: MetadataImage) -> None:
        """Store the image that all listeners have processed."""
        self.processed = new
        self._image = new if new is self.newest else None


def _with_newest_states(processed: MetadataImage, newest: MetadataImage) -> MetadataImage:
    """Return `processed`, but with the brokers of `newest`, and with the settings and the partition states that its
    topics have in `newest`.
    """
    topics = processed.topics
    if topics is not newest.topics:
        topics = {name: _newest_state(topic, newest.topics.get(name)) for name, topic in topics.items()}
    return MetadataImage(
        position=processed.position,
        cluster_id=processed.cluster_id,
        controller_id=newest.controller_id,
        controller_epoch=newest.controller_epoch,
        brokers=newest.brokers,
        topics=topics,
        topics_by_id={topic.topic_id: topic for topic in topics.values()},
        broker_configs=processed.broker_configs,
        group_configs=processed.group_configs,
        client_quotas=processed.client_quotas,
        client_metrics_configs=processed.client_metrics_configs,
        producer_ids_next=processed.producer_ids_next,
        partition_count=processed.partition_count,
        feature_levels=processed.feature_levels,
    )


def _newest_state(topic: TopicImage, newer: TopicImage | None) -> TopicImage:
    if newer is None or newer.topic_id != topic.topic_id:
        return topic  # the topic is deleted
    count = len(topic.partitions)
    if len(newer.partitions) == count:
        return newer
    return TopicImage(topic.name, topic.topic_id, newer.partitions[:count], newer.config)


class Unprocessed(NamedTuple):
    """A published change that some listeners have not processed yet."""

    position: int
    """The position of the image in the journal."""
    since_s: float
    """When the change was published, in seconds of the monotonic clock."""


class Publisher:
    """Passes each new image to the listeners, and stores it in the cache. See the description of this module."""

    def __init__(self, runtime: Runtime, config: BrokerConfig, cache: MetadataCache) -> None:
        self._tasks = runtime.tasks
        self._clock = runtime.clock
        self._config = config
        self._cache = cache
        self._listeners_lock = asyncio.Lock()
        """Held while the image listeners process one change."""
        self._role_listeners: list[RoleListener] = []
        self._listeners: list[ImageListener] = []
        self._unprocessed: deque[Unprocessed] = deque()
        self._waiting_for_roles = _Waiters(self._tasks)
        self._waiting = _Waiters(self._tasks)

    def begin(self, image: MetadataImage) -> None:
        """Store the first image in the cache. There are no listeners yet."""
        self._cache.image = image
        self._apply_settings(EMPTY_IMAGE, image)

    def subscribe_roles(self, listener: RoleListener) -> None:
        """Call the listener now and for every change from now on. The first change is from the empty to the newest
        image.
        """
        listener(EMPTY_IMAGE, self._cache.newest)
        self._role_listeners.append(listener)

    async def subscribe(self, listener: ImageListener, roles: RoleListener | None = None) -> None:
        """Call the listeners for every change from now on. For `listener`, the first change is from the empty image to
        the image that all other listeners have processed.

        `roles` is the role listener of the same part of the broker, if that part has one; see `subscribe_roles`.
        """
        if roles is not None:
            self.subscribe_roles(roles)
        async with self._listeners_lock:
            await _notify(listener, EMPTY_IMAGE, self._cache.processed)
            self._listeners.append(listener)

    def publish(self, old: MetadataImage, new: MetadataImage) -> "asyncio.Task[None]":
        """Publish a change. When this method returns, the role listeners have processed it. The returned task ends when
        all listeners have processed it.

        The image listeners process the changes in the order of the calls, since asyncio's locks are fair.
        """
        self._cache.begin(new)
        for change_roles in (self._apply_settings, *self._role_listeners):
            try:
                change_roles(old, new)
            except Exception:
                # The change is in the journal, so the other listeners must process it even if this one has failed.
                logger.exception("listener failed position=%d", new.position)
        self._waiting_for_roles.wake(new.position)
        self._unprocessed.append(Unprocessed(new.position, self._clock.monotonic()))
        return self._tasks.spawn(self._publish(old, new), name="metadata-publish")

    async def _publish(self, old: MetadataImage, new: MetadataImage) -> None:
        async with self._listeners_lock:
            for listener in self._listeners:
                try:
                    await _notify(listener, old, new)
                except Exception:
                    logger.exception("listener failed position=%d", new.position)
            self._cache.complete(new)
            self._unprocessed.popleft()
            self._waiting.wake(new.position)
            _warn_of_settings_without_effect(old, new)

    @property
    def oldest_unprocessed(self) -> Unprocessed | None:
        """The oldest change that is not yet processed by all listeners, if there is one."""
        return self._unprocessed[0] if self._unprocessed else None

    async def wait_for(self, position: int) -> None:
        """Wait until all listeners have processed the journal's entries before `position`."""
        if self._cache.processed.position < position:
            await self._waiting.wait(position)

    async def wait_for_roles(self, position: int) -> None:
        """Wait until the role listeners have processed the journal's entries before `position`."""
        if self._cache.newest.position < position:
            await self._waiting_for_roles.wait(position)

    async def wait_until_idle(self) -> None:
        """Wait until the changes that were published before this call are processed."""
        await self.wait_for(self._cache.newest.position)

    def _apply_settings(self, _: MetadataImage, new: MetadataImage) -> None:
        configs = new.broker_configs
        self._config.apply_dynamic(configs.get("", {}), configs.get(str(self._config.node_id), {}))


class _Waiters:
    """Callers that wait until a step of the publication has reached a position of the journal."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """The position for which each caller waits, and the future that ends its wait."""

    async def wait(self, position: int) -> None:
        arrived: asyncio.Future[None] = self._tasks.future()
        self._waiting.append((position, arrived))
        await arrived

    def wake(self, position: int) -> None:
        for awaited, arrived in self._waiting:
            if awaited <= position and not arrived.done():
                arrived.set_result(None)
        self._waiting = [(awaited, arrived) for awaited, arrived in self._waiting if not arrived.done()]


def _warn_of_settings_without_effect(old: MetadataImage, new: MetadataImage) -> None:
    """Log a warning for each topic to which this change gives settings that have no effect in Tidelog."""
    if old.topics is new.topics:
        return
    for name, topic in new.topics.items():
        old_topic = old.topics.get(name)
        if topic.config and (old_topic is None or old_topic.config is not topic.config):
            without_effect = topic_settings_without_effect(topic.config)
            if without_effect and (
                old_topic is None or without_effect != topic_settings_without_effect(old_topic.config)
            ):
                logger.warning(
                    "settings have no effect in Tidelog topic=%s settings=%s", name, ",".join(without_effect)
                )


async def _notify(listener: ImageListener, old: MetadataImage, new: MetadataImage) -> None:
    result = listener(old, new)
    if result is not None:
        await result
