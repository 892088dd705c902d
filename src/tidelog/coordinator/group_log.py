"""Log lines about groups, at a limited rate, because the sessions of thousands of members may expire together."""

import logging
from typing import TYPE_CHECKING

from tidelog.runtime.log_limit import LogLimit

if TYPE_CHECKING:
    from tidelog.coordinator.decision import LogLine
    from tidelog.runtime.interfaces import Clock, Tasks

logger = logging.getLogger("tidelog.coordinator")

LINES_MAX = 20
"""Upper bound on the lines that are written in one period."""
PERIOD_S = 10.0
"""Length of a period, in seconds. If lines were omitted in a period, one more line reports their
number at the end of the period."""


class GroupLog:
    """Writes the log lines of all coordinator partitions of a broker."""

    def __init__(self, clock: "Clock", tasks: "Tasks") -> None:
        self._clock = clock
        self._tasks = tasks
        self.append_failure_limit = LogLimit(clock.monotonic)
        """Limits the lines about appends that failed, for all partitions together."""
        self._period_end_s = 0.0
        self._line_count = 0
        self._omitted_count = 0

    def write(self, lines: "list[LogLine]") -> None:
        for line in lines:
            now_s = self._clock.monotonic()
            if now_s >= self._period_end_s:
                self._period_end_s = now_s + PERIOD_S
                self._line_count = 0
            self._line_count += 1
            if self._line_count <= LINES_MAX:
                logger.info(line.text, *line.arguments)
                continue
            if not self._omitted_count:
                self._tasks.call_later(self._period_end_s - now_s, self._log_omitted_count)
            self._omitted_count += 1

    def _log_omitted_count(self) -> None:
        logger.info("group log lines omitted count=%d", self._omitted_count)
        self._omitted_count = 0
