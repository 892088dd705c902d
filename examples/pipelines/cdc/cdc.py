"""Change data capture: the events of Debezium, Canal and Maxwell become the current table, as a Delta table.

Each event describes changes of rows in a database. `changes_of` translates the events of the three tools to one form.
The sink keeps the newest version of each row by its key, removes deleted rows, and adds columns that are new.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.pipelines import PipelineError, delta, pipeline, topic
from tidelog.pipelines.declarations import Opened, SinkContext

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

UPSERT, DELETE = "upsert", "delete"

# From the event of a tool to changes


class Change(NamedTuple):
    """One change of one row."""

    table: str
    operation: str
    row: dict[str, Any]
    """The columns by name. For a deletion, at least the columns of the key."""


def changes_of(value: bytes | None) -> Iterator[Change]:
    """Yield the changes that an event describes, in order. Events that change no row yield nothing.

    The tombstone that Debezium writes after a deletion is such an event. So are changes of the schema: a new column
    is added with the first row that has it. Raises ValueError if the value is not an event of one of the tools.
    """
    event = json.loads(value) if value is not None else None
    if event is None:
        return
    if not isinstance(event, dict):
        raise ValueError("the value is not a JSON object")
    envelope = event.get("payload") if "payload" in event else event
    if envelope is None:
        return
    if "op" in envelope:
        yield from debezium(envelope)
    elif "isDdl" in envelope:
        yield from canal(envelope)
    elif "type" in envelope and "database" in envelope:
        yield from maxwell(envelope)
    else:
        raise ValueError("the value is not an event of Debezium, Canal or Maxwell")


def debezium(event: dict[str, Any]) -> Iterator[Change]:
    """The operations are c(reate), r(ead, in a snapshot), u(pdate) and d(elete); others, as t(runcate), are refused."""
    operation = event["op"]
    if operation == "m":  # a message of the application, which belongs to no row
        return
    table = event["source"]["table"]
    if operation in ("c", "r", "u"):
        yield Change(table, UPSERT, event["after"])
    elif operation == "d":
        yield Change(table, DELETE, event["before"])
    else:
        raise ValueError(f"operation {operation!r} of Debezium cannot be applied to single rows")


def canal(event: dict[str, Any]) -> Iterator[Change]:
    """An event has several rows. All values are texts; `mysqlType` has the types. `old` has the previous values of
    changed columns.
    """
    if event["isDdl"]:
        return
    types = event["mysqlType"] or {}
    old_values = event["old"] or [{}] * len(event["data"])
    for texts, old in zip(event["data"], old_values, strict=True):
        row = {name: canal_value(text, types.get(name, "")) for name, text in texts.items()}
        if event["type"] == "DELETE":
            yield Change(event["table"], DELETE, row)
            continue
        previous = row | {name: canal_value(text, types.get(name, "")) for name, text in (old or {}).items()}
        yield from replaced(event["table"], previous, row, event["pkNames"] or [])


def canal_value(text: str | None, mysql_type: str) -> Any:
    kind = mysql_type.lower().partition("(")[0].removesuffix(" unsigned")
    if text is None:
        return None
    if kind in ("tinyint", "smallint", "mediumint", "int", "integer", "bigint"):
        return int(text)
    return float(text) if kind in ("float", "double") else text


def maxwell(event: dict[str, Any]) -> Iterator[Change]:
    """`old` has the previous values of changed columns. Types such as table-alter change no row."""
    kind = event["type"]
    if kind == "delete":
        yield Change(event["table"], DELETE, event["data"])
    elif kind in ("insert", "bootstrap-insert"):
        yield Change(event["table"], UPSERT, event["data"])
    elif kind == "update":
        previous = event["data"] | event.get("old", {})
        yield from replaced(event["table"], previous, event["data"], event.get("primary_key_columns", []))


def replaced(table: str, previous: dict[str, Any], row: dict[str, Any], key: list[str]) -> Iterator[Change]:
    """An update that changes the key removes the row with the previous key."""
    if any(previous.get(name) != row.get(name) for name in key):
        yield Change(table, DELETE, previous)
    yield Change(table, UPSERT, row)


# From the records of a topic to rows of Spark

CHANGES = "table string, deleted boolean, position bigint, row map<string,string>, types map<string,string>"
CHANGES_PER_RECORD_MAX = 1_000_000
"""`position` is the offset times this number, plus the number of the change within its event."""


def type_of(value: Any) -> str | None:
    """Return the type of a column in Spark; None for null, which every type has."""
    if value is None:
        return None
    return {bool: "boolean", int: "bigint", float: "double"}.get(type(value), "string")


def text_of(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def changes_in(records: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Return one row for each change of the records, in a worker."""
    import pyarrow as pa

    texts = pa.map_(pa.string(), pa.string())
    # The columns of CHANGES. Spark can translate that text only in the driver: a worker has no Spark session.
    schema = pa.schema(
        {"table": pa.string(), "deleted": pa.bool_(), "position": pa.int64(), "row": texts, "types": texts}
    )
    for batch in records:
        rows = []
        for record in batch.to_pylist():
            try:
                changes = list(changes_of(record["value"]))
            except (ValueError, KeyError, TypeError) as error:
                place = f"topic {record['topic']}, partition {record['partition']}, offset {record['offset']}"
                raise ValueError(f"{place}: {error!r}") from error
            for number, change in enumerate(changes):
                types = {name: kind for name, value in change.row.items() if (kind := type_of(value))}
                rows.append(
                    {
                        "table": change.table,
                        "deleted": change.operation == DELETE,
                        "position": record["offset"] * CHANGES_PER_RECORD_MAX + number,
                        "row": [(name, text_of(value)) for name, value in change.row.items()],
                        "types": list(types.items()),
                    }
                )
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


# The table


class CurrentTable:
    """A Delta table with the columns that its rows have. A new column is added by the first row that has it."""

    def __init__(self, path: str, key: str) -> None:
        self.path = path
        self.key = key
        self.table = delta(path, key=key, delete="deleted", order_by="position")

    def describe(self) -> str:
        return self.table.describe()

    def open(self, context: SinkContext) -> Opened:
        return OpenedTable(self, self.table.open(context))


class OpenedTable:
    def __init__(self, sink: CurrentTable, opened: Opened) -> None:
        self.sink = sink
        self.opened = opened

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        batch.persist()  # it is used twice, and would otherwise be read twice from the topic
        try:
            self.write_rows(batch, batch_id)
        finally:
            batch.unpersist()

    def write_rows(self, batch: "DataFrame", batch_id: int) -> None:
        from pyspark.sql import functions as F

        stored = self.stored_types()
        columns = dict(stored)
        for name, kind in batch.select(F.explode("types")).distinct().collect():
            if name not in stored:
                columns[name] = kind if columns.get(name, kind) == kind else wider(columns[name], kind)
        if not columns:
            return
        if self.sink.key not in columns:
            raise PipelineError(f"{self.sink.describe()}: no row has the key {self.sink.key}")
        values = [F.col("row")[name].cast(kind).alias(name) for name, kind in columns.items()]
        self.opened.write(batch.select(*values, "deleted", "position"), batch_id)

    def stored_types(self) -> dict[str, str]:
        """Return the types of the table's columns, which do not change."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.sink.path):
            return {}
        names = {"long": "bigint", "double": "double", "boolean": "boolean", "string": "string"}
        fields = DeltaTable(self.sink.path).schema().fields
        return {field.name: names[field.type.type] for field in fields if field.name != "position"}

    def close(self) -> None:
        self.opened.close()


def wider(one: str, other: str) -> str:
    """Return a type for the values of two types."""
    return "double" if {one, other} == {"bigint", "double"} else "string"


# The pipelines


def current_table(name: str, events: str, table: str, key: str) -> Any:
    """Declare a pipeline that keeps one table up to date."""

    @pipeline(name=name, source=topic(events, begin="earliest"), sink=CurrentTable(f"lake/{name}", key))
    def newest_rows(records: "DataFrame") -> "DataFrame":
        changes = records.select("topic", "partition", "offset", "value").mapInArrow(changes_in, CHANGES)
        return changes.where(changes.table == table).drop("table")

    return newest_rows


debezium_t1 = current_table("debezium_t1", "cdc-debezium", table="t1", key="id")
canal_products = current_table("canal_products", "cdc-canal-products", table="products", key="id")
canal_t1 = current_table("canal_t1", "cdc-canal-t1", table="t1", key="k")
maxwell_products = current_table("maxwell_products", "cdc-maxwell", table="products", key="id")
