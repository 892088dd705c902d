"""Convert records to text: by the template of `consume --format`, or to JSON, which `record_json` parses."""

import base64
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tidelog.cli.tables import json_text
from tidelog.cli.when import iso_time

FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_ms", "key", "value", "headers")
ALL_FIELDS = " ".join(f"{{{field}}}" for field in FIELDS)
KCAT_FIELDS = {
    "t": "{topic}", "p": "{partition}", "o": "{offset}", "k": "{key}", "s": "{value}", "h": "{headers}",
    "T": "{timestamp_ms}",
}  # fmt: skip
"""Placeholders of `kcat -f`, without the percent sign -> the field of our templates with the same meaning."""
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Headers = Sequence[tuple[str, bytes | None]]
"""Keys and values. In a key, lone surrogates represent bytes that are not UTF-8 ("surrogateescape")."""


class IncomingRecord(NamedTuple):
    """One record that was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    """None if the record has no timestamp."""
    key: bytes | None
    value: bytes | None
    headers: Headers


RenderRecord = Callable[[IncomingRecord], bytes]


class OutgoingRecord(NamedTuple):
    """One record to write."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None = None
    """None means the current time."""
    partition: int | None = None
    """None means that the partitioner chooses."""


class TemplateError(ValueError):
    """The format has an unknown field, a brace that is not closed, or a placeholder of kcat, such as %s."""


def parse_template(text: str, null: bytes) -> RenderRecord:
    r"""Return a function that renders a record by the template `text`. Raises TemplateError.

    Fields are in braces ({key}, {value}, ...). `{{`, `}}` and `%%` mean the characters `{`, `}` and `%`, and \n \t \r
    \0 \\ are escapes. A null key, value or header value is written as the bytes of the parameter `null`. Any other
    key or value is written byte for byte, and so is the rest of the template.
    """
    parts: list[bytes | RenderRecord] = []
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
                raise TemplateError(f"{text[position : end + 1 or None]!r} is not a field. Fields: {ALL_FIELDS}")
            parts.append(field_renderer(name, null))
            position = end + 1
        elif two[0] == "%" and two[1:].isascii() and two[1:].isalpha():
            remedy = f"; use {KCAT_FIELDS[two[1:]]}" if two[1:] in KCAT_FIELDS else ""
            raise TemplateError(f"{two!r} is not a field{remedy}. Fields: {ALL_FIELDS}; %% is a percent sign")
        elif two[0] == "\\" and two[1:] in ESCAPES and len(two) == 2:
            parts.append(ESCAPES[two[1:]])
            position += 2
        else:
            parts.append(two[0].encode())
            position += 1
    if len(parts) == 1 and not isinstance(parts[0], bytes):
        return parts[0]
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def field_renderer(name: str, null: bytes) -> RenderRecord:
    match name:
        case "key":
            return lambda record: null if record.key is None else record.key
        case "value":
            return lambda record: null if record.value is None else record.value
        case "headers":
            return lambda record: b",".join(
                name_bytes(key) + b"=" + (null if value is None else value) for key, value in record.headers
            )
        case "timestamp":
            return lambda record: time_text(record).encode()
        case "timestamp_ms":
            return lambda record: str(-1 if record.timestamp_ms is None else record.timestamp_ms).encode()
        case "topic":
            return lambda record: name_bytes(record.topic)
        case "partition":
            return lambda record: str(record.partition).encode()
    return lambda record: str(record.offset).encode()


def name_bytes(name: str) -> bytes:
    """Return the bytes that the broker sent for this name."""
    return name.encode("utf-8", "surrogateescape")


def time_text(record: IncomingRecord) -> str:
    """Return the timestamp as ISO 8601 in UTC; empty when the record has no timestamp."""
    return "" if record.timestamp_ms is None else iso_time(record.timestamp_ms)


def to_json(record: IncomingRecord) -> bytes:
    """Return the record as one line of JSON.

    If a key or value (of the record or of a header) is not UTF-8, the line contains `key_base64` or `value_base64`
    instead of `key` or `value`.
    """
    document: dict[str, Any] = {
        **text_or_base64("topic", name_bytes(record.topic)),
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": time_text(record) or None,
        "timestamp_ms": record.timestamp_ms,
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": headers_json(record.headers),
    }
    return json_text(document).encode()


def headers_json(headers: Headers) -> list[dict[str, Any]]:
    return [{**text_or_base64("key", name_bytes(key)), **text_or_base64("value", value)} for key, value in headers]


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
