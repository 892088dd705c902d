"""Publish each new metadata image to the parts of this broker.

The order is: the broker's settings, then the roles of partitions (`RoleListener`), then all other changes
(`ImageListener`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidelog.config.broker_config import BrokerConfig
from tidelog.config.topic_config import topic_settings_without_effect
from tidelog.metadata.image import EMPTY_IMAGE, MetadataImage
from tidelog.runtime.interfaces import Tasks

logger = logging.getLogger("tidelog.metadata")

RoleListener = Callable[[MetadataImage, MetadataImage], None]
"""A function that changes the roles of partitions. It is called with the old and the new image of each change, in the
order of the changes. It must not wait.

The role listeners of all parts run in the same turn of the event loop, before the first `ImageListener` of this change.
"""

ImageListener = Callable[[MetadataImage, MetadataImage], Awaitable[None] | None]
"""A function that is called with the old and the new image of each change, in the order of the changes. The next change
waits until the call has ended. So a listener must not wait for a change that it has requested from the controller."""


class MetadataCache:
    """The image from which this broker answers requests. All listeners have processed this image."""

    __slots__ = ("image",)

    def __init__(self) -> None:
        self.image: MetadataImage = EMPTY_IMAGE


class Publisher:
    """Passes each new image to the listeners, and stores it in the cache afterwards. Changes are published one at a
    time.
    """

    def __init__(self, tasks: Tasks, config: BrokerConfig, cache: MetadataCache) -> None:
        self._tasks = tasks
        self._config = config
        self._cache = cache
        self._publishing_lock = asyncio.Lock()
        self._role_listeners: list[RoleListener] = []
        self._listeners: list[ImageListener] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """The callers of `wait_for`: the journal position for which each waits, and the future that ends its wait."""

    def begin(self, image: MetadataImage) -> None:
        """Store the first image in the cache. There are no listeners yet."""
        self._cache.image = image
        self._apply_settings(image)

    async def subscribe(self, listener: ImageListener, roles: RoleListener | None = None) -> None:
        """Call the listeners for every change from now on. The first change is from the empty to the current image.

        `roles` is the role listener of the same part of the broker, if that part has one.
        """
        async with self._publishing_lock:
            if roles is not None:
                roles(EMPTY_IMAGE, self._cache.image)
                self._role_listeners.append(roles)
            await _notify(listener, EMPTY_IMAGE, self._cache.image)
            self._listeners.append(listener)

    def publish(self, old: MetadataImage, new: MetadataImage) -> "asyncio.Task[None]":
        """Publish a change. The returned task ends when the cache has the new image.

        Changes are published in the order of the calls, since asyncio's locks are fair.
        """
        return self._tasks.spawn(self._publish(old, new), name="metadata-publish")

    async def _publish(self, old: MetadataImage, new: MetadataImage) -> None:
        async with self._publishing_lock:
            self._apply_settings(new)
            for change_roles in self._role_listeners:
                try:
                    change_roles(old, new)
                except Exception:
                    logger.exception("listener failed position=%d", new.position)
            for listener in self._listeners:
                try:
                    await _notify(listener, old, new)
                except Exception:
                    # The change is in the journal, so the other listeners must process it even if one of them
                    # failed.
                    logger.exception("listener failed position=%d", new.position)
            self._cache.image = new
            self._wake_waiting()
            _warn_of_settings_without_effect(old, new)

    async def wait_for(self, position: int) -> None:
        """Wait until the cache's image contains the journal's entries before `position`."""
        if self._cache.image.position < position:
            arrived: asyncio.Future[None] = self._tasks.future()
            self._waiting.append((position, arrived))
            await arrived

    def _wake_waiting(self) -> None:
        position = self._cache.image.position
        for awaited, arrived in self._waiting:
            if awaited <= position and not arrived.done():
                arrived.set_result(None)
        self._waiting = [(awaited, arrived) for awaited, arrived in self._waiting if not arrived.done()]

    async def wait_until_idle(self) -> None:
        """Wait until the changes that were published before this call are processed."""
        async with self._publishing_lock:
            pass

    def _apply_settings(self, image: MetadataImage) -> None:
        configs = image.broker_configs
        self._config.apply_dynamic(configs.get("", {}), configs.get(str(self._config.node_id), {}))


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
                logger.warning(
                    "settings have no effect in Tidelog topic=%s settings=%s", name, ",".join(without_effect)
                )


async def _notify(listener: ImageListener, old: MetadataImage, new: MetadataImage) -> None:
    result = listener(old, new)
    if result is not None:
        await result
