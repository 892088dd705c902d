"""The identity of the table that the position of a stream belongs to.

Spark stores the positions of a query's sources by their order, and not by their names. A position (a version, a
snapshot or a value) has a meaning only in the table in which it was read. So it contains the identity of this table.
"""

from collections.abc import Mapping
from typing import Any

from tidelog.pipelines.declarations import PipelineError

TABLE = "table"
"""Key of the identity in a position. Positions that an earlier version of Tidelog has stored do not have it."""


def check_table(subject: str, position: Mapping[str, Any], present: str) -> None:
    """Raise PipelineError if the position belongs to another table than the one with the identity `present`."""
    stored = position.get(TABLE, present)
    if stored != present:
        raise other_table(subject, f"{stored} and not {present}")


def other_table(subject: str, found: str) -> PipelineError:
    """Return the error of a position that belongs to another table. `found` says what shows this."""
    return PipelineError(
        f"{subject}: the position of the stream belongs to another table ({found}): either the table was removed and"
        " created again, or the declaration names another table, or the order of the pipeline's sources was changed."
        " Undo this change, or begin again with: tidelog pipeline replay NAME --from TIME"
    )
