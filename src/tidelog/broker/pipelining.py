"""Fair scheduling of connections that have received more requests than they may handle in one turn of the event
loop.

These connections are served in rotation. So all waiting connections together delay other connections only slightly
longer than a single waiting connection would.
"""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.broker.connection import ServerConnection
    from tidelog.runtime.interfaces import Tasks

REQUESTS_PER_TURN = 64
"""Maximum number of requests that one connection handles in one turn. All connections together also handle at most
about this number of waiting requests in one turn."""
DIRECT_PER_TURN = 256
"""Number of requests of all connections together that are handled directly when they arrive, in one turn. When this
number is used up, each connection may still handle SHARE_MIN requests. The number is so large that 50 producers with
five outstanding requests each need only one turn."""
COMBINE_REQUESTS = 16
"""If the bytes that a connection has received are enough for this many frames of the first frame's size, the responses
are sent in one call."""
SHARE_MIN = 2
"""Number of requests that a connection may always handle directly, even if many other connections have waiting
requests."""


class Pipelining:
    """Connections with waiting requests, in the order in which they continue."""

    def __init__(self, tasks: "Tasks") -> None:
        self._tasks = tasks
        self._queue: deque[ServerConnection] = deque()
        self._direct_left = DIRECT_PER_TURN
        """Number of requests that may still be handled directly in this turn. When less than half of
        DIRECT_PER_TURN is left, a turn is scheduled, which resets the number."""
        self._is_turn_scheduled = False
        self.share = REQUESTS_PER_TURN
        """Number of requests that one connection may handle directly when they arrive."""

    def count_handled(self, count: int) -> None:
        """Count requests that a connection has handled, directly or after they waited."""
        self._direct_left -= count
        if self._direct_left < DIRECT_PER_TURN // 2:
            self._schedule_turn()
        self._update_share()

    def add(self, connection: "ServerConnection") -> None:
        """Let the connection continue in a later turn."""
        self._queue.append(connection)
        self._schedule_turn()
        self._update_share()

    def _update_share(self) -> None:
        self.share = max(SHARE_MIN, min(self._direct_left, REQUESTS_PER_TURN // (1 + len(self._queue))))

    def _schedule_turn(self) -> None:
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._tasks.call_soon(self._run_turn)

    def _run_turn(self) -> None:
        queue = self._queue
        self._is_turn_scheduled = False
        self._direct_left = DIRECT_PER_TURN
        self._update_share()
        # Each connection may handle COMBINE_REQUESTS requests or more, so that one call can send many responses.
        requests_max = max(COMBINE_REQUESTS, REQUESTS_PER_TURN // max(1, len(queue)))
        try:
            for _ in range(len(queue)):  # a connection with further requests is added again
                queue.popleft().resume_in_turn(requests_max)
                if self._direct_left <= DIRECT_PER_TURN - REQUESTS_PER_TURN:  # enough requests for one turn
                    break
        finally:
            if queue:
                self._schedule_turn()
