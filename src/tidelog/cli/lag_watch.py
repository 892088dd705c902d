"""`tidelog group lag --watch`: lag again and again, with the rates in between, in the space that a terminal has."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from tidelog.cli.errors import CommandError
from tidelog.cli.lag import NO_LAG, Lag, Place, behind_text, cell_or_dash, lag_json, total, urgency
from tidelog.cli.offline import warn_of_hidden_groups
from tidelog.cli.room import fit, left_out_text, shortened, wrapped
from tidelog.cli.tables import Column, Table, cell, console, json_line, name_text, print_notes, print_table, rich_table
from tidelog.cli.watching import NoAnswerPeriod, PollResult, polling
from tidelog.cli.when import iso, span

if TYPE_CHECKING:
    from rich.console import RenderableType

REDRAW_S = 0.5
"""How often it is said for how long nobody has answered."""
FIXED_LINES = 6
"""Title, head, two rules, the sum of all, and the cursor's own line."""

NUMBERS = (
    Column("Partition", True, spare=-1),
    *(Column(title, True, spare=4) for title in ("Committed", "End")),
    Column("Lag", True, style="bold", spare=-1),
    Column("Behind", True, spare=1),
    Column("Read/s", True, spare=2),
    Column("Written/s", True, spare=3),
    Column("Done in", True, spare=1),
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
    problems: list[str]
    """What else it could not see."""
    failures: dict[str, CommandError]
    """Of groups that are named."""

    def __call__(self) -> list[Lag]: ...


def watch_lag(look: Looks, interval_s: float, json: bool, bootstrap: str) -> None:
    """Until Ctrl-C: a terminal's is redrawn in place, a pipe gets one table or JSON line after another.

    While nobody answers at `bootstrap`, the last figures stay, and it is said since when; a pipe gets nothing new.
    """
    show: Show
    if sys.stdout.isatty() and not json:
        show = Picture(bootstrap)
    else:
        show = Lines(bootstrap, json)
    before: PollResult[Look] | None = None
    last_offline: dict[str, list[int]] = {}
    last_problems: list[str] = []
    with show, polling(lambda: whole_look(look), interval_s) as poller:
        while True:
            found = poller.next(REDRAW_S)
            if found is not None:
                # Above the table that is redrawn: rich leads stderr there. Each is told once, until it changes.
                if found.value.offline != last_offline:
                    last_offline = found.value.offline
                    warn_of_hidden_groups(last_offline)
                print_notes([line for line in found.value.problems if line not in last_problems])
                last_problems = found.value.problems
                old = before or found._replace(value=Look([], {}, []))
                progress = measured(old.value.lags, found.value.lags, found.at_s - old.at_s)
                before = found
                show.figures(found.value, progress)
            show.away(poller.away())


class Look(NamedTuple):
    """What one look found."""

    lags: list[Lag]
    offline: dict[str, list[int]]
    problems: list[str]


def whole_look(look: Looks) -> Look:
    lags = look()
    return Look(lags, look.offline, look.problems + [str(failure) for failure in look.failures.values()])


class Show(Protocol):
    def __enter__(self) -> "Show": ...

    def __exit__(self, *raised: object) -> None: ...

    def figures(self, look: Look, progress: dict[Place, Progress]) -> None:
        """New ones."""

    def away(self, away: NoAnswerPeriod | None) -> None:
        """Called often, also while nothing is new."""


class Lines:
    """One table or JSON line after another; that nobody answers, and that somebody does again, on stderr."""

    def __init__(self, bootstrap: str, json: bool) -> None:
        self._bootstrap = bootstrap
        self._json = json
        self._away = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        sys.stdout.flush()

    def figures(self, look: Look, progress: dict[Place, Progress]) -> None:
        if self._away:
            self._away = False
            print(f"{self._bootstrap} answers again.", file=sys.stderr)
        if self._json:
            measurement = {"time": iso(time.time_ns() // 1_000_000), "lag": [*map(lag_json, look.lags)]}
            print(json_line(measurement), flush=True)
        else:
            print_table(whole_table(look.lags, progress))
            print(flush=True)

    def away(self, away: NoAnswerPeriod | None) -> None:
        if away is not None and not self._away:
            self._away = True
            print(away.text(self._bootstrap, span(round(time.monotonic() - away.since_s))), file=sys.stderr)


class Picture:
    """A table in place; above it, while nobody answers, that it is an old one."""

    def __init__(self, bootstrap: str) -> None:
        from rich.live import Live

        self._bootstrap = bootstrap
        self._live = Live(console=console(), auto_refresh=False)
        self._look = Look([], {}, [])
        self._progress: dict[Place, Progress] = {}
        self._as_of = ""
        self._notice = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._live.stop()

    def figures(self, look: Look, progress: dict[Place, Progress]) -> None:
        self._look, self._progress = look, progress
        self._as_of = time.strftime("%H:%M:%S")
        self._notice = ""
        self._draw()

    def away(self, away: NoAnswerPeriod | None) -> None:
        notice = ""
        if away is not None:
            text = away.text(self._bootstrap, span(round(time.monotonic() - away.since_s)))
            notice = f"{text} Figures of {self._as_of}; Ctrl-C leaves."
        if notice != self._notice:
            self._notice = notice
            self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.styled import Styled
        from rich.text import Text

        width, height = self._live.console.size
        look = self._look
        notice = Text(self._notice, style="bold yellow", overflow="fold")
        lines = len(notice.wrap(self._live.console, width)) if self._notice else 0
        figures: RenderableType = Text("No lag can be seen." if look.offline else f"{NO_LAG} yet.")
        if look.lags:
            figures = rich_table(watch_table(look.lags, self._progress, width, height - lines), width)
        if self._notice:
            figures = Group(notice, Styled(figures, "dim"))
        self._live.update(figures, refresh=True)


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
    """At most `height` lines when it is drawn `width` cells wide: what all rows have in common is the title, names that
    are too long are shortened, and partitions with little lag are left out where they do not fit, summed up in one row.
    """
    table = table_of_rows(lags, progress, width, height - FIXED_LINES)
    note = left_out_text(table, fit(table, width))
    if not note:
        return table
    return table_of_rows(lags, progress, width, height - FIXED_LINES - len(wrapped(note, width)))


def table_of_rows(lags: Sequence[Lag], progress: dict[Place, Progress], width: int, most: int) -> Table:
    """At most so many rows besides the sum of all."""
    shown, hidden = fitting(lags, max(most, 1))
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
    title = "  ".join(f"{kind} {name_text(str(lags[0].place[index]))}" for index, kind in enumerate(common) if kind)
    styles = [made.style for made in rows[:-1]]
    title = shortened(title, width)
    return Table(columns, cells[:-1], title=title, footer=cells[-1], row_styles=styles, shorten=True)


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
        (name_text(lag.group), name_text(lag.topic), str(lag.partition)),
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
