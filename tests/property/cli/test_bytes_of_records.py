"""Records of any bytes, written with our client: `consume` shows each of them, in any encoding, and `produce --json`
reads the output of `consume --json`.
"""

import itertools
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli_harness import ENCODINGS, tidelog
from tidelog.cli.consume import escape_for_terminal
from tidelog.cli.record_json import record_from_line
from tidelog.client.blocking import Client
from tidelog.model.ids import TopicPartition
from tidelog.testing import Broker
from tidelog.wire.records import Record, encode_batch

EXAMPLES = int(os.environ.get("TIDELOG_EXAMPLES", "12"))
ODD = (
    b"",
    b"\xff\xfe",
    b"a\0b",
    b"\x1b[31mred\x1b]0;title\x07",
    b"\xed\xa0\x80",  # half of a surrogate pair, as some encoders write it
    b"\xef\xbb\xbfbom",
    "é € 漢 😀 \u2028 \x9b".encode(),
    b"\xc3",
    b"x" * 70_000,
    b'{"a": "\\ud800"}',
)
some_bytes = st.sampled_from(ODD) | st.binary(max_size=40)
header_lists = st.lists(st.tuples(some_bytes, st.none() | some_bytes), max_size=3)
records = st.builds(
    lambda key, value, headers, time_ms: Record(
        key, value, time_ms, [(name.decode("utf-8", "surrogateescape"), data) for name, data in headers]
    ),
    st.none() | some_bytes,
    st.none() | some_bytes,
    header_lists,
    st.integers(1, 1_700_000_000_000),
)
numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def written(broker: Broker, batch: list[Record]) -> str:
    """A topic with these records."""
    topic = f"bytes-{next(numbers)}"
    with Client(broker.bootstrap) as client:
        client.topics([topic], create=True)
        client.produce({TopicPartition(topic, 0): encode_batch(batch)})
    return topic


@given(st.lists(records, min_size=1, max_size=6), st.sampled_from(ENCODINGS))
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_record_is_shown_and_comes_back(broker: Broker, batch: list[Record], encoding: str) -> None:
    good = Record(b"good", b"good", 1)
    batch = [*batch, good]
    topic = written(broker, batch)
    read = ("consume", topic, "-B", "-e", "-b", broker.bootstrap)

    ran = tidelog(*read, "--json", encoding=encoding)
    assert len(ran.json_lines()) == len(batch)
    lines = ran.text.encode().splitlines()
    for line, record in zip(lines, batch, strict=True):
        back = record_from_line(line)
        assert (back.key, back.value, back.headers, back.timestamp_ms) == (
            record.key, record.value, list(record.headers), record.timestamp,
        )  # fmt: skip

    values = [b"null" if record.value is None else record.value for record in batch]
    assert tidelog(*read, encoding=encoding).out == b"\n".join(values) + b"\n"
    keyed = tidelog(*read, "-f", "{key}|{headers}", encoding=encoding).out
    assert keyed == b"\n".join(
        (b"null" if record.key is None else record.key)
        + b"|"
        + b",".join(
            name.encode("utf-8", "surrogateescape") + b"=" + (b"null" if value is None else value)
            for name, value in record.headers
        )
        for record in batch
    ) + b"\n"  # fmt: skip
    for value in values:
        shown = escape_for_terminal(value, encoding).decode(encoding)
        assert all(character.isprintable() or character in "\t\n" for character in shown)

    copy = f"{topic}-copy"
    tidelog("produce", copy, "--json", "-b", broker.bootstrap, stdin=ran.text.encode(), encoding=encoding)
    again = tidelog("consume", copy, "-B", "-e", "--json", "-b", broker.bootstrap, encoding=encoding)
    assert [without_place(line) for line in again.json_lines()] == [without_place(line) for line in ran.json_lines()]


def without_place(line: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in line.items() if name not in ("topic", "offset")}


def test_a_member_of_a_group_reads_them_all_and_commits(broker: Broker) -> None:
    batch = [Record(b"k", value, 1, [("\udcff\udcfe", value)]) for value in ODD]
    topic = written(broker, batch)
    group = f"group-{topic}"
    ran = tidelog("consume", topic, "-g", group, "-B", "-e", "--json", "-b", broker.bootstrap)
    assert [record_from_line(line).value for line in ran.out.splitlines()] == list(ODD)
    [lag] = tidelog("group", "lag", group, "--json", "-b", broker.bootstrap).json()
    assert (lag["committed"], lag["lag"]) == (len(ODD), 0)
