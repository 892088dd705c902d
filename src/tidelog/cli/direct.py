"""Use our own client to write the records that librdkafka cannot write.

librdkafka would cut a header's name at a NUL, because names are C strings. Its Python module, confluent_kafka, does not
support a name that is not UTF-8: it may crash.
"""

import time
from typing import TYPE_CHECKING

from tidelog.cli.records import OutgoingRecord
from tidelog.cli.tables import is_utf8

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

MURMUR_SEED, MURMUR_FACTOR, UINT32 = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


def needs_our_client(record: OutgoingRecord) -> bool:
    """Return whether a header name of the record contains a NUL or is not UTF-8."""
    return any("\0" in name or not is_utf8(name) for name, _ in record.headers)


class DirectWriter:
    """Writes one record per request and waits for its acknowledgement.

    A record may be written twice if a response is lost, because the writer is not idempotent.
    """

    def __init__(self, client: "Client", topic: str, acks: str) -> None:
        self._client = client
        self._topic = topic
        self._acks = -1 if acks == "all" else int(acks)
        self._round_robin = 0

    def write(self, record: OutgoingRecord, partition: int) -> None:
        """Write the record to `partition`. If `partition` is -1, write the record to the partition that its key
        selects.

        Raises ApiError and ClientError.
        """
        from tidelog.model.ids import TopicPartition
        from tidelog.wire.records import Record, encode_batch

        timestamp_ms = record.timestamp_ms if record.timestamp_ms is not None else time.time_ns() // 1_000_000
        batch = encode_batch([Record(record.key, record.value, timestamp_ms, list(record.headers))])
        if partition < 0:
            partition = self._partition(record.key)
        self._client.produce({TopicPartition(self._topic, partition): batch}, self._acks)

    def _partition(self, key: bytes | None) -> int:
        """Return the partition that the key selects. Without a key, each call returns the next partition.

        A missing topic is created if the broker creates topics on demand.
        """
        count = len(self._client.topics([self._topic], create=True)[self._topic].leaders)
        if key is None:
            self._round_robin += 1
            return self._round_robin % count
        return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit hash from which the Java client and librdkafka's murmur2_random derive a key's
    partition.
    """
    hashed = (MURMUR_SEED ^ len(data)) & UINT32
    whole_words_length = len(data) & ~3
    for at in range(0, whole_words_length, 4):
        word = int.from_bytes(data[at : at + 4], "little") * MURMUR_FACTOR & UINT32
        word = (word ^ word >> 24) * MURMUR_FACTOR & UINT32
        hashed = hashed * MURMUR_FACTOR & UINT32 ^ word
    if rest := data[whole_words_length:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * MURMUR_FACTOR & UINT32
    hashed = (hashed ^ hashed >> 13) * MURMUR_FACTOR & UINT32
    return hashed ^ hashed >> 15
