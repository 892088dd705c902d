"""Values that the SQL source reads without a change: numbers with many digits, JSON and arrays."""

import decimal
import json
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import sqlalchemy as sa

from sinks_harness.databases import TABLES
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sources.sql import SqlDataSource, SqlReader


def read(url: str, column: str, *values: str) -> tuple[str, list[Any]]:
    """Write the values, which are SQL, and read them. Return Spark's type, and the values."""
    table = next(TABLES)
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"create table {table} (id integer, v {column})")
        for number, value in enumerate(values):
            connection.exec_driver_sql(f"insert into {table} values ({number}, {value})")
    options = {"secretUrl": url, "secretOptions": "{}", "table": table, "column": "", "isTimestamp": "False"}
    options |= {"delayS": "0", "rowsPerBatch": "10", "begin": "null"}
    schema = SqlDataSource(options).schema()
    reader = SqlReader(options, schema)
    rows = sorted(row for part in reader.partitions() for row in reader.read(part))
    return schema["v"].dataType.simpleString(), [row[1] for row in rows]


def test_a_number_in_json_keeps_its_digits(url: str) -> None:
    text = '{"amount": 12345678901234567.89, "name": "é"}'
    assert read(url, "json", f"'{text}'", "null") == ("string", [text, None])
    if url.startswith("postgresql"):
        _, [found] = read(url, "jsonb", f"'{text}'")
        assert json.loads(found, parse_float=decimal.Decimal)["amount"] == decimal.Decimal("12345678901234567.89")


def test_a_number_without_a_scale_keeps_its_digits(url: str) -> None:
    if url.startswith("postgresql"):
        digits = "1234567890123456789012345678901234567890.12345678901234567890123"
        values = [digits, "'NaN'", "'Infinity'", "null", "1000000"]
        assert read(url, "numeric", *values) == ("string", [digits, "NaN", "Infinity", None, "1000000"])
    elif url.startswith("sqlite"):
        assert read(url, "numeric", "0.123456789012345", "7", "null") == ("string", ["0.123456789012345", "7", None])
    else:
        digits = "1234567890123456789012345678901234567890.1234567890123"
        assert read(url, "decimal(60, 13)", digits) == ("string", [digits])


def test_a_number_with_a_scale_is_a_decimal(url: str) -> None:
    kind, values = read(url, "numeric(10, 3)", "1234567.125", "-1", "null")
    assert (kind, values) == ("decimal(10,3)", [decimal.Decimal("1234567.125"), -1, None])


@pytest.mark.parametrize("value", ["1.23456", "'NaN'", "'text'"])
def test_a_number_that_does_not_fit_its_type_is_an_error(url: str, value: str) -> None:
    """SQLite keeps it, whatever the type says. Of the others, PostgreSQL alone has NaN."""
    if not (url.startswith("sqlite") or (url.startswith("postgresql") and value == "'NaN'")):
        pytest.skip("the database rounds or refuses it")
    with pytest.raises(PipelineError, match=r"^sql t\d+: column v has the value .*, which decimal\(10,3\) cannot"):
        read(url, "numeric(10, 3)", value)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("numeric[]", "'{1.5,12345678901234567.89,null}'", "[1.5,12345678901234567.89,null]"),
        ("integer[]", "'{{1,2},{3,4}}'", "[[1,2],[3,4]]"),
        ("date[]", "'{2024-01-02}'", '["2024-01-02"]'),
        ("text[]", "'{a,\"b c\"}'", '["a","b c"]'),
    ],
)
def test_an_array_is_json(url: str, column: str, value: str, text: str) -> None:
    if not url.startswith("postgresql"):
        pytest.skip("only PostgreSQL has arrays")
    assert read(url, column, value, "null") == ("string", [text, None])
