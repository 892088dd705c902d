"""A follower's replicas with real logs on a simulated disk, and a leader whose logs and answers a test decides."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from log_harness import LogOnDisk, make_batch
from scripted_harness import Asked, ScriptedBroker
from tidelog.client.channel import Channel, ChannelConfig
from tidelog.client.cluster import Address
from tidelog.client.operations import EARLIEST, Backoff
from tidelog.log.leader_epochs import EpochEnd
from tidelog.replication.fetcher import Fetcher
from tidelog.replication.followed import FetchSettings, FollowedPartition
from tidelog.runtime.interfaces import Runtime
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.world import World
from tidelog.wire.errors import ApiError, ErrorCode, NotLeaderOrFollower, StorageError
from tidelog.wire.message import Message
from tidelog.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.wire.records import batches_in, decode_records

LEADER_ID, FOLLOWER_ID, FOLLOWER_EPOCH = 1, 2, 77
PORT = 9092
TOPIC, TOPIC_ID = "orders", b"orders--topic-id"
SETTINGS = FetchSettings(wait_max_ms=500, backoff_ms=300, timeout_ms=2_000)

LOOK_S = 0.02
"""Pause between two looks of a waiting request at the logs, in seconds."""

Entry = tuple[int, int, bytes]
"""Offset, leader epoch and value of a record."""


def entries_in(data: bytes | memoryview) -> list[Entry]:
    return [
        (record.offset, header.leader_epoch, record.value or b"")
        for header in batches_in(data)
        for record in decode_records(data, header.position)
    ]


class FollowerReplica:
    """A `FollowedPartition` with a real log. `leader_epoch` is its present epoch; None: it is no follower."""

    def __init__(self, runtime: Runtime, index: int = 0, *, must_sync: bool = False, **log_settings: Any) -> None:
        self.topic, self.topic_id, self.index = TOPIC, TOPIC_ID, index
        self.must_sync = must_sync
        self.is_frozen = False
        self.on = LogOnDisk(disk=SimDisk(rng=random.Random(index)), **log_settings)
        self.leader_epoch: int | None = None
        self.high_watermark = 0
        self.synced_end = self.on.log.log_end_offset
        self.cuts: list[int] = []
        self.ended: list[ApiError] = []
        self.refuse_append: ApiError | None = None
        self.cut_s = 0.01
        self._runtime = runtime

    @property
    def log_start_offset(self) -> int:
        return self.on.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.on.log.log_end_offset

    @property
    def latest_epoch(self) -> int:
        return self.on.log.epochs.latest

    async def wait_until_thawed(self) -> None:
        while self.is_frozen:
            await self._runtime.tasks.sleep(0.01)

    def append_as_follower(self, data: memoryview, leader_epoch: int) -> None:
        assert leader_epoch == self.leader_epoch, "the fetcher appended what an earlier leader had sent"
        if self.refuse_append is not None:
            raise self.refuse_append
        self.on.log.append_as_follower(data)

    def follow_log_start(self, offset: int) -> None:
        self.on.log.delete_before(min(offset, self.on.log.log_end_offset))

    def set_high_watermark(self, offset: int) -> None:
        self.high_watermark = min(offset, self.on.log.log_end_offset)

    async def remove_diverging(self, leader_end: EpochEnd, leader_epoch: int) -> None:
        """Cut the log by the rule of KIP-101 and KIP-279."""
        own = self.on.log.epochs.end_offset_for(leader_end.leader_epoch, self.on.log.log_end_offset)
        if own.leader_epoch == -1:
            offset = leader_end.end_offset
        elif own.leader_epoch == leader_end.leader_epoch:
            offset = min(own.end_offset, leader_end.end_offset)
        else:  # the epoch before it ends the common part, as far as this log can tell
            offset = own.end_offset
        offset = min(offset, self.log_end_offset)
        await self._change(leader_epoch, lambda: self.on.truncate_to(offset))
        self.cuts.append(offset)

    async def restart_at(self, offset: int, leader_epoch: int) -> None:
        await self._change(leader_epoch, lambda: self.on.log.restart_at(offset))

    async def _change(self, leader_epoch: int, change: Callable[[], None]) -> None:
        await self._runtime.tasks.sleep(self.cut_s)
        if leader_epoch != self.leader_epoch:
            raise NotLeaderOrFollower("it follows in another epoch now")
        change()
        self.synced_end = min(self.synced_end, self.on.log.log_end_offset)
        self.high_watermark = min(self.high_watermark, self.on.log.log_end_offset)

    def following_ended(self, error: ApiError, leader_epoch: int) -> None:
        self.ended.append(error)

    def entries(self) -> list[Entry]:
        log, entries, position = self.on.log, [], self.on.log.log_start_offset
        while position < log.log_end_offset:
            batches = log.read(position, 1 << 20, log.log_end_offset)
            part = entries_in(batches.file.pread(batches.size, batches.position))
            entries += [entry for entry in part if entry[0] >= position]
            position = part[-1][0] + 1
        return entries


class LeaderLog:
    """The leader's log of one partition: batches, and the epochs in which they were written."""

    def __init__(self) -> None:
        self.epoch = 0
        self.start = 0
        self.high_watermark = 0
        self.batches: list[bytes] = []
        self._first_offsets: list[int] = []
        self.epochs: list[tuple[int, int]] = []
        self.end = 0

    def append(self, *values: bytes, epoch: int | None = None) -> None:
        self.begin_epoch(self.epoch if epoch is None else epoch)
        self.batches.append(bytes(make_batch(*values, base_offset=self.end, leader_epoch=self.epoch)))
        self._first_offsets.append(self.end)
        self.end += len(values)

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if not self.epochs or self.epochs[-1][0] < epoch:
            self.epochs.append((epoch, self.end))

    def cut(self, offset: int) -> None:
        while self._first_offsets and (self._first_offsets[-1] >= offset or self.end > offset):
            self.end = self._first_offsets.pop()
            self.batches.pop()
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < self.end]

    def delete_before(self, offset: int) -> None:
        self.start = offset

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """Return the last epoch up to `epoch` and its end, as OffsetForLeaderEpoch does."""
        found = [known for known, _ in self.epochs if known <= epoch]
        later = [start for known, start in self.epochs if known > epoch]
        if not found:
            return (epoch, later[0]) if later else (-1, -1)
        return found[-1], later[0] if later else self.end

    def from_offset(self, offset: int, bytes_max: int) -> bytes:
        data = b""
        for batch in self.batches:
            if next(iter(batches_in(batch))).next_offset > offset and (not data or len(data) + len(batch) <= bytes_max):
                data += batch
        return data

    def entries(self) -> list[Entry]:
        return [entry for entry in entries_in(b"".join(self.batches)) if entry[0] >= self.start]


class ScriptedLeader:
    """Answers followers' fetches from `logs`, with sessions. A test may replace `answer_partition`, or answer a whole
    request by `intercept`.
    """

    def __init__(self, world: World, partitions: int = 1) -> None:
        self.world = world
        self.logs = [LeaderLog() for _ in range(partitions)]
        self.broker = ScriptedBroker(self._answer, [FetchRequest, ListOffsetsRequest])
        self.broker.in_order = True
        self.host = world.host("leader")
        self.fetches: list[FetchRequest] = []
        self.gives_sessions = True
        self.intercept: Callable[[Asked], Message | None] | None = None
        """Called first with each request; None: answer it as usual."""
        self.errors: dict[int, int] = {}
        """Error codes to answer, by partition."""
        self._sessions: dict[int, dict[int, FetchPartition]] = {}
        self._reported: dict[int, dict[int, tuple[int, int]]] = {}
        self._epochs: dict[int, int] = {}

    async def listen(self) -> None:
        await self.broker.listen(self.host.runtime, self.host.address, PORT)

    def forget_sessions(self) -> None:
        self._sessions.clear()

    def _answer(self, asked: Asked) -> Message | None:
        if self.intercept is not None:
            answer = self.intercept(asked)
            if answer is not None:
                return answer
        if isinstance(asked.request, ListOffsetsRequest):
            return self._offsets(asked.request)
        assert isinstance(asked.request, FetchRequest)
        self.fetches.append(asked.request)
        return self._fetch(asked, asked.request)

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        assert request.replica_id == FOLLOWER_ID
        response = ListOffsetsResponse()
        for topic in request.topics:
            parts = []
            for item in topic.partitions:
                log = self.logs[item.partition_index]
                code = self.errors.get(item.partition_index, 0) or self._epoch_error(log, item.current_leader_epoch)
                offset = log.start if item.timestamp == EARLIEST else log.end
                parts.append(ListOffsetsPartitionResponse(item.partition_index, code, -1, -1 if code else offset))
            response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return response

    def _fetch(self, asked: Asked, request: FetchRequest) -> FetchResponse | None:
        state = request.replica_state
        assert state is not None
        assert (state.replica_id, state.replica_epoch) == (FOLLOWER_ID, FOLLOWER_EPOCH)
        named = {item.partition: item for topic in request.topics for item in topic.partitions}
        is_full = request.session_epoch == 0
        if is_full:
            self._sessions.pop(request.session_id, None)
            session_id = max([100, *self._sessions]) + 1 if self.gives_sessions else 0
            session = self._sessions[session_id] = named
            self._reported[session_id] = {}
        else:
            session_id = request.session_id
            if session_id not in self._sessions:
                return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if request.session_epoch != self._epochs[session_id]:
                return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            session = self._sessions[session_id]
            session |= named
            for topic in request.forgotten_topics_data:
                for index in topic.partitions:
                    session.pop(index, None)
        self._epochs[session_id] = request.session_epoch + 1
        if is_full:
            return self._response(session_id, session, is_full=True)
        self._answer_later(asked, session_id, self.world.loop.time() + request.max_wait_ms / 1000)
        return None

    def _answer_later(self, asked: Asked, session_id: int, end_s: float) -> None:
        """Answer as soon as there is something new, or when the time is over."""
        if not asked.connection.open:
            return
        session = self._sessions.get(session_id)
        if session is None:
            asked.connection.stream.abort()
            return
        is_over = self.world.loop.time() >= end_s
        if is_over or any(_is_news(self.answer_partition(index, item)) for index, item in session.items()):
            asked.answer(self._response(session_id, session, is_full=False))
        else:
            self.world.loop.call_later(LOOK_S, self._answer_later, asked, session_id, end_s)

    def _response(self, session_id: int, session: dict[int, FetchPartition], *, is_full: bool) -> FetchResponse:
        reported = self._reported[session_id]
        parts = []
        for index, item in session.items():
            data = self.answer_partition(index, item)
            state = (data.high_watermark, data.log_start_offset)
            if is_full or _is_news(data) or reported.get(index) != state:
                reported[index] = state
                parts.append(data)
        topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=parts)] if parts else []
        return FetchResponse(session_id=session_id, responses=topics)

    def answer_partition(self, index: int, item: FetchPartition) -> PartitionData:
        """Answer as Kafka's leader does."""
        log = self.logs[index]
        code = self.errors.get(index, 0) or self._epoch_error(log, item.current_leader_epoch)
        data = PartitionData(index, code, log.high_watermark, -1, log.start, aborted_transactions=None, records=b"")
        if code:
            data.high_watermark = data.log_start_offset = -1
            return data
        if item.last_fetched_epoch >= 0:
            epoch, end = log.end_offset_for(item.last_fetched_epoch)
            if end < 0:
                return PartitionData(index, ErrorCode.OFFSET_OUT_OF_RANGE, -1, records=b"")
            if epoch < item.last_fetched_epoch or end < item.fetch_offset:
                data.diverging_epoch = EpochEndOffset(epoch, end)
                return data
        if not log.start <= item.fetch_offset <= log.end:
            return PartitionData(index, ErrorCode.OFFSET_OUT_OF_RANGE, -1, records=b"")
        data.records = log.from_offset(item.fetch_offset, item.partition_max_bytes)
        return data

    def _epoch_error(self, log: LeaderLog, epoch: int) -> int:
        if epoch < log.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > log.epoch else ErrorCode.NONE


def _is_news(data: PartitionData) -> bool:
    return bool(data.records) or data.error_code != 0 or data.diverging_epoch is not None


class FollowerScene:
    """A scripted leader, and a fetcher on another host."""

    def __init__(self, world: World, partitions: int = 1, *, must_sync: bool = False, **options: Any) -> None:
        self.world = world
        self.leader = ScriptedLeader(world, partitions)
        self.runtime = world.host("follower").runtime
        self.replicas = [FollowerReplica(self.runtime, index, must_sync=must_sync) for index in range(partitions)]
        self.syncs: list[list[int]] = []
        """The partitions of each sync."""
        self.failing_syncs: list[int] = []
        config = ChannelConfig(connection_setup_timeout_ms=1_000, backoff=Backoff(50, 400))
        channel = Channel(self.runtime, Address(self.leader.host.address, PORT), config)
        self.fetcher = Fetcher(
            self.runtime,
            channel,
            leader_id=LEADER_ID,
            broker_id=FOLLOWER_ID,
            broker_epoch=lambda: FOLLOWER_EPOCH,
            sync=self._sync,
            settings=options.pop("settings", SETTINGS),
            **options,
        )

    async def start(self) -> None:
        await self.leader.listen()
        self.fetcher.start()

    def follow(self, index: int, epoch: int | None = None) -> None:
        replica = self.replicas[index]
        replica.leader_epoch = self.leader.logs[index].epoch if epoch is None else epoch
        self.fetcher.follow(replica, replica.leader_epoch)

    def unfollow(self, index: int) -> None:
        self.replicas[index].leader_epoch = None
        self.fetcher.unfollow(self.replicas[index])

    async def _sync(self, partitions: Sequence[FollowedPartition]) -> Sequence[FollowedPartition]:
        self.syncs.append([partition.index for partition in partitions])
        ends = [partition.log_end_offset for partition in partitions]
        await self.runtime.tasks.sleep(0.02)
        failed = [partition for partition in partitions if partition.index in self.failing_syncs]
        for partition, end in zip(partitions, ends, strict=True):
            if partition not in failed:
                replica = self.replicas[partition.index]
                replica.synced_end = min(end, replica.log_end_offset)
        return failed

    def has_caught_up(self, index: int = 0) -> bool:
        return self.replicas[index].entries() == self.leader.logs[index].entries()

    async def until(self, condition: Callable[[], bool], limit_s: float = 30.0) -> float:
        """Wait for a condition. Returns the virtual time that passed."""
        loop = self.world.loop
        began = loop.time()
        while not condition():
            assert loop.time() - began < limit_s, "it did not happen in time"
            await self.runtime.tasks.sleep(0.01)
        return loop.time() - began


def storage_error() -> ApiError:
    return StorageError("the disk is broken")
