"""Retention of real logs in a simulated world: beside appends and reads, with file work in threads, interrupted
anywhere.
"""

import asyncio
import errno
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from log_harness import make_batch, read_records
from metadata_harness.builders import image, topic
from replication_harness.following import follow
from tidelog.log.checkpoints import LOG_START_OFFSETS, read_offsets
from tidelog.log.config import LogConfig
from tidelog.log.directories import DataDirectories
from tidelog.log.errors import CorruptLog
from tidelog.log.partition_log import PartitionLog
from tidelog.log.retention import Removal, SegmentAgeSearch
from tidelog.metadata.image import EMPTY_IMAGE
from tidelog.model.ids import TopicPartition
from tidelog.replication.partition import Partition
from tidelog.replication.partitions import Partitions
from tidelog.simulation.world import SimHost, World, simulated
from tidelog.wire.errors import OffsetOutOfRange, StorageError

COUNT = 40
IMAGE = image(topic("t", 1, [(1,), (1,), (1,)]))
BATCH_BYTES = len(make_batch(b"00"))
CONFIG = LogConfig(segment_bytes=4 * BATCH_BYTES, retention_ms=60_000, file_delete_delay_ms=2000)


class Node:
    """The partitions of one process, each with records of now in segments of four."""

    def __init__(self, host: SimHost, directories: DataDirectories) -> None:
        self.host = host
        self.directories = directories
        self.partitions = Partitions(
            host.runtime, directories, lambda _image, _name: CONFIG, node_id=1, flush_interval_ms=100
        )

    @classmethod
    async def start(cls, host: SimHost, paths: Sequence[str] = ("/data",)) -> "Node":
        runtime = host.start()
        node = cls(host, await runtime.tasks.run_blocking(DataDirectories.open, runtime.disk, paths))
        await follow(node.partitions, EMPTY_IMAGE, IMAGE)
        await node.partitions.start()
        return node

    def __getitem__(self, index: int) -> Partition:
        return self.partitions.get("t", index)

    def fill(self, count: int = COUNT) -> None:
        for partition in self.partitions:
            for _ in range(count):
                self.append(partition)

    def append(self, partition: Partition) -> None:
        value = b"%02d" % (partition.log_end_offset % 100)
        partition.append_batch(make_batch(value, timestamps=[self.host.clock.now_ms()]))

    async def stop(self) -> None:
        unclean = await self.partitions.close()
        assert not unclean
        await self.host.runtime.tasks.run_blocking(self.directories.close, unclean)
        self.host.kill()


def sound(partition: Partition) -> bool:
    start, end = partition.log_start_offset, partition.log_end_offset
    return read_records(partition.log) == [(n, b"%02d" % (n % 100)) for n in range(start, end)]


async def aged(world: World, *paths: str) -> Node:
    """A node that was restarted, so that it knows nothing of its closed segments; all but the last are too old."""
    node = await Node.start(world.host("a"), paths or ("/data",))
    node.fill()
    await node.stop()
    await asyncio.sleep(61)
    node = await Node.start(world.host("a"), paths or ("/data",))
    node.fill(1)
    await asyncio.sleep(1)
    return node


class OnTheLoop:
    """What is done on the disk outside `run_blocking`."""

    def __init__(self, host: SimHost, monkeypatch: pytest.MonkeyPatch) -> None:
        self.operations: list[tuple[str, str]] = []
        tasks, disk = host.runtime.tasks, host.disk
        run_blocking, begin = tasks.run_blocking, disk.begin
        blocking = 0

        def inside(function: Callable[..., Any], *args: Any) -> Any:
            nonlocal blocking
            blocking += 1
            try:
                return function(*args)
            finally:
                blocking -= 1

        def noted(operation: str, path: str) -> None:
            if not blocking:
                self.operations.append((operation, path))
            begin(operation, path)

        monkeypatch.setattr(
            tasks, "run_blocking", lambda function, *args, lane="": run_blocking(inside, function, *args, lane=lane)
        )
        monkeypatch.setattr(disk, "begin", noted)


def test_no_file_is_touched_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        node = await aged(world)
        on_the_loop = OnTheLoop(node.host, monkeypatch)
        await node.partitions.enforce_retention()
        await asyncio.sleep(3)
        await node.partitions.enforce_retention()
        monkeypatch.undo()
        assert on_the_loop.operations == []
        assert [p.log_start_offset for p in node.partitions] == [COUNT] * 3
        files = [name for index in range(3) for name in node.host.disk.list(f"/data/t-{index}")]
        assert {name[:20] for name in files if name.endswith((".log", ".index", ".timeindex", ".deleted"))} == {
            f"{COUNT:020d}"
        }

    with simulated(1) as world:
        world.run(scenario())


def test_files_that_compaction_replaces_while_their_times_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read then may be the wrong file, and not there at all: no damage."""

    async def scenario() -> None:
        node = await aged(world)
        replaced = [node[0].log.segments.items[0], node[2].log.segments.items[0]]

        def run(look: SegmentAgeSearch) -> None:
            if look._segments[0] in replaced:
                look._segments[0].deleted = look._segments[0] is replaced[0]
                raise CorruptLog("/data/t-0/x.log", 0, "not what was expected")
            look_up(look)

        look_up = SegmentAgeSearch.run
        monkeypatch.setattr(SegmentAgeSearch, "run", run)
        await node.partitions.enforce_retention()
        assert [p.log.failure is None for p in node.partitions] == [True, True, False]
        assert [p.log_start_offset for p in node.partitions] == [0, COUNT, 0]
        monkeypatch.undo()

    with simulated(1) as world:
        world.run(scenario())


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "No such file"), CorruptLog("x.log", 0, "cut off")])
@pytest.mark.parametrize("how", ["frozen", "moved"])
def test_a_log_that_moves_while_its_times_are_looked_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str, error: Exception
) -> None:
    async def scenario() -> None:
        node = await aged(world)
        partition = node[0]

        def run(look: SegmentAgeSearch) -> None:
            if look._segments[0] is first:
                if how == "frozen":
                    partition.frozen = True
                else:
                    partition.log = node[1].log
                raise error
            look_up(look)

        first, look_up, log = partition.log.segments.items[0], SegmentAgeSearch.run, partition.log
        monkeypatch.setattr(SegmentAgeSearch, "run", run)
        await node.partitions.enforce_retention()
        partition.frozen, partition.log = False, log
        assert log.failure is None
        assert [p.log_start_offset for p in node.partitions] == [0, COUNT, COUNT]
        monkeypatch.undo()
        await node.partitions.enforce_retention()
        assert [p.log_start_offset for p in node.partitions] == [COUNT, COUNT, COUNT]

    with simulated(1) as world:
        world.run(scenario())
    assert not [r for r in caplog.records if "retention failed" in r.getMessage()]


@pytest.mark.parametrize("seed", range(10))
def test_beside_appends_and_reads(seed: int) -> None:
    async def append(node: Node) -> None:
        for _ in range(60):
            node.append(node[0])
            await node.host.runtime.tasks.sleep(0.0003)

    async def read(node: Node) -> None:
        offset = 0
        while offset < COUNT + 30:
            try:
                part = node[0].read(offset, 3 * BATCH_BYTES, 0)
            except OffsetOutOfRange:
                offset = node[0].log_start_offset
                continue
            await node.host.runtime.tasks.sleep(0.0002)
            if part.file is None:
                continue
            data = await node.host.runtime.tasks.run_blocking(part.file.pread, part.size, part.position)
            assert len(data) == part.size, "what was handed out stays readable"
            assert int.from_bytes(data[:8]) == part.first_batch_offset
            offset = part.first_batch_offset + part.size // BATCH_BYTES

    async def scenario() -> None:
        node = await aged(world)
        await asyncio.gather(append(node), read(node), read(node), node.partitions.enforce_retention())
        assert all(sound(p) for p in node.partitions)
        assert node[0].log_start_offset >= COUNT - 4
        await node.stop()
        node = await Node.start(world.host("a"))
        assert all(sound(p) for p in node.partitions)

    with simulated(seed) as world:
        world.run(scenario())


@pytest.mark.parametrize("end", ["kill", "power cut"])
@pytest.mark.parametrize("seed", range(25))
def test_whenever_it_ends_the_next_start_finds_sound_logs(seed: int, end: str) -> None:
    async def scenario() -> None:
        node = await aged(world)
        retention = asyncio.ensure_future(node.partitions.enforce_retention())
        await asyncio.sleep(world.rng("end").uniform(0, 0.02))
        node.host.kill() if end == "kill" else node.host.cut_power()
        retention.cancel()
        node = await Node.start(world.host("a"))
        assert node.partitions.offline_count == 0
        assert all(sound(p) for p in node.partitions)
        await node.partitions.enforce_retention()
        assert all(sound(p) and p.log_start_offset >= COUNT - 4 for p in node.partitions)

    with simulated(seed) as world:
        world.run(scenario())


def test_what_is_deleted_meanwhile_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        node = await aged(world)
        retention = asyncio.ensure_future(node.partitions.enforce_retention())
        await asyncio.sleep(world.rng("deletion").uniform(0, 0.01))
        await follow(node.partitions, IMAGE, EMPTY_IMAGE)
        await retention

    for seed in range(20):
        with simulated(seed) as world:
            world.run(scenario())
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_start_offset_that_cannot_be_persisted_keeps_the_files(caplog: pytest.LogCaptureFixture) -> None:
    """Its directory is out of use then, as a disk that cannot be written is; the next start has all of it."""

    async def scenario() -> None:
        node = await aged(world)
        files = [node.host.disk.list(f"/data/t-{index}") for index in range(3)]
        node.host.disk.fail("write", f"*/{LOG_START_OFFSETS}*", errno.EIO)
        await node.partitions.enforce_retention()
        assert [node.host.disk.list(f"/data/t-{index}") for index in range(3)] == files
        await asyncio.sleep(0)
        assert list(node.directories.failed) == ["/data"]
        node.host.kill()
        node = await Node.start(world.host("a"))
        assert all(sound(p) for p in node.partitions)
        await node.partitions.enforce_retention()
        starts = read_offsets(node.host.disk, f"/data/{LOG_START_OFFSETS}")
        assert starts == {TopicPartition("t", index): node[index].log_start_offset for index in range(3)}
        assert all(f"{0:020d}.log.deleted" in node.host.disk.list(f"/data/t-{index}") for index in range(3))

    with simulated(1) as world:
        world.run(scenario())
    assert "directory offline path=/data" in caplog.text


def begun(node: Node) -> list[int]:
    """The partitions of which files are on their way."""
    return [index for index in range(3) if f"{0:020d}.log.deleted" in node.host.disk.list(node[index].log.directory)]


def test_a_directory_that_fails_does_not_keep_the_others_from_it() -> None:
    async def scenario(broken: str) -> None:
        node = await aged(world, "/a", "/b")
        node.host.disk.fail("write", f"{broken}/{LOG_START_OFFSETS}*", errno.EIO)
        await node.partitions.enforce_retention()
        assert begun(node) == [i for i in range(3) if not node[i].log.directory.startswith(f"{broken}/")]
        assert 1 <= len(begun(node)) <= 2

    for broken in ("/a", "/b"):
        with simulated(1) as world:
            world.run(scenario(broken))


@pytest.mark.parametrize("error", [OSError(errno.EIO, "planted"), RuntimeError("a defect")])
def test_a_log_that_fails_does_not_keep_the_others_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def scenario() -> None:
        node = await aged(world)
        apply_retention = PartitionLog.apply_retention

        def fail_for_the_first(log: PartitionLog, now_ms: int, high_watermark: int | None = None) -> int:
            if log is node[0].log:
                raise error
            return apply_retention(log, now_ms, high_watermark)

        monkeypatch.setattr(PartitionLog, "apply_retention", fail_for_the_first)
        await node.partitions.enforce_retention()
        assert begun(node) == [1, 2]
        monkeypatch.undo()

        def fail_the_first(removal: Removal) -> None:
            monkeypatch.undo()
            raise error

        monkeypatch.setattr(Removal, "run", fail_the_first)
        await asyncio.sleep(3)
        await node.partitions.enforce_retention()
        assert begun(node) == []
        await node.partitions.enforce_retention()
        assert begun(node) == [0]

    with simulated(1) as world:
        world.run(scenario())
    assert caplog.text.count("retention failed partition=t-0") == 2


@pytest.mark.parametrize("seed", range(12))
def test_files_of_a_log_that_has_moved_meanwhile_are_left_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are on their way with their directory; what is at their place may be somebody else's."""

    async def scenario() -> None:
        node = await aged(world, "/a", "/b")
        run = Removal.run
        elsewhere: list[str] = []

        def noted(removal: Removal) -> None:
            live = {partition.log.directory for partition in node.partitions}
            paths = [segment.path for retired in removal._to_rename for segment in retired.segments]
            elsewhere.extend(path for path in paths if path.rpartition("/")[0] not in live)
            run(removal)

        monkeypatch.setattr(Removal, "run", noted)
        work = node.partitions.run_file_work

        async def slowly(function: Callable[..., Any], *args: object, lane: str = "") -> Any:
            result = await work(function, *args, lane=lane)
            await asyncio.sleep(world.rng("disk").uniform(0, 0.5))  # whoever waits for it has more to wait for
            return result

        monkeypatch.setattr(node.partitions, "run_file_work", slowly)
        retention = asyncio.ensure_future(node.partitions.enforce_retention())
        await asyncio.sleep(world.rng("move").uniform(0, 1))
        for partition in list(node.partitions):
            here = partition.log.directory.rpartition("/")[0]
            target = node.directories.by_path("/b" if here == "/a" else "/a")
            assert target is not None
            node.partitions.moves.begin(partition, target)
        await retention
        while any(node.partitions.moves):
            await asyncio.sleep(0.01)
        assert elsewhere == []
        assert all(sound(p) for p in node.partitions)
        monkeypatch.undo()
        node.host.kill()
        node = await Node.start(world.host("a"), ("/a", "/b"))
        assert node.partitions.offline_count == 0
        assert all(sound(p) for p in node.partitions)

    with simulated(seed) as world:
        world.run(scenario())


# Producers of removed segments


def produce(partition: Partition, sequence: int) -> int:
    """Append the batch of a producer and return its offset."""
    timestamps = [partition.wall_ms()]
    batch = make_batch(
        b"%02d" % sequence, timestamps=timestamps, producer_id=7, producer_epoch=0, base_sequence=sequence
    )
    return partition.append_batch(batch).base_offset


async def all_expired(world: World, *paths: str) -> Node:
    """A node whose durable segments are all too old. No durable snapshot has the last sequences of the producers."""
    node = await Node.start(world.host("a"), paths or ("/data",))
    for sequence in range(6):
        for partition in node.partitions:
            produce(partition, sequence)
        await asyncio.sleep(0.3)
    await asyncio.sleep(61)
    return node


@pytest.mark.parametrize("end", ["kill", "power cut"])
@pytest.mark.parametrize("seed", range(25))
def test_whenever_it_ends_the_next_start_knows_the_producers(seed: int, end: str) -> None:
    async def scenario() -> None:
        node = await all_expired(world)
        retention = asyncio.ensure_future(node.partitions.enforce_retention())
        await asyncio.sleep(world.rng("end").uniform(0, 0.05))
        node.host.kill() if end == "kill" else node.host.cut_power()
        retention.cancel()
        node = await Node.start(world.host("a"))
        for partition in node.partitions:
            assert produce(partition, 5) == 5, "a repeated batch is not appended again"
            assert produce(partition, 6) == 6

    with simulated(seed) as world:
        world.run(scenario())


def test_all_segments_of_many_partitions_are_removed_in_one_pass() -> None:
    async def scenario() -> None:
        node = await all_expired(world)
        await node.partitions.enforce_retention()
        assert [p.log_start_offset for p in node.partitions] == [6, 6, 6]
        assert begun(node) == [0, 1, 2]

    with simulated(1) as world:
        world.run(scenario())


def test_the_snapshot_of_a_roll_without_appends_is_written_by_the_interval_flush() -> None:
    async def scenario() -> None:
        node = await Node.start(world.host("a"))
        node.fill(2)
        await asyncio.sleep(61)
        await node.partitions.enforce_retention()
        assert [p.log_start_offset for p in node.partitions] == [2, 2, 2]
        snapshots = [f"/data/t-{index}/{2:020d}.snapshot" for index in range(3)]
        await asyncio.sleep(0.3)
        assert all(map(node.host.disk.exists, snapshots))

    with simulated(1) as world:
        world.run(scenario())


def test_a_full_disk_keeps_uncovered_segments_for_one_pass(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        node = await all_expired(world)
        node.host.disk.fail("create", "*.snapshot.tmp", errno.ENOSPC, times=1 << 30)
        await node.partitions.enforce_retention()
        assert [p.log_start_offset for p in node.partitions] == [4, 4, 4], "the snapshot at 4 is durable"
        await node.partitions.enforce_retention()
        assert [p.log_start_offset for p in node.partitions] == [6, 6, 6]
        node.host.disk.repair()
        await asyncio.sleep(0.3)
        node.host.cut_power()
        node = await Node.start(world.host("a"))
        assert [produce(p, 6) for p in node.partitions] == [6, 6, 6]
        assert [p.log.producers.entries[7].next_sequence for p in node.partitions] == [7, 7, 7]

    with simulated(1) as world:
        world.run(scenario())
    assert caplog.text.count("segments are removed without a producer snapshot") == 3


def test_producers_of_removed_segments_survive_a_move() -> None:
    async def scenario() -> None:
        node = await all_expired(world, "/a", "/b")
        await node.partitions.enforce_retention()
        for partition in list(node.partitions):
            here = partition.log.directory.rpartition("/")[0]
            target = node.directories.by_path("/b" if here == "/a" else "/a")
            assert target is not None
            node.partitions.moves.begin(partition, target)
        while any(node.partitions.moves):
            await asyncio.sleep(0.01)
        node.host.cut_power()
        node = await Node.start(world.host("a"), ("/a", "/b"))
        for partition in node.partitions:
            assert partition.log_start_offset == 6
            assert produce(partition, 5) == 5, "a repeated batch is not appended again"
            assert produce(partition, 6) == 6

    with simulated(1) as world:
        world.run(scenario())


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_the_snapshot_of_a_roll_whose_append_failed_is_written_by_the_interval_flush(
    durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CONFIG, "durability", "interval")

    async def scenario() -> None:
        node = await Node.start(world.host("a"))
        for sequence in range(4):
            produce(node[0], sequence)
        await asyncio.sleep(0.3)
        monkeypatch.setattr(CONFIG, "durability", durability)
        node.host.disk.fail("write", f"*/{4:020d}.log", errno.ENOSPC)
        with pytest.raises(StorageError):
            produce(node[0], 4)
        assert node[0].log.segments.active.base_offset == 4
        await asyncio.sleep(0.3)
        assert node.host.disk.exists(f"/data/t-0/{4:020d}.snapshot")

    with simulated(1) as world:
        world.run(scenario())
