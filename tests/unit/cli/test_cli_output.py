"""Tables, plots, and the values computed for them."""

import os
import pty
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tidelog.cli.cluster import Offsets, PartitionState, TopicState, no_such_topic
from tidelog.cli.connection import host_port, host_ports
from tidelog.cli.errors import UsageError
from tidelog.cli.escapes import escape, escape_unprintable, unescape
from tidelog.cli.lag import Lag, behind_text, lag_table, row_style, total
from tidelog.cli.lag_watch import Progress, rates_between, split_to_fit, watch_table, whole_table
from tidelog.cli.measure import Point, percentile, rates
from tidelog.cli.plots import line_plot, short_number
from tidelog.cli.table_fit import shorten
from tidelog.cli.tables import (
    Column,
    Table,
    print_table,
    printable,
    ranges,
    size,
)
from tidelog.cli.topic import topic_differences, trouble
from tidelog.cli.topic_tables import replicas_text, value_text
from tidelog.model.addresses import host_port_text

COLUMNS = [Column("Topic"), Column("Records", right=True)]


def test_a_table_in_a_pipe_is_aligned_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table(COLUMNS, [("orders", "12"), ("a", "1204000")]))
    assert capsys.readouterr().out == "TOPIC   RECORDS\norders       12\na       1204000\n"


def on_a_terminal(code: str, width: int, **environment: str) -> str:
    """What `code` prints when stdout is a terminal of this width."""
    leader, follower = pty.openpty()
    script = f"import os; os.environ.update(COLUMNS='{width}', LINES='24', TERM='xterm-256color')\n{code}"
    try:
        ran = subprocess.Popen([sys.executable, "-c", script], stdout=follower, env=os.environ | environment)
    finally:
        os.close(follower)
    printed = b""
    with ran:
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            printed += part
    os.close(leader)
    return printed.decode().replace("\r\n", "\n")


TABLE = """
from tidelog.cli.tables import *
long = "a-topic-with-a-name-" + "x" * 80
print_table(Table([Column("Topic"), Column("Records", right=True)], [(long, "12"), ("[red]x[/]\\x1b[31m", "3")]))
"""


def test_a_table_on_a_terminal_keeps_its_width_and_says_names_in_full() -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(TABLE, 80, NO_COLOR="1"))
    long_name = "a-topic-with-a-name-" + "x" * 80
    assert all(len(line) <= 80 or line == f"Topic {long_name}" for line in shown.splitlines())
    assert long_name in shown.split()
    assert "[red]x[/]\\x1b[31m" in shown


def test_colours_only_without_no_color() -> None:
    assert "\x1b[36m" in on_a_terminal(TABLE, 120) or "\x1b[1;36m" in on_a_terminal(TABLE, 120)
    shown = on_a_terminal(TABLE, 120, NO_COLOR="1")
    assert "36m" not in shown


def test_control_characters_are_escaped() -> None:
    assert printable("a\tb\x1b\n") == "a\\tb\\x1b\\n"
    assert printable("a\x9b") == "a\\u009b"
    assert printable("é 漢") == "é 漢"


def test_the_escape_of_every_character_and_byte_is_read_back() -> None:
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF and chr(code) != "\\"]
    escapes = [*map(escape, characters)]
    assert len(set(escapes)) == len(characters)
    assert unescape("".join(escapes)) == "".join(characters)
    bytes_that_are_not_utf8 = [chr(code) for code in range(0xDC80, 0xDD00)]
    assert [unescape(escape(byte)) for byte in bytes_that_are_not_utf8] == bytes_that_are_not_utf8


@given(st.binary() | st.text().map(str.encode), st.sampled_from(["utf-8", "ascii", "latin-1", "cp1252"]))
def test_a_name_of_any_bytes_is_read_back_as_it_is_printed(name: bytes, encoding: str) -> None:
    text = name.decode("utf-8", "surrogateescape")
    with_backslashes_twice = "\\\\".join(escape_unprintable(part, encoding) for part in text.split("\\"))
    with_backslashes_twice.encode(encoding)
    assert unescape(with_backslashes_twice) == text


@pytest.mark.parametrize("text", ["\\ud800", "\\udfff", "\\U00110000", "\\q", "\\x4", "a\\"])
def test_an_escape_that_is_no_character_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"has the escape|unknown escape"):
        unescape(text)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        ((100 << 10) - 1, "100 KiB"),
        (200 << 10, "200 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (-(1 << 20) + 1, "-1.0 MiB"),
        (-(200 << 10), "-200 KiB"),
        (3 << 30, "3.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("localhost:9092", ("localhost", 9092)),
        ("localhost", ("localhost", 9092)),
        ("[::1]:9093", ("::1", 9093)),
        ("[::1]", ("::1", 9092)),
        ("PLAINTEXT://h:1", ("h", 1)),
        ("SASL_SSL://h", ("h", 9092)),
    ],
)
def test_addresses(address: str, found: tuple[str, int]) -> None:
    assert host_port(address) == found


@pytest.mark.parametrize("address", ["h:", "h:x", ":9092", "h:70000", "h:0", " , ", "[]:1"])
def test_what_is_no_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"^--bootstrap takes HOST:PORT, for example localhost:9092, not "):
        host_ports(address)
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", address)
    with pytest.raises(UsageError, match=r"^TIDELOG_BOOTSTRAP takes HOST:PORT, for example localhost:9092, not "):
        host_ports(address)


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        ("http://h:8080/kafka", "h:8080"),
        ("tcp://h", "h"),
        ("kafka://", "localhost:9092"),
        ("://h:1", "h:1"),
    ],
)
def test_an_address_has_no_scheme(address: str, plain: str) -> None:
    scheme = address.partition("://")[0]
    with pytest.raises(UsageError) as raised:
        host_ports(f"other:1, {address}")
    assert str(raised.value) == f"--bootstrap takes HOST:PORT without {scheme}://, that is {plain}, not {address!r}"


def test_an_ipv6_address_stands_in_brackets() -> None:
    with pytest.raises(UsageError, match=r"in brackets, for example \[::1\]:9092, not '::1'"):
        host_ports("::1")
    assert [host_port_text(*address) for address in host_ports("[::1]:1, h")] == ["[::1]:1", "h:9092"]


# Topics


def topic(*partitions: tuple[int, list[int], list[int]]) -> TopicState:
    states = [PartitionState(index, *state) for index, state in enumerate(partitions)]
    return TopicState("t", "id", False, states)


def test_what_an_operator_should_look_at() -> None:
    assert trouble(topic((1, [1, 2], [1, 2]), (2, [2, 1], [1, 2]))) == ""
    assert trouble(topic((-1, [1, 2], [1]), (2, [2, 1], [2]))) == "1 without a leader, 2 under-replicated"


def test_the_number_of_copies() -> None:
    assert replicas_text(topic((1, [1], [1]))) == "1"
    assert replicas_text(topic((1, [1], [1]), (1, [1, 2, 3], [1]), (1, [1, 2], [1]))) == "1-3"


def test_an_unknown_topic_names_the_nearest() -> None:
    assert str(no_such_topic("order", ["orders", "payments"])) == "no such topic: order; did you mean orders?"
    assert str(no_such_topic("x", [])) == "no such topic: x; tidelog topic list shows all"


def test_a_topic_that_was_there_before_may_be_another() -> None:
    there = topic((1, [1], [1]), (1, [1], [1]))
    have = {"retention.ms": "5", "cleanup.policy": "delete"}
    assert topic_differences(there, have, 2, 1, {"retention.ms": "5"}) == ([], [])
    assert topic_differences(there, have, None, None, {}) == ([], [])
    assert topic_differences(there, have, 1, None, {}) == (["2 partitions, not 1"], [])
    assert topic_differences(there, have, 3, 2, {"retention.ms": "7", "no.such": "a b"}) == (
        ["2 partitions, not 3", "replicas 1, not 2", "retention.ms=5, not 7", "no.such=, not a b"],
        [
            "tidelog topic add-partitions t 3",
            "tidelog topic config t --set retention.ms=7 --set 'no.such=a b'",
        ],
    )


def test_settings_are_explained_at_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert value_text("retention.ms", "86400000") == "86400000"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert value_text("retention.ms", "86400000") == "86400000 (1 d)"
    assert value_text("segment.bytes", "1073741824") == "1073741824 (1.0 GiB)"
    assert value_text("retention.ms", "-1") == "-1 (no limit)"
    assert value_text("compression.gzip.level", "-1") == "-1"
    assert value_text("flush.messages", str(2**63 - 1)) == f"{2**63 - 1} (no limit)"
    assert value_text("cleanup.policy", "delete") == "delete"


def test_offsets() -> None:
    assert Offsets(5, 12).records == 7


# Groups


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([7, 1, 0, 2], "0-2,7"), ([0, 1], "0-1"), ([0, 2, 4], "0,2,4")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


@given(st.sets(st.integers(0, 50)))
def test_ranges_say_every_number(numbers: set[int]) -> None:
    said: set[int] = set()
    for part in filter(None, ranges(list(numbers)).split(",")):
        first, _, last = part.partition("-")
        said |= set(range(int(first), int(last or first) + 1))
    assert said == numbers


def lag(partition: int, committed: int | None, end: int | None) -> Lag:
    return Lag("g", "t", partition, committed, end, "")


def test_rates_between_two_looks() -> None:
    before = [lag(0, 100, 1000), lag(1, 5, 5), lag(3, None, 5), lag(4, 9, 9)]
    after = [lag(0, 300, 1100), lag(2, 0, 7), lag(3, 1, 5), lag(4, 3, 9)]
    assert rates_between(before, after, 2.0) == {("g", "t", 0): Progress(100.0, 50.0), ("g", "t", 4): Progress(0, 0)}


@pytest.mark.parametrize(
    ("progress", "left", "text"),
    [
        (Progress(100, 50), 0, "now"),
        (Progress(100, 50), 5000, "1 min 40 s"),
        (Progress(50, 50), 10, "never"),
        (Progress(0, 0), 10, "never"),
    ],
)
def test_when_it_will_have_caught_up(progress: Progress, left: int, text: str) -> None:
    assert progress.until_caught_up(left) == text


def test_the_lag_table() -> None:
    lags = [lag(0, 300, 1100), lag(1, 9, None), lag(2, 9, 7), lag(3, None, 50)]
    assert [one.records for one in lags] == [800, None, 0, None]
    table = lag_table(lags)
    assert [row[3:] for row in table.rows] == [
        ["300", "1100", "800", "-", ""],
        ["9", "-", "-", "-", ""],
        ["9", "7", "0", "-", ""],
        ["-", "50", "-", "-", ""],
    ]
    assert table.footer[5] == "800+"


def test_what_was_deleted_before_it_was_read_is_no_lag() -> None:
    assert Lag("g", "t", 0, 5, 20, "", start=12).records == 8
    assert Lag("g", "t", 0, 5, 20, "", start=20).records == 0
    assert Lag("g", "t", 0, 15, 20, "", start=12).records == 5


@pytest.mark.parametrize(
    ("behind_ms", "text", "colour"),
    [
        (None, "-", ""),
        (0, "0 s", ""),
        (1500, "1.5 s", ""),
        (60_000, "1 min", "yellow"),
        (599_999, "9 min 59 s", "yellow"),
        (7_500_000, "2 h 5 min", "red"),
    ],
)
def test_time_behind(monkeypatch: pytest.MonkeyPatch, behind_ms: int | None, text: str, colour: str) -> None:
    one = Lag("g", "t", 0, 5, 20, "", 0, behind_ms)
    assert row_style(one) == colour
    assert row_style(one._replace(committed=20, behind_ms=0)) == "green"
    assert behind_text(behind_ms) == ("-" if behind_ms is None else str(behind_ms // 1000))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert behind_text(behind_ms) == text


def test_the_oldest_of_all_counts() -> None:
    lags = [Lag("g", "t", p, 5, 20, "", 0, behind_ms) for p, behind_ms in enumerate((None, 3000, 9000, 0))]
    assert total(lags).behind_ms == 9000
    assert lag_table(lags).footer[6] == "9"
    assert total(lags[:1]).behind_ms is None


def test_rows_have_their_colour_at_a_terminal() -> None:
    code = (
        "from tidelog.cli.lag import *; from tidelog.cli.tables import *\n"
        "print_table(lag_table([Lag('g', 't', p, 1, 2, '', 0, ms) for p, ms in enumerate((0, 60_000, 600_000))]))"
    )
    lines = on_a_terminal(code, 80, NO_COLOR="").splitlines()
    colours = {
        text: [c for c in (31, 33) for line in lines if re.search(f"[m ]{text}\x1b", line) and f"\x1b[{c}m" in line]
        for text in ("0 s", "1 min", "10 min")
    }
    assert colours == {"0 s": [], "1 min": [33], "10 min": [31]}, lines


@pytest.mark.parametrize(
    ("lags", "text"),
    [
        ([], "-"),
        ([lag(0, None, 50)], "-"),
        ([lag(0, None, 0)], "0"),
        ([lag(0, 3, 5), lag(1, None, 0)], "2"),
        ([lag(0, 3, 5), lag(1, None, 9)], "2+"),
        ([lag(0, 5, 5), lag(1, None, 9)], "0+"),
        ([lag(0, 3, 5), lag(1, 4, None)], "2+"),
        # Without a commit, a partition whose records were all deleted has nothing to read.
        ([lag(0, 3, 5), Lag("g", "t", 1, None, 9, "", 9)], "2"),
        ([Lag("g", "t", 1, None, 9, "", 9)], "0"),
        ([lag(0, 3, 5), Lag("g", "t", 1, None, 9, "", 8)], "2+"),
        ([lag(0, 3, 5), Lag("g", "t", 1, None, None, "", 9)], "2+"),
    ],
)
def test_a_sum_says_when_it_is_not_the_whole(lags: list[Lag], text: str) -> None:
    assert total(lags).text() == text


def wide(groups: int, partitions: int, name: str = "x") -> list[Lag]:
    return [
        Lag(
            f"group-{name}-{g}",
            f"topic-{name}",
            p,
            1_000_000_000,
            1_000_000_000 + 1000 * p,
            "client@host",
            0,
            p * 3_600_000,
        )
        for g in range(groups)
        for p in range(partitions)
    ]


def all_progress(lags: list[Lag]) -> dict[tuple[str, str, int], Progress]:
    return {lag.group_partition: Progress(123_456, 100_000) for lag in lags}


def test_watched_lag_of_one_group() -> None:
    lags = [lag(0, 300, 1100), lag(1, 9, None), lag(2, None, 50)]
    table = watch_table(lags, {("g", "t", 0): Progress(200, 0)}, 80, 24)
    assert table.title == "group g  topic t"
    assert [column.title for column in table.columns][:4] == ["Partition", "Committed", "End", "Lag"]
    assert table.rows == [
        ["0", "300", "1100", "800", "-", "200", "0", "4 s"],
        ["1", "9", "-", "-", "-", "", "", ""],
        ["2", "-", "50", "-", "-", "", "", ""],
    ]
    assert table.footer == ["all", "", "", "800+", "-", "200", "0", "4 s"]


def test_watched_lag_in_a_pipe_has_every_column_and_row() -> None:
    lags = wide(1, 30)
    table = whole_table(lags, all_progress(lags))
    assert [column.title for column in table.columns][:5] == ["Group", "Topic", "Partition", "Committed", "End"]
    assert [row[2] for row in table.rows] == [*map(str, range(30))]
    assert table.rows[1] == [
        "group-x-0",
        "topic-x",
        "1",
        "1000000000",
        "1000001000",
        "1000",
        "3600",
        "123456",
        "100000",
        "0.0 s",
    ]


def test_partitions_that_do_not_fit_are_one_row() -> None:
    lags = wide(1, 30)
    table = watch_table(lags, all_progress(lags), 80, 24)
    assert [row[0] for row in table.rows] == [*map(str, range(13, 30)), "13 more"]
    assert table.rows[-1][-5] == str(sum(1000 * p for p in range(13)))
    assert table.footer[-5] == str(sum(1000 * p for p in range(30)))
    assert split_to_fit(lags, 30) == (lags, [])
    assert [len(part) for part in split_to_fit(lags, 29)] == [28, 2]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 12)])
@pytest.mark.parametrize(
    "lags",
    [
        wide(1, 12),
        wide(1, 200),
        wide(4, 50),
        wide(2, 20, "a-very-long-name-that-somebody-found-good-" * 2),
        wide(2, 20, "訂單處理" * 12),
        [],
    ],
    ids=["12", "200", "4 groups", "long names", "wide names", "none"],
)
def test_a_watched_table_fits_a_terminal(lags: list[Lag], width: int, height: int) -> None:
    code = (
        "from tidelog.cli.lag import Lag; from tidelog.cli.lag_watch import *\n"
        "from tidelog.cli.tables import print_table\n"
        f"lags = [Lag(*one) for one in {[tuple(one) for one in lags]!r}]\n"
        "progress = {one.group_partition: Progress(123_456, 100_000) for one in lags}\n"
        f"print_table(watch_table(lags, progress, {width}, {height}))"
    )
    lines = on_a_terminal(code, width, NO_COLOR="1").splitlines()
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert len(plain) <= height - 1
    assert max(map(cell_len, plain)) <= width
    if lags:
        at = max(number for number, line in enumerate(plain) if line.split()[:1] == ["all"])
        last = plain[at].split()
        assert all(re.match(r"Left out: |A terminal|columns or|--json|shows", line.strip()) for line in plain[at + 1 :])
        assert f"{sum(one.records or 0 for one in lags):,}" in last
        assert sum(bool(re.match(r"\s*\S.*\d", line)) for line in plain) >= min(len(lags), height - 6)


@given(st.text(st.sampled_from("a漢é字"), max_size=30), st.integers(1, 20))
def test_a_shortened_name_fits_in_cells(text: str, width: int) -> None:
    short = shorten(text, width)
    assert cell_len(short) <= width
    assert short == text or cell_len(short) >= width - 2


def test_names_are_shortened_in_the_middle() -> None:
    assert shorten("訂單處理群組一號", 9) == "訂單…一號"
    assert shorten("orders", 6) == "orders"
    assert shorten("orders-of-today-7", 9) == "orde…ay-7"


# Measurements


@pytest.mark.parametrize(("percent", "value"), [(50, 5), (90, 9), (99, 10), (100, 10), (0, 1), (10, 1), (10.1, 2)])
def test_percentiles(percent: float, value: float) -> None:
    assert percentile(list(range(1, 11)), percent) == value


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_is_not_exceeded_by_so_many(values: list[float], percent: float) -> None:
    found = percentile(sorted(values), percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-6
    with pytest.raises(ValueError, match="no values"):
        percentile([], percent)


def test_rates_of_a_curve() -> None:
    points = [Point(0, 0, 0), Point(1, 100, 0), Point(1, 100, 0), Point(3, 500, 0)]
    assert rates(points) == ([0.5, 2.0], [100.0, 200.0])


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (999, "999"),
        (999.4, "999"),
        (999.9, "1k"),
        (1000, "1k"),
        (999_999, "1M"),
        (1_234_567, "1.23M"),
        (5e9, "5G"),
        (1e12, "1T"),
        (1234e12, "1234T"),
    ],
)
def test_short_numbers(number: float, text: str) -> None:
    assert short_number(number) == text


def plotted(**what: Any) -> list[str]:
    return line_plot([0, 1, 2, 3], [0, 1e6, 5e5, 1e6], title="per second", x_label="seconds", **what).splitlines()


def test_a_plot_has_its_size_and_no_colours() -> None:
    lines = plotted(width=60, height=10)
    assert len(lines) == 10
    assert max(map(len, lines)) == 60
    assert "per second" in lines[0]
    assert "seconds" in lines[-1]
    assert lines[2].lstrip().startswith("1M")
    assert not any("\x1b" in line for line in lines)
    assert any("\u2801" <= character <= "\u28ff" for line in lines for character in line)


def test_a_plot_names_its_own_ticks() -> None:
    assert "half" in "\n".join(plotted(width=60, height=10, x_ticks=[(1.5, "half")]))
