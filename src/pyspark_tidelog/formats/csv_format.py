"""One line of CSV, parsed by Spark's from_csv.

This module also refuses values that from_csv accepts: from_csv parses the first line and ignores the rest, and it
accepts a quoted text without its closing quote.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_tidelog.errors import SchemaError, counted
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
from pyspark_tidelog.formats.written_columns import check_names

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

CORRUPT = "__corrupt_tidelog_value__"
END = "__end_tidelog_line__"
"""Name of a field that is added to each row before it is encoded. The field is cut off the end of the line again."""
END_VALUE = "1"
REFUSED_OPTIONS = ("columnnameofcorruptrecord", "header", "linesep", "mode", "multiline", "comment")
"""Options of from_csv, in lower case, that would change how a corrupt value is recognised."""
DEFAULT_OPTIONS = {"sep": ",", "quote": '"', "escape": '"'}
"""As in RFC 4180: within a quoted field, two quotes stand for one."""
ENCODE_DEFAULTS = {**TIME_FORMATS, "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
"""Without the two options for white space, to_csv would remove blanks at the beginning and at the end of a text."""


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

        fields = record
        if self.has_schema:
            names = self.declared.fieldNames()
            # A line contains no names, so the fields must have the order of the schema. The value of `has_others`
            # depends only on the type of the struct, so Spark computes it when it plans the query.
            others = record.withField(END, F.lit(END_VALUE)).dropFields(*(f"`{n.replace('`', '``')}`" for n in names))
            has_others = F.typeof(others) != F.lit(f"struct<{END}:string>")
            message = (
                f"the schema has the columns {', '.join(names)}, but the rows also have other columns: leave out the"
                " other columns"
            )
            in_order = F.struct(*(record[name].alias(name) for name in names))
            fields = F.when(has_others, F.raise_error(message)).otherwise(in_order)
        # A null struct must stay null, and not become an empty text.
        return F.when(record.isNotNull(), csv_line(fields, self._options)).cast("binary")

    def written_names(self, columns: "StructType") -> list[str]:
        if not self.has_schema:
            return list(columns.names)
        names = self.declared.fieldNames()
        check_names(columns.names, names, names)
        return names

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


def csv_line(record: "Column", options: Mapping[str, str]) -> "Column":
    """Return the lines of CSV for a column of structs, with microseconds in times. `options` are those of to_csv.

    Spark's to_csv fails if the only field is null. So another field is added before the struct is encoded, and cut off
    the line again. Readers ignore empty lines, so an empty line is replaced by a pair of quotes.
    """
    from pyspark.sql import functions as F

    given = {name.lower(): text for name, text in options.items()}
    quote = given.get("quote", DEFAULT_OPTIONS["quote"])
    end_quote = quote if given.get("quoteall", "").lower() == "true" else ""
    end = f"{given.get('sep', given.get('delimiter', DEFAULT_OPTIONS['sep']))}{end_quote}{END_VALUE}{end_quote}"
    line = F.to_csv(record.withField(END, F.lit(END_VALUE)), with_defaults(options, ENCODE_DEFAULTS))
    line = F.left(line, F.length(line) - len(end))
    return F.when(line == "", F.lit(quote * 2)).otherwise(line)
