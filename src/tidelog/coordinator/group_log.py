"""What coordinators say of groups in the broker's log, at a bounded pace: thousands of members may expire at once."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.coordinator.decision import LogLine
    from tidelog.runtime.interfaces import Clock, Tasks

logger = logging.getLogger("tidelog.coordinator")

LINES_MAX = 20
PERIOD_S = 10.0
"""There are at most LINES_MAX lines in a period, and one that counts the others."""


class GroupLog:
    """One for all coordinator partitions of a broker."""

    def __init__(self, clock: "Clock", tasks: "Tasks") -> None:
        self._clock = clock
        self._tasks = tasks
        self._period_end = 0.0
        self._lines = 0
        self._left_out = 0

    def write(self, lines: "list[LogLine]") -> None:
        for line in lines:
            now = self._clock.monotonic()
            if now >= self._period_end:
                self._period_end = now + PERIOD_S
                self._lines = 0
            self._lines += 1
            if self._lines <= LINES_MAX:
                logger.info(line.text, *line.arguments)
                continue
            if not self._left_out:
                self._tasks.call_later(self._period_end - now, self._count_left_out)
            self._left_out += 1

    def _count_left_out(self) -> None:
        logger.info("lines about groups left out count=%d", self._left_out)
        self._left_out = 0
