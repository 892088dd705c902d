"""Parse Java's properties format, in which Kafka's configuration files and `meta.properties` are written."""

from collections.abc import Iterator
from typing import NamedTuple

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SPACE = " \t\f"


class Property(NamedTuple):
    name: str
    value: str
    line: int
    """Number of the line where the entry begins, from 1."""


def parse_properties(text: str) -> list[Property]:
    r"""Return all entries in order, including repeated names. Raises ValueError for a malformed \u escape."""
    return [_entry(line, number) for number, line in _logical_lines(text)]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """For each entry, yield the number of its first line and its text. Continuation lines are joined to the first line;
    comments and blank lines are skipped.
    """
    number = 0
    parts: list[str] = []
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for i, raw in enumerate(lines, 1):
        line = raw.lstrip(_SPACE)
        if not parts:
            if not line or line[0] in "#!":
                continue
            number = i
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            parts.append(line[:-1])
            continue
        yield number, "".join(parts) + line
        parts = []
    if parts:
        yield number, "".join(parts)


def _entry(line: str, number: int) -> Property:
    end = 0
    while end < len(line) and line[end] not in "=:" and line[end] not in _SPACE:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_SPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_SPACE)
    return Property(_unescape(line[:end], number), _unescape(rest, number), number)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    i = 0
    while i < len(text):
        if text[i] != "\\":
            out.append(text[i])
        elif text[i + 1 : i + 2] == "u":
            digits = text[i + 2 : i + 6]
            if len(digits) != 4 or not all(c in "0123456789abcdefABCDEF" for c in digits):
                raise ValueError(f"line {number}: \\u{digits} is not four hexadecimal digits")
            out.append(chr(int(digits, 16)))
            i += 5
        else:
            i += 1
            out.append(_ESCAPES.get(text[i : i + 1], text[i : i + 1]))
        i += 1
    # A character beyond U+FFFF may be escaped as two surrogates. This conversion joins the two.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
