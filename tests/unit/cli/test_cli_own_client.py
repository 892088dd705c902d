"""Our own client in commands: the same addresses as for librdkafka's client, errors in one line."""

import pytest

from tidelog.cli.connection import one_line_errors, open_client
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.own_client import raise_for_code
from tidelog.client.cluster import Address
from tidelog.client.errors import NoBrokerReachable
from tidelog.wire.errors import ApiError, ErrorCode


@pytest.mark.parametrize(
    ("bootstrap", "addresses"),
    [
        ("localhost", [Address("localhost", 9092)]),
        ("a:1, [::1]:2 ,", [Address("a", 1), Address("::1", 2)]),
    ],
)
def test_addresses_are_those_of_every_command(bootstrap: str, addresses: list[Address]) -> None:
    with open_client(bootstrap) as client:
        assert list(client.cluster.contacts()) == addresses
    with pytest.raises(UsageError):
        open_client("a:b")


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (ApiError("so it is", ErrorCode.INVALID_CONFIG), "so it is"),
        (ApiError(code=ErrorCode.INVALID_CONFIG), "INVALID_CONFIG"),
        (ApiError("'a_b' and the topic 'a.b' differ only in", ErrorCode.INVALID_TOPIC_EXCEPTION), "differ only in"),
        (ApiError("a b", ErrorCode.INVALID_TOPIC_EXCEPTION), "not a legal topic name"),
        (ApiError(code=ErrorCode.TOPIC_DELETION_DISABLED), "delete.topic.enable=false"),
        (NoBrokerReachable("nobody answers"), "nobody answers"),
    ],
)
def test_what_the_client_raises_is_one_line(raised: Exception, line: str) -> None:
    with pytest.raises(CommandError, match=line), one_line_errors():
        raise raised


def test_a_code_is_told_by_its_message_or_its_name() -> None:
    raise_for_code(ErrorCode.NONE, None)
    with pytest.raises(CommandError, match="INVALID_CONFIG"):
        raise_for_code(ErrorCode.INVALID_CONFIG, None)
    with pytest.raises(CommandError, match="error code 9999"):
        raise_for_code(9999, None)
    with pytest.raises(CommandError, match="it is so"):
        raise_for_code(ErrorCode.INVALID_CONFIG, "it is so")
