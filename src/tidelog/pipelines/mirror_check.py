"""Compare the clusters of a mirror: `python -m tidelog.pipelines.mirror_check FILE[:NAME] --bootstrap TARGET`.

Run this command before consumers move to the target. It reads all records of the mirror's topics in both clusters. It
does not read the topic in which the mirror stores its offsets. Every partition must have the same records in the same
order in both clusters. If a consumer group that the mirror copies has a committed offset in a partition, the group must
have the same number of unread records of this partition in both clusters. The exit code is 1 if something differs, and
2 if the comparison is not possible.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from pyspark_tidelog.errors import counted
from tidelog.client.errors import ClientError
from tidelog.model.ids import TopicPartition
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.loading import load
from tidelog.pipelines.mirror_cluster import MirrorCluster
from tidelog.pipelines.mirror_writer import TopicMatcher, connect
from tidelog.pipelines.mirrors import Mirror
from tidelog.wire.errors import ApiError
from tidelog.wire.records import Record


class PartitionCheck(NamedTuple):
    partition: TopicPartition
    """The partition in the source cluster."""
    records: int
    """Number of records that are the same in both clusters, up to the first difference."""
    difference: str
    """The first difference; empty if there is none."""


class GroupCheck(NamedTuple):
    group: str
    partition: TopicPartition
    source_offset: int
    target_offset: int | None
    unread_in_source: int
    """Number of records from the committed offset on."""
    unread_in_target: int | None
    """None if the group has no offset in the target."""

    @property
    def difference(self) -> str:
        if self.target_offset is None:
            return "the group has no offset in the target"
        if self.unread_in_source != self.unread_in_target:
            unread = counted(self.unread_in_source, "unread record")
            return f"{unread} in the source, {self.unread_in_target} in the target"
        return ""


class Checker:
    """Compares the two clusters of a mirror. Raises PipelineError if the mirror copies no topic of the source."""

    def __init__(self, mirror: Mirror, source: MirrorCluster, target: MirrorCluster) -> None:
        self._mirror = mirror
        self._source = source
        self._target = target
        self._topics = TopicMatcher(mirror.pattern).topics(source)
        if not self._topics:
            raise PipelineError(f"mirror {mirror.name}: {mirror.source} has no topic that matches {mirror.topics}")

    def partitions(self) -> Iterator[PartitionCheck]:
        target_counts = self._target.partition_counts()
        for topic, count in sorted(self._topics.items()):
            target_count = target_counts.get(self._mirror.prefix + topic, 0)
            for number in range(count):
                tp = TopicPartition(topic, number)
                if number >= target_count:
                    yield PartitionCheck(tp, 0, "the target does not have this partition")
                else:
                    yield self._partition(tp)

    def _partition(self, tp: TopicPartition) -> PartitionCheck:
        records = 0
        pairs = zip_longest(_all_records(self._source, tp), _all_records(self._target, self._in_target(tp)))
        for source, target in pairs:
            if source is None or target is None:
                more, record = ("target", target) if source is None else ("source", source)
                difference = f"only the {more} has the records from its offset {record.offset} on"
                return PartitionCheck(tp, records, difference)
            if _content(source) != _content(target):
                return PartitionCheck(
                    tp,
                    records,
                    f"the record at offset {source.offset} in the source differs from the record at offset"
                    f" {target.offset} in the target",
                )
            records += 1
        return PartitionCheck(tp, records, "")

    def groups(self) -> Iterator[GroupCheck]:
        from pyspark_tidelog.topic_pattern import TopicPattern

        if self._mirror.groups is None:
            return
        listed = [group.group_id for group in self._source.client.list_groups().groups]
        names = sorted(TopicPattern(f"^(?:{self._mirror.groups})$").topics_among(listed))
        source_offsets = self._source.client.committed_offsets(names) if names else {}
        target_offsets = self._target.client.committed_offsets(names) if names else {}
        for group in names:
            committed, committed_in_target = source_offsets[group], target_offsets.get(group)
            for tp, offset in sorted(committed.items()) if isinstance(committed, dict) else ():
                if tp.topic not in self._topics or not isinstance(offset, int):
                    continue
                result = committed_in_target.get(self._in_target(tp)) if isinstance(committed_in_target, dict) else None
                target_offset = result if isinstance(result, int) else None
                yield GroupCheck(
                    group,
                    tp,
                    offset,
                    target_offset,
                    _count(self._source, tp, offset),
                    None if target_offset is None else _count(self._target, self._in_target(tp), target_offset),
                )

    def _in_target(self, tp: TopicPartition) -> TopicPartition:
        return TopicPartition(self._mirror.prefix + tp.topic, tp.partition)


def _content(record: Record) -> tuple[object, ...]:
    return record.timestamp, record.key, record.value, list(record.headers)


def _all_records(cluster: MirrorCluster, tp: TopicPartition) -> Iterator[Record]:
    return cluster.records(tp, cluster.starts([tp])[tp], cluster.ends([tp])[tp])


def _count(cluster: MirrorCluster, tp: TopicPartition, offset: int) -> int:
    begin, end = max(offset, cluster.starts([tp])[tp]), cluster.ends([tp])[tp]
    return sum(run.length for run in cluster.runs(tp, begin, end)) if begin < end else 0


def report(partitions: Iterable[PartitionCheck], groups: Iterable[GroupCheck]) -> Iterator[tuple[str, bool]]:
    """For each partition and each committed offset of a group, yield a line, and whether both clusters agree."""
    for each in partitions:
        same = f"{counted(each.records, 'record')}, the same"
        yield f"{each.partition}: {each.difference or same}", not each.difference
    for group in groups:
        unread = counted(group.unread_in_source, "unread record")
        agreed = f"offset {group.source_offset} in the source, {group.target_offset} in the target, {unread} in both"
        yield f"group {group.group}, {group.partition}: {group.difference or agreed}", not group.difference


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tidelog.pipelines.mirror_check", description=__doc__)
    parser.add_argument("file", metavar="FILE[:NAME]", help="the file that declares the mirror")
    target_help = "the target cluster of a mirror that is declared without `target`"
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT", help=target_help)
    arguments = parser.parse_args()
    try:
        sources = [each for pipeline in load(arguments.file) for each in pipeline.sources.values()]
        mirrors = [each for each in sources if isinstance(each, Mirror)]
        if not mirrors:
            raise PipelineError(f"{arguments.file} declares no mirror, so there is nothing to compare")
        differences = 0
        for mirror in mirrors:
            source, target = connect(mirror.source), connect(mirror.target or arguments.bootstrap)
            try:
                checker = Checker(mirror, source, target)
                for line, is_same in report(checker.partitions(), checker.groups()):
                    print(("" if is_same else "DIFFERENT ") + line)
                    differences += not is_same
            finally:
                source.close()
                target.close()
    except (PipelineError, ApiError, ClientError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    print(counted(differences, "difference") if differences else "no differences between source and target")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
