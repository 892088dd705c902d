"""Run the core of one coordinator partition, in one leader epoch: decide, append, replay, reply.

A core makes decisions without changing durable state. The records of a decision are appended as one batch and then
replayed into the core, as during a load. The replies are sent when the batch is committed.

If an append fails, the decision and all soft state that depends on it are invalid. Therefore the core is dropped, and a
new core is loaded from the log. An unexpected exception in a step has the same consequence. But if the
append of a fenced producer's offsets is refused, the core remains, since no soft state depends on this append.

Each append states the leader epoch in which the coordinator was created. The partition refuses the append if the
partition's current leader epoch is a different one. When the coordinator's epoch ends, `host.py` closes the
coordinator. If this broker leads the partition again later, `host.py` creates a new coordinator.

While no core is loaded, clients get one of these errors:

    COORDINATOR_LOAD_IN_PROGRESS   the log is being loaded
    COORDINATOR_NOT_AVAILABLE      the load failed and will be repeated
    NOT_COORDINATOR                another broker leads the partition, or the log is offline, or an unexpected exception
                                   ended the load (restart the broker to retry)

In a cluster, a reply waits for the in-sync replicas for at most `commit_timeout_ms`: offsets.commit.timeout.ms for
groups, request.timeout.ms for transactions. After that time the client gets COORDINATOR_NOT_AVAILABLE instead, as in
Kafka. The records may still be committed later.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from tidelog.coordinator.decision import Decision, LoadOrder, Moment, Producer, Reply
from tidelog.coordinator.loading import Loader
from tidelog.log.errors import CorruptLog
from tidelog.wire.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    NotCoordinator,
    NotLeaderOrFollower,
)
from tidelog.wire.records import Record, encode_batch

if TYPE_CHECKING:
    import asyncio
    from typing import Protocol

    from tidelog.coordinator.group_log import GroupLog
    from tidelog.coordinator.loading import LogView
    from tidelog.log.partition_log import Appended
    from tidelog.model.steps import Steps
    from tidelog.runtime.interfaces import Runtime, TimerHandle

    class PartitionLogView(LogView, Protocol):
        @property
        def failure(self) -> Any: ...
        def fail(self, reason: str) -> None: ...

    class ReplicaView(Protocol):
        @property
        def is_alone(self) -> bool:
            """Whether the partition has no other replica, so that this broker alone decides what is committed."""

    class LedPartition(Protocol):
        """The part of `replication.partition.Partition` that this module uses."""

        @property
        def topic(self) -> str: ...
        @property
        def index(self) -> int: ...
        @property
        def log(self) -> PartitionLogView: ...
        @property
        def deleted(self) -> bool: ...
        @property
        def leader_epoch(self) -> int: ...
        @property
        def replica(self) -> "ReplicaView": ...
        def append_batch(self, data: bytearray, leader_epoch: int) -> "Appended": ...
        def fail(self) -> None: ...
        def is_committed(self, next_offset: int) -> bool: ...
        def when_committed(self, next_offset: int, listener: Callable[[ApiError | None], None]) -> None: ...

    class Core(Protocol):
        """A pure coordinator. Only the replay of records and markers changes its durable state."""

        @property
        def load_order(self) -> LoadOrder: ...
        def decode(self, key: bytes, value: bytes | None) -> Any: ...
        def replay(self, record: Any, next_offset: int) -> None: ...
        def replay_pending(
            self, record: Any, next_offset: int, producer: Producer, record_offset: int, *, is_superseded: bool
        ) -> None:
            """Replay a record of a transaction that is open."""

        def end_transaction(self, producer: Producer, next_offset: int, *, is_commit: bool) -> None:
            """Replay the marker that ends a producer's transaction. With transaction version 2, or if the producer was
            fenced, the marker's epoch is higher than that of the records.
            """

        def loaded(self, now: Moment) -> Decision: ...
        def next_deadline_ms(self) -> int | None: ...
        def expire(self, now: Moment) -> Iterator[Decision]: ...
        def abandon(self) -> list[Reply]: ...


logger = logging.getLogger("tidelog.coordinator")

RELOAD_DELAY_S = 0.1
"""Pause before the log is loaded again after a first failure, in seconds. Each further failure doubles the pause."""
RELOAD_DELAY_MAX_S = 10.0
"""Upper bound on this pause, in seconds."""
SLOW_LOAD_S = 0.1
"""A load that takes longer than this is logged at level INFO."""


C = TypeVar("C", bound="Core")
Perform: TypeAlias = Callable[["CoordinatorPartition[Any]", Any], None]
"""A function that gets a coordinator and an effect of one of its decisions, and begins to carry out the effect. It must
not raise."""


class CoordinatorPartition(Generic[C]):
    """The coordinator of one partition of an internal topic. It serves only the leader epoch in which it was
    created.
    """

    def __init__(
        self,
        partition: "LedPartition",
        new_core: Callable[[], C],
        runtime: "Runtime",
        group_log: "GroupLog",
        commit_timeout_ms: int,
        perform: "Perform | None" = None,
    ) -> None:
        """`perform` begins to carry out an effect of a decision. None: the core's decisions have no effects."""
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.name = f"{partition.topic}-{partition.index}"
        self._new_core = new_core
        self._clock = runtime.clock
        self._tasks = runtime.tasks
        self._turns = runtime.turns
        self._group_log = group_log
        self._commit_timeout_s = commit_timeout_ms / 1000
        self._perform = perform
        self._core: C | None = None
        self._is_closed = False
        self._refusal: ApiError | None = None
        """The error that requests get after a failed load; None if the last load did not fail."""
        self._reload_delay_s = RELOAD_DELAY_S
        self._reload_timer: TimerHandle | None = None
        self._failed_appends = 0
        """Number of appends that failed since the last successful one."""
        self._timer: TimerHandle | None = None
        self._timer_ms = 0
        self._is_expiring = False
        """Whether due deadlines are being processed in steps now."""
        self._load_task: asyncio.Task[None] | None = None
        self._load_end = 0
        """The log was loaded into the core up to this offset (exclusive end). Each answer waits until the log is
        committed up to here, because the loaded state may reflect records that are not committed yet, for example the
        deletion of a group."""
        self._waiting_answers: deque[tuple[float, list[tuple[Reply, Any]]]] = deque()
        """Lists of answers that wait for the in-sync replicas, each list with its monotonic deadline in seconds. When
        the answers of a list are sent, the list is emptied, but its entry remains until `_end_waits` removes it."""
        self._answer_timer: TimerHandle | None = None

    # State

    @property
    def core(self) -> C:
        """The loaded core. If no core is loaded, raises CoordinatorLoadInProgress, CoordinatorNotAvailable or
        NotCoordinator.
        """
        core = self._core
        if core is None or self.partition.log.failure is not None:
            raise self._unavailable_error()
        return core

    def _unavailable_error(self) -> ApiError:
        if self._is_closed or self.partition.log.failure is not None:
            return NotCoordinator()
        return self._refusal or CoordinatorLoadInProgress(f"{self.name} is being loaded")

    @property
    def is_loaded(self) -> bool:
        return self._core is not None and self.partition.log.failure is None

    @property
    def is_open(self) -> bool:
        """False after `close`, and after an append has found that the leader epoch has ended. While it is True,
        there may be no core, or a new core that has replaced the earlier one.
        """
        return not self._is_closed

    @property
    def is_loading(self) -> bool:
        return self._core is None and isinstance(self._unavailable_error(), CoordinatorLoadInProgress)

    def check_groups_known(self) -> None:
        """Raise an ApiError while the groups are not loaded but will probably be loaded soon.

        Nothing is raised if probably only an operator can restore the groups: when the log is offline, or when its load
        has failed repeatedly.
        """
        if self._core is None and not self._has_failed_repeatedly:
            error = self._unavailable_error()
            if not isinstance(error, NotCoordinator):
                raise error

    @property
    def _has_failed_repeatedly(self) -> bool:
        return self._refusal is not None and self._reload_delay_s >= RELOAD_DELAY_MAX_S

    def now(self) -> Moment:
        return Moment(self._clock.now_ms(), int(self._clock.monotonic() * 1000))

    def load(self) -> None:
        """Begin to load the log. Until the load has ended, requests are refused with CoordinatorLoadInProgress, or with
        the error of the previous load if that failed.
        """
        self._load_task = self._tasks.spawn(self._load(), name=f"load-{self.name}")

    async def wait_for_load(self) -> None:
        """Wait for the end of the current load, whether it succeeds or fails."""
        if self._load_task is not None:
            await self._load_task

    def close(self) -> None:
        """Stop serving, because the leader epoch has ended, the log has gone offline, or the broker stops. Waiting
        clients get NOT_COORDINATOR.
        """
        self._is_closed = True
        unsent = [reply for _, replies in self._waiting_answers for reply in replies]
        for _, replies in self._waiting_answers:
            replies.clear()
        self._waiting_answers.clear()
        for timer in (self._reload_timer, self._answer_timer):
            if timer is not None:
                timer.cancel()
        self._reload_timer = self._answer_timer = None
        self._unload(NotCoordinator(), unsent)

    # Steps

    def apply(self, decision: Decision) -> None:
        """Append and replay the records of a decision, and send its replies when the records are committed."""
        awaited_offset = decision.awaited_offset
        if decision.records:
            core = self._core
            assert core is not None, "a decision of a core that is not loaded"
            try:
                appended = self.partition.append_batch(self._batch(decision), self.leader_epoch)
            except NotLeaderOrFollower as error:
                self._is_closed = True
                self._unload(NotCoordinator(f"{self.name}: {error.message}"), decision.replies)
                return
            except InvalidProducerEpoch as error:  # offsets of a fenced producer; no soft state depends on them
                self._refuse([reply for reply, _ in decision.replies], error)
                return
            except (ApiError, OSError) as error:
                self._failed_appends += 1
                if not self.partition.deleted and self._group_log.append_failure_limit.admits_line():
                    logger.error("append failed, loading again partition=%s error=%s", self.name, error)
                self._unload(NotCoordinator(f"{self.name} could not be written"), decision.replies)
                self._schedule_load()
                return
            except Exception as error:  # for example a record cannot be encoded; the waiting clients need an answer
                self._replace_failed_core(decision.replies, error)
                return
            awaited_offset = appended.next_offset
            self._failed_appends = 0
            try:
                self._replay(core, decision, appended)
            except Exception as error:
                self._replace_failed_core(decision.replies, error)
                return
        self.set_timer()
        if decision.lines:
            self._group_log.write(decision.lines)
        if decision.effects:
            self._perform_when_committed(decision.effects, awaited_offset)
        if decision.replies:
            self._answer(decision.replies, awaited_offset)

    def _replay(self, core: C, decision: Decision, appended: "Appended") -> None:
        producer, next_offset = decision.producer, appended.next_offset
        if producer is None:
            for record in decision.records:
                core.replay(record, next_offset)
            return
        for record_offset, record in enumerate(decision.records, appended.base_offset):
            core.replay_pending(record, next_offset, producer, record_offset, is_superseded=False)

    def end_transaction(self, marker: bytearray, producer: Producer, reply: Reply, *, is_commit: bool) -> None:
        """Append the marker that ends a producer's transaction in this partition. When the marker is committed, `reply`
        is called with None.

        Raises ApiError if nothing was appended.
        """
        core = self.core
        appended = self.partition.append_batch(marker, self.leader_epoch)
        try:
            core.end_transaction(producer, appended.next_offset, is_commit=is_commit)
        except Exception as error:
            self._replace_failed_core([(reply, None)], error)
            return
        self._answer([(reply, None)], appended.next_offset)

    def _perform_when_committed(self, effects: list[Any], awaited_offset: int) -> None:
        perform, core = self._perform, self._core
        assert perform is not None, "a decision of this core must not have effects"

        def begin(error: ApiError | None) -> None:
            if error is None and self._core is core:  # otherwise the next core decides about the effects again
                for effect in effects:
                    perform(self, effect)

        awaited_offset = max(awaited_offset, self._load_end)
        if self.partition.is_committed(awaited_offset):
            begin(None)
        else:
            self.partition.when_committed(awaited_offset, begin)

    def answer(self, reply: Reply, answer: Any, awaited_offset: int) -> None:
        """Send the answer when the log is committed up to `awaited_offset` (exclusive end). The answer reflects the
        log up to there.
        """
        self._answer([(reply, answer)], awaited_offset)

    def _answer(self, replies: list[tuple[Reply, Any]], awaited_offset: int) -> None:
        awaited_offset = max(awaited_offset, self._load_end)
        if self.partition.is_committed(awaited_offset):
            for reply, answer in replies:
                reply(answer)
        else:
            if not self.partition.replica.is_alone:
                replies = list(replies)
                self._limit_wait(replies)
            self.partition.when_committed(awaited_offset, partial(self._answer_after_commit, replies))

    def _answer_after_commit(self, replies: list[tuple[Reply, Any]], error: ApiError | None) -> None:
        """Send the replies after the commit. If the wait for the commit has failed with `error`, send an error instead,
        and replace the core.
        """
        unsent = list(replies)
        replies.clear()  # so that `_end_waits` does not refuse them
        if error is not None:
            self._unload(NotCoordinator(f"{self.name}: {error.message}"), unsent)
            self._schedule_load()
            return
        for reply, answer in unsent:
            reply(answer)

    # Answers that wait for other brokers. They share one timer.

    def _limit_wait(self, replies: list[tuple[Reply, Any]]) -> None:
        """If the answers cannot be sent within the commit timeout, send an error instead."""
        self._waiting_answers.append((self._clock.monotonic() + self._commit_timeout_s, replies))
        if self._answer_timer is None:
            self._answer_timer = self._tasks.call_later(self._commit_timeout_s, self._end_waits)

    def _end_waits(self) -> None:
        self._answer_timer = None
        waiting = self._waiting_answers
        now = self._clock.monotonic()
        while waiting and (waiting[0][0] <= now or not waiting[0][1]):
            _, replies = waiting.popleft()
            unsent = [reply for reply, _ in replies]
            replies.clear()
            self._refuse(unsent, CoordinatorNotAvailable(f"{self.name}: too few in-sync replicas have the records"))
        if waiting:
            self._answer_timer = self._tasks.call_later(waiting[0][0] - now, self._end_waits)

    def apply_all(self, decisions: Iterator[Decision]) -> None:
        """Apply decisions until there are no more, or until one of them fails."""
        core = self._core
        for decision in decisions:
            self.apply(decision)
            if self._core is not core:
                return

    def _batch(self, decision: Decision) -> bytearray:
        if decision.batch is not None:
            return decision.batch
        timestamp = self._clock.now_ms()
        records = []
        for delta, record in enumerate(decision.records):
            key, value = record.encode()
            records.append(Record(offset=delta, timestamp=timestamp, key=key, value=value))
        return encode_batch(records)

    # Deadlines

    def set_timer(self) -> None:
        """Set the timer for the next deadline. A caller that changes deadlines without applying a decision must call
        this method, too.
        """
        if self._is_expiring:
            return  # `_expire_in_steps` calls `set_timer` after it has processed all due deadlines
        core = self._core
        next_ms = core.next_deadline_ms() if core is not None else None
        if next_ms is None or (self._timer is not None and self._timer_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = next_ms
        # Deadlines are compared with the whole milliseconds of `now`, so the delay is also computed from them. With
        # fractions of a millisecond, the timer could repeatedly fire a little too early.
        delay_ms = next_ms - self.now().monotonic_ms
        self._timer = self._tasks.call_later(max(delay_ms, 0) / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        core = self._core
        if core is not None:
            # The deadlines are processed in steps, because after a change of topics, every group with a regular
            # expression searches the topics at the same time.
            self._is_expiring = True
            self._turns.begin(self._expire_in_steps(core), self._end_expiry)

    def _expire_in_steps(self, core: C) -> "Steps[None]":
        while self._core is core:
            # The current time is read again for each step, because the step sets deadlines relative to it.
            decision = next(core.expire(self.now()), None)
            if decision is None:
                break
            self.apply(decision)
            yield
        self._is_expiring = False
        self.set_timer()

    def _end_expiry(self, _: None, error: Exception | None) -> None:
        self._is_expiring = False
        if error is not None:
            self._replace_failed_core([], error)

    def _replace_failed_core(self, unsent_replies: list[tuple[Reply, Any]], error: Exception) -> None:
        """Replace the core after an unexpected exception. The state of the old core may differ from the log, and its
        deadlines may no longer be processed.
        """
        logger.error("step failed, loading again partition=%s", self.name, exc_info=error)
        self._unload(NotCoordinator(f"{self.name} is being loaded again"), unsent_replies)
        self._schedule_load()

    # Load and unload

    async def _load(self) -> None:
        """Load the log. If this fails, schedule another load, or refuse requests with the reason."""
        log = self.partition.log
        try:
            await self._read_log()
            if self._core is not None:
                self._reload_delay_s = RELOAD_DELAY_S
        except CorruptLog as error:
            if self._is_current(log):
                log.fail(str(error))  # this also writes a line to the broker's log
        except (ApiError, OSError) as error:
            if log.failure is None and self._is_current(log):
                logger.error("load failed, will be retried partition=%s error=%s", self.name, error)
                self._refusal = CoordinatorNotAvailable(f"{self.name} could not be loaded: {error}")
                self._schedule_load()
        except Exception as error:
            logger.exception("load failed partition=%s", self.name)
            self._refusal = NotCoordinator(f"{self.name} could not be loaded: {error!r}")
            self._unload(self._refusal, [])
        if self._core is None and self.partition.log is not log:
            self._schedule_load()  # the partition has moved to another data directory
        elif log.failure is not None:
            self.partition.fail()

    def _is_current(self, log: "PartitionLogView") -> bool:
        """Return whether `log` is still the log to load. The log may have been replaced because the partition moved to
        another directory, or it may have been deleted. After the leader epoch has ended, the log must not be loaded,
        because this broker may truncate the log while a thread reads it.
        """
        return self.partition.log is log and not self.partition.deleted and not self._is_closed

    async def _read_log(self) -> None:
        """Replay the log into a new core, and use this core from now on. Raises the errors of `Loader.run`."""
        core = self._new_core()
        log = self.partition.log
        began = self._clock.monotonic()

        def is_wanted() -> bool:
            return log.failure is None and self._is_current(log)

        loader = Loader(self.name, log, core, self._tasks)
        await loader.run(is_wanted)
        if not is_wanted():
            return
        self._core = core
        self._refusal = None
        self._load_end = loader.next_offset
        seconds = self._clock.monotonic() - began
        level = logging.INFO if seconds > SLOW_LOAD_S else logging.DEBUG
        logger.log(level, "loaded partition=%s records=%d seconds=%.3f", self.name, loader.records, seconds)
        decision = core.loaded(self.now())
        if self._failed_appends and decision.effects:
            self._perform_later(core, decision.effects)
            decision.effects = []
        self.apply(decision)

    def _perform_later(self, core: C, effects: list[Any]) -> None:
        """Begin the effects of a load after a pause, because appends failed before the load. Each further failed append
        makes the pause longer.

        On a full disk, the completion of an effect cannot be recorded in the log, so the log is loaded again and again.
        If each load began its effects at once, each transaction would get ten markers in a second.
        """

        def begin() -> None:
            if self._core is core:
                self._perform_when_committed(effects, 0)

        delay_s = min(RELOAD_DELAY_S * 2 ** min(self._failed_appends, 10), RELOAD_DELAY_MAX_S)
        self._tasks.call_later(delay_s, begin)

    def _schedule_load(self) -> None:
        """Schedule a new load, unless a load is scheduled already. If several waits for a commit fail at the same
        time, each of them calls this method.
        """
        if not self._is_closed and self._reload_timer is None:
            self._reload_timer = self._tasks.call_later(self._reload_delay_s, self._reload)
            self._reload_delay_s = min(self._reload_delay_s * 2, RELOAD_DELAY_MAX_S)

    def _reload(self) -> None:
        self._reload_timer = None
        if self._core is None and not self._is_closed and self.partition.log.failure is None:
            self.load()

    def _unload(self, error: ApiError, unsent_replies: list[tuple[Reply, Any]]) -> None:
        core, self._core = self._core, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [reply for reply, _ in unsent_replies]
        if core is not None:
            waiting += core.abandon()
        self._refuse(waiting, error)

    def _refuse(self, replies: list[Reply], error: ApiError) -> None:
        for reply in replies:
            try:
                reply(error)
            except Exception:  # the other clients must still get their answers
                logger.exception("answer failed partition=%s", self.name)
