"""Finds the texts of values in a JSON document. A number in such a text keeps all its digits from the document."""

import json
import re

BLANKS = re.compile(r"[ \t\n\r]*")
LINE_BREAK = re.compile(r"[ \t]*[\n\r][ \t\n\r]*")
"""In JSON, a line break is only between tokens: inside a string, it is written as an escape."""
SURROGATE = re.compile("[\ud800-\udfff]")
DECODER = json.JSONDecoder()


def parse_float(text: str) -> float | str:
    """Return the number, or `text` itself if a float would have other digits."""
    number = float(text)
    return number if repr(number) == text else text


def element_texts(document: str, path: str) -> list[str]:
    """Return the texts of the elements of a list, each without line breaks. `path` names the fields that lead to the
    list, as in `data.items`; if it is empty, `document` is the list. `document` must be valid JSON with such a list.
    """
    at = _end_of_blanks(document, 0)
    for name in path.split(".") if path else ():
        at = _value_of(document, at, name)
    texts = []
    at = _end_of_blanks(document, at + 1)
    while document[at] != "]":
        _, end = DECODER.raw_decode(document, at)
        texts.append(with_escapes(LINE_BREAK.sub(" ", document[at:end])))
        at = _next(document, end)
    return texts


def with_escapes(text: str) -> str:
    """Return a JSON text in which lone surrogates, which cannot be encoded, are written as escapes."""
    return SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _value_of(document: str, at: int, name: str) -> int:
    """Return the position of the value of field `name` in the object at position `at`. If the object has several
    fields with this name, the last one is used, as in Python's json.
    """
    found = at
    at = _end_of_blanks(document, at + 1)
    while document[at] != "}":
        key, end = DECODER.raw_decode(document, at)
        at = _end_of_blanks(document, _end_of_blanks(document, end) + 1)  # behind the colon
        if key == name:
            found = at
        _, end = DECODER.raw_decode(document, at)
        at = _next(document, end)
    return found


def _next(document: str, end: int) -> int:
    """Return the position of the next element behind the one that ends at `end`, or of the closing bracket."""
    at = _end_of_blanks(document, end)
    return _end_of_blanks(document, at + 1) if document[at] == "," else at


def _end_of_blanks(document: str, at: int) -> int:
    found = BLANKS.match(document, at)
    assert found is not None
    return found.end()
