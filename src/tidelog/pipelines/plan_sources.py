"""The sources of a streaming query, in the order in which Spark numbers them.

Spark's checkpoints and reports do not name the sources of a query. They have an entry for each source, in the order in
which the plan of the query contains the sources. If a DataFrame is used twice, a checkpoint has two entries for its
source. A report has one, unless Spark reads the source twice, as in a self-join.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SERVERS = "kafka.bootstrap.servers"


class QuerySource(NamedTuple):
    """One source in the plan of a query."""

    servers: str | None
    """The brokers from which it reads topics; None if it reads no topics."""
    load: int
    """Identifies the call of Spark's `DataStreamReader.load` that made the DataFrame of this source. `loads_of` returns
    the same identities."""
    stream: int
    """Identifies Spark's stream. Spark reads sources with the same stream only once."""


def sources_of_query(query: Any, jvm: Any) -> list[QuerySource]:
    """Return the sources in the order of their entries in the checkpoint. `query` is Spark's query in the JVM. It must
    have begun its first micro-batch.
    """
    sources = []
    for leaf in _leaves(query.streamingQuery().logicalPlan()):
        match leaf.getClass().getSimpleName():
            case "StreamingDataSourceV2ScanRelation":
                options = leaf.relation().options()
                identify = jvm.System.identityHashCode
                sources.append(QuerySource(options.get(SERVERS), identify(options), identify(leaf.stream())))
            case "StreamingExecutionRelation":  # a source of Spark's older interface
                identity = jvm.System.identityHashCode(leaf.source())
                sources.append(QuerySource(None, identity, identity))
    return sources


def in_reports(sources: list[QuerySource]) -> list[QuerySource]:
    """Return the sources in the order of their entries in a report."""
    first: dict[int, QuerySource] = {}
    for source in sources:
        first.setdefault(source.stream, source)
    return list(first.values())


def loads_of(frame: "DataFrame") -> set[int]:
    """Return the identities of the calls of `DataStreamReader.load` whose sources this DataFrame reads."""
    jvm: Any = frame.sparkSession._jvm
    # All copies of a relation, and the source that Spark makes from it, share one object that contains the options.
    return {jvm.System.identityHashCode(each.extraOptions()) for each in _relations(frame)}


def streams_with_option(frame: "DataFrame", option: str) -> list[str]:
    """Return the values of an option: one for each stream that has this option and that Spark reads for the DataFrame.

    If the plan has several copies of a source's relation, Spark reads the source only once, unless the copies have
    different columns, as in a self-join.
    """
    found = {}
    for relation in _relations(frame):
        value = relation.extraOptions().get(option)
        if value is not None:
            found[value, relation.output().toString()] = str(value)
    return list(found.values())


def _relations(frame: "DataFrame") -> list[Any]:
    """Return the streaming relations in the plan of a DataFrame. Spark makes sources from them when a query starts."""
    leaves = _leaves(frame._jdf.queryExecution().analyzed())
    return [leaf for leaf in leaves if leaf.getClass().getSimpleName() == "StreamingRelationV2"]


def _leaves(plan: Any) -> list[Any]:
    leaves = plan.collectLeaves()
    return [leaves.apply(number) for number in range(leaves.size())]
