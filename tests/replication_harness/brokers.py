"""Several real brokers in the simulation with one replicated topic, and an administrator who elects its leaders."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tidelog.metadata import link
from tidelog.metadata.controller import JournalDecision, NewTopic
from tidelog.metadata.image import METADATA_FEATURE
from tidelog.metadata.local_controller import LocalController
from tidelog.metadata.records import FeatureLevelChanged, PartitionChanged, PartitionState
from tidelog.replication.partition import Partition
from tidelog.simulation.client import SimClient
from tidelog.simulation.cluster import SimCluster, SimNode
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.produce import PartitionProduceResponse
from tidelog.wire.records import Record, batches_in, decode_records

TOPIC = "orders"
SETTINGS = {"replica.lag.time.max.ms": "4000", "min.insync.replicas": "1"}


class Stage:
    """A running cluster with the topic TOPIC."""

    def __init__(self, world: World, brokers: int, settings: dict[str, str], *, has_racks: bool) -> None:
        """`has_racks`: each broker is in a rack of its own, `rack-` and its number."""
        self.world = world
        racks = {"broker.rack": "rack-{node_id}"} if has_racks else {}
        self.cluster = SimCluster(world, brokers, {**SETTINGS, **settings, **racks})

    async def start(
        self, *, partitions: int = 1, config: dict[str, str] | None = None, replicas: tuple[int, ...] = ()
    ) -> None:
        """Start the brokers, and create the topic, on all of them unless `replicas` says on which."""
        await self.cluster.start()
        await self.until(lambda: len(self.image.brokers) == len(self.cluster.nodes))
        controller = await self.controller()
        if not self.image.feature_levels.get(METADATA_FEATURE):
            level = FeatureLevelChanged(METADATA_FEATURE, 1)
            await controller._commit(lambda image: JournalDecision([level], None), None)
        factor = len(self.cluster.nodes)
        topic = NewTopic(TOPIC, partitions, factor, config=list((config or {}).items()))
        if replicas:
            topic = topic._replace(partitions=-1, replication_factor=-1, assignments=[(0, replicas)])
        answer = await self.running.services.controller.create_topics(link.CreateTopics([topic]))
        assert answer.result()[0].error is ErrorCode.NONE, answer
        await self.until(lambda: self.state().leader > 0 and self.leads(self.leader))

    @property
    def running(self) -> Any:
        """A broker that runs."""
        return next(node.broker for node in self.cluster.nodes if node.broker is not None)

    @property
    def image(self) -> Any:
        """The newest metadata of all brokers: one that is paused or cut off has an older state."""
        brokers: list[Any] = [node.broker for node in self.cluster.nodes]
        images = [broker.services.metadata.image for broker in brokers if broker is not None and broker._services]
        return max(images, key=lambda image: image.position)

    def state(self, index: int = 0) -> PartitionState:
        state: PartitionState = self.image.topics[TOPIC].partitions[index]
        return state

    def node(self, broker_id: int) -> SimNode:
        return self.cluster.nodes[broker_id - 1]

    @property
    def leader(self) -> SimNode:
        return self.node(self.state().leader)

    @property
    def followers(self) -> list[SimNode]:
        return [self.node(broker_id) for broker_id in self.state().replicas if broker_id != self.state().leader]

    def partition(self, node: SimNode, index: int = 0) -> Partition:
        assert node.broker is not None
        return node.broker.services.partitions.get(TOPIC, index)

    def leads(self, node: SimNode, index: int = 0) -> bool:
        if node.broker is None:
            return False
        partition = node.broker.services.partitions.find(TOPIC, index)
        return partition is not None and partition.replica.leads

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait until the condition holds."""
        ends_s = self.world.loop.time() + seconds
        while not condition():
            if self.world.loop.time() > ends_s:
                raise AssertionError(f"not within {seconds:g} s: {self}")
            await asyncio.sleep(0.02)

    async def until_isr(self, *brokers: int, index: int = 0, seconds: float = 60.0) -> None:
        await self.until(lambda: sorted(self.state(index).isr) == sorted(brokers), seconds)

    async def until_equal(self, *nodes: SimNode, index: int = 0) -> None:
        """Wait until these replicas have the leader's log and high watermark."""

        def is_equal() -> bool:
            leader = self.partition(self.leader, index)
            ends = [self.partition(node, index) for node in nodes]
            return all(
                (p.log_end_offset, p.high_watermark) == (leader.log_end_offset, leader.log_end_offset) for p in ends
            )

        await self.until(is_equal)
        for node in nodes:
            assert self.values(node, index) == self.values(self.leader, index)

    def values(self, node: SimNode, index: int = 0) -> list[bytes]:
        """Return the values in one replica's log."""
        log = self.partition(node, index).log
        values, position = [], log.log_start_offset
        while position < log.log_end_offset:
            part = log.read(position, 1 << 20, log.log_end_offset)
            data = part.file.pread(part.size, part.position)
            records = [record for header in batches_in(data) for record in decode_records(data, header.position)]
            values += [record.value or b"" for record in records if record.offset >= position]
            position = records[-1].offset + 1
        return values

    async def change(self, index: int = 0, **fields: Any) -> None:
        """Let the controller change the state of one partition, as an election does."""
        controller = await self.controller()
        topic_id = self.image.topics[TOPIC].topic_id
        record = PartitionChanged(topic_id, index, **fields)
        answer = await controller._commit(lambda image: JournalDecision([record], None), None)
        assert answer.error is ErrorCode.NONE, answer

    async def elect(self, leader: SimNode, isr: list[SimNode] | None = None, index: int = 0) -> None:
        members = None if isr is None else tuple(node.node_id for node in isr)
        await self.change(index, leader=leader.node_id, isr=members)
        await self.until(lambda: self.leads(leader, index))

    async def controller(self) -> LocalController:
        """Wait until a broker is the controller, and return its controller."""
        while True:
            for node in self.cluster.nodes:
                controller = node.broker and node.broker.controller
                if isinstance(controller, LocalController) and controller.is_active:
                    return controller
            await asyncio.sleep(0.1)

    async def client(self, node: SimNode) -> SimClient:
        return await SimClient.connect(self.world.host("client").runtime, node.host.address, node.address.port)

    async def produce(self, *values: bytes, acks: int = -1, to: SimNode | None = None) -> PartitionProduceResponse:
        client = await self.client(to or self.leader)
        try:
            return await client.produce(TOPIC, 0, [Record(value=value) for value in values], acks=acks)
        finally:
            client.close()

    def __str__(self) -> str:
        lines = [f"state {self.state()}"]
        for node in self.cluster.nodes:
            if node.broker is None:
                lines.append(f"broker {node.node_id} is down")
                continue
            partition = node.broker.services.partitions.find(TOPIC, 0)
            if partition is not None:
                replica = partition.replica
                lines.append(
                    f"broker {node.node_id}: {replica.role.value} epoch={replica.leader_epoch} "
                    f"end={partition.log_end_offset} hw={replica.high_watermark}"
                )
        return "\n".join(lines)


Scenario = Callable[[Stage], Coroutine[Any, Any, None]]


def run(
    scenario: Scenario,
    *,
    brokers: int = 3,
    seed: int = 1,
    settings: dict[str, str] | None = None,
    has_racks: bool = False,
    **topic: Any,
) -> None:
    """Run a scenario, and stop all brokers in order afterwards."""

    async def whole(stage: Stage) -> None:
        await stage.start(**topic)
        await scenario(stage)
        for node in stage.cluster.nodes:
            if node.running:
                await node.stop()

    with simulated(seed) as world:
        world.run(whole(Stage(world, brokers, settings or {}, has_racks=has_racks)))
