"""A partition with a log in memory, and a clock that follows a virtual event loop."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

from tidelog.log.reader import Slice
from tidelog.simulation.loop import SimLoop
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import ApiError, NotLeaderOrFollower, StorageError

logger = logging.getLogger("tidelog.log")

EPOCH_MS = 1_700_000_000_000
COMMIT_TIMEOUT_MS = 5000
"""The default of offsets.commit.timeout.ms."""


class LoopClock:
    """A wall clock and monotonic clock that both show the event loop's time."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


class MemoryFile:
    """A segment file in memory. `resident` says whether it may be read on the event loop."""

    path = "/memory/00000000000000000000.log"

    def __init__(self) -> None:
        self.data = bytearray()
        self.cold = False

    def pread(self, size: int, position: int) -> bytes:
        return bytes(self.data[position : position + size])

    def resident(self, position: int, size: int) -> bool:
        return not self.cold


class MemoryRead:
    """A read that brings the file into the page cache."""

    def __init__(self, file: MemoryFile) -> None:
        self.file = file

    def run(self) -> None:
        self.file.cold = False


class MemoryLog:
    """Batches in order, with the interface of a partition log."""

    def __init__(self) -> None:
        self.file = MemoryFile()
        self.batches: list[tuple[int, int, int]] = []
        """(base offset, position, next offset) of each batch."""
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.failure: str | None = None
        self.read_error: Exception | None = None

    def append(self, batch: bytes | bytearray, header: BatchHeader) -> int:
        next_offset = self.log_end_offset + header.last_offset_delta + 1
        self.batches.append((self.log_end_offset, len(self.file.data), next_offset))
        self.file.data += batch
        self.log_end_offset = next_offset
        return next_offset

    def cold_read(self, start: int, bytes_max: int) -> MemoryRead | None:
        return MemoryRead(self.file) if self.file.cold else None

    def read(self, start: int, bytes_max: int, end_offset: int) -> Slice:
        assert not self.file.cold, "the loop waits for the disk"
        if self.read_error is not None:
            raise self.read_error
        for base, position, next_offset in self.batches:
            if next_offset > start:
                end = position
                for _, other, other_next in self.batches:
                    size = int.from_bytes(self.file.data[other + 8 : other + 12], "big") + 12
                    if (
                        other >= position
                        and other_next <= end_offset
                        and (other + size - position <= bytes_max or end == position)
                    ):
                        end = other + size
                return Slice(self.file, position, end - position, base, end - position)  # type: ignore[arg-type]
        return Slice(None, 0, 0, start, 0)

    def cut(self, end_offset: int) -> None:
        """Remove the batches from `end_offset` on."""
        while self.batches and self.batches[-1][2] > end_offset:
            del self.file.data[self.batches.pop()[1] :]
        self.log_end_offset = self.batches[-1][2] if self.batches else self.log_start_offset

    def fail(self, reason: str) -> None:
        self.failure = reason
        logger.error("log offline reason=%s", reason)


class Appended(NamedTuple):
    """The part of the log's result that coordinators read."""

    base_offset: int
    next_offset: int


class MemoryPartition:
    """A partition as a coordinator sees it. `hold_commits` delays the high watermark, as a slow disk does."""

    def __init__(self, topic: str, index: int, *, leads: bool = True) -> None:
        self.topic = topic
        self.index = index
        self.log = MemoryLog()
        self.high_watermark = 0
        self.hold_commits = False
        self.deleted = False
        self.replica = SimpleNamespace(leads=leads, is_alone=True)
        self.leader_epoch = 0
        self.watcher: Callable[[MemoryPartition], None] | None = None
        """Called as `Partitions.watch_roles` says."""
        self.append_error: Exception | None = None
        self._waiting: list[tuple[int, Callable[[ApiError | None], None]]] = []

    @property
    def leads(self) -> bool:
        return bool(self.replica.leads)

    def change_role(self, leader_epoch: int, *, leads: bool) -> None:
        """Change the role as `Partition.step` does: the watcher is called before those who wait get their errors."""
        if (self.leader_epoch, self.leads) != (leader_epoch, leads):
            had_epoch, self.leader_epoch, self.replica.leads = self.leader_epoch, leader_epoch, leads
            if self.watcher is not None:
                self.watcher(self)
            if leader_epoch != had_epoch:
                self.fail_all(NotLeaderOrFollower("the leader epoch has ended"))

    def append_batch(self, data: bytearray, leader_epoch: int) -> Appended:
        if leader_epoch != self.leader_epoch or not self.leads:
            raise NotLeaderOrFollower("another leader epoch has begun")
        if self.append_error is not None:
            raise self.append_error
        header = BatchHeader(data)
        header.assign(base_offset=self.log.log_end_offset, leader_epoch=leader_epoch)
        base_offset = self.log.log_end_offset
        next_offset = self.log.append(data, header)
        if not self.hold_commits:
            self.high_watermark = next_offset
        return Appended(base_offset, next_offset)

    def is_committed(self, next_offset: int) -> bool:
        return self.high_watermark >= next_offset

    def when_committed(self, next_offset: int, listener: Callable[[ApiError | None], None]) -> None:
        if self.is_committed(next_offset):
            listener(None)
        else:
            self._waiting.append((next_offset, listener))

    def cut(self, end_offset: int) -> None:
        """Do what a follower's cut does."""
        assert not self.leads
        self.log.cut(end_offset)
        self.high_watermark = min(self.high_watermark, end_offset)

    def commit_all(self) -> None:
        """Commit every appended batch."""
        self.high_watermark = self.log.log_end_offset
        waiting, self._waiting = self._waiting, []
        for _, listener in waiting:
            listener(None)

    def fail_all(self, error: ApiError) -> None:
        """Fail every appended batch that is not committed. The log stays online."""
        waiting, self._waiting = self._waiting, []
        for _, listener in waiting:
            listener(error)

    def go_offline(self, reason: str) -> None:
        self.log.fail(reason)
        self.fail()

    def fail(self) -> None:
        """Refuse further appends and notify all waiters, after the log has failed."""
        self.append_error = StorageError(f"{self.log.failure}")
        if self.watcher is not None:
            self.watcher(self)
        self.fail_all(StorageError(f"{self.log.failure}"))
