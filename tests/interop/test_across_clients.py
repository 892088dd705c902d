"""Every client reads the records of every other: all codecs in one partition, keys, headers and nulls, byte by byte."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop_harness import clients
from interop_harness.clients import Client, Sent
from interop_harness.suite import CODECS, NewTopicNamed
from interop_harness.target import Target

CLIENT = "every client"

NAMES = ["confluent-kafka", "kafka-python", "aiokafka", "kcat", "Java"]

BATCH_HEADER = struct.Struct(">qiibIh")
"""The first fields: base offset, length, leader epoch, magic, CRC, attributes (its lowest three bits are the codec)."""


def records_of(codec: str) -> list[Sent]:
    return [
        Sent(b"key of " + codec.encode(), b"value in " + codec.encode() * 300, (("h", b"1"), ("h", b"2"))),
        Sent(None, b"without a key, in " + codec.encode() * 300),
        Sent(b"deleted by " + codec.encode(), None),
    ]


EVERYTHING = [sent for codec in CODECS for sent in records_of(codec)]


@pytest.fixture
def client(request: pytest.FixtureRequest, bootstrap: str) -> Callable[[str], Client]:
    def named(name: str) -> Client:
        if name == "kcat":
            return clients.kcat(request.getfixturevalue("kcat"), bootstrap)
        if name == "Java":
            return clients.java(request.getfixturevalue("java"), bootstrap)
        make = {
            "confluent-kafka": clients.confluent,
            "kafka-python": clients.kafka_python,
            "aiokafka": clients.aiokafka,
        }
        return make[name](bootstrap)

    return named


WRITTEN: dict[tuple[str, str], str] = {}
"""(bootstrap, writer) to the topic that it wrote: once, for all readers."""


@pytest.fixture
def written(bootstrap: str, client: Callable[[str], Client], new_topic: NewTopicNamed) -> Callable[[str], str]:
    def by(writer: str) -> str:
        if (bootstrap, writer) not in WRITTEN:
            topic, wrote = new_topic(f"by-{writer}"), client(writer)
            for codec in CODECS:
                wrote.write(topic, codec, records_of(codec))
            WRITTEN[bootstrap, writer] = topic
        return WRITTEN[bootstrap, writer]

    return by


@pytest.mark.exercises("codecs", "records", "across")
@pytest.mark.parametrize("reader", NAMES)
@pytest.mark.parametrize("writer", NAMES)
def test_written_by_one_and_read_by_another(
    client: Callable[[str], Client], written: Callable[[str], str], writer: str, reader: str
) -> None:
    assert client(reader).read(written(writer), len(EVERYTHING)) == EVERYTHING


def codecs_stored(partition: Path) -> Iterator[int]:
    """The codec of every batch in the log, in order."""
    for file in sorted(partition.glob("*.log")):
        data, position = file.read_bytes(), 0
        while position + BATCH_HEADER.size <= len(data):
            _, length, _, _, _, attributes = BATCH_HEADER.unpack_from(data, position)
            if length <= 0:
                break
            yield attributes & 7
            position += 12 + length


@pytest.mark.exercises("codecs")
@pytest.mark.parametrize("writer", NAMES)
def test_batches_are_stored_in_the_codec_they_came_in(
    target: Target, written: Callable[[str], str], writer: str
) -> None:
    """Else the readers above would have read less than they seem to."""
    topic = written(writer)
    if target.data is None:
        pytest.skip("the log is not on this machine")
    assert {*codecs_stored(target.data / f"{topic}-0")} == {0, 1, 2, 3, 4}
