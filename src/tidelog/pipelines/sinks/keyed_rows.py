"""Prepares the rows of a micro-batch for a sink that stores one row for each key. The rows that delete their key are
marked. If `order_by` is set, all rows of a key except one are removed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.pipelines.declarations import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELETED = "_tidelog_deleted"
"""Name of the column that says whether a row deletes its key. The sink does not store this column."""


@dataclass(frozen=True)
class KeyedRows:
    """The options of a sink with a key."""

    key: tuple[str, ...]
    delete: str | None = None
    """A boolean column, which is not stored, or a condition in Spark's SQL: rows for which it is true delete their
    key."""
    order_by: str | None = None
    """A column. If several rows of a micro-batch have the same key, only the row with the largest value in this column
    is used."""

    def prepare(self, batch: "DataFrame", sink: str) -> "DataFrame":
        """Return the rows to write, with the additional column DELETED.

        Raises PipelineError if a column does not exist. Without `order_by`, several rows may have the same key. The
        sink finds them when it reads the rows, and raises the error that `repeated` returns. A check here would
        make Spark compute the rows twice.
        """
        from pyspark.sql import Window, functions

        named = [*self.key, *([self.order_by] if self.order_by else [])]
        for name in named:
            if name not in batch.columns:
                raise PipelineError(
                    f"{sink}: there is no column {name}, but key or order_by contains it; the rows have the columns"
                    f" {', '.join(batch.columns)}"
                )
        deleted = functions.lit(False)
        if self.delete is not None:
            deleted = functions.coalesce(functions.expr(self.delete).cast("boolean"), functions.lit(False))
        rows = batch.withColumn(DELETED, deleted)
        rows = rows.drop(*columns_named(self.delete or "", batch.columns))
        if self.order_by is not None:
            keys = [functions.col(f"`{name}`") for name in self.key]
            newest_first = Window.partitionBy(*keys).orderBy(functions.col(f"`{self.order_by}`").desc_nulls_last())
            position = f"{DELETED}_position"
            rows = rows.withColumn(position, functions.row_number().over(newest_first))
            return rows.where(f"{position} = 1").drop(position)
        return rows


def columns_named(condition: str, names: Sequence[str]) -> list[str]:
    """If `condition` (in Spark's SQL) is only the name of a column, return the elements of `names` that are this name.
    Otherwise return an empty list. As in Spark, the case does not matter, and the name may be in backticks.
    """
    text = condition.strip()
    if len(text) > 1 and text[0] == text[-1] == "`":
        text = text[1:-1].replace("``", "`")
    return [name for name in names if name.lower() == text.lower()]


def repeated(sink: str, key: Sequence[str], values: Sequence[object]) -> PipelineError:
    """Return the error for several rows of one micro-batch with the same key."""
    return PipelineError(
        f"{sink}: several rows of one micro-batch have the key {shown(key, values)}: name a column in order_by, so that"
        " only the row with the largest value in this column is used"
    )


def null_in_key(sink: str, key: Sequence[str], values: Sequence[object]) -> PipelineError:
    """Return the error for a row with a null in its key. A sink raises it if nulls in the target are not equal to each
    other.
    """
    return PipelineError(
        f"{sink}: a row has the key {shown(key, values)}, but no column of the key may be null: leave such rows out, as"
        f" in rows.where('{' and '.join(f'{name} is not null' for name in key)}'), or replace the null"
    )


def shown(key: Sequence[str], values: Sequence[object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in zip(key, values, strict=True))
