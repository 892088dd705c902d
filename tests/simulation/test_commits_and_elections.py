"""Groups commit, delete and read offsets while the leaders of `__consumer_offsets` change again and again."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from process_harness import amount, note, seed_of
from replication_harness.brokers import TOPIC, Stage, run
from tidelog.client import groups
from tidelog.client.errors import GaveUp
from tidelog.coordinator.host import CoordinatorHost
from tidelog.coordinator.runtime import CoordinatorPartition
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.image import CONSUMER_OFFSETS
from tidelog.metadata.records import PartitionChanged
from tidelog.model.ids import TopicPartition
from tidelog.replication.partition import Partition
from tidelog.simulation.cluster_client import BACKOFF
from tidelog.wire.errors import ApiError, ErrorCode

SEEDS = amount(3, 20)
SECONDS = 20.0
GROUPS = 4
PARTITION = TopicPartition(TOPIC, 0)
SETTINGS = {"offsets.topic.num.partitions": "1", "offsets.commit.timeout.ms": "1000"}


class LostCommit(Exception):
    """A confirmed commit has no effect, or an older commit has an effect again."""


class History:
    """The commits of one group, in the order in which its only client sent them. None is a deletion."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.sent: list[int | None] = [None]
        self.known = 0
        """Number of the latest commit that must be in force, unless a later one is."""

    def found(self, offset: int | None) -> None:
        later = [number for number in range(self.known, len(self.sent)) if self.sent[number] == offset]
        if not later:
            raise LostCommit(f"{self.group}: {offset} is committed, known is {self.sent[self.known :]}")
        self.known = later[0]


class Life:
    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.rng = random.Random(seed)
        self.histories = [History(f"group-{number}") for number in range(GROUPS)]
        self.answers = 0

    async def use(self, history: History, until_s: float) -> None:
        client = self.stage.cluster.client(f"client-{history.group}")
        while self.stage.world.loop.time() < until_s:
            client.cluster.coordinators.clear()  # so that it asks a new coordinator as soon as there is one
            offset = None if self.rng.random() < 0.2 else len(history.sent)
            history.sent.append(offset)
            try:
                if offset is None:
                    deletion = groups.delete_offsets(client.cluster, BACKOFF, history.group, [PARTITION])
                    done = (await client.run(deletion, 5))[PARTITION] == 0
                else:
                    commit = groups.commit(client.cluster, BACKOFF, history.group, {PARTITION: offset})
                    done = (await client.run(commit, 5))[PARTITION] == offset
            except ApiError as error:
                if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                    raise
                done = True  # nothing is committed, so nothing is deleted
            except GaveUp:
                done = False
            if done:
                history.known = len(history.sent) - 1
                self.answers += 1
            if self.rng.random() < 0.5:
                await self.check(history, 5)
            await client.sleep(self.rng.choice((0.0, 0.02, 0.1)))

    async def check(self, history: History, seconds: float) -> bool:
        client = self.stage.cluster.client(f"reader-{history.group}")
        try:
            read = groups.committed_offsets(client.cluster, BACKOFF, [history.group])
            offsets = (await client.run(read, seconds))[history.group]
        except GaveUp:
            return False
        offset = offsets.get(PARTITION) if isinstance(offsets, dict) else ApiError("unknown")
        if isinstance(offset, Exception):
            return False
        history.found(offset)
        return True

    async def change_leaders(self, until_s: float) -> None:
        """Elect any member of the ISR; sometimes the old leader again, within one change of the metadata."""
        stage, rng = self.stage, self.rng
        while stage.world.loop.time() < until_s:
            await asyncio.sleep(rng.uniform(0.1, 0.6))
            topic = stage.image.topics[CONSUMER_OFFSETS]
            state = topic.partitions[0]
            others = [broker for broker in state.isr if broker != state.leader]
            kind = rng.random()
            if kind < 0.3 and others:
                isolated = stage.node(state.leader)
                for broker in others:
                    stage.world.network.partition(isolated.host.name, stage.node(broker).host.name)
                await asyncio.sleep(rng.uniform(0.05, 0.5))
            if others:
                leaders = [rng.choice(others)]
                if kind > 0.7:
                    leaders.append(state.leader)
                records = [PartitionChanged(topic.topic_id, 0, leader=leader) for leader in leaders]
                decision: JournalDecision[None] = JournalDecision([*records], None)
                await (await stage.controller())._commit(lambda _, decision=decision: decision, None)
            if rng.random() < 0.5:
                stage.world.network.heal()
        stage.world.network.heal()

    async def run(self) -> None:
        admin = self.stage.cluster.client("admin")
        await admin.run(groups.commit(admin.cluster, BACKOFF, "first", {PARTITION: 1}), 60)
        until_s = self.stage.world.loop.time() + SECONDS
        uses = [self.use(history, until_s) for history in self.histories]
        await asyncio.gather(self.change_leaders(until_s), *uses)
        for history in self.histories:
            assert await self.check(history, 60)
        for broker in [node.broker for node in self.stage.cluster.nodes]:
            assert broker is not None
            assert broker.services.partitions.offline_count == 0


def live(seed: int) -> int:
    """Run one life, and return the number of commits that were answered."""
    answers = 0

    async def scenario(stage: Stage) -> None:
        nonlocal answers
        life = Life(stage, seed)
        await life.run()
        answers = life.answers

    run(scenario, seed=seed, settings=SETTINGS)
    return answers


def test_no_commit_is_lost_and_none_comes_back() -> None:
    first = seed_of("commits and elections")
    answers = [live(seed) for seed in range(first, first + SEEDS)]
    note(f"commits and elections: {SEEDS} seeds, {sum(answers)} commits")
    assert min(answers) > 20


def keep_the_coordinator_of_an_older_epoch(patch: pytest.MonkeyPatch) -> None:
    serve = CoordinatorHost._serve

    def planted(host: CoordinatorHost[Any], partition: Partition) -> None:
        if host._is_closed or partition.index not in host._coordinators:
            serve(host, partition)

    patch.setattr(CoordinatorHost, "_serve", planted)
    append = Partition.append_batch
    patch.setattr(Partition, "append_batch", lambda partition, data, _epoch: append(partition, data))


def answer_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    is_committed = Partition.is_committed
    patch.setattr(Partition, "is_committed", lambda partition, end: partition.internal or is_committed(partition, end))


def answer_before_the_loaded_log_is_committed(patch: pytest.MonkeyPatch) -> None:
    answer = CoordinatorPartition._answer

    def planted(coordinator: CoordinatorPartition[Any], *arguments: Any) -> None:
        coordinator._load_end = 0
        answer(coordinator, *arguments)

    patch.setattr(CoordinatorPartition, "_answer", planted)


@pytest.fixture
def planted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    plant: Callable[[pytest.MonkeyPatch], None] = request.param
    plant(monkeypatch)
    return plant.__name__


@pytest.mark.parametrize(
    "planted",
    [keep_the_coordinator_of_an_older_epoch, answer_before_the_commit, answer_before_the_loaded_log_is_committed],
    indirect=True,
)
def test_a_planted_fault_is_found(planted: str) -> None:
    for seed in range(1, 21):
        try:
            live(seed)
        except (LostCommit, AssertionError):  # the second: a log went offline
            note(f"commits and elections: {planted} found by seed {seed}")
            return
    pytest.fail("20 seeds have not found it")
