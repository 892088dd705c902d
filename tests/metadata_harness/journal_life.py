"""Decisions of the controller on one journal: each is encoded, decoded and applied, and the image is checked."""

from collections.abc import Generator
from typing import Any, TypeVar

from metadata_harness.builders import ids, settings
from tidelog.config.endpoints import Endpoint
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.elections import MIN_INSYNC_REPLICAS, TopicRules
from tidelog.metadata.features import SUPPORTED_LEVELS, LevelChange, change_feature_level
from tidelog.metadata.image import ELR_FEATURE, EMPTY_IMAGE, METADATA_FEATURE, NO_LEADER, ImageBuilder, MetadataImage
from tidelog.metadata.image import snapshot as snapshot_records
from tidelog.metadata.records import (
    RECOVERING,
    ClusterNamed,
    ControllerElected,
    DirectoryId,
    JournalRecord,
    PartitionState,
    decode,
    encode,
)
from tidelog.metadata.registration import Heartbeat, HeartbeatReply, Registration, heartbeat, register_broker
from tidelog.model.steps import run_all

R = TypeVar("R")


def directory(number: int) -> DirectoryId:
    """Return the id of a broker's data directory; numbers below 1 are not reserved ids either."""
    return DirectoryId((1000 + number).to_bytes(16, "big"))


def states(image: MetadataImage) -> dict[tuple[str, int], PartitionState]:
    return {(t.name, i): state for t in image.topics.values() for i, state in enumerate(t.partitions)}


class JournalLife:
    """A journal and its image, from an empty cluster on."""

    def __init__(self, *, cluster_level: int = 1, elr: bool = False, **static: str) -> None:
        self.config = settings(**static)
        self.image = EMPTY_IMAGE
        self.journal: list[bytes] = []
        self.new_id = ids()
        self.leaders: dict[tuple[bytes, int, int], int] = {}
        """The leader of each leader epoch of each partition (topic id, number, epoch)."""
        self.apply([ClusterNamed("test-cluster"), ControllerElected(1, 1)])
        if cluster_level:
            self.decide(change_feature_level(self.image, LevelChange(METADATA_FEATURE, 1), self.config))
        if elr:
            self.decide(change_feature_level(self.image, LevelChange(ELR_FEATURE, 1), self.config))

    def decide(self, decided: JournalDecision[R] | Generator[None, None, JournalDecision[R]]) -> R:
        """Append and apply a decision, and return its reply."""
        decision = decided if isinstance(decided, JournalDecision) else run_all(decided)
        if decision.records:
            self.apply(decision.records)
        return decision.reply

    def apply(self, records: list[JournalRecord]) -> None:
        before = self.image
        data = encode(1, records)
        assert decode(data, len(self.journal)).records == records
        self.journal.append(data)
        self.image = ImageBuilder(before).apply(records).build()
        assert self.image.position == len(self.journal)
        self._check_step(before)
        check_image(self.image)

    def register(
        self, broker_id: int, incarnation: str = "", *, other_run_has_lease: bool = False, **fields: Any
    ) -> int:
        """Register a run of a broker. By default its directories and operating system are those of its last run."""
        present = self.image.brokers.get(broker_id)
        request = Registration(
            broker_id,
            incarnation or f"run-{self.image.position}",
            [Endpoint("PLAINTEXT", f"broker-{broker_id}", 9092)],
            features=dict(SUPPORTED_LEVELS),
        )
        defaults = {
            "boot_id": "boot",
            "directories": (directory(broker_id),),
            "previous_epoch": -1 if present is None else present.epoch,
        }
        request = request._replace(**{**defaults, **fields})
        return self.decide(register_broker(self.image, request, self.config, other_run_has_lease=other_run_has_lease))

    def beat(self, broker_id: int, **fields: Any) -> HeartbeatReply:
        """Send a heartbeat. By default the broker has followed the journal to its end."""
        options = {name: fields.pop(name) for name in ("shutdown_position", "followed_positions") if name in fields}
        broker = self.image.brokers.get(broker_id)
        epoch = -1 if broker is None else broker.epoch
        request = Heartbeat(broker_id, epoch, self.image.position)._replace(**fields)
        return self.decide(heartbeat(self.image, request, self.config, **options))

    def start(self, *broker_ids: int, **fields: Any) -> None:
        """Register and unfence brokers."""
        for broker_id in broker_ids:
            self.register(broker_id, **fields)
            self.beat(broker_id)

    def check_replay(self) -> None:
        """Check that the journal, and the journal behind a snapshot of any image, give the live image."""
        builder = ImageBuilder(EMPTY_IMAGE)
        cut = len(self.journal) // 2
        for position, data in enumerate(self.journal[:cut]):
            builder.apply(decode(data, position).records)
        resumed = ImageBuilder(EMPTY_IMAGE)
        resumed.apply(decode(encode(1, snapshot_records(builder.build())), cut).records)
        resumed.position = cut
        for position, data in enumerate(self.journal[cut:], cut):
            builder.apply(decode(data, position).records)
            resumed.apply(decode(data, position).records)
        for image in (builder.build(), resumed.build()):
            assert states(image) == states(self.image)
            assert image.brokers == self.image.brokers
            assert image.feature_levels == self.image.feature_levels
            assert image.broker_configs == self.image.broker_configs
            assert image.position == self.image.position

    def min_isr(self, topic: str) -> int:
        rules = TopicRules(self.image, self.config).of(self.image.topics[topic].config)
        return rules.min_isr

    def _check_step(self, before: MetadataImage) -> None:
        """Check the step from one image to the next: epochs only grow, and each leader epoch has one leader."""
        old_states = {(t.topic_id, i): s for t in before.topics.values() for i, s in enumerate(t.partitions)}
        for topic in self.image.topics.values():
            for partition, new in enumerate(topic.partitions):
                leader = self.leaders.setdefault((topic.topic_id, partition, new.leader_epoch), new.leader)
                assert leader == new.leader, f"two leaders of epoch {new.leader_epoch}: {leader}, {new.leader}"
                old = old_states.get((topic.topic_id, partition))
                if old is None or old == new:
                    continue
                assert new.partition_epoch == old.partition_epoch + 1
                assert new.leader_epoch - old.leader_epoch in (0, 1)
                added, removed = set(new.replicas) - set(old.replicas), set(old.replicas) - set(new.replicas)
                assert added <= set(new.adding), "a replica was added without a reassignment"
                assert not removed or not new.adding, "a replica was removed before the reassignment was complete"
                still_adding = set(old.adding) & set(new.replicas) - set(new.adding)
                assert still_adding <= set(new.isr), "a reassignment ended before its replicas were in sync"
                if new.leader not in (old.leader, NO_LEADER):
                    # A replica may come into the ISR and lead in the same entry if that completes its reassignment.
                    is_completed = bool(old.adding or old.removing) and not (new.adding or new.removing)
                    is_clean = new.leader in old.isr or new.leader in old.elr or is_completed
                    assert is_clean or (new.recovery == RECOVERING and new.isr == (new.leader,))


def check_image(image: MetadataImage) -> None:
    """Check everything that is true of every image."""
    elr = bool(image.feature_levels.get(ELR_FEATURE))
    for (name, number), state in states(image).items():
        where = f"{name}-{number} {state}"
        replicas, isr = state.replicas, state.isr
        assert len(set(replicas)) == len(replicas) > 0, where
        assert set(isr) <= set(replicas), where
        assert len(set(isr)) == len(isr), where
        assert set(state.elr) <= set(replicas) - set(isr), where
        assert set(state.adding) | set(state.removing) <= set(replicas), where
        assert not set(state.adding) & set(state.removing), where
        assert isr or elr or state.leader == NO_LEADER, where
        inactive = [member for member in isr if not image.is_active(member)]
        # Without ELR, the last member stays in the ISR when it ends; with ELR it moves there.
        assert not inactive or (len(isr) == 1 and state.leader == NO_LEADER), where
        if state.leader == NO_LEADER:
            assert not any(image.is_active(candidate) for candidate in isr or state.elr), where
        else:
            assert state.leader in isr, where
            assert image.is_active(state.leader), where
            assert not state.last_known_elr, where
        if not elr:
            assert not state.elr, where
            assert isr, where
    assert not elr or MIN_INSYNC_REPLICAS in image.broker_configs[""]
