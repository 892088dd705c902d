"""What a start finds after a crash near the end of a move between data directories: two logs, or only the copy."""

import asyncio
import errno
import random
from typing import Any

import pytest

from replication_harness.lone_broker import PATHS, LoneBroker, append, records
from tidelog.log.future_logs import FINAL, TAKES_OVER
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.medium import PowerCutOdds
from tidelog.simulation.world import World, simulated

ONE = {"t": (1, 1)}
KEPT = PowerCutOdds(keep=1.0, torn=0.0, wrong_size=0.0)
FIVE = [(number, b"%d" % number) for number in range(5)]


def run(scenario: Any) -> None:
    async def whole(world: World) -> None:
        broker = LoneBroker(world.host("broker"))
        await broker.start(ONE)
        for number in range(5):
            append(broker.partition(), b"%d" % number)
        await asyncio.sleep(1)
        await scenario(broker)

    with simulated(1) as world:
        world.run(whole(world), virtual_s=3600)


async def killed_after(broker: LoneBroker, step: str) -> tuple[str, str, SimDisk]:
    """Move the partition. Return the source, the target, and the disk as a kill leaves it after this step: "copied"
    (the copy has the log's name) or "retired" (the old log has it no more).
    """
    source = broker.directory_of(broker.partition())
    target = next(p for p in PATHS if p != source)
    left: list[SimDisk] = []

    def note(done: str, where: str) -> None:
        if done == "rename" and (where.endswith("-future") if step == "copied" else where == f"{source}/t-0"):
            left.append(broker.disk.power_cut(random.Random(1), KEPT))

    broker.disk.on_operation = note
    broker.begin_move(broker.partition())
    while broker.partition() in broker.partitions.moves:
        await asyncio.sleep(0.01)
    broker.kill()
    [disk] = left
    return source, target, disk


def make_absent(broker: LoneBroker, path: str, how: str) -> None:
    """The data directory does not work, or an empty one is in its place because its disk is not mounted."""
    if how == "failed":
        broker.disk.fail("list", path, errno.EIO, times=1 << 30)
    else:
        broker.disk.rename(path, "/not mounted")


def make_present(broker: LoneBroker, path: str, how: str) -> None:
    broker.kill()
    if how == "not mounted":
        broker.disk.remove_tree(path)
        broker.disk.rename("/not mounted", path)


@pytest.mark.parametrize("how", ["failed", "not mounted"])
def test_a_copy_is_not_used_while_the_old_log_may_be_elsewhere(how: str) -> None:
    """Otherwise the records that are written to the copy would be lost when the old log is back and counts."""

    async def scenario(broker: LoneBroker) -> None:
        source, target, left = await killed_after(broker, "copied")
        assert left.exists(f"{source}/t-0")
        assert left.exists(f"{target}/t-0")
        broker.host.insert(left)
        make_absent(broker, source, how)
        await broker.start(ONE)
        [reason] = broker.partitions.unopened.values()
        assert f"{target}/t-0 is the copy of an interrupted move, and the log itself may be in {source}" in reason
        assert "remove the directory from log.dirs" in reason
        make_present(broker, source, how)
        await broker.start(ONE)
        assert broker.directory_of(broker.partition()) == source
        assert records(broker.partition()) == FIVE

    run(scenario)


def test_the_lost_directory_is_taken_out_of_the_settings() -> None:
    """The copy counts from then on, also if the old log is back later: such a start is refused."""

    async def scenario(broker: LoneBroker) -> None:
        source, target, left = await killed_after(broker, "copied")
        broker.paths = [target]
        await broker.start(ONE, left)
        assert records(broker.partition()) == FIVE
        append(broker.partition(), b"5")
        assert not broker.disk.exists(f"{target}/t-0/{TAKES_OVER}")
        broker.kill()
        broker.paths = PATHS
        with pytest.raises(Exception, match=f"partition t-0 lies in {PATHS[0]} and in {PATHS[1]}"):
            await broker.start(ONE)
        broker.kill()
        assert broker.disk.exists(f"{source}/t-0")

    run(scenario)


@pytest.mark.parametrize("mark", [b"", FINAL])
def test_a_copy_whose_old_log_is_retired_counts(mark: bytes) -> None:
    async def scenario(broker: LoneBroker) -> None:
        source, target, left = await killed_after(broker, "retired")
        assert left.exists(f"{target}/t-0/{TAKES_OVER}")
        left.write_atomic(f"{target}/t-0/{TAKES_OVER}", mark)
        await broker.start(ONE, left)
        assert broker.directory_of(broker.partition()) == target
        assert not broker.disk.exists(f"{target}/t-0/{TAKES_OVER}")
        append(broker.partition(), b"5")
        broker.kill()
        disk = broker.disk.power_cut(random.Random(2))  # the removal of the mark is durable
        assert not disk.exists(f"{target}/t-0/{TAKES_OVER}")
        assert source != target

    run(scenario)


@pytest.mark.parametrize("how", ["failed", "not mounted"])
def test_a_final_copy_counts_and_the_old_log_does_not_when_it_is_back(how: str) -> None:
    async def scenario(broker: LoneBroker) -> None:
        source, target, left = await killed_after(broker, "copied")
        left.write_atomic(f"{target}/t-0/{TAKES_OVER}", FINAL)
        broker.host.insert(left)
        make_absent(broker, source, how)
        await broker.start(ONE)
        append(broker.partition(), b"5")
        make_present(broker, source, how)
        await broker.start(ONE)
        assert broker.directory_of(broker.partition()) == target
        assert records(broker.partition()) == [*FIVE, (5, b"5")]
        assert not broker.disk.exists(f"{source}/t-0")
        assert not broker.disk.exists(f"{target}/t-0/{TAKES_OVER}")

    run(scenario)


def test_a_log_of_an_older_topic_does_not_replace_a_copy() -> None:
    """It remained in a directory that was away when its topic was deleted."""

    async def scenario(broker: LoneBroker) -> None:
        source, target, left = await killed_after(broker, "retired")
        other = left.read(f"{target}/t-0/partition.metadata").replace(b"AQ", b"Ag")
        left.make_dirs(f"{source}/t-0")
        left.write_atomic(f"{source}/t-0/partition.metadata", other)
        await broker.start(ONE, left)
        assert broker.directory_of(broker.partition()) == target
        assert records(broker.partition()) == FIVE

    run(scenario)


@pytest.mark.parametrize("mark", [b"", FINAL])
def test_what_remains_of_earlier_moves_does_not_prevent_a_start(mark: bytes) -> None:
    """A power cut has undone the removal of an earlier copy, or of an earlier log."""

    async def scenario(broker: LoneBroker) -> None:
        source, target, left = await killed_after(broker, "copied")
        left.write_atomic(f"{target}/t-0/{TAKES_OVER}", mark)
        for path in (f"{target}/t-0.{'0' * 32}-future", f"{source}/t-0.{'0' * 32}-delete"):
            left.make_dirs(path)
            left.write_atomic(f"{path}/x", b"")
        await broker.start(ONE, left)
        assert broker.directory_of(broker.partition()) == (target if mark else source)
        assert records(broker.partition()) == FIVE
        await asyncio.sleep(100)
        names = [name for path in PATHS for name in broker.disk.list(path) if name.startswith("t-0")]
        assert names == ["t-0"]

    run(scenario)


def test_a_full_disk_does_not_prevent_the_end_of_a_move() -> None:
    """The old log could not be renamed because its disk was full, and the disk is still full at the next start."""

    async def scenario(broker: LoneBroker) -> None:
        source, target, left = await killed_after(broker, "copied")
        left.write_atomic(f"{target}/t-0/{TAKES_OVER}", FINAL)
        broker.host.insert(left)
        broker.disk.fail("create", f"{source}/*.tmp", errno.ENOSPC, times=3)
        await broker.start(ONE)
        assert broker.directory_of(broker.partition()) == target
        assert records(broker.partition()) == FIVE

    run(scenario)
