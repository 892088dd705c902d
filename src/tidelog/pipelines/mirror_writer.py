"""Write the micro-batches of a mirror, and store which target offset belongs to each source offset."""

import json
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidelog.client.blocking import Client, ClientConfig
from tidelog.client.errors import ClientError, GaveUp, Unreachable
from tidelog.model.ids import TopicPartition
from tidelog.pipelines.declarations import PipelineError, SinkContext, TemporaryError
from tidelog.pipelines.mirror_cluster import MirrorCluster
from tidelog.pipelines.mirror_groups import GroupMover, MirrorGroups, MovedOffset
from tidelog.pipelines.mirror_offsets import (
    CountsDiffer,
    Entry,
    Run,
    coarse_segments,
    entries_of,
    joined_runs,
    segments_of,
)
from tidelog.pipelines.mirror_store import MirrorStore, Plan, Position
from tidelog.pipelines.mirror_topics import MirrorTopics
from tidelog.pipelines.sinks.batch_numbers import is_written
from tidelog.wire.errors import ApiError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tidelog.pipelines.mirrors import Mirror

logger = logging.getLogger("tidelog.pipelines")

CLIENT_ID = "tidelog-mirror"
VISIBLE_WITHIN_S = 60.0
"""Seconds until the records of a committed micro-batch must be visible. They are not visible at once, because the
markers of a transaction are written after the commit was acknowledged."""
RUNS_SCHEMA = "topic string, partition int, first bigint, count bigint"
"""Columns of the runs of offsets that tasks return. `first` is an offset, `count` a number of offsets."""


def connect(bootstrap: str) -> MirrorCluster:
    return MirrorCluster(Client(bootstrap, ClientConfig(client_id=CLIENT_ID), report_outage=logger.warning))


class TopicMatcher:
    """Finds the topics of a mirror in its source cluster."""

    def __init__(self, pattern: str) -> None:
        from pyspark_tidelog.topic_pattern import TopicPattern

        self._pattern = TopicPattern(pattern)

    def topics(self, source: MirrorCluster) -> dict[str, int]:
        """Return the topics to mirror, each with its number of partitions."""
        counts = source.partition_counts()
        return {name: counts[name] for name in self._pattern.topics_among(counts)}


def start_error(mirror: "Mirror", error: ApiError | ClientError) -> PipelineError:
    """Return the error of a mirror that cannot begin. It is temporary if a cluster did not answer."""
    kind = TemporaryError if isinstance(error, Unreachable | GaveUp) else PipelineError
    return kind(f"mirror {mirror.name} cannot begin: {error}")


def starting_options(
    mirror: "Mirror", target: str, begin: str | int, *, refuses_stored: bool = False
) -> dict[str, str]:
    """Return the options that say where a query without a checkpoint begins.

    If offsets of the mirror are stored, the query begins after the last mirrored record of each partition, and at the
    earliest offset of each partition without stored offsets. If no offsets are stored, the query begins at `begin`.
    With `refuses_stored`, PipelineError is raised if offsets are stored, because `begin` would have no effect.
    """
    source_cluster, target_cluster = connect(mirror.source), connect(target)
    try:
        store = MirrorStore(target_cluster, mirror.name)
        store.load(mirror.replicas)
        if not store.offsets:
            if isinstance(begin, int):
                return {"startingTimestamp": str(begin), "startingOffsetsByTimestampStrategy": "latest"}
            return {"startingOffsets": begin}
        if refuses_stored:
            raise PipelineError(
                f"mirror {mirror.name} has copied records before, and continues after the last of them, so --from would"
                f" have no effect. To continue without --from, run: tidelog pipeline reset {mirror.name}. To copy"
                f" records again, delete the mirrored topics and {store.topic} in the target before this reset"
            )
        starting: dict[str, dict[str, int]] = {}
        for topic, count in TopicMatcher(mirror.pattern).topics(source_cluster).items():
            for number in range(count):
                offsets = store.offsets.get(TopicPartition(topic, number))
                end = offsets.source_end if offsets else None
                starting.setdefault(topic, {})[str(number)] = -2 if end is None else end
        return {"startingOffsets": json.dumps(starting)} if starting else {"startingOffsets": "earliest"}
    except (ApiError, ClientError) as error:
        raise start_error(mirror, error) from error
    finally:
        source_cluster.close()
        target_cluster.close()


class MirrorWriter:
    """The open sink of a mirror."""

    def __init__(self, mirror: "Mirror", context: SinkContext) -> None:
        self._mirror = mirror
        self._query = context.query
        self._once = context.once
        self._target_servers = mirror.target or context.bootstrap
        # The thread that moves groups needs clients of its own.
        self._clusters = [connect(servers) for servers in (mirror.source, self._target_servers) * 2]
        self._source, self._target, source_of_groups, target_of_groups = self._clusters
        self._store = MirrorStore(self._target, mirror.name)
        self._matcher = TopicMatcher(mirror.pattern)
        self._topics = MirrorTopics(
            self._source,
            self._target,
            prefix=mirror.prefix,
            replicas=mirror.replicas,
            settings_not_copied=mirror.settings_not_copied,
            check_missing=self._check_missing,
        )
        self._mover: GroupMover | None = None
        self._has_failed = False
        """Whether a micro-batch could not be written."""
        self.moved: list[MovedOffset] = []
        """The results of the last complete move of groups: one result for each group and partition."""
        try:
            if not mirror.prefix and self._source.cluster_id() == self._target.cluster_id():
                raise PipelineError(
                    f"mirror {mirror.name}: {mirror.source} and {self._target_servers} are the same cluster, whose"
                    " topics would be copied onto themselves: set another source or target, or a prefix"
                )
            self._store.load(mirror.replicas)
            self._partition_counts = self._matcher.topics(self._source)
            self._topics.follow(self._partition_counts)
            self._check_ends(tp for tp in self._store.offsets if tp.topic in self._partition_counts)
        except PipelineError:
            self._close_clusters()
            raise
        except (ApiError, ClientError) as error:
            self._close_clusters()
            raise start_error(mirror, error) from error
        if mirror.groups is not None:
            self._start_mover(mirror.groups, source_of_groups, target_of_groups)

    def _start_mover(self, groups: str, source: MirrorCluster, target: MirrorCluster) -> None:
        from pyspark_tidelog.topic_pattern import TopicPattern

        matching = TopicPattern(f"^(?:{groups})$").topics_among
        mover = MirrorGroups(source, target, self._store, matching, self._mirror.prefix)

        def move() -> None:
            self.moved = mover.move(self._partition_counts)

        def close() -> None:
            source.close()
            target.close()

        # The mover's thread closes `source` and `target` itself, because it may still use them when MirrorWriter.close
        # has returned. So they are no longer in `_clusters`.
        self._clusters = [self._source, self._target]
        self._mover = GroupMover(move, self._mirror.groups_every_s, close)
        self._mover.start()

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        """Write one micro-batch exactly once, and store its offsets."""
        try:
            self._write(batch, Position(self._query, batch_id))
        except BaseException:
            self._has_failed = True
            raise

    def _write(self, batch: "DataFrame", position: Position) -> None:
        stored = self._store.position
        newest = stored.batch if stored is not None and stored.query == self._query else None
        if is_written(f"mirror {self._mirror.name}", self._query, newest, position.batch):
            return
        self._partition_counts = self._matcher.topics(self._source)
        self._topics.follow(self._partition_counts)
        plan = self._store.plan
        if plan is not None and plan.position == position:
            self._write_records(batch, position.batch)
        else:
            if plan is not None and plan.position.query != self._query and plan.position != stored:
                self._check_unfinished(plan)
            with kept_on_disk(batch) as rows:
                plan = self._planned(rows, position)
                self._write_records(rows, position.batch)
        self._store.save(self._entries(plan), position)

    def _planned(self, rows: "DataFrame", position: Position) -> Plan:
        """Store and return the plan of a micro-batch that no attempt has written yet."""
        runs = source_runs(rows)
        ends = self._check_ends(runs)
        plan = Plan(position, {tp: ends[self._in_target(tp)] for tp in runs}, runs)
        self._store.save_plan(plan)
        return plan

    def _check_missing(self, topic: str) -> None:
        """Raise PipelineError if the target does not have a topic to which records were copied."""
        name = self._mirror.prefix + topic
        # Ask the target again: a broker that is behind may not have known the topic, although it exists.
        if any(tp.topic == topic for tp in self._store.offsets) and name not in self._target.settings([name]):
            raise self._lost(name)

    def _check_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each partition of the source, return the partition in the target, with its end offset.

        Raises PipelineError if a partition in the target ends before the end of the records that were copied to it.
        """
        stored = {self._in_target(tp): self._store.offsets.get(tp) for tp in partitions}
        ends = self._target.ends(stored)
        for tp, offsets in stored.items():
            copied_end = offsets.target_end if offsets is not None else None
            if copied_end is not None and ends[tp] < copied_end:
                raise self._lost(f"{tp} (which now ends at {ends[tp]}, not at {copied_end} or later)")
        return ends

    def _lost(self, place: str) -> PipelineError:
        name, store = self._mirror.name, self._store.topic
        return PipelineError(
            f"mirror {name}: records were copied to {place} in the target, but they are not there any more: the topic"
            " was deleted, or the target has lost records. The mirror would not copy them again. To copy all topics"
            f" again, delete the mirrored topics and {store} in the target, and run: tidelog pipeline reset {name}"
        )

    def close(self) -> None:
        """Move the groups a last time, unless a micro-batch has failed, and close the connections. The wait for this
        move takes at most `mirror_groups.STOP_MAX_S`. If the move fails or takes longer, a warning is logged, and
        a run with `once` raises PipelineError, because no later move follows. A second call does nothing.
        """
        mover, self._mover = self._mover, None
        try:
            if mover is not None:
                mover.stop(move=not self._has_failed)
        except (ApiError, ClientError, PipelineError) as error:
            logger.warning(
                "mirror_groups_failed mirror=%s the groups were not moved a last time: %s", self._mirror.name, error
            )
            if self._once:
                raise TemporaryError(
                    f"mirror {self._mirror.name}: the records were copied, but the groups were not moved a last time,"
                    f" so offsets in the target may be too low ({error}): run the mirror again"
                ) from error
        finally:
            self._close_clusters()

    def _close_clusters(self) -> None:
        for cluster in self._clusters:
            cluster.close()

    def _in_target(self, partition: TopicPartition) -> TopicPartition:
        return TopicPartition(self._mirror.prefix + partition.topic, partition.partition)

    def _check_unfinished(self, plan: Plan) -> None:
        """Raise PipelineError if a micro-batch of an earlier query wrote records whose offsets are not stored.

        This query does not have the checkpoint of the earlier one, so it would copy the same records again.
        """
        counts = self._target.partition_counts()
        begins = {self._in_target(tp): end for tp, end in plan.ends.items()}
        begins = {tp: begin for tp, begin in begins.items() if tp.partition < counts.get(tp.topic, 0)}
        ends, uncommitted_ends = self._target.ends(begins), self._target.uncommitted_ends(begins)
        for tp, begin in begins.items():
            if ends[tp] < uncommitted_ends[tp] or self._target.has_records(tp, begin, ends[tp]):
                raise PipelineError(
                    f"mirror {self._mirror.name}: {tp} may have records of micro-batch {plan.position.batch} of an"
                    f" earlier query ({plan.position.query}), which ended before it stored their offsets, and whose"
                    " checkpoint this run does not have. Run the mirror with the earlier checkpoint; or delete the"
                    f" mirrored topics and {self._store.topic} in the target, and begin again"
                )

    def _write_records(self, batch: "DataFrame", batch_id: int) -> None:
        from pyspark.sql import functions as F

        topic = F.concat(F.lit(self._mirror.prefix), F.col("topic")).alias("topic")
        rows = batch.select(topic, "partition", "key", "value", "headers", "timestamp")
        options = {
            **self._mirror.write_options,
            "kafka.bootstrap.servers": self._target_servers,
            "includeTimestamp": "true",
            "exactlyOnce": "true",
            "exactlyOnceId": self._query,
            "exactlyOnceBatch": str(batch_id),
        }
        rows.write.format("tidelog").options(**options).mode("append").save()

    def _entries(self, plan: Plan) -> Iterator[tuple[TopicPartition, Entry]]:
        """Yield the entries to store for a micro-batch that was committed.

        The target may have fewer records than the plan: compaction may have removed records in the source between the
        plan and the write, or in the target after the write. Raises PipelineError if the target has more records.
        """
        for tp, source in plan.runs.items():
            target_tp, begin = self._in_target(tp), plan.ends[tp]
            target, target_end = self._target_runs(target_tp, begin, sum(run.length for run in source))
            try:
                segments = segments_of(source, target)
            except CountsDiffer as error:
                if error.target_records > error.source_records:
                    raise PipelineError(
                        f"mirror {self._mirror.name}: {target_tp} received {error.target_records} records from offset"
                        f" {begin} on, but only {error.source_records} were copied: another producer writes to this"
                        " topic; stop it, or mirror with a prefix"
                    ) from None
                segments = coarse_segments(source, begin, target_end)
            for entry in entries_of(segments, target_end):
                yield tp, entry

    def _target_runs(self, partition: TopicPartition, begin: int, records: int) -> tuple[list[Run], int]:
        """Wait until `records` committed records are visible from offset `begin` on. If no transaction is open,
        missing records cannot appear any more, so do not wait for them. Return the offsets of the visible records, and
        the end of the partition.
        """
        deadline = time.monotonic() + VISIBLE_WITHIN_S
        while True:
            uncommitted_end = self._target.uncommitted_ends([partition])[partition]
            end = self._target.ends([partition])[partition]
            if end >= min(begin + records, uncommitted_end):
                runs = self._target.runs(partition, begin, end)
                if end >= uncommitted_end or sum(run.length for run in runs) >= records:
                    return runs, end
            if time.monotonic() > deadline:
                raise PipelineError(
                    f"mirror {self._mirror.name}: {partition} shows fewer than {records} records from offset {begin} on"
                    f" although {records} were committed {VISIBLE_WITHIN_S:.0f} s ago: a transaction of another"
                    " producer may be open"
                )
            time.sleep(0.02)


@contextmanager
def kept_on_disk(batch: "DataFrame") -> Iterator["DataFrame"]:
    """Keep the micro-batch on disk during a `with` block that computes it several times, so that its topics are read
    only once.

    The first computation stores the rows in Spark's local directories (`spark.local.dir`). The stored rows are removed
    at the end of the block. If an executor is lost, the rows that it stored are lost too, and Spark reads them again.
    """
    from pyspark import StorageLevel

    kept = batch.persist(StorageLevel.DISK_ONLY)
    try:
        yield kept
    finally:
        kept.unpersist()


def source_runs(batch: "DataFrame") -> dict[TopicPartition, list[Run]]:
    """Return the source offsets of a micro-batch by partition."""
    rows = batch.select("topic", "partition", "offset").mapInArrow(_runs_of_task, RUNS_SCHEMA).collect()
    runs: dict[TopicPartition, list[Run]] = {}
    for topic, partition, first, count in rows:
        runs.setdefault(TopicPartition(topic, partition), []).append(Run(first, count))
    return {tp: joined_runs(each) for tp, each in runs.items()}


def _runs_of_task(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Yield one row for each run of consecutive offsets of a partition. Spark calls this in a Python worker."""
    import numpy as np
    import pyarrow as pa

    for batch in batches:
        if not batch.num_rows:
            continue
        topics = batch.column(0).dictionary_encode()
        codes: Any = topics.indices.to_numpy()
        partitions: Any = batch.column(1).to_numpy()
        offsets: Any = batch.column(2).to_numpy()
        is_new = (np.diff(codes) != 0) | (np.diff(partitions) != 0) | (np.diff(offsets) != 1)
        firsts = np.concatenate([[0], np.flatnonzero(is_new) + 1])
        counts = np.diff(np.concatenate([firsts, [len(offsets)]]))
        yield pa.RecordBatch.from_arrays(
            [
                batch.column(0).take(pa.array(firsts)),
                pa.array(partitions[firsts], pa.int32()),
                pa.array(offsets[firsts], pa.int64()),
                pa.array(counts, pa.int64()),
            ],
            names=["topic", "partition", "first", "count"],
        )
