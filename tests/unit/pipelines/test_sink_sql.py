"""The SQL sink and the SQL source with real servers: SQLite, MariaDB and PostgreSQL."""

import datetime
import decimal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql.types import ArrayType, DayTimeIntervalType, StringType, StructField

from sinks_harness.databases import query
from sinks_harness.rows import Rows
from sinks_harness.trials import PlantedError, SinkTarget, check_older_checkpoint, crash_at, opened
from tidelog.pipelines.declarations import PipelineError, TemporaryError
from tidelog.pipelines.sinks.keyed_rows import DELETED
from tidelog.pipelines.sinks.sql import OpenedSql, sql
from tidelog.pipelines.sinks.sql_types import column_type
from tidelog.pipelines.sources.sql import OPTION_NAMES, SqlDataSource, SqlReader, SqlStreamReader


def ids(url: str, table: str) -> list[int]:
    return [row[0] for row in query(url, f"select id from {table} order by id")]


@pytest.fixture(autouse=True)
def _rows_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come as KeyedRows prepares them; tests/spark shows this preparation."""
    monkeypatch.setattr("tidelog.pipelines.sinks.keyed_rows.KeyedRows.prepare", lambda self, batch, sink: batch)


def test_rows_are_appended_once(url: str, table: str) -> None:
    sink = opened(sql(url, table), None, query=table)
    sink.write(Rows.numbers(0, 1500), 0)
    sink.write(Rows.numbers(0, 1500), 0)
    opened(sql(url, table), None, query=table).write(Rows.numbers(1500, 1510), 1)
    opened(sql(url, table), None, query=table).write(Rows.numbers(1500, 1510), 1)
    assert ids(url, table) == list(range(1510))
    opened(sql(url, table), None, query=f"{table}-other").write(Rows.numbers(1510, 1520), 0)
    assert ids(url, table) == list(range(1520))
    assert query(url, f"select batch from tidelog_batches where query = '{table}'") == [(1,)]


def test_an_older_checkpoint_is_refused(url: str, table: str) -> None:
    check_older_checkpoint(
        cast(
            SinkTarget,
            SimpleNamespace(
                open=lambda: opened(sql(url, table), None, query=f"{table}-query-1"), ids=lambda: ids(url, table)
            ),
        )
    )


def test_an_older_database_is_refused(url: str, table: str) -> None:
    """The checkpoint is newer: the micro-batches between the two are missing in the database."""
    sink = opened(sql(url, table), None, query=table)
    sink.write(Rows.numbers(0, 10), 7)  # the sink may get its first micro-batch late
    sink.write(Rows.numbers(10, 10), 8)
    with pytest.raises(PipelineError, match=r"up to 8, but the next one is 11, so the database is older than the"):
        opened(sql(url, table), None, query=table).write(Rows.numbers(30, 40), 11)
    assert ids(url, table) == list(range(10))
    query(url, f"update tidelog_batches set batch = 10 where query = '{table}'")
    opened(sql(url, table), None, query=table).write(Rows.numbers(30, 40), 11)
    assert ids(url, table) == [*range(10), *range(30, 40)]


@pytest.mark.parametrize(("name", "after", "visible"), [("_write_rows", True, 10), ("write", True, 30)])
def test_after_a_crash(url: str, table: str, monkeypatch: Any, name: str, after: bool, visible: int) -> None:
    """`_write_rows` ends before the commit, `write` after it."""
    sink = opened(sql(url, table), None, query=table)
    sink.write(Rows.numbers(0, 10), 0)
    with crash_at(monkeypatch, OpenedSql, name, after), pytest.raises(PlantedError):
        sink.write(Rows.numbers(10, 30), 1)
    assert ids(url, table) == list(range(visible))
    opened(sql(url, table), None, query=table).write(Rows.numbers(10, 30), 1)
    assert ids(url, table) == list(range(30))


def test_two_drivers_of_one_query(url: str, table: str) -> None:
    """Both write the same micro-batch at the same time, repeatedly."""
    sinks = [opened(sql(url, table), None, query=table) for _ in range(2)]
    sinks[0].write(Rows.numbers(0, 10), 0)
    failures: list[BaseException] = []

    def run(sink: Any, barrier: threading.Barrier) -> None:
        try:
            for batch in range(1, 6):
                barrier.wait(60)
                sink.write(Rows.numbers(10 * batch, 10 * batch + 10), batch)
        except BaseException as error:
            failures.append(error)

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=run, args=(sink, barrier)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert ids(url, table) == list(range(60))


def changes(*rows: tuple[str | None, int, str | None, bool]) -> Rows:
    codes, numbers, names, deleted = zip(*rows, strict=True)
    return Rows(
        pa.table(
            {
                "code": pa.array(codes, pa.string()),
                "id": numbers,
                "name": pa.array(names, pa.string()),
                DELETED: deleted,
            }
        )
    )


def test_rows_replace_rows_with_the_same_key(url: str, table: str) -> None:
    sink = opened(sql(url, table, key=["code", "id"], delete="gone"), None, "update", table)
    sink.write(changes(("a", 1, "x", False), ("A", 1, "y", False), ("é", 1, None, False), ("e", 1, "z", False)), 0)
    sink.write(
        changes(("a ", 1, "space", False), ("a", 1, "x2", False), ("e", 1, None, True), ("none", 1, "", True)), 1
    )
    found = query(url, f"select code, id, name from {table}")
    assert sorted(found) == [("A", 1, "y"), ("a", 1, "x2"), ("a ", 1, "space"), ("é", 1, None)]


def test_a_repeated_key_is_an_error(url: str, table: str) -> None:
    sink = opened(sql(url, table, key=["code", "id"]), None, "update", table)
    with pytest.raises(PipelineError, match="rows of one micro-batch have the key code='a', id=1: name a column"):
        sink.write(changes(("a", 1, "x", False), ("b", 1, "y", False), ("a", 1, "z", False)), 0)
    assert query(url, f"select count(*) from {table}") == [(0,)]


def test_keys_are_not_collected_where_the_rows_are_ordered(url: str, table: str) -> None:
    """`order_by` leaves one row for each key. Here the preparation is left out, so repeated keys reach the sink."""
    sink = opened(sql(url, table, key=["code", "id"], order_by="name"), None, "update", table)
    sink.write(changes(("a", 1, "x", False), ("b", 1, "y", False), ("a", 1, "z", False)), 0)
    assert sorted(query(url, f"select code, id, name from {table}")) == [("a", 1, "z"), ("b", 1, "y")]


@pytest.mark.parametrize("order_by", [None, "name"])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_null_in_a_key_is_an_error(url: str, table: str, order_by: str | None, is_deleted: bool) -> None:
    """A null is in no conflict with another null, so the row would be inserted again and never removed."""
    query(url, f"create table {table} (code varchar(20), id bigint not null, name varchar(20), unique (code, id))")
    sink = opened(sql(url, table, key=["code", "id"], order_by=order_by), None, "update", table)
    sink.write(changes(("a", 1, "x", False)), 0)
    with pytest.raises(
        PipelineError, match=r"a row has the key code=None, id=2, but no column of the key may be null: leave"
    ):
        sink.write(changes(("a", 1, "y", False), (None, 2, "z", is_deleted)), 1)
    assert query(url, f"select code, id, name from {table}") == [("a", 1, "x")]


def test_complete_replaces_all_rows(url: str, table: str) -> None:
    sink = opened(sql(url, table), None, "complete", table)
    sink.write(Rows.numbers(0, 10), 0)
    sink.write(Rows.numbers(5, 8), 1)
    sink.write(Rows.numbers(0, 10), 1)
    assert ids(url, table) == [5, 6, 7]


MOMENT = datetime.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=datetime.UTC)
VALUES = {
    "flag": (pa.bool_(), True),
    "tiny": (pa.int8(), -5),
    "small": (pa.int16(), -500),
    "number": (pa.int32(), 2**31 - 1),
    "big": (pa.int64(), 2**63 - 1),
    "ratio": (pa.float64(), 0.1),
    "price": (pa.decimal128(10, 2), decimal.Decimal("12345678.90")),
    "exact": (pa.decimal128(30, 10), decimal.Decimal("12345678901234567890.0123456789")),
    "name": (pa.string(), "Zoë 🦊 'quoted' %s :x"),
    "data": (pa.binary(), b"\x00\xff"),
    "day": (pa.date32(), datetime.date(1999, 12, 31)),
    "moment": (pa.timestamp("us", "UTC"), MOMENT),
    "tags": (pa.list_(pa.string()), ["a", None]),
}


def test_types(url: str, table: str) -> None:
    columns = {name: pa.array([value, None], kind) for name, (kind, value) in VALUES.items()}
    opened(sql(url, table), None, query=table).write(Rows(pa.table({"id": [1, 2]} | columns)), 0)
    reader = SqlReader(options(url, table), SqlDataSource(options(url, table)).schema())
    rows = list(reader.read(reader.partitions()[0]))
    names = SqlDataSource(options(url, table)).schema().names
    first, second = (dict(zip(names, row, strict=True)) for row in rows)
    assert all(value is None for name, value in second.items() if name != "id")
    for name, (_, value) in VALUES.items():
        if name == "tags":
            assert first[name] in ('["a", null]', '["a",null]')
        elif name == "exact" and url.startswith("sqlite"):
            assert decimal.Decimal(first[name]) == value
        else:
            assert first[name] == value, name


def options(url: str, table: str, **more: str) -> dict[str, str]:
    chosen = {"secretUrl": url, "secretOptions": "{}", "table": table, "column": "", "isTimestamp": "False"}
    chosen |= {"delayS": "0", "rowsPerBatch": "4", "begin": "null"} | more
    assert set(OPTION_NAMES) - {"rowsMax"} <= set(chosen)
    return chosen


def stream_reader(chosen: dict[str, str]) -> SqlStreamReader:
    return SqlStreamReader(chosen, SqlDataSource(chosen).schema())


def read_on(reader: SqlStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Return the end of the next micro-batch and the first column of its rows."""
    end = reader.latestOffset(start, None)  # type: ignore[arg-type]
    rows = [row[0] for part in reader.partitions(start, end) for row in reader.read(part)]
    replay = stream_reader(reader.__dict__["_options"] | {"begin": '"latest"'})
    assert rows == [row[0] for part in replay.partitions(start, end) for row in replay.read(part)], "a replay differs"
    return end, rows


def test_values_of_changed_columns_are_not_read_as_those_of_others(url: str, table: str) -> None:
    opened(sql(url, table), None, query=table).write(Rows.numbers(0, 3), 0)
    reader = stream_reader(options(url, table, column="id"))
    end = reader.latestOffset({}, None)  # type: ignore[arg-type]
    [planned] = reader.partitions({}, end)
    query(url, f"ALTER TABLE {table} RENAME COLUMN text TO other")
    with pytest.raises(TemporaryError, match=f"sql {table}: .*: column other is new, column text is gone"):
        next(reader.read(planned))
    restarted = stream_reader(options(url, table, column="id"))
    assert [row[1] for row in restarted.read(planned)] == ["text 0", "text 1", "text 2"]


def test_a_stream_reads_new_rows(url: str, table: str) -> None:
    opened(sql(url, table), None, query=table).write(Rows.numbers(0, 10), 0)
    reader = stream_reader(options(url, table, column="id"))
    end, rows = read_on(reader, reader.initialOffset())
    assert rows == [0, 1, 2, 3]
    end, rows = read_on(reader, end)
    assert rows == [4, 5, 6, 7]
    end, rows = read_on(reader, end)
    assert rows == [8, 9]
    assert reader.latestOffset(end, None) == end  # type: ignore[arg-type]
    query(url, f"insert into {table} values (12, 'late')")
    assert read_on(stream_reader(options(url, table, column="id")), end)[1] == [12]
    latest = stream_reader(options(url, table, column="id", begin='"latest"'))
    end, rows = read_on(latest, {})
    query(url, f"insert into {table} values (13, 'later')")
    assert (rows, read_on(latest, end)[1]) == ([], [13])
    bounded = stream_reader(options(url, table, column="id", rowsPerBatch="100"))
    bounded.prepareForTriggerAvailableNow()
    query(url, f"insert into {table} values (14, 'after the start')")
    assert read_on(bounded, {})[1] == [*range(10), 12, 13]


def test_a_stream_of_changed_rows_waits_for_the_delay(url: str, table: str) -> None:
    kind = "timestamp(6)" if not url.startswith("sqlite") else "timestamp"
    kind = "datetime(6)" if url.startswith("mysql") else kind
    query(url, f"create table {table} (id bigint primary key, changed {kind})")
    for number in range(3):
        query(url, f"insert into {table} values ({number}, '2026-01-01 00:00:0{number}.000000')")
    query(url, f"insert into {table} values (9, '2999-01-01 00:00:00.000000')")
    reader = stream_reader(options(url, table, column="changed", isTimestamp="True", delayS="5"))
    end, rows = read_on(reader, {})
    assert rows == [0, 1, 2]
    query(url, f"update {table} set changed = '2026-01-02 00:00:00.000000' where id = 1")
    assert read_on(reader, end)[1] == [1]
    later = stream_reader(
        options(url, table, column="changed", isTimestamp="True", begin=str(1767225602000))
    )  # 2026-01-01 00:00:02
    assert read_on(later, {})[1] == [2, 1] or read_on(later, {})[1] == [1, 2]


def test_what_is_wrong_is_said(url: str, table: str) -> None:
    sink = opened(sql(url, table), None, query=table)
    sink.write(Rows.numbers(0, 1), 0)
    with pytest.raises(PipelineError, match=r"the table has no column extra\. Add it: ALTER TABLE .* ADD COLUMN extra"):
        opened(sql(url, table), None, query=table).write(Rows(pa.table({"id": [1], "extra": [1]})), 1)
    with pytest.raises(PipelineError, match=r"no primary key and no unique index on \(id\): create one"):
        opened(sql(url, table, key="id"), None, "update", f"{table}-2").write(Rows.numbers(0, 1), 0)
    with pytest.raises(PipelineError, match="the output mode update needs a key"):
        opened(sql(url, table), None, "update")
    with pytest.raises(PipelineError, match="the database has no such table"):
        SqlDataSource(options(url, "no_such_table")).schema()
    with pytest.raises(PipelineError, match="there is no column nothing; there are id, text"):
        SqlDataSource(options(url, table, column="nothing")).schema()


def test_an_index_that_does_not_make_the_key_unique_is_refused(url: str, table: str) -> None:
    query(url, f"create table {table} (id integer, text varchar(50))")
    columns = "(text(3))" if url.startswith(("mysql", "mariadb")) else "(text) where id > 0"
    query(url, f"create unique index {table}_text on {table} {columns}")
    rows = Rows(pa.table({"id": [0], "text": ["a"], DELETED: [False]}))
    upsert = sql(url, table, key="text")
    with pytest.raises(
        PipelineError, match=rf"unique index on \(text\): create one without .* \(unlike {table}_text\)"
    ):
        opened(upsert, None, "update", query=table).write(rows, 0)
    query(url, f"create unique index {table}_whole on {table} (text)")
    if url.startswith(("mysql", "mariadb")):  # they would replace a row that is equal in any unique index
        query(url, f"drop index {table}_text on {table}")
    opened(upsert, None, "update", query=table).write(rows, 0)
    assert ids(url, table) == [0]


def test_errors_contain_no_secret() -> None:
    with pytest.raises(PipelineError, match=r"sql t at postgresql\+psycopg://user:\*\*\*@127.0.0.1:1/x") as raised:
        opened(sql("postgresql+psycopg://user:hunter2@127.0.0.1:1/x", "t"), None)
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(sql("postgresql+psycopg://user:hunter2@127.0.0.1:1/x", "t"))
    with pytest.raises(PipelineError, match="the URL of the database is wrong"):
        opened(sql("not a url", "t"), None)


def test_a_type_that_no_database_has_is_named_with_its_column() -> None:
    column = StructField("seen", ArrayType(StringType()))
    assert isinstance(column_type(column, "sqlite", False, ""), sa.JSON)
    with pytest.raises(
        PipelineError, match=r"column age has the type interval .*, which the database cannot store: cast"
    ):
        column_type(StructField("age", DayTimeIntervalType()), "sqlite", False, "")


def test_a_bounded_query_does_not_go_back_if_rows_were_deleted(url: str, table: str) -> None:
    opened(sql(url, table), None, query=table).write(Rows.numbers(0, 10), 0)
    end, rows = read_on(stream_reader(options(url, table, column="id", rowsPerBatch="100")), {})
    assert rows == list(range(10))
    query(url, f"delete from {table} where id > 5")
    bounded = stream_reader(options(url, table, column="id"))
    bounded.prepareForTriggerAvailableNow()
    query(url, f"insert into {table} values (12, 'after the start')")
    assert read_on(bounded, end) == (end, [])
    assert read_on(stream_reader(options(url, table, column="id")), end)[1] == [12]


@pytest.fixture
def far_from_utc(url: str) -> Iterator[str]:
    """A server whose sessions have another time zone than UTC."""
    settings = {
        "mysql+pymysql": ("set global time_zone = '-05:00'", "set global time_zone = 'SYSTEM'"),
        "postgresql+psycopg": (
            "alter role current_user set timezone = 'America/New_York'",
            "alter role current_user reset timezone",
        ),
    }
    if url.startswith("sqlite"):
        pytest.skip("SQLite has no time zones")
    change, restore = settings[url.partition(":")[0]]
    query(url, change)
    try:
        yield url
    finally:
        query(url, restore)


@pytest.mark.parametrize("kind", ["timestamp", "other"])
def test_the_time_zone_of_the_server_changes_no_time(far_from_utc: str, table: str, kind: str) -> None:
    """Both servers have a type for a moment, and one for a time without a time zone, which is then in UTC."""
    url = far_from_utc
    is_postgresql = url.startswith("postgresql")
    column = {"timestamp": "timestamp(6)", "other": "timestamptz" if is_postgresql else "datetime(6)"}[kind]
    query(url, f"create table {table} (id bigint primary key, moment {column} null)")
    rows = Rows(pa.table({"id": [1], "moment": pa.array([MOMENT], pa.timestamp("us", "UTC"))}))
    opened(sql(url, table), None, query=table).write(rows, 0)
    reader = SqlReader(options(url, table), SqlDataSource(options(url, table)).schema())
    assert list(reader.read(reader.partitions()[0])) == [(1, MOMENT)]
    as_utc = "moment at time zone 'UTC'" if is_postgresql else "convert_tz(moment, '-05:00', '+00:00')"
    converts = (column == "timestamptz") if is_postgresql else (column == "timestamp(6)")
    assert query(url, f"select {as_utc if converts else 'moment'} from {table}") == [(MOMENT.replace(tzinfo=None),)]


def test_the_delay_is_kept_whatever_the_time_zone_of_the_server_is(far_from_utc: str, table: str) -> None:
    url = far_from_utc
    query(url, f"create table {table} (id bigint primary key, changed timestamp(6) default current_timestamp(6))")
    now = "now() at time zone 'UTC'" if url.startswith("postgresql") else "current_timestamp(6)"
    query(url, f"insert into {table} values (1, {now})")
    waiting = stream_reader(options(url, table, column="changed", isTimestamp="True", delayS="3600"))
    assert read_on(waiting, {})[1] == []
    at_once = stream_reader(options(url, table, column="changed", isTimestamp="True", delayS="0"))
    assert read_on(at_once, {})[1] == [1]


def keyed(**columns: list[Any]) -> Rows:
    """Rows of a sink with a key: none of them deletes a row."""
    return Rows(pa.table(columns | {DELETED: [False] * len(next(iter(columns.values())))}))


@pytest.mark.parametrize(
    ("definition", "place"),
    [
        ("id bigint primary key, email varchar(50), unique at_once (email)", "at_once on email,"),
        ("n bigint auto_increment primary key, id bigint, email varchar(50) unique, unique (id)", "email on email,"),
        ("id bigint unique, email varchar(50) primary key", "PRIMARY on email,"),
        ("id bigint, email varchar(50), primary key (id), unique u (email(1))", r"u on email \(first 1\)"),
        ("id bigint primary key, email varchar(50), shop int default 7, unique u (shop, email)", "u on shop, email,"),
        ("id bigint primary key, email varchar(50), low varchar(50) as (lower(email)) stored unique", "low on low,"),
    ],
)
def test_a_row_does_not_replace_a_row_with_another_key(url: str, table: str, definition: str, place: str) -> None:
    """MariaDB replaces a row that is equal in any unique index. The other databases report an error themselves."""
    if not url.startswith("mysql"):
        pytest.skip("only MariaDB and MySQL replace such rows")
    query(url, f"create table {table} ({definition})")
    sink = opened(sql(url, table, key="id"), None, "update", table)
    with pytest.raises(
        PipelineError, match=rf"^sql {table}: rows with different keys \(id\) .* unique index {place}.*DROP INDEX"
    ):
        sink.write(keyed(id=[1, 2], email=["a", "a"]), 0)
    assert query(url, f"select count(*) from {table}") == [(0,)]


@pytest.mark.parametrize(
    "definition",
    [
        "number bigint auto_increment primary key, id bigint, email varchar(50), unique (id)",
        "id bigint primary key, email varchar(50), unique (email, id)",
        "id bigint primary key, email varchar(50), shop int, unique (shop, email)",
        "id bigint primary key, email varchar(50), token char(36) default (uuid()), unique (token, email)",
    ],
)
def test_a_unique_index_that_no_two_keys_share_is_accepted(url: str, table: str, definition: str) -> None:
    if not url.startswith("mysql"):
        pytest.skip("only MariaDB and MySQL look at other unique indexes")
    query(url, f"create table {table} ({definition})")
    opened(sql(url, table, key="id"), None, "update", table).write(keyed(id=[1, 2], email=["a", "a"]), 0)
    assert query(url, f"select id, email from {table} order by id") == [(1, "a"), (2, "a")]


def test_an_index_on_the_beginning_of_a_key_is_refused(url: str, table: str) -> None:
    if not url.startswith("mysql"):
        pytest.skip("only MariaDB and MySQL have indexes on the beginning of a value")
    query(url, f"create table {table} (name varchar(50), n int, primary key (name(2)))")
    with pytest.raises(PipelineError, match=r"unique index PRIMARY on name \(first 2\)"):
        opened(sql(url, table, key="name"), None, "update", table).write(keyed(name=["abc", "abd"], n=[1, 2]), 0)
