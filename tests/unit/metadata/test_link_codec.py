"""Requests to the controller and answers as bytes: every type that `link.py` names, round trips, hostile bytes."""

import contextlib
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_harness.values import values_of, with_tuples
from tidelog.config.endpoints import Endpoint
from tidelog.metadata import link, link_codec
from tidelog.metadata.controller import NewTopic, TopicResult
from tidelog.metadata.link import (
    AlterConfigs,
    Answer,
    ControllerLink,
    ControllerRequest,
    CreateTopics,
    DeleteTopics,
    RegisterBroker,
    Requester,
)
from tidelog.metadata.link_codec import (
    decode_answer,
    decode_request,
    encode_answer,
    encode_error,
    encode_request,
    request_kinds,
)
from tidelog.metadata.registration import Registration
from tidelog.metadata.value_codec import (
    Codec,
    MalformedValue,
    UncodableType,
    UncodableValue,
    UnknownValue,
    ValueReader,
    codec_for,
)
from tidelog.model.ids import TopicId
from tidelog.model.steps import run_all
from tidelog.wire.errors import ErrorCode

REQUESTS = get_args(ControllerRequest)
TYPE = CreateTopics([NewTopic("orders", 3, 1, [(0, [1, 2])], [("retention.ms", None)])], timeout_ms=5)


def encoded(request: Any) -> bytes:
    return run_all(encode_request(request))


def decoded(data: bytes) -> Any:
    return run_all(decode_request(data))


# Every request


def test_every_request_and_its_answer_can_be_sent() -> None:
    """A request that is added to `ControllerRequest` needs a method of `ControllerLink` with complete type hints."""
    assert sorted(request_kinds()) == sorted(request.__name__ for request in REQUESTS)


@pytest.mark.parametrize("request_class", REQUESTS, ids=lambda each: each.__name__)
@given(data=st.data())
def test_requests_survive_the_way(request_class: type[Any], data: st.DataObject) -> None:
    request = data.draw(values_of(request_class))
    assert with_tuples(decoded(encoded(request))) == with_tuples(request)


@pytest.mark.parametrize("request_class", REQUESTS, ids=lambda each: each.__name__)
@given(data=st.data())
def test_answers_survive_the_way(request_class: type[Any], data: st.DataObject) -> None:
    hints = next(hints for hints in method_hints() if hints["request"] is request_class)
    (value_type,) = get_args(hints["return"])
    answer = Answer(
        data.draw(values_of(value_type)),
        data.draw(values_of(ErrorCode)),
        data.draw(st.text()),
        data.draw(values_of(int)),
        data.draw(values_of(int)),
    )
    sent = run_all(encode_answer(request_class, answer))
    assert with_tuples(run_all(decode_answer(request_class, sent))) == with_tuples(answer)


def method_hints() -> list[dict[str, Any]]:
    methods = (method for name, method in vars(ControllerLink).items() if not name.startswith("_"))
    return [get_type_hints(method) for method in methods]


@pytest.mark.parametrize("request_class", REQUESTS, ids=lambda each: each.__name__)
def test_an_error_is_the_answer_to_any_request(request_class: type[Any]) -> None:
    answer = Answer(None, ErrorCode.UNSUPPORTED_VERSION, "too new", 7, 9)
    assert run_all(decode_answer(request_class, encode_error(answer))) == answer


def test_the_bytes_of_a_request_do_not_change() -> None:
    """Brokers of different versions exchange them."""
    assert encoded(TYPE) == (
        b"TLCR\x01\x0cCreateTopics\x03\x01\x05\x06orders\x06\x02\x01\x02\x00\x02\x02\x04\x01\x02\x0cretention.ms\x00"
        b"\x00\x01\x0a"
    )
    answer = Answer([TopicResult("orders")], position=5)
    assert run_all(encode_answer(CreateTopics, answer)) == b"TLCR\x01\x05\x01\x01\x01\x01\x06orders\x00\x00\x00\x0a"


# Newer and older brokers


class Small(NamedTuple):
    name: str
    size: int = 0


class Grown(NamedTuple):
    name: str
    size: int = 0
    colour: str | None = None


def through(writer: type[Any], reader: type[Any], value: Any) -> Any:
    out = bytearray()
    run_all(codec_for(writer, "written").write(out, value))
    source = ValueReader(bytes(out))
    result = run_all(codec_for(reader, "read").read(source))
    assert source.position == len(out)
    return result


def test_a_field_with_a_default_may_be_added() -> None:
    assert through(Small, Grown, Small("a", 3)) == Grown("a", 3, None)
    assert through(Grown, Small, Grown("a", 3)) == Small("a", 3)
    with pytest.raises(UnknownValue, match="Small has 3 fields; this broker knows 2"):
        through(Grown, Small, Grown("a", 0, "red"))


class Colour(IntEnum):
    RED = 1


class Colours(IntEnum):
    RED = 1
    BLUE = 2


def test_what_a_newer_broker_has_added_is_refused() -> None:
    with pytest.raises(UnknownValue, match="the Colour 2 is unknown here"):
        through(Colours, Colour, Colours.BLUE)
    with pytest.raises(UnknownValue, match="'Grown' is unknown here"):
        through(Small | Grown, Small | Endpoint, Grown("a"))  # type: ignore[arg-type]
    data = encoded(TYPE)
    with pytest.raises(UnknownValue, match="the controller does not know the request 'ExplodeTopic'"):
        decoded(data.replace(b"CreateTopics", b"ExplodeTopic"))
    with pytest.raises(UnknownValue, match="format version 2, which the receiving broker does not know"):
        decoded(data[:4] + b"\2" + data[5:])


# Types that cannot be sent


class Nested(NamedTuple):
    inner: "Sequence[Nested]" = ()


class Text(Enum):
    MIXED = 1
    OTHER = "x"


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        (Callable[[], None], "cannot be sent to another broker"),
        (object, "cannot be sent to another broker"),
        (Any, "cannot be sent to another broker"),
        (list, "cannot be sent to another broker"),
        (tuple, "cannot be sent to another broker"),
        (complex, "cannot be sent to another broker"),
        (Nested, "nested deeper than"),
        (Text, "neither all int nor all str"),
        (list[int] | list[str], "cannot be a member of a union"),
    ],
    ids=str,
)
def test_other_types_are_refused_when_the_codec_is_made(hint: Any, reason: str) -> None:
    with pytest.raises(UncodableType, match=reason):
        codec_for(hint, "Field.name")


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, "1"),
        (int, True),
        (int, 1 << 63),
        (bool, 1),
        (str, b"a"),
        (str, "\ud800"),
        (bytes, "a"),
        (float, "1"),
        pytest.param(float, 10**400, id="too large"),
        (None, 0),
        (list[int], (1,)),
        (tuple[int, ...], [1]),
        (Sequence[str], "ab"),
        (dict[str, int], [("a", 1)]),
        (tuple[int, str], (1,)),
        (Small, ("a", 1)),
        (Colour, 1),
        (Small | Grown, Endpoint("A", "b", 1)),
    ],
    ids=str,
)
def test_values_of_other_types_are_not_sent(hint: Any, value: Any) -> None:
    with pytest.raises(UncodableValue, match=r"field|Small"):
        run_all(codec_for(hint, "field").write(bytearray(), value))


def test_too_large_messages_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_codec, "REQUEST_BYTES_MAX", 100)
    monkeypatch.setattr(link_codec, "ANSWER_BYTES_MAX", 100)
    with pytest.raises(UncodableValue, match="at most 100"):
        encoded(CreateTopics([NewTopic("a" * 90)]))
    with pytest.raises(UncodableValue, match="at most 100"):
        run_all(encode_answer(CreateTopics, Answer([TopicResult("a" * 100)])))
    with pytest.raises(MalformedValue, match="at most 100"):
        decoded(b"x" * 101)


# Hostile bytes


def outcome(data: bytes) -> Any:
    try:
        return decoded(data)
    except (MalformedValue, UnknownValue) as refused:
        return refused


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_decoded(data: bytes) -> None:
    outcome(data)
    for request_class in REQUESTS:
        head = b"TLCR\x01" + bytes((len(request_class.__name__),)) + request_class.__name__.encode()
        request = outcome(head + data)
        if isinstance(request, tuple):
            assert encoded(decoded(encoded(request))) == encoded(request)
        with contextlib.suppress(MalformedValue, UnknownValue):
            run_all(decode_answer(request_class, b"TLCR\x01" + data))


EXAMPLES = [
    TYPE,
    DeleteTopics([link.TopicChoice(None, TopicId(bytes(range(16))))], 5, Requester("u", "c", is_strict=True)),
    AlterConfigs([], 1),
    RegisterBroker(Registration(1, "secret", (Endpoint("PLAINTEXT", "h", 1),), features={"f": (0, 1)}), True),
]


@pytest.mark.parametrize("request_value", EXAMPLES, ids=lambda each: type(each).__name__)
def test_damaged_requests_are_refused_or_decoded(request_value: Any) -> None:
    data = encoded(request_value)
    for end in range(len(data)):
        assert isinstance(outcome(data[:end]), MalformedValue | UnknownValue), "cut short"
    assert isinstance(outcome(data + b"\0"), MalformedValue), "bytes after the request"
    for position in range(len(data)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, data[position] ^ 1):
            outcome(data[:position] + bytes((value,)) + data[position + 1 :])


def test_a_length_without_its_bytes_allocates_nothing() -> None:
    for codec in (codec_for(list[int], "list"), codec_for(bytes, "bytes"), codec_for(dict[str, int], "map")):
        assert isinstance(codec, Codec)
        with pytest.raises(MalformedValue, match="exceeds the 3 bytes that follow"):
            run_all(codec.read(ValueReader(b"\xff\xff\xff\xff\x0f123")))
    with pytest.raises(MalformedValue, match="repeated"):
        run_all(codec_for(dict[int, int], "map").read(ValueReader(b"\x02\x02\x02\x02\x02")))


def test_long_requests_are_encoded_and_decoded_in_steps() -> None:
    request = CreateTopics([NewTopic(f"t{number}", assignments=[(0, list(range(200)))]) for number in range(50)])
    steps = encode_request(request)
    count = sum(1 for _ in steps)
    assert count > 50 * 3
    assert sum(1 for _ in decode_request(encoded(request))) > 50 * 3
