"""Damaged logs are reported before they are replaced, and are replaced when the broker has followed the answer."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from metadata_harness.builders import image, topic
from replication_harness.following import follow
from tidelog.log.config import LogConfig
from tidelog.log.directories import DataDirectories
from tidelog.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from tidelog.metadata.link import Answer, ReplicasOffline
from tidelog.metadata.records import PartitionState
from tidelog.replication.offline_replicas import OfflineReplicas
from tidelog.replication.partition import Partition
from tidelog.replication.partitions import Partitions
from tidelog.replication.replica import LeftBehind
from tidelog.simulation.world import SimHost, World, simulated
from tidelog.wire.errors import ErrorCode, StorageError

OUTSIDE = PartitionState(2, 5, (1, 2), (2,), 7)
"""Broker 2 leads, and the replica of broker 1 is in neither set."""
INSIDE = OUTSIDE._replace(isr=(2, 1))


class Scene:
    """Broker 1 with its partitions of topic t, and a controller that answers when the test says so."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.config = LogConfig()
        self.image: MetadataImage = EMPTY_IMAGE
        self.reports: list[asyncio.Future[Answer[None]]] = []

    async def start(self, *states: PartitionState) -> None:
        runtime = self.host.start()
        directories = await runtime.tasks.run_blocking(DataDirectories.open, runtime.disk, ["/data"])
        self.partitions = Partitions(
            runtime, directories, lambda _image, _name: self.config, node_id=1, flush_interval_ms=100
        )
        await self.partitions.start()
        link: Any = SimpleNamespace(replicas_offline=self._report)
        self.offline = OfflineReplicas(runtime, self.partitions, link, lambda: 70)
        self.partitions.shared.stop_fetching = self._stop_fetching
        self.partitions.cuts.on_waiting_promotion = self.offline.add_waiting
        await self.apply(*states)

    def _stop_fetching(self, partition: Partition) -> None:
        if partition.log.failure is not None and not partition.deleted:
            self.offline.add(partition)

    async def _report(self, request: ReplicasOffline) -> Answer[None]:
        assert (request.broker_id, request.broker_epoch) == (1, 70)
        assert request.replicas == [(self.image.topics["t"].topic_id, 0)]
        self.reports.append(asyncio.get_running_loop().create_future())
        return await self.reports[-1]

    async def apply(self, *states: PartitionState, position: int | None = None) -> None:
        """Follow the journal up to `position` (by default one more entry); topic t has these partitions then."""
        made = image(topic("t", 1, [state.replicas for state in states]), brokers=(1, 2))
        changed = TopicImage("t", made.topics["t"].topic_id, states, made.topics["t"].config)
        old, self.image = (
            self.image,
            MetadataImage(
                position=max(self.image.position, made.position) + 1 if position is None else position,
                brokers=made.brokers,
                topics={"t": changed},
                topics_by_id={changed.topic_id: changed},
            ),
        )
        self.offline.check()
        await follow(self.partitions, old, self.image)

    @property
    def partition(self) -> Partition | None:
        return self.partitions.find("t", 0)

    def damage(self) -> Partition:
        partition = self.partition
        assert partition is not None
        partition.log.fail("the test says so")
        partition.fail()
        return partition

    def answer(self, *, position: int = 0, error: ErrorCode = ErrorCode.NONE) -> None:
        self.reports[-1].set_result(Answer(None, error, position=position))


def run(scenario: Callable[[Scene], Awaitable[None]], *states: PartitionState) -> None:
    async def whole(world: World) -> None:
        scene = Scene(world.host("a"))
        await scene.start(*states)
        await scenario(scene)
        await scene.offline.stop()

    with simulated(1) as world:
        world.run(whole(world), virtual_s=300)


def test_a_log_is_replaced_when_this_broker_has_followed_the_answer() -> None:
    async def scenario(scene: Scene) -> None:
        damaged = scene.damage()
        await asyncio.sleep(5)
        assert (len(scene.reports), scene.partition) == (1, damaged), "it is reported, though it is in neither set"
        known = scene.image.position
        scene.answer(position=known + 2)
        await asyncio.sleep(5)
        await scene.apply(OUTSIDE, position=known + 1)
        await asyncio.sleep(5)
        assert scene.partition is damaged, "this broker has not followed the entry of the report yet"
        await scene.apply(OUTSIDE._replace(partition_epoch=8), position=known + 2)
        await asyncio.sleep(5)
        assert scene.partition not in (None, damaged)
        assert len(scene.reports) == 1

    run(scenario, OUTSIDE)


def test_a_member_of_the_isr_is_replaced_when_it_has_left() -> None:
    async def scenario(scene: Scene) -> None:
        damaged = scene.damage()
        await asyncio.sleep(1)
        scene.answer(position=scene.image.position)
        await asyncio.sleep(5)
        assert (len(scene.reports), scene.partition) == (1, damaged), "the controller has no other replica"
        await scene.apply(OUTSIDE._replace(partition_epoch=8))
        await asyncio.sleep(5)
        assert scene.partition not in (None, damaged)
        assert len(scene.reports) == 1

    run(scenario, INSIDE)


def test_a_replica_that_joins_the_isr_after_its_report_is_reported_again() -> None:
    """The controller has accepted the proposal before it handled the report, or the broker's image was old."""

    async def scenario(scene: Scene) -> None:
        damaged = scene.damage()
        await asyncio.sleep(1)
        await scene.apply(INSIDE._replace(partition_epoch=8))
        scene.answer(position=scene.image.position)
        await asyncio.sleep(5)
        assert (len(scene.reports), scene.partition) == (2, damaged)
        scene.answer(position=scene.image.position + 1)
        await scene.apply(OUTSIDE._replace(partition_epoch=9))
        await asyncio.sleep(5)
        assert scene.partition not in (None, damaged)
        assert len(scene.reports) == 2

    run(scenario, OUTSIDE)


def test_a_report_that_failed_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: Scene) -> None:
        damaged = scene.damage()
        await asyncio.sleep(1)
        scene.answer(error=ErrorCode.REQUEST_TIMED_OUT)
        await asyncio.sleep(5)
        assert (len(scene.reports), scene.partition) == (2, damaged)
        scene.answer(position=scene.image.position)
        await asyncio.sleep(5)
        assert scene.partition not in (None, damaged)

    run(scenario, OUTSIDE)
    assert caplog.text.count("offline replicas not reported, trying again") == 1


def test_each_damaged_log_has_its_own_report() -> None:
    """The log that replaces a damaged one may be damaged, too."""

    async def scenario(scene: Scene) -> None:
        scene.damage()
        other = scene.partitions.find("t", 1)
        assert other is not None
        other.log.fail("this one stays offline, so the broker always has something to do")
        other.fail()
        await asyncio.sleep(1)
        scene.answer(position=scene.image.position)
        await asyncio.sleep(5)
        again = scene.damage()
        await asyncio.sleep(5)
        assert (len(scene.reports), scene.partition) == (2, again)
        scene.answer(position=scene.image.position)
        await asyncio.sleep(5)
        assert scene.partition not in (None, again)

    run(scenario, OUTSIDE, PartitionState(-1, 5, (1, 2), (2,), 7))


def test_a_log_that_fails_during_a_report_about_its_full_disk_is_reported_again() -> None:
    async def scenario(scene: Scene) -> None:
        leader = scene.partition
        assert leader is not None
        leader.appends_refused = True
        refusal = StorageError("nothing appended")
        refusal.__cause__ = OSError(errno.ENOSPC, "full")
        scene.offline.add_refused(leader, refusal)
        await asyncio.sleep(3)
        assert len(scene.reports) == 1
        scene.damage()
        await scene.apply(OUTSIDE._replace(leader_epoch=6, partition_epoch=8))
        scene.answer(position=scene.image.position)
        await asyncio.sleep(5)
        assert (len(scene.reports), scene.partition) == (2, leader)
        scene.answer(position=scene.image.position)
        await asyncio.sleep(5)
        assert scene.partition not in (None, leader)

    run(scenario, INSIDE._replace(leader=1))


@pytest.mark.parametrize(("isr", "min_isr", "is_reported"), [((1, 2), 1, True), ((1, 2), 2, False), ((1,), 1, False)])
def test_a_promotion_that_waits_for_space_is_reported_while_the_isr_has_enough_members(
    isr: tuple[int, ...], min_isr: int, is_reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(scene: Scene) -> None:
        follower = scene.partition
        assert follower is not None
        scene.config.min_insync_replicas = min_isr
        scene.host.disk.fail("create", "/data/*", errno.ENOSPC, times=1 << 30)
        follower.step(LeftBehind(5, 10))
        await scene.apply(PartitionState(1, 6, (1, 2), isr, 8))
        await asyncio.sleep(1)
        assert follower.replica.leads_after_cut
        assert not scene.reports, "space may soon be free"
        await asyncio.sleep(3)
        assert len(scene.reports) == is_reported
        if is_reported:
            scene.answer(position=scene.image.position + 1)
        await scene.apply(PartitionState(2, 7, (1, 2), (2,), 9))
        await asyncio.sleep(5)
        assert len(scene.reports) == is_reported
        scene.host.disk.repair()
        await asyncio.sleep(2)
        assert scene.partition is follower
        assert follower.log_end_offset == 10

    run(scenario, OUTSIDE)
    assert caplog.text.count("disk is full, another broker is to lead partition=t-0") == is_reported
