"""A coordinator partition on a real log and a simulated disk, for errors that fakes could hide."""

import asyncio
import errno
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from group_harness.memory import COMMIT_TIMEOUT_MS, LoopClock
from log_harness import DIRECTORY, LogOnDisk, leads_alone
from tidelog.coordinator.decision import Decision, Producer
from tidelog.coordinator.group.core import GroupCore
from tidelog.coordinator.group.records import OffsetRecord
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group_log import GroupLog
from tidelog.coordinator.runtime import CoordinatorPartition
from tidelog.replication.partition import Partition
from tidelog.runtime.tasks import LoopTasks
from tidelog.runtime.turns import Turns
from tidelog.simulation.loop import SimLoop
from tidelog.wire.errors import InvalidProducerEpoch, NotCoordinator
from tidelog.wire.messages.group_records import OffsetCommitValue
from tidelog.wire.records import Record, encode_batch


class OneFlush:
    """Flushes what was asked for when it is told to."""

    def __init__(self) -> None:
        self.asked: dict[Partition, None] = {}
        self.dirty: dict[Partition, None] = {}

    def request(self, partition: Partition) -> None:
        self.asked[partition] = None

    def flush(self) -> None:
        asked, self.asked = self.asked, {}
        for partition in asked:
            plan = partition.log.flush_plan()
            try:
                plan.run()
            except OSError as error:
                partition.log.fail(str(error))
            else:
                partition.log.flushed(plan)
            partition.flushed()


class RealStage:
    def __init__(self, **settings: Any) -> None:
        self.loop = SimLoop()
        self.disk = LogOnDisk(cleanup_policy="compact", **settings)
        self.answers: list[Any] = []
        self.open()

    def open(self) -> None:
        self.flusher = OneFlush()
        clock, tasks = LoopClock(self.loop), LoopTasks(self.loop)
        self.partition = Partition(
            "orders", bytes(16), 0, self.disk.log,
            replica=leads_alone(self.disk.log), internal=True, clock=clock, tasks=tasks, flusher=self.flusher,
        )  # fmt: skip
        self.led = CoordinatorPartition(
            self.partition,
            lambda: GroupCore(GroupSettings()),
            cast(Any, SimpleNamespace(clock=clock, tasks=tasks, turns=Turns(clock, tasks))),
            GroupLog(clock, tasks),
            COMMIT_TIMEOUT_MS,
        )
        self.loop.call_soon(self.led.load)
        self.run(0.01)

    def run(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def commit(self, offset: int, group: str = "g", metadata: str = "") -> None:
        decision = Decision()
        decision.records.append(OffsetRecord(group, "t", 0, OffsetCommitValue(offset=offset, metadata=metadata)))
        decision.reply(self.answers.append, offset)
        self.led.apply(decision)

    def committed(self, group: str = "g") -> int | None:
        durable = self.led.core.durable.by_id.get(group)
        value = durable.committed_offset("t", 0) if durable else None
        return value.offset if value else None


def test_commits_survive_a_killed_process() -> None:
    stage = RealStage(segment_bytes=4096)
    for number in range(300):
        stage.commit(number, f"group-{number % 20}")
    assert stage.answers == list(range(300))
    assert len([name for name in stage.disk.files() if name.endswith(".log")]) > 5
    stage.disk.kill()
    stage.open()
    assert [stage.committed(f"group-{number}") for number in range(20)] == list(range(280, 300))


def test_limits_on_clients_are_not_for_the_coordinators_own_batches() -> None:
    stage = RealStage(max_message_bytes=200, message_timestamp_type="LogAppendTime")
    stage.commit(1, metadata="x" * 500)
    assert stage.answers == [1]
    assert stage.led.is_loaded


def test_with_durability_fsync_answers_wait_for_the_disk() -> None:
    stage = RealStage(durability="fsync")
    stage.commit(1)
    assert stage.answers == []
    assert stage.committed() == 1
    stage.flusher.flush()
    assert stage.answers == [1]


def test_what_was_acknowledged_with_fsync_survives_a_power_cut() -> None:
    for seed in range(20):
        stage = RealStage(durability="fsync")
        number = 0
        flushes = random.Random(seed)
        for number in range(1, 30):
            stage.commit(number)
            if flushes.random() < 0.3:
                stage.flusher.flush()
        acknowledged = stage.answers[-1] if stage.answers else 0
        stage.disk.power_cut(seed)
        stage.open()
        assert acknowledged <= (stage.committed() or 0) <= number


def test_a_disk_that_cannot_sync_takes_the_coordinator_with_it() -> None:
    stage = RealStage(durability="fsync")
    stage.disk.disk.fail("sync", "*.log", errno.EIO)
    stage.commit(1)
    stage.flusher.flush()
    (answer,) = stage.answers
    assert isinstance(answer, NotCoordinator)
    with pytest.raises(NotCoordinator):
        _ = stage.led.core


def test_a_full_disk_refuses_commits_and_takes_them_again_when_there_is_space() -> None:
    stage = RealStage()
    stage.commit(1)
    stage.disk.disk.limit_space(1)
    stage.commit(2)
    assert isinstance(stage.answers[-1], NotCoordinator)
    stage.run(1)
    assert stage.committed() == 1, "reads go on"
    stage.disk.disk.limit_space(None)
    stage.commit(3)
    assert stage.answers[-1] == 3
    assert stage.committed() == 3


def test_a_damaged_log_names_the_file() -> None:
    stage = RealStage()
    stage.commit(1)
    stage.commit(2)
    segment = stage.disk.disk.open(f"{DIRECTORY}/{0:020d}.log")
    byte = segment.pread(1, 100)
    segment.pwrite(bytes([byte[0] ^ 1]), 100)
    stage.open()
    failure = str(stage.partition.log.failure)
    assert f"{DIRECTORY}/{0:020d}.log at 0:" in failure


def test_offsets_of_a_fenced_producer_are_refused_and_the_coordinator_continues() -> None:
    stage = RealStage()
    stage.commit(1)
    for epoch in (5, 4):
        record = OffsetRecord("g", "t", 0, OffsetCommitValue(offset=epoch))
        key, value = record.encode()
        decision = Decision()
        decision.records.append(record)
        decision.batch = encode_batch(
            [Record(key=key, value=value)], producer_id=7, producer_epoch=epoch, is_transactional=True
        )
        decision.producer = Producer(7, epoch)
        decision.reply(stage.answers.append, epoch)
        stage.led.apply(decision)
    assert stage.answers[:2] == [1, 5]
    assert isinstance(stage.answers[2], InvalidProducerEpoch)
    assert stage.led.is_loaded
    assert stage.committed() == 1
