"""Avro records, decoded and encoded by fastavro."""

import io
import struct
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_tidelog.errors import OptionError, SchemaError, counted
from pyspark_tidelog.formats.arrow_rows import (
    Record,
    UndecodableValue,
    decode_column,
    encode_column,
    refuse_missing_package,
)
from pyspark_tidelog.formats.avro_schema import columns_of_schema, without_other_logical_types
from pyspark_tidelog.formats.base import Format, nullable
from pyspark_tidelog.formats.registry import Registry, UnusableSchema, parsed_schema, registry_of
from pyspark_tidelog.formats.written_columns import check_columns, check_names

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

HEADER = struct.Struct(">bI")
"""Confluent's header: a zero byte, and the id of the writer's schema."""


class AvroFormat(Format):
    def __init__(
        self,
        schema: str | Mapping[str, Any] | Path | None,
        *,
        registry: "str | Path | Mapping[int, Any] | Registry | None" = None,
        subject: str | None = None,
        schema_id: int | None = None,
        header: bool | None = None,
    ) -> None:
        refuse_missing_package("fastavro", "avro")
        if schema is None and registry is None:
            raise OptionError("format avro needs a schema or a registry")
        has_header = registry is not None if header is None else header
        if subject is not None and (registry is None or schema is not None or schema_id is not None):
            raise OptionError(
                "format avro: subject has no effect, because it chooses the schema only if there is a registry and"
                " neither schema nor schema_id is set: leave subject out"
            )
        if schema_id is not None and schema is not None and not has_header:
            raise OptionError(
                "format avro: schema_id has no effect, because the schema is given and the values have no header: leave"
                " schema_id out"
            )
        self._declared_schema = schema
        self._registry = None if registry is None else registry_of(registry)
        self._subject = subject
        self._schema_id = schema_id
        self._has_header = has_header

    def describe(self) -> str:
        return "avro"

    @cached_property
    def schema(self) -> "StructType":
        return nullable(self._codec().columns)

    def written_names(self, columns: "StructType") -> list[str]:
        self._codec().check(columns)
        return list(columns.names)

    def decode(self, value: "Column") -> "Column":
        return decode_column(value, self._codec(), self.schema)

    def encode(self, record: "Column") -> "Column":
        if self._has_header and self._writer_id is None:
            raise OptionError("format avro: set schema_id, the id that is written into the header of each value")
        return encode_column(record, self._codec())

    def _codec(self) -> "AvroCodec":
        return AvroCodec(self._id_and_schema[1], self._registry, self._has_header, self._writer_id)

    @property
    def _writer_id(self) -> int | None:
        return self._id_and_schema[0]

    @cached_property
    def _id_and_schema(self) -> tuple[int | None, Any]:
        """The id that the registry has given to the schema of the columns (None if the id is not known), and this
        schema. It is the reader's schema when values are read, and the writer's schema when values are written.
        """
        if self._declared_schema is not None:
            return self._schema_id, parsed_schema(self._declared_schema)
        assert self._registry is not None
        if self._schema_id is not None:
            schema = self._registry.by_id(self._schema_id)
            if schema is None:
                raise OptionError(f"registry: there is no schema with the id {self._schema_id}")
            return self._schema_id, schema
        return self._registry.latest(self._subject)


class AvroCodec:
    """Decodes and encodes single values. Compiled schemas are not pickled, but compiled again in each worker."""

    def __init__(self, schema: Any, registry: Registry | None, has_header: bool, writer_id: int | None) -> None:
        self._schema = schema
        self._registry = registry
        self._has_header = has_header
        self._writer_id = writer_id
        self._writers: dict[int, Any] = {}
        self._checks_values = True
        """Whether fastavro checks each record before it encodes it. This is not necessary if each column has the type
        of the schema."""

    def __getstate__(self) -> dict[str, Any]:
        compiled = ("_compiled_schema", "columns")
        return {name: value for name, value in self.__dict__.items() if name not in compiled} | {"_writers": {}}

    @cached_property
    def _compiled_schema(self) -> Any:
        return _fastavro_schema(self._schema)

    @cached_property
    def columns(self) -> "StructType":
        """The columns of the schema. If every row must have a value in a column, the column is not nullable."""
        return columns_of_schema(self._compiled_schema)

    def check(self, columns: "StructType") -> None:
        self._checks_values = not check_columns(columns, self.columns)

    def decode(self, value: bytes) -> Record:
        import fastavro

        reader = self._compiled_schema
        writer, begin = self._writer_of(value) if self._has_header else (reader, 0)
        data = io.BytesIO(value)
        data.seek(begin)
        try:
            record = fastavro.schemaless_reader(data, writer, None if writer is reader else reader)
        except MemoryError:
            raise
        except Exception as error:
            # fastavro raises exceptions of many types for invalid bytes: EOFError, IndexError, UnicodeDecodeError ...
            reason = str(error) or type(error).__name__
            raise UndecodableValue(f"the value does not fit the Avro schema: {reason}") from None
        if data.tell() < len(value):
            rest = counted(len(value) - data.tell(), "byte")
            raise UndecodableValue(f"the value has {rest} after the end of the Avro record")
        if not isinstance(record, dict):
            raise UndecodableValue("the value is not an Avro record")
        return record

    def encode(self, record: Record) -> bytes:
        import fastavro
        from fastavro.validation import ValidationError

        data = io.BytesIO()
        if self._has_header:
            assert self._writer_id is not None
            data.write(HEADER.pack(0, self._writer_id))
        try:
            if self._checks_values:
                check_names(list(record), self.columns.names, ())
                fastavro.validate(record, self._compiled_schema)
            fastavro.schemaless_writer(data, self._compiled_schema, record)
        except (ValidationError, TypeError, ValueError, OverflowError) as error:
            reason = " ".join(str(error).split())
            raise SchemaError(f"a row does not fit the Avro schema, so it is not written: {reason}") from error
        return data.getvalue()

    def _writer_of(self, value: bytes) -> tuple[Any, int]:
        """Return the writer's schema, and the position after the header. The header contains the id of this schema.
        Without a registry, the id is ignored and the declared schema is returned.
        """
        if len(value) < HEADER.size or value[0] != 0:
            raise UndecodableValue("the value does not begin with the header of a schema registry")
        schema_id = HEADER.unpack_from(value)[1]
        if self._registry is None:
            return self._compiled_schema, HEADER.size
        if schema_id not in self._writers:
            try:
                schema = self._registry.by_id(schema_id)
                if schema is None:
                    raise UndecodableValue(f"the registry has no schema with the id {schema_id}")
                self._writers[schema_id] = _fastavro_schema(schema)
            except (SchemaError, UnusableSchema) as error:
                # The schema of an id never changes. So any other exception would fail the task, and also each retry.
                raise UndecodableValue(f"the schema with the id {schema_id} cannot be used: {error}") from None
        return self._writers[schema_id], HEADER.size


def _fastavro_schema(schema: Any) -> Any:
    """Return the schema as compiled by fastavro. Raises SchemaError if the schema is not valid."""
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        return fastavro.parse_schema(without_other_logical_types(schema))
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError) as error:
        raise SchemaError(f"the Avro schema is not valid: {error}") from None
