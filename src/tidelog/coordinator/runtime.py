"""Runs the core of one coordinator partition: decide, append, replay, reply.

A core decides and changes nothing durable. Its records are appended as one batch and at once replayed into the core,
as a load would replay them; its replies leave when the batch is committed. When an append fails, what the core decided
is void, with everything soft that depended on it: the partition is unloaded and built anew from its log. So it is when
a step fails in a way that nobody expected.

Without a core, clients are told:

    COORDINATOR_LOAD_IN_PROGRESS   the log is being read
    COORDINATOR_NOT_AVAILABLE      it could not be read, and is tried again
    NOT_COORDINATOR                the log is offline, led elsewhere, or cannot be understood: a restart reads it anew
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidelog.coordinator.decision import Decision, Moment, Reply
from tidelog.coordinator.loading import Loader
from tidelog.log.errors import CorruptLog
from tidelog.wire.errors import ApiError, CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator
from tidelog.wire.records import Record, encode_batch

if TYPE_CHECKING:
    import asyncio
    from typing import Protocol

    from tidelog.coordinator.group_log import GroupLog
    from tidelog.coordinator.loading import LogView
    from tidelog.log.partition_log import Appended
    from tidelog.model.steps import Steps
    from tidelog.runtime.interfaces import Clock, Tasks, TimerHandle
    from tidelog.runtime.turns import Turns

    class PartitionLogView(LogView, Protocol):
        @property
        def failure(self) -> Any: ...
        def fail(self, reason: str) -> None: ...

    class LedPartition(Protocol):
        """What the runtime asks of `replication.partition.Partition`."""

        @property
        def topic(self) -> str: ...
        @property
        def index(self) -> int: ...
        @property
        def log(self) -> PartitionLogView: ...
        @property
        def deleted(self) -> bool: ...
        def append_batch(self, data: bytearray) -> "Appended": ...
        def fail(self) -> None: ...
        def is_committed(self, next_offset: int) -> bool: ...
        def when_committed(self, next_offset: int, listener: Callable[[ApiError | None], None]) -> None: ...

    class Core(Protocol):
        """A pure coordinator. `replay` is the only thing that changes its durable state."""

        def decode(self, key: bytes, value: bytes | None) -> Any: ...
        def replay(self, record: Any, next_offset: int) -> None: ...
        def loaded(self, now: Moment) -> Decision: ...
        def next_deadline_ms(self) -> int | None: ...
        def expire(self, now: Moment) -> Iterator[Decision]: ...
        def abandon(self) -> list[Reply]: ...


logger = logging.getLogger("tidelog.coordinator")

RELOAD_DELAY_S = 0.1
RELOAD_DELAY_MAX_S = 10.0
SLOW_LOAD_S = 0.1
"""A load that took longer is worth a line."""


C = TypeVar("C", bound="Core")


class CoordinatorPartition(Generic[C]):
    """The coordinator that lives on one partition of an internal topic."""

    def __init__(
        self,
        partition: "LedPartition",
        new_core: Callable[[], C],
        clock: "Clock",
        tasks: "Tasks",
        turns: "Turns",
        group_log: "GroupLog",
    ) -> None:
        self.partition = partition
        self.name = f"{partition.topic}-{partition.index}"
        self._new_core = new_core
        self._clock = clock
        self._tasks = tasks
        self._turns = turns
        self._group_log = group_log
        self._core: C | None = None
        self._closed = False
        self._refusal: ApiError | None = None
        """Why the last load failed; None when it did not."""
        self._reload_delay_s = RELOAD_DELAY_S
        self._reload: TimerHandle | None = None
        self._timer: TimerHandle | None = None
        self._timer_ms = 0
        self._expiring = False
        """Whether what was due when the timer came up is still being seen to."""
        self._load_task: asyncio.Task[None] | None = None

    # State

    @property
    def core(self) -> C:
        """Raises CoordinatorLoadInProgress, CoordinatorNotAvailable or NotCoordinator when there is none."""
        core = self._core
        if core is None or self.partition.log.failure is not None:
            raise self._unserved()
        return core

    def _unserved(self) -> ApiError:
        if self._closed or self.partition.log.failure is not None:
            return NotCoordinator(f"{self.name} is not served here")
        return self._refusal or CoordinatorLoadInProgress(f"{self.name} is being loaded")

    @property
    def is_loaded(self) -> bool:
        return self._core is not None and self.partition.log.failure is None

    @property
    def is_loading(self) -> bool:
        return self._core is None and isinstance(self._unserved(), CoordinatorLoadInProgress)

    def check_known(self) -> None:
        """Raise unless its groups are known, or cannot be known before somebody does something about it: the log is
        offline, or could not be read for so long that it might as well be.
        """
        if self._core is None and not self._is_given_up:
            error = self._unserved()
            if not isinstance(error, NotCoordinator):
                raise error

    @property
    def _is_given_up(self) -> bool:
        return self._refusal is not None and self._reload_delay_s >= RELOAD_DELAY_MAX_S

    def now(self) -> Moment:
        return Moment(self._clock.now_ms(), int(self._clock.monotonic() * 1000))

    def load(self) -> None:
        """Begin to replay the log; requests are refused with CoordinatorLoadInProgress until that is done."""
        self._load_task = self._tasks.spawn(self._load(), name=f"load-{self.name}")

    async def loading(self) -> None:
        """Return when the present load has ended, one way or the other."""
        if self._load_task is not None:
            await self._load_task

    def close(self) -> None:
        """Leadership is lost or the broker stops: everyone who waits is told to look for the coordinator again."""
        self._closed = True
        self._unload(NotCoordinator(f"{self.name} is not served here any more"), [])

    # Steps

    def apply(self, decision: Decision) -> None:
        """Append and replay what the core decided, and answer when that is committed."""
        shows = decision.shows
        if decision.records:
            core = self._core
            assert core is not None, "a decision of a core that is not loaded"
            try:
                appended = self.partition.append_batch(self._batch(decision))
            except (ApiError, OSError) as error:
                if not self.partition.deleted:
                    logger.error("append failed, loading anew partition=%s error=%s", self.name, error)
                self._unload(NotCoordinator(f"{self.name} could not be written"), decision.replies)
                self._load_later()
                return
            except Exception as error:  # a record that no log can hold: whoever waits for the replies must hear of it
                self._step_failed(decision.replies, error)
                return
            shows = appended.next_offset
            try:
                for record in decision.records:
                    core.replay(record, shows)
            except Exception as error:
                self._step_failed(decision.replies, error)
                return
        self.arm()
        if decision.lines:
            self._group_log.write(decision.lines)
        if decision.replies:
            self._answer(decision.replies, shows)

    def answer(self, reply: Reply, answer: Any, shows: int) -> None:
        """Give an answer that tells of the log below `shows`, once that is committed."""
        self._answer([(reply, answer)], shows)

    def _answer(self, replies: list[tuple[Reply, Any]], shows: int) -> None:
        if self.partition.is_committed(shows):
            for reply, answer in replies:
                reply(answer)
        else:
            self.partition.when_committed(shows, partial(self._settle, replies))

    def _settle(self, replies: list[tuple[Reply, Any]], error: ApiError | None) -> None:
        """The records that the replies tell of are committed, or never will be."""
        if error is not None:
            self._unload(NotCoordinator(f"{self.name}: {error.message}"), replies)
            self._load_later()
            return
        for reply, answer in replies:
            reply(answer)

    def apply_all(self, decisions: Iterator[Decision]) -> None:
        """As many steps as there are, until one of them fails."""
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

    def arm(self) -> None:
        """To be called when deadlines changed without a decision."""
        if self._expiring:
            return  # it ends with a look at what is due next
        core = self._core
        next_ms = core.next_deadline_ms() if core is not None else None
        if next_ms is None or (self._timer is not None and self._timer_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = next_ms
        # In the whole milliseconds of `now`: by the clock's fractions a timer could come up just too early, for ever.
        delay_ms = next_ms - self.now().monotonic_ms
        self._timer = self._tasks.call_later(max(delay_ms, 0) / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        core = self._core
        if core is not None:
            # In turns: a change of topics makes every group with patterns look for them at once.
            self._expiring = True
            self._turns.begin(self._expire_in_steps(core), self._expired)

    def _expire_in_steps(self, core: C) -> "Steps[None]":
        while self._core is core:
            decision = next(core.expire(self.now()), None)  # at a new time: what it sets counts from that
            if decision is None:
                break
            self.apply(decision)
            yield
        self._expiring = False
        self.arm()

    def _expired(self, _: None, error: Exception | None) -> None:
        self._expiring = False
        if error is not None:
            self._step_failed([], error)

    def _step_failed(self, undelivered: list[tuple[Reply, Any]], error: Exception) -> None:
        """The core is not what the log says, or its deadlines have stopped: it is built anew."""
        logger.error("step failed, loading anew partition=%s", self.name, exc_info=error)
        self._unload(NotCoordinator(f"{self.name} is loaded anew"), undelivered)
        self._load_later()

    # Load and unload

    async def _load(self) -> None:
        log = self.partition.log
        try:
            await self._read_log()
            if self._core is not None:
                self._reload_delay_s = RELOAD_DELAY_S
        except CorruptLog as error:
            if self._counts(log):
                log.fail(str(error))  # and that is said by the log
        except (ApiError, OSError) as error:
            if log.failure is None and self._counts(log):
                logger.error("load failed, tried again partition=%s error=%s", self.name, error)
                self._refusal = CoordinatorNotAvailable(f"{self.name} could not be loaded: {error}")
                self._load_later()
        except Exception as error:
            logger.exception("load failed partition=%s", self.name)
            self._refusal = NotCoordinator(f"{self.name} could not be loaded: {error!r}")
            self._unload(self._refusal, [])
        if self._core is None and self.partition.log is not log:
            self._load_later()  # from where it has moved to
        elif log.failure is not None:
            self.partition.fail()

    def _counts(self, log: "PartitionLogView") -> bool:
        """Whether it is the partition's log: that may have moved to another directory, or have been deleted."""
        return self.partition.log is log and not self.partition.deleted

    async def _read_log(self) -> None:
        core = self._new_core()
        log = self.partition.log
        began = self._clock.monotonic()

        def is_wanted() -> bool:
            return not self._closed and log.failure is None and self._counts(log)

        loader = Loader(self.name, log, core, self._tasks)
        await loader.run(is_wanted)
        if not is_wanted():
            return
        self._core = core
        self._refusal = None
        seconds = self._clock.monotonic() - began
        level = logging.INFO if seconds > SLOW_LOAD_S else logging.DEBUG
        logger.log(level, "loaded partition=%s records=%d seconds=%.3f", self.name, loader.records, seconds)
        self.apply(core.loaded(self.now()))

    def _load_later(self) -> None:
        """Unless that is on its way already: several answers may fail over one append."""
        if not self._closed and self._reload is None:
            self._reload = self._tasks.call_later(self._reload_delay_s, self._load_again)
            self._reload_delay_s = min(self._reload_delay_s * 2, RELOAD_DELAY_MAX_S)

    def _load_again(self) -> None:
        self._reload = None
        if self._core is None and not self._closed and self.partition.log.failure is None:
            self.load()

    def _unload(self, error: ApiError, undelivered: list[tuple[Reply, Any]]) -> None:
        core, self._core = self._core, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [reply for reply, _ in undelivered]
        if core is not None:
            waiting += core.abandon()
        for reply in waiting:
            reply(error)
