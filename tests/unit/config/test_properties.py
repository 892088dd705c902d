"""Java's properties format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.config.properties import Property, parse_properties


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", []),
        ("a=b", [("a", "b", 1)]),
        ("# comment\n! another\n\n  \t\na=b\n", [("a", "b", 5)]),
        ("a = b ", [("a", "b ", 1)]),
        ("a:b", [("a", "b", 1)]),
        ("a b c", [("a", "b c", 1)]),
        ("a", [("a", "", 1)]),
        ("a=", [("a", "", 1)]),
        ("a==b", [("a", "=b", 1)]),
        ("  a\t=\t b", [("a", "b", 1)]),
        ("a=1\na=2", [("a", "1", 1), ("a", "2", 2)]),
        ("a=b\\\n   c\\\n\td", [("a", "bcd", 1)]),
        ("a=b\\\n# c\nd=e", [("a", "b# c", 1), ("d", "e", 3)]),
        ("a=b\\\\\nc=d", [("a", "b\\", 1), ("c", "d", 2)]),
        ("a=b\\", [("a", "b", 1)]),
        ("a\\=b\\:c\\ d=e", [("a=b:c d", "e", 1)]),
        ("a=\\t\\n\\r\\f\\x", [("a", "\t\n\r\fx", 1)]),
        ("a=\\u00e9\\uD83D\\uDE00", [("a", "é😀", 1)]),
        ("a=1\r\nb=2\rc=3", [("a", "1", 1), ("b", "2", 2), ("c", "3", 3)]),
        ("cluster.id=PCbusMznQZi20FQlE8ke6g", [("cluster.id", "PCbusMznQZi20FQlE8ke6g", 1)]),
    ],
)
def test_entries(text: str, entries: list[tuple[str, str, int]]) -> None:
    assert parse_properties(text) == [Property(*entry) for entry in entries]


@pytest.mark.parametrize("text", ["a=\\u12", "a=1\nb=\\uZZZZ"])
def test_a_broken_escape_is_named_by_its_line(text: str) -> None:
    with pytest.raises(ValueError, match=f"line {text.count(chr(10)) + 1}"):
        parse_properties(text)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        entries = parse_properties(text)
    except ValueError:
        return
    assert [e.line for e in entries] == sorted(e.line for e in entries)
