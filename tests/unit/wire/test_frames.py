"""Frame headers in every version, and whole frames."""

from typing import Any

import pytest

from tidelog.wire.apis import APIS
from tidelog.wire.frames import (
    decode_response_header,
    encode_request_header,
    request_header_version,
    response_header_version,
)
from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.primitives import MalformedMessage, UnencodableValue
from wire_harness import decode_request_header, encode_request, encode_response, encode_response_header


@pytest.mark.parametrize(
    ("key", "version", "request_header", "response_header"),
    [
        (0, 8, 1, 0),
        (0, 9, 2, 1),
        (18, 2, 1, 0),
        (18, 3, 2, 0),  # ApiVersions: the answer's header stays readable for everyone
        (17, 1, 1, 0),  # SaslHandshake never became flexible
        (1, 12, 2, 1),
        (1, 99, 2, 1),
        (18, 99, 2, 0),
        (12345, 3, 1, 0),
        (0, -1, 1, 0),
    ],
)
def test_header_versions(key: int, version: int, request_header: int, response_header: int) -> None:
    assert request_header_version(key, version) == request_header
    assert response_header_version(key, version) == response_header


@pytest.mark.parametrize("client_id", [None, "", "orders", "größe"])
@pytest.mark.parametrize(("key", "version"), [(0, 7), (0, 9), (18, 3)])
def test_request_header_round_trip(key: int, version: int, client_id: str | None) -> None:
    encoded = encode_request_header(key, version, 7, client_id)
    header, position = decode_request_header(memoryview(b"....." + encoded + b"rest"), 5)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (key, version, 7, client_id)
    assert position == 5 + len(encoded)


def test_client_id_keeps_its_two_byte_length_in_flexible_headers() -> None:
    assert encode_request_header(0, 9, 1, "ab") == bytes.fromhex("0000 0009 00000001 0002 6162 00")


def test_tagged_fields_of_headers_are_skipped() -> None:
    tags = bytes.fromhex("02 00 03 616263 05 00")  # two: tag 0 of three bytes, tag 5 of none
    request = encode_request_header(0, 9, 1, "ab")[:-1] + tags
    assert decode_request_header(request, 0)[1] == len(request)
    response = encode_response_header(0, 9, 1)[:-1] + tags
    assert decode_response_header(response, 0, 0, 9) == (1, len(response))


@pytest.mark.parametrize("size", range(12))
def test_a_request_header_cut_short(size: int) -> None:
    whole = encode_request_header(0, 9, 1, "ab")
    assert len(whole) == 13
    with pytest.raises(MalformedMessage):
        decode_request_header(whole[:size], 0)


def test_malformed_request_headers() -> None:
    with pytest.raises(MalformedMessage, match="UTF-8"):
        decode_request_header(bytes.fromhex("0000 0007 00000001 0002 fffe"), 0)
    with pytest.raises(MalformedMessage, match="cut short"):
        decode_request_header(bytes.fromhex("0000 0009 00000001 0002 6162 01 00 7f"), 0)
    with pytest.raises(MalformedMessage):
        decode_response_header(b"\0\0\0", 0, 0, 7)
    with pytest.raises(MalformedMessage):
        decode_response_header(b"\0\0\0\1", 0, 0, 9)


def test_any_negative_client_id_length_is_null() -> None:
    assert decode_request_header(bytes.fromhex("0000 0007 00000001 fffe"), 0)[0].client_id is None


def test_a_client_id_too_long() -> None:
    with pytest.raises(UnencodableValue):
        encode_request_header(0, 7, 1, "x" * 40_000)


def test_request_frame() -> None:
    request = HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
    frame = encode_request(request, 0, 9, "c")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, position = decode_request_header(frame, 4)
    assert (header.api_key, header.api_version, header.correlation_id) == (12, 0, 9)
    assert HeartbeatRequest.decode(frame, position, 0) == (request, len(frame))


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (HeartbeatResponse(throttle_time_ms=5), 3),
        (HeartbeatResponse(throttle_time_ms=5), 4),
        (ApiVersionsResponse(error_code=35), 0),
        (ApiVersionsResponse(error_code=35), 3),
    ],
)
def test_response_frame(message: Any, version: int) -> None:
    pieces: list[Any] = encode_response(message, version, 77)
    frame = b"".join(pieces)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, position = decode_response_header(frame, 4, message.api_key, version)
    assert correlation_id == 77
    assert frame[4:position] == encode_response_header(message.api_key, version, 77)
    assert type(message).decode(frame, position, version) == (message, len(frame))


def test_response_frame_keeps_records_as_they_are() -> None:
    records = memoryview(bytearray(b"batch bytes"))
    partition = PartitionData(partition_index=1, high_watermark=4, records=records)
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
    pieces: list[Any] = encode_response(response, 11, 1)
    assert len(pieces) == 2
    assert pieces[1] is records
    frame = b"".join(pieces)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


def test_apis_name_their_modules() -> None:
    assert APIS[ApiVersionsRequest.api_key].module == "api_versions"
    assert APIS[0] == ("Produce", "produce", 3, 13, 9)
    assert APIS[22].max_version == 5  # InitProducerId v6 is not stable in 4.3
    assert 4 not in APIS  # LeaderAndIsr went with ZooKeeper mode
