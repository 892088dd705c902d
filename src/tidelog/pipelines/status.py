"""The figures of running pipelines, for the live view, the status file, JSON lines and Prometheus."""

import math
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

WAITING, STARTING, RUNNING, FAILED, STOPPED, DONE = "waiting", "starting", "running", "failed", "stopped", "done"
"""The states of a pipeline. `waiting`: it failed and will start again. `failed`: it failed and will not start
again. `stopped`: it was asked to stop. `done`: it has processed all data that existed when it started (--once)."""


@dataclass
class QueryStatus:
    """The figures of one query. Each process starts `batches`, `rows`, `late_rows` and `dead_letters` at 0."""

    sink: str
    batches: int = 0
    rows: int = 0
    rows_per_s: float = 0.0
    """Rows per second of the newest micro-batch, from its trigger to its end."""
    batch_ms: int = 0
    """Duration of the newest micro-batch."""
    lag_records: int | None = None
    """Records that the query has not processed; None if it is not known."""
    lag_ms: int | None = None
    """Age of the oldest unprocessed record; 0 if there is no such record; None if the age is not known."""
    state_rows: int = 0
    state_bytes: int = 0
    """Number of rows and bytes in the state of aggregations, joins and deduplications."""
    late_rows: int = 0
    """Rows that Spark dropped because they were older than the watermark."""
    dead_letters: int = 0
    """Records that could not be parsed and were written to the topic of dead letters."""
    watermark: str | None = None
    offsets: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """The next offset to process, by bootstrap servers, topic and partition. The bootstrap servers are needed,
    because topics of several clusters may have the same name."""


@dataclass
class PipelineStatus:
    pipeline: str
    state: str = STARTING
    restarts: int = 0
    error: str | None = None
    """The reason of the newest failure. It remains after a restart."""
    restart_in_s: float | None = None
    queries: list[QueryStatus] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return asdict(self)


TYPES: dict[Any, Any] = {
    float: float | int,
    float | None: float | int | None,
    list[QueryStatus]: list,
    dict[str, dict[str, dict[str, int]]]: dict,
}
"""The types of values in JSON, where these differ from the types of the fields."""


def update_from_progress(status: QueryStatus, progress: dict[str, Any], servers: Sequence[str | None]) -> None:
    """Add the figures of a progress report of Spark. Each report must be added once. `servers` are the bootstrap
    servers of the sources in the report, in the same order; None for a source that reads no topics.

    The number of dead letters is not taken from the report: if the sink makes Spark compute the rows twice, the report
    counts each dead letter twice.
    """
    from pyspark_tidelog.offsets import Offsets, to_json_object
    from pyspark_tidelog.progress import offsets_of_topics

    rows = int(progress.get("numInputRows") or 0)
    duration_ms = int((progress.get("durationMs") or {}).get("triggerExecution") or 0)
    if rows or "addBatch" in (progress.get("durationMs") or {}):
        status.batches += 1
        status.rows += rows
        status.batch_ms = duration_ms
        status.rows_per_s = rows * 1000 / duration_ms if duration_ms else 0.0
    else:
        status.rows_per_s = 0.0
    operators = progress.get("stateOperators") or []
    status.state_rows = sum(int(each.get("numRowsTotal") or 0) for each in operators)
    status.state_bytes = sum(int(each.get("memoryUsedBytes") or 0) for each in operators)
    status.late_rows += sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in operators)
    status.watermark = (progress.get("eventTime") or {}).get("watermark")
    offsets: dict[str, Offsets] = {}
    for source, addresses in zip(progress.get("sources") or [], servers, strict=False):
        if addresses is None:
            continue
        known = offsets.setdefault(addresses, {})
        for tp, offset in offsets_of_topics(source.get("endOffset")).items():
            # If two sources read the partition, the query has processed only the records before the lower offset.
            known[tp] = min(offset, known.get(tp, offset))
    if any(offsets.values()):
        status.offsets = {addresses: to_json_object(known) for addresses, known in offsets.items() if known}


def status_of_document(document: dict[str, Any]) -> PipelineStatus:
    """Return the status from the result of `PipelineStatus.document`. Another version of Tidelog may have written this
    document: unknown fields are left out, and missing fields have their defaults.

    Raises ValueError if a field has a value of a wrong type, or if the name of the pipeline or of a sink is missing.
    """
    values = _known_fields(PipelineStatus, document)
    values["queries"] = [QueryStatus(**_known_fields(QueryStatus, each)) for each in values.get("queries", [])]
    return PipelineStatus(**values)


def _known_fields(kind: type[PipelineStatus | QueryStatus], document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise ValueError(f"{kind.__name__} is not an object")
    values: dict[str, Any] = {}
    for each in fields(kind):
        if each.name not in document:
            if each.default is MISSING and each.default_factory is MISSING:
                raise ValueError(f"{each.name} is missing")
            continue
        value = document[each.name]
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{each.name} is {value}")
        # In Python, a bool is an int. No field is a bool.
        if isinstance(value, bool) or not isinstance(value, TYPES.get(each.type, each.type)):
            raise ValueError(f"{each.name} is of the type {type(value).__name__}")
        values[each.name] = value
    return values
