"""One line of CSV, parsed by Spark's from_csv.

Spark's function alone accepts too much: it parses the first line and ignores the rest, and it accepts a quoted text
without its closing quote.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_tidelog.errors import SchemaError, counted
from pyspark_tidelog.formats.base import (
    EMPTY_VALUE,
    NOT_UTF8,
    NULL_VALUE,
    Schema,
    TextFormat,
    missing_fields,
    nullable,
    refuse_options,
    result,
)

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

CORRUPT = "__corrupt_tidelog_value__"
END = "__end_tidelog_line__"
"""An additional last field of a line that is encoded without a schema. It is removed from the line again."""
END_VALUE = "1"
REFUSED_OPTIONS = ("columnnameofcorruptrecord", "header", "linesep", "mode", "multiline", "comment")
"""Options of from_csv, in lower case, that would change how a corrupt value is recognised."""
DEFAULT_OPTIONS = {"sep": ",", "quote": '"', "escape": '"'}
"""As in RFC 4180: within a quoted field, two quotes stand for one."""
ENCODE_DEFAULTS = {"timestampformat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""Without this option, to_csv would write a timestamp with milliseconds instead of microseconds."""


class CsvFormat(TextFormat):
    def __init__(self, schema: Schema | None, options: Mapping[str, str] | None = None) -> None:
        super().__init__(schema)
        given = {name.lower(): text for name, text in (options or {}).items()}
        if "delimiter" in given:
            given["sep"] = given.pop("delimiter")
        self._options = DEFAULT_OPTIONS | given
        refuse_options(options or {}, REFUSED_OPTIONS, "from_csv", "each value is one line without a header")

    def describe(self) -> str:
        return "csv"

    @property
    def declared(self) -> "StructType":
        declared = super().declared
        if CORRUPT in declared.fieldNames():
            raise SchemaError(f"the field name {CORRUPT} is reserved")
        return declared

    def decode(self, value: "Column") -> "Column":
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructField, StructType

        text = value.cast("string")
        line = F.regexp_replace(text, r"\r?\n\z", "")
        schema = StructType([*nullable(self.declared).fields, StructField(CORRUPT, StringType())])
        options = self._options | {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        parsed = F.from_csv(line, schema.toDDL(), options)
        # F.transform evaluates `parsed` once for each row, even if `_result` uses it several times.
        return F.transform(F.array(parsed), lambda row: self._result(text, line, row))[0]

    def encode(self, record: "Column") -> "Column":
        from pyspark.sql import functions as F

        options = ENCODE_DEFAULTS | self._options
        # Spark's to_csv fails if the only field is null. An empty line cannot stand for the null, because `decode`
        # refuses an empty line with the error EMPTY_VALUE. So the line is a pair of quotes.
        only_null = F.lit(self._options["quote"] * 2)
        if not self.has_schema:
            # The number of fields is unknown here. With an additional field, a line never has only one field.
            line = F.to_csv(record.withField(END, F.lit(END_VALUE)), options)
            line = F.left(line, F.length(line) - len(self._end_of_line()))
            line = F.when(line == "", only_null).otherwise(line)
        else:
            line = F.to_csv(record, options)
            fields = self.declared.fieldNames()
            if len(fields) == 1:
                line = F.when(record[fields[0]].isNull(), only_null).otherwise(line)
        # to_csv alone returns an empty text for a null struct.
        return F.when(record.isNotNull(), line).cast("binary")

    def _end_of_line(self) -> str:
        """Return the text that the field END adds to a line."""
        quote = self._options["quote"] if self._options.get("quoteall", "").lower() == "true" else ""
        return f"{self._options['sep']}{quote}{END_VALUE}{quote}"

    def _result(self, text: "Column", line: "Column", row: "Column") -> "Column":
        from pyspark.sql import functions as F

        record = F.struct(*[row[name].alias(name) for name in self.declared.fieldNames()])
        outside_quotes = F.regexp_replace(line, self._quoted_field(), "$1")
        error = (
            F.when(text.isNull(), F.lit(NULL_VALUE))
            .when(~F.is_valid_utf8(text), F.lit(NOT_UTF8))
            .when(line == "", F.lit(EMPTY_VALUE))
            .when(line.contains("\n") & outside_quotes.contains("\n"), F.lit("the value has more than one line"))
            .when(
                line.contains(self._options["quote"]) & outside_quotes.rlike(self._open_quote()),
                F.lit("a quoted field has no closing quote"),
            )
            .when(row[CORRUPT].isNotNull(), self._mismatch(record))
            .otherwise(missing_fields(record, self.declared))
        )
        return result(error, record)

    def _mismatch(self, record: "Column") -> "Column":
        """Return the error for a line that does not fit the schema. The error names the null fields of `record`: Spark
        does not say which of them are empty or missing in the line, and which have a text that does not fit.
        """
        from pyspark.sql import functions as F

        names = [
            F.when(record[field.name].isNull(), F.lit(f"{field.name} ({field.dataType.simpleString()})"))
            for field in self.declared.fields
        ]
        listed = F.concat_ws(", ", *names)
        reason = F.when(listed == "", F.lit("there are too many fields")).otherwise(
            F.concat(F.lit("no value, or no valid value, in "), listed)
        )
        return F.concat(F.lit(f"the value does not fit the schema of {counted(len(names), 'field')}: "), reason)

    def _quoted_field(self) -> str:
        """Return a regular expression of Java for a complete quoted field and the separator before it."""
        quote, escape = re.escape(self._options["quote"]), re.escape(self._options["escape"])
        inside = f"{quote}{quote}|[^{quote}]" if quote == escape else f"{escape}.|[^{quote}]"
        return f"(?s)(^|{self._separator()}){quote}(?:{inside})*+{quote}"

    def _open_quote(self) -> str:
        return f"(^|{self._separator()}){re.escape(self._options['quote'])}"

    def _separator(self) -> str:
        return re.escape(self._options["sep"])
