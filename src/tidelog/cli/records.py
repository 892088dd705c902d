"""Records as text: the template of `consume --format`, and JSON, both ways."""

import base64
import json
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli.when import iso

if TYPE_CHECKING:
    from confluent_kafka import Message

FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_ms", "key", "value", "headers")
JSON_FIELDS = (
    *("topic", "partition", "offset", "timestamp", "timestamp_ms"),
    *("key", "key_base64", "value", "value_base64", "headers"),
)
"""What a line of `consume --json` can have, and one for `produce --json`."""
HEADER_FIELDS = ("key", "value", "value_base64")
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Headers = list[tuple[str, str | bytes | None]]
RenderRecord = Callable[["Message"], bytes]


class Record(NamedTuple):
    """One record to write."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None = None
    """None: now."""
    partition: int | None = None
    """None: wherever it belongs."""


class TemplateError(ValueError):
    """The format names a field that no record has, or is cut off."""


class RecordJsonError(ValueError):
    """The JSON is not a record as `to_json` writes it."""


def template(text: str, null: bytes) -> RenderRecord:
    r"""Render records by `text`: fields in braces ({key}, {value}, ...), `{{` and `}}` for braces, \n \t \r \0 \\.

    A null key or value is written as `null`; bytes go out as they are. Raises TemplateError.
    """
    parts: list[bytes | Callable[[Message], bytes]] = []
    position = 0
    while position < len(text):
        two = text[position : position + 2]
        if two in ("{{", "}}"):
            parts.append(two[:1].encode())
            position += 2
        elif two[0] == "{":
            end = text.find("}", position)
            name = text[position + 1 : end]
            if end < 0 or name not in FIELDS:
                raise TemplateError(
                    f"{text[position : end + 1 or None]!r} is not a field: " + " ".join(f"{{{f}}}" for f in FIELDS)
                )
            parts.append(field(name, null))
            position = end + 1
        elif two[0] == "\\" and two[1:] in ESCAPES and len(two) == 2:
            parts.append(ESCAPES[two[1:]])
            position += 2
        else:
            parts.append(two[0].encode())
            position += 1
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def field(name: str, null: bytes) -> Callable[["Message"], bytes]:
    match name:
        case "key":
            return lambda message: octets(message.key(), null)
        case "value":
            return lambda message: octets(message.value(), null)
        case "headers":
            return lambda message: b",".join(
                key.encode() + b"=" + octets(value, null) for key, value in header_list(message)
            )
        case "timestamp":
            return lambda message: time_text(message).encode()
        case "timestamp_ms":
            return lambda message: str(message.timestamp()[1]).encode()
        case "topic":
            return lambda message: (message.topic() or "").encode()
        case "partition":
            return lambda message: str(message.partition()).encode()
    return lambda message: str(message.offset()).encode()


def octets(data: str | bytes | None, null: bytes) -> bytes:
    if data is None:
        return null
    return data.encode() if isinstance(data, str) else data


def header_list(message: "Message") -> Headers:
    headers = message.headers() or []
    return list(headers.items()) if isinstance(headers, dict) else headers


def time_text(message: "Message") -> str:
    """ISO 8601 in UTC; empty when the record has no timestamp."""
    kind, timestamp_ms = message.timestamp()
    return iso(timestamp_ms) if kind else ""


def to_json(message: "Message") -> bytes:
    """One line. Keys and values that are not UTF-8 are under `key_base64` and `value_base64` instead."""
    kind, timestamp_ms = message.timestamp()
    document: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": time_text(message) or None,
        "timestamp_ms": timestamp_ms if kind else None,
        **text_or_base64("key", message.key()),
        **text_or_base64("value", message.value()),
        "headers": [{"key": key, **text_or_base64("value", value)} for key, value in header_list(message)],
    }
    return json.dumps(document, ensure_ascii=False).encode()


def text_or_base64(name: str, data: str | bytes | None) -> dict[str, str | None]:
    if data is None or isinstance(data, str):
        return {name: data}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def record_from_json(document: object) -> Record:
    """What `to_json` wrote, as a record; `topic` and `offset` are where it came from, and not taken over.

    Of `timestamp_ms` and `timestamp` the first counts. Raises RecordJsonError.
    """
    if not isinstance(document, dict) or not ({"value", "value_base64"} & set(document)):
        raise RecordJsonError('it must be an object with "value"')
    only(document, JSON_FIELDS, "field")
    headers: Headers = []
    listed = document.get("headers")
    if not isinstance(listed, list | None):
        raise RecordJsonError('"headers" must be a list of objects with "key" and "value"')
    for header in listed or []:
        if not isinstance(header, dict) or not isinstance(header.get("key"), str):
            raise RecordJsonError('"headers" must be a list of objects with "key" and "value"')
        only(header, HEADER_FIELDS, "field of a header")
        headers.append((header["key"], data_from_json(header, "value")))
    return Record(
        data_from_json(document, "key"),
        data_from_json(document, "value"),
        headers,
        timestamp_from_json(document),
        number_from_json(document, "partition"),
    )


def only(document: dict[str, Any], known: tuple[str, ...], what: str) -> None:
    """Raise RecordJsonError for a name that is not known: what was meant by it would be lost without a word."""
    for name in document:
        if name not in known:
            raise RecordJsonError(f"{json.dumps(name)} is no {what}: there are {', '.join(known)}")


def number_from_json(document: dict[str, Any], name: str) -> int | None:
    number = document.get(name)
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63):
        raise RecordJsonError(f'"{name}" must be a number that is not negative')
    return number


def timestamp_from_json(document: dict[str, Any]) -> int | None:
    number, text = number_from_json(document, "timestamp_ms"), document.get("timestamp")
    if number is not None or text is None:
        return number
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
    data = document.get(name)
    if data is None:
        return None
    if isinstance(data, str):
        return data.encode()
    # Numbers and objects are taken as they are written: a line made by hand need not quote its JSON twice.
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
