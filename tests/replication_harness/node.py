"""Broker 1 with its real partitions and logs on simulated disks. Tests apply images of the metadata to it."""

from collections.abc import Sequence
from typing import Any

from log_harness import make_batch
from metadata_harness.builders import image, topic
from replication_harness.following import follow
from tidelog.log.config import LogConfig
from tidelog.log.directories import DataDirectories
from tidelog.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from tidelog.metadata.records import PartitionState
from tidelog.replication.partition import Partition
from tidelog.replication.partitions import Partitions
from tidelog.replication.replica import AskForIsr, FetchFrom
from tidelog.simulation.world import SimHost, World, simulated


class Node:
    """Broker 1 with its partitions, and the newest image that it has seen."""

    def __init__(self, host: SimHost, directories: Sequence[str] = ("/data",), **settings: Any) -> None:
        self.host = host
        self.paths = directories
        self.settings = settings
        self.image: MetadataImage = EMPTY_IMAGE
        self.peer_work: list[AskForIsr | FetchFrom] = []

    async def start(self) -> None:
        runtime = self.host.start()
        config = LogConfig(**self.settings)
        self.directories = await runtime.tasks.run_blocking(DataDirectories.open, runtime.disk, [*self.paths])
        self.partitions = Partitions(
            runtime, self.directories, lambda _image, _name: config, node_id=1, flush_interval_ms=100
        )
        self.partitions.on_peer_work = lambda _, work: self.peer_work.append(work)
        await self.partitions.start()

    async def apply(self, *states: PartitionState) -> None:
        """Apply an image in which topic t has these partitions."""
        known = self.image.topics.get("t")
        new = image(topic("t", 1, [state.replicas for state in states]), brokers=(1, 2, 3))
        made = new.topics["t"]
        partitions = tuple(
            known.partitions[i] if known and i < len(known.partitions) and known.partitions[i] == state else state
            for i, state in enumerate(states)
        )
        changed = TopicImage("t", made.topic_id, partitions, known.config if known else made.config)
        old, self.image = self.image, with_topic(new, changed, self.image)
        await follow(self.partitions, old, self.image)

    def __getitem__(self, index: int) -> Partition:
        return self.partitions.get("t", index)

    async def stop(self) -> None:
        unclean = await self.partitions.close()
        await self.host.runtime.tasks.run_blocking(self.directories.close, unclean)
        self.host.kill()
        self.image = EMPTY_IMAGE


def with_topic(new: MetadataImage, changed: TopicImage, old: MetadataImage) -> MetadataImage:
    return MetadataImage(
        position=max(old.position, new.position) + 1,
        brokers=old.brokers or new.brokers,
        topics={"t": changed},
        topics_by_id={changed.topic_id: changed},
        broker_configs=old.broker_configs,
    )


def led_by(leader: int, epoch: int, *, replicas: tuple[int, ...] = (1, 2), partition_epoch: int = 0) -> PartitionState:
    return PartitionState(leader, epoch, replicas, replicas, partition_epoch)


def run(scenario: Any, **settings: Any) -> None:
    async def with_node(world: World) -> None:
        node = Node(world.host("a"), **settings)
        await node.start()
        await scenario(node)

    with simulated(1) as world:
        world.run(with_node(world), virtual_s=300)


def append(partition: Partition, *values: bytes) -> int:
    return partition.append_batch(make_batch(*values)).next_offset
