"""Cuts and retention that move the start of a log, and what a crash at any step of them leaves."""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable

import pytest

from log_harness import make_batch, read_records
from replication_harness.node import Node, append, led_by, run
from tidelog.log.checkpoints import CLEANER_OFFSETS, LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from tidelog.log.leader_epochs import EpochEnd
from tidelog.metadata.image import EMPTY_IMAGE
from tidelog.metadata.records import PartitionState
from tidelog.model.ids import TopicPartition
from tidelog.replication.partition import Partition
from tidelog.replication.replica import Diverged, LeftBehind
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.medium import PowerCutOdds
from tidelog.wire.batches import BatchHeader

KEY = TopicPartition("t", 0)
KILL = PowerCutOdds(keep=1.0, torn=0.0, wrong_size=0.0)
"""After `kill -9` everything that was written is there."""
TORN = PowerCutOdds(keep=0.0, torn=0.9, wrong_size=0.3)
OLD = [(n, b"%d" % n) for n in range(8)]


def batch_at(base_offset: int, *values: bytes, leader_epoch: int = 5) -> memoryview:
    batch = make_batch(*values)
    BatchHeader(batch).assign(base_offset=base_offset, leader_epoch=leader_epoch)
    return memoryview(batch)


async def follower_of(node: Node, *, start: int = 0, removes_files: bool = False) -> Partition:
    """A follower with records 0 to 7 of epoch 4. Those below `start` were deleted by DeleteRecords; with
    `removes_files`, their segments are gone.
    """
    await node.apply(led_by(1, 4, replicas=(1,)))
    for _, value in OLD:
        append(node[0], value)
    await asyncio.sleep(0.3)
    if start:
        node[0].log.delete_before(start)
        assert await node.partitions.persist_start_offsets([node[0]]) == []
        await asyncio.sleep(0.3)
    if removes_files:
        await node.partitions.enforce_retention()
        await asyncio.sleep(0.3)
    await node.apply(led_by(2, 5, replicas=(1, 2), partition_epoch=1))
    return node[0]


def diverged(follower: Partition, leader_end: int) -> Diverged:
    """The leader's records of epoch 4 end at `leader_end`."""
    own_end = follower.log.epochs.end_offset_for(4, follower.log.log_end_offset)
    return Diverged(5, EpochEnd(4, leader_end), own_end)


async def restart_with(node: Node, disk: SimDisk, *states: PartitionState) -> None:
    node.host.kill()
    node.host.insert(disk)
    node.image = EMPTY_IMAGE
    await node.start()
    await node.apply(*states or [led_by(2, 6, replicas=(1, 2), partition_epoch=2)])


def offsets_on(disk: SimDisk) -> tuple[int | None, int | None]:
    """Return the partition's recovery point and start offset in the checkpoints."""
    names = RECOVERY_POINTS, LOG_START_OFFSETS
    recovery_points, starts = (read_offsets(disk, f"/data/{name}") or {} for name in names)
    return recovery_points.get(KEY), starts.get(KEY)


Check = Callable[[Partition], None]


def crash_at_every_step(
    begin: Callable[[Node], Awaitable[Partition]],
    change: Callable[[Node, Partition], None],
    odds: list[PowerCutOdds | None],
    check: Check,
    **settings: int,
) -> None:
    """Record the disk after each operation of one cut. Check the log that each of these disks gives."""
    survivors: list[SimDisk] = []

    async def cut(node: Node) -> None:
        follower = await begin(node)
        disk = node.host.disk
        disk.on_operation = lambda _name, _path: survivors.extend(
            disk.power_cut(random.Random(len(survivors)), odd) for odd in odds
        )
        change(node, follower)
        await node.partitions.cuts.wait(follower)
        disk.on_operation = None

    run(cut, **settings)
    assert len(survivors) > 20

    async def check_all(node: Node) -> None:
        for disk in survivors:
            await restart_with(node, disk)
            assert not node.partitions.unopened
            check(node[0])

    run(check_all, **settings)


@pytest.mark.parametrize("has_unsynced_end", [False, True])
def test_a_crash_while_a_log_is_made_empty_leaves_the_old_log_or_an_empty_one(has_unsynced_end: bool) -> None:
    """The recovery point never names an offset that the log does not have."""

    async def begin(node: Node) -> Partition:
        follower = await follower_of(node)
        if has_unsynced_end:
            follower.log.append_as_follower(batch_at(8, b"8" * 300))
        return follower

    ends = set()

    def check(partition: Partition) -> None:
        bounds = partition.log.log_start_offset, partition.log.log_end_offset
        ends.add(bounds)
        assert bounds in [(500, 500), (0, 8), (0, 9)]

    odds = [KILL, TORN, TORN, None]
    crash_at_every_step(begin, lambda _, follower: follower.step(LeftBehind(5, 500)), odds, check, segment_bytes=150)
    assert len(ends) > 1


def test_a_log_that_is_made_empty_waits_for_the_sync_of_its_end() -> None:
    """Recovery accepts a log below its start offset only if all of the log is below its recovery point."""

    async def scenario(node: Node) -> None:
        follower = await follower_of(node)
        follower.log.append_as_follower(batch_at(8, b"8" * 300))
        node.host.disk.fail("sync", "/data/t-0/*.log", errno.EMFILE, times=3)
        before: list[tuple[int | None, int | None]] = []

        def operation(name: str, path: str) -> None:
            if name == "remove" and not before:
                before.append(offsets_on(node.host.disk))

        node.host.disk.on_operation = operation
        follower.step(LeftBehind(5, 500))
        await node.partitions.cuts.wait(follower)
        assert before == [(9, 500)]
        assert (follower.log_start_offset, follower.log_end_offset) == (500, 500)

    run(scenario, segment_bytes=150)


def test_a_failed_sync_before_a_log_is_made_empty_takes_it_offline() -> None:
    async def scenario(node: Node) -> None:
        follower = await follower_of(node)
        follower.log.append_as_follower(batch_at(8, b"8"))
        node.host.disk.fail("sync", "/data/t-0/*.log", errno.EIO)
        follower.step(LeftBehind(5, 500))
        await node.partitions.cuts.wait(follower)
        assert follower.log.failure is not None
        assert offsets_on(node.host.disk)[1] is None

    run(scenario)


def test_the_checkpoints_name_the_start_of_a_log_before_records_are_appended_there() -> None:
    """The first batch of a leader may begin below the offset at which its follower begins an empty log."""

    async def scenario(node: Node) -> None:
        follower = await follower_of(node)
        follower.step(LeftBehind(5, 500))
        await node.partitions.cuts.wait(follower)
        follower.step(LeftBehind(5, 495))
        await node.partitions.cuts.wait(follower)
        follower.append_as_follower(batch_at(495, *[b"v" * 300] * 11), 5)
        disks = [node.host.disk.power_cut(random.Random(seed)) for seed in range(30)]
        found = set()
        for disk in disks:
            await restart_with(node, disk)
            assert not node.partitions.unopened
            found.add((node[0].log_start_offset, node[0].log_end_offset))
        assert found == {(495, 495), (495, 506)}

    run(scenario)


@pytest.mark.parametrize("removes_files", [False, True])
def test_records_after_a_cut_below_the_start_are_there_after_a_kill(removes_files: bool) -> None:
    """With acks=all, the leader counts them as replicated as soon as the follower has appended them."""

    async def scenario(node: Node) -> None:
        follower = await follower_of(node, start=5, removes_files=removes_files)
        follower.step(diverged(follower, 3))
        await node.partitions.cuts.wait(follower)
        assert (follower.log_start_offset, follower.log_end_offset) == (3, 3)
        records = [(n, b"new%d" % n) for n in range(3, 9)]
        for offset, value in records:
            follower.append_as_follower(batch_at(offset, value), 5)
        await restart_with(node, node.host.disk.kill())
        assert not node.partitions.unopened
        assert (node[0].log_start_offset, read_records(node[0].log)) == (3, records)

    run(scenario, segment_bytes=150, file_delete_delay_ms=0)


def test_a_cut_inside_the_batch_at_the_start_counts_as_a_cut_below_the_start() -> None:
    """The log then ends where this batch began, which is below the old start."""

    async def begin(node: Node) -> Partition:
        await node.apply(led_by(1, 4, replicas=(1,)))
        append(node[0], b"0", b"1")
        append(node[0], b"2", b"3", b"4", b"5")
        append(node[0], b"6")
        await asyncio.sleep(0.3)
        node[0].log.delete_before(4)
        await node.partitions.persist_start_offsets([node[0]])
        await node.apply(led_by(2, 5, replicas=(1, 2), partition_epoch=1))
        return node[0]

    def check(partition: Partition) -> None:
        bounds = partition.log.log_start_offset, partition.log.log_end_offset
        assert bounds in [(4, 7), (4, 6), (4, 4), (2, 2)]

    crash_at_every_step(begin, lambda _, follower: follower.step(diverged(follower, 5)), [KILL, None], check)

    async def scenario(node: Node) -> None:
        follower = await begin(node)
        follower.step(diverged(follower, 5))
        await node.partitions.cuts.wait(follower)
        assert (follower.log_start_offset, follower.log_end_offset) == (2, 2)
        assert offsets_on(node.host.disk) == (2, 2)

    run(scenario)


@pytest.mark.parametrize(("start", "leader_end"), [(7, 5), (5, 3), (5, 4), (7, 1)])
@pytest.mark.parametrize("removes_files", [False, True])
def test_a_crash_at_any_step_of_a_cut_below_the_start_leaves_a_sound_log(
    start: int, leader_end: int, removes_files: bool
) -> None:
    ends = set()

    def check(partition: Partition) -> None:
        bounds = partition.log.log_start_offset, partition.log.log_end_offset
        ends.add(bounds)
        if bounds != (leader_end, leader_end):
            assert bounds[0] == start <= bounds[1] <= 8
            assert read_records(partition.log) == OLD[start : bounds[1]]

    crash_at_every_step(
        lambda node: follower_of(node, start=start, removes_files=removes_files),
        lambda _, follower: follower.step(diverged(follower, leader_end)),
        [KILL, None],
        check,
        segment_bytes=150,
        file_delete_delay_ms=0,
    )
    assert {(start, 8), (start, start), (leader_end, leader_end)} <= ends


def test_a_cut_below_the_start_ends_when_its_new_start_is_stored(caplog: pytest.LogCaptureFixture) -> None:
    """Until then, a crash would lose the records that are appended below the old start."""

    async def scenario(node: Node) -> None:
        follower = await follower_of(node, start=5)
        disk = node.host.disk

        def operation(name: str, path: str) -> None:
            if name == "create" and path == f"/data/t-0/{3:020d}.log":
                disk.fail("create", f"/data/{LOG_START_OFFSETS}.tmp", errno.ENOSPC, times=8)

        disk.on_operation = operation
        follower.step(diverged(follower, 3))
        await asyncio.sleep(1)
        assert offsets_on(disk)[1] == 5
        assert follower.frozen
        assert follower.replica.end_offset == 8, "no record is fetched"
        assert caplog.text.count("truncation put off") == 1
        await node.partitions.cuts.wait(follower)
        assert offsets_on(disk) == (3, 3)
        assert (follower.log_end_offset, follower.replica.end_offset) == (3, 3)

    run(scenario)


async def cut_while_renames_are_pending(node: Node) -> Partition:
    """Retention takes segments from the log. Before their files are renamed, the log is cut below its start."""
    follower = await follower_of(node)
    follower.log.lacks_snapshot(8)
    follower.mark_dirty()
    await asyncio.sleep(0.5)
    loop = asyncio.get_running_loop()
    began: list[bool] = []

    def operation(name: str, path: str) -> None:
        if name == "rename" and path.startswith(f"/data/{LOG_START_OFFSETS}") and not began:
            began.append(True)
            loop.call_soon(lambda: follower.step(diverged(follower, 2)))

    node.host.disk.on_operation = operation
    await node.partitions.enforce_retention()
    await asyncio.sleep(0.2)
    await node.partitions.cuts.wait(follower)
    node.host.disk.on_operation = None
    assert began
    assert (follower.log_start_offset, follower.log_end_offset) == (2, 2)
    follower.append_as_follower(batch_at(2, b"new2"), 5)
    return follower


RETAINED = {"segment_bytes": 160, "retention_bytes": 160, "file_delete_delay_ms": 0}


def test_a_cut_below_the_start_removes_the_files_that_retention_has_not_renamed_yet() -> None:
    async def scenario(node: Node) -> None:
        follower = await cut_while_renames_are_pending(node)
        names = [name for name in node.host.disk.list("/data/t-0") if ".log" in name]
        assert names == [f"{2:020d}.log"]
        await asyncio.sleep(1)
        assert read_records(follower.log) == [(2, b"new2")]
        await restart_with(node, node.host.disk.kill())
        assert not node.partitions.unopened
        assert read_records(node[0].log) == [(2, b"new2")]

    run(scenario, **RETAINED)


def test_after_a_cut_below_the_start_retention_leaves_the_new_files_alone() -> None:
    async def scenario(node: Node) -> None:
        follower = await cut_while_renames_are_pending(node)
        await node.partitions.enforce_retention()
        await asyncio.sleep(1)
        assert f"{2:020d}.log" in node.host.disk.list("/data/t-0")
        assert read_records(follower.log) == [(2, b"new2")]

    run(scenario, **RETAINED)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("empties", [False, True])
def test_a_stop_during_a_cut_leaves_the_stored_offsets(empties: bool, error: int) -> None:
    async def scenario(node: Node) -> None:
        follower = await follower_of(node, start=5, removes_files=True)
        node.host.disk.fail("sync_dir", "/data/t-0", error, times=1 << 30)
        follower.step(LeftBehind(5, 500) if empties else diverged(follower, 6))
        await asyncio.sleep(1)
        await node.stop()
        node.host.disk.repair()
        assert offsets_on(node.host.disk) == ((8, 500) if empties else (6, 5))
        await node.start()
        await node.apply(led_by(2, 6, replicas=(1, 2), partition_epoch=2))
        assert not node.partitions.unopened
        if empties:
            assert (node[0].log_start_offset, node[0].log_end_offset) == (500, 500)
        else:
            assert node[0].log_start_offset == 5
            assert read_records(node[0].log) == OLD[5 : node[0].log_end_offset]

    run(scenario, segment_bytes=150, file_delete_delay_ms=0)


def test_a_cut_that_could_not_be_prepared_leaves_the_logs_own_offsets_for_the_next_checkpoint() -> None:
    """Another partition's checkpoint may succeed before this cut is tried again."""

    async def scenario(node: Node) -> None:
        follower = await follower_of(node)
        node.host.disk.fail("create", f"/data/{LOG_START_OFFSETS}.tmp", errno.ENOSPC)
        follower.step(LeftBehind(5, 500))
        while not follower.frozen:
            await asyncio.sleep(0)
        await follower.wait_until_thawed()
        assert follower.log_end_offset == 8, "the cut waits"
        assert node.partitions.start_offsets() == {}
        await node.partitions.cuts.wait(follower)
        assert (follower.log_start_offset, follower.log_end_offset) == (500, 500)

    run(scenario)


def test_retention_on_a_full_disk_leaves_deleted_records_of_other_partitions_deleted() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4, replicas=(1,)), led_by(1, 4, replicas=(1,)))
        for number in range(8):
            append(node[0], b"%d" % number)
        for _ in range(40):
            append(node[1], b"x" * 20)
        await asyncio.sleep(0.3)
        node[0].log.delete_before(5)
        assert await node.partitions.persist_start_offsets([node[0]]) == []
        node.host.disk.fail("create", "/data/*.tmp", errno.ENOSPC, times=1 << 30)
        await node.partitions.enforce_retention()
        start = node[1].log_start_offset
        assert start > 0
        await restart_with(node, node.host.disk.kill(), led_by(1, 5, replicas=(1,)), led_by(1, 5, replicas=(1,)))
        assert (node[0].log_start_offset, read_records(node[0].log)) == (5, OLD[5:])
        assert node[1].log_start_offset == start

    run(scenario, segment_bytes=700, retention_bytes=700)


def test_a_failed_sync_of_renamed_files_takes_the_log_offline() -> None:
    """A repeated sync could succeed although the disk does not have the names."""

    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4, replicas=(1,)))
        for _ in range(8):
            append(node[0], b"x" * 100)
        await asyncio.sleep(0.3)
        node.host.disk.fail("sync_dir", "/data/t-0", errno.EIO)
        await node.partitions.enforce_retention()
        assert node[0].log.failure is not None
        assert "sync failed" in node[0].log.failure

    run(scenario, segment_bytes=300, retention_bytes=300)


@pytest.mark.parametrize("removes_files", [False, True])
def test_a_replica_that_was_being_removed_at_a_kill_begins_empty_when_it_is_added_again(removes_files: bool) -> None:
    """Its directory is there, but its entries in the checkpoints are not."""

    async def scenario(node: Node) -> None:
        await follower_of(node, start=5, removes_files=removes_files)
        disk = node.host.disk
        survivors: list[SimDisk] = []

        def operation(_name: str, _path: str) -> None:
            entries = offsets_on(disk)
            if disk.exists("/data/t-0") and entries != (8, 5):
                survivors.append(disk.power_cut(random.Random(len(survivors)), KILL))

        disk.on_operation = operation
        elsewhere = led_by(2, 5, replicas=(2, 3), partition_epoch=2)
        await node.apply(elsewhere)
        assert len(survivors) > 2
        for survivor in survivors:
            await restart_with(node, survivor, elsewhere)
            assert node.host.disk.exists("/data/t-0")
            await node.apply(led_by(2, 6, replicas=(2, 3, 1), partition_epoch=3))
            assert not node.partitions.unopened
            assert (node[0].log_start_offset, node[0].log_end_offset) == (0, 0)
            [retired] = [name for name in node.host.disk.list("/data") if name.endswith("-delete")]
            node[0].append_as_follower(batch_at(0, b"new"), 6)
            await restart_with(node, node.host.disk.kill(), led_by(2, 7, replicas=(2, 3, 1), partition_epoch=4))
            assert read_records(node[0].log) == [(0, b"new")]
            await asyncio.sleep(1)
            assert retired not in node.host.disk.list("/data"), "the next start removes it"

    run(scenario, segment_bytes=150, file_delete_delay_ms=60_000)


def test_a_cut_lowers_a_clean_offset_whose_write_failed_at_its_last_step() -> None:
    """The disk has it, although the write counts as failed. After the cut it would explain a gap of lost records."""

    async def scenario(node: Node) -> None:
        follower = await follower_of(node)
        node.host.disk.fail("sync_dir", "/data", errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            node.directories.write_cleaner_offsets({KEY: 7})
        follower.step(diverged(follower, 5))
        await node.partitions.cuts.wait(follower)
        assert read_offsets(node.host.disk, f"/data/{CLEANER_OFFSETS}") == {KEY: 5}

    run(scenario)
