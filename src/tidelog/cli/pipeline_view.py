"""Show the figures of running pipelines. If stdout is a terminal, the figures are a table that is redrawn. If stdout is
a pipe or a file, a line is written when a micro-batch has ended or the state of a pipeline has changed. With --json,
these lines are written as JSON, even on a terminal.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol, Self

from tidelog.cli.tables import (
    Column,
    Table,
    console,
    count,
    counted,
    json_line,
    printable,
    rich_table,
    size,
)
from tidelog.cli.when import duration_text, iso_time
from tidelog.pipelines.status import FAILED, RUNNING, WAITING, PipelineStatus, QueryStatus
from tidelog.runtime.clock import SystemClock

COLUMNS = (
    Column("Pipeline"),
    Column("State"),
    Column("Rows/s", True, style="bold", spare=-1),
    Column("Rows", True, spare=5),
    Column("Lag", True, style="bold", spare=-1),
    Column("Behind", True, spare=1),
    Column("Batch", True, spare=2),
    Column("State size", True, spare=4),
    Column("Late", True, spare=6),
    Column("Dead", True, spare=3),
    Column("Restarts", True, spare=7),
)
STYLES = {RUNNING: "green", WAITING: "yellow", FAILED: "red"}


class PipelineView(Protocol):
    def __enter__(self) -> "PipelineView": ...

    def __exit__(self, *raised: object) -> None: ...

    def show(self, statuses: Sequence[PipelineStatus], note: str = "") -> None:
        """Show the figures. Called several times per second. `note` says what the program is doing, if it is not
        simply running.
        """


class LiveView:
    """A table that is redrawn in place."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(console=console(), auto_refresh=False)
        self._drawn: object = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._live.stop()

    def show(self, statuses: Sequence[PipelineStatus], note: str = "") -> None:
        from rich.console import Group
        from rich.text import Text

        table = status_table(statuses)
        errors = error_lines(statuses)
        content = (table.rows, errors, note, self._live.console.size)
        if content == self._drawn:
            return
        self._drawn = content
        lines = [Text(line, style="red", overflow="fold") for line in errors]
        if note:
            lines.append(Text(note, style="dim"))
        self._live.update(Group(rich_table(table, self._live.console.width), *lines), refresh=True)


class LineView:
    """Prints a line when a micro-batch has ended or a state has changed: text, or JSON."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._seen: dict[str, tuple[object, ...]] = {}
        self._note = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        sys.stdout.flush()

    def show(self, statuses: Sequence[PipelineStatus], note: str = "") -> None:
        if note and note != self._note:
            print(note, file=sys.stderr)
        self._note = note
        for status in statuses:
            key = (status.state, status.restarts, status.error)
            batches = tuple(query.batches for query in status.queries)
            seen = self._seen.get(status.pipeline)
            if seen == (key, batches):
                continue
            self._seen[status.pipeline] = (key, batches)
            if self._json:
                moment = iso_time(SystemClock.now_ms())
                print(json_line({"time": moment} | status_json(status)), flush=True)
                continue
            if seen is None or seen[0] != key:
                print(state_line(status), flush=True)
            old = seen[1] if seen is not None else ()
            for number, query in enumerate(status.queries):
                previous = old[number] if isinstance(old, tuple) and number < len(old) else 0
                if query.batches > previous:
                    print(batch_line(status, query), flush=True)


def status_json(status: PipelineStatus) -> dict[str, Any]:
    return status.document()


def query_name(status: PipelineStatus, query: QueryStatus) -> str:
    return status.pipeline if query.sink == status.pipeline else f"{status.pipeline}/{query.sink}"


def state_line(status: PipelineStatus) -> str:
    parts = [clock_time(), status.pipeline, status.state]
    if status.error and status.state in (WAITING, FAILED):
        parts.append(printable(status.error))
    if status.state == WAITING and status.restart_in_s is not None:
        parts.append(f"(restart in {duration_text(round(status.restart_in_s))})")
    return "  ".join(parts)


def batch_line(status: PipelineStatus, query: QueryStatus) -> str:
    seconds = duration_text(query.batch_ms / 1000)
    parts = [clock_time(), query_name(status, query), f"{counted(query.rows, 'row')} in all"]
    parts.append(f"newest micro-batch {seconds}, {count(round(query.rows_per_s))} rows/s")
    if query.lag_records is not None:
        parts.append(f"lag {count(query.lag_records)}")
    if query.state_rows:
        parts.append(f"state {counted(query.state_rows, 'row')}")
    if query.late_rows:
        parts.append(f"late {count(query.late_rows)}")
    if query.dead_letters:
        parts.append(f"dead {count(query.dead_letters)}")
    return "  ".join(parts)


def clock_time() -> str:
    return time.strftime("%H:%M:%S")


def error_lines(statuses: Sequence[PipelineStatus]) -> list[str]:
    """Return a line for each pipeline that has failed, also if it will be restarted."""
    lines = []
    for status in statuses:
        if status.error and status.state in (WAITING, FAILED):
            restart = ""
            if status.state == WAITING and status.restart_in_s is not None:
                restart = f" (restart in {round(status.restart_in_s)} s)"
            lines.append(f"{status.pipeline}: {printable(status.error)}{restart}")
    return lines


def status_table(statuses: Sequence[PipelineStatus]) -> Table:
    """Return a table with a row for each query, or one row for a pipeline without queries."""
    rows, styles = [], []
    for status in statuses:
        for query in status.queries or [QueryStatus(status.pipeline)]:
            has_figures = bool(status.queries)
            behind = "-" if query.lag_ms is None else duration_text(behind_s(query.lag_ms))
            rows.append(
                [
                    query_name(status, query),
                    status.state,
                    count(round(query.rows_per_s)) if has_figures else "-",
                    count(query.rows),
                    "-" if query.lag_records is None else count(query.lag_records),
                    behind,
                    duration_text(query.batch_ms / 1000) if query.batches else "-",
                    size(query.state_bytes) if query.state_rows or query.state_bytes else "-",
                    count(query.late_rows),
                    count(query.dead_letters),
                    count(status.restarts),
                ]
            )
            styles.append(STYLES.get(status.state, ""))
    return Table(COLUMNS, rows, row_styles=styles, shorten=True)


def behind_s(lag_ms: int) -> float:
    """Convert the lag to seconds. A lag of 10 seconds or more is rounded down to whole seconds."""
    return lag_ms / 1000 if lag_ms < 10_000 else lag_ms // 1000
