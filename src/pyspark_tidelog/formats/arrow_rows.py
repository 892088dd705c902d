"""Make an Arrow UDF from a decoder or an encoder that handles one value at a time."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

Record: TypeAlias = dict[str, Any]


class UndecodableValue(ValueError):
    """A value cannot be decoded. `Format.decode` returns the message of this exception in the row's field `error`."""


class Codec(Protocol):
    """Decodes and encodes single values, in a worker. It is pickled with the query."""

    def decode(self, value: bytes) -> Record:
        """Return the fields of a record, as Python objects that Arrow converts to the columns' types.

        Raises UndecodableValue. Any other exception fails the task.
        """
        ...

    def check(self, columns: "StructType") -> None:
        """Called before the first record is encoded, and again when the columns of the records change. Raises
        SchemaError if `columns` cannot be encoded.
        """
        ...

    def encode(self, record: Record) -> bytes: ...


def decode_column(value: "Column", codec: Codec, schema: "StructType") -> "Column":
    """Return the column struct<record, error> for the values."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    kind = StructType([StructField("record", schema), StructField("error", StringType())])

    # Spark calls this function only once for each task, so a task converts `schema` to an Arrow type only once.
    def decode(batches: "Iterator[pa.Array]") -> "Iterator[pa.Array]":
        record_type = to_arrow_type(schema, timezone="UTC")
        for values in batches:
            yield decode_array(values, codec, record_type)

    # If a query filters by the result of a deterministic function, Spark evaluates the function again for the filter.
    decoded: Column = _arrow_udf(decode, kind).asNondeterministic()(value.cast("binary"))
    return decoded


def encode_column(record: "Column", codec: Codec) -> "Column":
    """Return a binary column that contains the encoded records."""
    from pyspark.sql.types import BinaryType

    def encode(batches: "Iterator[pa.Array]") -> "Iterator[pa.Array]":
        import pyarrow as pa
        from pyspark.sql.pandas.types import from_arrow_type

        checked: pa.DataType | None = None
        for records in batches:
            if records.type != checked:
                codec.check(cast("StructType", from_arrow_type(records.type)))
                checked = records.type
            yield pa.array(
                [None if row is None else codec.encode(row) for row in records.to_pylist(maps_as_pydicts="strict")],
                pa.binary(),
            )

    encoded: Column = _arrow_udf(encode, BinaryType())(record)
    return encoded


def decode_array(values: "pa.Array", codec: Codec, record_type: "pa.DataType") -> "pa.Array":
    """Decode the values of one Arrow array to an array of struct<record, error>."""
    import pyarrow as pa

    records: list[Record | None] = []
    errors: list[str | None] = []
    for value in values.to_pylist():
        record, error = _decode_value(codec, value)
        records.append(record)
        errors.append(error)
    return pa.StructArray.from_arrays(
        [_records_array(records, errors, record_type), pa.array(errors, pa.string())], names=["record", "error"]
    )


def _decode_value(codec: Codec, value: bytes | None) -> tuple[Record | None, str | None]:
    from pyspark_tidelog.formats.base import EMPTY_VALUE, NULL_VALUE

    if value is None:
        return None, NULL_VALUE
    try:
        return codec.decode(value), None
    except UndecodableValue as error:
        # An empty value is an error only if the codec refuses it. In Protobuf, it is a message with default values.
        return None, str(error) if value else EMPTY_VALUE


def _records_array(records: list[Record | None], errors: list[str | None], record_type: "pa.DataType") -> "pa.Array":
    """Convert the records. A record that does not fit the columns' types gets an error, and becomes null."""
    import pyarrow as pa

    try:
        return pa.array(records, record_type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        for i in _unfit(records, record_type):
            records[i], errors[i] = None, "a value of the record does not fit the type of its column"
        return pa.array(records, record_type)


def _unfit(records: Iterable[Record | None], record_type: "pa.DataType") -> Iterator[int]:
    import pyarrow as pa

    for i, record in enumerate(records):
        try:
            pa.array([record], record_type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            yield i


def _arrow_udf(function: Any, kind: "DataType") -> Any:
    """Return `function` as an Arrow UDF. It receives an iterator of arrays and returns an iterator of arrays."""
    import pyarrow as pa
    from pyspark.sql.pandas import functions

    # Spark recognises the kind of a UDF by the annotations, which must be types and not texts.
    function.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    arrow_udf: Any = functions.arrow_udf
    return arrow_udf(function, returnType=kind)


def refuse_missing_package(package: str, extra: str) -> None:
    """Raise ModuleNotFoundError with the remedy if an optional package is not installed."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise ModuleNotFoundError(f"the package {package} is missing: pip install 'tidelog[{extra}]'")
