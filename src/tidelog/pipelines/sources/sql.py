"""Reads a table of a database. A stream reads the rows that are new since the last micro-batch.

The position of a stream is a value of one column: a number that grows with each new row (`incrementing`), or the time
of the last change of a row (`timestamp`). A micro-batch reads the rows whose values are greater than its start and not
greater than its end, in one task.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from tidelog.pipelines.declarations import PipelineError, SourceContext, interval_s, refused_begin
from tidelog.pipelines.sources.columns import check_columns
from tidelog.pipelines.sources.identities import TABLE, check_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlalchemy import Column, Connection, Engine, Table

    from tidelog.pipelines.sinks.sql import Sql


def load_sql(source: "Sql", context: SourceContext) -> "DataFrame":
    context.spark.dataSource.register(SqlDataSource)
    options = {
        "secretUrl": source.url,  # Spark hides the values of options whose names contain `secret`
        "secretOptions": json.dumps(dict(source.options)),
        "table": source.table,
        "column": source.incrementing or source.timestamp or "",
        "isTimestamp": str(source.timestamp is not None),
        "delayS": str(interval_s(source.delay, source.describe())),
        "rowsPerBatch": str(source.rows_per_batch),
        "begin": json.dumps(context.begin),
    }
    if not context.is_streaming:
        if context.rows_max is not None:
            options["rowsMax"] = str(context.rows_max)
        return context.spark.read.format(SqlDataSource.name()).options(**options).load()
    if not options["column"]:
        raise PipelineError(
            f"{source.describe()}: a stream needs a column that shows new rows: sql(..., incrementing='id') or "
            "sql(..., timestamp='changed_at')"
        )
    if isinstance(context.begin, int) and source.timestamp is None:
        accepted = "a stream that begins at a timestamp needs sql(..., timestamp=COLUMN)"
        raise refused_begin(source.describe(), accepted, context)
    return context.spark.readStream.format(SqlDataSource.name()).options(**options).load()


@dataclass(frozen=True)
class ValueRange(InputPartition):
    """The rows whose column is greater than `begin` and not greater than `end`. None stands for no bound."""

    begin: str | None
    end: str | None


class SqlDataSource(DataSource):
    """The class behind `format("tidelog-sql")`."""

    @classmethod
    def name(cls) -> str:
        return "tidelog-sql"

    def schema(self) -> StructType:
        return TableReader(self.options).columns()

    def reader(self, schema: StructType) -> DataSourceReader:
        return SqlReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return SqlStreamReader(self.options, schema)


class TableReader:
    """Reads one table of a database."""

    def __init__(self, options: Mapping[str, str]) -> None:
        from tidelog.pipelines.sinks.sql import Sql
        from tidelog.pipelines.sinks.sql_types import existing_table

        self.name = options["table"]
        self._limit = int(options.get("rowsMax", 0)) or None
        arguments = json.loads(options["secretOptions"])
        database = Sql(options["secretUrl"], self.name, None, None, None, "", 0, arguments)
        self.engine: Engine = database.engine()
        with database.errors(self.engine):
            table = existing_table(self.engine, self.name)
        if table is None:
            raise PipelineError(f"sql {self.name}: the database has no such table")
        self.table: Table = table
        name = options["column"]
        if name and name not in table.columns:
            raise PipelineError(
                f"sql {self.name}: there is no column {name}; there are {', '.join(table.columns.keys())}"
            )
        self.column: Column[Any] | None = table.columns[name] if name else None

    def columns(self) -> StructType:
        """Return the current columns of the table."""
        schema = StructType()
        for column in self.table.columns:
            schema = schema.add(column.name, _spark_data_type(spark_type(column)), True)
        return schema

    def rows(self, selected: ValueRange, columns: StructType) -> Iterator[tuple[Any, ...]]:
        """Yield the values of `columns`. Raises TemporaryError if the table now has other columns."""
        check_columns(f"sql {self.name}", columns, self.columns(), by_position=True)
        return self._rows(selected)

    def _rows(self, selected: ValueRange) -> Iterator[tuple[Any, ...]]:
        import sqlalchemy as sa

        dialect = self.engine.dialect.name
        statement = sa.select(*[selected_value(column, dialect).label(column.name) for column in self.table.columns])
        if self.column is not None:
            if selected.begin is not None:
                statement = statement.where(self.column > self.value(selected.begin))
            if selected.end is not None:
                statement = statement.where(self.column <= self.value(selected.end))
        statement = statement.limit(self._limit) if self._limit is not None else statement
        converters = [_to_spark(column, f"sql {self.name}") for column in self.table.columns]
        with (
            self.engine.connect().execution_options(yield_per=10_000) as connection,
            connection.execute(statement) as result,
        ):
            for row in result:
                yield tuple(convert(value) for convert, value in zip(converters, row, strict=True))

    def end_of_rows(
        self, begin: str | None, rows_max: int, before: datetime | None, last: str | None = None
    ) -> str | None:
        """Return the end of the micro-batch after `begin`: the greatest value of the column in it, as a text. Return
        None if it has no rows.

        The micro-batch has at most `rows_max` rows, except that all rows with the same value are in one micro-batch.
        `before`: leave out rows whose timestamp is not before this time. `last`: leave out rows whose value is greater.
        """
        import sqlalchemy as sa

        assert self.column is not None
        chosen = sa.select(self.column.label("position")).where(self.column.is_not(None))
        if begin is not None:
            chosen = chosen.where(self.column > self.value(begin))
        if before is not None:
            chosen = chosen.where(self.column < before)
        if last is not None:
            chosen = chosen.where(self.column <= self.value(last))
        first = chosen.order_by(self.column).limit(rows_max).subquery()
        with self.engine.connect() as connection:
            value = connection.execute(sa.select(sa.func.max(first.c.position))).scalar_one()
        return None if value is None else self.text(value)

    def latest(self) -> str | None:
        import sqlalchemy as sa

        assert self.column is not None
        with self.engine.connect() as connection:
            value = connection.execute(sa.select(sa.func.max(self.column))).scalar_one()
        return None if value is None else self.text(value)

    def now(self) -> datetime:
        """Return the time of the database's clock. It has a time zone only if the timestamp column has one; without a
        time zone, it is in UTC.
        """
        with self.engine.connect() as connection:
            return self._now(connection)

    def _now(self, connection: "Connection") -> datetime:
        import sqlalchemy as sa

        dialect = self.engine.dialect.name
        if dialect == "postgresql":
            now = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
            assert isinstance(now, datetime)
            has_zone = self.column is not None and bool(getattr(self.column.type, "timezone", False))
            return now if has_zone else now.astimezone(UTC).replace(tzinfo=None)
        if dialect in {"mysql", "mariadb"}:
            value = connection.execute(sa.text("SELECT UTC_TIMESTAMP(6)")).scalar_one()
        else:
            value = connection.execute(sa.text("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')")).scalar_one()
        return value if isinstance(value, datetime) else datetime.fromisoformat(str(value))

    def text(self, value: Any) -> str:
        """Convert a value of the column to the text that an offset of the stream contains."""
        if isinstance(value, datetime | date):
            return value.isoformat()
        return str(value)

    def value(self, text: str) -> Any:
        """Convert the text in an offset of the stream back to a value of the column."""
        import sqlalchemy as sa

        assert self.column is not None
        if isinstance(self.column.type, sa.DateTime | sa.TIMESTAMP):
            return datetime.fromisoformat(text)
        if isinstance(self.column.type, sa.Date):
            return date.fromisoformat(text)
        if isinstance(self.column.type, sa.Integer):
            return int(text)
        if isinstance(self.column.type, sa.Numeric):
            return Decimal(text)
        return text


class SqlReader(DataSourceReader):
    """Reads all rows of a table."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._columns = schema
        self._options = {name: options[name] for name in OPTION_NAMES if name in options}

    def partitions(self) -> list[InputPartition]:
        return [ValueRange(None, None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, ValueRange)
        return TableReader(self._options).rows(partition, self._columns)


class SqlStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows that are new since the last micro-batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._columns = schema
        self._options = {name: options[name] for name in OPTION_NAMES if name in options}
        self._begin = json.loads(options["begin"])
        self._is_timestamp = options["isTimestamp"] == "True"
        self._rows_max = int(options["rowsPerBatch"])
        self._identity = f"{self._options['table']}.{self._options['column']}"
        """The table and the column whose values are positions."""
        self._target: str | None = None
        self._has_target = False
        self._reader: TableReader | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant. The first call of `latestOffset` decides where the query begins, and returns this position
        as `begin`.
        """
        return {}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._table().end_of_rows(None, MANY_ROWS, self._before())
        self._has_target = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        check_table(f"sql {self._options['table']}", start, self._identity)
        begin = start["value"] if start else self._begin_value()
        end = None
        if self._target is not None or not self._has_target:
            # If rows have been deleted, the target may be before `begin`. There are then no rows between the two:
            # `end` is None, and the stream stays at `begin`.
            end = self._table().end_of_rows(begin, self._rows_max, self._before(), self._target)
        if end is None or (begin is not None and end == begin):
            return start or {"begin": begin, "value": begin, TABLE: self._identity}
        return ({} if start else {"begin": begin}) | {"value": end, TABLE: self._identity}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        check_table(f"sql {self._options['table']}", end, self._identity)
        begin = start["value"] if start else end["begin"]
        return [] if end["value"] is None or begin == end["value"] else [ValueRange(begin, end["value"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, ValueRange)
        return TableReader(self._options).rows(partition, self._columns)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the table reader and its connection: each task opens its own."""
        return vars(self) | {"_reader": None}

    def _table(self) -> TableReader:
        if self._reader is None:
            self._reader = TableReader(self._options)
        return self._reader

    def _begin_value(self) -> str | None:
        if self._begin == "latest":
            return self._table().latest()
        if isinstance(self._begin, int):
            begin = datetime.fromtimestamp(self._begin / 1000, UTC) - timedelta(microseconds=1)
            has_zone = bool(getattr(self._table().table.columns[self._options["column"]].type, "timezone", False))
            return (begin if has_zone else begin.replace(tzinfo=None)).isoformat()
        return None

    def _before(self) -> datetime | None:
        if not self._is_timestamp:
            return None
        return self._table().now() - timedelta(seconds=float(self._options["delayS"]))


OPTION_NAMES = (
    "secretUrl", "secretOptions", "table", "column", "isTimestamp", "delayS", "rowsPerBatch", "rowsMax",
)  # fmt: skip
"""The options that a reader keeps, on the driver and in the executors."""
MANY_ROWS = 2**62
"""A limit of rows that no table reaches."""
MANY_DIGITS = Context(prec=1000)
"""For calculations with up to 1,000 digits. Spark's decimals have at most 38."""
SPARK_TYPES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "date": DateType(),
    "binary": BinaryType(),
    "string": StringType(),
}


def spark_type(column: "Column[Any]") -> str:
    """Return Spark's type for a column of a database, as a name. A type without a counterpart is read as a text."""
    import sqlalchemy as sa

    kind = column.type
    if isinstance(kind, sa.Boolean):
        return "boolean"
    if isinstance(kind, sa.SmallInteger):
        return "int"
    if isinstance(kind, sa.BigInteger):
        return "bigint"
    if isinstance(kind, sa.Integer):
        # MariaDB and MySQL store a boolean as TINYINT(1).
        if str(kind).startswith("TINYINT") and getattr(kind, "display_width", None) == 1:
            return "boolean"
        return "bigint"
    if isinstance(kind, sa.Float):
        return "double"
    if isinstance(kind, sa.Numeric):
        # A column without a precision may hold numbers of any length. Spark's decimals have at most 38 digits.
        precision, scale = kind.precision or 0, kind.scale or 0
        return f"decimal({precision},{scale})" if 0 <= scale <= precision and 0 < precision <= 38 else "string"
    if isinstance(kind, sa.DateTime | sa.TIMESTAMP):
        return "timestamp"
    if isinstance(kind, sa.Date):
        return "date"
    if isinstance(kind, sa.LargeBinary | sa.types._Binary):
        return "binary"
    return "string"


def _spark_data_type(name: str) -> DataType:
    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", name):
        return DecimalType(int(found[1]), int(found[2]))
    return SPARK_TYPES[name]


def selected_value(column: "Column[Any]", dialect: str) -> Any:
    """Return the expression that selects a column without a change of its value: JSON as the text that is stored, an
    array of PostgreSQL as JSON, and a number of SQLite as it is stored.
    """
    import sqlalchemy as sa

    kind = column.type
    if isinstance(kind, sa.JSON):
        return sa.cast(column, sa.Text()) if dialect == "postgresql" else sa.type_coerce(column, sa.Text())
    if isinstance(kind, sa.ARRAY):
        return sa.cast(sa.func.to_json(column), sa.Text())
    if dialect == "sqlite" and isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float):
        return sa.type_coerce(column, sa.Text())  # SQLAlchemy would round it to 10 digits after the point
    return column


def _to_spark(column: "Column[Any]", source: str) -> Any:
    """Return a function that converts a value of the database to a value for Spark. It raises PipelineError, which
    begins with `source`, for a value that Spark would change.
    """
    kind = spark_type(column)
    if kind == "boolean":
        return lambda value: None if value is None else bool(value)
    if kind == "timestamp":
        # A database's time without a time zone is UTC.
        return lambda value: value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value
    if kind == "double":
        return lambda value: None if value is None else float(value)
    if kind == "binary":
        return lambda value: None if value is None else bytes(value)
    if kind == "string":
        return _as_text
    if kind.startswith("decimal"):
        data_type = _spark_data_type(kind)
        return lambda value: None if value is None else _decimal(value, data_type, f"{source}: column {column.name}")
    return lambda value: value


def _decimal(value: Any, data_type: Any, place: str) -> Decimal:
    """Return the value as a decimal number. Raises PipelineError for a value that Spark would change: it would make
    NaN a null, and round a value with too many digits after the point.
    """
    try:
        number = value if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation:
        number = Decimal("NaN")
    exponent = number.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= -data_type.scale:
        return number
    if not number.is_finite() or number != MANY_DIGITS.quantize(number, Decimal(1).scaleb(-data_type.scale)):
        raise PipelineError(
            f"{place} has the value {value}, which {data_type.simpleString()} cannot represent: correct the row, or"
            " read a view of the table with this column as a text"
        )
    return number


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return format(value, "f")  # not as 1E+3
    if isinstance(value, dict | list):
        return json.dumps(value, default=str)
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(bytes(value)).decode()
    return str(value)
