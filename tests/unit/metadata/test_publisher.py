"""Images reach role listeners at once, and the other listeners one after another."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from metadata_harness.builders import image, settings, topic, topic_id
from tidelog.metadata.image import EMPTY_IMAGE, ImageBuilder, MetadataImage
from tidelog.metadata.publisher import MetadataCache, Publisher
from tidelog.metadata.records import BrokerStateChanged, PartitionChanged, PartitionsAdded, TopicDeleted
from tidelog.runtime.interfaces import Runtime
from tidelog.simulation.world import World, simulated

IMAGES = [EMPTY_IMAGE, *(image(*[topic(f"t{j}", j) for j in range(i)]) for i in range(1, 7))]
"""IMAGES[i] has i topics."""


class SlowListener:
    """A part of the broker whose work on each change ends when the test says so."""

    def __init__(self, runtime: Runtime) -> None:
        self._tasks = runtime.tasks
        self.calls: list[tuple[int, int]] = []
        self.roles: list[tuple[int, int]] = []
        self._waiting: asyncio.Future[None] | None = None

    def change_roles(self, old: MetadataImage, new: MetadataImage) -> None:
        self.roles.append((len(old.topics), len(new.topics)))

    async def apply(self, old: MetadataImage, new: MetadataImage) -> None:
        self.calls.append((len(old.topics), len(new.topics)))
        self._waiting = self._tasks.future()
        await self._waiting

    async def finish(self) -> None:
        """End the work on one change."""
        while self._waiting is None:
            await asyncio.sleep(0.001)
        self._waiting.set_result(None)
        self._waiting = None
        await asyncio.sleep(0.001)


class Stage:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.cache = MetadataCache()
        self.config = settings()
        self.publisher = Publisher(runtime, self.config, self.cache)
        self.publisher.begin(IMAGES[1])
        self.slow = SlowListener(runtime)

    async def subscribe(self) -> None:
        subscribing = self.runtime.tasks.spawn(
            self.publisher.subscribe(self.slow.apply, self.slow.change_roles), name="subscribe"
        )
        await self.slow.finish()
        await subscribing

    def publish(self, number: int) -> None:
        self.publisher.publish(IMAGES[number - 1], IMAGES[number])


def run(scenario: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def whole(world: World) -> None:
        await scenario(Stage(world.host("a").start()))

    with simulated(1) as world:
        world.run(whole(world), virtual_s=600)


def test_roles_do_not_wait_for_the_work_on_older_changes() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.subscribe()
        for number in (2, 3, 4):
            stage.publish(number)
            assert stage.slow.roles[-1] == (number - 1, number), "in the same step"
            assert stage.cache.newest is IMAGES[number]
        await asyncio.sleep(10)
        assert stage.slow.calls == [(0, 1), (1, 2)]
        assert stage.cache.processed is IMAGES[1]
        oldest = stage.publisher.oldest_unprocessed
        assert oldest is not None
        assert (oldest.position, stage.runtime.clock.monotonic() - oldest.since_s > 9.9) == (IMAGES[2].position, True)
        for number in (2, 3, 4):
            await stage.slow.finish()
            assert stage.cache.processed is IMAGES[number]
            assert stage.cache.newest is IMAGES[4]
        assert stage.slow.calls == [(0, 1), (1, 2), (2, 3), (3, 4)], "every change, in order"
        assert stage.publisher.oldest_unprocessed is None

    run(scenario)


def test_callers_wait_for_roles_or_for_all_work() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.subscribe()
        position = IMAGES[2].position
        for_roles = stage.runtime.tasks.spawn(stage.publisher.wait_for_roles(position), name="roles")
        for_all = stage.runtime.tasks.spawn(stage.publisher.wait_for(position), name="all")
        await asyncio.sleep(1)
        assert not for_roles.done()
        stage.publish(2)
        await asyncio.sleep(1)
        assert for_roles.done()
        assert not for_all.done()
        await stage.publisher.wait_for_roles(position)
        idle = stage.runtime.tasks.spawn(stage.publisher.wait_until_idle(), name="idle")
        await stage.slow.finish()
        await for_all
        await idle

    run(scenario)


def test_a_part_that_subscribes_during_file_work_gets_every_change_once() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.subscribe()
        stage.publish(2)
        stage.publish(3)
        late = SlowListener(stage.runtime)
        subscribing = stage.runtime.tasks.spawn(
            stage.publisher.subscribe(late.apply, late.change_roles), name="subscribe"
        )
        await asyncio.sleep(1)
        stage.publish(4)
        assert late.roles == [(0, 3), (3, 4)]
        assert not late.calls
        await stage.slow.finish()
        await stage.slow.finish()
        await late.finish()
        await subscribing
        await stage.slow.finish()
        await late.finish()
        assert late.calls == [(0, 3), (3, 4)]
        assert stage.cache.processed is IMAGES[4]

    run(scenario)


def test_clients_see_new_leaders_at_once_and_new_topics_after_the_work() -> None:
    async def scenario(stage: Stage) -> None:
        before = image(topic("t", 1, [(1, 2)]), topic("deleted", 2, [(1, 2)]), brokers=(1, 2))
        stage.publisher.begin(before)
        await stage.subscribe()
        moved = PartitionChanged(topic_id(1), 0, leader=2)
        more = PartitionsAdded(topic_id(1), 1, ((1, 2),))
        fenced = BrokerStateChanged(1, 0, fenced=True)
        again = [TopicDeleted(topic_id(2)), topic("deleted", 3, [(2, 1)]), topic("new", 4)]
        after = ImageBuilder(before).apply([moved, more, fenced, *again]).build()
        stage.publisher.publish(before, after)
        seen = stage.cache.image
        assert seen is stage.cache.image
        assert (seen.position, seen.brokers) == (before.position, after.brokers)
        assert list(seen.topics) == ["t", "deleted"]
        assert [state.leader for state in seen.topics["t"].partitions] == [2]
        assert seen.topics["deleted"] is before.topics["deleted"]
        assert {each.topic_id: each for each in seen.topics.values()} == seen.topics_by_id
        await stage.slow.finish()
        assert stage.cache.image is after

    run(scenario)


def test_settings_change_before_roles() -> None:
    async def scenario(stage: Stage) -> None:
        seen: list[int] = []
        stage.publisher.subscribe_roles(lambda old, new: seen.append(stage.config.get("num.replica.fetchers")))
        changed = MetadataImage(position=100, broker_configs={"": {"num.replica.fetchers": "3"}})
        stage.publisher.publish(IMAGES[1], changed)
        assert seen == [1, 3]

    run(scenario)
