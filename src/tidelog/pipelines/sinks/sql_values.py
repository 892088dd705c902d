"""Values that a database would change without an error: the sink converts them, or raises an error that names their
column.
"""

import json
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import Text
from sqlalchemy.types import TypeDecorator

from tidelog.pipelines.declarations import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType
    from sqlalchemy import Table

MICROSECOND_DIGITS = 6
NESTED = {"array", "map", "struct"}
TEXTS = {"string", "char", "varchar"}
TIMES = {"timestamp", "timestamp_ntz"}


class JsonText(TypeDecorator[str]):
    """The type of a JSON column in statements that contain the column's values as JSON text. The statement contains the
    text unchanged, so numbers keep all their digits.
    """

    impl = Text
    cache_ok = True

    def __init__(self, stored: Any) -> None:
        """`stored` is the column's type in the database."""
        super().__init__()
        self.stored = stored

    def bind_expression(self, bindparam: Any) -> Any:
        import sqlalchemy as sa
        from sqlalchemy.dialects import postgresql

        text = sa.type_coerce(bindparam, sa.Text())
        # Only PostgreSQL does not convert the text itself.
        return sa.cast(text, self.stored) if isinstance(self.stored, postgresql.JSON) else text


def write_json_as_text(table: "Table") -> None:
    """Let statements for `table` contain the values of its JSON columns as texts."""
    import sqlalchemy as sa

    for column in table.columns:
        if isinstance(column.type, sa.JSON):
            column.type = JsonText(column.type)


def checked_converter(
    column: "StructField", stored: Any, dialect: str, convert: Callable[[Any], Any], sink: str
) -> Callable[[Any], Any]:
    """Return a function that converts a value of `column` to a value that the database stores unchanged. The function
    uses `convert`. For a value that the database would change or cannot store, the function raises PipelineError, which
    names the column.

    `stored` is the column's type in the database.
    """
    name, place = column.dataType.typeName(), f"{sink}: column {column.name}"
    if name in NESTED:
        return lambda value: None if value is None else _with_texts_for_nan(convert(value))
    if name in TEXTS and isinstance(stored, JsonText):
        return lambda value: None if value is None else _json(value, place)
    if name in {"float", "double"} and dialect != "postgresql":
        return lambda value: None if value is None else _stored_number(value, dialect, place)
    if name in TIMES:
        return lambda value: None if value is None else _stored_time(value, convert, stored, place)
    if name == "decimal":
        return lambda value: None if value is None else _stored_decimal(convert(value), stored, dialect)
    return convert


def _with_texts_for_nan(text: str) -> str:
    """Return `text`, which Python's json module wrote. Numbers that standard JSON does not have, such as NaN, are
    replaced by strings such as "NaN".
    """
    if "NaN" not in text and "Infinity" not in text:
        return text
    return json.dumps(json.loads(text, parse_constant=str))


def _json(text: str, place: str) -> str:
    try:
        json.loads(text)
    except ValueError as error:
        raise PipelineError(
            f"{place} is JSON in the table, but a text in the rows is not JSON ({error}): use to_json in the pipeline"
        ) from None
    return text


def _stored_number(value: float, dialect: str, place: str) -> float:
    if math.isnan(value) or (math.isinf(value) and dialect != "sqlite"):
        effect = "stores as a null" if dialect == "sqlite" else "cannot store"
        raise PipelineError(f"{place} has the value {value}, which {dialect} {effect}: replace it in the pipeline")
    return value


def _stored_time(value: Any, convert: Callable[[Any], Any], stored: Any, place: str) -> Any:
    try:
        converted = convert(value)
    except (ValueError, OverflowError):
        raise PipelineError(f"{place} has a time outside of the years 1 to 9999: replace it in the pipeline") from None
    digits = _second_digits(stored)
    if converted.microsecond % 10 ** (MICROSECOND_DIGITS - digits):
        raise PipelineError(
            f"{place} has the time {converted.isoformat()}, but in the table it has {digits} digits after the second:"
            " give the column six digits in the table, as DATETIME(6), or use date_trunc in the pipeline"
        )
    return converted


def _second_digits(stored: Any) -> int:
    """Return the number of digits after the second that a column for times stores."""
    from sqlalchemy.dialects import mysql, postgresql

    if isinstance(stored, mysql.DATETIME | mysql.TIMESTAMP):
        return int(stored.fsp or 0)
    precision = stored.precision if isinstance(stored, postgresql.TIMESTAMP) else None
    return MICROSECOND_DIGITS if precision is None else int(precision)


def _stored_decimal(value: Any, stored: Any, dialect: str) -> Any:
    """Return a decimal number in a form that the database driver accepts for the column."""
    import sqlalchemy as sa

    if isinstance(stored, sa.String):
        return value if isinstance(value, str) else format(value, "f")
    return int(value) if isinstance(stored, sa.Integer) and dialect == "sqlite" else value


def named_years(rows: Iterator[Any], columns: "StructType", sink: str) -> Iterator[Any]:
    """Yield the rows. Raises PipelineError if Python cannot represent a date or time in the next row."""
    try:
        yield from rows
    except (ValueError, OverflowError) as error:
        kinds = ("date", "timestamp")
        names = [each.name for each in columns if any(kind in each.dataType.simpleString() for kind in kinds)]
        if not names:
            raise
        raise PipelineError(
            f"{sink}: a row has a date or time outside of the years 1 to 9999 in"
            f" {'column' if len(names) == 1 else 'one of the columns'} {', '.join(names)}. Python cannot represent it"
            f" ({error}): replace it in the pipeline"
        ) from error
