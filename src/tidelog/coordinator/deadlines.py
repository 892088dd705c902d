"""Many deadlines that share one timer. Postponing a deadline, as each heartbeat does, costs only one assignment.

The module is pure: it does no input or output, and its callers pass the current time.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from tidelog.coordinator.decision import Decision, Moment

STALE_MIN = 1000
"""`Deadlines.clear` rebuilds the heap if it has more stale entries than this, and more than half of its entries are
stale. An entry is stale if its deadline was cleared, or if a newer entry of its deadline has an earlier time."""


class Deadline:
    """A time at which a callback is called. It can be postponed or cleared."""

    __slots__ = ("_queued_ms", "at_ms", "callback", "subject")

    def __init__(self, callback: Callable[[Any, Decision, Moment], None], subject: Any = None) -> None:
        self.callback = callback
        self.subject = subject
        """The callback's first argument. The other two are the decision to which the callback adds its effects, and
        the current time."""
        self.at_ms: int | None = None
        """Monotonic milliseconds; None if the deadline is not set. Only `Deadlines` changes this attribute."""
        self._queued_ms: int | None = None
        """Time of the deadline's newest heap entry; None if the heap does not contain this entry any more."""


class Deadlines:
    """All deadlines of one coordinator partition. Times are monotonic milliseconds."""

    __slots__ = ("_heap", "_push_count", "_stale_count")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._push_count = 0
        self._stale_count = 0

    def set(self, deadline: Deadline, at_ms: int) -> None:
        """Set the deadline to `at_ms`, whether it was set before or not."""
        queued = deadline._queued_ms
        if deadline.at_ms is None and queued is not None:
            self._stale_count -= 1
        deadline.at_ms = at_ms
        # A later time needs no change of the heap here. When the old entry is due, `due` pops it, sees the later time
        # and pushes a new entry.
        if queued is None or at_ms < queued:
            if queued is not None:
                self._stale_count += 1
            self._push(deadline, at_ms)

    def clear(self, deadline: Deadline) -> None:
        if deadline.at_ms is not None:
            deadline.at_ms = None
            self._stale_count += 1
            if self._stale_count > STALE_MIN and self._stale_count * 2 > len(self._heap):
                self._rebuild()

    def next_ms(self) -> int | None:
        """Return a time before which no deadline is due; None if the heap is empty."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[Deadline]:
        """Remove and yield the deadlines that are due, in the order of their heap entries.

        A deadline that was postponed may still have the heap entry of its earlier time, so it can come before
        a deadline whose time is earlier. Deadlines that become due by a call of `set` during the iteration are
        included.
        """
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            queued, _, deadline = heappop(heap)
            if deadline._queued_ms != queued:
                self._stale_count -= 1
                continue
            deadline._queued_ms = None
            at_ms = deadline.at_ms
            if at_ms is None:
                self._stale_count -= 1
            elif at_ms > now_ms:
                self._push(deadline, at_ms)
            else:
                deadline.at_ms = None
                yield deadline

    def __len__(self) -> int:
        """Number of heap entries, including entries of cleared deadlines."""
        return len(self._heap)

    def _push(self, deadline: Deadline, at_ms: int) -> None:
        deadline._queued_ms = at_ms
        self._push_count += 1
        heappush(self._heap, (at_ms, self._push_count, deadline))

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
        self._stale_count = 0
