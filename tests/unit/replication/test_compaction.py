"""Which partition is compacted when, and the handling of a failed pass."""

import errno
import logging
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from log_harness import NOW_MS
from log_harness.compaction import stored
from tidelog.config.broker_config import BrokerConfig
from tidelog.log.checkpoints import CLEANER_OFFSETS, read_offsets
from tidelog.log.cleaner import work
from tidelog.log.cleaner.swap import Swap
from tidelog.log.config import LogConfig
from tidelog.log.directories import DataDirectories
from tidelog.log.partition_log import PartitionLog
from tidelog.log.segment import UNKNOWN
from tidelog.model.ids import TopicPartition
from tidelog.replication.compaction import RETRY_DELAY_S, Compaction
from tidelog.runtime.interfaces import WorkEnded
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.world import World, simulated
from tidelog.wire.batches import BatchHeader
from tidelog.wire.records import Record, encode_batch


class FakePartition:
    """A partition's log, without anybody who waits for it."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.deleted = False
        self.frozen = False
        self.failed = False
        self.dirty = False

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset

    def fail(self) -> None:
        self.failed = True

    def mark_dirty(self) -> None:
        self.dirty = True


class FakePartitions:
    """What compaction wants of them all."""

    def __init__(self, directories: DataDirectories, partitions: dict[str, FakePartition]) -> None:
        self.directories = directories
        self.moves: list[FakePartition] = []
        self.swapping = None
        self.cuts = SimpleNamespace(on_cut=None)
        self.flusher = self
        self.disk_full = False
        self._partitions = partitions

    def __iter__(self) -> Iterator[FakePartition]:
        return iter(list(self._partitions.values()))

    async def write_snapshots(self, partition: FakePartition) -> None:
        if not self.disk_full:
            plan = partition.log.flush_plan()
            plan.run()
            partition.log.flushed(plan)


class Stage:
    """Data directories with compacted logs `a`, `b` ... on a simulated host, and what cleans them."""

    def __init__(
        self, world: World, updates: dict[str, int], paths: tuple[str, ...] = ("/data",), **settings: Any
    ) -> None:
        self.world = world
        self.host = world.host("broker")
        self.runtime = self.host.runtime
        self.disk: SimDisk = self.host.disk
        self.paths = paths
        self.directories = DataDirectories.open(self.disk, paths)
        self.config = LogConfig(
            cleanup_policy="compact", segment_bytes=1000, min_cleanable_dirty_ratio=0.1, file_delete_delay_ms=0
        )
        for name, value in settings.items():
            setattr(self.config, name, value)
        self.partitions = {topic: FakePartition(self.filled(topic, count)) for topic, count in updates.items()}
        self.compaction = self.new_compaction()

    def new_compaction(self) -> Compaction:
        self.every: Any = FakePartitions(self.directories, self.partitions)
        return Compaction(self.runtime, BrokerConfig(), self.every)

    def opened(self, topic: str) -> PartitionLog:
        topic_id = topic.encode().ljust(16)
        directory = self.directories.place(TopicPartition(topic, 0), topic_id, new=True)
        return directory.open_partition(topic, 0, topic_id, self.config, NOW_MS)

    def restart(self) -> None:
        """The process is killed, and another one opens what it finds."""
        self.host.kill()
        self.runtime = self.host.runtime
        self.disk = self.host.disk
        self.directories = DataDirectories.open(self.disk, self.paths)
        for topic in self.partitions:
            self.partitions[topic] = FakePartition(self.opened(topic))
        self.compaction = self.new_compaction()

    def filled(self, topic: str, count: int) -> PartitionLog:
        """`count` updates of three keys."""
        log = self.opened(topic)
        for number in range(count):
            batch = encode_batch([Record(b"k%d" % (number % 3), b"%d" % number + bytes(40), NOW_MS)])
            log.append(memoryview(batch), BatchHeader(batch), leader_epoch=0, now_ms=NOW_MS)
        plan = log.flush_plan()
        plan.run()
        log.flushed(plan)
        return log

    def cleaner_offsets(self) -> dict[TopicPartition, int]:
        """By the checkpoints on the disk."""
        found: dict[TopicPartition, int] = {}
        for path in self.paths:
            found |= read_offsets(self.disk, f"{path}/{CLEANER_OFFSETS}") or {}
        return found

    def records(self, topic: str) -> int:
        return len(list(stored(self.partitions[topic].log)))

    def clean(self) -> bool:
        return self.world.run(self.compaction.clean_dirtiest())

    def clean_all(self) -> None:
        for _ in range(20):
            if not self.clean():
                return
        raise AssertionError("there is always something to clean")

    def flip(self, topic: str) -> None:
        """Damage the first batch of a log."""
        file = self.disk.open(f"/data/{topic}-0/{0:020d}.log")
        file.pwrite(b"\xff", 80)
        file.close()


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    with simulated(1) as world:
        yield lambda updates, **settings: Stage(world, updates, **settings)


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "tidelog.compaction" and word in r.getMessage()]


def test_the_dirtiest_comes_first_and_each_has_its_line(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog.compaction")
    on = stage({"a": 40, "b": 60})
    on.clean_all()
    for topic in "ab":
        log = on.partitions[topic].log
        for number in range(50 if topic == "b" else 30):
            batch = encode_batch([Record(b"k", bytes(40), NOW_MS)])
            log.append(memoryview(batch), BatchHeader(batch), leader_epoch=0, now_ms=NOW_MS + number)
        plan = log.flush_plan()
        plan.run()
        log.flushed(plan)
    caplog.clear()
    assert on.clean()
    (line,) = lines(caplog, "log cleaned")
    assert "partition=b-0" in line
    fields = dict(word.split("=") for word in line.split()[2:])
    assert int(fields["bytes_after"]) < int(fields["bytes_before"])
    assert int(fields["records_after"]) < int(fields["records_before"])
    assert on.clean()
    assert not on.clean(), "nothing is left to do"


def test_clean_offsets_outlive_the_broker(stage: Callable[..., Stage]) -> None:
    on = stage({"a": 40})
    on.clean_all()
    kept = on.disk.read(f"/data/{CLEANER_OFFSETS}")
    assert b"a 0 " in kept
    assert on.cleaner_offsets() == {TopicPartition("a", 0): on.partitions["a"].log.segments.active.base_offset}
    on.compaction = on.new_compaction()
    assert not on.clean()


def test_a_damaged_log_is_left_alone_with_one_line_and_the_others_go_on(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    on = stage({"a": 40, "b": 40})
    on.flip("a")
    before = on.records("b")
    on.clean_all()
    on.clean_all()
    (line,) = lines(caplog, "log uncleanable")
    assert "partition=a-0" in line
    assert "CRC-32C" in line
    assert f"/data/a-0/{0:020d}.log at 0" in line
    assert on.partitions["a"].log.failure is None, "what can be read is read"
    assert on.records("b") < before


def test_a_full_disk_interrupts_a_pass_which_is_tried_again(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    on = stage({"a": 40})
    table = {record.key: record.value for record in stored(on.partitions["a"].log)}
    on.disk.fail("write", "*.log.cleaned", errno.ENOSPC)
    assert on.clean()
    assert lines(caplog, "log cleaning interrupted")
    assert {record.key: record.value for record in stored(on.partitions["a"].log)} == table
    assert not [name for name in on.disk.list("/data/a-0") if name.endswith((".cleaned", ".swap"))], "no room is lost"
    assert not on.clean(), "it rests"
    left = on.records("a")
    on.world.run(_sleep(on, RETRY_DELAY_S + 1))
    on.clean_all()
    assert on.records("a") < left
    assert {record.key: record.value for record in stored(on.partitions["a"].log)} == table
    assert not [name for name in on.disk.list("/data/a-0") if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE, errno.EIO])
def test_nothing_is_removed_before_the_first_clean_offset_is_written(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture, error: int
) -> None:
    """The clean offset explains the holes in the log, also when the topic is not compacted any more."""
    caplog.set_level(logging.INFO, "tidelog.compaction")
    on = stage({"a": 40})
    before = on.records("a")
    on.disk.fail("create", f"*/{CLEANER_OFFSETS}.tmp", error, times=2)
    for _ in range(2):
        assert on.clean()
        assert on.records("a") == before
        assert not [name for name in on.disk.list("/data/a-0") if name.endswith((".cleaned", ".swap"))]
        assert not on.clean(), "it rests"
        on.world.run(_sleep(on, RETRY_DELAY_S + 1))
    assert len(lines(caplog, "its first clean offset could not be written")) == 2
    on.clean_all()
    assert on.records("a") < before
    on.config.cleanup_policy = "delete"
    records = on.records("a")
    on.restart()
    assert on.records("a") == records


async def _sleep(on: Stage, seconds: float) -> None:
    await on.runtime.tasks.sleep(seconds)


@pytest.mark.parametrize("operation", ["rename", "sync_dir"])
def test_a_swap_that_cannot_begin_is_taken_back(
    stage: Callable[..., Stage], operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog.compaction")
    on = stage({"a": 40})
    before = on.records("a")
    if operation == "rename":
        on.disk.fail("rename", "*.index.cleaned", errno.EIO)
    else:
        on.disk.fail("sync_dir", "/data/a-0", errno.EIO, skip=_groups(on))
    assert on.clean()
    assert lines(caplog, "log cleaning abandoned")
    assert on.records("a") == before
    assert on.partitions["a"].log.failure is None
    assert not [name for name in on.disk.list("/data/a-0") if name.endswith((".swap",))]


@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex"])
def test_a_cleaned_segment_that_cannot_be_read_is_taken_back(
    stage: Callable[..., Stage], suffix: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "tidelog.compaction")
    on = stage({"a": 40})
    log = on.partitions["a"].log
    before = on.records("a")
    inner = work.clean

    def clean(resources: Any, request: bytes, report: Any) -> None:
        def tell(content: bytes) -> None:
            report(content.replace(b'"has_transactions": false', b'"has_transactions": true'))

        inner(resources, request, tell if suffix == "txnindex" else report)
        file = on.disk.open(f"/data/a-0/{0:020d}.{suffix}.cleaned", create=True)
        file.pwrite(bytes(range(90, 0, -1)) * 4, 0)  # neither rising nor of a version that is known
        file.close()

    monkeypatch.setattr(work, "clean", clean)
    assert on.clean()
    assert lines(caplog, "log cleaning abandoned")
    assert on.records("a") == before
    assert log.failure is None
    assert not log.segments.swapping, "retention goes on"
    assert not [name for name in on.disk.list("/data/a-0") if name.endswith((".cleaned", ".swap"))]
    monkeypatch.undo()
    on.world.run(_sleep(on, RETRY_DELAY_S + 1))
    assert on.clean()
    assert on.records("a") < before


@pytest.mark.parametrize("skip", range(5))
@pytest.mark.parametrize("takes_back", [False, True])
def test_a_swap_waits_for_descriptors(stage: Callable[..., Stage], skip: int, takes_back: bool) -> None:
    on = stage({"a": 40})
    log = on.partitions["a"].log
    table = {record.key: record.value for record in stored(log)}
    if takes_back:
        on.disk.fail("rename", "*.index.cleaned", errno.EIO)
    on.disk.fail("sync_dir", "/data/a-0", errno.EMFILE, skip=_groups(on) + skip, times=3)
    assert on.clean()
    assert log.failure is None
    assert not log.segments.swapping
    on.disk.repair()
    on.world.run(_sleep(on, RETRY_DELAY_S + 1))
    on.clean_all()
    assert on.records("a") < 40
    assert {record.key: record.value for record in stored(log)} == table
    on.restart()
    assert {record.key: record.value for record in stored(on.partitions["a"].log)} == table


def test_a_swap_does_not_wait_for_descriptors_when_the_broker_stops(stage: Callable[..., Stage]) -> None:
    on = stage({"a": 40})
    table = {record.key: record.value for record in stored(on.partitions["a"].log)}
    on.disk.fail("sync_dir", "/data/a-0", errno.EMFILE, skip=_groups(on) + 1, times=1 << 30)

    async def live() -> None:
        on.compaction.start()
        await on.runtime.tasks.sleep(20)
        await on.compaction.stop()

    on.world.run(live())
    on.restart()
    assert {record.key: record.value for record in stored(on.partitions["a"].log)} == table


def test_a_pass_waits_for_the_process_of_a_broker_that_was_killed(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    on = stage({"a": 40})
    before = on.records("a")
    held = on.disk.lock(f"/data/{work.LOCK}")
    assert on.clean()
    (line,) = lines(caplog, "log cleaning interrupted")
    assert "locked by another process" in line
    assert on.records("a") == before
    held.release()
    on.world.run(_sleep(on, RETRY_DELAY_S + 1))
    assert on.clean()
    assert on.records("a") < before


def _groups(on: Stage) -> int:
    """The pass syncs the directory once for each group that it has written."""
    return len(on.partitions["a"].log.segments.items) - 1


def test_a_swap_that_breaks_in_the_middle_takes_the_log_offline(stage: Callable[..., Stage]) -> None:
    on = stage({"a": 40})
    on.disk.fail("rename", "*.log.swap", errno.EIO)
    assert on.clean()
    assert "could not be renamed" in str(on.partitions["a"].log.failure)
    assert on.partitions["a"].failed
    assert not on.clean()


def test_an_index_that_cannot_be_read_now_is_read_later(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    on = stage({"a": 40}, min_compaction_lag_ms=1)
    for segment in on.partitions["a"].log.segments.items[:-1]:
        segment.max_timestamp, segment.times.count = UNKNOWN, -1
    on.disk.fail("size", "*.timeindex", errno.EMFILE)
    assert not on.clean()
    assert lines(caplog, "log cleaning interrupted")
    on.world.run(_sleep(on, RETRY_DELAY_S + 1))
    assert on.clean()


def test_retention_in_the_middle_of_a_pass_ends_it(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "tidelog.compaction")
    on = stage({"a": 40})
    log = on.partitions["a"].log
    inner = work.clean

    def clean(resources: Any, request: bytes, report: Any) -> None:
        inner(resources, request, report)
        log.delete_before(log.segments.items[1].base_offset)
        assert log.apply_retention(NOW_MS) == 1

    monkeypatch.setattr(work, "clean", clean)
    assert on.clean()
    assert lines(caplog, "log cleaning abandoned")
    assert log.failure is None
    assert on.cleaner_offsets() == {}


@pytest.mark.parametrize("disk_full", [False, True])
def test_a_snapshot_of_the_producers_is_durable_before_the_pass(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture, disk_full: bool
) -> None:
    """The replay of compacted batches after an older snapshot could leave a transaction open forever."""
    caplog.set_level(logging.INFO, "tidelog.compaction")
    on = stage({"a": 40})
    for name in on.disk.list("/data/a-0"):
        if name.endswith(".snapshot"):
            on.disk.remove(f"/data/a-0/{name}")
    on.restart()
    on.every.disk_full = disk_full
    assert on.clean()
    snapshots = [name for name in on.disk.list("/data/a-0") if name.endswith(".snapshot")]
    if disk_full:
        assert snapshots == []
        assert lines(caplog, "the snapshot of its producers could not be written")
        assert on.partitions["a"].dirty
        assert on.cleaner_offsets() == {}
    else:
        assert f"{33:020d}.snapshot" in snapshots  # where the cleaned part ends
        assert lines(caplog, "log cleaned")


def test_work_that_ends_by_itself_is_tried_once_more(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = stage({"a": 40})

    def fail(*_args: object) -> None:
        raise WorkEnded("status -9")

    monkeypatch.setattr(work, "clean", fail)
    assert on.clean()
    assert lines(caplog, "log cleaning interrupted")
    assert not on.clean()
    on.world.run(_sleep(on, RETRY_DELAY_S + 1))
    assert on.clean()
    (line,) = lines(caplog, "log uncleanable")
    assert "status -9" in line
    on.world.run(_sleep(on, RETRY_DELAY_S + 1))
    assert not on.clean()


def test_a_report_that_makes_no_sense_is_an_end(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = stage({"a": 40})
    monkeypatch.setattr(work, "clean", lambda _resources, _request, report: report(b'{"cleaned": {"end": 1}}'))
    assert on.clean()
    (line,) = lines(caplog, "log cleaning interrupted")
    assert "cannot be read" in line


def test_a_stop_leaves_no_swap_half_done(stage: Callable[..., Stage]) -> None:
    on = stage({"a": 60})
    rng = random.Random(3)

    async def live() -> None:
        on.compaction.start()
        await on.runtime.tasks.sleep(15.0 + rng.uniform(0.0, 0.02))
        await on.compaction.stop()

    for _ in range(10):
        on.world.run(live())
        log = on.partitions["a"].log
        assert not log.segments.swapping
        assert log.failure is None
        assert not [name for name in on.disk.list("/data/a-0") if name.endswith(".swap")]
    assert {r.key: r.value for r in stored(log)} == {
        b"k%d" % (number % 3): b"%d" % number + bytes(40) for number in range(57, 60)
    }


def test_deleted_partitions_are_forgotten(stage: Callable[..., Stage]) -> None:
    on = stage({"a": 40, "b": 40})
    on.clean_all()
    on.partitions.pop("a").deleted = True
    assert not on.clean()
    assert len(on.compaction._clean_offsets) == 1


# Several data directories


def test_each_directory_has_the_clean_offsets_of_its_own_partitions(stage: Callable[..., Stage]) -> None:
    on = stage({"a": 40, "b": 40}, paths=("/one", "/two"))
    on.clean_all()
    ends = {topic: on.partitions[topic].log.segments.active.base_offset for topic in "ab"}
    assert on.disk.read(f"/one/{CLEANER_OFFSETS}") == b"0\n1\na 0 %d\n" % ends["a"]
    assert on.disk.read(f"/two/{CLEANER_OFFSETS}") == b"0\n1\nb 0 %d\n" % ends["b"]
    left = {topic: on.records(topic) for topic in "ab"}
    assert max(left.values()) < 40
    on.restart()
    assert on.cleaner_offsets() == {TopicPartition(topic, 0): ends[topic] for topic in "ab"}
    assert not on.clean(), "the next broker knows what is clean"
    assert {topic: on.records(topic) for topic in "ab"} == left


def test_a_directory_that_refuses_its_checkpoint_costs_the_others_nothing(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    on = stage({"a": 40, "b": 40}, paths=("/one", "/two"))
    on.disk.fail("write", f"/one/{CLEANER_OFFSETS}*", errno.ENOSPC, times=1 << 30)
    on.clean_all()
    assert lines(caplog, "cleaner offsets not written")
    assert not on.disk.exists(f"/one/{CLEANER_OFFSETS}")
    assert b"b 0 " in on.disk.read(f"/two/{CLEANER_OFFSETS}")
    assert on.directories.take_failures() == {}, "a full disk is no failure"
    on.disk.repair()
    on.disk.fail("write", f"/one/{CLEANER_OFFSETS}*", errno.EIO)
    on.directories.write_cleaner_offsets({TopicPartition("a", 0): 1, TopicPartition("b", 0): 2})
    assert list(on.directories.take_failures()) == ["/one"]
    assert b"b 0 2" in on.disk.read(f"/two/{CLEANER_OFFSETS}")


def test_what_moves_is_left_alone_until_it_has_moved(stage: Callable[..., Stage]) -> None:
    on = stage({"a": 40})
    partition = on.partitions["a"]
    on.every.moves.append(partition)
    assert not on.clean()
    on.every.moves.clear()
    partition.frozen = True
    assert not on.clean()
    partition.frozen = False
    assert on.clean()


@pytest.mark.parametrize("how", ["moves", "frozen", "moved"])
def test_a_move_that_begins_in_the_middle_of_a_pass_ends_it(
    stage: Callable[..., Stage], how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "tidelog.compaction")
    on = stage({"a": 40})
    partition = on.partitions["a"]
    log = partition.log
    before = [segment.base_offset for segment in log.segments.items]
    inner = work.clean

    def clean(resources: Any, request: bytes, report: Any) -> None:
        inner(resources, request, report)
        if how == "moves":
            on.every.moves.append(partition)
        elif how == "frozen":
            partition.frozen = True
        else:
            partition.log = on.filled("b", 1)

    monkeypatch.setattr(work, "clean", clean)
    assert on.clean()
    (line,) = lines(caplog, "log cleaning abandoned")
    assert "partition=a-0 reason=it moves" in line
    assert [segment.base_offset for segment in log.segments.items] == before
    assert not [name for name in on.disk.list("/data/a-0") if name.endswith((".cleaned", ".swap"))]
    assert on.cleaner_offsets() == {}


@pytest.mark.parametrize("fails", [False, True])
def test_new_files_are_removed_if_the_segments_have_changed(
    stage: Callable[..., Stage], fails: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If they cannot be removed, the pass ends and is tried again all the same."""
    caplog.set_level(logging.INFO, "tidelog.compaction")
    on = stage({"a": 40})
    before = on.records("a")
    monkeypatch.setattr(Swap, "begin", lambda _: False)
    if fails:
        on.disk.fail("remove", "*.cleaned", errno.EMFILE)
    assert on.clean()
    (line,) = lines(caplog, "log cleaning abandoned")
    assert "partition=a-0 reason=its segments have changed, or it was deleted" in line
    left = [name for name in on.disk.list("/data/a-0") if name.endswith((".cleaned", ".swap"))]
    assert bool(left) == fails
    monkeypatch.undo()
    on.world.run(_sleep(on, RETRY_DELAY_S + 1))
    assert on.clean()
    assert on.records("a") < before


def test_a_log_that_breaks_in_a_swap_tells_of_the_disk(stage: Callable[..., Stage]) -> None:
    on = stage({"a": 40})
    told: list[OSError] = []
    on.partitions["a"].log.on_io_failure = lambda _log, error: told.append(error)
    on.disk.fail("rename", "*.log.swap", errno.EIO)
    assert on.clean()
    assert [error.errno for error in told] == [errno.EIO]
