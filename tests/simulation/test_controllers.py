"""Lives of the metadata of several brokers: every answer is true, lives repeat, and planted faults are found."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from metadata_harness.shared import LEASE_MS
from process_harness import amount, note, seed_of
from simulation_harness.controller_life import run_life
from tidelog.client.operations import Request
from tidelog.metadata.leadership import HeldLease, SentEntry
from tidelog.metadata.local_controller import LocalController
from tidelog.metadata.store import LeaseLost, StoreUnavailable
from tidelog.simulation.cluster import SimCluster, SimNode
from tidelog.simulation.world import World, simulated
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

SEEDS = amount(15, 150)
SEEDS_TO_FIND_A_FAULT = 20
FOUND_BY = re.compile(
    "AnswersAreTrue|NoLostChange|SameImage|OneControllerPerEpoch|Liveness|must not leave a gap|contradicts the entries"
)
"""The promises that the planted faults break."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("nodes", [2, 3])
def test_every_answer_is_true(nodes: int) -> None:
    first = seed_of(f"controllers, {nodes}")
    coverage: Counter[str] = Counter()
    for seed in range(first, first + SEEDS):
        outcome = run_life(seed, nodes=nodes, minutes=1)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        coverage.update(outcome.coverage)
    note(f"controllers, {nodes} nodes: {SEEDS} seeds, {dict(sorted(coverage.items()))}")
    assert coverage["claims"] > 3 * SEEDS
    for event in ("kill", "pause", "append without answer", "create: NONE", "validate: NONE", "delete: NONE"):
        assert coverage[event], f"{event} did not happen"


def test_a_seed_repeats() -> None:
    assert run_life(7, nodes=3, minutes=0.5) == run_life(7, nodes=3, minutes=0.5)


def go_on_after_the_lease(patch: pytest.MonkeyPatch) -> None:
    """Act as the controller until the store says that the lease is lost, and ignore the clock."""

    async def renew_until_lost(lease: HeldLease) -> None:
        while not lease.lost.done():
            await lease._tasks.sleep(1)
            try:
                await lease._store.renew(lease.lease, LEASE_MS)
            except LeaseLost as error:
                lease.lose(str(error))
            except StoreUnavailable:
                continue

    patch.setattr(HeldLease, "renew_until_lost", renew_until_lost)
    patch.setattr(HeldLease, "check", lambda lease: None)
    patch.setattr(LocalController, "is_active", property(lambda controller: controller._lease is not None))


def forget_to_read_back(patch: pytest.MonkeyPatch) -> None:
    """Answer a lost append as if it had changed nothing."""

    async def planted(lease: HeldLease, entry: SentEntry, data: bytes) -> None:
        raise StoreUnavailable("the answer is lost")

    patch.setattr(HeldLease, "_settle", planted)


def believe_that_a_lost_append_is_done(patch: pytest.MonkeyPatch) -> None:
    async def planted(lease: HeldLease, entry: SentEntry, data: bytes) -> None:
        return

    patch.setattr(HeldLease, "_settle", planted)


def answer_before_the_outcome_is_known(patch: pytest.MonkeyPatch) -> None:
    async def planted(controller: LocalController, pending: object) -> int:
        return 0

    patch.setattr(LocalController, "_wait_for_outcome", planted)


@pytest.mark.parametrize(
    "plant",
    [
        go_on_after_the_lease,
        forget_to_read_back,
        believe_that_a_lost_append_is_done,
        answer_before_the_outcome_is_known,
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(1, SEEDS_TO_FIND_A_FAULT + 1):
        outcome = run_life(seed, nodes=3, minutes=1)
        if outcome.failure is not None:
            assert FOUND_BY.search(outcome.failure), outcome.failure
            note(f"controllers: {plant.__name__} found by seed {seed}: {outcome.failure.splitlines()[0]}")
            return
    pytest.fail(f"{SEEDS_TO_FIND_A_FAULT} seeds have not found it")


def test_three_brokers_start_and_a_killed_controller_is_replaced() -> None:
    async def life(world: World) -> None:
        cluster = SimCluster(world, 3)
        await cluster.start()
        first = await controller_of(cluster)
        first.kill()
        second = await controller_of(cluster)
        assert second is not first
        await first.start()
        client = cluster.client("admin")
        for node in cluster.nodes:
            topic = CreatableTopic(name=f"by-{node.node_id}", num_partitions=3, replication_factor=1)
            request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
            response = await client.ask(Request(node.address, request))
            assert isinstance(response, CreateTopicsResponse), response
            assert response.topics[0].error_code == 0, response
            assert node.broker is not None
            assert topic.name in node.broker.services.metadata.image.topics
        await asyncio.sleep(1)
        for node in cluster.nodes:
            assert node.broker is not None
            image = node.broker.services.metadata.image
            assert (image.controller_id, list(image.brokers)) == (second.node_id, [1, 2, 3])
            assert list(image.topics) == ["by-1", "by-2", "by-3"]
            assert {state.leader for state in image.topics["by-1"].partitions} == {1, 2, 3}

    with simulated(3) as world:
        world.run(life(world))


async def controller_of(cluster: SimCluster) -> SimNode:
    """Wait until a broker is the controller, and return it."""
    while True:
        for node in cluster.nodes:
            controller = node.broker and node.broker.controller
            if controller is not None and controller.is_active:
                return node
        await asyncio.sleep(0.1)
