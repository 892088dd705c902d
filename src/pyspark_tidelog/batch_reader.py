"""The batch reader. It reads every record between two bounds, which are fixed when the query is planned."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_tidelog.connecting import connect
from pyspark_tidelog.filters import Comparison, comparison_of, narrowed
from pyspark_tidelog.garbage import exempt_imported_objects
from pyspark_tidelog.lookup import Lookup, loss_reporter, refuse_backward_ranges, without_lost
from pyspark_tidelog.options import ReadOptions
from pyspark_tidelog.plan import OffsetRange, grouped, split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter


class RangePartition(InputPartition):
    """One Spark partition: one or several ranges of offsets, which a task reads one after the other."""

    def __init__(self, *ranges: OffsetRange) -> None:
        super().__init__(ranges)


class TidelogReader(DataSourceReader):
    """The reader of one batch query."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._comparisons: list[Comparison] = []
        """The comparisons of the query's filters. Only rows that satisfy all of them are needed. Empty unless
        Spark passes filters."""

    def partitions(self) -> list[InputPartition]:
        """Return the Spark partitions of the query. The start and end offsets are requested from the brokers each time
        that an action on the DataFrame runs.

        Raises DataLoss if offsets to read are not in the log, unless failOnDataLoss is false. Raises OptionError if
        `Lookup.resolve` cannot determine the start or end offsets, or if the start of a range is after its end.
        """
        options = self._options
        with connect(options) as client:
            lookup = Lookup(client, options.subscription, options.fetch.isolation)
            partitions = lookup.partitions()
            starts = lookup.resolve("startingOffsets", options.starting, partitions)
            ends = lookup.resolve("endingOffsets", options.ending, partitions)
            requested = [OffsetRange(*tp, starts[tp], ends[tp]) for tp in partitions]
            refuse_backward_ranges(requested, options.ending)
            requested = narrowed(requested, self._comparisons, lookup.first_at_or_after)
            partitions = [each.topic_partition for each in requested]
            ranges = without_lost(requested, lookup.earliest(partitions), loss_reporter(options.fail_on_data_loss))
        return spark_partitions(ranges, options)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._options, self._columns, partition)


class FilteringReader(TidelogReader):
    """A reader that does not read the offsets that the query's filters exclude. See the module `filters`."""

    def pushFilters(self, filters: list["Filter"]) -> "list[Filter]":
        """Use the filters to read less. Return all of them, so that Spark applies them to the rows as well."""
        self._comparisons = [comparison for each in filters if (comparison := comparison_of(each))]
        return filters

    def __getstate__(self) -> dict[str, object]:
        """Return the state for the tasks, which do not need the filters: the planned ranges are already narrowed."""
        return self.__dict__ | {"_comparisons": []}


def spark_partitions(ranges: list[OffsetRange], options: ReadOptions) -> list[InputPartition]:
    """Return the Spark partitions that read these ranges."""
    pieces = split(ranges, options.min_partitions, options.max_records_per_partition)
    return [RangePartition(*group) for group in grouped(pieces, options.max_partitions)]


def read_partition(
    options: ReadOptions, columns: tuple[str, ...], partition: InputPartition
) -> "Iterator[pa.RecordBatch]":
    """Read one Spark partition, in a worker.

    If `partitions` returned an empty list, Spark passes a partition of its own, which has no range. The result then
    has no rows.
    """
    # Imported here, because the import of numpy, pyarrow and numba takes half a second, and planning does not need
    # them.
    from pyspark_tidelog.reading import RangeReader

    if isinstance(partition, RangePartition):
        options = options._replace(client=options.client._replace(default_api_timeout_ms=options.poll_timeout_ms))
        with connect(options) as client:
            for offset_range in partition.value:
                yield from RangeReader(client, options, offset_range, columns).arrow_batches()
        exempt_imported_objects("read")
