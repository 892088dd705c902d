"""Output for people and for programs: tables at a terminal, plain columns in a pipe, JSON where it is asked for."""

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console, Group


NAME_WIDTH_MIN = 8
"""A column does not give way to others below this; its text is folded into several lines instead."""


class Column(NamedTuple):
    title: str
    right: bool = False
    """Numbers stand right."""
    style: str | None = None
    spare: int = 0
    """How soon it is left out where a terminal is too narrow for numbers: the most first, a negative one never."""


class Table(NamedTuple):
    """Rows of text, one cell a column."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""
    footer: Sequence[str] = ()
    """A last row, set apart; empty for none."""
    row_styles: Sequence[str] = ()
    """Colours of the rows at a terminal; empty for none."""
    shorten: bool = False
    """Names lose their middle where they do not fit, so that every row is one line; otherwise they fold."""
    json: bool = True
    """Whether the command has --json, which shows what a narrow terminal has no room for."""


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(table: Table) -> None:
    """Borders and colours at a terminal (colours unless NO_COLOR); aligned columns without decoration in a pipe, all of
    them whatever their width.
    """
    if sys.stdout.isatty():
        screen = console()
        screen.print(rich_table(table, screen.width))
        return
    if table.title:
        print(table.title)
    rows = [[column.title.upper() for column in table.columns], *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    for row in rows:
        cells = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        )
        print("  ".join(cells).rstrip())


def console(stderr: bool = False) -> "Console":
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            """rich would end the process here; how a closed pipe ends a command is decided in one place."""
            raise BrokenPipeError

    return PipeConsole(stderr=stderr, highlight=False)


def rich_table(table: Table, width: int) -> "Group":
    """At most `width` cells wide: see `room` for what gives way. Lines below say what was left out."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    from tidelog.cli.room import above_lines, fit, left_out_text, shortened

    room = fit(table, width)
    drawn = RichTable(
        box=box.SIMPLE_HEAD,
        header_style="bold cyan",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        show_footer=bool(table.footer),
        footer_style="bold",
    )
    footer = list(table.footer)
    if footer and not footer[room.shown[0]]:
        footer[room.shown[0]] = footer[0]  # what the sum is called

    def text(cell: str, room: int) -> Text:
        # As Text, a name such as [red] is itself and no markup.
        return Text(shortened(printable(cell), room) if table.shorten else printable(cell))

    for index, cells in zip(room.shown, room.widths, strict=True):
        column = table.columns[index]
        drawn.add_column(
            column.title,
            justify="right" if column.right else "left",
            style=column.style,
            overflow="fold",
            width=cells,
            footer=text(footer[index], cells) if footer else "",
        )
    for row, style in zip_longest(table.rows, table.row_styles, fillvalue=""):
        drawn.add_row(
            *(text(row[index], cells) for index, cells in zip(room.shown, room.widths, strict=True)),
            style=str(style) or None,
        )
    parts: list[Text | RichTable] = []
    if table.title:
        parts.append(Text(printable(table.title), style="bold", overflow="fold"))
    if room.above:
        parts += [Text(line, overflow="fold") for line in above_lines(table, room, width)]
    parts.append(drawn)
    if note := left_out_text(table, room):
        parts.append(Text(note, style="dim", overflow="fold"))
    return Group(*parts)


def heading(line: str, *facts: str) -> None:
    """A name, and facts about it on the same line."""
    if sys.stdout.isatty():
        from rich.text import Text

        text = Text(printable(line), style="bold")
        text.append("  " + "  ".join(facts), style="not bold dim")
        console().print(text)
    else:
        print("  ".join((line, *facts)))


def printable(text: str) -> str:
    """Control characters escaped: what peers send must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def count(number: int) -> str:
    """1204000 -> 1,204,000."""
    return f"{number:,}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """1 record, 0 records, 1,204,000 records; 2 batches with a `plural` of its own."""
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def is_terminal() -> bool:
    return sys.stdout.isatty()


def cell(number: int) -> str:
    """A number in a table: as `count` at a terminal, bare digits for a program that reads the columns."""
    return count(number) if sys.stdout.isatty() else str(number)


def size(number: float) -> str:
    """Bytes for people: 1536 -> 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def ranges(numbers: Sequence[int]) -> str:
    """0,1,2,3,7 -> 0-3,7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
