"""Columns of existing tables that would change the values of the SQL sink: SQLite, MariaDB and PostgreSQL."""

import datetime
import decimal
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sinks_harness.databases import query
from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.sql import sql

MOMENT = datetime.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=datetime.UTC)
UTC_TIME = pa.timestamp("us", "UTC")


def kind(url: str) -> str:
    return {"sqlite": "sqlite", "mysql+pymysql": "mariadb", "postgresql+psycopg": "postgresql"}[url.partition(":")[0]]


def write(url: str, table: str, values: pa.Array, batch: int = 0) -> None:
    """Write the values as column `v`."""
    rows = Rows(pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": values}))
    opened(sql(url, table), None, query=table).write(rows, batch)


def number(text: str, precision: int) -> pa.Array:
    value = decimal.Decimal(text)
    return pa.array([value], pa.decimal128(precision, -int(value.as_tuple().exponent)))


REFUSED = {
    "numeric(10, 2)": [number("1.239", 10), pa.array([1.5]), pa.array(["1.5"]), pa.array([MOMENT], UTC_TIME)],
    "integer": [number("1.2", 10), pa.array([1.7]), pa.array(["2"]), pa.array([MOMENT], UTC_TIME)],
    "double precision": [number("123456789012345.6", 16), pa.array([2**53 + 1]), pa.array(["0.5"])],
    "date": [pa.array([MOMENT], UTC_TIME), pa.array([20240101]), pa.array(["2024-01-01"])],
    "timestamp": [pa.array([20240101]), pa.array(["2024-01-01 10:00:00"]), pa.array([True])],
    "boolean": [pa.array([0.5]), pa.array(["true"])],
}


@pytest.mark.parametrize("column", REFUSED)
def test_a_column_that_would_change_values_is_refused(url: str, table: str, column: str) -> None:
    query(url, f"create table {table} (id bigint, v {column} null)")
    for values in REFUSED[column]:
        with pytest.raises(PipelineError, match=rf"^sql {table}: column v is .* in the table and .* cast the column"):
            write(url, table, values)
    assert query(url, f"select * from {table}") == []


@pytest.mark.parametrize(
    ("column", "values", "stored"),
    [
        ("numeric(12, 4)", number("1.239", 10), decimal.Decimal("1.239")),
        ("numeric(12, 4)", pa.array([7]), 7),
        ("bigint", number("12345678", 8), 12345678),
        ("double precision", number("12345.678", 10), 12345.678),
        ("double precision", pa.array([2**31 - 1], pa.int32()), 2.0**31 - 1),
        ("varchar(100)", number("12345.678", 10), "12345.678"),
        ("varchar(100)", number("12345678901234567890.1234567890", 38), "12345678901234567890.1234567890"),
        ("timestamp", pa.array([datetime.date(2024, 1, 2)]), datetime.datetime(2024, 1, 2)),
    ],
)
def test_a_column_that_keeps_values_is_accepted(
    url: str, table: str, column: str, values: pa.Array, stored: Any
) -> None:
    query(url, f"create table {table} (id bigint, v {column} null)")
    write(url, table, values)
    [[found]] = query(url, f"select v from {table}")
    if kind(url) == "sqlite" and isinstance(stored, datetime.datetime):
        found = datetime.datetime.fromisoformat(found)
    if kind(url) == "sqlite" and isinstance(stored, decimal.Decimal):
        found = decimal.Decimal(repr(found))
    assert found == stored


def test_a_number_with_many_digits_is_refused_by_sqlite_alone(url: str, table: str) -> None:
    query(url, f"create table {table} (id bigint, v numeric(38, 10))")
    values = number("12345678901234567890.1234567890", 38)
    if kind(url) == "sqlite":
        with pytest.raises(PipelineError, match=r"column v is NUMERIC\(38, 10\) in the table and decimal\(38,10\)"):
            write(url, table, values)
    else:
        write(url, table, values)
        assert query(url, f"select v from {table}") == [(values[0].as_py(),)]


def test_narrow_columns_of_floating_point_numbers(url: str, table: str) -> None:
    if kind(url) == "sqlite":
        pytest.skip("all floating-point numbers of SQLite have 64 bits")
    for number_, column in enumerate(["real", "float(24)"] if kind(url) == "postgresql" else ["float", "double(7, 2)"]):
        name = f"{table}_{number_}"
        query(url, f"create table {name} (id bigint, v {column})")
        with pytest.raises(PipelineError, match="in the table and double in the rows"):
            write(url, name, pa.array([0.1]))


@pytest.mark.parametrize("digits", [None, 3])
def test_a_time_is_refused_if_the_column_has_fewer_digits(url: str, table: str, digits: int | None) -> None:
    if kind(url) == "sqlite":
        pytest.skip("the times of SQLite have six digits")
    names = {"mariadb": "datetime", "postgresql": "timestamp"}
    column = names[kind(url)] + (f"({digits})" if digits else "(0)" if kind(url) == "postgresql" else "")
    query(url, f"create table {table} (id bigint, v {column})")
    fits = MOMENT.replace(microsecond=123000 if digits else 0)
    write(url, table, pa.array([fits], UTC_TIME))
    for type_ in (UTC_TIME, pa.timestamp("us")):
        with pytest.raises(PipelineError, match=rf"^sql {table}: column v has the time .* {digits or 0} digits after"):
            write(url, table, pa.array([MOMENT.replace(tzinfo=None)], type_), 1)
    assert query(url, f"select v from {table}") == [(fits.replace(tzinfo=None),)]


def test_numbers_that_are_not_numbers(url: str, table: str) -> None:
    nan, infinity = float("nan"), float("inf")
    write(url, table, pa.array([1.5, None]))
    if kind(url) == "postgresql":
        write(url, table, pa.array([nan, infinity]), 1)
        assert query(url, f"select count(*) from {table} where v in ('NaN', 'Infinity')") == [(2,)]
        return
    with pytest.raises(PipelineError, match=rf"^sql {table}: column v has the value nan, which .*: replace it in the"):
        write(url, table, pa.array([nan]), 1)
    if kind(url) == "mariadb":
        with pytest.raises(PipelineError, match=r"column v has the value inf, which .* cannot store"):
            write(url, table, pa.array([infinity]), 1)
    else:
        write(url, table, pa.array([infinity]), 1)


def stored_json(url: str, table: str) -> list[str]:
    """The values of column `v` as texts."""
    texts = {"sqlite": "v", "mariadb": "v", "postgresql": "v::text"}[kind(url)]
    return [row[0] for row in query(url, f"select {texts} from {table} order by id")]


def test_nested_values_are_json(url: str, table: str) -> None:
    """JSON has no NaN; texts stand for it, as in Spark's to_json. A text that contains these words stays as it is."""
    nested = pa.struct([("d", pa.list_(pa.float64())), ("t", pa.string())])
    write(url, table, pa.array([{"d": [float("nan"), -float("inf"), 0.1], "t": "NaN"}, None], nested))
    first, second = stored_json(url, table)
    assert json.loads(first, parse_constant=pytest.fail) == {"d": ["NaN", "-Infinity", 0.1], "t": "NaN"}
    assert second is None


@pytest.mark.parametrize("column", ["json", "jsonb"])
def test_a_text_of_json_is_stored_as_json(url: str, table: str, column: str) -> None:
    """Each number keeps its digits."""
    if column == "jsonb" and kind(url) != "postgresql":
        pytest.skip("only PostgreSQL has jsonb")
    query(url, f"create table {table} (id bigint, v {column})")
    write(url, table, pa.array(['{"a": 12345678901234567.89}', "[1]", None, '"text"']))
    assert stored_json(url, table) == ['{"a": 12345678901234567.89}', "[1]", None, '"text"']
    with pytest.raises(PipelineError, match=rf"^sql {table}.*"):
        write(url, table, pa.array(["{not JSON"]), 1)


def test_an_invalid_text_of_json_names_the_column(url: str, table: str) -> None:
    if kind(url) == "mariadb":
        pytest.skip("MariaDB's JSON is a text, which the database itself checks")
    query(url, f"create table {table} (id bigint, v json)")
    with pytest.raises(PipelineError, match=rf"^sql {table}: column v is JSON in the table, but .* use to_json"):
        write(url, table, pa.array(["{not JSON"]))


class Joined(Rows):
    """Rows with two columns named `id`, as after a join."""

    @property
    def columns(self) -> list[str]:
        return ["id", "v", "id"]

    @property
    def schema(self) -> StructType:
        fields = [StructField("id", LongType()), StructField("v", StringType()), StructField("id", LongType())]
        return StructType(fields)

    def drop(self, *names: str) -> "Rows":
        return self

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Row]:
        yield Row("id", "v", "id")(1, "a", 99)


@pytest.mark.parametrize("exists", [False, True])
def test_two_columns_of_one_name_are_refused(url: str, table: str, exists: bool) -> None:
    if exists:
        query(url, f"create table {table} (id bigint, v varchar(10))")
    with pytest.raises(PipelineError, match=rf"^sql {table}: two columns have the name id, as after a join: select"):
        opened(sql(url, table), None, query=table).write(Joined(pa.table({})), 0)  # type: ignore[arg-type]
    assert table not in sa.inspect(sa.create_engine(url, poolclass=sa.NullPool)).get_table_names() or exists


def test_a_server_that_is_not_strict_cuts_off_no_text(url: str, table: str) -> None:
    if kind(url) != "mariadb":
        pytest.skip("only MariaDB and MySQL have this mode")
    [[before]] = query(url, "select @@global.sql_mode")
    query(url, "set global sql_mode = ''")
    try:
        query(url, f"create table {table} (id bigint, v varchar(3))")
        with pytest.raises(PipelineError, match="Data too long for column 'v'"):
            write(url, table, pa.array(["abcd"]))
    finally:
        query(url, f"set global sql_mode = '{before}'")


@pytest.mark.parametrize("values", [pa.array([2**62], UTC_TIME), pa.array([3_000_000], pa.int32()).view(pa.date32())])
def test_a_year_that_python_does_not_have_names_the_column(url: str, table: str, values: pa.Array) -> None:
    with pytest.raises(
        PipelineError, match=rf"^sql {table}: a row has a date or time outside of the .* in column v\. "
    ):
        write(url, table, values)


def test_a_column_that_differs_in_case_is_named(url: str, table: str) -> None:
    """No database but PostgreSQL could add such a column."""
    query(url, f"create table {table} (id bigint, v bigint)")
    with pytest.raises(PipelineError, match=rf"^sql {table}: column V of the rows differs only in case from v in the"):
        opened(sql(url, table), None, query=table).write(Rows(pa.table({"id": [1], "V": [1]})), 0)
