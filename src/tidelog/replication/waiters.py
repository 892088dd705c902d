"""The requests that have appended records to a partition and wait until one of its two marks has passed these records.

Each mark has its own collection of waiters. A waiter names the offset that the mark must reach, and the leader epoch in
which the request's records were appended. If this epoch ends before the mark reaches the offset, the waiter gets an
error, because another leader may replace the records.
"""

import logging
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from tidelog.wire.errors import ApiError, NotLeaderOrFollower

logger = logging.getLogger("tidelog.partition")

CommitListener = Callable[[ApiError | None], None]
"""Called once: with None when the mark has reached the offset, or with an error when the mark can no longer reach
it."""


class Mark(Enum):
    """The mark that an acknowledgement waits for."""

    LOCAL = "local mark"
    """The records are durable enough on the leader (acks=1)."""
    COMMITTED = "high watermark"
    """The records are on every in-sync replica (acks=all)."""


class Waiter(NamedTuple):
    next_offset: int
    leader_epoch: int
    listener: CommitListener


class Waiters(deque[Waiter]):
    """The requests that wait for one mark of one partition, in ascending order of their offsets."""

    __slots__ = ("_partition",)

    def __init__(self, partition: str) -> None:
        super().__init__()
        self._partition = partition
        """The partition's name, for errors and log lines."""

    def add(self, waiter: Waiter) -> None:
        position = len(self)
        while position and self[position - 1].next_offset > waiter.next_offset:
            position -= 1  # the request repeats an earlier batch
        self.insert(position, waiter)

    def answer(self, mark: int) -> None:
        """Call the listeners whose offset the mark has reached."""
        while self and self[0].next_offset <= mark:
            self._call(self.popleft(), None)

    def fail(self, error: ApiError) -> None:
        """Call all listeners with `error`."""
        waiting = list(self)
        self.clear()
        for waiter in waiting:
            self._call(waiter, error)

    def fail_older_epochs(self, leader_epoch: int) -> None:
        """Fail the waiters of leader epochs before `leader_epoch`."""
        waiting = list(self)
        self.clear()
        for waiter in waiting:
            if waiter.leader_epoch < leader_epoch:
                error = NotLeaderOrFollower(f"leader epoch {waiter.leader_epoch} of {self._partition} has ended")
                self._call(waiter, error)
            else:
                self.append(waiter)

    def _call(self, waiter: Waiter, error: ApiError | None) -> None:
        """Call one listener. Its failure must not affect the other listeners or the flusher."""
        try:
            waiter.listener(error)
        except Exception:
            logger.exception("listener failed partition=%s", self._partition)
