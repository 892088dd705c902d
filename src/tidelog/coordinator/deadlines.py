"""Many deadlines that share one timer. Pure. Each heartbeat postpones a deadline, which costs only one assignment."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from tidelog.coordinator.decision import Decision, Moment

STALE_MIN = 1000
"""The heap is rebuilt when it has more stale entries than this, and more than half of its entries are stale."""


class Deadline:
    """A time at which a callback is called. It can be postponed or cleared."""

    __slots__ = ("_queued_ms", "at_ms", "callback", "subject")

    def __init__(self, callback: Callable[[Any, Decision, Moment], None], subject: Any = None) -> None:
        self.callback = callback
        self.subject = subject
        """Passed to `callback`, together with the decision to which the callback adds its effects, and the time."""
        self.at_ms: int | None = None
        """Monotonic milliseconds; None if the deadline is not set. Only `Deadlines` changes it."""
        self._queued_ms: int | None = None


class Deadlines:
    """All deadlines of one coordinator partition. Times are monotonic milliseconds."""

    __slots__ = ("_count", "_heap", "_stale")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._count = 0
        self._stale = 0

    def set(self, deadline: Deadline, at_ms: int) -> None:
        """Set the deadline to `at_ms`, whether it was set before or not."""
        queued = deadline._queued_ms
        if deadline.at_ms is None and queued is not None:
            self._stale -= 1
        deadline.at_ms = at_ms
        # `due` pushes an entry that it pops too early again with the new time, so a later time needs no change of the
        # heap here.
        if queued is None or at_ms < queued:
            if queued is not None:
                self._stale += 1
            self._push(deadline, at_ms)

    def clear(self, deadline: Deadline) -> None:
        if deadline.at_ms is not None:
            deadline.at_ms = None
            self._stale += 1
            if self._stale > STALE_MIN and self._stale * 2 > len(self._heap):
                self._rebuild()

    def next_ms(self) -> int | None:
        """Return a time before which no deadline is due; None if no deadline is set."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[Deadline]:
        """Remove and yield the due deadlines, the earliest first. Deadlines that are set during the iteration are
        included.
        """
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            queued, _, deadline = heappop(heap)
            if deadline._queued_ms != queued:
                self._stale -= 1
                continue
            deadline._queued_ms = None
            at_ms = deadline.at_ms
            if at_ms is None:
                self._stale -= 1
            elif at_ms > now_ms:
                self._push(deadline, at_ms)
            else:
                deadline.at_ms = None
                yield deadline

    def __len__(self) -> int:
        """Number of heap entries, including those of cleared deadlines."""
        return len(self._heap)

    def _push(self, deadline: Deadline, at_ms: int) -> None:
        deadline._queued_ms = at_ms
        self._count += 1
        heappush(self._heap, (at_ms, self._count, deadline))

    def _rebuild(self) -> None:
        current_entries = []
        for queued, count, deadline in self._heap:
            if deadline._queued_ms != queued:
                continue
            if deadline.at_ms is None:
                deadline._queued_ms = None
            else:
                current_entries.append((queued, count, deadline))
        self._heap[:] = current_entries
        heapify(self._heap)
        self._stale = 0
