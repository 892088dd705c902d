"""How far a streaming query is behind its topics, computed from the progress that Spark reports.

A source that is written in Python cannot report metrics to Spark. But each progress report of a query has, for each
source, the offsets at which the micro-batch ended and the ends of the partitions at that time. The computation works
for format tidelog and for Spark's own Kafka source.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_tidelog.offsets import Offsets, offsets_of
from tidelog.model.ids import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

REPORTS_MAX = 512
"""Upper bound on the number of reports that are kept for a query. If there are more, every other
report is removed."""


class Lag(NamedTuple):
    """How far a query is behind its topics."""

    records: int
    """Number of offsets that were in the topics but not yet processed. After compaction or transactions, there are
    fewer records than offsets."""
    seconds: float
    """A lower bound on the age of the oldest offset that is not yet processed. It is the time between two reports: the
    first report in which the end of the partition is above this offset, and the newest report. The record existed
    already at the time of the first report. 0 if no offset is left to process."""
    partitions: Mapping[TopicPartition, int]
    """The part of `records` in each partition."""


class Report(NamedTuple):
    """The offsets in one progress report, of all topics that the query reads."""

    at: datetime
    processed: Offsets
    """The end of the latest micro-batch in each partition, exclusive."""
    latest: Offsets
    """The ends of the partitions."""


def report_of(progress: Mapping[str, Any]) -> Report | None:
    """Return the offsets of the sources that read topics; None if `progress` has no such offsets.

    `progress` is a progress report of Spark: `query.lastProgress`, or the parsed `json` of a listener's event.
    """
    processed: Offsets = {}
    latest: Offsets = {}
    for source in progress.get("sources", ()):
        end = offsets_of_topics(source.get("endOffset"))
        processed |= end
        latest |= end | (offsets_of_topics(source.get("latestOffset")) if end else {})
    return Report(datetime.fromisoformat(progress["timestamp"]), processed, latest) if processed else None


class LagTracker:
    """Computes the lag of one query from its progress reports, which are added in order."""

    def __init__(self) -> None:
        self._reports: list[Report] = []
        """The newest report, and the earlier reports that name a partition end which the query has not reached yet;
        oldest first."""
        self.lag: Lag | None = None
        """The lag at the latest report; None before the first report with offsets of a topic."""

    def add(self, progress: Mapping[str, Any]) -> Lag | None:
        """Add the next report, and return the lag."""
        report = report_of(progress)
        if report is None:
            return self.lag
        self._reports = [*(each for each in self._reports if _exceeds(each.latest, report.processed)), report]
        if len(self._reports) > REPORTS_MAX:
            self._reports = self._reports[::2]
        unread = {tp: max(0, end - report.processed.get(tp, 0)) for tp, end in report.latest.items()}
        records = sum(unread.values())
        seconds = max(0.0, (report.at - self._reports[0].at).total_seconds()) if records else 0.0
        self.lag = Lag(records, seconds, unread)
        return self.lag


def lag_listener(listen: Callable[[str, str | None, Lag], None]) -> "StreamingQueryListener":
    """Return a listener for `spark.streams.addListener`.

    After each progress report of a query that reads topics, the listener calls `listen(query id, query name, lag)` on
    one of Spark's threads. The query id is the same after a restart from the checkpoint.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    trackers: dict[str, LagTracker] = {}

    class LagListener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            trackers[str(event.id)] = LagTracker()

        def onQueryProgress(self, event: Any) -> None:
            progress = json.loads(event.progress.json)
            lag = trackers.setdefault(progress["id"], LagTracker()).add(progress)
            if lag is not None:
                listen(progress["id"], progress.get("name"), lag)

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            trackers.pop(str(event.id), None)

    return LagListener()


def _exceeds(latest: Offsets, processed: Offsets) -> bool:
    """Return whether the end of at least one partition is above the processed offset of this partition."""
    return any(end > processed.get(tp, 0) for tp, end in latest.items())


def offsets_of_topics(document: Any) -> Offsets:
    """Return the offsets in `document`, the position of a source; an empty dictionary if the source reads no topics."""
    try:
        parsed = json.loads(document) if isinstance(document, str) else document
        offsets = offsets_of(parsed) if isinstance(parsed, dict) else {}
    except (AttributeError, ValueError):
        return {}
    return offsets if all(isinstance(offset, int) for offset in offsets.values()) else {}
