"""The states of transactions, and the records of `__transaction_state` that store them, as Kafka 4.3 writes them.

A key is a 2-byte type and a TransactionLogKey in version 0. A value is a 2-byte version and a TransactionLogValue.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple, TypeAlias

from tidelog.model.ids import indexes_by_topic
from tidelog.wire.messages.transaction_records import PartitionsSchema, TransactionLogKey, TransactionLogValue
from tidelog.wire.primitives import MalformedMessage

_TYPE = Struct(">h")
TRANSACTION_TYPE = 0
_KEY_TYPE = _TYPE.pack(TRANSACTION_TYPE)

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1
EPOCH_MAX = (1 << 15) - 1

V1 = 1
V2 = 2
"""V1 and V2 are levels of the feature transaction.version. From V1 on, records have tagged fields. With V2 (KIP-890),
each end of a transaction increments the producer's epoch."""

Partition: TypeAlias = tuple[str, int]
"""Topic and index."""


class Status(IntEnum):
    """The state of a transactional id. The numbers are those in the records."""

    EMPTY = 0
    """The producer has not begun a transaction since its last InitProducerId."""
    ONGOING = 1
    PREPARE_COMMIT = 2
    """The transaction will be committed. Some of its markers may still be missing."""
    PREPARE_ABORT = 3
    """The transaction will be aborted. Some of its markers may still be missing."""
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Tidelog does not use this state. Kafka has it in memory while a transactional id expires."""
    PREPARE_EPOCH_FENCE = 7
    """Tidelog does not use this state. Kafka has it in memory before PREPARE_ABORT."""

    @property
    def text(self) -> str:
        """The state's name in answers, for example `PrepareCommit`."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        return self in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)


ID_BYTES = 500
"""Estimate of the memory of a transactional id without partitions, in bytes."""
PARTITION_BYTES = 200
"""Estimate of the memory of one partition of a transaction, in bytes."""
NEVER_STORED = (Status.DEAD, Status.PREPARE_EPOCH_FENCE)


class Transaction(NamedTuple):
    """The durable state of one transactional id: its producer, and the producer's current or last transaction."""

    producer_id: int
    producer_epoch: int
    status: Status
    timeout_ms: int
    partitions: frozenset[Partition] = frozenset()
    """Partitions that were added to the transaction. Empty after the transaction is complete."""
    started_ms: int = NO_TIME
    """Wall-clock time at which the transaction began."""
    updated_ms: int = NO_TIME
    """Wall-clock time of the last change."""
    version: int = 0
    """The transaction version that was used for the last change: V2, or 0 for every older version."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last change; usually the same as `producer_id`."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id with which the client continues after the transaction, if the epochs of `producer_id` are used
    up; otherwise NO_PRODUCER_ID."""
    last_epoch: int = NO_EPOCH
    """The epoch before the current one. If an InitProducerId request has this epoch, the request is treated as a
    repeated one. NO_EPOCH if no repeated request is expected. Records do not contain this epoch, so it is lost when
    another broker becomes the coordinator, as in Kafka."""

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the client must continue with another producer id. EPOCH_MAX is reserved for fencing."""
        return is_epoch_exhausted(self.producer_epoch)


def is_epoch_exhausted(epoch: int) -> bool:
    return epoch >= EPOCH_MAX - 1


def size_of(transactional_id: str, transaction: Transaction) -> int:
    """Estimate the memory of a transactional id, in bytes."""
    return ID_BYTES + len(transactional_id) + len(transaction.partitions) * PARTITION_BYTES


class TransactionRecord:
    """The state of one transactional id; a tombstone if `transaction` is None."""

    __slots__ = ("level", "transaction", "transactional_id")

    def __init__(self, transactional_id: str, transaction: Transaction | None, level: int = V2) -> None:
        """`level` is the finalized level of transaction.version, which decides how the record is encoded."""
        self.transactional_id = transactional_id
        self.transaction = transaction
        self.level = level

    def encode(self) -> tuple[bytes, bytes | None]:
        key = _KEY_TYPE + TransactionLogKey(self.transactional_id).encode(0)
        state = self.transaction
        if state is None:
            return key, None
        version = 1 if self.level >= V1 else 0
        value = TransactionLogValue(
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            transaction_timeout_ms=state.timeout_ms,
            transaction_status=int(state.status),
            transaction_partitions=None if state.status is Status.EMPTY else _by_topic(state.partitions),
            transaction_last_update_timestamp_ms=state.updated_ms,
            transaction_start_timestamp_ms=state.started_ms,
        )
        if version:
            value.previous_producer_id = state.previous_producer_id
            value.next_producer_id = state.next_producer_id
            value.client_transaction_version = state.version
        return key, _TYPE.pack(version) + value.encode(version)


def _by_topic(partitions: frozenset[Partition]) -> list[PartitionsSchema]:
    return [PartitionsSchema(topic, indexes) for topic, indexes in indexes_by_topic(sorted(partitions)).items()]


def decode_record(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Decode a record. Returns None for a type of key that is not supported. Raises MalformedMessage."""
    if len(key) < 2:
        raise MalformedMessage("a transaction record's key has no type")
    (key_type,) = _TYPE.unpack_from(key)
    if key_type != TRANSACTION_TYPE:
        return None
    decoded_key, _ = TransactionLogKey.decode(key, 2, 0)
    if value is None:
        return TransactionRecord(decoded_key.transactional_id, None)
    if len(value) < 2:
        raise MalformedMessage("a transaction record's value has no version")
    (version,) = _TYPE.unpack_from(value)
    if version < 0:
        raise MalformedMessage(f"a transaction record's value has version {version}")
    # Versions above `max_version` only add tagged fields, which are skipped (KIP-915).
    decoded, _ = TransactionLogValue.decode(value, 2, min(version, TransactionLogValue.max_version))
    try:
        status = Status(decoded.transaction_status)
    except ValueError:
        status = Status.DEAD
    if status in NEVER_STORED:
        raise MalformedMessage(f"a transaction record has status {decoded.transaction_status}")
    transaction = Transaction(
        producer_id=decoded.producer_id,
        producer_epoch=decoded.producer_epoch,
        status=status,
        timeout_ms=decoded.transaction_timeout_ms,
        partitions=frozenset(
            (topic.topic, index) for topic in decoded.transaction_partitions or () for index in topic.partition_ids
        ),
        started_ms=decoded.transaction_start_timestamp_ms,
        updated_ms=decoded.transaction_last_update_timestamp_ms,
        version=decoded.client_transaction_version,
        previous_producer_id=decoded.previous_producer_id,
        next_producer_id=decoded.next_producer_id,
    )
    return TransactionRecord(decoded_key.transactional_id, transaction)
