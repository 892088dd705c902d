"""Parse a line of `produce --json`: JSON that `records.to_json` wrote, or that was written by hand.

The key of a record, its value and the values of its headers may be any JSON. If one of them is neither a string nor
null, its exact text is written: a number of 30 digits, `1.50`, spaces and repeated names within an object are
preserved. Therefore, if a line has such a key or value, the code of this module parses the outer object and the
headers, and the standard library parses only the names and values in them.
"""

import base64
import json
import re
from datetime import datetime
from json import JSONDecodeError
from typing import Any, NoReturn

from tidelog.cli.connection import PARTITION_MAX
from tidelog.cli.records import OutgoingRecord

FIELDS = (
    *("topic", "partition", "offset", "timestamp", "timestamp_ms"),
    *("key", "key_base64", "value", "value_base64", "headers"),
)
"""The fields of a line of `consume --json`. `produce --json` accepts the same fields."""
HEADER_FIELDS = ("key", "key_base64", "value", "value_base64")
EXACT_TEXT_FIELDS = ("key", "value")
TIMESTAMP_MAX = (1 << 63) - 1
DIGITS_MAX = 25
"""A number with more digits is parsed as infinity, because Python is slow to convert thousands of digits, and
rejects more than 4,300 digits. The value of such a long number does not matter: a key or value uses the exact text,
and in any other field the number is out of range or ignored."""

SPACE = re.compile(r"[ \t\n\r]*").match
COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*").match
AFTER_MEMBER = re.compile(r"[ \t\n\r]*([,}])[ \t\n\r]*").match
AFTER_ITEM = re.compile(r"[ \t\n\r]*([,\]])[ \t\n\r]*").match


class RecordJsonError(ValueError):
    """The JSON is not a record of the form that `to_json` writes."""


class RepeatedError(Exception):
    """A name is repeated in one of the objects, at any depth."""


class ExactText(bytes):
    """The exact text of a JSON value, as it is in the line."""


def record_from_line(line: bytes) -> OutgoingRecord:
    """Parse a record that `to_json` wrote. `topic` and `offset` describe its origin and are ignored.

    `timestamp_ms` takes precedence over `timestamp`. Raises JSONDecodeError if the line is not JSON, and
    RecordJsonError if it is not a record.
    """
    try:
        return record_from_json(parse_json(line.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        raise RecordJsonError(f"byte {error.start + 1} is not UTF-8") from None
    except RecursionError:
        raise RecordJsonError("it is nested too deeply") from None


def parse_json(text: str) -> object:
    """Return the parsed JSON. If the field `key` or `value` of the record or of a header is neither a string nor null,
    it becomes an `ExactText`.
    """
    try:
        document: Any = WHOLE_DECODER.decode(text)
        if not isinstance(document, dict) or not needs_exact_text(document):
            return document  # the fast path for most lines
    except RepeatedError:
        # The exact text of the field `key` or `value` is used, so an object in it may contain a name twice.
        # `scan_object` refuses a name that occurs twice among the fields of the record or of a header.
        pass
    at = SPACE(text, 0).end()  # type: ignore[union-attr]
    if text[at : at + 1] != "{":
        return DECODER.decode(text)
    document, at = scan_object(text, at + 1)
    if (at := SPACE(text, at).end()) < len(text):  # type: ignore[union-attr]
        raise JSONDecodeError("Extra data", text, at)
    return document


def scan_object(text: str, at: int) -> tuple[dict[str, Any], int]:
    """Return the members of the object whose opening brace is just before `at`, and the position after the object."""
    object_members: dict[str, Any] = {}
    at = SPACE(text, at).end()  # type: ignore[union-attr]
    if text[at : at + 1] == "}":
        return object_members, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, at = scan_value(text, at)
        if name in object_members:
            raise RecordJsonError(f"{json.dumps(name)} occurs twice")
        if (colon := COLON(text, at)) is None:
            raise JSONDecodeError("Expecting ':' delimiter", text, at)
        object_members[name], at = scan_member(text, colon.end(), name)
        if (end := AFTER_MEMBER(text, at)) is None:
            raise JSONDecodeError("Expecting ',' delimiter", text, at)
        if end[1] == "}":
            return object_members, end.end(1)
        at = end.end()


def scan_member(text: str, at: int, name: str) -> tuple[Any, int]:
    """Return the value of the member with this name, and the position after it."""
    if name == "headers" and text[at : at + 1] == "[":
        return scan_list(text, at + 1)
    value, end = scan_value(text, at)
    if name in EXACT_TEXT_FIELDS and value is not None and not isinstance(value, str):
        value = ExactText(text[at:end].encode())
    return value, end


def scan_list(text: str, at: int) -> tuple[list[Any], int]:
    """Return the items of the list whose opening bracket is just before `at`, and the position after the list.

    Items that are objects are parsed by `scan_object`.
    """
    list_items: list[Any] = []
    at = SPACE(text, at).end()  # type: ignore[union-attr]
    if text[at : at + 1] == "]":
        return list_items, at + 1
    while True:
        item, at = scan_object(text, at + 1) if text[at : at + 1] == "{" else scan_value(text, at)
        list_items.append(item)
        if (end := AFTER_ITEM(text, at)) is None:
            raise JSONDecodeError("Expecting ',' delimiter", text, at)
        if end[1] == "]":
            return list_items, end.end(1)
        at = end.end()


def scan_value(text: str, at: int) -> tuple[Any, int]:
    """Return the value that begins at `at`, and the position after it."""
    try:
        value_and_end: tuple[Any, int] = SCAN(text, at)
    except StopIteration as error:
        raise JSONDecodeError("Expecting value", text, error.value) from None
    return value_and_end


def needs_exact_text(document: dict[str, Any]) -> bool:
    """Return whether the field `key` or `value` of the record or of a header is neither a string nor null, so that
    its exact text is needed.
    """
    headers = document.get("headers")
    inner = [header for header in headers if isinstance(header, dict)] if isinstance(headers, list) else []
    return any(not isinstance(each.get(name), str | None) for each in (document, *inner) for name in EXACT_TEXT_FIELDS)


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise RepeatedError
    return document


def parse_integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= DIGITS_MAX else float("inf")


def reject_constant(constant: str) -> NoReturn:
    raise RecordJsonError(f"JSON has no {constant}")


DECODER = json.JSONDecoder(parse_int=parse_integer, parse_constant=reject_constant)
SCAN = DECODER.scan_once  # type: ignore[attr-defined]
"""The function that JSONDecoder.raw_decode calls; it is implemented in C."""
WHOLE_DECODER = json.JSONDecoder(
    object_pairs_hook=without_repeats, parse_int=parse_integer, parse_constant=reject_constant
)


def record_from_json(document: object) -> OutgoingRecord:
    """Convert the result of `parse_json`. Raises RecordJsonError."""
    if not isinstance(document, dict) or not ({"value", "value_base64"} & set(document)):
        raise RecordJsonError('it must be an object with "value"')
    check_names(document, FIELDS, "field")
    listed_headers = document.get("headers")
    if not isinstance(listed_headers, list | None):
        raise RecordJsonError(HEADERS_EXPECTED)
    headers = [header_from_json(header) for header in listed_headers or []]
    return OutgoingRecord(
        data_from_json(document, "key"),
        data_from_json(document, "value"),
        headers,
        timestamp_from_json(document),
        number_from_json(document, "partition", PARTITION_MAX),
    )


HEADERS_EXPECTED = '"headers" must be a list of objects with "key" (or "key_base64") and "value"'


def header_from_json(header: object) -> tuple[str, bytes | None]:
    """Return key and value. In the key, lone surrogates represent bytes that are not UTF-8 ("surrogateescape")."""
    if not isinstance(header, dict) or not isinstance(header.get("key", header.get("key_base64")), str):
        raise RecordJsonError(HEADERS_EXPECTED)
    check_names(header, HEADER_FIELDS, "field of a header")
    key = data_from_json(header, "key")
    assert key is not None
    return key.decode("utf-8", "surrogateescape"), data_from_json(header, "value")


def check_names(document: dict[str, Any], known_names: tuple[str, ...], noun: str) -> None:
    """Raise RecordJsonError for an unknown name, because its data would be lost silently."""
    for name in document:
        if name not in known_names:
            raise RecordJsonError(f"{json.dumps(name)} is not a {noun}; the fields are {', '.join(known_names)}")


def number_from_json(document: dict[str, Any], name: str, maximum: int) -> int | None:
    number = document.get(name)
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= maximum):
        raise RecordJsonError(f'"{name}" must be a number from 0 to {maximum}')
    return number


def timestamp_from_json(document: dict[str, Any]) -> int | None:
    """Return the timestamp. If it is None, librdkafka writes the current time.

    Raises RecordJsonError for 0 and negative numbers: for 0, librdkafka would also write the current time.
    """
    number, text = number_from_json(document, "timestamp_ms", TIMESTAMP_MAX), document.get("timestamp")
    if number is not None or text is not None:
        number = number if number is not None else timestamp_from_text(text)
        if number <= 0:
            raise RecordJsonError("the timestamp must be after 1970-01-01T00:00:00.000Z: change it or leave it out")
    return number


def timestamp_from_text(text: Any) -> int:
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        time = None
    if time is None or time.tzinfo is None:
        raise RecordJsonError('"timestamp" must have the form 2026-03-01T12:00:00.000Z, with a time zone')
    return round(time.timestamp() * 1000)


def data_from_json(document: dict[str, Any], name: str) -> bytes | None:
    if {name, f"{name}_base64"} <= set(document):
        raise RecordJsonError(f'"{name}" and "{name}_base64" cannot be used together')
    if f"{name}_base64" in document:
        try:
            return base64.b64decode(document[f"{name}_base64"], validate=True)
        except (TypeError, ValueError):
            raise RecordJsonError(f'"{name}_base64" is not base64') from None
    data: str | ExactText | None = document.get(name)
    # JSON that is neither a string nor null is an ExactText. So a user who writes a line by hand can write a JSON
    # object as the value directly, and need not put it into a string.
    if isinstance(data, str):
        return encode_text(data, name)
    return None if data is None else bytes(data)


def encode_text(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RecordJsonError(f'"{name}" has half of a surrogate pair, which is not valid text') from None
