"""Fair scheduling of connections that have more requests at hand than they may handle in one turn of the loop.

They take turns, so that all of them together hold up other connections hardly longer than one of them does.
"""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.broker.connection import ServerConnection
    from tidelog.runtime.interfaces import Tasks

REQUESTS_PER_TURN = 64
"""Requests of one connection that are handled in one turn, and of all waiting connections together."""
ALL_PER_TURN = 256
"""Requests of all connections that are handled directly when they arrive, per turn. Up to 50 producers with five
outstanding requests each need no second turn."""
COMBINE_REQUESTS = 16
"""With at least this many complete small frames at hand, their responses are sent in one call."""
SHARE_MIN = 2
"""Requests that a connection may always handle directly, however many other connections have waiting requests."""


class Pipelining:
    """Connections with waiting requests, in the order of their next turns."""

    def __init__(self, tasks: "Tasks") -> None:
        self._tasks = tasks
        self._behind: deque[ServerConnection] = deque()
        self._left = ALL_PER_TURN
        """Requests that may still be handled directly. It is reset in the loop's next turn, once half of it is used."""
        self._called = False
        self.share = REQUESTS_PER_TURN
        """Requests that one connection may handle directly when they arrive."""

    def handled(self, count: int) -> None:
        """Count requests that a connection has handled in a row."""
        self._left -= count
        if self._left < ALL_PER_TURN // 2:
            self._call()
        self._divide()

    def add(self, connection: "ServerConnection") -> None:
        """Let the connection continue in a later turn."""
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
            for _ in range(len(behind)):  # a connection with further requests is added again
                behind.popleft().go_on(most)
                if self._left <= ALL_PER_TURN - REQUESTS_PER_TURN:
                    break
        finally:
            if behind:
                self._call()
