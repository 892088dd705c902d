"""A line of `produce --json` as a record: what `records.to_json` wrote, or somebody by hand.

A key or a value that is no string is passed on as it is written: a number of 30 digits, `1.50`, spaces and repeated
names within an object. So the outer object is taken apart here, and only its parts are left to the standard library.
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
"""What a line of `consume --json` can have, and one for `produce --json`."""
HEADER_FIELDS = ("key", "key_base64", "value", "value_base64")
AS_WRITTEN = ("key", "value")
TIMESTAMP_MAX = (1 << 63) - 1
DIGITS_MAX = 25
"""More are not looked at: Python takes a while for thousands, and refuses more."""

SPACE = re.compile(r"[ \t\n\r]*").match
COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*").match
AFTER_MEMBER = re.compile(r"[ \t\n\r]*([,}])[ \t\n\r]*").match
AFTER_ITEM = re.compile(r"[ \t\n\r]*([,\]])[ \t\n\r]*").match


class RecordJsonError(ValueError):
    """The JSON is not a record as `to_json` writes it."""


class RepeatedError(Exception):
    """A name stands twice in one of the objects, the outer one or within a value."""


class Written(bytes):
    """A JSON value as it stands in the line."""


def record_from_line(line: bytes) -> OutgoingRecord:
    """What `to_json` wrote, as a record; `topic` and `offset` are where it came from, and not taken over.

    Of `timestamp_ms` and `timestamp` the first counts. Raises JSONDecodeError, and RecordJsonError for other reasons.
    """
    try:
        return record_from_json(parsed(line.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        raise RecordJsonError(f"byte {error.start + 1} is not UTF-8") from None
    except RecursionError:
        raise RecordJsonError("it is nested too deeply") from None


def parsed(text: str) -> object:
    """The JSON, with what is `Written` in place of keys and values that are neither strings nor null."""
    try:
        document: Any = WHOLE.decode(text)
        if not isinstance(document, dict) or not wants_the_text(document):
            return document  # most lines: in one go
    except RepeatedError:
        pass
    at = SPACE(text, 0).end()  # type: ignore[union-attr]
    if text[at : at + 1] != "{":
        return DECODER.decode(text)
    document, at = members(text, at + 1)
    if (at := SPACE(text, at).end()) < len(text):  # type: ignore[union-attr]
        raise JSONDecodeError("Extra data", text, at)
    return document


def members(text: str, at: int) -> tuple[dict[str, Any], int]:
    """Those of the object that has been opened before `at`, and where it ends."""
    found: dict[str, Any] = {}
    at = SPACE(text, at).end()  # type: ignore[union-attr]
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, at = scan(text, at)
        if name in found:
            raise RecordJsonError(f"{json.dumps(name)} stands there twice")
        if (colon := COLON(text, at)) is None:
            raise JSONDecodeError("Expecting ':' delimiter", text, at)
        found[name], at = member(text, colon.end(), name)
        if (end := AFTER_MEMBER(text, at)) is None:
            raise JSONDecodeError("Expecting ',' delimiter", text, at)
        if end[1] == "}":
            return found, end.end(1)
        at = end.end()


def member(text: str, at: int, name: str) -> tuple[Any, int]:
    """The value of the member of that name, and where it ends."""
    if name == "headers" and text[at : at + 1] == "[":
        return items(text, at + 1)
    value, end = scan(text, at)
    if name in AS_WRITTEN and value is not None and not isinstance(value, str):
        value = Written(text[at:end].encode())
    return value, end


def items(text: str, at: int) -> tuple[list[Any], int]:
    """Those of the list that has been opened before `at`, and where it ends; objects are taken apart."""
    found: list[Any] = []
    at = SPACE(text, at).end()  # type: ignore[union-attr]
    if text[at : at + 1] == "]":
        return found, at + 1
    while True:
        item, at = members(text, at + 1) if text[at : at + 1] == "{" else scan(text, at)
        found.append(item)
        if (end := AFTER_ITEM(text, at)) is None:
            raise JSONDecodeError("Expecting ',' delimiter", text, at)
        if end[1] == "]":
            return found, end.end(1)
        at = end.end()


def scan(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends."""
    try:
        found: tuple[Any, int] = SCAN(text, at)
    except StopIteration as error:
        raise JSONDecodeError("Expecting value", text, error.value) from None
    return found


def wants_the_text(document: dict[str, Any]) -> bool:
    """Whether a key or a value in it is neither a string nor null."""
    headers = document.get("headers")
    inner = [header for header in headers if isinstance(header, dict)] if isinstance(headers, list) else []
    return any(not isinstance(each.get(name), str | None) for each in (document, *inner) for name in AS_WRITTEN)


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RepeatedError
    return found


def whole_number(digits: str) -> int | float:
    return int(digits) if len(digits) <= DIGITS_MAX else float("inf")


def refused(constant: str) -> NoReturn:
    raise RecordJsonError(f"JSON has no {constant}")


DECODER = json.JSONDecoder(parse_int=whole_number, parse_constant=refused)
SCAN = DECODER.scan_once  # type: ignore[attr-defined]
"""What raw_decode calls, and in C."""
WHOLE = json.JSONDecoder(object_pairs_hook=without_repeats, parse_int=whole_number, parse_constant=refused)


def record_from_json(document: object) -> OutgoingRecord:
    """Of what `parsed` returned. Raises RecordJsonError."""
    if not isinstance(document, dict) or not ({"value", "value_base64"} & set(document)):
        raise RecordJsonError('it must be an object with "value"')
    only(document, FIELDS, "field")
    listed = document.get("headers")
    if not isinstance(listed, list | None):
        raise RecordJsonError(NO_HEADERS)
    headers = [header_from_json(header) for header in listed or []]
    return OutgoingRecord(
        data_from_json(document, "key"),
        data_from_json(document, "value"),
        headers,
        timestamp_from_json(document),
        number_from_json(document, "partition", PARTITION_MAX),
    )


NO_HEADERS = '"headers" must be a list of objects with "key" (or "key_base64") and "value"'


def header_from_json(header: object) -> tuple[str, bytes | None]:
    """The key has lone surrogates for bytes that are not UTF-8 ("surrogateescape")."""
    if not isinstance(header, dict) or not isinstance(header.get("key", header.get("key_base64")), str):
        raise RecordJsonError(NO_HEADERS)
    only(header, HEADER_FIELDS, "field of a header")
    key = data_from_json(header, "key")
    assert key is not None
    return key.decode("utf-8", "surrogateescape"), data_from_json(header, "value")


def only(document: dict[str, Any], known: tuple[str, ...], what: str) -> None:
    """Raise RecordJsonError for a name that is not known: what was meant by it would be lost without a word."""
    for name in document:
        if name not in known:
            raise RecordJsonError(f"{json.dumps(name)} is no {what}: there are {', '.join(known)}")


def number_from_json(document: dict[str, Any], name: str, most: int) -> int | None:
    number = document.get(name)
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most):
        raise RecordJsonError(f'"{name}" must be a number from 0 to {most}')
    return number


def timestamp_from_json(document: dict[str, Any]) -> int | None:
    """None leaves it to librdkafka, which writes the present time; so it does with 0."""
    number, text = number_from_json(document, "timestamp_ms", TIMESTAMP_MAX), document.get("timestamp")
    if number is not None or text is not None:
        number = number if number is not None else timestamp_from_text(text)
        if number <= 0:
            raise RecordJsonError("a time cannot be 1970-01-01T00:00:00.000Z or before: change it, or leave it out")
    return number


def timestamp_from_text(text: Any) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise RecordJsonError('"timestamp" must be as 2026-03-01T12:00:00.000Z, with a zone')
    return round(moment.timestamp() * 1000)


def data_from_json(document: dict[str, Any], name: str) -> bytes | None:
    if {name, f"{name}_base64"} <= set(document):
        raise RecordJsonError(f'"{name}" and "{name}_base64" do not go together')
    if f"{name}_base64" in document:
        try:
            return base64.b64decode(document[f"{name}_base64"], validate=True)
        except (TypeError, ValueError):
            raise RecordJsonError(f'"{name}_base64" is not base64') from None
    data: str | Written | None = document.get(name)
    # What is no string is passed on as it is written: a line made by hand need not quote its JSON twice.
    if isinstance(data, str):
        return utf8(data, name)
    return None if data is None else bytes(data)


def utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RecordJsonError(f'"{name}" has half of a surrogate pair, which is no text') from None
