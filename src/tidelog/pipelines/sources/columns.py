"""Check whether the columns of a table have changed since a stream began to read the table."""

from typing import TYPE_CHECKING

from tidelog.pipelines.declarations import TemporaryError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def check_columns(subject: str, read: "StructType", present: "StructType", *, by_position: bool = False) -> None:
    """Raise TemporaryError if `read`, the columns of a stream, differ from `present`, the columns of its table.
    Nullability is not compared. `by_position`: another order of the columns is a change, too.

    The columns of a stream are fixed when it starts. Without this check, the stream would leave out a new column, and
    read a removed column as null. When the pipeline starts again after this error, it repeats the micro-batch with the
    columns of the newest version of the table. So `present` must be the columns of the newest version, even if the
    micro-batch ends with an older version. Otherwise the error could appear again after each start.
    """
    before = {field.name: field.dataType.simpleString() for field in read.fields}
    now = {field.name: field.dataType.simpleString() for field in present.fields}
    changes = [f"column {name} is new" for name in now if name not in before]
    changes += [f"column {name} is gone" for name in before if name not in now]
    changes += [
        f"column {name} is {now[name]} and was {kind}" for name, kind in before.items() if now.get(name, kind) != kind
    ]
    if not changes and by_position and list(before) != list(now):
        changes = ["their order is another one"]
    if changes:
        raise TemporaryError(
            f"{subject}: the columns of the table have changed: {', '.join(changes)}. The pipeline has to start again"
            " to read the present columns"
        )
