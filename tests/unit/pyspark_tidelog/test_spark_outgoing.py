"""Rows to record batches: `tidelog.wire.records` decodes them to the same rows, in the partitions that Java chooses."""

# ruff: noqa: E402 (nothing here can be imported without the skipped package)

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from pyspark_tidelog import compiled, outgoing
from pyspark_tidelog.encode_kernel import murmur2
from pyspark_tidelog.errors import SchemaError
from pyspark_tidelog.outgoing import BatchEncoder
from tidelog.model.ids import TopicPartition
from tidelog.wire.batches import Codec, check_produced
from tidelog.wire.records import Record, decode_records

VECTORS = json.loads((Path(__file__).parents[2] / "golden" / "spark" / "murmur2.json").read_text())["cases"]
NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
COMPILED = [True, False] if compiled.AVAILABLE else [False]


def new(
    topic: str | None = "orders", *, partitions: int = 4, batch_bytes: int = 1 << 16, **more: object
) -> BatchEncoder:
    chosen = {"codec": Codec.NONE, "first_partition": 0} | more
    return BatchEncoder(topic, lambda _: partitions, lambda: NOW_MS, batch_bytes=batch_bytes, **chosen)  # type: ignore[arg-type]


def arrow(rows: list[dict[str, object]], **types: "pa.DataType") -> "pa.RecordBatch":
    known = {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": HEADERS,
        "topic": pa.string(),
        "partition": pa.int32(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    fields = [pa.field(name, types.get(name, known[name])) for name in rows[0]]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))


def decoded(batches: dict[TopicPartition, list[bytearray]]) -> dict[TopicPartition, list[Record]]:
    """Each batch as a broker would check it first."""
    for each in batches.values():
        for batch in each:
            header = check_produced(memoryview(batch))
            assert (header.base_timestamp, header.max_timestamp, header.producer_id) == (NOW_MS, NOW_MS, -1)
    return {tp: [record for batch in each for record in decode_records(batch)] for tp, each in batches.items()}


def partition_for(key: bytes, partitions: int) -> int:
    data = np.frombuffer(key, np.uint8)
    data.flags.writeable = False
    return (int(murmur2(data, 0, len(key))) & 0x7FFFFFFF) % partitions


short = st.one_of(st.none(), st.binary(max_size=40))
headers = st.one_of(
    st.none(), st.lists(st.fixed_dictionaries({"key": st.text(max_size=4), "value": short}), max_size=3)
)
row = st.fixed_dictionaries({"key": short, "value": short, "headers": headers})


@pytest.mark.parametrize("fast", COMPILED)
@given(st.lists(row, min_size=1, max_size=40), st.integers(0, 200), st.sampled_from(list(Codec)), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_the_rows(
    fast: bool, rows: list[dict[str, object]], batch_bytes: int, codec: Codec, skipped: int
) -> None:
    """Also of a slice, whose buffers begin before its rows."""
    whole = arrow(rows)
    sliced = whole.slice(min(skipped, len(rows) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "AVAILABLE", fast)
        written = decoded(new(codec=codec, batch_bytes=batch_bytes + 1).batches(sliced))
    expected: dict[int, list[tuple[object, ...]]] = {}
    keyless = []
    for each in sliced.to_pylist():
        plain = (each["key"], each["value"], [(h["key"], h["value"]) for h in each["headers"] or ()])
        if each["key"] is None:
            keyless.append(plain)
        else:
            expected.setdefault(partition_for(each["key"], 4), []).append(plain)
    got = {
        tp.partition: [(r.key, r.value, list(r.headers)) for r in records if r.key is not None]
        for tp, records in written.items()
    }
    assert {partition: each for partition, each in got.items() if each} == expected
    rest = [(r.key, r.value, list(r.headers)) for records in written.values() for r in records if r.key is None]
    assert sorted(map(repr, rest)) == sorted(map(repr, keyless))
    assert all(r.timestamp == NOW_MS for records in written.values() for r in records)


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: repr(case["input"][:12]))
def test_the_hash_is_javas(case: dict[str, object]) -> None:
    raw = str(case["input"]).encode()
    data = np.frombuffer(raw, np.uint8)
    data.flags.writeable = False
    assert int(murmur2(data, 0, len(raw))) == case["expected"]
    rows = arrow([{"key": raw, "value": b""}])
    [partition] = new(partitions=7).batches(rows)
    assert partition.partition == (int(str(case["expected"])) & 0x7FFFFFFF) % 7


def test_text_is_written_as_utf8() -> None:
    rows = arrow([{"key": "ключ", "value": "値"}], key=pa.string(), value=pa.large_string())
    [[record]] = decoded(new().batches(rows)).values()
    assert (record.key, record.value) == ("ключ".encode(), "値".encode())


@pytest.mark.parametrize("fast", [True, False])
def test_bytes_that_are_no_text_are_written_as_they_are(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In keys, values and headers. In names of topics they are replaced, as by Java."""
    if fast and not compiled.AVAILABLE:
        pytest.skip("needs numba")
    monkeypatch.setattr(compiled, "AVAILABLE", fast)
    text = pa.array([b"\xed\xa0\x80\xffA", b"sound"], pa.binary()).view(pa.string())
    names = pa.StructArray.from_arrays(
        [text, pa.array([b"\0\xff", None], pa.binary())], fields=list(HEADERS.value_type)
    )
    headers = pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), names)
    rows = pa.RecordBatch.from_arrays([text, text, headers, text], ["key", "value", "headers", "topic"])
    found = {tp.topic: record for tp, [record] in decoded(new(None).batches(rows)).items()}
    assert list(found) == ["\ufffd\ufffdA", "sound"]
    first, second = found.values()
    assert (first.key, first.value) == (b"\xed\xa0\x80\xffA", b"\xed\xa0\x80\xffA")
    assert list(first.headers) == [("\udced\udca0\udc80\udcffA", b"\0\xff"), ("sound", None)]
    assert (second.key, second.value, list(second.headers)) == (b"sound", b"sound", [])


def test_a_partition_column_decides_and_null_leaves_it_to_the_key() -> None:
    rows = arrow([{"key": b"21", "value": b"a", "partition": 3}, {"key": b"21", "value": b"b", "partition": None}])
    written = decoded(new().batches(rows))
    assert {tp.partition: [r.value for r in records] for tp, records in written.items()} == {
        3: [b"a"],
        partition_for(b"21", 4): [b"b"],
    }


@pytest.mark.parametrize("partition", [-1, 4])
def test_an_impossible_partition_is_refused(partition: int) -> None:
    rows = arrow([{"value": b"a", "partition": partition}])
    with pytest.raises(SchemaError, match=f"column partition has the value {partition}; topic orders has 4 partitions"):
        new().batches(rows)


def test_a_topic_column_decides_unless_the_option_does() -> None:
    rows = arrow([{"topic": name, "value": name.encode()} for name in "abab"])
    written = decoded(new(None, partitions=1).batches(rows))
    assert {tp: [r.value for r in records] for tp, records in written.items()} == {
        TopicPartition("a", 0): [b"a", b"a"],
        TopicPartition("b", 0): [b"b", b"b"],
    }
    assert list(new("orders", partitions=1).batches(rows)) == [TopicPartition("orders", 0)]
    with pytest.raises(SchemaError, match="column topic is null in some row"):
        new(None).batches(arrow([{"topic": "a", "value": b""}, {"topic": None, "value": b""}]))


def test_a_header_without_a_key_is_refused() -> None:
    with pytest.raises(SchemaError, match="a header whose key is null"):
        new().batches(arrow([{"value": b"", "headers": [{"key": None, "value": b""}]}]))


def test_records_without_a_key_go_round_in_bunches_of_a_batch() -> None:
    out = new(batch_bytes=1000, first_partition=2)
    rows = arrow([{"value": b"x" * 94}] * 45)
    sizes = {tp.partition: sum(map(len, batches)) for tp, batches in out.batches(rows).items()}
    assert sorted(sizes) == [0, 1, 2, 3]
    [first] = out.batches(arrow([{"value": b"y"}]))
    assert first.partition == (2 + 5) % 4


@pytest.mark.parametrize("fast", COMPILED)
def test_batches_are_full_but_not_larger_unless_one_record_is(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "AVAILABLE", fast)
    values = [b"x" * 100] * 25 + [b"y" * 5000] + [b"x" * 100] * 3
    [batches] = new(batch_bytes=1000, partitions=1).batches(arrow([{"value": v} for v in values])).values()
    counts = [len(decode_records(batch)) for batch in batches]
    assert sum(counts) == len(values)
    assert 1 in counts
    assert max(counts) in (9, 10)
    assert [r.value for batch in batches for r in decode_records(batch)] == values
    assert outgoing.BY_KEY == -1


@pytest.mark.parametrize("fast", COMPILED)
@given(
    st.lists(st.one_of(st.none(), st.integers(-1, 1 << 42)), min_size=1, max_size=40),
    st.integers(1, 200),
    st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_records_have_the_times_of_the_timestamp_column(
    fast: bool, times_ms: list[int | None], batch_bytes: int, skipped: int
) -> None:
    """Times may go backwards within a batch. A row without a time has the time of the write."""
    rows = [{"value": b"x", "timestamp": None if ms is None else ms * 1000 + 999} for ms in times_ms]
    sliced = arrow(rows).slice(min(skipped, len(rows) - 1))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "AVAILABLE", fast)
        [batches] = new(partitions=1, batch_bytes=batch_bytes, include_timestamp=True).batches(sliced).values()
    written = []
    for batch in batches:
        header, records = check_produced(memoryview(batch)), decode_records(batch)
        assert header.max_timestamp == max(record.timestamp for record in records)
        written += [record.timestamp for record in records]
    assert written == [NOW_MS if ms is None else ms for ms in times_ms[len(rows) - len(sliced) :]]


def test_a_timestamp_column_has_no_effect_unless_the_option_says_so() -> None:
    rows: list[dict[str, object]] = [{"value": b"x", "timestamp": 1_000_000}]
    [[record]] = decoded(new(partitions=1).batches(arrow(rows))).values()
    assert record.timestamp == NOW_MS


def test_no_rows_are_no_batches() -> None:
    assert new().batches(arrow([{"value": b"x"}]).slice(1)) == {}


def test_columns_that_are_not_written_are_not_touched() -> None:
    """pyarrow cannot make an array of some of Spark's types, such as an interval of months."""

    class Rows:
        schema = pa.schema([pa.field("other", pa.int32()), pa.field("value", pa.string())])
        num_rows = 1

        def column(self, number: int) -> pa.Array:
            assert number == 1
            return pa.array(["v"])

    [(partition, [_])] = new("t").batches(Rows()).items()  # type: ignore[arg-type]
    assert partition.topic == "t"
