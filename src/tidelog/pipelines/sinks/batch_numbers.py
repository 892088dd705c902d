"""Compares the number of a micro-batch with the newest number that a target has stored for the query."""

from tidelog.pipelines.declarations import PipelineError


def is_written(sink: str, query: str, stored: int | None, batch_id: int) -> bool:
    """Return whether the target contains the micro-batch. `stored` is the newest number that the target has for the
    query, or None. `sink` is the name of the sink in error messages.

    Spark repeats only its newest micro-batch. So a target with a higher number means that the checkpoint is older than
    the target: an older copy of the checkpoint was restored, or another run of the same query has overtaken this one.
    Raises PipelineError in this case. If the micro-batch were skipped, its rows would be lost, because the target has
    probably stored other rows with the number `batch_id`.
    """
    if stored is not None and stored > batch_id:
        raise newer_target(sink, query, stored, batch_id)
    return stored == batch_id


def newer_target(sink: str, query: str, stored: int, batch_id: int) -> PipelineError:
    """Return the error for a target that contains micro-batch `stored`, although the checkpoint is at `batch_id`."""
    return PipelineError(
        f"{sink}: the target contains micro-batch {stored} of query {query}, but the checkpoint of this query continues"
        f" with micro-batch {batch_id}, so the checkpoint is older than the target, and the rows of the next"
        " micro-batches would be lost: restore the newest state of the checkpoint; if it is lost, begin again with:"
        " tidelog pipeline replay NAME --from TIME"
    )
