"""Merges the changed rows of a micro-batch into a Delta table by key.

In the driver's process, deltalake joins the changed rows with the table. So the changed rows of one micro-batch have
to fit into the driver's memory. An option of the source limits the size of a micro-batch, for example
`topic(..., options={"maxOffsetsPerTrigger": "100000"})`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.keyed_rows import DELETED, repeated

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame

REFUSED = "failed validation check"
"""Part of the error with which deltalake refuses rows that do not follow the rules of the table."""


def changes_of(rows: "DataFrame", target: "DeltaTable", key: Sequence[str], sink: str) -> "pa.Table":
    """Return the rows, which include the column DELETED, in the driver's memory. A nested column gets the type that
    it has in the table `target`, because deltalake merges only structs with equal fields.

    Raises PipelineError if deltalake cannot merge a value. Also raises it if several rows have the same key, because
    deltalake would store all of them.
    """
    import pyarrow as pa

    from tidelog.pipelines.sinks.arrow_types import in_utc

    table = rows.toArrow()
    batches = [in_utc(batch) for batch in table.to_batches()]
    changes = pa.Table.from_batches(batches) if batches else table
    for counted in changes.group_by(list(key)).aggregate([([], "count_all")]).to_pylist():
        if counted["count_all"] > 1:
            raise repeated(sink, key, [counted[name] for name in key])
    check_values(changes, sink)
    types = {field.name: field.type for field in pa.schema(target.schema().to_arrow())}
    fields = [
        field.with_type(types[field.name]) if field.name in types and pa.types.is_nested(field.type) else field
        for field in changes.schema
    ]
    return changes.cast(pa.schema(fields))


def check_values(changes: "pa.Table", sink: str) -> None:
    """Raise PipelineError for texts that are not UTF-8, and for dates and times outside of the years 1 to 9999.
    deltalake cannot merge such texts. It writes such dates and times into the table's statistics in a form that it
    cannot read again.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in changes.column_names:
        column = changes.column(name)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise PipelineError(
                f"{sink}: column {name} has a text that is not UTF-8, which deltalake cannot merge: replace the text in"
                " the pipeline, or cast the column to binary"
            ) from None
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            try:
                pc.min_max(column).as_py()
            except (OverflowError, ValueError):
                raise PipelineError(
                    f"{sink}: column {name} has a date or time outside of the years 1 to 9999, which deltalake cannot"
                    " merge: replace it in the pipeline"
                ) from None


def merge(
    table: "DeltaTable", changes: "pa.Table", key: Sequence[str], properties: "CommitProperties", sink: str
) -> None:
    """Update, insert or delete one row for each row of `changes`, in one commit. Raises PipelineError if the rows do
    not follow the rules of the table.
    """
    from deltalake.exceptions import DeltaError

    conditions = [
        # A comparison with `=` lets deltalake skip files by their statistics, but `=` is never true for nulls.
        f"(target.`{name}` {'IS NOT DISTINCT FROM' if changes.column(name).null_count else '='} source.`{name}`)"
        for name in key
    ]
    merger = table.merge(
        changes,
        " AND ".join(conditions),
        source_alias="source",
        target_alias="target",
        commit_properties=properties,
    )
    merger = merger.when_matched_delete(f"source.`{DELETED}`")
    merger = merger.when_matched_update_all(except_cols=[DELETED])
    merger = merger.when_not_matched_insert_all(f"NOT source.`{DELETED}`", except_cols=[DELETED])
    try:
        merger.execute()
    except DeltaError as error:
        if REFUSED not in str(error):
            raise
        raise PipelineError(
            f"{sink}: rows do not follow a rule of the table, which is a constraint, a computed column or a column that"
            f" must not be null: {str(error).splitlines()[0]} Correct such rows in the pipeline, or leave them out"
        ) from error
