"""Store the offsets of a mirror in a compacted topic of the target cluster.

The topic has one partition. Keys and values are JSON. There are four kinds of records:

- an entry, under ["entry", topic, partition, first source offset]: {"segments": [[source, target, count], ...],
  "target_end": ...}. See `mirror_offsets`. Topics are named as in the source cluster.
- the plan, under ["plan"]: {"query": ..., "batch": ..., "partitions": [[topic, partition, end, [[first, length], ...]],
  ...]}: for each partition of a micro-batch, the end of the target's partition before the first attempt to write, and
  the source offsets of the records. A plan that is too large for one record has "parts" instead of "partitions". The
  value of "parts" says how many parts the plan has.
- a part of a plan, under ["plan part", query, batch, number]: {"partitions": ...}, as above. The plan is stored after
  its parts. So if the plan is stored, all its parts are stored too. The parts of earlier plans are removed afterwards.
- the position, under ["position"]: {"query": ..., "batch": ...}, the last micro-batch whose entries are stored.

For each micro-batch, the plan is stored first. Then the mirrored records are committed. Then the entries and the
position are stored. If a driver ends in between, Spark repeats the micro-batch. With the stored plan, the same entries
result, even if the earlier attempt committed the mirrored records.
"""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tidelog.client.operations import EARLIEST, LATEST, READ_UNCOMMITTED
from tidelog.model.ids import TopicPartition
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.mirror_cluster import MirrorCluster
from tidelog.pipelines.mirror_offsets import Entry, PartitionOffsets, Run, Segment
from tidelog.runtime.clock import SystemClock
from tidelog.wire.batches import Codec
from tidelog.wire.records import Record, encode_batch

TOPIC_PREFIX = "mirror-offsets."
"""Prefix of the names of topics that store offsets. A mirror never copies such a topic."""
POSITION_KEY = b'["position"]'
PLAN_KEY = b'["plan"]'
PART_KIND = "plan part"
PART_RUNS_MAX = 10_000
"""Upper bound on the `Run`s in one part of a plan, so that a part fits into one record of the mirror's topic."""
PARTITION_RUNS = 12
"""For PART_RUNS_MAX, each partition in a part counts as this many runs in addition to its own runs, because its topic's
name and its other fields need space too."""
REQUEST_BYTES = 512 << 10
"""Limit of the records of one request, in bytes before compression. A single larger record is sent on its own."""


class Position(NamedTuple):
    query: str
    batch: int


class Plan(NamedTuple):
    position: Position
    ends: dict[TopicPartition, int]
    """The end of each target partition before the micro-batch. The keys are the source partitions."""
    runs: dict[TopicPartition, list[Run]]
    """The source offsets of the micro-batch's records. They are stored before the records are written, because
    compaction may remove source records afterwards."""


class MirrorStore:
    """The stored offsets of one mirror, and their copy in memory."""

    def __init__(self, cluster: MirrorCluster, mirror: str) -> None:
        self._cluster = cluster
        self.topic = TOPIC_PREFIX + mirror
        self._partition = TopicPartition(self.topic, 0)
        self.position: Position | None = None
        self.plan: Plan | None = None
        self._part_keys: set[bytes] = set()
        """Keys of the stored parts of plans."""
        self.offsets: dict[TopicPartition, PartitionOffsets] = {}
        self.lock = threading.Lock()
        """Held while `offsets` is changed. A thread that moves groups holds this lock while it translates an
        offset."""

    def load(self, replicas: int) -> None:
        """Read the topic. If it does not exist, create it."""
        if self.topic not in self._cluster.partition_counts():
            self._cluster.create_topic(self.topic, 1, replicas, {"cleanup.policy": "compact"})
        client = self._cluster.client
        begin = client.list_offsets({self._partition: EARLIEST}, READ_UNCOMMITTED)[self._partition].offset
        end = client.list_offsets({self._partition: LATEST}, READ_UNCOMMITTED)[self._partition].offset
        values: dict[bytes, bytes] = {}
        for record in self._cluster.records(self._partition, begin, end):
            assert record.key is not None
            if record.value is None:
                values.pop(record.key, None)
            else:
                values[record.key] = record.value
        try:
            self._decode(values)
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(
                f"topic {self.topic} holds a record that no mirror wrote ({error!r}): "
                "delete the topic, or give the mirror another name"
            ) from None

    def _decode(self, values: Mapping[bytes, bytes]) -> None:
        entries: dict[TopicPartition, list[Entry]] = {}
        self._part_keys = {key for key in values if json.loads(key)[:1] == [PART_KIND]}
        for key, value in values.items():
            document = json.loads(value)
            if key == POSITION_KEY:
                self.position = Position(str(document["query"]), int(document["batch"]))
                continue
            if key == PLAN_KEY:
                self.plan = _decoded_plan(document, values)
                continue
            if key in self._part_keys:
                continue
            kind, topic, partition, _ = json.loads(key)
            if kind != "entry":
                raise ValueError(key)
            segments = tuple(Segment(*map(int, segment)) for segment in document["segments"])
            entry = Entry(segments, int(document["target_end"]))
            entries.setdefault(TopicPartition(str(topic), int(partition)), []).append(entry)
        with self.lock:
            self.offsets = {tp: PartitionOffsets(each) for tp, each in entries.items()}

    def save_plan(self, plan: Plan) -> None:
        parts = list(_parts_of(plan))
        position = plan.position._asdict()
        records: list[tuple[bytes, bytes | None]]
        if len(parts) == 1:
            records = [(PLAN_KEY, _json({**position, "partitions": parts[0]}))]
        else:
            records = [
                (_part_key(plan.position, number), _json({"partitions": part})) for number, part in enumerate(parts)
            ]
            self._part_keys |= {key for key, _ in records}
            records.append((PLAN_KEY, _json({**position, "parts": len(parts)})))
        needed = {key for key, _ in records}
        self._write([*records, *((key, None) for key in sorted(self._part_keys - needed))])
        self._part_keys &= needed
        self.plan = plan

    def save(self, entries: Iterable[tuple[TopicPartition, Entry]], position: Position) -> None:
        """Add the entries of a micro-batch to `offsets`. Store the entries, and after them the position."""
        records: list[tuple[bytes, bytes | None]] = []
        for tp, entry in entries:
            with self.lock:
                offsets = self.offsets.setdefault(tp, PartitionOffsets())
                offsets.add(entry)
                removed = offsets.remove_surplus()
            document = {"segments": entry.segments, "target_end": entry.target_end}
            records.append((_key(tp, entry), _json(document)))
            records += [(_key(tp, surplus), None) for surplus in removed]
        records.append((POSITION_KEY, _json(position._asdict())))
        self._write(records)
        self.position = position

    def _write(self, records: list[tuple[bytes, bytes | None]]) -> None:
        now_ms = SystemClock.now_ms()
        group: list[Record] = []
        size = 0
        for key, value in records:
            record_bytes = len(key) + len(value or b"")
            if group and size + record_bytes > REQUEST_BYTES:
                self._send(group)
                group, size = [], 0
            group.append(Record(key, value, now_ms))
            size += record_bytes
        self._send(group)

    def _send(self, records: list[Record]) -> None:
        self._cluster.client.produce({self._partition: encode_batch(records, codec=Codec.GZIP)})


def _parts_of(plan: Plan) -> Iterator[list[Any]]:
    """Yield the partitions of a plan in parts, each of which fits into one record. There is at least one part."""
    part: list[Any] = []
    size = 0
    for tp, end in plan.ends.items():
        runs = plan.runs[tp]
        begin = 0
        while begin < max(1, len(runs)):
            if size + PARTITION_RUNS >= PART_RUNS_MAX:
                yield part
                part, size = [], 0
            chosen = runs[begin : begin + PART_RUNS_MAX - size - PARTITION_RUNS]
            part.append([tp.topic, tp.partition, end, chosen])
            size += PARTITION_RUNS + len(chosen)
            begin += max(1, len(chosen))
    yield part


def _decoded_plan(document: Mapping[str, Any], values: Mapping[bytes, bytes]) -> Plan:
    """Return the plan from its record `document`. `values` contains its parts. Raises KeyError if a part is missing."""
    position = Position(str(document["query"]), int(document["batch"]))
    if "parts" in document:
        parts = [json.loads(values[_part_key(position, number)]) for number in range(int(document["parts"]))]
    else:
        parts = [document]
    ends: dict[TopicPartition, int] = {}
    runs: dict[TopicPartition, list[Run]] = {}
    for part in parts:
        for topic, number, end, pairs in part["partitions"]:
            tp = TopicPartition(str(topic), int(number))
            ends[tp] = int(end)
            runs.setdefault(tp, []).extend(Run(int(first), int(length)) for first, length in pairs)
    return Plan(position, ends, runs)


def _part_key(position: Position, number: int) -> bytes:
    return _json([PART_KIND, position.query, position.batch, number])


def _key(partition: TopicPartition, entry: Entry) -> bytes:
    return _json(["entry", partition.topic, partition.partition, entry.source])


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
