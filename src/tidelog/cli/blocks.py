"""Format the rows of a table as blocks, for a terminal that is too narrow for the table.

A block begins with the names that identify its rows, one on each line. The other cells of a row follow, each after
the title of its column:

    Group billing
    Topic orders
      Partition 0  Committed 3  End 80  Lag 77
      Partition 1  Committed 3  End 7  Lag 4

If a row has the same names as the previous row, the names are not repeated. The second and later lines of a row are
indented further than the first.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from tidelog.cli.table_fit import titled_lines
from tidelog.cli.tables import Table, name_text, printable

ROW_INDENT = "  "
CONTINUATION_INDENT = "    "


class BlockLine(NamedTuple):
    text: str
    style: str


def block_lines(table: Table, width: int) -> list[BlockLine]:
    """Return the lines of all rows. Only a line with a long word may be wider than `width`."""
    lines: list[BlockLine] = []
    names_before: list[str] = []
    for row, style in zip_longest(table.rows, table.row_styles, fillvalue=""):
        names = list(row[: table.name_columns])
        if names != names_before:
            for column, name in zip(table.columns, names, strict=False):
                lines += [BlockLine(line, "bold") for line in titled_lines([(column.title, name_text(name))], width)]
        names_before = names
        lines += row_lines(table, row[table.name_columns :], width, style)
    if table.footer:
        lines.append(BlockLine(printable(table.footer[0]), "bold"))
        lines += row_lines(table, table.footer[table.name_columns :], width, "bold", with_empty=False)
    return lines


def row_lines(
    table: Table, cells: Sequence[str], width: int, style: str, *, with_empty: bool = True
) -> list[BlockLine]:
    """Return the lines of one row, without its names.

    Empty cells are omitted. But if `with_empty` is true, an empty cell is shown if its column has a negative `spare`,
    because such a column is important.
    """
    titled_texts = [
        (column.title, name_text(cell))
        for column, cell in zip(table.columns[table.name_columns :], cells, strict=True)
        if cell or (with_empty and column.spare < 0)
    ]
    lines = titled_lines(titled_texts, width - len(CONTINUATION_INDENT))
    return [
        BlockLine((CONTINUATION_INDENT if number else ROW_INDENT) + line, style) for number, line in enumerate(lines)
    ]
