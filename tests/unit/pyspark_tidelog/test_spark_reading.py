"""A task's read against a broker in memory: ranges, codecs, transactions, loss, damage."""

# ruff: noqa: E402 (nothing here can be imported without the skipped package)

import logging
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from conformance.batches import batch as compressed
from conformance.forms import ACCEPTED, FORMS
from pyspark_tidelog import reading, rows
from pyspark_tidelog.errors import DamagedBatch, DataLoss
from pyspark_tidelog.options import ReadOptions, read_options
from pyspark_tidelog.plan import OffsetRange
from pyspark_tidelog.reading import RangeReader
from tidelog.client.errors import GaveUp
from tidelog.client.operations import EARLIEST, READ_COMMITTED, THROTTLED, Fetched, FetchLimits, ListedOffset
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import BatchHeader, Codec
from tidelog.wire.errors import OffsetOutOfRange
from tidelog.wire.records import Record, encode_batch

ORDERS = TopicPartition("orders", 3)
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


class Log:
    """One partition as a broker serves it: the first batch even above the limit (KIP-74), the last perhaps cut."""

    def __init__(
        self, batches: Iterable[bytes | bytearray], *, start: int = 0, aborted: Iterable[tuple[int, int]] = ()
    ):
        self.batches = [bytes(batch) for batch in batches]
        self.start = start
        self.aborted = list(aborted)
        self.end = max((BatchHeader(batch).next_offset for batch in self.batches), default=start)
        self.asked: list[tuple[int, FetchLimits]] = []

    def start_fetch(self, partition: TopicPartition, offset: int, limits: FetchLimits) -> "Answer":
        assert partition == ORDERS
        self.asked.append((offset, limits))
        return Answer(self, offset, limits)

    def list_offsets(self, timestamps: dict[TopicPartition, int], isolation: int) -> dict[TopicPartition, ListedOffset]:
        return {tp: ListedOffset(self.start if t == EARLIEST else self.end, -1) for tp, t in timestamps.items()}

    def fetch(self, offset: int, limits: FetchLimits) -> Fetched:
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(f"{ORDERS}: offset {offset} is not in the log")
        following = [batch for batch in self.batches if BatchHeader(batch).next_offset > offset]
        served = b"".join(following)[: max(limits.partition_max_bytes, len(following[0]) if following else 0)]
        return Fetched(memoryview(served), self.end, self.end, self.start, self.aborted)


class Answer:
    def __init__(self, log: Log, offset: int, limits: FetchLimits) -> None:
        self.log, self.offset, self.limits = log, offset, limits

    def result(self) -> Fetched:
        return self.log.fetch(self.offset, self.limits)


def options(**more: str) -> ReadOptions:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}
    return read_options(given | {name.replace("_", "."): value for name, value in more.items()}, streaming=False)


def batch(first: int, count: int, **more: object) -> bytearray:
    values = [Record(value=b"v%d" % offset, timestamp=offset) for offset in range(first, first + count)]
    return encode_batch(values, base_offset=first, **more)  # type: ignore[arg-type]


def read(log: Log, start: int, end: int, chosen: ReadOptions | None = None) -> list["pa.RecordBatch"]:
    reader = RangeReader(log, chosen or options(), OffsetRange(*ORDERS, start, end), COLUMNS)
    return list(reader.arrow_batches())


def offsets(batches: Iterable["pa.RecordBatch"]) -> list[int]:
    return [offset for each in batches for offset in each.column("offset").to_pylist()]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.sampled_from(list(Codec))), min_size=1, max_size=12),
    st.integers(1, 400),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_exactly_the_range_is_read(shape: list[tuple[int, int, Codec]], fetch_bytes: int, data: st.DataObject) -> None:
    """Whatever the sizes of batches and fetches, the codecs, and the gaps that compaction left."""
    batches, offset, present = [], 0, []
    for count, gap, codec in shape:
        offset += gap
        batches.append(batch(offset, count, codec=codec))
        present += range(offset, offset + count)
        offset += count
    start = data.draw(st.integers(0, offset))
    end = data.draw(st.integers(start, offset))
    chosen = options(kafka_max_partition_fetch_bytes=str(fetch_bytes))
    got = read(Log(batches), start, end, chosen)
    assert offsets(got) == [o for o in present if start <= o < end]
    assert [v for each in got for v in each.column("value").to_pylist()] == [b"v%d" % o for o in offsets(got)]


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.answer == ACCEPTED])
def test_every_form_of_compressed_records_that_kafka_takes_is_read(name: str) -> None:
    odd = compressed(records=3, key="k#", value="value-#", form=name)
    [got] = read(Log([odd, batch(3, 1)]), 0, 4)
    assert got.column("key").to_pylist() == [b"k0", b"k1", b"k2", None]
    assert got.column("value").to_pylist() == [b"value-0", b"value-1", b"value-2", b"v3"]


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.answer != ACCEPTED])
def test_a_form_that_kafka_refuses_is_named_with_its_offset(name: str) -> None:
    odd = compressed(records=3, key="k#", value="value-#", form=name)
    with pytest.raises(DamagedBatch, match="damaged at offset 1"):
        read(Log([batch(0, 1), b"\0\0\0\0\0\0\0\1" + odd[8:]]), 0, 4)


def test_the_columns_are_those_of_sparks_kafka_source() -> None:
    log = Log([encode_batch([Record(key=b"k", value=None, timestamp=1500)]), batch(1, 1, log_append_time_ms=7_000)])
    [got] = read(log, 0, 2)
    assert got.schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
        ]
    )
    got.validate(full=True)
    [first, second] = [[column[i].as_py() for column in got.columns] for i in range(2)]
    assert first[:5] == [b"k", None, "orders", 3, 0]
    assert (first[5].timestamp(), first[6]) == (1.5, 0)
    assert second[:5] == [None, b"v1", "orders", 3, 1]
    assert (second[5].timestamp(), second[6]) == (7.0, 1)


def test_arrow_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ROWS_MAX", 10)
    log = Log([batch(0, 4), batch(4, 4), batch(8, 4), batch(12, 25)])
    got = read(log, 0, 37)
    assert offsets(got) == list(range(37))
    assert [each.num_rows for each in got] == [8, 4, 10, 10, 5]
    monkeypatch.setattr(rows, "BYTES_MAX", 1)
    assert [each.num_rows for each in read(log, 0, 12)] == [4, 4, 4]


def test_a_small_range_asks_for_little_and_a_large_one_for_what_the_records_need() -> None:
    log = Log([batch(offset, 1000) for offset in range(0, 200_000, 1000)])
    read(log, 5, 10)
    assert [limits.partition_max_bytes for _, limits in log.asked] == [64 << 10]
    log.asked.clear()
    read(log, 0, 200_000)
    first, *later = [limits.partition_max_bytes for _, limits in log.asked]
    assert first == options().fetch.partition_max_bytes
    size = sum(map(len, log.batches))
    assert all(asked <= size * 1.3 for asked in later)


def test_control_batches_are_never_rows_and_aborted_ones_only_uncommitted() -> None:
    marker = {"is_transactional": True, "is_control": True, "producer_epoch": 0}
    abort, commit = (Record(key=bytes([0, 0, 0, kind]), value=bytes(6)) for kind in (0, 1))
    log = Log(
        [
            batch(0, 2, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True),
            batch(2, 1, producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True),
            batch(3, 1),
            encode_batch([abort], base_offset=4, producer_id=7, **marker),
            encode_batch([commit], base_offset=5, producer_id=8, **marker),
            batch(6, 2, producer_id=7, producer_epoch=0, base_sequence=2, is_transactional=True),
            encode_batch([commit], base_offset=8, producer_id=7, **marker),
        ],
        aborted=[(7, 0)],
    )
    assert offsets(read(log, 0, 9)) == [0, 1, 2, 3, 6, 7]
    committed = options(kafka_isolation_level="read_committed")
    assert offsets(read(log, 0, 9, committed)) == [2, 3, 6, 7]
    assert {limits.isolation for _, limits in log.asked} == {0, READ_COMMITTED}


def test_a_range_that_ends_in_control_batches_comes_to_its_end() -> None:
    marker = encode_batch(
        [Record(key=bytes([0, 0, 0, 1]), value=bytes(6))], base_offset=1, producer_id=1, is_control=True
    )
    assert offsets(read(Log([batch(0, 1), marker]), 0, 2)) == [0]


def test_what_retention_took_is_an_error_that_names_it() -> None:
    log = Log([batch(10, 5)], start=10)
    with pytest.raises(
        DataLoss, match=r"orders-3: offsets 4 to 9 are gone, the log begins at 10.*failOnDataLoss=false"
    ):
        read(log, 4, 15)


def test_without_fail_on_data_loss_what_is_left_is_read(caplog: pytest.LogCaptureFixture) -> None:
    log = Log([batch(10, 5)], start=10)
    lenient = options(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, logger="tidelog.spark"):
        assert offsets(read(log, 4, 15, lenient)) == [10, 11, 12, 13, 14]
        assert offsets(read(log, 4, 8, lenient)) == []
        assert offsets(read(log, 16, 20, lenient)) == []
    assert [record.getMessage() for record in caplog.records] == [
        "data_loss orders-3: offsets 4 to 9 are gone, the log begins at 10",
        "data_loss orders-3: offsets 4 to 7 are gone, the log begins at 10",
        "data_loss orders-3: offsets 16 to 19 are gone, the log ends at 15",
    ]


def test_an_end_that_never_comes_is_a_loss_once_the_time_is_over() -> None:
    log = Log([batch(0, 5)])
    hasty = options(kafka_default_api_timeout_ms="1")
    with pytest.raises(DataLoss, match="orders-3: offsets 5 to 8 are gone, the log ends at 5"):
        read(log, 0, 9, hasty)
    assert len(log.asked) >= 2


class Told(Log):
    """A log whose broker has some of its answers made up: (high watermark, last stable offset), nothing else."""

    def __init__(self, *answers: tuple[int, int] | None) -> None:
        super().__init__([batch(0, 5), batch(5, 5)])
        self.answers = list(answers)

    def fetch(self, offset: int, limits: FetchLimits) -> Fetched:
        if self.answers and (answer := self.answers.pop(0)) is not None:
            return THROTTLED._replace(high_watermark=answer[0], last_stable_offset=answer[1])
        served = super().fetch(offset, limits)
        return served._replace(records=served.records[: BatchHeader(served.records).size])


HASTY = {"kafka_default_api_timeout_ms": "1000"}


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass at each look at the clock; the last of them for ever."""
    steps = [0.0]
    now = [0.0]

    def monotonic() -> float:
        now[0] += steps.pop(0) if len(steps) > 1 else steps[0]
        return now[0]

    monkeypatch.setattr(reading.time, "monotonic", monotonic)
    return steps


def test_time_that_passes_downstream_is_not_the_brokers_silence(passing: list[float]) -> None:
    passing[:] = [9.0, 0.1]
    log = Told(None, (10, 10))
    got = RangeReader(log, options(**HASTY), OffsetRange(*ORDERS, 0, 10), COLUMNS).arrow_batches()
    assert offsets(got) == list(range(10))


def test_a_client_that_is_held_back_waits_for_as_long_as_it_takes(passing: list[float]) -> None:
    passing[:] = [0.9]
    log = Told((0, 0), (-1, -1), (0, 0), *[(-1, -1)] * 100, None)
    assert offsets(read(log, 0, 10, options(**HASTY))) == list(range(10))


@pytest.mark.parametrize(("isolation", "told"), [("read_uncommitted", (7, 0)), ("read_committed", (7, 7))])
def test_what_the_broker_says_is_there_is_not_gone(isolation: str, told: tuple[int, int], passing: list[float]) -> None:
    passing[:] = [0.4]
    lenient = options(failOnDataLoss="false", kafka_isolation_level=isolation, **HASTY)
    assert offsets(read(Told(told, told, None), 0, 10, lenient)) == list(range(10))
    end = r"7 \(last stable offset\)" if isolation == "read_committed" else "7"
    with pytest.raises(
        GaveUp,
        match="orders-3: no record at or after offset 0 was received for 1000 ms, "
        f"although the log continues to offset {end}$",
    ):
        read(Told(*[told] * 9), 0, 10, lenient)


class Growing(Log):
    """A log whose fetches first miss the position, as those of a new leader whose high watermark is behind."""

    def __init__(self, misses: int) -> None:
        super().__init__([batch(0, 5), batch(5, 5)])
        self.misses = misses

    def fetch(self, offset: int, limits: FetchLimits) -> Fetched:
        if offset and self.misses:
            self.misses -= 1
            raise OffsetOutOfRange(f"{ORDERS}: offset {offset} is not in the log")
        served = super().fetch(offset, limits)
        return served._replace(records=served.records[: BatchHeader(served.records).size])


QUICK = HASTY | {"kafka_retry_backoff_ms": "1"}


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_offsets_that_the_log_has_again_are_not_lost(lenient: str) -> None:
    assert offsets(read(Growing(2), 0, 10, options(failOnDataLoss=lenient, **QUICK))) == list(range(10))


def test_a_fetch_that_always_misses_an_offset_of_the_log_gives_up(passing: list[float]) -> None:
    passing[:] = [0.4]
    with pytest.raises(GaveUp, match="no record at or after offset 5 was received for 1000 ms"):
        read(Growing(9), 0, 10, options(failOnDataLoss="false", **QUICK))


def damages() -> Iterator[tuple[str, bytes, str]]:
    sound = batch(5, 3)
    flipped = bytearray(sound)
    flipped[-2] ^= 1
    yield (
        "value byte",
        bytes(flipped),
        r"orders-3 is damaged at offset 5: offsets 5 to 7: the CRC-32C is not the stated 0x",
    )
    old = bytearray(sound)
    old[16] = 1
    yield "magic", bytes(old), "orders-3 is damaged at offset 5: message format 1 is not supported"
    short = bytearray(sound)
    short[8:12] = (10).to_bytes(4, "big")
    yield "length", bytes(short), "orders-3 is damaged at offset 5: the header of a record batch"
    backwards = batch(2, 3)
    yield "order", bytes(backwards), "orders-3 is damaged at offset 5: the header of a record batch"


@pytest.mark.parametrize(("damaged", "message"), [pytest.param(d, m, id=what) for what, d, m in damages()])
def test_damage_is_named(damaged: bytes, message: str) -> None:
    log = Log([batch(0, 5)])
    log.batches.append(damaged)
    log.end = 8
    with pytest.raises(DamagedBatch, match=message):
        read(log, 0, 8)


def test_without_check_crcs_a_flipped_value_is_handed_on() -> None:
    flipped = batch(0, 1)
    flipped[-2] ^= 1
    [got] = read(Log([flipped]), 0, 1, options(kafka_check_crcs="false"))
    assert got.column("value").to_pylist() == [b"v1"]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_broken_compression_is_damage(codec: Codec) -> None:
    broken = batch(0, 5, codec=codec)
    broken[70:] = bytes(len(broken) - 70)
    with pytest.raises(DamagedBatch, match="orders-3 is damaged at offset 0: "):
        read(Log([broken]), 0, 5, options(kafka_check_crcs="false"))


def test_less_than_one_batch_is_the_brokers_fault() -> None:
    log = Log([batch(0, 5)])
    log.batches = [log.batches[0][:80]]
    log.fetch = lambda offset, limits: Fetched(memoryview(log.batches[0]), 5, 5, 0, [])  # type: ignore[method-assign]
    with pytest.raises(DamagedBatch, match="less than one complete record batch"):
        read(log, 0, 5)
