"""Connections with more requests at hand than they may have handled in one turn of the loop: they take turns, so that
all of them together hold up the others hardly longer than one does.
"""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.broker.connection import ServerConnection
    from tidelog.runtime.interfaces import Tasks

REQUESTS_PER_TURN = 64
"""Of one connection, and of all whose requests were put aside; then the loop has its next turn."""
ALL_PER_TURN = 256
"""Of all connections, as they come: producers with five requests on their way need no second turn until they are 50."""
COMBINE_REQUESTS = 16
"""With at least so many complete small frames at hand, their responses leave in one send."""
SHARE_MIN = 2
"""Requests that a connection has handled as they come, however many others have more."""


class Pipelining:
    """Connections whose requests were put aside for a later turn, in the order in which they come to it."""

    def __init__(self, tasks: "Tasks") -> None:
        self._tasks = tasks
        self._behind: deque[ServerConnection] = deque()
        self._left = ALL_PER_TURN
        """How many more may be handled until it is renewed: in the loop's next turn, once half of it is used."""
        self._called = False
        self.share = REQUESTS_PER_TURN
        """Requests that a connection has handled at once when they come, or when what they waited for does."""

    def handled(self, count: int) -> None:
        """A connection had so many requests handled, one behind the other."""
        self._left -= count
        if self._left < ALL_PER_TURN // 2:
            self._call()
        self._divide()

    def add(self, connection: "ServerConnection") -> None:
        """Let it go on in a later turn."""
        self._behind.append(connection)
        self._call()
        self._divide()

    def _divide(self) -> None:
        self.share = max(SHARE_MIN, min(self._left, REQUESTS_PER_TURN // (1 + len(self._behind))))

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._tasks.call_soon(self._turn)

    def _turn(self) -> None:
        behind = self._behind
        self._called = False
        self._left = ALL_PER_TURN
        self._divide()
        most = max(COMBINE_REQUESTS, REQUESTS_PER_TURN // max(1, len(behind)))
        try:
            for _ in range(len(behind)):  # who has still more to do is added again
                behind.popleft().go_on(most)
                if self._left <= ALL_PER_TURN - REQUESTS_PER_TURN:
                    break
        finally:
            if behind:
                self._call()
