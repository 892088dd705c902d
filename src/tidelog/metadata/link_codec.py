"""Encode and decode requests to the controller and their answers, for brokers in different processes.

The codecs are derived from the type hints in `link.py`: every method of `ControllerLink` names the class of its request
and the type of the value in its answer. So a new request needs no change here. `value_codec.py` describes which types
are allowed, and how a class may be changed so that older brokers still accept its values.

A message begins with MAGIC and the version of this format. A request continues with the name of its class.
"""

from functools import cache
from inspect import getmembers, isfunction
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from tidelog.metadata.link import Answer, ControllerLink, ControllerRequest
from tidelog.metadata.value_codec import (
    Codec,
    MalformedValue,
    UncodableValue,
    UnknownValue,
    ValueReader,
    codec_for,
    fields_codec,
)
from tidelog.model.steps import Steps, run_all
from tidelog.wire.primitives import Buffer, uvarint

MAGIC: Final = b"TLCR"
"""The first bytes of every message. No other content of an Envelope request begins with these bytes."""
FORMAT_VERSION: Final = 1
_HEAD: Final = MAGIC + bytes((FORMAT_VERSION,))
REQUEST_BYTES_MAX: Final = 15 << 20
"""Upper bound on the size of an encoded request, in bytes. A broker refuses request frames longer than 16 MiB."""
ANSWER_BYTES_MAX: Final = 64 << 20
"""Upper bound on the size of an encoded answer, in bytes."""


class RequestKind(NamedTuple):
    """One class of requests."""

    request: type[Any]
    request_codec: Codec
    answer_codec: Codec


@cache
def request_kinds() -> dict[str, RequestKind]:
    """Return all kinds of requests by the names of their classes. Raises UncodableType."""
    kinds: dict[str, RequestKind] = {}
    for _, method in getmembers(ControllerLink, isfunction):
        hints = get_type_hints(method)
        if "request" not in hints or "return" not in hints:
            continue
        request: type[Any] = hints["request"]
        (value,) = get_args(hints["return"])
        answer_hints = {**get_type_hints(Answer), "value": value | None}
        kinds[request.__name__] = RequestKind(
            request, codec_for(request, request.__name__), fields_codec(Answer, answer_hints)
        )
    return kinds


def encode_request(request: ControllerRequest) -> Steps[bytes]:
    """Encode a request. Raises UncodableValue if a value cannot be encoded or the request exceeds REQUEST_BYTES_MAX."""
    name = type(request).__name__
    kind = request_kinds()[name]
    out = bytearray(_HEAD)
    out += uvarint(len(name)) + name.encode()
    yield from kind.request_codec.write(out, request)
    if len(out) > REQUEST_BYTES_MAX:
        raise UncodableValue(f"the {name} request has {len(out)} bytes; at most {REQUEST_BYTES_MAX} can be sent")
    return bytes(out)


def decode_request(data: Buffer) -> Steps[ControllerRequest]:
    """Decode a request. Raises MalformedValue, and UnknownValue if only a newer version of Tidelog knows it."""
    reader = _reader(data, REQUEST_BYTES_MAX)
    name = reader.raw(reader.count()).decode(errors="replace")
    kind = request_kinds().get(name)
    if kind is None:
        raise UnknownValue(f"the controller does not know the request {name[:100]!r}")
    request: ControllerRequest = yield from kind.request_codec.read(reader)
    _check_end(reader)
    return request


def encode_answer(request: type[Any], answer: Answer[Any]) -> Steps[bytes]:
    """Encode the answer to a request of the class `request`. Raises UncodableValue."""
    out = bytearray(_HEAD)
    yield from request_kinds()[request.__name__].answer_codec.write(out, answer)
    if len(out) > ANSWER_BYTES_MAX:
        raise UncodableValue(f"the answer has {len(out)} bytes; at most {ANSWER_BYTES_MAX} can be sent")
    return bytes(out)


def encode_error(answer: Answer[None]) -> bytes:
    """Encode an answer without a value. It can be the answer to any kind of request."""
    out = bytearray(_HEAD)
    run_all(_error_codec().write(out, answer))
    return bytes(out)


@cache
def _error_codec() -> Codec:
    # The value is always None, and every optional type encodes None in the same way. So any optional type works here.
    return fields_codec(Answer, {**get_type_hints(Answer), "value": int | None})


def decode_answer(request: type[Any], data: Buffer) -> Steps[Answer[Any]]:
    """Decode the answer to a request of the class `request`. Raises MalformedValue and UnknownValue."""
    reader = _reader(data, ANSWER_BYTES_MAX)
    answer: Answer[Any] = yield from request_kinds()[request.__name__].answer_codec.read(reader)
    _check_end(reader)
    return answer


def _reader(data: Buffer, size_max: int) -> ValueReader:
    if len(data) > size_max:
        raise MalformedValue(f"the message has {len(data)} bytes; at most {size_max} are allowed")
    reader = ValueReader(data)
    if reader.raw(len(MAGIC)) != MAGIC:
        raise MalformedValue("this is not a message between a broker and the controller")
    version = reader.byte()
    if version != FORMAT_VERSION:
        raise UnknownValue(
            f"the message has format version {version}, which the receiving broker does not know: upgrade that broker"
        )
    return reader


def _check_end(reader: ValueReader) -> None:
    if reader.position != len(reader.data):
        raise MalformedValue(f"{len(reader.data) - reader.position} bytes follow the value")
