"""Identifiers of topics and partitions, and their text forms."""

import base64
import re
from collections.abc import Iterable
from typing import NamedTuple, NewType

TopicId = NewType("TopicId", bytes)
"""16 raw bytes; `uuid_text` returns Kafka's text form."""

NO_TOPIC_ID = TopicId(bytes(16))
_UUID_TEXT = re.compile("[A-Za-z0-9_-]{22}(==)?")


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def indexes_by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Return the partition indexes of each topic. Topics and indexes keep the order of `partitions`."""
    indexes: dict[str, list[int]] = {}
    for topic, index in partitions:
        indexes.setdefault(topic, []).append(index)
    return indexes


def uuid_text(raw: bytes) -> str:
    """Return Kafka's text form of a 16-byte id: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def uuid_from_text(text: str) -> bytes:
    """Return the 16 bytes of an id in the form of `uuid_text`. As in Kafka, padding may follow, and the last four bits
    are ignored. Raises ValueError if `text` has another form.
    """
    if _UUID_TEXT.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a 16-byte id in URL-safe base64")
    return base64.urlsafe_b64decode(text[:22] + "==")
