"""`max.connections.per.ip.overrides`: what it takes, and whom it limits."""

import pytest

from tidelog.config.address_limits import parse_overrides, usual_form
from tidelog.config.broker_config import BrokerConfig, ConfigError, Setting
from tidelog.config.key import InvalidValue

OVERRIDES = "max.connections.per.ip.overrides"


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", {}),
        ("127.0.0.1:5", {"127.0.0.1": 5}),
        (" 10.0.0.1 : 0 , [::1]:7,", {"10.0.0.1": 0, "::1": 7}),
        ("::ffff:10.0.0.1:3", {"10.0.0.1": 3}),
        ("10.0.0.1:1,10.0.0.1:2", {"10.0.0.1": 2}),
    ],
)
def test_addresses_and_counts(text: str, limits: dict[str, int]) -> None:
    assert parse_overrides(text) == limits


@pytest.mark.parametrize("text", ["nonsense", "host:5", "127.0.0.1", "127.0.0.1:", "127.0.0.1:many", "127.0.0.1:-1"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(InvalidValue, match=OVERRIDES):
        parse_overrides(text)
    with pytest.raises(ConfigError, match=OVERRIDES):
        BrokerConfig({OVERRIDES: Setting(text, "a test")})


def test_the_count_is_no_more_than_kafkas() -> None:
    assert parse_overrides("10.0.0.1:2147483647") == {"10.0.0.1": 2**31 - 1}
    with pytest.raises(InvalidValue):
        parse_overrides("10.0.0.1:2147483648")


def test_who_is_limited() -> None:
    config = BrokerConfig({"max.connections.per.ip": Setting("9", "a test")})
    assert config.connections_from("10.0.0.1") == 9
    config.apply_dynamic({}, {OVERRIDES: "10.0.0.1:2"})
    assert [config.connections_from(host) for host in ("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1")] == [2, 9, 2]
    assert config.connections_from("a-host-of-the-simulation") == 9


def test_the_usual_form() -> None:
    assert usual_form("0:0:0:0:0:0:0:1") == "::1"
