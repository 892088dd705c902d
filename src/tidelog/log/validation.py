"""Check a client's batch against the topic's settings: size, timestamps, and, if needed, every record.

The rules are those of Kafka 4.3. A batch's header states its base timestamp and its largest timestamp. The records are
examined only if the header is not enough. The header is not enough with `record.validation=full`, and for compacted
topics, which refuse records without a key. It is also not enough if its timestamps would be refused, contradict each
other, lie in the future, or would cause a segment to be deleted or rolled. After the examination, the largest timestamp
in the header is corrected; Kafka corrects it in every batch. A batch with many records is examined on a thread. Even a
small compressed batch may have many records.
"""

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tidelog.log.config import INT64_MAX
from tidelog.log.record_times import (
    AHEAD_MS,
    INLINE_BYTES_MAX,
    INLINE_RECORDS_MAX,
    NO_TIMESTAMP,
    contradicts_itself,
    have_base_timestamp,
    largest_timestamp,
)
from tidelog.wire.batches import CODEC_MASK, DECOMPRESSED_BYTES_MAX, HEADER_BYTES, TIMESTAMP_TYPE_BIT, Codec
from tidelog.wire.checksums import crc32c
from tidelog.wire.errors import ApiError, ErrorCode, InvalidRecord, RecordListTooLarge, RecordTooLarge
from tidelog.wire.primitives import BrokenStream, Buffer, MalformedMessage, TooLargeDecompressed
from tidelog.wire.record_facts import CutShort, FieldCutShort, UnreadableLength, check_records, record_facts
from tidelog.wire.records import BytesAfterRecords, WrongRecordCount, decompressed_records

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.wire.batches import BatchHeader

RECORD_ERRORS_MAX = 1000
"""Maximum number of record errors for one batch. The error message states the number of all refused records."""
EXAMINED_RECORDS_MAX = 1_000_000
"""Maximum number of records in a batch that is examined. The examination of more records would occupy a thread for
seconds, and meanwhile it would take half of the event loop's time."""
STORED_CODECS = {"uncompressed": Codec.NONE, **{c.name.lower(): c for c in Codec if c is not Codec.NONE}}
"""The codec in which a topic stores its batches, by compression.type. The value `producer` is missing: with this
value, each batch is stored in the codec that its producer has chosen."""
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP = Struct(">q")
_MAX_TIMESTAMP_AT = 35
_CRC = Struct(">I")
_CRC_AT = 17


class RefusedRecords(ApiError):
    """Some records of a batch are refused. `record_errors` contains (index in the batch, message) pairs, for Produce
    v8+.
    """

    def __init__(self, message: str, code: ErrorCode, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(message, code)
        self.record_errors = record_errors


class NotInline(Exception):
    """The examination takes too long for the current turn of the event loop. The caller must use a thread or a later
    turn.

    This class is not an ApiError, so that it is never sent to a client.
    """


class ExaminationResult(NamedTuple):
    """The result of `examine`, and the settings that the examination used."""

    config: "LogConfig"
    max_timestamp: int


Examiner: TypeAlias = "Callable[[memoryview, BatchHeader, LogConfig, int], ExaminationResult]"
"""A function that examines the records of a batch immediately: `examine_inline`, possibly limited by a time budget."""
Limits: TypeAlias = "bool | ExaminationResult | Examiner"
"""Whether and how the limits of a topic apply to a client's batch. False: they do not apply. True: the header is
checked. If the records must be examined too, this is done at once, unless it takes longer than some ms. Any other value
is the result of an examination, or the function that examines the records."""


def check_client_batch(
    batch: memoryview,
    header: "BatchHeader",
    config: "LogConfig",
    now_ms: int,
    limits: Limits = True,
    *,
    would_roll: bool = False,
) -> int:
    """Check a batch that has passed `check_produced`. Returns its append time, or -1 for CreateTime.

    `would_roll`: according to the header's largest timestamp, the active segment has to be rolled. If necessary, this
    function writes the timestamp type and the largest timestamp into `batch` and `header`, with a new CRC. Raises the
    ApiError for the response, and NotInline.
    """
    if header.size > config.max_message_bytes:
        raise too_large(f"{header.size} bytes", config.max_message_bytes)
    if header.size > config.segment_bytes:
        raise RecordListTooLarge(
            f"the record batch has {header.size} bytes and the topic's segment.bytes is {config.segment_bytes}: "
            "a batch must fit into one segment; raise segment.bytes, or send smaller batches (producer: batch.size)"
        )
    max_timestamp = header.max_timestamp
    if examination_reason(batch, header, config, now_ms) is not None or (
        would_roll and config.message_timestamp_type == "CreateTime"
    ):
        if isinstance(limits, ExaminationResult):
            if limits.config is not config:
                raise NotInline
            examined = limits
        else:
            examine_records = examine_inline if isinstance(limits, bool) else limits
            examined = examine_records(batch, header, config, now_ms)
        max_timestamp = examined.max_timestamp
    if config.message_timestamp_type == "LogAppendTime":
        if header.attributes & TIMESTAMP_TYPE_BIT:
            _refuse_append_time(header)
        _stamp(batch, header, header.attributes | TIMESTAMP_TYPE_BIT, now_ms)
        return now_ms
    _stamp(batch, header, header.attributes & ~TIMESTAMP_TYPE_BIT, max_timestamp)
    return -1


def examination_reason(batch: Buffer, header: "BatchHeader", config: "LogConfig", now_ms: int) -> str | None:
    """Return the reason why the records must be examined; None if the header is enough.

    There are two kinds of reasons: the settings need more information than the header contains, or the header cannot
    be right.
    """
    if config.compacts:
        return "the topic is compacted, so that every record must have a key"
    if config.record_validation == "full":
        return "the topic has record.validation=full"
    if config.message_timestamp_type == "LogAppendTime":
        return None
    if header.attributes & TIMESTAMP_TYPE_BIT:  # the header's largest timestamp applies to every record
        if header.max_timestamp == NO_TIMESTAMP:
            return "its header states an append time, but no timestamp"
    elif contradicts_itself(header):
        return "the two timestamps in its header contradict each other"
    elif header.max_timestamp - now_ms > AHEAD_MS:
        return "its header states a timestamp in the future"
    elif (not header.base_timestamp or now_ms - header.base_timestamp > retention_time_ms(config)) and may_hide_times(
        memoryview(batch), header
    ):
        return "its header states a timestamp that is 0 or older than retention.ms"
    earliest = now_ms - config.message_timestamp_before_max_ms
    if _in_range(header, earliest, now_ms + config.message_timestamp_after_max_ms):
        return None
    return "its header states a timestamp that the topic's settings message.timestamp.* do not allow"


def may_hide_times(batch: memoryview, header: "BatchHeader") -> bool:
    """Return whether the largest timestamp of the records may differ from the one that the header states. Called if
    the header states an old timestamp or 0.

    A client that does not fill in the timestamps of its headers states 0. But old records with a correct header are
    common, too, and a full examination of a bulk load would be slow. So the timestamps of uncompressed records are
    compared with the header here, unless there are too many of them. For a compressed batch, the result is always True.
    """
    if header.attributes & CODEC_MASK:
        return True
    if have_base_timestamp(batch, header):
        return False
    if header.count > INLINE_RECORDS_MAX:
        return True
    try:
        return (
            largest_timestamp(bytes(batch[HEADER_BYTES:]), header.count, header.base_timestamp) != header.max_timestamp
        )
    except MalformedMessage:
        return True


def retention_time_ms(config: "LogConfig") -> int:
    """Return the time for which retention keeps the topic's records, in ms; INT64_MAX if it does not delete them by
    their age.
    """
    return config.retention_ms if config.deletes and config.retention_ms >= 0 else INT64_MAX


def examine(
    batch: Buffer, header: "BatchHeader", config: "LogConfig", now_ms: int, *, inline: bool = False
) -> ExaminationResult:
    """Examine every record. Takes some µs for each record, up to seconds in total. Thread-safe.

    `inline`: raise NotInline if the examination would take longer than some ms. Raises the ApiError for the
    response.
    """
    if inline and header.count > INLINE_RECORDS_MAX:
        raise NotInline
    if header.count > EXAMINED_RECORDS_MAX:
        # If `examination_reason` is None, the caller examines the records because the batch would begin a new segment.
        reason = examination_reason(batch, header, config, now_ms)
        raise too_many_records(header, reason or "its header states a timestamp that would begin a new segment")
    try:
        data = decompressed_records(batch, header, INLINE_BYTES_MAX if inline else DECOMPRESSED_BYTES_MAX)
        findings = _Findings(data, header, config, now_ms)
    except TooLargeDecompressed as error:
        if inline:
            raise NotInline from None
        raise RecordListTooLarge(f"{error}; send smaller batches (producer: batch.size)") from error
    except MalformedMessage as error:
        is_recompressed = STORED_CODECS.get(config.compression_type, header.codec) != header.codec
        raise undecodable(error, header, reads_whole_records=is_recompressed) from error
    findings.refuse(header, config)
    return ExaminationResult(config, findings.max_timestamp)


def examine_inline(batch: memoryview, header: "BatchHeader", config: "LogConfig", now_ms: int) -> ExaminationResult:
    """Examine every record. Raises NotInline if the examination would take longer than some ms. See `examine`."""
    return examine(batch, header, config, now_ms, inline=True)


def undecodable(error: MalformedMessage, header: "BatchHeader", *, reads_whole_records: bool) -> ApiError:
    """Return the error, with Kafka's code, for a batch that has a valid checksum, but records that cannot be
    decompressed or decoded.

    Kafka reads the records while it decompresses them. If the broken part of the compressed stream comes after a
    damaged record, or after bytes that follow the last record, Kafka does not reach the broken part: it reports the
    damaged record or the bytes. `reads_whole_records`: whether Kafka reads whole records. It does so if it stores them
    in another codec. Otherwise it skips keys and values, even those that extend beyond the end of their record.
    """
    if isinstance(error, BrokenStream):
        try:
            check_records(error.before, header)
        except MalformedMessage as damage:
            stream_breaks_first = (
                isinstance(damage, CutShort)
                or (isinstance(damage, WrongRecordCount) and not isinstance(damage, BytesAfterRecords))
                or (isinstance(damage, FieldCutShort) and not reads_whole_records)
            )
            if not stream_breaks_first:
                return InvalidRecord(f"{damage}; and {error}")
        message = f"the records cannot be decompressed: {error}; the producer's compression library is at fault"
        return ApiError(message, ErrorCode.UNKNOWN_SERVER_ERROR)
    if isinstance(error, UnreadableLength) and header.codec == Codec.NONE:
        return ApiError(f"the records cannot be decoded: {error}", ErrorCode.UNKNOWN_SERVER_ERROR)
    return InvalidRecord(f"the records cannot be decoded: {error}")


class _Findings:
    """The properties of all records of a batch. Raises MalformedMessage."""

    __slots__ = (
        "first_disorder",
        "keyless_count",
        "keyless_indexes",
        "max_timestamp",
        "timestamp_error_count",
        "timestamp_errors",
    )

    def __init__(self, data: bytes, header: "BatchHeader", config: "LogConfig", now_ms: int) -> None:
        earliest = now_ms - config.message_timestamp_before_max_ms
        latest = now_ms + config.message_timestamp_after_max_ms
        checks_timestamps = config.message_timestamp_type != "LogAppendTime"
        has_append_time = header.attributes & TIMESTAMP_TYPE_BIT
        self.first_disorder: tuple[int, int] | None = None
        self.keyless_count = self.timestamp_error_count = 0
        self.keyless_indexes: list[int] = []
        self.timestamp_errors: list[tuple[int, str]] = []
        self.max_timestamp = NO_TIMESTAMP  # stays NO_TIMESTAMP if all timestamps are before 1970, as in Kafka
        for index, (offset_delta, timestamp, has_key) in enumerate(record_facts(data, header)):
            if offset_delta != index and self.first_disorder is None:
                self.first_disorder = index, offset_delta
            if not has_key:
                self.keyless_count += 1
                if self.keyless_count <= RECORD_ERRORS_MAX:
                    self.keyless_indexes.append(index)
            if timestamp > self.max_timestamp:
                self.max_timestamp = timestamp
            if not checks_timestamps:
                continue
            if timestamp == NO_TIMESTAMP:
                if not has_append_time:
                    continue
                reason = "a producer must not set LogAppendTime for a record without a timestamp"
            elif earliest <= timestamp <= latest:
                continue
            else:
                reason = f"timestamp {timestamp} is not within {earliest}..{latest}"
            self.timestamp_error_count += 1
            if self.timestamp_error_count <= RECORD_ERRORS_MAX:
                self.timestamp_errors.append((index, reason))

    def refuse(self, header: "BatchHeader", config: "LogConfig") -> None:
        """Raise InvalidRecord or RefusedRecords if the settings do not allow the records."""
        # The offset deltas must be 0, 1, 2 and so on. For each key, compaction keeps the record with the highest
        # offset, and this offset must be inside the batch.
        if self.first_disorder is not None and (config.compacts or config.record_validation == "full"):
            index, delta = self.first_disorder
            raise InvalidRecord(f"record {index} of the batch has the offset delta {delta} instead of {index}")
        if self.keyless_count and config.compacts:
            message = "a record without a key cannot go to a compacted topic"
            raise RefusedRecords(
                f"{self.keyless_count} of {header.count} records are refused: {message}",
                ErrorCode.INVALID_RECORD,
                [(index, message) for index in self.keyless_indexes],
            )
        if self.timestamp_errors:
            raise RefusedRecords(
                f"{self.timestamp_error_count} of {header.count} records are refused for their timestamps",
                ErrorCode.INVALID_TIMESTAMP,
                self.timestamp_errors,
            )


def too_large(content: str, limit: int) -> RecordTooLarge:
    """Return the error for a batch that is larger than max.message.bytes."""
    return RecordTooLarge(
        f"the record batch has {content} and the topic's max.message.bytes is {limit}: raise it "
        "(tidelog topic config TOPIC --set max.message.bytes=N; for all topics the broker's message.max.bytes), "
        "or send less at once (producer: batch.size, compression.type)"
    )


def too_many_records(header: "BatchHeader", reason: str) -> RecordListTooLarge:
    """Return the error for a batch that has too many records to be examined. `reason` says why it must be examined."""
    return RecordListTooLarge(
        f"the record batch states {header.count} records, which have to be examined because {reason}; at most "
        f"{EXAMINED_RECORDS_MAX} can be examined: send smaller batches (producer: batch.size)"
    )


def _in_range(header: "BatchHeader", earliest: int, latest: int) -> bool:
    """Return whether the timestamps in the header are in range. If the header states an append time, its largest
    timestamp applies to every record.
    """
    if header.attributes & TIMESTAMP_TYPE_BIT or header.base_timestamp == NO_TIMESTAMP:
        smallest = header.max_timestamp
    else:
        smallest = header.base_timestamp
    return (earliest <= smallest or smallest == NO_TIMESTAMP) and header.max_timestamp <= latest


def _refuse_append_time(header: "BatchHeader") -> None:
    message = "the topic has message.timestamp.type=LogAppendTime, so only the broker may set the append time"
    raise RefusedRecords(
        f"the batch is refused: {message}",
        ErrorCode.INVALID_TIMESTAMP,
        [(index, message) for index in range(min(header.count, RECORD_ERRORS_MAX))],
    )


def _stamp(batch: memoryview, header: "BatchHeader", attributes: int, max_timestamp: int) -> None:
    """Write the timestamp type and the largest timestamp, and then the new CRC. Do nothing if the batch has both values
    already.
    """
    if attributes == header.attributes and max_timestamp == header.max_timestamp:
        return
    header.attributes = attributes
    header.max_timestamp = max_timestamp
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, max_timestamp)
    header.crc = crc32c(batch[_ATTRIBUTES_AT:])
    _CRC.pack_into(batch, _CRC_AT, header.crc)
