"""A start that fails after its registration has acknowledged no record, so it costs no place in the ELR (KIP-966)."""

import asyncio
import errno
from collections.abc import Sequence
from contextvars import copy_context

import pytest

from replication_harness.brokers import Stage, run
from tidelog.broker.last_run import LAST_RUN
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.image import ELR_FEATURE
from tidelog.metadata.records import RECOVERED, FeatureLevelChanged
from tidelog.simulation.cluster import SimNode
from tidelog.simulation.medium import PowerCutOdds
from tidelog.simulation.tasks import ProcessGone

EVERYTHING_IS_LOST = PowerCutOdds(keep=0.0, torn=0.0, wrong_size=0.0)
VALUES = [b"%d" % number for number in range(20)]
ONE = {"min.insync.replicas": "2", "durability": "os"}
TWO = {**ONE, "log.dirs": "/data,/more"}


async def leave_all_records_on_one_broker(stage: Stage, *, is_stopped_cleanly: bool = False) -> SimNode:
    """Acknowledge VALUES on brokers 1 and 2, end broker 2 and cut the power of broker 1, the last known leader.

    Returns broker 2, which does not run. It is the only member of the ELR. Broker 1 runs, but has lost the records.
    """
    level = FeatureLevelChanged(ELR_FEATURE, 1)
    await (await stage.controller())._commit(lambda image: JournalDecision([level], None), None)
    for value in VALUES:
        assert (await stage.produce(value)).error_code == 0
    leader, (follower,) = stage.leader, stage.followers
    assert leader.node_id == 1
    if is_stopped_cleanly:
        await follower.stop()
    else:
        follower.kill()
    await stage.until(lambda: stage.state().elr == (2,))
    leader.cut_power(EVERYTHING_IS_LOST)
    await leader.start()
    await stage.until(lambda: stage.image.is_active(1))
    assert (stage.state().isr, stage.state().elr, stage.state().last_known_elr) == ((), (2,), (1,))
    return follower


async def check_that_nothing_is_lost(stage: Stage, returned: SimNode) -> None:
    await stage.until(lambda: stage.leads(returned) and stage.state().leader == returned.node_id)
    assert stage.state().recovery == RECOVERED, "the election was clean"
    assert stage.values(returned) == VALUES
    await stage.until_isr(1, 2)
    await stage.until_equal(*stage.followers)


async def fail_to_start(stage: Stage, node: SimNode, path: str) -> None:
    """Start a broker that cannot write `broker.run` into one of its directories, since the disk is full."""
    before = stage.image.brokers[node.node_id].epoch
    node.host.disk.fail("write", f"{path}/{LAST_RUN}*", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        await node.start()
    assert stage.image.brokers[node.node_id].epoch > before, "the start failed after its registration"


@pytest.mark.parametrize(
    ("settings", "failures"),
    [
        (ONE, ["/data"]),
        (ONE, ["/data", "/data"]),
        # The first start has written its epoch into one of the two directories.
        (TWO, ["/more"]),
        (TWO, ["/data", "/more", "/more"]),
    ],
    ids=["once", "twice", "second directory", "both directories"],
)
def test_a_full_disk_costs_no_place(settings: dict[str, str], failures: Sequence[str]) -> None:
    async def scenario(stage: Stage) -> None:
        node = await leave_all_records_on_one_broker(stage)
        for path in failures:
            await fail_to_start(stage, node, path)
            node.kill()
        await node.start()
        await check_that_nothing_is_lost(stage, node)

    run(scenario, settings=settings, replicas=(1, 2))


def test_a_kill_before_the_epoch_is_written_costs_no_place() -> None:
    async def scenario(stage: Stage) -> None:
        node = await leave_all_records_on_one_broker(stage)

        loop, context = asyncio.get_running_loop(), copy_context()

        def kill_before_the_write(operation: str, path: str) -> None:
            if (operation, path) == ("create", f"/data/{LAST_RUN}.tmp"):
                loop.call_soon(node.kill, context=context)

        node.host.disk.fail("write", f"/data/{LAST_RUN}*", errno.ENOSPC)
        node.host.disk.on_operation = kill_before_the_write
        before = stage.image.brokers[2].epoch
        with pytest.raises(ProcessGone):
            await node.start()
        assert not node.running
        assert stage.image.brokers[2].epoch > before
        await node.start()
        await check_that_nothing_is_lost(stage, node)

    run(scenario, settings=ONE, replicas=(1, 2))


def test_a_failed_start_after_a_clean_stop_costs_no_place_even_if_the_power_is_cut() -> None:
    """The directories do not say any more that the stop was clean, but the registration of the failed start does."""

    async def scenario(stage: Stage) -> None:
        node = await leave_all_records_on_one_broker(stage, is_stopped_cleanly=True)
        await fail_to_start(stage, node, "/data")
        node.cut_power(EVERYTHING_IS_LOST)
        await node.start()
        await check_that_nothing_is_lost(stage, node)

    run(scenario, settings=ONE, replicas=(1, 2))


def test_a_power_cut_after_a_failed_start_costs_the_place() -> None:
    """The failed start does not hide that records may be lost."""

    async def scenario(stage: Stage) -> None:
        node = await leave_all_records_on_one_broker(stage)
        await fail_to_start(stage, node, "/data")
        node.cut_power(EVERYTHING_IS_LOST)
        await node.start()
        await stage.until(lambda: stage.state().leader == 1)
        assert stage.state().elr == ()

    run(scenario, settings=ONE, replicas=(1, 2))
