"""Our own client in commands: the same addresses as for librdkafka's client, errors in one line."""

import pytest
from confluent_kafka import KafkaError

from tidelog.cli.connection import (
    INTERNAL_TOPIC,
    NO_TOPIC_NAME,
    SIMILAR_TOPIC,
    client_error,
    kafka_error,
    one_line_errors,
    open_client,
)
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
        (ApiError(code=ErrorCode.INVALID_TOPIC_EXCEPTION), "not a legal topic name"),
        (ApiError(code=ErrorCode.TOPIC_DELETION_DISABLED), "delete.topic.enable=false"),
        (NoBrokerReachable("nobody answers"), "nobody answers"),
    ],
)
def test_what_the_client_raises_is_one_line(raised: Exception, line: str) -> None:
    with pytest.raises(CommandError, match=line), one_line_errors():
        raise raised


INVALID = ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("topic", "answer", "line"),
    [
        ("a b", "Topic name is invalid: 'a b' contains one or more characters", NO_TOPIC_NAME),
        ("a b", INVALID.name, NO_TOPIC_NAME),
        ("x" * 250, INVALID.name, NO_TOPIC_NAME),
        ("a_b", "Topic 'a_b' collides with existing topic: a.b", "Topic 'a_b' collides with existing topic: a.b"),
        ("a_b", "in words that no release of Kafka has used", "in words that no release of Kafka has used"),
        ("a_b", f"a_b-0: {INVALID.name}", SIMILAR_TOPIC),
        ("a_b", "", SIMILAR_TOPIC),
        ("__consumer_offsets", INVALID.name, INTERNAL_TOPIC),
        ("__consumer_offsets", "it is internal", "it is internal"),
    ],
)
def test_the_reason_why_a_topic_is_invalid_follows_from_its_name(topic: str, answer: str, line: str) -> None:
    assert str(client_error(ApiError(answer, INVALID), topic=topic)) == f"topic {topic}: {line}"
    assert str(client_error(ApiError(answer, INVALID), "here", topic=topic)) == f"here: {line}"
    if INVALID.name in answer:
        assert str(kafka_error(KafkaError(KafkaError.TOPIC_EXCEPTION), topic=topic)) == f"topic {topic}: {line}"


def test_a_code_is_told_by_its_message_or_its_name() -> None:
    raise_for_code(ErrorCode.NONE, None)
    with pytest.raises(CommandError, match="INVALID_CONFIG"):
        raise_for_code(ErrorCode.INVALID_CONFIG, None)
    with pytest.raises(CommandError, match="error code 9999"):
        raise_for_code(9999, None)
    with pytest.raises(CommandError, match="it is so"):
        raise_for_code(ErrorCode.INVALID_CONFIG, "it is so")
