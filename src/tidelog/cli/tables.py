"""Print results: as tables at a terminal, as plain columns in a pipe, and as JSON on request."""

import base64
import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli.escapes import escape, escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console, Group

NAME_WIDTH_MIN = 8
"""Minimum width, in character cells, to which a column of text may shrink, even if all its words are shorter."""


class Column(NamedTuple):
    title: str
    right: bool = False
    """Whether the texts are aligned to the right, as numbers are."""
    style: str | None = None
    spare: int = 0
    """Order in which columns are left out of a table that is too wide: the column with the highest `spare` first.
    Columns whose `spare` is 0 or negative stay: if they do not fit, the rows are printed as blocks. Only if each row
    must remain one line (`Table.shorten`), these columns are left out, too: those with a negative `spare` last."""
    breaks: bool = False
    """Whether a word may be split over several lines. In a column where this is False, for example a column of names,
    only a long list of numbers may be split."""


class Table(NamedTuple):
    """Rows of text, with one cell for each column."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""
    footer: Sequence[str] = ()
    """The last row, for totals; empty if the table has no totals."""
    row_styles: Sequence[str] = ()
    """Styles of the rows at a terminal; empty if the rows have no styles."""
    shorten: bool = False
    """Whether names may be shortened in the middle so that every row is one line. Otherwise names stay whole."""
    json: bool = True
    """Whether the command has the option --json. If so, the note about omitted columns mentions this option."""
    name_columns: int = 1
    """Number of columns, from the left, that identify a row. If the rows are printed as blocks, a block begins with
    these columns."""


def print_json(document: Any) -> None:
    """Convert the document by `json_ready`, and print it as indented JSON."""
    print(json_line(document, indent=2))


def json_line(document: Any, indent: int | None = None) -> str:
    """Return the document as JSON that stdout can encode: only ASCII if stdout is not UTF-8.

    Characters that control a terminal, or that some readers interpret as a line end (U+2028), are escaped.
    """
    return json_text(json_ready(document), indent)


def json_text(document: Any, indent: int | None = None) -> str:
    """Return the document as JSON in the form of `json_line`. No string in it may contain a lone surrogate."""
    text = _encoder(indent, not stdout_is_utf8()).encode(document)
    return text if text.isprintable() else NOT_ASCII.sub(_printable_or_escape, text)


@cache
def _encoder(indent: int | None, ensure_ascii: bool) -> json.JSONEncoder:
    return json.JSONEncoder(indent=indent, ensure_ascii=ensure_ascii)


NOT_ASCII = re.compile(r"[^\x20-\x7e\n]")
"""Matches every character except printable ASCII and the line feed. In our JSON, only strings contain the matched
characters."""


def _printable_or_escape(match: re.Match[str]) -> str:
    if match[0].isprintable():
        return match[0]
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2], 'big'):04x}" for at in range(0, len(units), 2))


def stdout_is_utf8() -> bool:
    """Whether stdout's encoding is UTF-8. Other encodings (ASCII, Latin-1) lack characters, and these characters are
    escaped.
    """
    return (sys.stdout.encoding or "").lower().replace("_", "-") in ("utf-8", "utf8")


def json_ready(document: Any) -> Any:
    """Return the document with base64 in place of strings whose bytes are not UTF-8.

    The value of a field `"group"` then becomes base64 in a field `"group_base64"`, and a string in a list becomes
    `{"base64": ...}`. In the given strings, lone surrogates represent the bytes that are not UTF-8 ("surrogateescape").
    Surrogates in the name of a field are escaped, as in a table. Numbers that JSON does not have (NaN, infinity) become
    strings.
    """
    if isinstance(document, dict):
        ready: dict[str, Any] = {}
        for field, value in document.items():
            name = field if not isinstance(field, str) or is_utf8(field) else "".join(map(_escape_surrogate, field))
            if isinstance(value, str) and not is_utf8(value):
                ready[f"{name}_base64"] = base64_text(value)
            else:
                ready[name] = json_ready(value)
        return ready
    if isinstance(document, list):
        return [json_ready(item) for item in document]
    if isinstance(document, str) and not is_utf8(document):
        return {"base64": base64_text(document)}
    if isinstance(document, float) and not math.isfinite(document):
        return str(document)
    return document


def _escape_surrogate(character: str) -> str:
    return escape(character) if 0xD800 <= ord(character) <= 0xDFFF else character


def is_utf8(text: str) -> bool:
    """Whether the text contains no lone surrogates, which represent bytes from a broker that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def base64_text(text: str) -> str:
    """Return the text's bytes as base64. If a lone surrogate represents no byte (the error message of a program may
    contain half of a surrogate pair), all lone surrogates of the text are encoded as if they were characters.
    """
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogatepass")
    return base64.b64encode(data).decode()


def print_table(table: Table) -> None:
    """Print a table: at a terminal with drawn lines and colours (no colours if NO_COLOR is set), in a pipe as aligned
    columns.

    In a pipe, all columns are printed, even if the rows become very long.
    """
    if sys.stdout.isatty():
        screen = console()
        # crop=False: the terminal itself wraps a name that is wider than the terminal. So the whole name can be copied.
        screen.print(rich_table(table, screen.width), crop=False)
        return
    if table.title:
        print(printable(table.title))
    rows = [[column.title.upper() for column in table.columns], *(list(map(printable, row)) for row in table.rows)]
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
            """Raise BrokenPipeError, which `app` handles. Otherwise rich would end the process itself."""
            raise BrokenPipeError

    return PipeConsole(stderr=stderr, highlight=False)


def rich_table(table: Table, width: int) -> "Group":
    """Return the table, at most `width` character cells wide, with a note about the omitted columns.

    The module `table_fit` describes how a table is fitted. If the rows are printed as blocks, a line with one long
    name may be wider.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    from tidelog.cli.blocks import block_lines
    from tidelog.cli.table_fit import above_lines, fit, left_out_text, shorten

    def line_text(line: str, style: str = "") -> Text:
        if table.shorten:
            return Text(line, style=style, overflow="fold")
        return Text(line, style=style, no_wrap=True, overflow="ignore")

    title = [line_text(printable(table.title), "bold")] if table.title else []
    fitted = fit(table, width)
    if fitted.as_blocks:
        return Group(*title, *(line_text(line.text, line.style) for line in block_lines(table, width)))
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
    if footer and not footer[fitted.shown[0]]:
        footer[fitted.shown[0]] = footer[0]  # the label of the totals

    def text(cell: str, column_width: int) -> Text:
        # A Text object shows a name such as [red] unchanged; a str would be read as markup.
        return Text(shorten(printable(cell), column_width) if table.shorten else printable(cell))

    for index, column_width in zip(fitted.shown, fitted.widths, strict=True):
        column = table.columns[index]
        drawn.add_column(
            column.title,
            justify="right" if column.right else "left",
            style=column.style,
            overflow="fold",
            width=column_width,
            footer=text(footer[index], column_width) if footer else "",
        )
    for row, style in zip_longest(table.rows, table.row_styles, fillvalue=""):
        drawn.add_row(
            *(text(row[index], column_width) for index, column_width in zip(fitted.shown, fitted.widths, strict=True)),
            style=str(style) or None,
        )
    parts: list[Text | RichTable] = [*title, *map(line_text, above_lines(table, fitted, width)), drawn]
    if note := left_out_text(table, fitted):
        parts.append(Text(note, style="dim", overflow="fold"))
    return Group(*parts)


def print_heading(line: str, *details: str) -> None:
    """Print a name, and details about it on the same line. At a terminal, details that do not fit into the line follow
    on indented lines. No detail is divided between two lines.
    """
    if sys.stdout.isatty():
        from rich.text import Text

        screen = console()
        first, *more = heading_lines(printable(line), list(map(printable, details)), screen.width)
        text = Text(printable(line), style="bold")
        text.append(first[len(printable(line)) :], style="not bold dim")
        for each in more:
            text.append(f"\n{each}", style="not bold dim")
        screen.print(text, soft_wrap=True)
    else:
        print("  ".join(map(printable, (line, *details))))


def heading_lines(name: str, details: Sequence[str], width: int) -> list[str]:
    """Return the lines of a heading. Each is at most `width` character cells wide, unless the name or an indented
    detail alone is wider.
    """
    from rich.cells import cell_len

    lines = [name]
    for detail in details:
        if cell_len(lines[-1]) + len("  ") + cell_len(detail) <= width:
            lines[-1] += f"  {detail}"
        else:
            lines.append(f"  {detail}")
    return lines


def paragraph(text: str) -> str:
    """Return a text for stderr. If stderr is a terminal, the text is broken between words into lines that fit."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def printable(text: str) -> str:
    r"""Return the text as one line that cannot control a terminal.

    Control characters, bytes that are not UTF-8, and characters that stdout cannot encode are escaped (\n \x1b \xff
    \u20ac).
    """
    return escape_unprintable(text, sys.stdout.encoding or "utf-8")


def name_text(name: str) -> str:
    """Return a printable name. The empty name would be invisible, so it becomes two quotation marks."""
    return printable(name) if name else '""'


def count(number: int) -> str:
    """Format a number with commas: 1204000 -> 1,204,000."""
    return f"{number:,}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: 1 record, 0 records, 1,204,000 records.

    `plural` is needed only if the plural is not the noun with an -s: batches.
    """
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def is_terminal() -> bool:
    return sys.stdout.isatty()


def cell(number: int) -> str:
    """Format a number for a table: with commas at a terminal; without commas in a pipe, for programs."""
    return count(number) if sys.stdout.isatty() else str(number)


def size(number: float) -> str:
    """Format a number of bytes: 1536 -> 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(round(number)) < 1024:  # rounded, so that 1023.9 KiB becomes 1.0 MiB, not 1024 KiB
            return f"{number:.0f} {unit}" if unit == "B" or abs(round(number, 1)) >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def print_notes(lines: Sequence[str], notes_max: int = 20) -> None:
    """Print notes on stderr, at most `notes_max` of them, after flushing stdout."""
    sys.stdout.flush()
    for line in lines[:notes_max]:
        print(f"Note: {printable(line)}", file=sys.stderr)
    if len(lines) > notes_max:
        print(f"Note: and {len(lines) - notes_max} more like these.", file=sys.stderr)


def comma_separated(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ranges: 0,1,2,3,7 -> 0-3,7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
