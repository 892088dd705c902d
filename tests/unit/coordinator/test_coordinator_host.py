"""Coordinators on real partitions of a simulated broker: they live exactly as long as a leader epoch does."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from group_harness.memory import COMMIT_TIMEOUT_MS
from log_harness import make_batch
from metadata_harness.builders import image, topic
from replication_harness.following import follow
from tidelog.coordinator.decision import Decision
from tidelog.coordinator.group.core import GroupCore
from tidelog.coordinator.group.records import OffsetRecord
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.host import CoordinatorHost
from tidelog.coordinator.runtime import CoordinatorPartition
from tidelog.log.config import LogConfig
from tidelog.log.directories import DataDirectories
from tidelog.log.leader_epochs import EpochEnd
from tidelog.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from tidelog.metadata.records import PartitionState
from tidelog.model.ids import TopicId
from tidelog.replication.partition import Partition
from tidelog.replication.partitions import Partitions
from tidelog.replication.replica import Diverged, LogAppended, WentOffline
from tidelog.simulation.world import SimHost, World, simulated
from tidelog.wire.errors import ErrorCode, NotCoordinator, NotLeaderOrFollower
from tidelog.wire.messages.group_records import OffsetCommitValue


class Node:
    """Broker 1, which coordinates the groups of topic `t`; its only partition decides about all of them."""

    def __init__(self, host: SimHost) -> None:
        self.sim_host = host
        self.image: MetadataImage = EMPTY_IMAGE
        self.answers: list[Any] = []

    async def start(self) -> None:
        runtime = self.sim_host.start()
        config = LogConfig(cleanup_policy="compact")
        directories = await runtime.tasks.run_blocking(DataDirectories.open, runtime.disk, ["/data"])
        self.partitions = Partitions(runtime, directories, lambda *_: config, node_id=1, flush_interval_ms=100)
        self.host: CoordinatorHost[GroupCore] = CoordinatorHost(
            "t",
            runtime=runtime,
            node_id=1,
            partitions=self.partitions,
            metadata=cast(Any, SimpleNamespace(image=self.image)),
            controller=cast(Any, None),
            new_core=lambda: GroupCore(GroupSettings()),
            commit_timeout_ms=COMMIT_TIMEOUT_MS,
            incarnation=None,
        )
        await self.partitions.start()

    async def apply(self, *states: PartitionState, topic_id: bytes = b"") -> None:
        """Apply an image in which the topic has these partitions; none: the topic is deleted."""
        made = topic("t", 1, [state.replicas for state in states])
        new = image(*([made] if states else []), brokers=(1, 2, 3))
        if states:
            changed = TopicImage("t", TopicId(topic_id) if topic_id else made.topic_id, states, {})
            new = MetadataImage(
                position=self.image.position + 1,
                brokers=new.brokers,
                topics={"t": changed},
                topics_by_id={changed.topic_id: changed},
            )
        old, self.image = self.image, new
        await follow(self.partitions, old, new)
        self.host.change_roles(old, new)
        await self.host.wait_for_loads()

    @property
    def partition(self) -> Partition:
        return self.partitions.get("t", 0)

    def coordinator(self) -> CoordinatorPartition[GroupCore]:
        return self.host.coordinator("g")

    def commit(self, offset: int) -> None:
        decision = Decision()
        decision.records.append(OffsetRecord("g", "u", 0, OffsetCommitValue(offset=offset)))
        decision.reply(self.answers.append, offset)
        self.coordinator().apply(decision)

    def committed(self) -> int | None:
        durable = self.coordinator().core.durable.by_id.get("g")
        value = durable.committed_offset("u", 0) if durable else None
        return value.offset if value else None


def led_by(leader: int, epoch: int, *, replicas: tuple[int, ...] = (1, 2)) -> PartitionState:
    return PartitionState(leader, epoch, replicas, replicas, epoch)


def run(scenario: Any) -> None:
    async def with_node(world: World) -> None:
        node = Node(world.host("a"))
        await node.start()
        await scenario(node)

    with simulated(1) as world:
        world.run(with_node(world), virtual_s=300)


def test_each_leader_epoch_has_a_coordinator_of_its_own() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4, replicas=(1,)))
        node.commit(1)
        first = node.coordinator()
        await node.apply(led_by(1, 6, replicas=(1,)))
        assert node.coordinator() is not first
        assert (first.leader_epoch, node.coordinator().leader_epoch) == (4, 6)
        assert node.committed() == 1
        with pytest.raises(NotCoordinator):
            _ = first.core
        await node.apply(led_by(2, 7))
        with pytest.raises(NotCoordinator):
            node.coordinator()

    run(scenario)


def test_an_append_of_another_leader_epoch_is_refused() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4, replicas=(1,)))
        end = node.partition.log_end_offset
        for epoch in (3, 5):
            with pytest.raises(NotLeaderOrFollower):
                node.partition.append_batch(make_batch(b"v"), epoch)
        assert node.partition.log_end_offset == end
        assert node.partition.append_batch(make_batch(b"v"), 4).next_offset == end + 1

    run(scenario)


def test_a_coordinator_whose_epoch_has_ended_writes_and_says_nothing() -> None:
    """Even if nothing closed it: the append itself is refused."""

    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4, replicas=(1,)))
        node.partitions.watch_roles("t", lambda _: None)
        await node.apply(led_by(1, 6, replicas=(1,)))
        end = node.partition.log_end_offset
        node.commit(2)
        (answer,) = node.answers
        assert isinstance(answer, NotCoordinator)
        assert node.partition.log_end_offset == end
        with pytest.raises(NotCoordinator):
            _ = node.coordinator().core
        await asyncio.sleep(60)
        assert not node.coordinator().is_loaded, "it is not loaded anew in another epoch"

    run(scenario)


def test_whoever_waits_for_other_brokers_is_answered_in_the_step_of_the_resignation() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4))
        node.commit(1)
        assert node.answers == []
        old, new = node.image, image(topic("t", 1, [(1, 2)]), brokers=(1, 2))
        changed = TopicImage("t", new.topics["t"].topic_id, (led_by(2, 5),), {})
        new = MetadataImage(position=9, brokers=old.brokers, topics={"t": changed})
        node.partitions.reconciler.change_roles(old, new)
        (answer,) = node.answers
        assert answer.code is ErrorCode.NOT_COORDINATOR
        await asyncio.sleep(60)
        assert len(node.answers) == 1

    run(scenario)


def test_a_broker_that_resigns_by_itself_and_returns_in_the_same_epoch_loads_anew() -> None:
    """As when its lease ended and was acquired again, and nobody else was elected meanwhile."""

    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4, replicas=(1,)))
        node.commit(1)
        first = node.coordinator()
        node.partition.step(WentOffline(4))
        with pytest.raises(NotCoordinator):
            node.coordinator()
        node.partitions.reconciler.apply_roles_again()
        await node.host.wait_for_loads()
        assert node.coordinator() is not first
        assert node.coordinator().leader_epoch == 4
        assert node.committed() == 1

    run(scenario)


def test_a_promotion_during_a_cut_loads_what_the_cut_has_left() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4, replicas=(1,)))
        for offset in range(1, 10):
            node.commit(offset)
        await node.apply(led_by(2, 5))
        follower = node.partition
        follower.step(Diverged(5, EpochEnd(4, 5), follower.log.epochs.end_offset_for(4, follower.log.log_end_offset)))
        applying = asyncio.ensure_future(node.apply(led_by(1, 6, replicas=(1,))))
        await asyncio.sleep(0)
        if not follower.replica.leads:
            with pytest.raises(NotCoordinator):
                node.coordinator()
        await applying
        await asyncio.sleep(1)
        assert follower.replica.leads
        assert node.committed() == 5
        node.commit(6)
        assert node.committed() == 6

    run(scenario)


def test_what_an_older_partition_reports_late_does_not_concern_the_new_one() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 0, replicas=(1,)))
        node.commit(1)
        older = node.partition
        await node.apply()
        with pytest.raises(NotCoordinator):
            node.coordinator()
        await node.apply(led_by(1, 0, replicas=(1,)), topic_id=b"another topic id")
        assert node.partition is not older
        older.fail()
        older.step(LogAppended(older.log_end_offset, True))
        assert node.committed() is None
        node.commit(2)
        assert node.committed() == 2

    run(scenario)


def test_a_log_that_goes_offline_ends_its_coordinator_and_answers_those_who_wait() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4))
        node.commit(1)
        node.partition.log.fail("planted")
        node.partition.fail()
        (answer,) = node.answers
        assert answer.code is ErrorCode.NOT_COORDINATOR
        with pytest.raises(NotCoordinator):
            node.coordinator()

    run(scenario)
