"""The contract of a format, and helpers that all formats share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union

from pyspark_tidelog.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

Schema: TypeAlias = Union[str, "StructType"]
"""A DDL string like `id bigint, price double`, or PySpark's StructType."""

NULL_VALUE = "the value is null"
EMPTY_VALUE = "the value is empty"
NOT_UTF8 = "the value is not valid UTF-8"
TIME_FORMATS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of to_json and to_csv. Without them, Spark would write times with milliseconds instead of microseconds."""


class Format(ABC):
    """Converts the bytes of a record's value into columns, and columns into bytes.

    A format only declares the conversion. It imports PySpark later, when a schema or a column is needed.
    """

    @abstractmethod
    def describe(self) -> str:
        """Return the format as one short text, such as `json`."""

    @property
    @abstractmethod
    def schema(self) -> "StructType":
        """The columns of a record. Every column may be null."""

    @abstractmethod
    def decode(self, value: "Column") -> "Column":
        """Return a column of type struct<record: `schema`, error: string>.

        Exactly one of the two fields is null: a value that cannot be decoded has no record, and `error` says why.
        """

    @abstractmethod
    def encode(self, record: "Column") -> "Column":
        """Return a binary column: each struct of the column `record`, encoded. A null struct is encoded as null."""

    def written_names(self, columns: "StructType") -> list[str]:
        """Return the names of `columns`, the columns of the rows to encode, in the order that `encode` needs.

        Raises SchemaError if the format cannot write these columns without leaving one out or changing values.
        """
        return list(columns.names)


class TextFormat(Format):
    """A format whose schema the user declares."""

    def __init__(self, schema: Schema | None) -> None:
        self._declared_schema = schema

    @property
    def has_schema(self) -> bool:
        """Whether the user has declared a schema. Only `decode` needs one."""
        return self._declared_schema is not None

    @cached_property
    def declared(self) -> "StructType":
        """The declared schema, in which `NOT NULL` marks a required field. Raises SchemaError if there is none."""
        if self._declared_schema is None:
            example = f"{self.describe()}('id bigint, price double')"
            raise SchemaError(f"reading {self.describe()} needs a schema, as in {example}; writing needs none")
        return parse_schema(self._declared_schema)

    @property
    def schema(self) -> "StructType":
        return nullable(self.declared)


def refuse_options(names: Iterable[str], refused: Container[str], function: str, reason: str) -> None:
    """Raise SchemaError if one of `names`, in lower case, is in `refused`. `names` are the options that the user gives
    to Spark's `function`.
    """
    for name in names:
        if name.lower() in refused:
            raise SchemaError(f"option {name} of {function} cannot be set: {reason}")


def with_defaults(options: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Return `options` and those entries of `defaults` whose names are not in `options`. As in Spark, the case of names
    does not matter.
    """
    set_names = {name.lower() for name in options}
    return {name: text for name, text in defaults.items() if name.lower() not in set_names} | dict(options)


def is_true(options: Mapping[str, str], name: str) -> bool:
    """Return whether the option `name` is `true`. As in Spark, the case of names and values does not matter."""
    return any(each.lower() == name.lower() and text.lower() == "true" for each, text in options.items())


class Separated(NamedTuple):
    """The two results of `decoded`."""

    records: "DataFrame"
    """The fields of each record, and the column `kafka`: a struct of the frame's columns except the decoded one."""
    corrupt: "DataFrame"
    """The rows whose value cannot be decoded: all columns of the frame, and the column `error` with the reason."""


def decoded(frame: "DataFrame", form: Format, value: str = "value") -> Separated:
    """Decode the column that the parameter `value` names, and separate the rows that cannot be decoded.

    Works with batch and streaming DataFrames. If both results of a stream are written, each is a query of its own.
    Raises SchemaError if a field of the records is named `kafka` and the frame has columns besides the decoded one.
    """
    from pyspark.sql import functions as F

    others = [name for name in frame.columns if name != value]
    if others and "kafka" in form.schema.fieldNames():
        raise SchemaError(
            "a field named kafka conflicts with the column kafka, which contains the record's origin: rename the field"
        )
    rows = frame.withColumn("decoded_value", form.decode(F.col(value)))
    origin = [F.struct(*others).alias("kafka")] if others else []
    records = rows.filter("decoded_value.error is null").select("decoded_value.record.*", *origin)
    corrupt = rows.filter("decoded_value.error is not null").select(*frame.columns, "decoded_value.error")
    return Separated(records, corrupt)


def parse_schema(schema: Schema) -> "StructType":
    """Return the schema as a StructType. A DDL string needs an active Spark session. Raises SchemaError if the
    schema is invalid or has no fields.
    """
    from pyspark.errors import ParseException
    from pyspark.sql.types import DataType, StructType

    if not isinstance(schema, (str, StructType)):
        raise SchemaError(f"a schema is a DDL string or a StructType, not {type(schema).__name__}")
    parsed: DataType | str = schema
    if isinstance(schema, str):
        try:
            parsed = StructType.fromDDL(schema)
        except ParseException as error:
            raise SchemaError(f"the schema {schema!r} is not a list of columns in SQL's notation: {error}") from None
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise SchemaError(f"the schema {schema!r} must be a list of columns, as in `id bigint, price double`")
    return parsed


def nullable(schema: "StructType") -> "StructType":
    """Return the schema with all fields, also nested ones, declared as nullable."""
    from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

    def of(kind: DataType) -> DataType:
        if isinstance(kind, StructType):
            return StructType([StructField(f.name, of(f.dataType), True, f.metadata) for f in kind.fields])
        if isinstance(kind, ArrayType):
            return ArrayType(of(kind.elementType), True)
        if isinstance(kind, MapType):
            return MapType(of(kind.keyType), of(kind.valueType), True)
        return kind

    result = of(schema)
    assert isinstance(result, StructType)
    return result


def result(error: "Column", record: "Column") -> "Column":
    """Return the column that `Format.decode` returns: the record where `error` is null, else the error."""
    from pyspark.sql import functions as F

    return F.struct(F.when(error.isNull(), record).alias("record"), error.alias("error"))


def missing_fields(record: "Column", declared: "StructType") -> "Column":
    """Return a column that contains an error for each record in which a required field, also a nested one, is null.
    For all other records, the column is null.
    """
    from pyspark.sql import functions as F

    cases = F.lit(None).cast("string")
    for name, is_missing in reversed(list(_requirements(record, declared, ""))):
        cases = F.when(is_missing, F.lit(f"{name} is required, but missing or null")).otherwise(cases)
    return cases


def _requirements(value: "Column", kind: "DataType", name: str) -> "Iterator[tuple[str, Column]]":
    """Yield the required parts of a value: the name of the part, and whether it is missing. If the value itself is
    null, none of its parts is regarded as missing.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        for field in kind.fields:
            path = f"{name}.{field.name}" if name else f"the field {field.name}"
            if not field.nullable:
                yield path, value.isNotNull() & value[field.name].isNull()
            yield from _requirements(value[field.name], field.dataType, path)
    elif isinstance(kind, ArrayType):
        yield from _element_requirements(value, kind.elementType, kind.containsNull, f"{name}[]")
    elif isinstance(kind, MapType):
        yield from _element_requirements(F.map_values(value), kind.valueType, kind.valueContainsNull, f"{name}[]")


def _element_requirements(
    values: "Column", kind: "DataType", may_be_null: bool, name: str
) -> "Iterator[tuple[str, Column]]":
    from pyspark.sql import functions as F

    if not may_be_null:
        yield name, F.exists(values, lambda value: value.isNull())
    names = [path for path, _ in _requirements(F.lit(None), kind, name)]
    for index, path in enumerate(names):
        yield path, F.exists(values, _condition(kind, name, index))


def _condition(kind: "DataType", name: str, index: int) -> "Callable[[Column], Column]":
    """Return a function. Its argument is an element, and its result says whether the part with this index in
    `_requirements` is missing in the element.
    """

    def condition(element: "Column") -> "Column":
        return list(_requirements(element, kind, name))[index][1]

    return condition
