"""Roles and files follow the metadata partition by partition, and logs of followers are cut, in a simulated world."""

import asyncio
import errno
import random

import pytest

from log_harness import make_batch, read_records
from metadata_harness.builders import image
from replication_harness.following import follow
from replication_harness.node import Node, append, led_by, run, with_topic
from tidelog.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_offsets,
)
from tidelog.log.config import LogConfig
from tidelog.log.leader_epochs import EpochEnd
from tidelog.log.partition_log import PartitionLog
from tidelog.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from tidelog.metadata.records import PartitionState
from tidelog.model.ids import TopicPartition
from tidelog.replication.partition import Partition
from tidelog.replication.replica import (
    CutTo,
    Diverged,
    FetchFrom,
    FollowerFetched,
    LeftBehind,
    LogAppended,
    Role,
)
from tidelog.replication.waiters import Mark
from tidelog.simulation.disk import SimDisk
from tidelog.wire.errors import (
    ApiError,
    ErrorCode,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    StorageError,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)

KEY = TopicPartition("t", 0)


def test_only_partitions_with_a_replica_here_are_opened_each_in_its_role() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4), led_by(2, 5), led_by(2, 6, replicas=(2, 3)), led_by(-1, 7))
        assert sorted(node.host.disk.list("/data"))[-3:] == ["t-0", "t-1", "t-3"]
        roles = [(p.index, p.replica.role, p.leader_epoch) for p in node.partitions]
        assert roles == [(0, Role.LEADER, 4), (1, Role.FOLLOWER, 5), (3, Role.OFFLINE, 7)]
        with pytest.raises(NotLeaderOrFollower):
            node.partitions.leader("t", 2)
        with pytest.raises(UnknownTopicOrPartition):
            node.partitions.leader("t", 4)
        assert node.peer_work == [FetchFrom(2, 5)]

    run(scenario)


def test_a_partition_is_led_in_the_epoch_that_the_client_names_or_not_at_all() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4), led_by(2, 5))
        leader = node.partitions.leader
        assert leader("t", 0) is leader("t", 0, -1) is leader("t", 0, 4) is node[0]
        with pytest.raises(FencedLeaderEpoch):
            leader("t", 0, 3)
        with pytest.raises(UnknownLeaderEpoch):
            leader("t", 0, 5)
        with pytest.raises(FencedLeaderEpoch):
            leader("t", 1, 4)
        for epoch in (-1, 5):
            with pytest.raises(NotLeaderOrFollower):
                leader("t", 1, epoch)
        node[0].log.fail("the test says so")
        with pytest.raises(StorageError, match="the test says so"):
            leader("t", 0, 3)

    run(scenario)


def test_a_leader_notices_that_its_epoch_began_before_the_last_change_of_the_partition() -> None:
    async def scenario(node: Node) -> None:
        def joins_after_ms() -> int:
            isr = node[0].replica.isr
            assert isr is not None
            return isr.joins_after_ms

        await node.apply(led_by(2, 5))
        await node.apply(led_by(1, 6, partition_epoch=1))
        assert joins_after_ms() == -1, "the leader epoch began with this change"
        await node.apply(led_by(2, 7, partition_epoch=2))
        await node.apply(led_by(1, 8, partition_epoch=4))
        assert joins_after_ms() == node[0].monotonic_ms(), "it may have changed again"
        await node.stop()
        await node.start()
        await node.apply(led_by(1, 9, partition_epoch=5))
        assert joins_after_ms() >= 0, "nothing is known about the time before the start"

    run(scenario)


def test_a_follower_serves_no_client() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(2, 5))
        follower = node[0]
        assert not follower.appends_directly
        for refused in (
            lambda: append(follower, b"a"),
            lambda: follower.read(0, 100),
            lambda: follower.check_writable(0),
            follower.check_online,
        ):
            with pytest.raises(NotLeaderOrFollower):
                refused()

    run(scenario)


def test_roles_change_before_any_file_is_touched_and_whoever_waits_is_answered() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4))
        errors: list[ApiError | None] = []
        end = append(node[0], b"a")
        node[0].wait(Mark.LOCAL, end, errors.append)
        assert errors == [None], "acks=1 waits for the local mark"
        node[0].wait(Mark.COMMITTED, end, errors.append)
        applying = asyncio.ensure_future(node.apply(led_by(2, 5), led_by(1, 0, replicas=(1,))))
        await asyncio.sleep(0)
        assert not applying.done(), "the new partition is being opened"
        assert isinstance(errors[1], NotLeaderOrFollower)
        assert node[0].replica.role is Role.FOLLOWER
        await applying
        assert node[1].replica.is_alone

    run(scenario)


def test_a_new_epoch_of_the_same_leader_fails_those_who_wait_too() -> None:
    """Leadership that was lost and regained between two images: other records may be at their offsets."""

    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4))
        errors: list[ApiError | None] = []
        node[0].wait(Mark.COMMITTED, append(node[0], b"a"), errors.append)
        await node.apply(led_by(1, 6, partition_epoch=2))
        assert isinstance(errors[0], NotLeaderOrFollower)
        assert "leader epoch 4" in errors[0].message
        assert node[0].replica.epoch_start == 1
        append(node[0], b"b")
        assert node[0].log.epochs.entries() == [(4, 0), (6, 1)]

    run(scenario)


def test_a_change_of_one_isr_configures_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: Node) -> None:
        states = [led_by(1, 0) for _ in range(3)]
        await node.apply(*states)
        configured: list[int] = []
        monkeypatch.setattr(PartitionLog, "configure", lambda log, _: configured.append(log.topic_partition.partition))
        states[1] = PartitionState(1, 0, (1, 2), (1,), 1)
        await node.apply(*states)
        assert configured == []
        assert [p.replica.isr.committed for p in node.partitions if p.replica.isr] == [(1, 2), (1,), (1, 2)]

    run(scenario)


def test_a_new_isr_counts_with_the_min_insync_replicas_of_the_same_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """One image can contain both changes. A leader that is alone in the ISR must not commit with the old setting."""

    async def scenario(node: Node) -> None:
        def topic_config(image: MetadataImage, name: str) -> LogConfig:
            return LogConfig(min_insync_replicas=int(image.topics[name].config.get("min.insync.replicas", "1")))

        monkeypatch.setattr(node.partitions.reconciler, "_topic_config", topic_config)
        await node.apply(led_by(1, 0))
        append(node[0], b"a")
        node[0].step(FollowerFetched(0, 2, 3, 1))
        assert node[0].high_watermark == 1
        append(node[0], b"b")
        state = PartitionState(1, 0, (1, 2), (1,), 1)
        topic_before = node.image.topics["t"]
        changed = TopicImage("t", topic_before.topic_id, (state,), {"min.insync.replicas": "2"})
        new = with_topic(node.image, changed, node.image)
        node.partitions.reconciler.change_roles(node.image, new)
        assert node[0].high_watermark == 1, "the broker 2 may be elected without the record b"
        await node.partitions.reconciler.apply(node.image, new)
        assert node[0].high_watermark == 1
        assert node[0].config.min_insync_replicas == 2

    run(scenario)


def test_acks_all_waits_for_every_in_sync_replica_and_needs_enough_of_them() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 0))
        errors: list[ApiError | None] = []
        end = append(node[0], b"a", b"b")
        assert node[0].read(0, 100).size == 0, "consumers see what is committed"
        node[0].wait(Mark.COMMITTED, end, errors.append)
        node[0].step(FollowerFetched(0, 2, 3, 1))
        assert not errors
        node[0].step(FollowerFetched(0, 2, 3, 2))
        assert errors == [None]
        await node.apply(PartitionState(1, 0, (1, 2), (1,), 1))
        assert not node[0].appends_directly
        node[0].check_writable(1)
        with pytest.raises(ApiError) as refused:
            node[0].check_writable(-1)
        assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
        node[0].wait(Mark.COMMITTED, end, errors.append)
        assert errors[1] is not None
        assert errors[1].code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    run(scenario, min_insync_replicas=2)


def test_a_replica_that_moves_to_other_brokers_is_removed_here() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 0), led_by(1, 0))
        append(node[0], b"a")
        await node.apply(led_by(2, 1, replicas=(2, 3)), led_by(1, 0))
        assert [p.index for p in node.partitions] == [1]
        assert "t-0" not in node.host.disk.list("/data")
        assert "t-1" in node.host.disk.list("/data")
        await node.apply(led_by(2, 1, replicas=(2, 3, 1)), led_by(1, 0))
        assert node[0].log_end_offset == 0
        assert node[0].replica.role is Role.FOLLOWER

    run(scenario)


def test_the_high_watermark_of_the_checkpoint_is_where_a_follower_begins() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 0))
        append(node[0], b"a", b"b", b"c")
        node[0].step(FollowerFetched(0, 2, 3, 2))
        assert node[0].high_watermark == 2
        await node.stop()
        assert read_offsets(node.host.disk, f"/data/{HIGH_WATERMARKS}") == {KEY: 2}
        await node.start()
        await node.apply(led_by(2, 1))
        assert (node[0].high_watermark, node[0].log_end_offset) == (2, 3)
        await node.stop()
        await node.start()
        await node.apply(led_by(1, 2, replicas=(1,)))
        assert node[0].high_watermark == 3, "alone, its end is committed"

    run(scenario)


async def diverging(node: Node) -> Partition:
    """A follower with records 0 to 7 of epoch 4, of which its new leader has 0 to 4."""
    await node.apply(led_by(1, 4, replicas=(1,)))
    for number in range(8):
        append(node[0], b"%d" % number)
    await asyncio.sleep(1)
    await node.apply(led_by(2, 5, replicas=(1, 2), partition_epoch=1))
    return node[0]


def test_a_follower_is_cut_where_it_leaves_its_leader(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: Node) -> None:
        follower = await diverging(node)
        node.peer_work.clear()
        follower.step(Diverged(5, EpochEnd(4, 5), follower.log.epochs.end_offset_for(4, follower.log.log_end_offset)))
        assert follower.frozen or follower.log_end_offset == 8
        await asyncio.sleep(1)
        assert (follower.log_end_offset, follower.replica.end_offset, follower.high_watermark) == (5, 5, 5)
        assert read_records(follower.log) == [(n, b"%d" % n) for n in range(5)]
        assert node.peer_work == [FetchFrom(2, 5)]
        assert "committed records truncated partition=t-0 from=8 to=5 high_watermark=8" in caplog.text
        assert not follower.frozen
        await node.stop()
        await node.start()
        await node.apply(led_by(2, 5))
        assert node[0].log_end_offset == 5

    run(scenario)


def test_a_power_cut_at_any_step_of_a_cut_loses_nothing_below_it() -> None:
    """The checkpoints are lowered before the first file changes, so the start does not miss what the cut removed."""
    steps = 0

    async def scenario(node: Node) -> None:
        nonlocal steps
        follower = await diverging(node)
        operations: list[str] = []

        survivors: list[SimDisk] = []

        def operation(name: str, path: str) -> None:
            operations.append(f"{name} {path}")
            if len(operations) == steps:
                survivors.append(node.host.disk.power_cut(random.Random(steps)))

        disk = node.host.disk
        disk.on_operation = operation
        follower.step(Diverged(5, EpochEnd(4, 5), follower.log.epochs.end_offset_for(4, follower.log.log_end_offset)))
        await asyncio.sleep(1)
        disk.on_operation = None
        node.host.kill()
        node.host.insert(survivors[0] if survivors else disk.power_cut(random.Random(1)))
        node.image = EMPTY_IMAGE
        await node.start()
        await node.apply(led_by(2, 6))
        assert node[0].log.failure is None
        end = node[0].log_end_offset
        assert 5 <= end <= 8
        assert read_records(node[0].log) == [(n, b"%d" % n) for n in range(end)]
        assert not node.partitions.unopened
        if not survivors:
            assert end == 5
            steps = -1

    while steps >= 0:
        steps += 1
        run(scenario, segment_bytes=150)
        assert steps < 200


def test_a_promotion_waits_for_the_end_of_the_cut() -> None:
    async def scenario(node: Node) -> None:
        follower = await diverging(node)
        follower.step(Diverged(5, EpochEnd(4, 5), follower.log.epochs.end_offset_for(4, follower.log.log_end_offset)))
        await node.apply(led_by(1, 6, replicas=(1,), partition_epoch=2))
        if not follower.replica.leads:
            with pytest.raises(NotLeaderOrFollower):
                append(follower, b"x")
        await asyncio.sleep(1)
        assert follower.replica.leads
        assert follower.replica.epoch_start == 5
        assert append(follower, b"x") == 6
        assert follower.log.epochs.entries() == [(4, 0), (6, 5)]

    run(scenario)


def fill(node: Node) -> None:
    """Leave no space on the disk."""
    node.host.disk.limit_space(node.host.disk.medium.used_bytes())


def cut(follower: Partition) -> None:
    """Let the follower find out where it differs from its leader."""
    follower.step(Diverged(5, EpochEnd(4, 5), follower.log.epochs.end_offset_for(4, follower.log.log_end_offset)))


RETAINED = {"segment_bytes": 150, "retention_bytes": 300, "file_delete_delay_ms": 1000}
"""Retention may remove the first segments of the follower, which are below the cut."""


@pytest.mark.parametrize("empties", [False, True])
def test_retention_frees_the_space_for_which_a_cut_of_the_same_log_waits(
    empties: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(node: Node) -> None:
        follower = await diverging(node)
        fill(node)
        if empties:
            follower.step(LeftBehind(5, 50))
        else:
            cut(follower)
        for _ in range(40):
            await asyncio.sleep(0.1)
            assert (follower.log_end_offset, follower.frozen) == (8, False)
        assert caplog.text.count("truncation put off partition=t-0 reason=[Errno 28]") == 1
        await node.partitions.enforce_retention()
        assert follower.log_start_offset == 2
        await asyncio.sleep(2)
        assert (follower.log_start_offset, follower.log_end_offset) == (2, 8), "the files still exist"
        await node.partitions.enforce_retention()
        await asyncio.sleep(2)
        assert (follower.log_start_offset, follower.log_end_offset) == ((50, 50) if empties else (2, 5))
        assert not follower.frozen
        await asyncio.sleep(2)
        recovery_points = read_offsets(node.host.disk, f"/data/{RECOVERY_POINTS}") or {}
        assert recovery_points[KEY] <= follower.log_end_offset
        assert read_offsets(node.host.disk, f"/data/{LOG_START_OFFSETS}") == {KEY: follower.log_start_offset}
        assert caplog.text.count("truncation put off") == 1
        await node.stop()
        await node.start()
        await node.apply(led_by(2, 5))
        assert (node[0].log_start_offset, node[0].log_end_offset) == ((50, 50) if empties else (2, 5))

    run(scenario, **RETAINED)


@pytest.mark.parametrize("empties", [False, True])
def test_a_disk_that_is_full_while_the_files_are_cut_does_not_fail_the_log(
    empties: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(node: Node) -> None:
        follower = await diverging(node)
        # A follower of two epochs, so that the cut changes the epochs, too.
        follower.append_as_follower(memoryview(make_batch(b"8", base_offset=8, leader_epoch=5)), 5)
        disk = node.host.disk
        files = ["/data/t-0/leader-epoch-checkpoint*", *([f"/data/t-0/{50:020d}*"] if empties else [])]
        for file in files:
            disk.fail("create", file, errno.ENOSPC, times=3)
        if empties:
            follower.step(LeftBehind(5, 50))
        else:
            cut(follower)
        await asyncio.sleep(0.5)
        assert follower.frozen
        other = asyncio.ensure_future(node.partitions.wait_for_file_work())
        await asyncio.sleep(0.1)
        assert other.done(), "other file work, which may free space, does not wait for the cut"
        await asyncio.sleep(3)
        assert follower.log.failure is None
        assert (follower.log_start_offset, follower.log_end_offset) == ((50, 50) if empties else (0, 5))
        assert caplog.text.count("truncation put off") == 1
        await node.stop()
        await node.start()
        await node.apply(led_by(2, 5))
        assert (node[0].log_start_offset, node[0].log_end_offset) == ((50, 50) if empties else (0, 5))

    run(scenario, segment_bytes=150)


def test_a_broker_that_stops_while_the_files_are_cut_on_a_full_disk_recovers_its_log() -> None:
    async def scenario(node: Node) -> None:
        follower = await diverging(node)
        follower.append_as_follower(memoryview(make_batch(b"8", base_offset=8, leader_epoch=5)), 5)
        node.host.disk.fail("create", "/data/t-0/leader-epoch-checkpoint*", errno.ENOSPC, times=1 << 30)
        cut(follower)
        await asyncio.sleep(1)
        await node.stop()
        assert follower.log.failure is not None
        node.host.disk.repair()
        await node.start()
        await node.apply(led_by(2, 6))
        assert not node.partitions.unopened
        end = node[0].log_end_offset
        assert 5 <= end <= 9
        assert read_records(node[0].log) == [(n, b"%d" % n) for n in range(end)]

    run(scenario, segment_bytes=150)


def test_a_broker_that_dies_while_a_cut_waits_for_space_has_its_whole_log() -> None:
    """Until the log is cut, the checkpoints on the disk fit to it, whatever retention has removed meanwhile."""

    async def scenario(node: Node) -> None:
        follower = await diverging(node)
        fill(node)
        cut(follower)
        await asyncio.sleep(2)
        await node.partitions.enforce_retention()
        await asyncio.sleep(0.5)
        node.host.kill()
        node.host.disk.limit_space(None)
        node.image = EMPTY_IMAGE
        await node.start()
        await node.apply(led_by(2, 6))
        assert not node.partitions.unopened
        assert (node[0].log_start_offset, node[0].log_end_offset) == (2, 8)

    run(scenario, **RETAINED)


def test_a_promotion_that_waits_for_space_is_reported_once_and_ends_when_there_is_space(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(node: Node) -> None:
        follower = await diverging(node)
        waiting: list[Partition] = []
        node.partitions.cuts.on_waiting_promotion = waiting.append
        fill(node)
        cut(follower)
        await asyncio.sleep(3)
        assert "no leader" not in caplog.text
        await node.apply(led_by(1, 6, partition_epoch=2))
        await asyncio.sleep(3)
        assert not follower.replica.leads
        assert follower.replica.leads_after_cut
        line = "no leader until the log is truncated partition=t-0 leader_epoch=6 reason=[Errno 28]"
        assert (caplog.text.count(line), caplog.text.count("truncation put off")) == (1, 1)
        assert set(waiting) == {follower}
        node.host.disk.limit_space(None)
        await asyncio.sleep(1)
        assert follower.replica.leads
        assert not follower.replica.leads_after_cut
        assert follower.replica.epoch_start == 5

    run(scenario)


def test_a_move_that_begins_while_a_cut_waits_for_space_begins_again_after_the_cut() -> None:
    """The copy could have the records that the cut removes."""

    async def scenario(node: Node) -> None:
        follower = await diverging(node)
        node.host.disk.fail("create", "/data/*", errno.ENOSPC, times=1 << 30)
        cut(follower)
        await asyncio.sleep(1)
        node.partitions.moves.bytes_per_second = lambda: 100
        node.partitions.moves.begin(follower, node.directories.online[1])
        await asyncio.sleep(1)
        [move] = node.partitions.moves
        assert (move.offset_lag, follower.log_end_offset) == (0, 8), "the copy has all records, and the move waits"
        node.host.disk.repair()
        await asyncio.sleep(30)
        assert follower.log_end_offset == 5
        assert follower.log.directory == "/other/t-0"
        assert read_records(follower.log) == [(n, b"%d" % n) for n in range(5)]

    run(scenario, directories=["/data", "/other"])


def test_the_clean_offset_is_lowered_before_a_cut() -> None:
    async def scenario(node: Node) -> None:
        follower = await diverging(node)
        told: list[tuple[Partition, int]] = []
        node.partitions.cuts.on_cut = lambda partition, offset: told.append((partition, offset))
        node.directories.write_cleaner_offsets({KEY: 7})
        node.partitions.cuts.begin(follower, CutTo(5, 5))
        await asyncio.sleep(1)
        assert told == [(follower, 5)]
        assert read_offsets(node.host.disk, f"/data/{CLEANER_OFFSETS}") == {KEY: 5}
        recovery_points = read_offsets(node.host.disk, f"/data/{RECOVERY_POINTS}")
        assert recovery_points is not None
        assert recovery_points[KEY] <= 5

    run(scenario)


def test_a_topic_that_is_deleted_during_a_cut() -> None:
    async def scenario(node: Node) -> None:
        follower = await diverging(node)
        follower.step(Diverged(5, EpochEnd(4, 5), follower.log.epochs.end_offset_for(4, follower.log.log_end_offset)))
        old, node.image = node.image, image(brokers=(1, 2, 3))
        await follow(node.partitions, old, node.image)
        await asyncio.sleep(1)
        assert len(node.partitions) == 0
        assert not [name for name in node.host.disk.list("/data") if name == "t-0"]
        await node.stop()

    run(scenario)


def test_a_follower_appends_what_its_leader_wrote() -> None:
    async def scenario(node: Node) -> None:
        await node.apply(led_by(2, 5))
        batch = make_batch(b"a", b"b", leader_epoch=5)
        end = node[0].log.append_as_follower(memoryview(batch))
        node[0].step(LogAppended(end, True))
        assert (node[0].replica.end_offset, node[0].high_watermark) == (2, 0)

    run(scenario)


def test_a_partition_that_is_offline_stays_offline_when_settings_change() -> None:
    """It would come back empty, and hide its records."""

    async def scenario(node: Node) -> None:
        await node.apply(led_by(1, 4, replicas=(1,)))
        append(node[0], b"x", b"y")
        await node.stop()
        intact = node.host.disk.read("/data/t-0/partition.metadata")
        node.host.disk.write_atomic("/data/t-0/partition.metadata", b"damaged")
        await node.start()
        await node.apply(led_by(1, 5, replicas=(1,)))
        assert list(node.partitions.unopened) == [("t", 0)]
        old, changed = node.image, node.image.topics["t"]
        node.image = with_topic(old, changed, old)
        node.image.broker_configs = {"": {"log.cleaner.threads": "1"}}
        await follow(node.partitions, old, node.image)
        await node.apply(led_by(1, 5, replicas=(1,)), led_by(1, 0, replicas=(1,)))  # a partition is added
        with pytest.raises(StorageError):
            node.partitions.get("t", 0)
        assert node[1].log_end_offset == 0
        await node.stop()
        node.host.disk.write_atomic("/data/t-0/partition.metadata", intact)
        await node.start()
        await node.apply(led_by(1, 6, replicas=(1,)))
        assert node[0].log_end_offset == 2

    run(scenario)
