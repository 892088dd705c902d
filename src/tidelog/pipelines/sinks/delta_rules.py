"""Finds what a Delta table demands of its rows: values that must not be null, conditions, and computed columns.

deltalake follows these rules in a merge. Files that are appended pass deltalake unread, so their rows must be checked
before, and a table with rules that cannot be checked is refused.
"""

import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from tidelog.pipelines.declarations import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Field

CONSTRAINT = "delta.constraints."
INVARIANTS = "delta.invariants"
GENERATION = "delta.generationExpression"
IDENTITY = "delta.identity."
DEFAULT = "CURRENT_DEFAULT"
MAPPING_MODE = "delta.columnMapping.mode"
"""Property of a table. Unless it is `none`, the columns have other names in the Parquet files than in the table."""


def check_rules(table: "DeltaTable", names: Collection[str], is_merged: bool, sink: str) -> None:
    """Raise PipelineError if the table has a rule that a write of rows with the columns `names` would not follow.

    `is_merged` says that deltalake merges the rows by a key, and does not only commit files.
    """
    if has_mapped_columns(table):
        raise PipelineError(f"{sink}: the table uses column mapping, which this sink cannot write")
    for name, field in _all_fields(table.schema().fields):
        rules = field.metadata or {}
        if any(rule.startswith(IDENTITY) for rule in rules):
            raise PipelineError(f"{sink}: column {name} is an identity column, whose values this sink cannot compute")
        if DEFAULT in rules and name not in names and "." not in name:
            raise PipelineError(
                f"{sink}: column {name} has the default {rules[DEFAULT]}, which this sink cannot compute: add the"
                " column to the rows"
            )
        if GENERATION in rules and not is_merged:
            rule = f"the table computes column {name} as {rules[GENERATION]}"
            raise PipelineError(f"{sink}: {rule}{_REMEDY}")
        if INVARIANTS in rules and not is_merged:
            raise PipelineError(f"{sink}: column {name} has the invariant {_invariant(rules[INVARIANTS])}{_REMEDY}")
    for setting, condition in table.metadata().configuration.items():
        if setting.startswith(CONSTRAINT) and not is_merged:
            rule = f"the table has the constraint {setting.removeprefix(CONSTRAINT)} ({condition})"
            raise PipelineError(f"{sink}: {rule}{_REMEDY}")


_REMEDY = (
    ", which is followed only in a merge: use delta(..., key=...), or remove this rule from the table and filter the"
    " rows in the pipeline"
)


def _all_fields(fields: "list[Field]", prefix: str = "") -> "Iterator[tuple[str, Field]]":
    """Yield all fields, also those of structs in structs, each with its whole name."""
    for field in fields:
        yield f"{prefix}{field.name}", field
        yield from _all_fields(getattr(field.type, "fields", []), f"{prefix}{field.name}.")


def _invariant(stored: object) -> str:
    """Return the condition of an invariant, which the table stores as {"expression": {"expression": CONDITION}}."""
    try:
        return str(json.loads(str(stored))["expression"]["expression"])
    except (ValueError, KeyError, TypeError):
        return str(stored)


def has_mapped_columns(table: "DeltaTable") -> bool:
    """Return whether columns have other names in the files than in the table."""
    protocol = table.protocol()
    # A table with reader version 2 may use column mapping. Only later reader versions have a list of features.
    may_be_mapped = protocol.min_reader_version == 2 or "columnMapping" in (protocol.reader_features or ())
    return may_be_mapped and table.metadata().configuration.get(MAPPING_MODE, "none").lower() != "none"


def required_fields(table: "DeltaTable") -> "pa.Schema | None":
    """Return the table's schema, if a column, or something inside of a column, must not be null in it."""
    import pyarrow as pa

    schema = pa.schema(table.schema().to_arrow())
    return schema if any(_has_required(field) for field in schema) else None


def _has_required(field: "pa.Field") -> bool:
    return not field.nullable or any(_has_required(each) for each in _inner_fields(field.type))


def _inner_fields(kind: "pa.DataType") -> "list[pa.Field]":
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field]
    # The keys of a map are never null.
    return [kind.item_field] if pa.types.is_map(kind) else []


def with_required_values(
    batches: "Iterator[pa.RecordBatch]", required: "pa.Schema | None", sink: str
) -> "Iterator[pa.RecordBatch]":
    """Yield the batches. Raises PipelineError if a value is null that must not be null in `required`, the columns of
    the table; None: each value may be null.
    """
    for batch in batches:
        if required is not None:
            _check_required_values(batch, required, sink)
        yield batch


def _check_required_values(batch: "pa.RecordBatch", required: "pa.Schema", sink: str) -> None:
    """Raise PipelineError if a value of `batch` is null that must not be null in `required`."""
    for field in required:
        index = batch.schema.get_field_index(field.name)
        name = _first_null(batch.column(index), field, field.name) if index >= 0 else None
        if name is not None:
            raise PipelineError(
                f"{sink}: column {name} is null in a row, but must not be null in the table: leave such rows out, or"
                " replace the null, for example with coalesce"
            )


def _first_null(values: "pa.Array", field: "pa.Field", name: str) -> str | None:
    """Return the name of a field that is null and must not be null: `field` itself or a field inside of it."""
    import pyarrow as pa

    if values.null_count and not field.nullable:
        return name
    if not _has_required(field) or not _inner_fields(field.type):
        return None
    present: Any = values.drop_null()
    found: list[tuple[pa.Array, pa.Field, str]] = []
    if pa.types.is_struct(field.type):
        for each in field.type:
            index = present.type.get_field_index(each.name)
            if index >= 0:
                found.append((present.field(index), each, f"{name}.{each.name}"))
    elif pa.types.is_map(field.type):
        begin, end = present.offsets[0].as_py(), present.offsets[-1].as_py()  # `items` ignores that an array is a slice
        found.append((present.items.slice(begin, end - begin), field.type.item_field, f"{name}.value"))
    else:
        found.append((present.flatten(), field.type.value_field, f"{name}.element"))
    return next((text for text in (_first_null(*each) for each in found) if text is not None), None)
