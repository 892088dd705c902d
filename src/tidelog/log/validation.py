"""What a topic's settings ask of a client's batch beyond its framing: size, timestamps, and on demand every record.

Kafka 4.3's rules. The header tells a batch's base and largest timestamp; the records are looked at only where that is
not enough: `record.validation=full`, compacted topics, where a record without a key may not be, and to name what is
refused. They may be many, out of few compressed bytes: then that is for a thread.
"""

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tidelog.wire.batches import DECOMPRESSED_BYTES_MAX, TIMESTAMP_TYPE_BIT, Codec
from tidelog.wire.checksums import crc32c
from tidelog.wire.errors import ApiError, ErrorCode, InvalidRecord, RecordListTooLarge, RecordTooLarge
from tidelog.wire.primitives import BrokenStream, Buffer, MalformedMessage, TooLargeDecompressed
from tidelog.wire.record_facts import UnreadableLength, check_record_count, record_facts
from tidelog.wire.records import BytesAfterRecords, plain_records

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.wire.batches import BatchHeader

NO_TIMESTAMP = -1
RECORD_ERRORS_MAX = 1000
"""Of one answer; how many there are in all is in its message."""
INLINE_RECORDS_MAX = 4000
"""Looked at on the loop, in a turn that has time for it: some ms."""
INLINE_BYTES_MAX = 1 << 20
"""The same of their decompressed bytes."""
EXAMINED_RECORDS_MAX = 1_000_000
"""Of one batch: more would keep a thread, and with it the loop from half of its time, for seconds."""
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP = Struct(">q")
_MAX_TIMESTAMP_AT = 35
_CRC = Struct(">I")
_CRC_AT = 17


class RefusedRecords(ApiError):
    """Some records of a batch are not taken. `record_errors`: (index in the batch, message), as Produce v8+ answers."""

    def __init__(self, message: str, code: ErrorCode, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(message, code)
        self.record_errors = record_errors


class NotInline(Exception):
    """It takes longer than the loop may: for a thread, or a later turn. No ApiError: what can go there must send it."""


class Examined(NamedTuple):
    """What `examine` found, and with which settings."""

    config: "LogConfig"
    max_timestamp: int


Look: TypeAlias = "Callable[[memoryview, BatchHeader, LogConfig, int], Examined]"
"""Looks at the records of a batch now: `examine_inline`, or who knows whether there is time for it."""
Limits: TypeAlias = "bool | Examined | Look"
"""Whether a topic's limits on clients apply; where they do, what is known of the records already, or how to know it."""


def check_client_batch(
    batch: memoryview, header: "BatchHeader", config: "LogConfig", now_ms: int, limits: Limits = True
) -> int:
    """Check a batch that `check_produced` has passed against the topic's settings; the append time, -1 for CreateTime.

    `limits` may be what a thread has found out of its records, or what looks at them. May write into `batch` and
    `header`: timestamp type and largest timestamp, with a new CRC. Raises the ApiError to answer with, NotInline.
    """
    if header.size > config.max_message_bytes:
        raise too_large(f"{header.size} bytes", config.max_message_bytes)
    if header.size > config.segment_bytes:
        raise RecordListTooLarge(
            f"the record batch has {header.size} bytes and the topic's segment.bytes is {config.segment_bytes}: "
            "a batch lies in one segment; raise it, or send smaller batches (producer: batch.size)"
        )
    max_timestamp = header.max_timestamp
    if _look_at_records(header, config, now_ms):
        if isinstance(limits, Examined):
            if limits.config is not config:
                raise NotInline
            examined = limits
        else:
            look = examine_inline if isinstance(limits, bool) else limits
            examined = look(batch, header, config, now_ms)
        # The header may lie: what its records say is what time indexes and clients go by.
        max_timestamp = examined.max_timestamp
    if config.message_timestamp_type == "LogAppendTime":
        if header.attributes & TIMESTAMP_TYPE_BIT:
            _refuse_append_time(header)
        _stamp(batch, header, header.attributes | TIMESTAMP_TYPE_BIT, now_ms)
        return now_ms
    _stamp(batch, header, header.attributes & ~TIMESTAMP_TYPE_BIT, max_timestamp)
    return -1


def _look_at_records(header: "BatchHeader", config: "LogConfig", now_ms: int) -> bool:
    """Whether the header does not tell all that the settings ask."""
    if config.compacts or config.record_validation == "full":
        return True
    if config.message_timestamp_type == "LogAppendTime":
        return False
    if header.attributes & TIMESTAMP_TYPE_BIT and header.max_timestamp == NO_TIMESTAMP:
        return True
    earliest = now_ms - config.message_timestamp_before_max_ms
    return not _in_range(header, earliest, now_ms + config.message_timestamp_after_max_ms)


def examine(
    batch: Buffer, header: "BatchHeader", config: "LogConfig", now_ms: int, *, inline: bool = False
) -> Examined:
    """Look at every record. Takes some µs for each, up to seconds; on any thread.

    `inline`: raise NotInline if it would take longer than some ms. Raises the ApiError to answer with.
    """
    if inline and header.count > INLINE_RECORDS_MAX:
        raise NotInline
    if header.count > EXAMINED_RECORDS_MAX:
        raise RecordListTooLarge(
            f"the record batch states {header.count} records; a topic whose records are looked at takes at most "
            f"{EXAMINED_RECORDS_MAX} at once: send smaller batches (producer: batch.size)"
        )
    try:
        data = plain_records(batch, header, INLINE_BYTES_MAX if inline else DECOMPRESSED_BYTES_MAX)
        found = _Findings(data, header, config, now_ms)
    except TooLargeDecompressed as error:
        if inline:
            raise NotInline from None
        raise RecordListTooLarge(f"{error}; send smaller batches (producer: batch.size)") from error
    except MalformedMessage as error:
        raise undecodable(error, header) from error
    found.refuse(header, config)
    return Examined(config, found.max_timestamp)


def examine_inline(batch: memoryview, header: "BatchHeader", config: "LogConfig", now_ms: int) -> Examined:
    """As `examine`; raises NotInline for what it would look at for longer than some ms."""
    return examine(batch, header, config, now_ms, inline=True)


def undecodable(error: MalformedMessage, header: "BatchHeader") -> ApiError:
    """The answer to a batch whose records cannot be decompressed or decoded under a good checksum, with Kafka's codes.

    Kafka looks at the records while it decompresses them. Where both the stream breaks and bytes follow the last
    record, it meets these first.
    """
    if isinstance(error, BrokenStream):
        try:
            check_record_count(error.before, header)
        except BytesAfterRecords as surplus:
            return InvalidRecord(f"{surplus}; and {error}")
        except MalformedMessage:
            pass
        message = f"the records cannot be decompressed: {error}; the producer's compression library is at fault"
        return ApiError(message, ErrorCode.UNKNOWN_SERVER_ERROR)
    if isinstance(error, UnreadableLength) and header.codec == Codec.NONE:
        return ApiError(f"the records cannot be decoded: {error}", ErrorCode.UNKNOWN_SERVER_ERROR)
    return InvalidRecord(f"the records cannot be decoded: {error}")


class _Findings:
    """Of all records of a batch. Raises MalformedMessage."""

    __slots__ = ("disordered", "max_timestamp", "untimely", "untimely_count", "without_key", "without_keys")

    def __init__(self, data: bytes, header: "BatchHeader", config: "LogConfig", now_ms: int) -> None:
        earliest = now_ms - config.message_timestamp_before_max_ms
        latest = now_ms + config.message_timestamp_after_max_ms
        timed = config.message_timestamp_type != "LogAppendTime"
        appended = header.attributes & TIMESTAMP_TYPE_BIT
        self.disordered: tuple[int, int] | None = None
        self.without_keys = self.untimely_count = 0
        self.without_key: list[int] = []
        self.untimely: list[tuple[int, str]] = []
        self.max_timestamp = NO_TIMESTAMP  # also where all are before 1970, as Kafka has it
        for index, (offset_delta, timestamp, has_key) in enumerate(record_facts(data, header)):
            if offset_delta != index and self.disordered is None:
                self.disordered = index, offset_delta
            if not has_key:
                self.without_keys += 1
                if self.without_keys <= RECORD_ERRORS_MAX:
                    self.without_key.append(index)
            if timestamp > self.max_timestamp:
                self.max_timestamp = timestamp
            if not timed:
                continue
            if timestamp == NO_TIMESTAMP:
                if not appended:
                    continue
                reason = "a producer may not say LogAppendTime for a record without a timestamp"
            elif earliest <= timestamp <= latest:
                continue
            else:
                reason = f"timestamp {timestamp} is not within {earliest}..{latest}"
            self.untimely_count += 1
            if self.untimely_count <= RECORD_ERRORS_MAX:
                self.untimely.append((index, reason))

    def refuse(self, header: "BatchHeader", config: "LogConfig") -> None:
        """Raise InvalidRecord or RefusedRecords if the settings do not allow what was found."""
        # Compaction keeps of each key what has the highest offset: it must be one of the batch's own.
        if self.disordered is not None and (config.compacts or config.record_validation == "full"):
            index, delta = self.disordered
            raise InvalidRecord(f"record {index} of the batch has offset delta {delta}: they must count from 0")
        if self.without_keys and config.compacts:
            message = "a record without a key cannot go to a compacted topic"
            raise RefusedRecords(
                f"{self.without_keys} of {header.count} records are refused: {message}",
                ErrorCode.INVALID_RECORD,
                [(index, message) for index in self.without_key],
            )
        if self.untimely:
            raise RefusedRecords(
                f"{self.untimely_count} of {header.count} records are refused for their timestamps",
                ErrorCode.INVALID_TIMESTAMP,
                self.untimely,
            )


def too_large(what: str, limit: int) -> RecordTooLarge:
    """What to answer when a batch of `what` is beyond max.message.bytes."""
    return RecordTooLarge(
        f"the record batch has {what} and the topic's max.message.bytes is {limit}: raise it "
        "(tidelog topic config TOPIC --set max.message.bytes=N; for all topics the broker's message.max.bytes), "
        "or send less at once (producer: batch.size, compression.type)"
    )


def _in_range(header: "BatchHeader", earliest: int, latest: int) -> bool:
    """By the header alone. With the type LogAppendTime every record has the largest timestamp."""
    if header.attributes & TIMESTAMP_TYPE_BIT or header.base_timestamp == NO_TIMESTAMP:
        least = header.max_timestamp
    else:
        least = header.base_timestamp
    return (earliest <= least or least == NO_TIMESTAMP) and header.max_timestamp <= latest


def _refuse_append_time(header: "BatchHeader") -> None:
    message = "the broker sets the append time here; a producer may not"
    raise RefusedRecords(
        f"the batch is refused: {message}",
        ErrorCode.INVALID_TIMESTAMP,
        [(index, message) for index in range(min(header.count, RECORD_ERRORS_MAX))],
    )


def _stamp(batch: memoryview, header: "BatchHeader", attributes: int, max_timestamp: int) -> None:
    """Write timestamp type and largest timestamp, if they are not there already, and the CRC over them."""
    if attributes == header.attributes and max_timestamp == header.max_timestamp:
        return
    header.attributes = attributes
    header.max_timestamp = max_timestamp
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, max_timestamp)
    header.crc = crc32c(batch[_ATTRIBUTES_AT:])
    _CRC.pack_into(batch, _CRC_AT, header.crc)
