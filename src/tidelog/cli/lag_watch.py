"""`tidelog group lag --watch`: measure lag repeatedly, and show it with rates in a table that fits the terminal."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from tidelog.cli.errors import CommandError
from tidelog.cli.lag import NO_LAG, GroupPartition, Lag, behind_text, cell_or_dash, lag_json, row_style, total
from tidelog.cli.offline import warn_of_hidden_groups
from tidelog.cli.table_fit import BEFORE_NAMES, fit, left_out_text, shorten, wrap_lines
from tidelog.cli.tables import Column, Table, cell, console, json_line, name_text, print_notes, print_table, rich_table
from tidelog.cli.watching import NoAnswerPeriod, PollResult, polling
from tidelog.cli.when import duration_text, iso_time

if TYPE_CHECKING:
    from rich.console import RenderableType

REDRAW_S = 0.5
"""Time in seconds after which the duration of an outage is updated, as in "No answer from HOST:9092 for 5 s; still
trying."."""
FIXED_LINES = 6
"""Number of lines besides the rows: title, column titles, two horizontal lines, the total, and the cursor's line."""

NUMBER_COLUMNS = (
    Column("Partition", True, spare=-1),
    *(Column(title, True, spare=BEFORE_NAMES) for title in ("Committed", "End")),
    Column("Lag", True, style="bold", spare=-1),
    Column("Behind", True, spare=1),
    Column("Read/s", True, spare=2),
    Column("Written/s", True, spare=3),
    Column("Done in", True, spare=1),
)
"""The columns after group and topic."""


class Progress(NamedTuple):
    """Rates in records per second, from two measurements."""

    read_per_s: float
    written_per_s: float

    def until_caught_up(self, lag: int) -> str:
        """Return the time, as text, until a group that is `lag` records behind has caught up at these rates.

        "now" means that it has caught up. "never" means that records are written at least as fast as the group reads
        them.
        """
        if lag == 0:
            return "now"
        gain = self.read_per_s - self.written_per_s
        return duration_text(lag / gain) if gain > 0 else "never"


NO_OFFSETS = ("", "")
"""Used instead of committed offset and log end in a row for the sum of several partitions."""


class Row(NamedTuple):
    """A row of the table: one partition, or the sum of several partitions."""

    names: tuple[str, str, str]
    """Group, topic, partition. For several partitions, the first text describes them, and two texts are empty."""
    offsets: tuple[str, str]
    """Committed offset and log end; NO_OFFSETS for several partitions."""
    lag_cells: tuple[str, str, str, str, str]
    """Lag, age of the oldest record that the group has not committed, records read per second, records written per
    second, time until the group has caught up."""
    style: str = ""


class LagSource(Protocol):
    """Measures lag at each call."""

    offline: dict[str, list[int]]
    """Offline partitions that the last call could not read."""
    problems: list[str]
    """One line for each member, partition, topic or broker that the last call could not read. If the user named no
    groups, also one line for each group that the last call could not read."""
    failures: dict[str, CommandError]
    """The errors of groups that the user named, by group."""

    def __call__(self) -> list[Lag]: ...


def watch_lag(source: LagSource, interval_s: float, json: bool, bootstrap: str) -> None:
    """Measure and show lag until Ctrl-C.

    At a terminal, and without `json`, a table is redrawn in place. While no broker answers, it shows the last figures
    and a notice that says how old they are. If stdout is not a terminal, or with `json`, each measurement is printed
    as a table or as a JSON line, and the beginning and the end of an outage are reported on stderr.
    """
    view: LagView
    if sys.stdout.isatty() and not json:
        view = LiveTableView(bootstrap)
    else:
        view = LineView(bootstrap, json)
    previous: PollResult[LagSnapshot] | None = None
    last_offline: dict[str, list[int]] = {}
    last_problems: list[str] = []
    with view, polling(lambda: take_snapshot(source), interval_s) as poller:
        while True:
            current = poller.next(REDRAW_S)
            if current is not None:
                # rich prints stderr above the table that is redrawn. A message is printed only when it is new.
                if current.value.offline != last_offline:
                    last_offline = current.value.offline
                    warn_of_hidden_groups(last_offline)
                print_notes([line for line in current.value.problems if line not in last_problems])
                last_problems = current.value.problems
                # The first measurement has no rates: it is compared with an empty measurement.
                base = previous or current._replace(value=LagSnapshot([], {}, []))
                progress = rates_between(base.value.lags, current.value.lags, current.at_s - base.at_s)
                previous = current
                view.show(current.value, progress)
            view.show_outage(poller.outage())


class LagSnapshot(NamedTuple):
    """The results of one measurement."""

    lags: list[Lag]
    offline: dict[str, list[int]]
    problems: list[str]
    """The lines of `LagSource.problems`, and the errors of the groups that the user named."""


def take_snapshot(source: LagSource) -> LagSnapshot:
    """Measure once. Return the result with all messages, including the messages about groups that the user named."""
    lags = source()
    return LagSnapshot(lags, source.offline, source.problems + [str(failure) for failure in source.failures.values()])


class LagView(Protocol):
    def __enter__(self) -> "LagView": ...

    def __exit__(self, *raised: object) -> None: ...

    def show(self, snapshot: LagSnapshot, progress: dict[GroupPartition, Progress]) -> None:
        """Show a new measurement."""

    def show_outage(self, outage: NoAnswerPeriod | None) -> None:
        """Show the outage. None means that there is no outage, or that no measurement has succeeded yet. Called at
        least every REDRAW_S seconds.
        """


class LineView:
    """Prints one table or JSON line after another, and outages on stderr."""

    def __init__(self, bootstrap: str, json: bool) -> None:
        self._bootstrap = bootstrap
        self._json = json
        self._has_reported_outage = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        sys.stdout.flush()

    def show(self, snapshot: LagSnapshot, progress: dict[GroupPartition, Progress]) -> None:
        if self._has_reported_outage:
            self._has_reported_outage = False
            print(f"{self._bootstrap} answers again.", file=sys.stderr)
        if self._json:
            measurement = {"time": iso_time(time.time_ns() // 1_000_000), "lag": [*map(lag_json, snapshot.lags)]}
            print(json_line(measurement), flush=True)
        else:
            print_table(whole_table(snapshot.lags, progress))
            print(flush=True)

    def show_outage(self, outage: NoAnswerPeriod | None) -> None:
        if outage is not None and not self._has_reported_outage:
            self._has_reported_outage = True
            print(
                outage.text(self._bootstrap, duration_text(round(time.monotonic() - outage.since_s))), file=sys.stderr
            )


class LiveTableView:
    """A table that is redrawn in place. While no broker answers, a notice above it says how old the figures are."""

    def __init__(self, bootstrap: str) -> None:
        from rich.live import Live

        self._bootstrap = bootstrap
        self._live = Live(console=console(), auto_refresh=False)
        self._snapshot = LagSnapshot([], {}, [])
        self._progress: dict[GroupPartition, Progress] = {}
        self._measured_at = ""
        self._notice = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._live.stop()

    def show(self, snapshot: LagSnapshot, progress: dict[GroupPartition, Progress]) -> None:
        self._snapshot, self._progress = snapshot, progress
        self._measured_at = time.strftime("%H:%M:%S")
        self._notice = ""
        self._draw()

    def show_outage(self, outage: NoAnswerPeriod | None) -> None:
        notice = ""
        if outage is not None:
            text = outage.text(self._bootstrap, duration_text(round(time.monotonic() - outage.since_s)))
            notice = f"{text} Figures of {self._measured_at}; Ctrl-C stops."
        if notice != self._notice:
            self._notice = notice
            self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.styled import Styled
        from rich.text import Text

        width, height = self._live.console.size
        snapshot = self._snapshot
        notice = Text(self._notice, style="bold yellow", overflow="fold")
        notice_lines = len(notice.wrap(self._live.console, width)) if self._notice else 0
        figures: RenderableType = Text("The lag is unknown." if snapshot.offline else f"{NO_LAG} yet.")
        if snapshot.lags:
            figures = rich_table(watch_table(snapshot.lags, self._progress, width, height - notice_lines), width)
        if self._notice:
            figures = Group(notice, Styled(figures, "dim"))
        self._live.update(figures, refresh=True)


def rates_between(before: Sequence[Lag], after: Sequence[Lag], seconds: float) -> dict[GroupPartition, Progress]:
    """Return the rates between two measurements, for the partitions whose lag is known in both."""
    old = {lag.group_partition: lag for lag in before if lag.records is not None}
    return {
        lag.group_partition: Progress(
            growth(old[lag.group_partition].committed, lag.committed) / seconds,
            growth(old[lag.group_partition].end, lag.end) / seconds,
        )
        for lag in after
        if lag.records is not None and lag.group_partition in old
    }


def growth(before: int | None, after: int | None) -> int:
    """Return the difference. If it is negative, return 0, because an offset may have been reset to a lower offset.
    None counts as 0.
    """
    return max((after or 0) - (before or 0), 0)


def whole_table(lags: Sequence[Lag], progress: dict[GroupPartition, Progress]) -> Table:
    """Return a table with every partition and every column, for programs."""
    rows = [row(lag, progress) for lag in lags]
    return Table(
        [Column("Group"), Column("Topic"), *NUMBER_COLUMNS], [[*r.names, *r.offsets, *r.lag_cells] for r in rows]
    )


def watch_table(lags: Sequence[Lag], progress: dict[GroupPartition, Progress], width: int, height: int) -> Table:
    """Return a table with at most `height` lines when it is drawn `width` cells wide. It always has at least one row
    and the FIXED_LINES, which include the total.

    If all rows have the same group or topic, its name is in the title instead of a column. If the table is too wide,
    the columns Committed and End are omitted first, then names are shortened (`cli.table_fit`). If not all rows
    fit, one row contains the sum of the remaining partitions (see `split_to_fit`).
    """
    table = table_of_rows(lags, progress, width, height - FIXED_LINES)
    note = left_out_text(table, fit(table, width))
    if not note:
        return table
    return table_of_rows(lags, progress, width, height - FIXED_LINES - len(wrap_lines(note, width)))


def table_of_rows(lags: Sequence[Lag], progress: dict[GroupPartition, Progress], width: int, rows_max: int) -> Table:
    """Return a table with at most `rows_max` rows, but at least one, and a footer with the total."""
    shown, hidden = split_to_fit(lags, max(rows_max, 1))
    rows = [row(lag, progress) for lag in shown]
    if hidden:
        rows.append(sum_row(f"{len(hidden)} more", hidden, progress))
    rows.append(sum_row("all", lags, progress))
    kinds_in_title = [
        kind if len({lag.group_partition[index] for lag in lags}) == 1 else ""
        for index, kind in enumerate(("group", "topic"))
    ]
    names = [Column(title) for title, in_title in zip(("Group", "Topic"), kinds_in_title, strict=True) if not in_title]
    columns = [*names, *NUMBER_COLUMNS]
    cells = [
        [
            *(name for name, in_title in zip(r.names, [*kinds_in_title, ""], strict=True) if not in_title),
            *r.offsets,
            *r.lag_cells,
        ]
        for r in rows
    ]
    # The name of a sum is in the first column, even if that is the column of partitions.
    for cells_of_row, source_row in zip(cells, rows, strict=True):
        if source_row.offsets == NO_OFFSETS:
            cells_of_row[0] = source_row.names[0]
    title = "  ".join(
        f"{kind} {name_text(str(lags[0].group_partition[index]))}" for index, kind in enumerate(kinds_in_title) if kind
    )
    styles = [source_row.style for source_row in rows[:-1]]
    title = shorten(title, width)
    return Table(columns, cells[:-1], title=title, footer=cells[-1], row_styles=styles, shorten=True)


def split_to_fit(lags: Sequence[Lag], rows_max: int) -> tuple[list[Lag], list[Lag]]:
    """Split the partitions into those that have rows of their own, and those that share one row. Both lists are in
    the given order. The second list is empty if all partitions fit.

    The partitions of the first list are chosen in this order: first the partitions with the largest lags; then those
    with an unknown lag (most of them have no commit), starting with the highest end offset; last those whose lag is 0.
    """
    if len(lags) <= rows_max:
        return list(lags), []
    by_lag = sorted(lags, key=lambda lag: (lag.records or 0, lag.records is None, lag.end or 0), reverse=True)
    shown = {lag.group_partition: None for lag in by_lag[: rows_max - 1]}
    return [lag for lag in lags if lag.group_partition in shown], [
        lag for lag in lags if lag.group_partition not in shown
    ]


def row(lag: Lag, progress: dict[GroupPartition, Progress]) -> Row:
    return Row(
        (name_text(lag.group), name_text(lag.topic), str(lag.partition)),
        (cell_or_dash(lag.committed), cell_or_dash(lag.end)),
        (
            cell_or_dash(lag.records),
            behind_text(lag.behind_ms),
            *progress_cells(lag.records, progress.get(lag.group_partition)),
        ),
        row_style(lag),
    )


def sum_row(name: str, lags: Sequence[Lag], progress: dict[GroupPartition, Progress]) -> Row:
    """Return a row for several partitions together."""
    parts = [progress[lag.group_partition] for lag in lags if lag.group_partition in progress]
    rates = Progress(sum(p.read_per_s for p in parts), sum(p.written_per_s for p in parts)) if parts else None
    sum_of_all = total(lags)
    lag_cells = (
        sum_of_all.text(),
        behind_text(sum_of_all.behind_ms),
        *progress_cells(sum_of_all.records, rates),
    )
    return Row((name, "", ""), NO_OFFSETS, lag_cells)


def progress_cells(lag: int | None, progress: Progress | None) -> tuple[str, str, str]:
    """Return three texts for a group that is `lag` records behind: records read per second, records written per
    second, and the time until it has caught up. They are empty if the rates or the lag are not known.
    """
    if progress is None or lag is None:
        return "", "", ""
    return cell(round(progress.read_per_s)), cell(round(progress.written_per_s)), progress.until_caught_up(lag)
