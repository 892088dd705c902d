"""`tidelog group lag --watch`: lag again and again, with the rates in between, in the space that a terminal has."""

import json as json_text
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tidelog.cli.lag import NO_LAG, Lag, Place, behind_text, cell_or_dash, lag_json, total, urgency
from tidelog.cli.offline import tell_of_groups
from tidelog.cli.tables import Column, Table, cell, console, print_table, rich_table
from tidelog.cli.when import iso, span

GAP = 2
"""Between two columns."""
NAME_WIDTH_MIN = 8
FIXED_LINES = 6
"""Title, head, two rules, the sum of all, and the cursor's own line."""


NUMBERS = (
    *(Column(title, True) for title in ("Partition", "Committed", "End")),
    Column("Lag", True, style="bold"),
    *(Column(title, True) for title in ("Behind", "Read/s", "Written/s", "Done in")),
)


class Progress(NamedTuple):
    """What two measurements say together."""

    read_per_s: float
    written_per_s: float

    def until_caught_up(self, lag: int) -> str:
        """How long at this rate."""
        if lag == 0:
            return "now"
        gain = self.read_per_s - self.written_per_s
        return span(lag / gain) if gain > 0 else "never"


NO_OFFSETS = ("", "")


class Row(NamedTuple):
    """One partition, or several together."""

    names: tuple[str, str, str]
    """Group, topic, partition."""
    offsets: tuple[str, str]
    """Committed and end; empty for several partitions."""
    numbers: tuple[str, str, str, str, str]
    """Lag, age of its oldest record, read and written a second, time until it has caught up."""
    style: str = ""


class Looks(Protocol):
    """Measures, once a call."""

    offline: dict[str, list[int]]
    """What the last call could not see."""

    def __call__(self) -> list[Lag]: ...


def watch_lag(look: Looks, interval_s: float, json: bool) -> None:
    """Until Ctrl-C: a terminal's is redrawn in place, a pipe gets one table or JSON line after another."""
    before: list[Lag] = []
    then = 0.0
    told: dict[str, list[int]] = {}
    live = None
    if sys.stdout.isatty() and not json:
        from rich.live import Live

        live = Live(console=console(), auto_refresh=False)
        live.start()
    try:
        while True:
            now, lags = time.monotonic(), look()
            if look.offline != told:
                told = look.offline
                tell_of_groups(told)  # above the table that is redrawn: rich leads stderr there
            progress = measured(before, lags, now - then)
            if json:
                measurement = {"time": iso(time.time_ns() // 1_000_000), "lag": [*map(lag_json, lags)]}
                print(json_text.dumps(measurement), flush=True)
            elif live is not None:
                table = watch_table(lags, progress, *live.console.size)
                none = "No lag can be seen." if look.offline else f"{NO_LAG} yet."
                live.update(rich_table(table) if lags else none, refresh=True)
            else:
                print_table(whole_table(lags, progress))
                print(flush=True)
            before, then = lags, now
            time.sleep(interval_s)
    finally:
        if live is not None:
            live.stop()


def measured(before: Sequence[Lag], after: Sequence[Lag], seconds: float) -> dict[Place, Progress]:
    """The rates between two measurements, for the partitions that both know."""
    old = {lag.place: lag for lag in before if lag.records is not None}
    return {
        lag.place: Progress(
            growth(old[lag.place].committed, lag.committed) / seconds, growth(old[lag.place].end, lag.end) / seconds
        )
        for lag in after
        if lag.records is not None and lag.place in old
    }


def growth(before: int | None, after: int | None) -> int:
    """Never negative: an offset that was set back is no reading."""
    return max((after or 0) - (before or 0), 0)


def whole_table(lags: Sequence[Lag], progress: dict[Place, Progress]) -> Table:
    """Every partition and every column, for programs."""
    rows = [row(lag, progress) for lag in lags]
    return Table([Column("Group"), Column("Topic"), *NUMBERS], [[*r.names, *r.offsets, *r.numbers] for r in rows])


def watch_table(lags: Sequence[Lag], progress: dict[Place, Progress], width: int, height: int) -> Table:
    """At most `width` x `height` cells: what all rows have in common is the title, names that are too long are
    shortened, offsets are left out where they do not fit, and so are partitions with little lag, summed up in one row.
    """
    shown, hidden = fitting(lags, max(height - FIXED_LINES, 1))
    rows = [row(lag, progress) for lag in shown]
    if hidden:
        rows.append(together(f"{len(hidden)} more", hidden, progress))
    rows.append(together("all", lags, progress))
    common = [
        kind if len({lag.place[index] for lag in lags}) == 1 else "" for index, kind in enumerate(("group", "topic"))
    ]
    names = [Column(title) for title, one in zip(("Group", "Topic"), common, strict=True) if not one]
    columns = [*names, *NUMBERS]
    cells = [
        [*(name for name, one in zip(r.names, [*common, ""], strict=True) if not one), *r.offsets, *r.numbers]
        for r in rows
    ]
    # What a sum is called stands in the first column, whichever that is.
    for line, made in zip(cells, rows, strict=True):
        if made.offsets == NO_OFFSETS:
            line[0] = made.names[0]
    columns, cells = within(columns, cells, len(names), width)
    title = "  ".join(f"{kind} {lags[0].place[index]}" for index, kind in enumerate(common) if kind)
    styles = [made.style for made in rows[:-1]]
    return Table(columns, cells[:-1], title=shortened(title, width), footer=cells[-1], row_styles=styles)


def fitting(lags: Sequence[Lag], room: int) -> tuple[list[Lag], list[Lag]]:
    """Those that fit into so many rows, in their order, and the others, which need a row for their sum.

    The largest lags are kept, then the partitions without a commit that hold most.
    """
    if len(lags) <= room:
        return list(lags), []
    by_lag = sorted(lags, key=lambda lag: (lag.records or 0, lag.records is None, lag.end or 0), reverse=True)
    kept = {lag.place: None for lag in by_lag[: room - 1]}
    return [lag for lag in lags if lag.place in kept], [lag for lag in lags if lag.place not in kept]


def row(lag: Lag, progress: dict[Place, Progress]) -> Row:
    return Row(
        (lag.group, lag.topic, str(lag.partition)),
        (cell_or_dash(lag.committed), cell_or_dash(lag.end)),
        (
            cell_or_dash(lag.records),
            behind_text(lag.behind_ms),
            *progress_cells(lag.records, progress.get(lag.place)),
        ),
        urgency(lag),
    )


def together(name: str, lags: Sequence[Lag], progress: dict[Place, Progress]) -> Row:
    parts = [progress[lag.place] for lag in lags if lag.place in progress]
    rates = Progress(sum(p.read_per_s for p in parts), sum(p.written_per_s for p in parts)) if parts else None
    sum_of_all = total(lags)
    numbers = (
        sum_of_all.text(),
        behind_text(sum_of_all.behind_ms),
        *progress_cells(sum_of_all.records, rates),
    )
    return Row((name, "", ""), NO_OFFSETS, numbers)


def progress_cells(lag: int | None, progress: Progress | None) -> tuple[str, str, str]:
    if progress is None or lag is None:
        return "", "", ""
    return cell(round(progress.read_per_s)), cell(round(progress.written_per_s)), progress.until_caught_up(lag)


def within(
    columns: list[Column], cells: list[list[str]], names: int, width: int
) -> tuple[list[Column], list[list[str]]]:
    """Make the table fit: the two columns of offsets go first, then the `names` in front are shortened; where that is
    not enough, rates go."""
    if total_width(columns, cells) > width:
        columns, cells = without(columns, cells, ("Committed", "End"))
    for rate in ("Written/s", "Read/s"):
        least = sum(max(column_width(columns, cells, index) - NAME_WIDTH_MIN, 0) for index in range(names))
        if total_width(columns, cells) - least > width:
            columns, cells = without(columns, cells, (rate,))
    while (over := total_width(columns, cells) - width) > 0:
        widths = [column_width(columns, cells, index) for index in range(names)]
        widest = max(range(names), key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= NAME_WIDTH_MIN:
            break
        # Down to the next wider one at most, so that both give way to the same width.
        others = max([w for i, w in enumerate(widths) if i != widest], default=0)
        target = max(widths[widest] - over, min(others, widths[widest] - 1), NAME_WIDTH_MIN)
        for line in cells:
            line[widest] = shortened(line[widest], target)
    return columns, cells


def without(
    columns: list[Column], cells: list[list[str]], titles: tuple[str, ...]
) -> tuple[list[Column], list[list[str]]]:
    kept = [index for index, column in enumerate(columns) if column.title not in titles]
    return [columns[index] for index in kept], [[line[index] for index in kept] for line in cells]


def total_width(columns: list[Column], cells: list[list[str]]) -> int:
    return sum(column_width(columns, cells, i) for i in range(len(columns))) + GAP * (len(columns) - 1)


def column_width(columns: list[Column], cells: list[list[str]], index: int) -> int:
    from rich.cells import cell_len

    return max(len(columns[index].title), *(cell_len(line[index]) for line in cells))


def shortened(text: str, width: int) -> str:
    """At most `width` cells of a terminal; the middle goes, since names differ at their ends. A Chinese character takes
    two cells, so it may be one less.
    """
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return text
    front = width // 2
    return f"{fitting_start(text, front)}…{fitting_start(text[::-1], width - front - 1)[::-1]}"


def fitting_start(text: str, width: int) -> str:
    """As much of the beginning as `width` cells hold."""
    from rich.cells import cell_len

    for end, character in enumerate(text):
        width -= cell_len(character)
        if width < 0:
            return text[:end]
    return text
