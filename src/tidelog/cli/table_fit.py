"""Fit a table to the width of a terminal. Names and numbers are not split, and a note lists the omitted columns.

These steps are done in this order, until the table fits:

1. Texts and titles of several words are broken between their words. This makes no column narrower than
`NAME_WIDTH_MIN`. A word is split only if it is a long list of numbers, or if its column has `breaks` set.

2. A column with the same value in every row is removed, and its title and value are printed above the table.

3. Columns with a positive `spare` are left out. The column with the highest `spare` is left out first. Of columns
with equal `spare`, the rightmost one is left out first.

4. The rows are printed as blocks instead of a table (`cli.blocks`), with all columns.

If each row must remain one line (`Table.shorten`), three other steps are done until the table fits. First, the columns
with a `spare` of at least `BEFORE_NAMES` are left out. Second, names are shortened in the middle. Third, the other
columns are left out one after another, whatever their `spare` is, but one column always remains.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.cli.tables import NAME_WIDTH_MIN, Table, printable, stdout_is_utf8

COLUMN_GAP = 2
"""Width of the space between two columns, in cells of the terminal."""
BEFORE_NAMES = 4
"""Minimum `spare` of the columns that are left out before a name is shortened (only with `Table.shorten`)."""
NUMBER = re.compile(r"[(+-]?\d[\d.,:+-]*\)?")
"""Matches words that are numbers rather than names."""
NUMBER_WIDTH_MAX = 27
"""The width of -(2^63 - 1) with commas and a bracket. A longer match of NUMBER is a list of numbers, which may be
split."""


class TableFit(NamedTuple):
    """The shown columns of a table, their widths, and the columns that are not shown in the table."""

    shown: list[int]
    """Indices of the columns that are shown."""
    widths: list[int]
    """Widths of the shown columns, in cells."""
    above_table: list[int]
    """Indices of the columns that have only one value, which is printed above the table."""
    left_out: list[int]
    full_width: int
    """The smallest width, in cells, at which the table shows all its columns."""
    as_blocks: bool = False
    """Whether the rows are printed as blocks, because they do not fit as a table."""


def fit(table: Table, width: int) -> TableFit:
    """Choose the shown columns and their widths for a terminal that is `width` cells wide."""
    widths_min = [column_width_min(table, index) for index in range(len(table.columns))]
    natural_widths = [natural_width(table, index) for index in range(len(table.columns))]
    shown = list(range(len(table.columns)))
    above_table: list[int] = []
    left_out: list[int] = []
    full_width = total_width(widths_min)
    if table.shorten and any(column.spare >= BEFORE_NAMES for column in table.columns[1:]):
        full_width = total_width(natural_widths)
        left_out = columns_left_out_before_names(table, natural_widths, width)
        shown = [index for index in shown if index not in left_out]
    while total_width([widths_min[index] for index in shown]) > width:
        constant_columns = [] if table.shorten else [index for index in shown if has_one_value(table, index)]
        if constant_columns and len(shown) > 1:
            above_table.append(constant_columns[0])
            shown.remove(constant_columns[0])
            continue
        dropped = column_to_leave_out(table, shown)
        if dropped is None:
            if table.shorten:
                break
            return TableFit([*range(len(table.columns))], natural_widths, [], [], full_width, as_blocks=True)
        left_out.append(dropped)
        shown.remove(dropped)
    widths = column_widths([widths_min[index] for index in shown], [natural_widths[index] for index in shown], width)
    return TableFit(shown, widths, sorted(above_table), sorted(left_out), full_width)


def columns_left_out_before_names(table: Table, natural_widths: Sequence[int], width: int) -> list[int]:
    """Return the columns that are left out so that fewer names are shortened; none if all names fit."""
    shown = list(range(len(table.columns)))
    left_out: list[int] = []
    while total_width([natural_widths[index] for index in shown]) > width:
        dropped = column_to_leave_out(table, shown)
        if dropped is None or table.columns[dropped].spare < BEFORE_NAMES:
            break
        left_out.append(dropped)
        shown.remove(dropped)
    return left_out


def column_to_leave_out(table: Table, shown: Sequence[int]) -> int | None:
    """Return the index of the shown column that is left out next; None if no more column may be left out."""
    if len(shown) == 1:
        return None
    dropped = max(shown[1:], key=lambda index: (table.columns[index].spare, index))
    if not table.shorten:
        return dropped if table.columns[dropped].spare > 0 else None
    if table.columns[dropped].spare < 0:
        return shown[0] if table.columns[shown[0]].spare >= 0 else shown[1]
    return dropped


def above_lines(table: Table, fitted: TableFit, width: int) -> list[str]:
    """Return lines with the titles and values of the columns that have the same value in every row."""
    return titled_lines(
        [(table.columns[index].title, printable(table.rows[0][index]) or "-") for index in fitted.above_table], width
    )


def titled_lines(titled_texts: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return lines. Each line has as many texts as fit, and each text follows its title.

    If a text and its title do not fit into one line, the title begins a new line, and the text is broken between its
    words. Only a line with a long word may be wider than `width`.
    """
    lines: list[str] = []
    for title, text in titled_texts:
        titled_text = f"{title} {text}"
        if lines and cell_width(lines[-1]) + COLUMN_GAP + cell_width(titled_text) <= width:
            lines[-1] += " " * COLUMN_GAP + titled_text
        elif cell_width(titled_text) <= width:
            lines.append(titled_text)
        else:
            first_word, *more_words = text.split(" ")
            lines.append(f"{title} {first_word}")
            for word in more_words:
                if cell_width(lines[-1]) + 1 + cell_width(word) <= width:
                    lines[-1] += f" {word}"
                else:
                    lines.append(word)
    return lines


def left_out_text(table: Table, fitted: TableFit) -> str:
    """Return the note below the table; empty when no column is left out."""
    if not fitted.left_out:
        return ""
    names = ", ".join(table.columns[index].title for index in fitted.left_out)
    json = " or --json" * table.json
    return f"Left out: {names}. A terminal of {fitted.full_width} columns{json} shows all."


def wrap_lines(text: str, width: int) -> list[str]:
    """Return the lines of the text on a terminal that is `width` cells wide."""
    from rich.console import Console
    from rich.text import Text

    return [line.plain for line in Text(text, overflow="fold").wrap(Console(width=width), width)]


def has_one_value(table: Table, index: int) -> bool:
    """Whether the column may move above the table, because every row has the same value in it.

    A column with a total in the footer, or a column with a negative `spare`, stays in the table.
    """
    has_total = index < len(table.footer) and table.footer[index] and index > 0
    return table.columns[index].spare >= 0 and not has_total and len({row[index] for row in table.rows}) == 1


def column_texts(table: Table, index: int) -> list[str]:
    """Return the texts of a column below its title."""
    footer = [table.footer[index]] if table.footer else []
    return [printable(text) for text in (*(row[index] for row in table.rows), *footer)]


def natural_width(table: Table, index: int) -> int:
    return max(map(cell_width, (table.columns[index].title, *column_texts(table, index))))


def column_width_min(table: Table, index: int) -> int:
    """Return the minimum width of a column.

    A column of numbers is wide enough for the widest number. A column of text has at least NAME_WIDTH_MIN cells, or
    fewer if all its texts are shorter. It is also wide enough for the words of its title, and for every word of the
    texts except lists of numbers. If the column has `breaks` set, only the numbers in its texts are kept whole, and
    the other words of the texts are ignored. If names may be shortened, the column is wide enough for the whole title,
    and all words of the texts are ignored.
    """
    column = table.columns[index]
    title = column.title if table.shorten else max(column.title.split(), key=cell_width, default="")
    if column.right:
        return max(map(cell_width, (title, *column_texts(table, index))))
    words = [] if table.shorten else " ".join(column_texts(table, index)).split()
    whole_words = [word for word in words if is_number(word) or not (column.breaks or NUMBER.fullmatch(word))]
    text_width = min(NAME_WIDTH_MIN, natural_width(table, index))
    return max(text_width, cell_width(title), max(map(cell_width, whole_words), default=0))


def is_number(word: str) -> bool:
    return NUMBER.fullmatch(word) is not None and len(word) <= NUMBER_WIDTH_MAX


def column_widths(widths_min: Sequence[int], natural_widths: Sequence[int], width: int) -> list[int]:
    """Return a width for each column. If all columns fit, each column gets its natural width. Otherwise the widest
    columns shrink until all columns fit, or until all columns have their minimum widths.
    """
    widths = list(natural_widths)
    while (excess := total_width(widths) - width) > 0:
        shrinkable = [index for index in range(len(widths)) if widths[index] > widths_min[index]]
        if not shrinkable:
            break
        widest = max(shrinkable, key=widths.__getitem__)
        next_width = max((widths[index] for index in shrinkable if index != widest), default=0)
        widths[widest] = max(widths[widest] - excess, min(next_width, widths[widest] - 1), widths_min[widest])
    return widths


def total_width(widths: Sequence[int]) -> int:
    return sum(widths) + COLUMN_GAP * (len(widths) - 1)


def cell_width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def shorten(text: str, width: int) -> str:
    """Shorten a text to at most `width` cells. The middle is removed, because names usually differ at the beginning or
    at the end.

    A Chinese character occupies two cells, so the result may be up to two cells narrower than `width`.
    """
    if cell_width(text) <= width:
        return text
    front = width // 2
    if not stdout_is_utf8():
        return f"{fitting_start(text, front)}~{fitting_start(text[::-1], width - front - 1)[::-1]}"
    return f"{fitting_start(text, front)}…{fitting_start(text[::-1], width - front - 1)[::-1]}"


def fitting_start(text: str, width: int) -> str:
    """Return the longest start of the text that fits into `width` cells."""
    for end, character in enumerate(text):
        width -= cell_width(character)
        if width < 0:
            return text[:end]
    return text
