"""Writes the few records that librdkafka cannot carry, by our own client: it takes names of headers as C strings, so
one with a NUL would be cut, and one that is not UTF-8 be replaced.
"""

import time
from typing import TYPE_CHECKING

from tidelog.cli.records import OutgoingRecord
from tidelog.cli.tables import is_text

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

MURMUR_SEED, MURMUR_FACTOR, UINT32 = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


def needs_our_client(record: OutgoingRecord) -> bool:
    return any("\0" in name or not is_text(name) for name, _ in record.headers)


class DirectWriter:
    """Writes one record a request and waits for its acknowledgement; one may come twice where an answer is lost."""

    def __init__(self, client: "Client", topic: str, acks: str) -> None:
        self._client = client
        self._topic = topic
        self._acks = -1 if acks == "all" else int(acks)
        self._turn = 0

    def write(self, record: OutgoingRecord, partition: int) -> None:
        """To where it belongs when `partition` is -1. Raises ApiError and ClientError."""
        from tidelog.model.ids import TopicPartition
        from tidelog.wire.records import Record, encode_batch

        timestamp_ms = record.timestamp_ms if record.timestamp_ms is not None else time.time_ns() // 1_000_000
        batch = encode_batch([Record(record.key, record.value, timestamp_ms, list(record.headers))])
        if partition < 0:
            partition = self._partition(record.key)
        self._client.produce({TopicPartition(self._topic, partition): batch}, self._acks)

    def _partition(self, key: bytes | None) -> int:
        count = len(self._client.topics([self._topic], create=True)[self._topic].leaders)
        if key is None:
            self._turn += 1
            return self._turn % count
        return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    """The 32-bit hash by which Java's default partitioner and librdkafka's murmur2_random spread keys, unsigned."""
    hashed = (MURMUR_SEED ^ len(data)) & UINT32
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * MURMUR_FACTOR & UINT32
        word = (word ^ word >> 24) * MURMUR_FACTOR & UINT32
        hashed = hashed * MURMUR_FACTOR & UINT32 ^ word
    if rest := data[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * MURMUR_FACTOR & UINT32
    hashed = (hashed ^ hashed >> 13) * MURMUR_FACTOR & UINT32
    return hashed ^ hashed >> 15
