"""Listener addresses."""

import pytest

from tidelog.config.endpoints import Endpoint, parse_endpoints, parse_protocols
from tidelog.config.key import InvalidValue

PROTOCOLS = {"PLAINTEXT": "PLAINTEXT", "INSIDE": "PLAINTEXT", "SSL": "SSL"}


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Endpoint("PLAINTEXT", "127.0.0.1", 9092)),
        ("plaintext://broker.example:0", Endpoint("PLAINTEXT", "broker.example", 0)),
        ("INSIDE://:9092", Endpoint("INSIDE", "", 9092)),
        ("PLAINTEXT://[::1]:9092", Endpoint("PLAINTEXT", "::1", 9092)),
    ],
)
def test_addresses_are_read(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoints("listeners", [text], PROTOCOLS) == (endpoint,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "takes NAME://HOST:PORT"),
        ("localhost:9092", "takes NAME://HOST:PORT"),
        ("PLAINTEXT://localhost", "takes NAME://HOST:PORT"),
        ("PLAINTEXT://localhost:x", "takes NAME://HOST:PORT"),
        ("PLAINTEXT://localhost:65536", "takes NAME://HOST:PORT"),
        ("PLAINTEXT://localhost:-1", "takes NAME://HOST:PORT"),
        ("PLAINTEXT://::1:9092", "in brackets: [::1]:9092"),
        ("OUTSIDE://localhost:1", "no protocol for OUTSIDE"),
        ("SSL://localhost:1", "SSL is not supported yet"),
    ],
)
def test_addresses_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_endpoints("listeners", [text], PROTOCOLS)
    assert reason in str(caught.value)
    assert "listeners" in str(caught.value)


def test_two_listeners_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidValue, match="two listeners have the name INSIDE"):
        parse_endpoints("listeners", ["INSIDE://a:1", "inside://b:2"], PROTOCOLS)


def test_one_listener_is_needed() -> None:
    with pytest.raises(InvalidValue, match="at least one"):
        parse_endpoints("listeners", [], PROTOCOLS)


def test_protocols() -> None:
    assert parse_protocols("m", "A:PLAINTEXT, b:ssl,") == {"A": "PLAINTEXT", "B": "SSL"}
    for text in ("A", "A:NONE"):
        with pytest.raises(InvalidValue, match="takes NAME:PROTOCOL"):
            parse_protocols("m", text)


def test_an_address_is_shown_as_it_is_written() -> None:
    assert str(Endpoint("PLAINTEXT", "::1", 9092)) == "PLAINTEXT://[::1]:9092"
