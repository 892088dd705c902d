"""Dead letters: records that cannot be parsed are written to a topic, exactly once, before their micro-batch commits.

The query itself leaves such records out, and counts them while it parses the records. After the sink has written a
micro-batch, and if the count is not zero or may be too low, this module reads the micro-batch's range of offsets again
and writes the records that cannot be parsed. Only then does Spark commit the micro-batch. So a micro-batch without such
records is read once, unless it has fewer records than offsets. Dead letters are written with the number of their
micro-batch. A micro-batch that is repeated after a failure keeps its number, so its dead letters are not written twice.

The range of offsets comes from the checkpoint. Spark writes the range there before it reads the micro-batch.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_tidelog.offsets import BEGINNINGS, is_topic
from tidelog.pipelines.declarations import PipelineError, SourceContext
from tidelog.pipelines.topics import DECODED, Topic, check_newest, exactly_once_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

METRIC = "records of source "
"""The name of a source's observed metric is this text, then the name of the function parameter that gets the source."""

Ranges = dict[str, dict[str, tuple[int, int]]]
"""Begin and end (exclusive) of the offsets, by topic and partition."""


class Counts(NamedTuple):
    """The numbers of records of one source that the query has counted in one micro-batch."""

    records: int
    unparsed: int


class DeadLetters:
    """Writes the dead letters of one query."""

    def __init__(
        self,
        topic: str,
        context: SourceContext,
        query: str,
        checkpoint: Path,
        sources: Mapping[str, Topic],
        positions: Callable[[], Sequence[str | None]],
        counts: Callable[[], Mapping[str, Counts]],
    ) -> None:
        """`sources` maps parameters to the sources whose dead letters this query writes. Each of these sources has a
        value format. `positions` returns one item for each source in the checkpoint, in the same order: the source's
        parameter, or None if `sources` does not contain this parameter. `counts` returns the counts of the current
        micro-batch by parameter; an empty mapping if they are unknown.
        """
        self._topic = topic
        self._context = context
        self._query = query
        self._checkpoint = checkpoint
        self._sources = sources
        self._positions = positions
        self._counts = counts
        self._last_planned = last_planned_batch(checkpoint)
        self._checked: set[str] = set()
        """The parameters of the sources for which `check_newest` was called."""

    def write(self, batch_id: int) -> int:
        """Write the dead letters of a micro-batch that the sink has written already. Return their number."""
        if not self._sources:
            return 0
        # If the sink wrote this micro-batch before a restart, it does not compute the micro-batch again. Then the
        # counts are zero although there may be records that cannot be parsed.
        counts = {} if batch_id <= self._last_planned else self._counts()
        ranges = micro_batch_ranges(self._checkpoint, batch_id, self._positions())
        written = 0
        for parameter, source in self._sources.items():
            wanted = ranges.get(parameter, {})
            size = sum(end - begin for parts in wanted.values() for begin, end in parts.values())
            count = counts.get(parameter)
            # If there are fewer records than offsets, the topic is compacted or has transactions, or Spark has not
            # computed every record. In the last case the count of unparsed records is too low.
            if size == 0 or (count is not None and count.unparsed == 0 and count.records >= size):
                continue
            written += self._write_range(parameter, source, wanted, batch_id)
        return written

    def _write_range(self, parameter: str, source: Topic, ranges: Ranges, batch_id: int) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        records = source.read_range(self._context, ranges)
        unparsed = records.where(source.unparsed())
        observation = Observation()
        letters = dead_letter_columns(unparsed, self._context.pipeline, parameter).observe(
            observation, f.count(f.lit(1)).alias("count")
        )
        options = {"kafka.bootstrap.servers": self._context.bootstrap, "topic": self._topic}
        query = f"{self._query}.dead-letters.{parameter}"
        if parameter not in self._checked:
            sink = f"pipeline {self._context.pipeline}: dead letters of source {parameter} in topic {self._topic}"
            check_newest(self._context.bootstrap, sink, query, batch_id)
            self._checked.add(parameter)
        options |= exactly_once_options(query, batch_id)
        letters.write.format("tidelog").mode("append").options(**options).save()
        return int(observation.get["count"])


def letter_writers(
    pipeline: str, stored: Mapping[str, str], sources: Iterable[str], readers: Mapping[str, Container[str]]
) -> dict[str, str]:
    """Return a mapping from the parameter of each source to the sink whose query writes the source's dead letters.

    `stored` is the mapping that earlier runs have stored. Its entries are kept: the queries of two sinks may have read
    different parts of a source, so another query would omit dead letters or write them again. `readers` maps each sink
    to the parameters of the sources that its query reads. If `stored` has no sink for a source, the first sink whose
    query reads this source is chosen. A source that no query reads has no dead letters.

    Raises PipelineError if the query that has written the dead letters of a source no longer reads this source.
    """
    writers = dict(stored)
    for source in sources:
        reading = [sink for sink, parameters in readers.items() if source in parameters]
        writer = writers.get(source)
        if writer is None and reading:
            writers[source] = reading[0]
        elif writer is not None and writer not in reading:
            raise PipelineError(
                f"pipeline {pipeline}: in earlier runs, the query of its sink {writer} wrote the dead letters of the"
                f" source {source}, but now the pipeline has no sink {writer} whose query reads this source: restore"
                f" the sink and its name, or begin again with: tidelog pipeline replay {pipeline} --from TIME"
            )
    return writers


def dead_letter_columns(unparsed: "DataFrame", pipeline: str, source: str) -> "DataFrame":
    """Return key, value and headers of the dead letters. Key and value are those of the record. The headers are reason,
    topic, partition, offset, timestamp (in milliseconds), pipeline and source, and after them the headers of the
    record. `source` is the parameter of the source.
    """
    from pyspark.sql import functions as f

    fields = {
        "reason": f.col(f"{DECODED}.error"),
        "topic": f.col("topic"),
        "partition": f.col("partition").cast("string"),
        "offset": f.col("offset").cast("string"),
        "timestamp": f.unix_millis("timestamp").cast("string"),
        "pipeline": f.lit(pipeline),
        "source": f.lit(source),
    }
    own = [f.struct(f.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in fields.items()]
    none = f.array().cast("array<struct<key: string, value: binary>>")
    headers = f.concat(f.array(*own), f.coalesce(f.col("headers"), none))
    return unparsed.select("key", "value", headers.alias("headers"))


def micro_batch_ranges(checkpoint: Path, batch_id: int, positions: Sequence[str | None]) -> dict[str, Ranges]:
    """Return the ranges of offsets of a micro-batch, by the parameter of the source.

    `positions` has one item for each source in the checkpoint, in the same order: the source's parameter, or None if
    its range is not wanted. Raises PipelineError if the checkpoint cannot be read.
    """
    ends = _offsets(checkpoint, batch_id)
    if len(ends) != len(positions):
        raise PipelineError(
            f"the checkpoint {checkpoint} has offsets of {len(ends)} sources, but the query has {len(positions)}: if"
            " the sources of the pipeline were changed, begin again with tidelog pipeline replay"
        )
    begins = _offsets(checkpoint, batch_id - 1) if batch_id else [{} for _ in ends]
    ranges: dict[str, Ranges] = {}
    for position, (parameter, end) in enumerate(zip(positions, ends, strict=True)):
        if parameter is None:
            continue
        begin = begins[position] if position < len(begins) else {}
        # A micro-batch without new records has the position of the previous one. Then the entry BEGINNINGS in this
        # position belongs to the previous micro-batch.
        first_offsets = {} if begin == end else end.get(BEGINNINGS, {})
        ranges[parameter] = {
            topic: {
                partition: (
                    first_offsets.get(topic, {}).get(partition, begin.get(topic, {}).get(partition, last)),
                    last,
                )
                for partition, last in parts.items()
            }
            for topic, parts in end.items()
            if is_topic(topic)
        }
    return ranges


def last_planned_batch(checkpoint: Path) -> int:
    """Return the number of the last micro-batch whose offsets are in the checkpoint; -1 if there is none."""
    try:
        return max((int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdecimal()), default=-1)
    except FileNotFoundError:
        return -1


def _offsets(checkpoint: Path, batch_id: int) -> list[dict[str, Any]]:
    """Return the end offsets of a micro-batch, one mapping for each source, as Spark has written them to the
    checkpoint.
    """
    path = checkpoint / "offsets" / str(batch_id)
    try:
        lines = path.read_text().splitlines()
        return [json.loads(line) if line.startswith("{") else {} for line in lines[2:]]
    except (OSError, ValueError) as error:
        raise PipelineError(f"the offsets of micro-batch {batch_id} cannot be read from {path}: {error}") from error
