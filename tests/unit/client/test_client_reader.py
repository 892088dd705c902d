"""Reading many partitions: a failed, damaged or truncated partition does not stop the others."""

from collections.abc import Mapping

import pytest

from tidelog.client.cluster import Address
from tidelog.client.each import Failure
from tidelog.client.errors import BrokerUnreachable
from tidelog.client.operations import (
    EARLIEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    THROTTLED,
    Backoff,
    Fetched,
    FetchLimits,
    ListedOffset,
)
from tidelog.client.reader import Chunk, Reader, Skipped, Stopped, whole_batches
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import (
    ApiError,
    ErrorCode,
    LeaderNotAvailable,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
    error_for,
)
from tidelog.wire.records import Record, encode_batch

GOOD, ODD = TopicPartition("t", 0), TopicPartition("t", 1)
UNREACHABLE = BrokerUnreachable(Address("h", 1), "gone")


def batch(*values: bytes, base_offset: int = 0) -> bytes:
    return bytes(encode_batch([Record(value=value) for value in values], base_offset=base_offset))


def fetched(data: bytes, end: int) -> Fetched:
    return Fetched(memoryview(data), end, end, 0, [])


class Answers:
    """Plays the client: each fetch takes the next answer of a partition, the last of them for good."""

    def __init__(
        self, answers: Mapping[TopicPartition, list[Fetched | Failure]], log: tuple[int, int] = (0, 0)
    ) -> None:
        self.answers = {place: list(some) for place, some in answers.items()}
        self.log = log
        self.asked: list[dict[TopicPartition, int]] = []

    def fetch_each(
        self, positions: Mapping[TopicPartition, int], limits: FetchLimits
    ) -> dict[TopicPartition, Fetched | Failure]:
        self.asked.append(dict(positions))
        found = {}
        for place in positions:
            some = self.answers[place]
            found[place] = some.pop(0) if len(some) > 1 else some[0]
        return found

    def list_offsets_each(
        self, timestamps: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, ListedOffset | Failure]:
        return {
            place: ListedOffset(self.log[0] if timestamp == EARLIEST else self.log[1], -1)
            for place, timestamp in timestamps.items()
        }


def reader(client: Answers, **positions: int) -> Reader:
    made = Reader(client, FetchLimits(), Backoff(100, 1000), check_crcs=True)
    made.positions = {GOOD: positions.get("good", 0), ODD: positions.get("odd", 0)}
    return made


def values(events: list[Chunk | Skipped | Stopped], place: TopicPartition) -> list[bytes | None]:
    return [r.value for event in events if isinstance(event, Chunk) and event.partition == place for r in event.records]


def test_records_before_the_position_are_left_out_and_a_cut_batch_is_read_later() -> None:
    data = batch(b"a", b"b", b"c")
    client = Answers({GOOD: [fetched(data + batch(b"d" * 99, base_offset=3)[:70], 9)], ODD: [THROTTLED]})
    reading = reader(client, good=1)
    events = reading.poll(0)
    assert values(events, GOOD) == [b"b", b"c"]
    assert reading.positions == {GOOD: 3, ODD: 0}


def test_a_failure_that_passes_is_tried_again_after_a_pause() -> None:
    client = Answers({GOOD: [fetched(batch(b"a"), 1)], ODD: [LeaderNotAvailable(), fetched(batch(b"b"), 1)]})
    reading = reader(client)
    assert values(reading.poll(0), GOOD) == [b"a"]
    assert isinstance(reading.failures[ODD], LeaderNotAvailable)
    reading.poll(0.05)
    assert list(client.asked[-1]) == [GOOD]
    assert values(reading.poll(0.11), ODD) == [b"b"]
    assert not reading.failures


def test_an_outage_is_when_no_partition_reaches_a_broker() -> None:
    client = Answers({GOOD: [UNREACHABLE], ODD: [UNREACHABLE, THROTTLED]})
    reading = reader(client)
    assert not reading.unreachable()
    assert reading.poll(0) == []
    assert reading.unreachable()
    assert reading.due_in_s(0.04) == pytest.approx(0.06)
    reading.poll(1)
    assert not reading.unreachable()


@pytest.mark.parametrize(
    ("failure", "attempts"),
    [(error_for(ErrorCode.TOPIC_AUTHORIZATION_FAILED), 1), (UnknownTopicOrPartition(), 5), (ApiError(), 1)],
)
def test_a_failure_that_lasts_stops_its_partition_only(failure: ApiError, attempts: int) -> None:
    client = Answers({GOOD: [fetched(batch(b"a"), 1)], ODD: [failure]})
    reading = reader(client)
    for number in range(attempts):
        assert ODD in reading.positions
        events = reading.poll(10 * number)
        assert values(events, GOOD) == ([b"a"] if number == 0 else [])
    assert [event for event in events if isinstance(event, Stopped)] == [Stopped(ODD, 0, failure)]
    assert list(reading.positions) == [GOOD]


def test_a_damaged_batch_stops_its_partition_only() -> None:
    damaged = bytearray(batch(b"a"))
    damaged[-1] ^= 1
    client = Answers({GOOD: [fetched(batch(b"a"), 1)], ODD: [fetched(bytes(damaged), 1)]})
    events = reader(client).poll(0)
    assert values(events, GOOD) == [b"a"]
    (stopped,) = [event for event in events if isinstance(event, Stopped)]
    assert (stopped.partition, stopped.offset) == (ODD, 0)
    assert "CRC-32C" in str(stopped.reason)


def test_batches_before_a_damaged_one_are_read() -> None:
    damaged = bytearray(batch(b"c", base_offset=2))
    damaged[-1] ^= 1
    data = batch(b"a", b"b") + bytes(damaged) + batch(b"d", base_offset=3)
    events = reader(Answers({GOOD: [THROTTLED], ODD: [fetched(data, 4)]})).poll(0)
    assert values(events, ODD) == [b"a", b"b"]
    (stopped,) = [event for event in events if isinstance(event, Stopped)]
    assert (stopped.partition, stopped.offset) == (ODD, 2)


def test_a_batch_that_cannot_be_decoded_is_skipped_and_named() -> None:
    first, last = batch(b"a", b"b"), batch(b"z", base_offset=5)
    odd = encode_batch([Record(value=b"c"), Record(value=b"d")], base_offset=2)
    odd[57:61] = (7).to_bytes(4, "big")  # more records than there are
    crc = __import__("crc32c").crc32c(bytes(odd[21:]))
    odd[17:21] = crc.to_bytes(4, "big")
    client = Answers({GOOD: [THROTTLED], ODD: [fetched(first + bytes(odd) + last, 6)]})
    reading = reader(client)
    events = [event for event in reading.poll(0) if event.partition == ODD]
    assert [type(event) for event in events] == [Chunk, Skipped, Chunk]
    assert values(events, ODD) == [b"a", b"b", b"z"]
    skipped = events[1]
    assert isinstance(skipped, Skipped)
    assert (skipped.first, skipped.next_offset) == (2, 4)
    assert reading.positions[ODD] == 6


@pytest.mark.parametrize(("isolation", "end"), [(READ_UNCOMMITTED, 9), (READ_COMMITTED, 6)])
def test_the_end_of_a_partition_is_that_of_the_readers_isolation_level(isolation: int, end: int) -> None:
    odd = encode_batch([Record(value=b"c"), Record(value=b"d")], base_offset=2)
    odd[57:61] = (7).to_bytes(4, "big")  # more records than there are
    odd[17:21] = __import__("crc32c").crc32c(bytes(odd[21:])).to_bytes(4, "big")
    data = batch(b"a", b"b") + bytes(odd) + batch(b"z", base_offset=5)
    client = Answers({GOOD: [THROTTLED], ODD: [Fetched(memoryview(data), 9, 6, 0, [])]})
    reading = reader(client)
    reading._limits = FetchLimits(isolation=isolation)
    ends = [event.end_offset for event in reading.poll(0) if isinstance(event, Chunk) and event.partition == ODD]
    assert ends == [end, end]


@pytest.mark.parametrize(
    ("position", "log", "first", "next_offset", "goes_on"), [(3, (7, 9), 3, 7, 7), (12, (7, 9), 9, 12, 9)]
)
def test_offsets_that_are_gone_are_named(
    position: int, log: tuple[int, int], first: int, next_offset: int, goes_on: int
) -> None:
    client = Answers({GOOD: [THROTTLED], ODD: [OffsetOutOfRange()]}, log)
    reading = reader(client, odd=position)
    (skipped,) = [event for event in reading.poll(0) if event.partition == ODD]
    assert isinstance(skipped, Skipped)
    assert (skipped.first, skipped.next_offset, reading.positions[ODD]) == (first, next_offset, goes_on)


def test_each_partition_has_its_turn_to_come_first() -> None:
    client = Answers({GOOD: [THROTTLED], ODD: [THROTTLED]})
    reading = reader(client)
    for number in range(4):
        reading.poll(number)
    assert [next(iter(asked)) for asked in client.asked] == [GOOD, ODD, GOOD, ODD]


def test_message_sets_of_old_formats_are_named() -> None:
    old = bytearray(batch(b"a"))
    old[16] = 1
    headers, damage = whole_batches(memoryview(old), check_crcs=True)
    assert headers == []
    assert "message format 1 is not supported" in str(damage)
