"""Committed offsets: the records of a commit, and the expiry of offsets (KIP-211)."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidelog.coordinator.decision import Moment
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.durable import DurableGroup
from tidelog.coordinator.group.records import OffsetRecord
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state import GroupState
from tidelog.metadata.image import TopicImage
from tidelog.model.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.group_records import OffsetCommitValue
from tidelog.wire.primitives import NO_UUID
from tidelog.wire.records import Record, encode_batch

TOPIC_IDS_SINCE = 10
"""The first version of OffsetCommit whose requests name topics by id."""
CONSUMER_PROTOCOL_TYPE = "consumer"
BATCH_OVERHEAD_BYTES = 128
RECORD_OVERHEAD_BYTES = 32
"""Upper bounds on the overhead of a batch and of a record (its lengths, deltas and attributes), in bytes."""
TIME_MAX = (1 << 63) - 1
"""The largest time that fits into a record, in milliseconds."""


class OffsetToCommit(NamedTuple):
    """The offset of one partition in a commit. The caller has checked that the partition exists."""

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class OffsetCommit(NamedTuple):
    """A commit of offsets of one group. `generation` is -1 if the sender is not a member: an administrator, or a
    consumer that assigns its partitions itself.
    """

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    retention_ms: int
    """Requested retention time in milliseconds; -1 for the value of the broker's setting. Only OffsetCommit up to v4
    can request a different retention time."""
    version: int
    """The version of OffsetCommit."""
    offsets: list[OffsetToCommit]
    producer_id: int = -1
    """The producer whose transaction commits the offsets (TxnOffsetCommit); -1 for a commit without a transaction."""
    producer_epoch: int = -1

    @property
    def is_transactional(self) -> bool:
        return self.producer_id >= 0

    @property
    def names_member(self) -> bool:
        """Whether the sender says which member of the group it is."""
        return self.generation >= 0 or bool(self.member_id) or self.instance_id is not None


class PreparedCommit(NamedTuple):
    """The records and the answer of a commit. They are valid only if the sender may commit."""

    records: list[OffsetRecord]
    batch: bytearray | None
    """The encoded `records`; None if there are no records."""
    codes: list[ErrorCode]
    """One code for each offset of the commit, in the order of the request."""


def prepare_commit(
    commit: OffsetCommit, settings: GroupSettings, now: Moment, topics: Mapping[str, TopicImage] | None = None
) -> Steps[PreparedCommit]:
    """Encode a commit in steps. All records form one batch, so that either all of them are appended or none.

    If `topics` is given, an offset is refused with an unknown topic error unless `topics` contains its topic with the
    same id.
    """
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if commit.version < TOPIC_IDS_SINCE else ErrorCode.UNKNOWN_TOPIC_ID
    records: list[OffsetRecord] = []
    encoded: list[Record] = []
    codes: list[ErrorCode] = []
    size = BATCH_OVERHEAD_BYTES
    # To request an unlimited retention, clients send the largest number. So the sum is limited to TIME_MAX.
    expire_ms = -1 if commit.retention_ms < 0 else min(now.wall_ms + commit.retention_ms, TIME_MAX)
    for offset in commit.offsets:
        if topics is not None and ((topic := topics.get(offset.topic)) is None or topic.topic_id != offset.topic_id):
            codes.append(unknown)
            yield
            continue
        if _utf16_units(offset.metadata, settings.offset_metadata_max) > settings.offset_metadata_max:
            codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            yield
            continue
        if expire_ms < 0:
            value = OffsetCommitValue(
                offset.offset, offset.leader_epoch, offset.metadata, now.wall_ms, -1, offset.topic_id
            )
        else:  # the record version with an expiry time has neither epoch nor topic id
            value = OffsetCommitValue(offset.offset, -1, offset.metadata, now.wall_ms, expire_ms, NO_UUID)
        record = OffsetRecord(commit.group_id, offset.topic, offset.partition, value)
        key, data = record.encode()
        size += RECORD_OVERHEAD_BYTES + len(key) + len(data or b"")
        if records and size > settings.record_bytes_max:
            return PreparedCommit([], None, [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(commit.offsets))
        encoded.append(Record(offset=len(records), timestamp=now.wall_ms, key=key, value=data))
        records.append(record)
        codes.append(ErrorCode.NONE)
        yield
    batch = None
    if encoded:
        batch = encode_batch(
            encoded,
            producer_id=commit.producer_id,
            producer_epoch=commit.producer_epoch,
            is_transactional=commit.is_transactional,
        )
    return PreparedCommit(records, batch, codes)


def _utf16_units(text: str, limit: int) -> int:
    """Return the text's length in UTF-16 code units, which Java counts. If the number of characters already shows
    whether the length exceeds `limit`, return that number instead, without encoding the text.
    """
    if len(text) > limit or len(text) * 2 <= limit:
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def expired_offsets(
    group_id: str, durable: DurableGroup, group: ClassicGroup | None, retention_ms: int, now: Moment
) -> Iterator[OffsetRecord]:
    """Yield tombstones of the offsets whose retention time has passed.

    - In a classic group without members, the retention time begins when the group becomes empty. For a simple consumer,
      the retention time begins with each commit.
    - In a classic group with members, offsets do not expire. There is one exception: if the group is stable and its
      protocol type is "consumer", offsets of topics to which no member subscribes expire. Their retention time begins
      with the commit.
    - In a group of the consumer protocol, offsets of topics to which no member subscribes expire. Their retention time
      begins with the commit.

    If an offset may expire by these rules, and its record states an expiry time, the offset expires at this time. Its
    retention time is then ignored.
    """
    subscribed: frozenset[str] = frozenset()
    empty_since_ms = None
    metadata = durable.metadata
    if durable.consumer is not None:
        subscribed = frozenset(durable.consumer.subscribed_topics())
    elif group is not None and group.state is not GroupState.EMPTY:
        has_known_subscriptions = group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL_TYPE
        topics = group.subscribed_topics() if has_known_subscriptions else None
        if topics is None:
            return
        subscribed = topics
    elif group is not None and group.protocol_type:
        empty_since_ms = group.state_since_ms
    elif metadata is not None and metadata.protocol_type and metadata.current_state_timestamp >= 0:
        empty_since_ms = metadata.current_state_timestamp
    for topic, partitions in durable.offsets.items():
        if topic in subscribed:
            continue
        for partition, value in partitions.items():
            if value.expire_timestamp >= 0:
                expires_ms = value.expire_timestamp
            else:
                expires_ms = retention_ms + (value.commit_timestamp if empty_since_ms is None else empty_since_ms)
            if now.wall_ms >= expires_ms:
                yield OffsetRecord(group_id, topic, partition, None)
