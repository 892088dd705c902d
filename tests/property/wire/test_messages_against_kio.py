"""Every API in every version that kio also has: the same bytes for the same values, in both directions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.schema.response_header.v0.header import ResponseHeader as ResponseHeaderV0
from kio.schema.response_header.v1.header import ResponseHeader as ResponseHeaderV1
from kio_oracle import kio_class, kio_decode, kio_encode, kio_kinds, narrowed, to_kio
from wire_values import KIO_DATA, TEXTS, api_messages, message_named, project, trees, versions_of, wire_settings

from tidelog.wire.apis import APIS
from tidelog.wire.fields import snake_case
from tidelog.wire.frames import (
    decode_response_header,
    encode_request_header,
    request_header_version,
    response_header_version,
)
from tidelog.wire.message import Message
from wire_harness import decode_request_header, encode_response_header

MESSAGES = [*api_messages(), *map(message_named, KIO_DATA)]


_oracles: dict[tuple[type[Message], int], tuple[Any, dict[tuple[str, str], str]]] = {}


def oracle_of(message: type[Message], version: int) -> tuple[Any, dict[tuple[str, str], str]]:
    """kio's class, and its types of the fields."""
    if (message, version) in _oracles:
        return _oracles[message, version]
    if message.__name__ in KIO_DATA:
        entity = kio_class(message, version, snake_case(message.__name__), "data")
    else:
        kind = "request" if message.__name__.endswith("Request") else "response"
        entity = kio_class(message, version, APIS[message.api_key].module, kind)
    return _oracles.setdefault((message, version), (entity, kio_kinds(entity, message, version)))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
@wire_settings
@given(data=st.data())
def test_same_bytes(message: type[Message], data: st.DataObject) -> None:
    tree = data.draw(trees(message))
    for version in versions_of(message):
        entity, kinds = oracle_of(message, version)

        def narrow(struct: str, attribute: str, value: Any, kinds: dict[tuple[str, str], str] = kinds) -> Any:
            return narrowed(kinds[struct, attribute], value)

        ours = project(message, tree, version, narrow)
        theirs = to_kio(entity, ours, version)
        expected = kio_encode(theirs)
        assert ours.encode(version) == expected
        assert b"".join(ours.pieces_encoder(version)(ours)) == expected
        decoded, end = message.decode(expected, 0, version)
        assert end == len(expected)
        assert decoded == ours
        assert kio_decode(entity, expected) == theirs


def test_kio_has_every_version_of_every_api() -> None:
    """Should a newer Kafka bring what kio lacks, this names it, and it is to be listed here."""
    missing = []
    for message in api_messages():
        for version in versions_of(message):
            try:
                oracle_of(message, version)
            except ImportError:
                missing.append((message.__name__, version))
    assert missing == []


@pytest.mark.parametrize("key", APIS)
def test_header_versions(key: int) -> None:
    for version in range(APIS[key].min_version, APIS[key].max_version + 1):
        for kind, ours in (("request", request_header_version), ("response", response_header_version)):
            entity = oracle_of(message_named(f"{APIS[key].name}{kind.title()}"), version)[0]
            assert entity.__header_schema__.__version__ == ours(key, version)


@wire_settings
@given(
    key=st.sampled_from(sorted(APIS)),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    client_id=st.none() | TEXTS,
)
def test_headers(key: int, correlation_id: int, client_id: str | None) -> None:
    for version in range(APIS[key].min_version, APIS[key].max_version + 1):
        request = RequestHeaderV2 if request_header_version(key, version) == 2 else RequestHeaderV1
        header = request(
            request_api_key=key,  # type: ignore[arg-type]
            request_api_version=version,  # type: ignore[arg-type]
            correlation_id=correlation_id,  # type: ignore[arg-type]
            client_id=client_id,
        )
        expected = kio_encode(header)
        assert encode_request_header(key, version, correlation_id, client_id) == expected
        found, end = decode_request_header(expected, 0)
        assert end == len(expected)
        assert (found.api_key, found.api_version) == (key, version)
        assert (found.correlation_id, found.client_id) == (correlation_id, client_id)
        response = ResponseHeaderV1 if response_header_version(key, version) else ResponseHeaderV0
        expected = kio_encode(response(correlation_id=correlation_id))  # type: ignore[arg-type]
        assert encode_response_header(key, version, correlation_id) == expected
        assert decode_response_header(expected, 0, key, version) == (correlation_id, len(expected))
