"""One connection's side of the protocol, without a socket."""

import pytest

from tidelog.client.connection import ClientConnection, VersionRange, response_class
from tidelog.client.errors import ApiNotSupported, BrokenProtocol
from tidelog.wire.apis import APIS
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.message import Message, records_bytes
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.fetch import FetchRequest, FetchResponse
from tidelog.wire.messages.list_offsets import ListOffsetsRequest
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire_harness import decode_request_header, encode_response


def sent(pieces: list[object]) -> tuple[int, int, int, bytes]:
    """API key, version, correlation id and body of a frame whose size is right."""
    raw = b"".join(bytes(piece) for piece in pieces)  # type: ignore[arg-type]
    assert int.from_bytes(raw[:4], "big") == len(raw) - 4
    header, position = decode_request_header(raw, 4)
    assert header.client_id == "me"
    return header.api_key, header.api_version, header.correlation_id, raw[position:]


def answered(message: Message, version: int, correlation_id: int) -> bytes:
    return b"".join(bytes(piece) for piece in encode_response(message, version, correlation_id))[4:]  # type: ignore[arg-type]


def greeted(ranges: dict[int, tuple[int, int]]) -> ClientConnection:
    connection = ClientConnection("me")
    _, version, correlation_id, _ = sent(connection.begin_greeting())
    keys = [ApiVersion(key, first, last) for key, (first, last) in ranges.items()]
    assert connection.continue_greeting(answered(ApiVersionsResponse(api_keys=keys), version, correlation_id)) is None
    return connection


def test_the_greeting_says_who_we_are_and_learns_the_versions() -> None:
    connection = ClientConnection("me")
    key, version, correlation_id, body = sent(connection.begin_greeting())
    assert (key, version) == (18, ApiVersionsRequest.max_version)
    request, _ = ApiVersionsRequest.decode(body, 0, version)
    assert request.client_software_name == "tidelog"
    response = ApiVersionsResponse(api_keys=[ApiVersion(1, 4, 17), ApiVersion(3, 0, 12)])
    assert connection.continue_greeting(answered(response, version, correlation_id)) is None
    assert connection.versions == {1: VersionRange(4, 17), 3: VersionRange(0, 12)}


@pytest.mark.parametrize(("offered", "again"), [([ApiVersion(18, 0, 2)], 2), ([], 0), ([ApiVersion(18, 0, 9)], 3)])
def test_a_broker_that_knows_only_older_greetings_is_greeted_again(offered: list[ApiVersion], again: int) -> None:
    """It answers in version 0 with UNSUPPORTED_VERSION (KIP-511)."""
    connection = ClientConnection("me")
    _, _, correlation_id, _ = sent(connection.begin_greeting())
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=offered)
    pieces = connection.continue_greeting(answered(refusal, 0, correlation_id))
    assert pieces is not None
    _, version, correlation_id, _ = sent(list(pieces))
    assert version == again
    response = ApiVersionsResponse(api_keys=[ApiVersion(3, 0, 1)])
    assert connection.continue_greeting(answered(response, version, correlation_id)) is None
    assert connection.versions == {3: VersionRange(0, 1)}


def test_a_greeting_that_is_refused_otherwise_is_an_error() -> None:
    connection = ClientConnection("me")
    _, version, correlation_id, _ = sent(connection.begin_greeting())
    refusal = ApiVersionsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(ApiError, match=r"rejects the first request \(ApiVersions\)") as raised:
        connection.continue_greeting(answered(refusal, version, correlation_id))
    assert raised.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_the_highest_version_of_both_is_spoken() -> None:
    connection = greeted({1: (4, 99), 3: (0, 9), 0: (20, 21)})
    assert connection.version_for(FetchRequest) == FetchRequest.max_version
    assert connection.version_for(FetchRequest, 12) == 12
    assert connection.version_for(MetadataRequest) == 9
    with pytest.raises(
        ApiNotSupported, match="Produce: the broker supports versions 20 to 21, this client supports 3 to 13"
    ):
        connection.version_for(ProduceRequest)
    with pytest.raises(ApiNotSupported, match="does not offer ListOffsets"):
        connection.version_for(ListOffsetsRequest)


def test_answers_come_in_the_order_of_the_requests() -> None:
    connection = greeted({1: (4, 17), 3: (0, 12)})
    ids = [sent(connection.request(request))[2] for request in (MetadataRequest(), FetchRequest(), MetadataRequest())]
    assert len(connection._expected) == 3
    kinds = [(MetadataResponse(cluster_id="a"), 12), (FetchResponse(session_id=5), 17), (MetadataResponse(), 12)]
    for (message, version), correlation_id in zip(kinds, ids, strict=True):
        assert connection.answer(answered(message, version, correlation_id)) == message
    assert not connection._expected


def test_record_data_is_sent_as_it_is() -> None:
    connection = greeted({0: (3, 13)})
    records = memoryview(bytearray(b"r" * 1000))
    partition = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(topic_id=bytes(16), partition_data=[partition])])
    pieces = connection.request(request)
    assert any(piece is records for piece in pieces)
    assert records_bytes(pieces) == int.from_bytes(bytes(pieces[0][:4]), "big") + 4  # type: ignore[index]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (answered(MetadataResponse(), 12, 7777), "the broker sent response 7777 where 1 was expected"),
        (answered(MetadataResponse(), 12, 1)[:-1], "Metadata"),
        (b"\0\0", "response header: cut short"),
        (b"", "response header: cut short"),
    ],
)
def test_what_is_no_answer_breaks_the_protocol(frame: bytes, message: str) -> None:
    connection = greeted({3: (0, 12)})
    connection.request(MetadataRequest())
    with pytest.raises(BrokenProtocol, match=message):
        connection.answer(frame)


def test_an_answer_that_nothing_asked_for_breaks_the_protocol() -> None:
    with pytest.raises(BrokenProtocol, match="response without a request"):
        greeted({}).answer(answered(MetadataResponse(), 12, 1))


def test_correlation_ids_wrap_around() -> None:
    connection = greeted({3: (0, 12)})
    connection._next_id = 0x7FFFFFFF
    assert [sent(connection.request(MetadataRequest()))[2] for _ in range(2)] == [0x7FFFFFFF, 0]


def test_every_api_has_a_response() -> None:
    for key, api in APIS.items():
        assert response_class(key).name == api.name
