"""One broker with several data directories on a simulated disk: its partitions follow images of the metadata. A test
can take the disk as a crash leaves it, and start the broker again from it.
"""

from collections.abc import Sequence
from typing import Any

from log_harness import make_batch, read_records
from metadata_harness.builders import image, topic_id
from replication_harness.following import follow
from tidelog.log.config import LogConfig
from tidelog.log.directories import DataDirectories
from tidelog.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from tidelog.metadata.records import PartitionState
from tidelog.replication.partition import Partition
from tidelog.replication.partitions import Partitions
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.world import SimHost

PATHS = ("/a", "/b")


class LoneBroker:
    """Broker 1, which leads every partition of every topic."""

    def __init__(self, host: SimHost, paths: Sequence[str] = PATHS, **settings: Any) -> None:
        """`settings`: fields of LogConfig, the same for all topics."""
        self.host = host
        self.paths = paths
        self.config = LogConfig(**settings)
        self.epoch = 0
        self.image: MetadataImage = EMPTY_IMAGE

    @property
    def disk(self) -> SimDisk:
        return self.host.disk

    async def start(self, topics: dict[str, tuple[int, int]], disk: SimDisk | None = None) -> None:
        """Start, from `disk` if it is given, and apply the first image. For `topics`, see `apply`."""
        if disk is not None:
            self.host.insert(disk)
        runtime = self.host.start()
        self.directories = await runtime.tasks.run_blocking(
            DataDirectories.inspect,
            runtime.disk,
            [*self.paths],
            True,  # the metadata is elsewhere
        )
        await runtime.tasks.run_blocking(self.directories.acquire)
        ids = [f"id-of-{path[1:]}" for path in self.paths]
        await runtime.tasks.run_blocking(
            self.directories.write_identity, "cluster", 1, ids[: len(self.directories.online)]
        )
        self.partitions = Partitions(
            runtime, self.directories, lambda _image, _name: self.config, node_id=1, flush_interval_ms=100
        )
        self.image = EMPTY_IMAGE
        self.epoch += 1
        await self.apply(topics)
        await self.partitions.start()

    async def apply(self, topics: dict[str, tuple[int, int]]) -> None:
        """Apply an image with these topics. For each topic: the number in its id, and the number of partitions."""
        before, base = self.image, image()
        made = {}
        for name, (number, count) in topics.items():
            known = before.topics.get(name)
            if known is not None and known.topic_id == topic_id(number):
                made[name] = known
                continue
            states = tuple(PartitionState(1, self.epoch, (1,), (1,), 0) for _ in range(count))
            made[name] = TopicImage(name, topic_id(number), states, {})
        self.image = MetadataImage(
            position=max(before.position, base.position) + 1,
            brokers=before.brokers or base.brokers,
            topics=made,
            topics_by_id={topic.topic_id: topic for topic in made.values()},
            broker_configs=before.broker_configs,
        )
        await follow(self.partitions, before, self.image)

    def kill(self) -> None:
        self.host.kill()

    def partition(self, index: int = 0, name: str = "t") -> Partition:
        return self.partitions.get(name, index)

    def directory_of(self, partition: Partition) -> str:
        return partition.log.directory.rpartition("/")[0]

    def begin_move(self, partition: Partition) -> str:
        """Begin to move the partition to the other directory, and return its path."""
        target = next(d for d in self.directories.online if d.path != self.directory_of(partition))
        self.partitions.moves.begin(partition, target)
        return target.path


def append(partition: Partition, *values: bytes) -> int:
    return partition.append_batch(make_batch(*values)).next_offset


def records(partition: Partition) -> list[tuple[int, bytes]]:
    return read_records(partition.log)
