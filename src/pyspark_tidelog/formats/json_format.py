"""JSON objects, parsed by Spark's from_json.

Spark's function alone accepts too much. By default it accepts texts in single quotes: DECODE_DEFAULTS changes this. It
also ignores all bytes after the first JSON value. Therefore a value is parsed as a part of a larger document,

    {"records": [[VALUE], [{END: 1}]]}

A value that is not exactly one JSON object makes this document invalid, or gives it another shape. END is a random
name, so no value can itself contain the end of the document.
"""

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_tidelog.formats.base import (
    EMPTY_VALUE,
    NOT_UTF8,
    NULL_VALUE,
    TIME_FORMATS,
    Schema,
    TextFormat,
    missing_fields,
    nullable,
    refuse_options,
    result,
    with_defaults,
)

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

CORRUPT = "corrupt"
REFUSED_OPTIONS = ("columnnameofcorruptrecord", "mode", "multiline")
"""Options of from_json, in lower case, that would change how a corrupt value is recognised."""
DECODE_DEFAULTS = {"allowSingleQuotes": "false"}


class JsonFormat(TextFormat):
    def __init__(self, schema: Schema | None, options: Mapping[str, str] | None = None) -> None:
        super().__init__(schema)
        refuse_options(options or {}, REFUSED_OPTIONS, "from_json", "the format separates corrupt values itself")
        self._options = dict(options or {})

    def describe(self) -> str:
        return "json"

    def decode(self, value: "Column") -> "Column":
        from pyspark.sql import functions as F

        text = value.cast("string")
        end = f"end_{uuid.uuid4().hex}"
        document = F.concat(F.lit('{"records":[['), text, F.lit(f'],[{{"{end}":1}}]]}}'))
        options = with_defaults(self._options, DECODE_DEFAULTS)
        options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        parsed = F.from_json(document, self._document_schema(end), options)
        # Spark evaluates the parameter of the lambda once for each row, however often the lambda uses it.
        return F.transform(F.array(parsed), lambda document: self._result(text, document, end))[0]

    def encode(self, record: "Column") -> "Column":
        return json_text(record, self._options).cast("binary")

    def _document_schema(self, end: str) -> "StructType":
        from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

        element = StructType([*nullable(self.declared).fields, StructField(end, IntegerType())])
        records = StructField("records", ArrayType(ArrayType(element)))
        return StructType([records, StructField(CORRUPT, StringType())])

    def _result(self, text: "Column", document: "Column", end: str) -> "Column":
        from pyspark.sql import functions as F

        lists = document["records"]
        values, end_list = F.get(lists, F.lit(0)), F.get(lists, F.lit(1))
        # If a list is null, its size is null or -1.
        is_one_value = (F.size(lists) == 2) & (F.size(values) == 1)
        is_one_value &= F.coalesce(F.get(end_list, F.lit(0))[end] == 1, F.lit(False))
        first = F.get(values, F.lit(0))
        record = F.struct(*[first[name].alias(name) for name in self.declared.fieldNames()])
        trimmed = F.btrim(text, F.lit(" \t\r\n"))
        error = (
            F.when(text.isNull(), F.lit(NULL_VALUE))
            .when(~F.is_valid_utf8(text), F.lit(NOT_UTF8))
            .when(document[CORRUPT].isNull() & is_one_value & first.isNotNull(), missing_fields(record, self.declared))
            .when(trimmed == "", F.lit(EMPTY_VALUE))
            .when(trimmed.startswith("["), F.lit("the value is a JSON array, not a JSON object"))
            .when(lists.isNull() | ~is_one_value | first.isNull(), F.lit("the value is not exactly one JSON object"))
            .otherwise(self._mismatch(text, record))
        )
        return result(error, record)

    def _mismatch(self, text: "Column", record: "Column") -> "Column":
        """Return the error for an object that does not fit the schema. The error names the fields of the wrong type."""
        from pyspark.sql import functions as F

        paths = {field.name: path_of_field(field.name) for field in self.declared.fields}
        names = [
            F.when(
                record[field.name].isNull() & F.get_json_object(text, path).isNotNull(),
                F.lit(f"{field.name} is not {field.dataType.simpleString()}"),
            )
            for field in self.declared.fields
            if (path := paths[field.name]) is not None
        ]
        details = F.concat_ws(", ", *names)
        others = [name for name, path in paths.items() if path is None]
        nested = F.lit(" or ".join([*others, "a nested field"]) + " has the wrong type")
        return F.concat(F.lit("the value does not fit the schema: "), F.when(details == "", nested).otherwise(details))


def json_text(record: "Column", options: Mapping[str, str]) -> "Column":
    """Return the JSON texts of a column of structs, with microseconds in times. `options` are those of to_json."""
    from pyspark.sql import functions as F

    return F.to_json(record, with_defaults(options, TIME_FORMATS))


def path_of_field(name: str) -> str | None:
    """Return the path with which Spark's get_json_object finds a field of the outermost object; None if there is none.

    Spark knows no escapes in paths. In `$['NAME']`, NAME cannot contain a quote or a question mark. In `$.NAME`, it
    cannot contain a dot or an opening bracket. In both, a single asterisk in place of NAME means all fields.
    """
    if not name or name == "*":
        return None
    if "'" not in name and "?" not in name:
        return f"$['{name}']"
    return f"$.{name}" if not {".", "["} & set(name) else None
