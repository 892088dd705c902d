"""What of a table a terminal has room for: names give way, numbers never do, and what is left out is said.

In this order, until the rest fits:

1. Names fold into several lines, down to `NAME_WIDTH_MIN`, and so do titles of several words. (In a table that has to
   keep its height, names are shortened in the middle, and titles are not touched.)
2. A column that says the same in every row becomes a fact above the table. (Not where the height has to be kept.)
3. Columns are left out, those with the most `spare` first, and of these the rightmost.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.cli.tables import NAME_WIDTH_MIN, Table, printable, takes_utf8

GAP = 2
"""Cells between two columns."""
NUMBER = re.compile(r"[(+-]?\d[\d.,:+-]*\)?")
"""A word of a text that is no name."""
NUMBER_WIDTH_MAX = 27
"""-(2^63 - 1) with its commas and a bracket; what is longer is a list and may fold."""


class Room(NamedTuple):
    """A table as it fits."""

    shown: list[int]
    """Indices of its columns."""
    widths: list[int]
    """Of those, in cells."""
    above: list[int]
    """Columns whose one value stands above the table."""
    left_out: list[int]
    needed: int
    """The width, in cells, from which on nothing is left out or stands above."""


def fit(table: Table, width: int) -> Room:
    """The columns that `width` cells have room for."""
    least = [least_width(table, index) for index in range(len(table.columns))]
    widest = [natural_width(table, index) for index in range(len(table.columns))]
    shown = list(range(len(table.columns)))
    above: list[int] = []
    left_out: list[int] = []
    needed = together(least)
    while together([least[index] for index in shown]) > width and len(shown) > 1:
        same = [] if table.shorten else [index for index in shown if is_the_same(table, index)]
        if same:
            above.append(same[0])
            shown.remove(same[0])
            continue
        spare = max(shown[1:], key=lambda index: (table.columns[index].spare, index))
        if table.columns[spare].spare < 0:
            spare = shown[0] if table.columns[shown[0]].spare >= 0 else shown[1]
        left_out.append(spare)
        shown.remove(spare)
    widths = shared([least[index] for index in shown], [widest[index] for index in shown], width)
    return Room(shown, widths, sorted(above), sorted(left_out), needed)


def above_lines(table: Table, room: Room, width: int) -> list[str]:
    """What all rows have in common, as many facts on a line as it has room for."""
    lines: list[str] = []
    for index in room.above:
        fact = f"{table.columns[index].title} {printable(table.rows[0][index]) or '-'}"
        if lines and cells(lines[-1]) + GAP + cells(fact) <= width:
            lines[-1] += " " * GAP + fact
        else:
            lines.append(fact)
    return lines


def left_out_text(table: Table, room: Room) -> str:
    """What to say below the table; empty when nothing is left out."""
    if not room.left_out:
        return ""
    names = ", ".join(table.columns[index].title for index in room.left_out)
    json = " or --json" * table.json
    return f"Left out: {names}. A terminal of {room.needed} columns{json} shows all."


def wrapped(text: str, width: int) -> list[str]:
    """Its lines on a terminal."""
    from rich.console import Console
    from rich.text import Text

    return [line.plain for line in Text(text, overflow="fold").wrap(Console(width=width), width)]


def is_the_same(table: Table, index: int) -> bool:
    """Whether every row has the same there. What never goes does not go above either."""
    sums = index < len(table.footer) and table.footer[index] and index > 0
    return table.columns[index].spare >= 0 and not sums and len({row[index] for row in table.rows}) == 1


def texts(table: Table, index: int) -> list[str]:
    """What stands in a column below its title."""
    footer = [table.footer[index]] if table.footer else []
    return [printable(text) for text in (*(row[index] for row in table.rows), *footer)]


def natural_width(table: Table, index: int) -> int:
    return max(map(cells, (table.columns[index].title, *texts(table, index))))


def least_width(table: Table, index: int) -> int:
    """Of a number, all of it; of a text, some of it, and every number that stands in it."""
    column = table.columns[index]
    title = column.title if table.shorten else max(column.title.split(), key=cells, default="")
    if column.right:
        return max(map(cells, (title, *texts(table, index))))
    words = [] if table.shorten else " ".join(texts(table, index)).split()
    numbers = filter(is_number, words)
    some = min(NAME_WIDTH_MIN, natural_width(table, index))
    return max(some, cells(title), max(map(cells, numbers), default=0))


def is_number(word: str) -> bool:
    return NUMBER.fullmatch(word) is not None and len(word) <= NUMBER_WIDTH_MAX


def shared(least: Sequence[int], widest: Sequence[int], width: int) -> list[int]:
    """A width for each column: all that it can use, or the widest ones give way, to the same width."""
    widths = list(widest)
    while (over := together(widths) - width) > 0:
        wide = [index for index in range(len(widths)) if widths[index] > least[index]]
        if not wide:
            break
        most = max(wide, key=widths.__getitem__)
        others = max((widths[index] for index in wide if index != most), default=0)
        widths[most] = max(widths[most] - over, min(others, widths[most] - 1), least[most])
    return widths


def together(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def shortened(text: str, width: int) -> str:
    """At most `width` cells of a terminal; the middle goes, since names differ at their ends. A Chinese character takes
    two cells, so it may be one less.
    """
    if cells(text) <= width:
        return text
    front = width // 2
    if not takes_utf8():
        return f"{fitting_start(text, front)}~{fitting_start(text[::-1], width - front - 1)[::-1]}"
    return f"{fitting_start(text, front)}…{fitting_start(text[::-1], width - front - 1)[::-1]}"


def fitting_start(text: str, width: int) -> str:
    """As much of the beginning as `width` cells hold."""
    for end, character in enumerate(text):
        width -= cells(character)
        if width < 0:
            return text[:end]
    return text
