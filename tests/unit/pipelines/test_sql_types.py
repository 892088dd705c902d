"""Values and indexes of databases, without a server."""

import datetime
import json
import warnings
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import sqlalchemy as sa
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from sqlalchemy.dialects import mysql

from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.sql_types import check_table, converters, existing_table
from tidelog.pipelines.sources.sql import spark_type

NAIVE = datetime.datetime(2026, 1, 2, 3, 4, 5)
IN_UTC = NAIVE.astimezone(datetime.UTC).isoformat()


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (ArrayType(TimestampNTZType()), [NAIVE, None], ["2026-01-02T03:04:05", None]),
        (ArrayType(TimestampType()), [NAIVE], [IN_UTC]),
        (
            StructType().add("a", TimestampNTZType()).add("b", TimestampType()),
            Row(a=NAIVE, b=NAIVE),
            {"a": "2026-01-02T03:04:05", "b": IN_UTC},
        ),
        (MapType(TimestampType(), TimestampNTZType()), {NAIVE: NAIVE}, {IN_UTC: "2026-01-02T03:04:05"}),
        (MapType(TimestampNTZType(), IntegerType()), {NAIVE: 1}, {"2026-01-02T03:04:05": 1}),
        (
            ArrayType(StructType().add("x", MapType(BinaryType(), DateType()))),
            [Row(x={b"\x01": NAIVE.date()})],
            [{"x": {"01": "2026-01-02"}}],
        ),
        (ArrayType(DecimalType(20, 2)), [Decimal("1E+3"), None], ["1000", None]),
        (MapType(LongType(), BooleanType()), {7: True}, {"7": True}),
        (ArrayType(DoubleType()), [0.5], [0.5]),
    ],
)
def test_values_inside_of_other_values(kind: DataType, value: Any, stored: Any) -> None:
    column = StructField("c", kind)
    table = sa.Table("t", sa.MetaData(), sa.Column("c", sa.Text()))
    assert json.loads(converters([column], table, "sqlite", "sink")["c"](value)) == stored


@pytest.fixture
def engine() -> Iterator[sa.Engine]:
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("create table t (a int, b text)")
    yield engine
    engine.dispose()


COLUMNS = StructType().add("a", IntegerType()).add("b", StringType())


def check(engine: sa.Engine) -> None:
    table = existing_table(engine, "t")
    assert table is not None
    check_table(engine, table, COLUMNS, ["a"], "sql t")


@pytest.mark.parametrize("index", ["(a, lower(b))", "(a) where b is not null"])
def test_an_index_that_does_not_make_the_key_unique_is_refused(engine: sa.Engine, index: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"create unique index i on t {index}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Skipped unsupported reflection of expression-based index")
        with pytest.raises(PipelineError, match=r"no unique index on \(a\): create one"):
            check(engine)
        with engine.begin() as connection:
            connection.exec_driver_sql("create unique index j on t (a)")
        check(engine)


@pytest.mark.parametrize(
    "index",
    [
        {"column_names": ["a", None], "expressions": ["a", "lower(b)"]},
        {"column_names": ["a"], "dialect_options": {"postgresql_where": "b is not null"}},
        {"column_names": ["a"], "dialect_options": {"mysql_length": {"a": 10}}},
    ],
)
def test_indexes_of_other_databases(engine: sa.Engine, index: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As SQLAlchemy describes them. MariaDB and MySQL also list them as constraints."""
    inspector = sa.inspect(engine)
    described = index | {"name": "i", "unique": True}
    names = [name for name in index["column_names"] if name is not None]
    table = existing_table(engine, "t")
    assert table is not None
    monkeypatch.setattr(type(inspector), "get_indexes", lambda *_: [described])
    monkeypatch.setattr(type(inspector), "get_unique_constraints", lambda *_: [{"name": "i", "column_names": names}])
    with pytest.raises(PipelineError, match=r"create one without a condition, an expression or a prefix \(unlike i\)"):
        check_table(engine, table, COLUMNS, ["a"], "sql t")
    described["column_names"] = ["a"]
    described.pop("expressions", None)
    described["dialect_options"] = {"postgresql_include": ["b"], "postgresql_where": None}
    check_table(engine, table, COLUMNS, ["a"], "sql t")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (mysql.TINYINT(display_width=1), "boolean"),
        (mysql.TINYINT(display_width=4), "bigint"),
        (mysql.SMALLINT(), "int"),
        (sa.SmallInteger(), "int"),
    ],
)
def test_small_integers_of_a_database(kind: Any, expected: str) -> None:
    assert spark_type(sa.Column("c", kind)) == expected
