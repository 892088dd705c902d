"""Every table of the command line at terminals of every width: names and numbers are never cut, and omitted columns are
named.
"""

import io
import re
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tidelog.cli import bench, broker, group, log_dirs, offset_plan, quota, topic, topic_tables
from tidelog.cli.broker_settings import BrokerSetting
from tidelog.cli.cluster import KnownOffsets, Offsets, PartitionState, Setting, TopicState
from tidelog.cli.lag import Lag, Total, lag_table
from tidelog.cli.lag_watch import Progress, watch_table
from tidelog.cli.table_fit import column_width_min, column_widths, fit, is_number, total_width
from tidelog.cli.tables import Column, Table, print_table
from tidelog.client.groups import Group, ListedGroup, Member
from tidelog.demo import view
from tidelog.model.ids import TopicPartition

BIG = 9_007_199_254_740_993
NAME = "a-name-that-somebody-found-good-for-orders"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[[Table, int], list[str]]:
    """The lines of a table on a terminal so many columns wide."""

    def show(table: Table, width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("LINES", "40")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr(sys, "stdout", Screen())
        print_table(table)
        printed: str = sys.stdout.getvalue()  # type: ignore[attr-defined]
        return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in printed.splitlines()]

    monkeypatch.setattr(sys, "stdout", Screen())  # cells are for a terminal, too
    return show


def lags() -> list[Lag]:
    return [
        Lag(f"{NAME}-{g}", NAME, p, BIG, BIG + 10_000_000 * p, "tidelog-cli@192.168.100.100", 0, p * 12_345_678)
        for g in range(2)
        for p in range(3)
    ]


def progress() -> dict[tuple[str, str, int], Progress]:
    return {lag.group_partition: Progress(1_234_567, 1_000_000) for lag in lags()}


def states() -> list[TopicState]:
    parts = [PartitionState(p, p + 1000, [1000, 1001, 1002], [1000, 1002]) for p in range(3)]
    return [TopicState(NAME, "id", False, parts), TopicState("b", "id", False, parts)]


def offsets() -> dict[tuple[str, int], Offsets]:
    return {(NAME, p): Offsets(BIG, 2 * BIG + p) for p in range(3)}


def settings() -> list[Setting]:
    return [
        Setting("flush.messages", str(2**63 - 1), "default", False, True),
        Setting("min.insync.replicas", "1", "broker file", False, False),
        Setting("retention.ms", "604800000", "topic", False, True),
    ]


def broker_settings() -> list[BrokerSetting]:
    return [
        BrokerSetting("log.flush.interval.messages", str(2**63 - 1), "default", True, True, False, True, [], None),
        BrokerSetting("log.dirs", "/a/rather/long/path/of/a/disk", "broker file", False, True, False, False, [], None),
    ]


def directories() -> list[log_dirs.LogDirectory]:
    replicas = [log_dirs.Replica(NAME, p, 123_456_789 * p, BIG, p == 2) for p in range(3)]
    path = "/srv/a/rather/long/path/of/a/disk"
    return [
        log_dirs.LogDirectory(b, f"{path}-{b}", "KAFKA_STORAGE_ERROR" * (b == 2), 10**12 * b, 10**11, False, replicas)
        for b in (1, 2)
    ]


def members() -> list[Member]:
    parts = [TopicPartition(NAME, p) for p in range(12)]
    return [Member(f"tidelog-cli-{m}f1c2a3b4-5d6e", None, "tidelog-cli", "/192.168.100.100", parts) for m in range(2)]


def groups() -> Table:
    listed = [ListedGroup(f"{NAME}-{g}", "consumer", "Stable", "Classic") for g in range(2)]
    described = {g.group_id: Group(g.group_id, "Stable", "Classic", "consumer", "range", 1, members()) for g in listed}
    totals = {f"{NAME}-{g}": Total(BIG, g) for g in range(2)}
    return group.groups_table(listed, described, totals, dict.fromkeys(totals, ""))


def accounts() -> Table:
    verdict = {
        "sent": BIG,
        "counts": dict.fromkeys((view.ACCEPTED, view.SOLD_OUT, view.EXPIRED), BIG),
        "problems": [],
        "oversold": 0,
        "events_published_again": 12,
    }
    return view.accounts(view.Result([], verdict, (1, 2), 3.0))


TABLES: dict[str, Callable[[], Table]] = {
    "group lag": lambda: lag_table(lags()),
    "group lag of one": lambda: lag_table(lags()[:3]),
    "group lag --watch 40": lambda: watch_table(lags(), progress(), 40, 40),
    "group lag --watch 80": lambda: watch_table(lags(), progress(), 80, 40),
    "group list": groups,
    "group describe": lambda: group.members_table(members()),
    "group reset-offsets": lambda: offset_plan.changes_table(
        [offset_plan.OffsetChange(NAME, p, BIG, 2 * BIG, "5 is below the log's start" * p) for p in range(2)]
    ),
    "topic list": lambda: topic.topics_table(states(), KnownOffsets(offsets(), {})),
    "topic describe": lambda: topic_tables.partitions_table(states()[0], offsets()),
    "topic config": lambda: topic_tables.settings_table(settings()),
    "broker config describe": lambda: broker.settings_table(broker_settings()),
    "broker config describe, one": lambda: broker.layers_table(
        [("log.retention.ms", "log.retention.hours", str(2**63 - 1), at) for at in ("broker file", "default")]
    ),
    "log dirs": lambda: log_dirs.directory_table(directories()),
    "log dirs --partitions": lambda: log_dirs.partition_table(directories()),
    "quota list": lambda: quota.quota_table(
        [
            quota.Quota((("user", NAME), ("client-id", "a")), "consumer_byte_rate", 123_456_789.0),
            quota.Quota((("ip", "192.168.100.100"),), "connection_creation_rate", 10.5),
        ]
    ),
    "bench": lambda: bench.measures_table([("Records written", f"{BIG:,}"), ("Acknowledged, p99.999", "1.234 ms")]),
    "demo accounts": accounts,
    "demo best sellers": lambda: view.best_sellers(
        [("85123A", "WHITE HANGING HEART T-LIGHT HOLDER", BIG, 2 * BIG), ("22423", "REGENCY CAKESTAND 3 TIER", 1, 2)]
    ),
}


@pytest.mark.parametrize("width", [40, 60, 72, 80, 120])
@pytest.mark.parametrize("name", TABLES)
def test_numbers_are_whole_and_what_is_left_out_is_named(
    name: str, width: int, screen: Callable[[Table, int], list[str]]
) -> None:
    table = TABLES[name]()
    lines = screen(table, width)
    # Only a single name that is wider than the terminal may be wider; the terminal itself wraps it.
    too_wide = [line for line in lines if cell_len(line) > width]
    assert all(max(map(cell_len, line.split())) > width - 20 for line in too_wide), "\n".join(lines)
    assert not (table.shorten and too_wide)
    shown = "\n".join(lines)
    # The note may take several lines.
    note = re.search(r"Left out: (.*)\. A terminal of (\d+) columns(?: or --json)? shows all\.$", " ".join(lines))
    missing = note[1].split(", ") if note else []
    assert set(missing) <= {column.title for column in table.columns}
    for index, column in enumerate(table.columns):
        if column.title not in missing:
            for row in table.rows:
                numbers = [row[index]] if column.right else [word for word in row[index].split() if is_number(word)]
                for number in filter(None, numbers):
                    assert re.search(rf"(?<![\d,.]){re.escape(number)}(?![\d,.]\d)", shown), f"{number} in\n{shown}"
    if note:
        assert int(note[2]) > width
        assert "Left out" not in "\n".join(screen(table, int(note[2])))
    assert {column.title for column in table.columns if column.spare < 0}.isdisjoint(missing)


@pytest.mark.parametrize("width", [40, 60, 72, 80, 120])
@pytest.mark.parametrize("name", [name for name in TABLES if "--watch" not in name])
def test_names_are_whole(name: str, width: int, screen: Callable[[Table, int], list[str]]) -> None:
    table = TABLES[name]()
    lines = screen(table, width)
    shown_words = set(" ".join(lines).split())
    note = re.search(r"Left out: (.*)\. A terminal", " ".join(lines))
    missing = note[1].split(", ") if note else []
    for index, column in enumerate(table.columns):
        if column.title not in missing and not column.breaks:
            words = {word for row in table.rows for word in row[index].split() if not is_number(word)}
            assert words <= shown_words, "\n".join(lines)


def test_rows_that_do_not_fit_are_printed_as_blocks(
    screen: Callable[[Table, int], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Screen())  # pytest replaces stdout after the fixture has
    long_topic = "orders-of-the-european-warehouse"
    rows = [
        Lag("billing", long_topic, 0, 3, 1200, "", 0, 4000),
        Lag("billing", long_topic, 1, None, 7, "reader@10.0.0.1", 0, None),
        Lag("shipping", long_topic, 0, 5, 1200, "", 0, 4000),
        Lag("shipping", "clicks", 0, 5, 6, "", 0, 1000),
    ]
    assert screen(lag_table(rows), 40) == [
        "Group billing",
        f"Topic {long_topic}",
        "  Partition 0  Committed 3  End 1,200",
        "    Lag 1,197  Behind 4 s",
        "  Partition 1  Committed -  End 7",
        "    Lag -  Behind -",
        "    Read by reader@10.0.0.1",
        "Group shipping",
        f"Topic {long_topic}",
        "  Partition 0  Committed 5  End 1,200",
        "    Lag 1,195  Behind 4 s",
        "Group shipping",
        "Topic clicks",
        "  Partition 0  Committed 5  End 6",
        "    Lag 1  Behind 1 s",
        "all",
        "  Lag 2,393+  Behind 4 s",
    ]
    settings = Table([Column("Setting"), Column("Value", spare=-1)], [("a.name.that.is.long", ""), ("b", "1")])
    assert screen(settings, 20) == ["Setting a.name.that.is.long", '  Value ""', "Setting b", "  Value 1"]


def test_only_a_column_that_breaks_splits_words(screen: Callable[[Table, int], list[str]]) -> None:
    rows = [("a-name-of-20-letters", "/a/path/of/20/letter")]
    lines = screen(Table([Column("Name"), Column("Value", breaks=True)], rows), 32)
    assert [line.split() for line in lines[2:]] == [["a-name-of-20-letters", "/a/path/of"], ["/20/letter"]]
    lines = screen(Table([Column("Name", breaks=True), Column("Value")], rows), 32)
    assert [line.split() for line in lines[2:]] == [["a-name-of-", "/a/path/of/20/letter"], ["20-letters"]]


def test_watched_names_are_whole_if_they_fit_without_offsets(screen: Callable[[Table, int], list[str]]) -> None:
    group, topic = "billing-service-alpha", "orders-of-the-shop-north"
    watched = [Lag(group, topic, 0, 1_000_000, 1_000_500, "", 0, None), Lag("b", "c", 0, 5, 6, "", 0, None)]

    def lines(width: int) -> list[str]:
        return screen(watch_table(watched, {}, width, 40), width)

    assert "Committed" in " ".join(lines(121))
    assert "Left out" not in " ".join(lines(121))
    without_offsets = lines(101)
    assert without_offsets[2].split()[:3] == [group, topic, "0"]
    assert without_offsets[0].split()[2:] == ["Partition", "Lag", "Behind", "Read/s", "Written/s", "Done", "in"]
    assert without_offsets[-1] == "Left out: Committed, End. A terminal of 121 columns or --json shows all."
    shortened = lines(80)
    assert re.search("[…~]", shortened[2])
    assert shortened[0].split()[2:] == without_offsets[0].split()[2:]
    assert shortened[-1] == without_offsets[-1]


def test_what_all_rows_have_in_common_stands_above_before_anything_is_left_out(
    screen: Callable[[Table, int], list[str]],
) -> None:
    columns = [Column("Topic"), Column("Leader", True), Column("Next offset", True), Column("Read by", spare=1)]
    rows = [("orders", "1", f"123456{number}", f"client-{number}") for number in range(2)]
    table = Table(columns, rows)
    lines = screen(table, 60)
    assert lines[0].split() == ["Topic", "Leader", "Next", "offset", "Read", "by"]
    lines = screen(table, 33)  # two lines of titles, and nothing else gives way
    assert [lines[0].split(), lines[1].split()] == [["Next"], ["Topic", "Leader", "offset", "Read", "by"]]
    lines = screen(table, 28)
    assert lines[0] == "Topic orders"
    assert lines[2].split() == ["Leader", "offset", "Read", "by"]
    assert lines[-2].split() == ["1", "1234560", "client-0"]
    lines = screen(table, 20)
    assert lines[:2] == ["Topic orders", "Leader 1"]
    assert lines[-1].split() == ["1234561", "client-1"]
    lines = screen(table, 14)
    assert lines[:2] == ["Topic orders", "Leader 1"]
    assert [line.strip() for line in lines[4:6]] == ["1234560", "1234561"]
    note = " ".join(line.strip() for line in lines[6:])
    assert note == "Left out: Read by. A terminal of 33 columns or --json shows all."


WORDS = st.text(st.sampled_from("ab漢 1,"), max_size=30)


@given(
    st.integers(1, 6).flatmap(
        lambda columns: st.tuples(
            st.lists(st.tuples(WORDS, st.booleans(), st.integers(-1, 5)), min_size=columns, max_size=columns),
            st.lists(st.lists(WORDS, min_size=columns, max_size=columns), max_size=4),
        )
    ),
    st.booleans(),
    st.integers(1, 120),
)
def test_a_table_fits_or_only_what_must_stay_is_left(
    drawn: tuple[list[tuple[str, bool, int]], list[list[str]]], shorten: bool, width: int
) -> None:
    titles, rows = drawn
    columns = [Column(title, right, spare=spare) for title, right, spare in titles]
    table = Table(columns, rows, shorten=shorten)
    fitted = fit(table, width)
    assert sorted(fitted.shown + fitted.above_table + fitted.left_out) == list(range(len(columns)))
    assert total_width(fitted.widths) <= width or fitted.as_blocks or (shorten and len(fitted.shown) == 1)
    assert all(w >= column_width_min(table, index) for w, index in zip(fitted.widths, fitted.shown, strict=True))
    assert not (fitted.as_blocks and (fitted.above_table or fitted.left_out))
    changed = fitted.as_blocks or bool(fitted.above_table or fitted.left_out)
    assert changed == (fitted.full_width > width and (len(columns) > 1 or not shorten))
    if not shorten:
        assert all(columns[index].spare > 0 for index in fitted.left_out)
    assert not (shorten and fitted.above_table)


def test_the_widest_give_way_to_the_same_width() -> None:
    assert column_widths([8, 3, 8], [30, 3, 10], 40) == [23, 3, 10]
    assert column_widths([8, 3, 8], [30, 3, 20], 33) == [13, 3, 13]
    assert column_widths([8, 3, 8], [30, 3, 20], 10) == [8, 3, 8]


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("7", True),
        ("1,234.5", True),
        ("-1", True),
        ("0-3,7", True),
        ("(9)", True),
        ("a-1", False),
        ("9,223,372,036,854,775,807)", True),
        ("1" * 28, False),
    ],
)
def test_what_is_a_number_in_a_text(word: str, number: bool) -> None:
    assert is_number(word) == number
