"""A broker whose disk is busy with a change of the metadata still takes part in elections and in replication."""

import asyncio
import logging

import pytest

from process_harness import amount
from replication_harness.brokers import TOPIC, Stage, run
from simulation_harness.lives import check_lives
from tidelog.client.operations import Request
from tidelog.metadata.image import MetadataImage
from tidelog.replication.reconcile import Reconciler
from tidelog.simulation.cluster import SimNode
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

SEEDS = amount(6, 40)
MINUTES = amount(20, 60) / 60


class HeldFiles:
    """Holds the file work of one broker until `go_on`."""

    def __init__(self, node: SimNode) -> None:
        assert node.broker is not None
        self.is_held = False
        reconciler = node.broker.services.partitions.reconciler
        self._apply = reconciler._apply
        self._released = node.broker.runtime.tasks.future()
        reconciler._apply = self._hold  # type: ignore[method-assign]

    async def _hold(self, old: MetadataImage, new: MetadataImage) -> None:
        self.is_held = True
        await asyncio.shield(self._released)
        await self._apply(old, new)

    def go_on(self) -> None:
        self._released.set_result(None)


@pytest.mark.parametrize("leads_first", [1, 2])
def test_a_busy_broker_is_elected_and_replicates(leads_first: int) -> None:
    """The replicas are on two brokers. The leader dies, comes back, and joins the ISR of the busy broker."""

    async def scenario(stage: Stage) -> None:
        victim, busy = stage.node(leads_first), stage.node(3 - leads_first)
        await stage.elect(victim)
        assert (await stage.produce(b"before")).error_code == 0
        files = HeldFiles(busy)
        client = stage.cluster.client("admin")
        topic = CreatableTopic(name="more", num_partitions=3, replication_factor=3)
        creation = asyncio.ensure_future(
            client.ask(Request(stage.node(3).address, CreateTopicsRequest(topics=[topic], timeout_ms=10_000)))
        )
        await stage.until(lambda: files.is_held)
        victim.kill()
        await stage.until(lambda: stage.leads(busy))
        assert (await stage.produce(b"after", to=busy)).error_code == 0
        assert await leader_known_to(stage, busy) == busy.node_id
        await victim.start()
        await stage.until_isr(1, 2)
        await stage.until_equal(victim)
        assert stage.values(victim) == [b"before", b"after"]
        assert "more" not in busy.broker.services.metadata.image.topics  # type: ignore[union-attr]
        files.go_on()
        await creation
        await stage.until(lambda: "more" in busy.broker.services.metadata.image.topics)  # type: ignore[union-attr]

    run(scenario, replicas=(1, 2), settings={"controlled.shutdown.enable": "false"})


@pytest.mark.parametrize("profile", ["replicated", "varied"])
def test_every_promise_is_kept_while_file_work_is_slow(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part of the file work takes some seconds: elections, reassignments and new topics overtake it."""
    apply = Reconciler._apply

    async def apply_late(reconciler: Reconciler, old: MetadataImage, new: MetadataImage) -> None:
        runtime = reconciler._runtime
        if runtime.random.random() < 0.3:
            await runtime.tasks.sleep(runtime.random.uniform(0, 4))
        await apply(reconciler, old, new)

    monkeypatch.setattr(Reconciler, "_apply", apply_late)
    logging.disable(logging.CRITICAL)
    try:
        check_lives(profile, brokers=3, seeds=SEEDS, minutes=MINUTES, events=("elections",), every_fault=False)
    finally:
        logging.disable(logging.NOTSET)


async def leader_known_to(stage: Stage, node: SimNode) -> int:
    """Return the leader of the partition that the broker names in its answer to a client."""
    request = MetadataRequest([MetadataRequestTopic(name=TOPIC)])
    response = await stage.cluster.client("reader").ask(Request(node.address, request))
    assert isinstance(response, MetadataResponse)
    (topic,) = response.topics
    assert topic.error_code == ErrorCode.NONE
    return topic.partitions[0].leader_id
