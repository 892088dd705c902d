"""Records as text: the template of `consume --format`, and JSON; `record_json` reads that again."""

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli.when import iso

if TYPE_CHECKING:
    from confluent_kafka import Message

FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_ms", "key", "value", "headers")
ALL_FIELDS = " ".join(f"{{{field}}}" for field in FIELDS)
OF_KCAT = {
    "t": "{topic}", "p": "{partition}", "o": "{offset}", "k": "{key}", "s": "{value}", "h": "{headers}",
    "T": "{timestamp_ms}",
}  # fmt: skip
"""What `kcat -f` calls them, behind a percent sign."""
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Headers = list[tuple[str, str | bytes | None]]
RenderRecord = Callable[["Message"], bytes]


class OutgoingRecord(NamedTuple):
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


def template(text: str, null: bytes) -> RenderRecord:
    r"""Render records by `text`: fields in braces ({key}, {value}, ...); `{{`, `}}` and `%%`; \n \t \r \0 \\.

    A null key or value is written as `null`; bytes go out as they are. Raises TemplateError.
    """
    parts: list[bytes | Callable[[Message], bytes]] = []
    position = 0
    while position < len(text):
        two = text[position : position + 2]
        if two in ("{{", "}}", "%%"):
            parts.append(two[:1].encode())
            position += 2
        elif two[0] == "{":
            end = text.find("}", position)
            name = text[position + 1 : end]
            if end < 0 or name not in FIELDS:
                raise TemplateError(f"{text[position : end + 1 or None]!r} is not a field: {ALL_FIELDS}")
            parts.append(field(name, null))
            position = end + 1
        elif two[0] == "%" and two[1:].isascii() and two[1:].isalpha():
            meant = f"; here it is {OF_KCAT[two[1:]]}" if two[1:] in OF_KCAT else ""
            raise TemplateError(f"{two!r} is not a field{meant}: {ALL_FIELDS}, and %% is a percent sign")
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
