"""A follower and its leader through random histories of epochs, cuts, faults and repeated answers.

At every moment the logs match: where both have a record of the same epoch at the same offset, everything before it is
the same (Raft's log matching property). Once the faults have ended, the follower gets the leader's log.
"""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from follower_harness import TOPIC_ID, FollowerScene, LeaderLog
from log_harness import make_batch
from scripted_harness import Asked
from tidelog.simulation.world import simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.message import Message
from tidelog.wire.messages.fetch import FetchPartition, FetchResponse, PartitionData

PARTITIONS = 2
STEPS = 40
RECOVERY_S = 20.0
CODES = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.UNKNOWN_TOPIC_ID,
)


class History:
    """One random history. Every step is drawn from the seed."""

    def __init__(self, scene: FollowerScene, rng: random.Random) -> None:
        self.scene = scene
        self.rng = rng
        self.count = 0
        self.steps = [
            *3 * [self.append],
            self.new_epoch,
            self.leader_loses_records,
            self.follower_leads,
            self.delete_records,
            self.cut_connections,
            self.reset_connections,
            self.block_network,
            self.toggle_error,
            self.forget_sessions,
            self.toggle_sessions,
            self.late_follow,
            *3 * [self.wait],
        ]
        self.bad_answers = 0.0
        scene.leader.intercept = self.answer_late
        self._answer_partition = scene.leader.answer_partition
        scene.leader.answer_partition = self.answer_badly  # type: ignore[method-assign]

    async def run(self) -> None:
        scene = self.scene
        await scene.start()
        for index in range(PARTITIONS):
            scene.follow(index)
        self.bad_answers = self.rng.choice((0.0, 0.1, 0.3))
        for _ in range(STEPS):
            await self.rng.choice(self.steps)()
            self.check()
        self.end_faults()
        for index in range(PARTITIONS):
            await scene.until(lambda index=index: self.has_caught_up(index), RECOVERY_S)  # type: ignore[misc]
        self.check()
        await scene.fetcher.stop()

    def end_faults(self) -> None:
        scene = self.scene
        self.bad_answers = 0.0
        scene.leader.errors.clear()
        scene.world.network.heal()
        for index in range(PARTITIONS):
            scene.follow(index)

    # Steps

    def value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def index(self) -> int:
        return self.rng.randrange(PARTITIONS)

    async def append(self) -> None:
        log = self.scene.leader.logs[self.index()]
        for _ in range(self.rng.choice((1, 1, 5))):
            log.append(*(self.value() for _ in range(self.rng.choice((1, 2, 3)))))
        log.high_watermark = self.rng.randint(0, log.end)

    async def new_epoch(self) -> None:
        index = self.index()
        log = self.scene.leader.logs[index]
        log.begin_epoch(log.epoch + 1)
        await self.maybe_follow(index)

    async def leader_loses_records(self) -> None:
        index = self.index()
        log = self.scene.leader.logs[index]
        log.cut(self.rng.randint(log.start, log.end))
        log.start = min(log.start, log.end)
        log.high_watermark = min(log.high_watermark, log.end)
        log.begin_epoch(log.epoch + 1)
        await self.maybe_follow(index)

    async def follower_leads(self) -> None:
        """The follower is the leader for an epoch, and writes records that the later leader does not have."""
        index = self.index()
        log, replica = self.scene.leader.logs[index], self.scene.replicas[index]
        self.scene.unfollow(index)
        epoch = log.epoch + 1
        replica.on.log.epochs.assign(epoch, replica.log_end_offset)
        for _ in range(self.rng.choice((0, 1, 3))):
            batch = make_batch(self.value(), base_offset=replica.log_end_offset, leader_epoch=epoch)
            replica.on.log.append_as_follower(memoryview(batch))
        await self.wait()
        log.begin_epoch(epoch + 1)
        self.scene.follow(index)

    async def maybe_follow(self, index: int) -> None:
        if self.rng.random() < 0.8:
            await self.wait()
            self.scene.follow(index)

    async def late_follow(self) -> None:
        self.scene.follow(self.index())

    async def delete_records(self) -> None:
        log = self.scene.leader.logs[self.index()]
        log.delete_before(self.rng.randint(log.start, log.end))

    async def cut_connections(self) -> None:
        self.scene.leader.broker.cut()

    async def reset_connections(self) -> None:
        self.scene.world.network.reset_connections("leader", "follower")

    async def block_network(self) -> None:
        network = self.scene.world.network
        if self.rng.random() < 0.5:
            network.partition("leader", "follower")
        else:
            network.partition_one_way(*self.rng.sample(["leader", "follower"], 2))
        await self.wait()
        network.heal()

    async def toggle_error(self) -> None:
        index, errors = self.index(), self.scene.leader.errors
        if errors.pop(index, None) is None:
            errors[index] = self.rng.choice(CODES)

    async def forget_sessions(self) -> None:
        self.scene.leader.forget_sessions()

    async def toggle_sessions(self) -> None:
        self.scene.leader.gives_sessions ^= True

    async def wait(self) -> None:
        await self.scene.runtime.tasks.sleep(self.rng.choice((0.001, 0.01, 0.1, 1.0)))

    # Answers

    def answer_late(self, asked: Asked) -> Message | None:
        """Sometimes end the session, lose the connection after the request, or answer an error."""
        if self.rng.random() < self.bad_answers / 3:
            kind = self.rng.randrange(3)
            if kind == 0:
                asked.connection.stream.abort()
            elif kind == 1 and type(asked.request).__name__ == "FetchRequest":
                return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        return None

    def answer_badly(self, index: int, item: FetchPartition) -> PartitionData:
        """Sometimes repeat records that the follower has, damage the records, or cut the last batch off."""
        data = self._answer_partition(index, item)
        if not data.records or self.rng.random() >= self.bad_answers:
            return data
        records: Any = data.records
        kind = self.rng.randrange(3)
        if kind == 0:
            data.records = self.scene.leader.logs[index].from_offset(max(item.fetch_offset - 2, 0), 1 << 20)
        elif kind == 1:
            damaged = bytearray(records)
            first_size = 12 + int.from_bytes(records[8:12], "big")
            # Base offset and leader epoch are before the part that the checksum covers, as in Kafka.
            damaged[self.rng.randrange(16, min(first_size, len(damaged)))] ^= 1 << self.rng.randrange(8)
            data.records = bytes(damaged)
        else:
            data.records = records[: self.rng.randrange(1, len(records) + 1)]
        return data

    # Checks

    def check(self) -> None:
        for replica, log in zip(self.scene.replicas, self.scene.leader.logs, strict=True):
            assert not replica.ended or replica.ended[-1].code == ErrorCode.FENCED_LEADER_EPOCH
            assert replica.high_watermark <= replica.log_end_offset or replica.leader_epoch is None
            start = max(replica.log_start_offset, log.start)
            own = {entry[0]: entry for entry in replica.entries() if entry[0] >= start}
            theirs = {entry[0]: entry for entry in log.entries() if entry[0] >= start}
            matches = [offset for offset in own if offset in theirs and own[offset][1] == theirs[offset][1]]
            for offset in range(start, max(matches, default=start - 1) + 1):
                assert own[offset] == theirs[offset], f"the logs of partition {replica.index} differ at {offset}"

    def has_caught_up(self, index: int) -> bool:
        replica, log = self.scene.replicas[index], self.scene.leader.logs[index]
        if replica.log_end_offset != log.end or replica.log_start_offset > log.end:
            return False
        start = max(replica.log_start_offset, log.start)
        return [entry for entry in replica.entries() if entry[0] >= start] == [
            entry for entry in log.entries() if entry[0] >= start
        ]


@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 30), must_sync=st.booleans())
def test_a_follower_gets_its_leaders_log(seed: int, must_sync: bool) -> None:
    with simulated(seed) as world:
        scene = FollowerScene(world, PARTITIONS, must_sync=must_sync)
        world.run(History(scene, world.rng("history")).run())


def test_a_leader_log_ends_its_epochs_as_kafka_does() -> None:
    log = LeaderLog()
    log.append(b"a", b"b", epoch=1)
    log.append(b"c", epoch=3)
    assert [log.end_offset_for(epoch) for epoch in (0, 1, 2, 3, 4)] == [(0, 0), (1, 2), (1, 2), (3, 3), (3, 3)]
    assert len(TOPIC_ID) == 16
