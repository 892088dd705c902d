"""Random histories of offsets inside and outside of transactions: the live coordinator, and one that is loaded from its
log, agree with a model that knows only the order of the records.
"""

import asyncio
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_harness.memory import COMMIT_TIMEOUT_MS, LoopClock, MemoryPartition
from tidelog.coordinator.decision import Decision, LoadOrder, Producer
from tidelog.coordinator.group.core import GroupCore
from tidelog.coordinator.group.records import OffsetRecord
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group_log import GroupLog
from tidelog.coordinator.runtime import CoordinatorPartition
from tidelog.runtime.tasks import LoopTasks
from tidelog.runtime.turns import Turns
from tidelog.simulation.loop import SimLoop
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.messages.group_records import OffsetCommitValue
from tidelog.wire.records import Record, encode_batch

Key = tuple[str, str, int]
KEYS = st.sampled_from([("g", "t", 0), ("g", "t", 1), ("h", "t", 0)])
PRODUCERS = st.sampled_from([7, 8, 9])


class Plain(NamedTuple):
    """Offsets that count at once; None deletes one."""

    values: dict[Key, int | None]


class Transactional(NamedTuple):
    producer_id: int
    values: dict[Key, int]


class End(NamedTuple):
    producer_id: int
    is_commit: bool


NUMBERS = st.integers(0, 1000)
STEPS = st.one_of(
    st.builds(Plain, st.dictionaries(KEYS, st.one_of(st.none(), NUMBERS), min_size=1)),
    st.builds(Transactional, PRODUCERS, st.dictionaries(KEYS, NUMBERS, min_size=1)),
    st.builds(End, PRODUCERS, st.booleans()),
)


class Model:
    """The offset of a key is that of its last committed record. A deletion also drops the key from transactions."""

    def __init__(self) -> None:
        self.position = 0
        self.committed: dict[Key, tuple[int, int]] = {}
        self.open: dict[int, dict[Key, tuple[int, int]]] = {}

    def run(self, step: Plain | Transactional | End) -> None:
        if isinstance(step, Plain):
            for key, value in step.values.items():
                if value is None:
                    self.committed.pop(key, None)
                    for transaction in self.open.values():
                        transaction.pop(key, None)
                else:
                    self.committed[key] = self.position, value
                self.position += 1
        elif isinstance(step, Transactional):
            transaction = self.open.setdefault(step.producer_id, {})
            for key, value in step.values.items():
                transaction[key] = self.position, value
                self.position += 1
        else:
            for key, entry in self.open.pop(step.producer_id, {}).items():
                if step.is_commit and entry > self.committed.get(key, (-1, 0)):
                    self.committed[key] = entry
            self.position += 1

    def offsets(self) -> dict[Key, int]:
        return {key: value for key, (_, value) in self.committed.items()}

    def pending(self) -> dict[Key, None]:
        return {key: None for transaction in self.open.values() for key in transaction}


class InOrder(GroupCore):
    """The same core with the other order of a load. Its state must be the same."""

    load_order = LoadOrder.ALL_IN_ORDER


class World:
    def __init__(self) -> None:
        self.loop = SimLoop()
        self.partition = MemoryPartition("__consumer_offsets", 0)
        self.live = self.coordinator()

    def coordinator(self, core: type[GroupCore] = GroupCore) -> CoordinatorPartition[GroupCore]:
        """Return a coordinator that is loaded from the log."""
        clock, tasks = LoopClock(self.loop), LoopTasks(self.loop)
        coordinator: CoordinatorPartition[GroupCore] = CoordinatorPartition(
            self.partition,
            lambda: core(GroupSettings()),
            cast(Any, SimpleNamespace(clock=clock, tasks=tasks, turns=Turns(clock, tasks))),
            GroupLog(clock, tasks),
            COMMIT_TIMEOUT_MS,
        )
        self.loop.call_soon(coordinator.load)
        self.loop.run_until_complete(asyncio.sleep(0.01))
        assert coordinator.is_loaded
        return coordinator

    def run(self, step: Plain | Transactional | End) -> None:
        if isinstance(step, End):
            producer = Producer(step.producer_id, 0)
            marker = marker_batch(*producer, 0, is_commit=step.is_commit, timestamp=1)
            self.live.end_transaction(marker, producer, lambda answer: None, is_commit=step.is_commit)
            return
        decision = Decision()
        decision.records += [
            OffsetRecord(*key, None if value is None else OffsetCommitValue(offset=value))
            for key, value in step.values.items()
        ]
        if isinstance(step, Transactional):
            records = [Record(*record.encode(), 1) for record in decision.records]
            decision.producer = Producer(step.producer_id, 0)
            decision.batch = encode_batch(
                records, producer_id=step.producer_id, producer_epoch=0, is_transactional=True
            )
        self.live.apply(decision)


def state(coordinator: CoordinatorPartition[GroupCore]) -> tuple[dict[Key, int], dict[Key, None]]:
    durable = coordinator.core.durable
    offsets = {
        (group_id, topic, partition): value.offset
        for group_id, group in durable.by_id.items()
        for topic, partitions in group.offsets.items()
        for partition, value in partitions.items()
    }
    pending: dict[Key, None] = {}
    for group_id, group in durable.by_id.items():
        keys = durable.pending.of_group(group_id)
        assert group.offsets or keys, "a group without offsets exists"
        pending.update((tuple(key), None) for key in keys)
    return offsets, pending


@given(st.lists(STEPS, max_size=20))
def test_offsets_follow_the_order_of_their_records(steps: list[Plain | Transactional | End]) -> None:
    world, model = World(), Model()
    for step in steps:
        world.run(step)
        model.run(step)
        assert state(world.live) == (model.offsets(), model.pending())
    for core in GroupCore, InOrder:
        assert state(world.coordinator(core)) == (model.offsets(), model.pending())
    for producer_id in 7, 8, 9:  # what was pending in the loaded coordinator ends as it does in the live one
        world.run(End(producer_id, True))
        model.run(End(producer_id, True))
    assert state(world.live)[0] == model.offsets()
    for core in GroupCore, InOrder:
        assert state(world.coordinator(core))[0] == model.offsets()
    world.loop.close()


@pytest.mark.parametrize("core", [GroupCore, InOrder])
@given(st.lists(STEPS, max_size=12), st.lists(STEPS, max_size=12))
def test_a_loaded_coordinator_continues(core: type[GroupCore], first: list[Any], then: list[Any]) -> None:
    world, model = World(), Model()
    for step in first:
        world.run(step)
        model.run(step)
    world.live = world.coordinator(core)
    for step in then:
        world.run(step)
        model.run(step)
        assert state(world.live) == (model.offsets(), model.pending())
    world.loop.close()
