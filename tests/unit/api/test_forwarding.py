"""Envelopes: a request and its response through both brokers, and everything that the receiving broker refuses."""

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.default_principal_data.v0.data import DefaultPrincipalData
from kio.serial import entity_writer

from tidelog.api.forwarding import (
    ANONYMOUS,
    FORWARDABLE,
    Principal,
    decode_principal,
    encode_principal,
    unwrap_request,
    unwrap_response,
    wrap_request,
    wrap_response,
)
from tidelog.api.registry import TABLE, find_route
from tidelog.api.services import Peer, RequestContext
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from tidelog.wire.messages.metadata import MetadataRequest
from wire_harness import encode_request

CONTEXT = RequestContext(58, 0, 9, "broker-2", Peer("10.0.0.2", 40_000, "10.0.0.1", 9092))
ALICE = Principal("User", "alice", True)
REQUEST = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=3)], timeout_ms=5)


def client_frame(version: int = 7, client_id: str | None = "app") -> bytes:
    return encode_request(REQUEST, version, 1234, client_id)[4:]


def over_the_wire(envelope: EnvelopeRequest) -> EnvelopeRequest:
    return EnvelopeRequest.decode(envelope.encode(0), 0, 0)[0]


def refused(envelope: EnvelopeRequest, *, from_broker: bool = True) -> tuple[int, str]:
    with pytest.raises(ApiError) as raised:
        unwrap_request(envelope, CONTEXT, from_broker=from_broker)
    return raised.value.code, raised.value.message


@pytest.mark.parametrize("version", [2, 4, 5, 7])
@pytest.mark.parametrize("client_id", ["app", "", None])
@pytest.mark.parametrize("host", ["192.168.1.7", "fe80::1", "::1"])
def test_a_request_and_its_response_pass_through_both_brokers(version: int, client_id: str | None, host: str) -> None:
    frame = client_frame(version, client_id)
    envelope = over_the_wire(wrap_request(memoryview(frame), ALICE, host))
    assert envelope.request_data == frame, "the client's own bytes"
    forwarded = unwrap_request(envelope, CONTEXT, from_broker=True)
    context = forwarded.context
    assert (forwarded.principal, forwarded.route.name, forwarded.route.version) == (ALICE, "CreateTopics", version)
    assert forwarded.request.topics[0].name == "t"
    assert (context.client_host, context.client_id, context.correlation_id) == (host, client_id, 1234)
    assert (context.api_key, context.api_version, context.peer.local_port) == (19, version, 9092)

    answer = CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=36)])
    wrapped = wrap_response(forwarded, answer)
    received = EnvelopeResponse.decode(wrapped.encode(0), 0, 0)[0]
    data = unwrap_response(received, find_route(19, version), 1234)
    assert data[:4] == (1234).to_bytes(4, "big")
    start = 5 if version >= 5 else 4
    assert CreateTopicsResponse.decode(data, start, version)[0].topics[0].error_code == 36


def test_only_brokers_may_forward() -> None:
    envelope = wrap_request(client_frame(), ANONYMOUS, "10.0.0.9")
    code, message = refused(envelope, from_broker=False)
    assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert "only brokers" in message


@pytest.mark.parametrize("address", [b"", b"\x0a\0\0", b"\x0a\0\0\x01\0", bytes(17)])
def test_a_wrong_address_is_an_invalid_request(address: bytes) -> None:
    envelope = wrap_request(client_frame(), ANONYMOUS, "10.0.0.9")
    envelope.client_host_address = address
    assert refused(envelope)[0] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("principal", [None, b"", b"\0", b"\0\1\5User\2a\0\0", b"\0\0\5User", b"\0\0\0\0\0\0"])
def test_a_principal_that_cannot_be_read_is_refused(principal: bytes | None) -> None:
    envelope = wrap_request(client_frame(), ANONYMOUS, "10.0.0.9")
    envelope.request_principal = principal
    assert refused(envelope)[0] == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE


def test_an_api_that_is_not_forwarded_is_an_invalid_request() -> None:
    frame = encode_request(MetadataRequest(), 12, 1, "app")[4:]
    assert refused(wrap_request(frame, ANONYMOUS, "10.0.0.9"))[0] == ErrorCode.INVALID_REQUEST
    nested = encode_request(wrap_request(client_frame(), ANONYMOUS, "10.0.0.9"), 0, 1, "app")[4:]
    assert refused(wrap_request(nested, ANONYMOUS, "10.0.0.9"))[0] == ErrorCode.INVALID_REQUEST
    assert {19, 20, 33, 37, 44, 46, 49, 57} <= set(FORWARDABLE) & set(TABLE)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        client_frame()[:9],
        client_frame()[:12],
        client_frame()[:13],
        client_frame()[:20],
        client_frame()[:2] + b"\0\x63" + client_frame()[4:],
        client_frame()[:10] + b"\xff\xff\xff" + client_frame()[13:],
    ],
)
def test_a_request_that_cannot_be_read_is_of_an_unsupported_version(frame: bytes) -> None:
    assert refused(wrap_request(frame, ANONYMOUS, "10.0.0.9"))[0] == ErrorCode.UNSUPPORTED_VERSION


@given(st.binary(max_size=60), st.binary(max_size=30))
def test_hostile_bytes_are_refused_by_an_error_code(data: bytes, principal: bytes) -> None:
    for request_data in (data, client_frame()[:12] + data):
        for request_principal in (principal, encode_principal(ALICE)):
            envelope = EnvelopeRequest(request_data, request_principal, bytes(4))
            try:
                unwrap_request(envelope, CONTEXT, from_broker=True)
            except ApiError as error:
                assert error.code in (  # noqa: PT017 - most inputs are refused, some are valid
                    ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE,
                    ErrorCode.INVALID_REQUEST,
                    ErrorCode.UNSUPPORTED_VERSION,
                )


@pytest.mark.parametrize("data", [None, b"", b"\0\0", (1235).to_bytes(4, "big") + b"\0", (1234).to_bytes(4, "big")])
def test_a_response_that_is_not_the_requests_is_refused(data: bytes | None) -> None:
    with pytest.raises(ApiError, match="CreateTopics request 1234"):
        unwrap_response(EnvelopeResponse(response_data=data), find_route(19, 7), 1234)


def test_the_error_of_an_envelope_is_raised() -> None:
    with pytest.raises(ApiError, match="rejects the forwarded CreateTopics") as raised:
        unwrap_response(EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER), find_route(19, 7), 1234)
    assert raised.value.code == ErrorCode.NOT_CONTROLLER
    assert raised.value.retriable


@given(st.text(max_size=300), st.text(max_size=300), st.booleans())
def test_principals_survive(kind: str, name: str, token_authenticated: bool) -> None:
    principal = Principal(kind, name, token_authenticated)
    encoded = encode_principal(principal)
    assert decode_principal(encoded) == principal
    independent = BytesIO()
    entity_writer(DefaultPrincipalData)(
        independent, DefaultPrincipalData(type_=kind, name=name, token_authenticated=token_authenticated)
    )
    assert encoded == b"\0\0" + independent.getvalue()


def test_the_envelope_is_not_advertised_yet() -> None:
    assert 58 not in TABLE
