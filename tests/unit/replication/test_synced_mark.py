"""The mark that every acknowledged record is synced is right after a power cut at any moment, on a simulated disk."""

import asyncio
import errno
from functools import partial

import pytest

from log_harness import make_batch
from metadata_harness.builders import image, topic
from replication_harness.following import follow
from tidelog.broker.last_run import LAST_RUN, LastRun, read_last_run, write_last_run, write_synced_mark
from tidelog.log.config import LogConfig
from tidelog.log.directories import DataDirectories
from tidelog.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from tidelog.replication.partition import Partition
from tidelog.replication.partitions import Partitions
from tidelog.replication.synced_mark import SyncedMark
from tidelog.runtime.interfaces import Disk
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.medium import PowerCutOdds
from tidelog.simulation.world import SimHost, World, simulated
from tidelog.wire.records import batches_in

RUN = LastRun("run", 7, "boot-1")
NOTHING_KEPT = PowerCutOdds(keep=0.0, torn=0.0, wrong_size=0.0)


class Node:
    """Broker 1 of a cluster, which leads its topics alone."""

    def __init__(self, host: SimHost, directories: tuple[str, ...] = ("/data",)) -> None:
        self.host = host
        self.paths = list(directories)
        self.image: MetadataImage = EMPTY_IMAGE
        self.checks = 0
        self.marks_seen = 0

    async def start(self, *, is_stored: bool = False) -> None:
        runtime = self.host.start()
        self.disk: Disk = runtime.disk
        directories = await runtime.tasks.run_blocking(DataDirectories.open, runtime.disk, self.paths)
        self.partitions = Partitions(
            runtime,
            directories,
            lambda image, name: LogConfig(durability=image.topics[name].config["durability"]),
            node_id=1,
            flush_interval_ms=300,
        )
        await self.partitions.start()
        write_last_run(runtime.disk, self.paths, RUN._replace(is_synced=is_stored))
        store = partial(write_synced_mark, runtime.disk, self.paths, RUN)
        self.partitions.synced_mark = SyncedMark(runtime, self.partitions, store, is_stored=is_stored)

    async def apply(self, **durability: str) -> None:
        """Apply an image with these topics and their settings."""
        topics = {}
        for number, (name, value) in enumerate(durability.items()):
            created = topic(name, number + 1, durability=value)
            known = self.image.topics.get(name)
            topics[name] = TopicImage(
                name,
                created.topic_id,
                known.partitions if known else created.partitions,
                known.config if known and known.config == created.config else created.config,
            )
        base = image()
        old, self.image = (
            self.image,
            MetadataImage(
                position=self.image.position + base.position + 1,
                brokers=base.brokers,
                topics=topics,
                topics_by_id={known.topic_id: known for known in topics.values()},
            ),
        )
        await follow(self.partitions, old, self.image)

    def __getitem__(self, name: str) -> Partition:
        return self.partitions.get(name, 0)

    def check(self, *_: str) -> None:
        """If a power cut now left the mark, every acknowledged record must be left, too."""
        self.checks += 1
        survivor = self.host.disk.power_cut(odds=NOTHING_KEPT)
        if not read_last_run(survivor, self.paths, "boot-2").is_synced:
            return
        self.marks_seen += 1
        for partition in self.partitions:
            end = end_on(survivor, partition)
            acknowledged = partition.replica.local_mark
            assert end >= acknowledged, f"{partition.topic} ends at {end}, below the acknowledged {acknowledged}"

    def is_marked(self) -> bool:
        return read_last_run(self.disk, self.paths, RUN.boot_id).is_synced

    async def until_marked(self) -> None:
        for _ in range(200):
            if self.is_marked():
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the mark was not stored")


def end_on(disk: SimDisk, partition: Partition) -> int:
    directory = partition.log.directory
    end = 0
    if disk.exists(directory):
        for name in disk.list(directory):
            if name.endswith(".log"):
                end = max([end, *(header.last_offset + 1 for header in batches_in(disk.read(f"{directory}/{name}")))])
    return end


def append(partition: Partition, *values: bytes) -> int:
    return partition.append_batch(make_batch(*values)).next_offset


@pytest.mark.parametrize("directories", [("/data",), ("/data", "/more")])
def test_the_mark_is_right_after_a_power_cut_at_any_moment(directories: tuple[str, ...]) -> None:
    async def life(world: World) -> None:
        rng = world.rng("life")
        node = Node(world.host("a"), directories)
        await node.start()
        node.host.disk.on_operation = node.check
        topics: dict[str, str] = {}
        for _ in range(120):
            draw = rng.random()
            name = rng.choice("tuv")
            if draw < 0.35 and topics:
                append(node[rng.choice(list(topics))], b"x" * 50)
            elif draw < 0.5:
                topics[name] = rng.choice(("fsync", "fsync", "fsync", "interval", "os"))
                await node.apply(**topics)
            elif draw < 0.55:
                topics.pop(name, None)
                await node.apply(**topics)
            elif draw < 0.65:
                topics = dict.fromkeys(topics, "fsync")
                await node.apply(**topics)
            else:
                await asyncio.sleep(rng.choice((0.0, 0.001, 0.01, 0.3)))
            node.check()
        assert node.marks_seen > 50
        assert node.checks - node.marks_seen > 50

    for seed in range(3):
        with simulated(seed) as world:
            world.run(life(world), virtual_s=600)


def in_world(scenario: object, *paths: str) -> None:
    async def life(world: World) -> None:
        await scenario(Node(world.host("a"), paths or ("/data",)))  # type: ignore[operator]

    with simulated(1) as world:
        world.run(life(world), virtual_s=300)


def test_every_topic_needs_fsync_for_the_mark() -> None:
    async def scenario(node: Node) -> None:
        await node.start()
        await node.apply(t="fsync", u="interval")
        append(node["u"], b"a")
        await asyncio.sleep(5)
        assert not node.is_marked()
        await node.apply(t="fsync", u="fsync")
        await node.until_marked()
        assert node["u"].log.durable_offset == 1
        await node.apply(t="os", u="fsync")
        assert not node.is_marked(), "it is withdrawn before the setting is in force"
        await node.apply(u="fsync")
        await node.until_marked()
        await node.apply(u="fsync", v="interval")
        assert not node.is_marked(), "it is withdrawn before the log of a new topic is open"

    in_world(scenario)


def test_a_mark_of_the_run_before_stays_while_every_topic_has_fsync() -> None:
    async def scenario(node: Node) -> None:
        await node.start(is_stored=True)
        writes: list[str] = []
        node.host.disk.on_operation = lambda _, path: writes.append(path)
        await node.apply(t="fsync")
        append(node["t"], b"a")
        await asyncio.sleep(2)
        assert node.is_marked()
        assert not [path for path in writes if LAST_RUN in path]

    in_world(scenario)


def test_a_mark_that_is_being_stored_is_withdrawn_afterwards() -> None:
    async def scenario(node: Node) -> None:
        await node.start()
        await node.apply(t="fsync")
        being_written = asyncio.Event()
        node.host.disk.on_operation = lambda _, path: being_written.set() if LAST_RUN in path else None
        await asyncio.wait_for(being_written.wait(), 5)
        await node.apply(t="interval")
        await asyncio.sleep(1)
        assert not node.is_marked()

    in_world(scenario)


def test_a_full_disk_cannot_keep_the_mark() -> None:
    async def scenario(node: Node) -> None:
        await node.start()
        await node.apply(t="fsync")
        await node.until_marked()
        node.host.disk.fail("write", f"*/{LAST_RUN}.tmp", errno.ENOSPC, times=1000)
        await node.apply(t="interval")
        survivor = node.host.disk.power_cut(odds=NOTHING_KEPT)
        assert read_last_run(survivor, node.paths, RUN.boot_id) == LastRun()
        await node.apply(t="fsync")
        await asyncio.sleep(3)
        assert not node.is_marked()
        node.host.disk.repair()
        await node.until_marked()

    in_world(scenario)


def test_a_directory_that_keeps_the_mark_is_taken_out_of_use() -> None:
    async def scenario(node: Node) -> None:
        await node.start()
        await node.apply(t="fsync", u="fsync")
        await node.until_marked()
        (path, other) = (node[name].log.directory.rpartition("/")[0] for name in "tu")
        assert path != other
        for operation in ("write", "remove", "sync_dir"):
            node.host.disk.fail(operation, f"{path}*", errno.EIO, times=1000)
        await node.apply(t="fsync", u="interval")
        await asyncio.sleep(0.1)
        assert node["t"].log.failure is not None
        assert node["u"].log.failure is None
        survivor = node.host.disk.power_cut(odds=NOTHING_KEPT)
        assert not read_last_run(survivor, node.paths, RUN.boot_id).is_synced

    in_world(scenario, "/data", "/more")


def test_a_partition_that_is_offline_prevents_the_mark() -> None:
    async def scenario(node: Node) -> None:
        await node.start()
        await node.apply(t="interval", u="fsync")
        append(node["t"], b"a")
        node["t"].log.fail("the test says so")
        await node.apply(t="fsync", u="fsync")
        await asyncio.sleep(3)
        assert not node.is_marked()

    in_world(scenario)


def test_a_file_of_an_older_version_has_no_mark() -> None:
    async def scenario(node: Node) -> None:
        await node.start(is_stored=True)
        text = node.disk.read(f"/data/{LAST_RUN}")
        assert b"synced=true\n" in text
        node.disk.write_atomic(f"/data/{LAST_RUN}", text.replace(b"synced=true\n", b""))
        assert read_last_run(node.disk, ["/data"], RUN.boot_id) == RUN._replace(has_ended=True)

    in_world(scenario)
