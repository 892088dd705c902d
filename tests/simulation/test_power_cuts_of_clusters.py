"""All brokers of a cluster lose power: what they have synced decides which of them stay eligible (KIP-966)."""

import asyncio

from replication_harness.brokers import Stage, run
from tidelog.broker.last_run import read_last_run
from tidelog.metadata.alterations import Alteration, Change, Operation
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.image import ELR_FEATURE, NO_LEADER
from tidelog.metadata.link import AlterConfigs
from tidelog.metadata.records import FeatureLevelChanged
from tidelog.simulation.cluster import LEASE_MS, SimNode
from tidelog.wire.errors import ErrorCode

SYNCED = {"durability": "fsync", "min.insync.replicas": "2"}
TOPIC_RESOURCE = 2


def has_mark(node: SimNode) -> bool:
    return read_last_run(node.host.disk, ["/data"], node.host.disk.boot_id).is_synced


async def until_marked(stage: Stage) -> None:
    await stage.until(lambda: all(has_mark(node) for node in stage.cluster.nodes))


async def cut_power_of_all(stage: Stage) -> list[SimNode]:
    """Cut the power of all brokers, and start all but the last leader again. Returns those that run."""
    leader = stage.leader
    for node in stage.cluster.nodes:
        node.cut_power()
    others = [node for node in stage.cluster.nodes if node is not leader]
    await asyncio.gather(*(node.start() for node in others))
    return others


async def use_elr(stage: Stage) -> None:
    level = FeatureLevelChanged(ELR_FEATURE, 1)
    await (await stage.controller())._commit(lambda image: JournalDecision([level], None), None)


def test_synced_brokers_stay_eligible_after_a_power_cut_of_all() -> None:
    async def scenario(stage: Stage) -> None:
        await use_elr(stage)
        await until_marked(stage)
        for number in range(20):
            assert (await stage.produce(b"%d" % number)).error_code == 0
        for _ in range(2):
            others = await cut_power_of_all(stage)
            # The last known leader is not needed: the two others are in the ISR or the ELR.
            await stage.until(lambda others=others: stage.state().leader in {node.node_id for node in others})  # type: ignore[misc]
            assert stage.state().recovery == 0, "the election was clean"
            await stage.until(lambda: stage.leads(stage.leader))
            assert stage.values(stage.leader) == [b"%d" % number for number in range(20)]
            await stage.until_isr(*(node.node_id for node in others))
            await stage.cluster.start()
            await stage.until_isr(1, 2, 3)
            await until_marked(stage)

    run(scenario, settings=SYNCED)


def test_a_topic_that_is_not_synced_costs_every_broker_its_place() -> None:
    async def scenario(stage: Stage) -> None:
        await use_elr(stage)
        await until_marked(stage)
        change = Change("durability", Operation.SET, "interval")
        controller = stage.running.services.controller
        alter = AlterConfigs([Alteration(TOPIC_RESOURCE, "orders", [change])], 1)
        assert (await controller.alter_configs(alter)).error is ErrorCode.NONE
        await stage.until(lambda: not any(has_mark(node) for node in stage.cluster.nodes))
        await cut_power_of_all(stage)
        await asyncio.sleep(2 * LEASE_MS / 1000)
        assert stage.state().leader == NO_LEADER
        await stage.cluster.start()
        await stage.until_isr(1, 2, 3)

    run(scenario, settings=SYNCED)
