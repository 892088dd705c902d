"""Formats of the values of records: JSON, CSV, Avro and Protobuf.

A format decodes a column of binary values to a column struct<record, error>, and encodes structs to binary values.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_tidelog.formats.base import Format, Schema, Separated, decoded

if TYPE_CHECKING:
    from pyspark_tidelog.formats.registry import Registry

__all__ = ["Format", "Separated", "avro", "csv", "decoded", "json", "protobuf"]


def json(schema: Schema | None = None, options: Mapping[str, str] | None = None) -> Format:
    """Return the format of JSON objects, one in each value.

    `schema` is a DDL string or a StructType. A field that is declared NOT NULL is required. `options` are those of
    Spark's from_json and to_json, for example `timestampFormat`. Only reading needs a schema.
    """
    from pyspark_tidelog.formats.json_format import JsonFormat

    return JsonFormat(schema, options)


def csv(schema: Schema | None = None, options: Mapping[str, str] | None = None) -> Format:
    """Return the format of CSV, one line in each value, without a header.

    `schema` is a DDL string or a StructType. A field that is declared NOT NULL is required. `options` are those of
    Spark's from_csv and to_csv, for example `sep`. Only reading needs a schema.
    """
    from pyspark_tidelog.formats.csv_format import CsvFormat

    return CsvFormat(schema, options)


def avro(
    schema: str | Mapping[str, Any] | Path | None = None,
    *,
    registry: "str | Path | Mapping[int, Any] | Registry | None" = None,
    subject: str | None = None,
    schema_id: int | None = None,
    header: bool | None = None,
) -> Format:
    """Return the format of Avro, one record in each value.

    `schema` is the schema with which the query reads or writes: a JSON text, a dictionary, or the Path of a file.
    `registry` is the URL of a schema registry, or a file or dictionary that maps schema ids to schemas. With a
    registry, each value begins with Confluent's header (a zero byte and the id of the writer's schema in four bytes),
    and a record is converted from the writer's schema to `schema`. Without `schema`, the query uses the schema with
    the id `schema_id`. Without this id, it uses the latest schema of `subject`, or the only schema of the file or
    dictionary. If `header` is not None, it says whether values have the header, with or without a registry. The header
    of written values contains the id of the schema that the query uses. If `schema` is given, this id is `schema_id`.
    """
    from pyspark_tidelog.formats.avro_format import AvroFormat

    return AvroFormat(schema, registry=registry, subject=subject, schema_id=schema_id, header=header)


def protobuf(message: Any, descriptors: str | Path | bytes | None = None, *, header: bool = False) -> Format:
    """Return the format of Protobuf, one message in each value.

    `message` is a generated class, or the full name of a message in `descriptors`. `descriptors` is a file descriptor
    set (`protoc --descriptor_set_out --include_imports`) as a path or as bytes. With `header`, values can be read but
    not written, and each value begins with Confluent's header: a zero byte, the id of a schema and the indexes of the
    message in its file.
    """
    from pyspark_tidelog.formats.protobuf_format import ProtobufFormat

    return ProtobufFormat(message, descriptors, header=header)
