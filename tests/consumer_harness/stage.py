"""One coordinator core with an encoded log, and the cluster's topics. A restart replays the log, as a coordinator does
when it loads its partition.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tidelog.coordinator.decision import Decision, Moment
from tidelog.coordinator.group.core import GroupCore
from tidelog.coordinator.group.durable import DurableGroups
from tidelog.coordinator.group.records import decode_record
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.metadata.image import MetadataImage, TopicImage
from tidelog.metadata.records import PartitionState
from tidelog.model.ids import TopicId

EPOCH_MS = 1_700_000_000_000


class Stage:
    """A core, its log and its topics. Topics are name -> number of partitions; every created topic gets a new id."""

    def __init__(self, settings: GroupSettings, topics: Mapping[str, int]) -> None:
        self.settings = settings
        self.image = MetadataImage()
        self.log: list[tuple[bytes, bytes | None, int]] = []
        self.time_ms = 1_000_000
        self._made = 0
        self.core = self._new_core()
        self.change_topics(topics)

    def _new_core(self) -> GroupCore:
        return GroupCore(self.settings, lambda: self.image)

    @property
    def now(self) -> Moment:
        return Moment(EPOCH_MS + self.time_ms, self.time_ms)

    # Calls of the runtime

    def apply(self, decision: Decision) -> None:
        if decision.records:
            next_offset = len(self.log) + len(decision.records)
            self.log += [(*record.encode(), next_offset) for record in decision.records]
            for record in decision.records:
                self.core.replay(record, next_offset)  # type: ignore[arg-type]
        for reply, answer in decision.replies:
            reply(answer)

    def apply_all(self, decisions: Iterator[Decision]) -> None:
        for decision in decisions:
            self.apply(decision)

    def pass_time(self, duration_ms: int) -> None:
        """Advance the clock, and fire each deadline at its time, as a timer would."""
        end_ms = self.time_ms + duration_ms
        while (next_ms := self.core.next_deadline_ms()) is not None and next_ms <= end_ms:
            self.time_ms = max(next_ms, self.time_ms)
            self.apply_all(self.core.expire(self.now))
        self.time_ms = end_ms

    def restart(self) -> None:
        """Replace the core by a new one that loads the log."""
        core = self._new_core()
        for record, next_offset in self._latest():
            core.replay(record, next_offset)
        self.core = core
        self.apply(core.loaded(self.now))

    # Changes of the cluster

    def change_topics(self, topics: Mapping[str, int]) -> None:
        """Replace the topics of the cluster. A topic that has fewer partitions than before is created again, with a new
        id.
        """
        old = self.image
        made: dict[str, TopicImage] = {}
        for name, count in topics.items():
            known = old.topics.get(name)
            if known is None or len(known.partitions) > count:
                self._made += 1
                made[name] = _topic(name, self._made.to_bytes(16, "big"), count)
            else:
                made[name] = known if len(known.partitions) == count else _topic(name, known.topic_id, count)
        by_id = {topic.topic_id: topic for topic in made.values()}
        self.image = MetadataImage(position=old.position + 1, topics=made, topics_by_id=by_id)
        self.core.topics_changed(old, self.image, self.now)

    def topic_id(self, name: str) -> bytes:
        return self.image.topics[name].topic_id

    # State from the log

    def replayed(self) -> DurableGroups:
        """Return the state after a replay of every record, in the order in which they were written."""
        durable = DurableGroups()
        for key, value, next_offset in self.log:
            durable.replay(_decoded(key, value), next_offset)
        return durable

    def reloaded(self) -> DurableGroups:
        """Return the state after a replay of the last record of each key, as after compaction."""
        durable = DurableGroups()
        for record, next_offset in self._latest():
            durable.replay(record, next_offset)
        return durable

    def _latest(self) -> list[tuple[Any, int]]:
        latest: dict[bytes, bytes] = {}
        for key, value, _ in self.log:
            if value is None:
                latest.pop(key, None)
            else:
                latest[key] = value
        return [(_decoded(key, value), len(self.log)) for key, value in latest.items()]


def _decoded(key: bytes, value: bytes | None) -> Any:
    record = decode_record(key, value)
    assert record is not None
    return record


def _topic(name: str, topic_id: bytes, count: int) -> TopicImage:
    state = PartitionState(1, 0, (1,), (1,), 0)
    return TopicImage(name, TopicId(topic_id), (state,) * count, {})


def visible_state(groups: DurableGroups) -> dict[str, Any]:
    """Return all visible state in a form that can be compared."""
    return {name: (group.metadata, group.offsets, _consumer(group.consumer)) for name, group in groups.by_id.items()}


def _consumer(group: Any) -> Any:
    if group is None:
        return None
    names = ("epoch", "metadata_hash", "target_epoch", "target_time_ms", "members", "resolved", "static_ids")
    counts = ("owners", "topics", "patterns", "assignors", "classic_protocols", "classic_count", "subscriptions_bytes")
    targets = {member_id: target for member_id, target in group.targets.items() if target}
    return {name: getattr(group, name) for name in (*names, *counts)} | {"targets": targets}
