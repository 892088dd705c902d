"""As a follower, fetch partitions from one other broker, which leads them.

One fetch session serves all partitions together, with one request at a time. Each answer is appended before the next
request is sent. A partition does not delay the other partitions if it has failed, if its log is being cut (truncated)
or if it must wait: it is removed from the session until it can be fetched again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from tidelog.client.error_codes import error_name
from tidelog.client.errors import BrokerUnreachable, ClientError
from tidelog.client.operations import EARLIEST, LATEST
from tidelog.log.leader_epochs import UNDEFINED_EPOCH, EpochEnd
from tidelog.replication.followed import FetchSettings, has_news, offset_within_batch
from tidelog.replication.follower_session import FetchPosition, FollowerSession, PartitionAnswer
from tidelog.wire.errors import (
    ApiError,
    CorruptMessage,
    ErrorCode,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StorageError,
    error_for,
)
from tidelog.wire.messages.fetch import FetchRequest, FetchResponse, ReplicaState
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from tidelog.client.channel import Channel
    from tidelog.replication.followed import FollowedPartition, FollowerThrottle, Syncs
    from tidelog.replication.follower_session import PartitionKey
    from tidelog.runtime.interfaces import Runtime, TimerHandle
    from tidelog.wire.messages.fetch import PartitionData

logger = logging.getLogger("tidelog.fetcher")

JITTER: Final = 0.2
"""Each pause is multiplied by a random factor between 1 - JITTER and 1 + JITTER."""
PAUSE_S_MIN: Final = 0.001
"""A pause ends when less than this time remains, in seconds. A timer may fire slightly too early, since its clock is
not the clock that measures the pause. A new timer for this short rest could fire too early again.
"""
BYTES_PER_TURN: Final = 1 << 20
"""After this many appended bytes, the fetcher lets other work of the event loop run."""
LEADER_IS_BEHIND: Final = (
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""Errors of a leader that has not processed the metadata of an election or of a new topic yet. The leader usually
processes this metadata some milliseconds later. So these errors are logged only if they continue for as long as
`replica.fetch.backoff.ms`."""
FIRST_PAUSE_S: Final = 0.02
"""Pause, in seconds, before a partition is fetched again after the first error of LEADER_IS_BEHIND. The pause doubles
with each further error in a row, up to `replica.fetch.backoff.ms`. Pauses below this maximum have no jitter, so that
all partitions of an election are in the same request."""
EARLY_PAUSE_S: Final = 0.05
"""Longest pause, in seconds, after a first early answer. An answer is early if it has no news and arrives before the
`max_wait_ms` of its request have passed. After each further early answer in a row, the pause may be longer: it lasts
until the `max_wait_ms` have passed."""
LOG_CHANGES_MAX: Final = 16
"""After this many cuts of one log in a row, the fetcher pauses before each further request for the partition. One or
two cuts are usual. More are needed only if the two brokers have led the partition alternately for many epochs."""


class _Followed:
    """One partition of a fetcher, from `follow` to `unfollow`."""

    __slots__ = (
        "has_failed",
        "is_changing_log",
        "key",
        "leader_epoch",
        "log_changes",
        "next_pause_s",
        "partition",
        "timer",
    )

    def __init__(self, partition: "FollowedPartition", leader_epoch: int) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.key: PartitionKey = (partition.topic_id, partition.index)
        self.has_failed = False
        """Whether a failure was logged after the last answer that was appended. Further failures are not logged."""
        self.next_pause_s = FIRST_PAUSE_S
        """Pause after the next error of LEADER_IS_BEHIND, in seconds."""
        self.is_changing_log = False
        """Whether the log is being cut or made empty, so that no request may name the partition."""
        self.log_changes = 0
        """Number of times that the log was cut or made empty since the last answer that was appended."""
        self.timer: TimerHandle | None = None
        """Ends the pause after a failure, or the pause that the throttle requires."""

    def position(self) -> FetchPosition:
        partition = self.partition
        return FetchPosition(
            self.leader_epoch, partition.log_end_offset, partition.latest_epoch, partition.log_start_offset
        )

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"


class Fetcher:
    """Follows partitions of one leader. `start` begins and `stop` ends the requests."""

    def __init__(
        self,
        runtime: "Runtime",
        channel: "Channel",
        *,
        leader_id: int,
        broker_id: int,
        broker_epoch: Callable[[], int],
        sync: "Syncs",
        settings: FetchSettings | None = None,
        throttle: "FollowerThrottle | None" = None,
    ) -> None:
        """`channel` is a connection to the leader; `stop` closes it. `broker_epoch` returns the epoch of this broker's
        current registration (KIP-903).
        """
        self._runtime = runtime
        self._channel = channel
        self._leader_id = leader_id
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._sync = sync
        self._settings = settings or FetchSettings()
        self._throttle = throttle
        self._session = FollowerSession(self._settings.partition_bytes_max)
        self._followed: dict[PartitionKey, _Followed] = {}
        self._joining: list[_Followed] = []
        """Partitions to sync before they enter the session."""
        self._is_joining = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._wake_signal: asyncio.Future[None] | None = None
        self._stopping = False
        self._was_early = False
        """Whether the last answer had no news and arrived before the `max_wait_ms` of its request had passed."""
        self._has_failed = False
        """Whether the last request failed. Only the first of consecutive failures is logged."""

    def __len__(self) -> int:
        return len(self._followed)

    def start(self) -> None:
        self._spawn(self._run(), "fetcher")

    async def stop(self) -> None:
        """End the requests, and wait for cuts and syncs that are running."""
        self._stopping = True
        for followed in [*self._followed.values()]:
            self.unfollow(followed.partition)
        self._channel.close()
        self._wake()
        while self._tasks:
            await asyncio.wait([*self._tasks])

    def follow(self, partition: "FollowedPartition", leader_epoch: int) -> None:
        """Fetch this partition from the end of its log, as a follower in `leader_epoch`. If the partition is followed
        already, the new epoch replaces the earlier one.
        """
        followed = _Followed(partition, leader_epoch)
        earlier = self._followed.get(followed.key)
        if earlier is not None and earlier.leader_epoch == leader_epoch:
            if earlier.partition is partition and earlier.is_changing_log:
                # The end of the cut may be the reason for this call. The method that waits for the cut (`_change_log`
                # or `_begin_at_batch`) decides when to fetch again.
                return
            followed.log_changes = earlier.log_changes
        self.unfollow(partition)
        self._followed[followed.key] = followed
        self._fetch_when_synced(followed)

    def unfollow(self, partition: "FollowedPartition") -> None:
        """Stop fetching this partition. From now on, no answer changes it. A running cut continues to its end."""
        followed = self._followed.pop((partition.topic_id, partition.index), None)
        if followed is not None:
            self._leave_session(followed)

    def _fetch_when_synced(self, followed: _Followed) -> None:
        followed.timer = None
        if not followed.partition.must_sync:
            self._fetch_when_allowed(followed)
            return
        self._joining.append(followed)
        if not self._is_joining:
            self._is_joining = True
            self._spawn(self._join(), "fetcher-join")

    async def _join(self) -> None:
        """Sync the logs of the joining partitions, and then fetch these partitions.

        A log may have records that are not durable if its replica was the leader, if it followed another leader, or if
        only a part of an answer was appended.
        """
        try:
            while self._joining:
                await self._runtime.tasks.sleep(0)  # partitions that join in the same turn of the loop share the sync
                batch, self._joining = self._joining, []
                joining = [followed for followed in batch if self._is_current(followed)]
                await self._sync_all(joining)
                for followed in joining:
                    if self._is_current(followed):
                        self._fetch_when_allowed(followed)
        finally:
            self._is_joining = False

    # Requests

    async def _run(self) -> None:
        """Send requests until `stop`. After an unexpected error, begin a new session."""
        while not self._stopping:
            if not self._session.positions:
                await self._wait()
                continue
            try:
                await self._fetch()
            except (ApiError, ClientError) as error:
                await self._request_failed(error)
            except Exception:
                logger.exception("fetcher failed leader=%d", self._leader_id)
                self._session.begin_anew()
                await self._pause(self._backoff_s())
                for followed in [*self._followed.values()]:
                    # Some records of the answer may have been appended to the partition's log.
                    if followed.key in self._session.positions:
                        self._leave_session(followed)
                        self._fetch_when_synced(followed)

    async def _fetch(self) -> None:
        """Send one request, and apply its answer."""
        settings, clock = self._settings, self._runtime.clock
        request = FetchRequest(
            replica_state=ReplicaState(self._broker_id, self._broker_epoch()),
            max_wait_ms=settings.wait_max_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_bytes_max,
        )
        self._session.fill(request)
        began_s = clock.monotonic()
        response = await self._channel.ask(
            request, FetchResponse, timeout_ms=settings.wait_max_ms + settings.timeout_ms
        )
        answers = self._session.accept(response)
        if self._has_failed:
            self._has_failed = False
            logger.info("fetching from leader again leader=%d", self._leader_id)
        if any(has_news(answer.data) for answer in answers):
            self._was_early = False
        else:
            await self._pause_after_early_answer(began_s, response.throttle_time_ms / 1000)
        await self._apply(answers)

    async def _pause_after_early_answer(self, began_s: float, throttle_s: float) -> None:
        """Pause if the leader has answered without news before the `max_wait_ms` of the request have passed.

        A leader answers early after it has become the leader of more partitions. This broker may process the metadata
        of this change a little later than the leader. So the pause after a first early answer is short: the next
        request should also name these partitions. If the leader answers early again, the next pause lasts until the
        `max_wait_ms` of the request have passed.
        """
        now_s = self._runtime.clock.monotonic()
        remaining_s = began_s + self._settings.wait_max_ms / 1000 - now_s
        was_early, self._was_early = self._was_early, remaining_s > PAUSE_S_MIN
        if self._session.has_changes:
            remaining_s = 0.0
        elif not was_early:
            remaining_s = min(remaining_s, EARLY_PAUSE_S)
        await self._pause(max(remaining_s, began_s + throttle_s - now_s))

    async def _request_failed(self, error: ApiError | ClientError) -> None:
        """Pause after a request without a usable answer. The next request names all partitions again."""
        is_repeated, self._has_failed = self._has_failed, True
        self._session.begin_anew()
        if self._stopping:
            return
        if not is_repeated:
            logger.info("fetch from leader failed, trying again leader=%d reason=%s", self._leader_id, error)
        # After a first failure, an unreachable leader needs no pause here, since the channel itself pauses before it
        # connects again. A lost session is replaced at once.
        if is_repeated or not isinstance(error, ApiError | BrokerUnreachable):
            await self._pause(self._backoff_s())

    def _backoff_s(self) -> float:
        return self._settings.backoff_ms / 1000 * self._runtime.random.uniform(1 - JITTER, 1 + JITTER)

    async def _pause(self, delay_s: float) -> None:
        """Wait for `delay_s` seconds, or until the fetcher is stopped."""
        clock = self._runtime.clock
        end_s = clock.monotonic() + delay_s
        while not self._stopping and (remaining_s := end_s - clock.monotonic()) > PAUSE_S_MIN:
            await self._wait(remaining_s)

    async def _wait(self, delay_s: float | None = None) -> None:
        """Wait until a partition enters the session, the fetcher is stopped, or `delay_s` seconds have passed."""
        tasks = self._runtime.tasks
        self._wake_signal = tasks.future()
        timer = None if delay_s is None else tasks.call_later(delay_s, self._wake)
        await self._wake_signal
        if timer is not None:
            timer.cancel()

    def _wake(self) -> None:
        signal, self._wake_signal = self._wake_signal, None
        if signal is not None and not signal.done():
            signal.set_result(None)

    # Answers

    async def _apply(self, answers: list[PartitionAnswer]) -> None:
        """Append the records of an answer, and sync the logs that require it (`durability=fsync`). After this call, the
        next request may name the new offsets.
        """
        changed: list[_Followed] = []
        out_of_range: list[_Followed] = []
        byte_count = 0
        for answer in answers:
            followed = self._followed.get(answer.key)
            if followed is None:
                continue
            if self._session.positions.get(answer.key) != answer.position:
                # After the request was sent, `follow` was called again for the partition, so this answer is dropped.
                # But the leader assumes that this follower has processed the answer. A new session makes the leader
                # send the state again.
                self._session.begin_anew()
            elif answer.data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._leave_session(followed)
                out_of_range.append(followed)
            elif answer.data.error_code:
                self._refused_by_leader(followed, answer.data.error_code)
            elif answer.data.diverging_epoch is not None:
                self._leave_session(followed)
                leader_end = EpochEnd(answer.data.diverging_epoch.epoch, answer.data.diverging_epoch.end_offset)
                self._spawn(self._cut(followed, leader_end), "fetcher-cut")
            elif (first_offset := offset_within_batch(followed.partition, answer.data)) is not None:
                self._leave_session(followed)
                self._spawn(self._begin_at_batch(followed, first_offset, answer.data), "fetcher-begin")
            else:
                size = self._append(followed, answer.data)
                if followed.position() != answer.position:
                    changed.append(followed)
                byte_count += size
                if byte_count >= BYTES_PER_TURN:
                    byte_count = 0
                    await self._runtime.tasks.sleep(0)
        if out_of_range:
            self._spawn(self._return_into_range(out_of_range), "fetcher-range")
        await self._sync_all([item for item in changed if item.partition.must_sync and self._is_current(item)])
        for followed in changed:
            if self._is_current(followed) and followed.key in self._session.positions:
                self._fetch_when_allowed(followed)

    def _append(self, followed: _Followed, data: "PartitionData") -> int:
        """Append the records of one partition, and copy the leader's high watermark and log start offset. Returns the
        size of the records.
        """
        partition = followed.partition
        records: Any = data.records
        size = 0 if records is None else len(records)
        try:
            if size:
                partition.append_as_follower(memoryview(records), followed.leader_epoch)
            partition.set_high_watermark(data.high_watermark)
            partition.follow_log_start(data.log_start_offset)
        except StorageError as error:
            self._end_following(followed, error)
        except ApiError as error:
            self._fetch_after_failure(followed, error)
        else:
            followed.log_changes = 0
            followed.next_pause_s = FIRST_PAUSE_S
            if self._throttle is not None:
                self._throttle.record(partition, size)
            if followed.has_failed:
                followed.has_failed = False
                logger.info("partition followed again partition=%s leader=%d", followed, self._leader_id)
        return size

    def _refused_by_leader(self, followed: _Followed, code: int) -> None:
        error = error_for(code, f"broker {self._leader_id} answers {error_name(code)} to a follower")
        if isinstance(error, FencedLeaderEpoch):  # the metadata will name the newer epoch, and `follow` is called again
            self._end_following(followed, error)
        elif code in LEADER_IS_BEHIND:
            if followed.next_pause_s < self._settings.backoff_ms / 1000:
                # Not logged: after an election of a thousand partitions, there would be a thousand useless lines.
                self._fetch_later(followed, followed.next_pause_s)
                followed.next_pause_s *= 2
            else:
                self._fetch_after_failure(followed, error)
        else:
            self._fetch_after_failure(followed, error)

    async def _sync_all(self, to_sync: list[_Followed]) -> None:
        if not to_sync:
            return
        failed = await self._sync([followed.partition for followed in to_sync])
        for followed in to_sync:
            if followed.partition in failed and self._is_current(followed):
                self._end_following(followed, StorageError(f"{followed}: the fetched records could not be synced"))

    # Offsets that the leader does not have

    async def _cut(self, followed: _Followed, leader_end: EpochEnd) -> None:
        """Remove the records that the leader does not have, and fetch the partition again afterwards."""
        if self._is_current(followed):
            await self._change_log(followed, followed.partition.remove_diverging(leader_end, followed.leader_epoch))

    async def _begin_at_batch(self, followed: _Followed, first_offset: int, data: "PartitionData") -> None:
        """Let an empty log begin at the first offset of the leader's first batch, and append the answer.

        No request for the partition may be sent between these two changes: the leader's log start offset is inside
        this batch, so the leader would refuse a fetch from the batch's first offset.
        """
        partition = followed.partition
        if not self._is_current(followed):
            return
        data.records = bytes(data.records)  # type: ignore[arg-type]  # the next answer may overwrite the buffer
        followed.is_changing_log = True
        try:
            await partition.restart_at(first_offset, followed.leader_epoch)
        except ApiError as error:
            self._change_failed(followed, error)
            return
        finally:
            followed.is_changing_log = False
        current = self._followed.get(followed.key)
        if current is None or current.leader_epoch != followed.leader_epoch:
            return
        # Meanwhile, a new call of `follow` may have put the partition into the session.
        self._leave_session(current)
        self._append(current, data)
        if self._is_current(current) and current.timer is None:
            self._fetch_when_synced(current)

    async def _return_into_range(self, partitions: list[_Followed]) -> None:
        """Ask the leader where its logs begin and end, and cut or empty the logs of this broker accordingly."""
        try:
            ends = await self._ask_offsets(partitions, LATEST)
            starts = await self._ask_offsets(partitions, EARLIEST)
        except ClientError as error:
            for followed in partitions:
                self._fetch_after_failure(followed, NotLeaderOrFollower(str(error)))
            return
        changes = [
            self._bring_into_range(followed, starts.get(followed.key), ends.get(followed.key))
            for followed in partitions
        ]
        await asyncio.gather(*changes)

    async def _bring_into_range(
        self, followed: _Followed, start: "int | ApiError | None", end: "int | ApiError | None"
    ) -> None:
        """Cut or empty the log of one partition, so that it ends between the leader's offsets `start` and `end`."""
        partition, epoch = followed.partition, followed.leader_epoch
        if not self._is_current(followed):
            return
        for offset in (start, end):
            if not isinstance(offset, int):
                self._fetch_after_failure(followed, offset or NotLeaderOrFollower("the leader's answer has no offset"))
                return
        assert isinstance(start, int)
        assert isinstance(end, int)
        if end < partition.log_end_offset:
            await self._cut(followed, EpochEnd(UNDEFINED_EPOCH, end))
        elif start > partition.log_end_offset or (
            start == partition.log_end_offset and start > partition.log_start_offset
        ):
            # The leader has none of the records of this log, so it cannot confirm that they were ever committed.
            await self._change_log(followed, partition.restart_at(start, epoch))
        else:
            # The leader's log start offset has moved in the meantime, or the leader does not know this log's last
            # epoch.
            end_offset, last_epoch = partition.log_end_offset, partition.latest_epoch
            position = f"a fetch from offset {end_offset} with last fetched epoch {last_epoch}"
            reason = f"broker {self._leader_id} refuses {position}, although its log reaches from {start} to {end}"
            self._fetch_after_failure(followed, OffsetOutOfRange(reason))

    async def _ask_offsets(self, partitions: list[_Followed], timestamp: int) -> "dict[PartitionKey, int | ApiError]":
        """Return an offset or an error for each partition in the leader's answer. Raises ClientError."""
        topics: dict[str, ListOffsetsTopic] = {}
        ids: dict[str, bytes] = {}
        for followed in partitions:
            name = followed.partition.topic
            ids[name] = followed.partition.topic_id
            item = ListOffsetsPartition(followed.partition.index, followed.leader_epoch, timestamp)
            topics.setdefault(name, ListOffsetsTopic(name=name)).partitions.append(item)
        request = ListOffsetsRequest(replica_id=self._broker_id, topics=list(topics.values()))
        response = await self._channel.ask(request, ListOffsetsResponse, timeout_ms=self._settings.timeout_ms)
        return {
            (ids[topic.name], item.partition_index): (
                error_for(item.error_code, f"broker {self._leader_id} answers {error_name(item.error_code)}")
                if item.error_code
                else item.offset
            )
            for topic in response.topics
            if topic.name in ids
            for item in topic.partitions
        }

    async def _change_log(self, followed: _Followed, change: Awaitable[None]) -> None:
        """Wait until the log has been cut or made empty, and fetch the partition again afterwards."""
        before = followed.position()
        followed.is_changing_log = True
        try:
            await change
        except ApiError as error:
            self._change_failed(followed, error)
            return
        finally:
            followed.is_changing_log = False
        if not self._is_current(followed):
            return
        followed.log_changes += 1
        if followed.position() != before and followed.log_changes <= LOG_CHANGES_MAX:
            self._fetch_when_synced(followed)
        else:
            difference = f"this broker's log still differs from the log of broker {self._leader_id}"
            count = "1 cut" if followed.log_changes == 1 else f"{followed.log_changes} cuts"
            self._fetch_after_failure(followed, CorruptMessage(f"after {count}, {difference}"))

    def _change_failed(self, followed: _Followed, error: ApiError) -> None:
        if isinstance(error, StorageError) and self._is_current(followed):
            self._end_following(followed, error)
        else:
            self._fetch_after_failure(followed, error)

    # The state of one partition

    def _is_current(self, followed: _Followed) -> bool:
        return self._followed.get(followed.key) is followed

    def _leave_session(self, followed: _Followed) -> None:
        self._session.remove(followed.key)
        if followed.timer is not None:
            followed.timer.cancel()
            followed.timer = None

    def _fetch_when_allowed(self, followed: _Followed) -> None:
        """Name the partition in the next request. If the partition is frozen or the throttle requires a pause, name it
        in a later request.
        """
        if followed.partition.is_frozen:
            self._leave_session(followed)
            self._spawn(self._fetch_when_thawed(followed), "fetcher-frozen")
            return
        pause_s = 0.0 if self._throttle is None else self._throttle.pause_s(followed.partition)
        if pause_s > 0:
            self._fetch_later(followed, pause_s)
        else:
            self._session.put(followed.key, followed.position())
            self._wake()

    async def _fetch_when_thawed(self, followed: _Followed) -> None:
        await followed.partition.wait_until_thawed()
        if self._is_current(followed):
            self._fetch_when_synced(followed)

    def _fetch_later(self, followed: _Followed, delay_s: float) -> None:
        self._leave_session(followed)
        followed.timer = self._runtime.tasks.call_later(delay_s, self._fetch_when_synced, followed)

    def _fetch_after_failure(self, followed: _Followed, error: ApiError) -> None:
        """Fetch the partition again after a pause. Only the first of several failures is logged."""
        if not self._is_current(followed):
            return
        if not followed.has_failed:
            followed.has_failed = True
            # Leaders and followers learn of an election at different times, so most of these errors are normal.
            level = logging.WARNING if isinstance(error, CorruptMessage | OffsetOutOfRange) else logging.INFO
            logger.log(level, "partition not fetched, trying again partition=%s reason=%s", followed, error.message)
        self._fetch_later(followed, self._backoff_s())

    def _end_following(self, followed: _Followed, error: ApiError) -> None:
        if not self._is_current(followed):
            return
        del self._followed[followed.key]
        self._leave_session(followed)
        level = logging.WARNING if isinstance(error, StorageError) else logging.INFO
        logger.log(level, "partition no longer followed partition=%s reason=%s", followed, error.message)
        followed.partition.following_ended(error, followed.leader_epoch)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a task for which `stop` waits."""
        task = self._runtime.tasks.spawn(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))
