"""Any history of a cluster's controller: brokers stop, lose disks and return; ISRs, replicas and settings change.

`JournalLife` checks every image and every step between images. This test adds a model of the records: a record is
committed when all in-sync replicas have it and they are at least `min.insync.replicas`. With eligible leader replicas,
a leader that was not elected as unclean has every committed record.
"""

from contextlib import suppress
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metadata_harness.journal_life import JournalLife, directory, states
from tidelog.metadata.alterations import BROKER_RESOURCE, TOPIC_RESOURCE, Alteration, Change, Operation, alter_configs
from tidelog.metadata.controller import (
    MorePartitions,
    NewTopic,
    TopicChoice,
    create_partitions,
    create_topics,
    delete_topics,
)
from tidelog.metadata.elections import elect_leaderless, elect_leaders, rebalance_leaders
from tidelog.metadata.features import LevelChange, change_feature_level
from tidelog.metadata.image import ELR_FEATURE, NO_LEADER
from tidelog.metadata.isr_changes import IsrProposal, alter_partitions
from tidelog.metadata.reassignment import Reassignment, alter_reassignments
from tidelog.metadata.records import RECOVERED, RECOVERING
from tidelog.metadata.registration import fence_broker, unregister_broker
from tidelog.wire.errors import ApiError, ErrorCode

BROKERS = (1, 2, 3, 4)
TOPICS = ("a", "b")
broker_ids = st.sampled_from(BROKERS)
topics = st.sampled_from(TOPICS)
assignments = st.lists(broker_ids, min_size=1, max_size=4, unique=True)


class ControllerHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.life = JournalLife(min_insync_replicas="2")
        self.life.start(1, 2, 3)
        self.committed: dict[tuple[bytes, int], int] = {}
        """Number of committed records of each partition (topic id, number)."""
        self.replicated: dict[tuple[bytes, int], dict[int, int]] = {}
        """Number of these records that each replica has."""
        self.seen: dict[tuple[bytes, int], int] = {}
        """The last leader epoch of each partition in which an election was checked."""
        self.may_lose: set[tuple[bytes, int]] = set()
        """Partitions that lost records by a stop that only ELR protects from, while ELR was off."""

    @initialize(elr=st.booleans(), replicas=st.permutations([1, 2, 3]))
    def begin(self, elr: bool, replicas: list[int]) -> None:
        self.change_elr(int(elr))
        self.create("a", [replicas, replicas[:2]])

    # Brokers

    @rule(broker=broker_ids)
    def end_lease(self, broker: int) -> None:
        registered = self.life.image.brokers.get(broker)
        if registered is not None:
            self.life.decide(fence_broker(self.life.image, broker, registered.incarnation, self.life.config))

    @rule(broker=broker_ids)
    def restart_process(self, broker: int) -> None:
        """The process stops and starts; the page cache is whole."""
        known = broker in self.life.image.brokers
        self.life.register(broker)
        if not known:
            self._lose_records(broker, keep=0)

    @rule(broker=broker_ids, keep=st.integers(0, 3), loss=st.sampled_from(["power", "disk", "both"]))
    def lose_power_or_disk(self, broker: int, keep: int, loss: str) -> None:
        changed: dict[str, Any] = {}
        if loss != "disk":
            changed["boot_id"] = f"boot-{self.life.image.position}"
        if loss != "power":
            changed["directories"] = (directory(self.life.image.position + 10),)
        self._lose_records(broker, keep if loss == "power" else 0)
        self.life.register(broker, **changed)

    @rule(broker=broker_ids)
    def beat(self, broker: int) -> None:
        if broker in self.life.image.brokers:
            self.life.beat(broker)

    @rule()
    def beat_all(self) -> None:
        for broker in self.life.image.brokers:
            self.life.beat(broker)

    @rule(broker=broker_ids)
    def shut_down(self, broker: int) -> None:
        if broker in self.life.image.brokers:
            self.life.beat(broker, wants_shutdown=True)

    @rule(broker=broker_ids)
    def unregister(self, broker: int) -> None:
        if broker in self.life.image.brokers:
            self.life.decide(unregister_broker(self.life.image, broker, self.life.config))

    # Topics and settings

    @rule(topic=topics, replicas=st.lists(assignments, min_size=1, max_size=3))
    def create(self, topic: str, replicas: list[list[int]]) -> None:
        new = NewTopic(topic, assignments=list(enumerate(replicas)))
        self.life.decide(create_topics(self.life.image, [new], self.life.config, self.life.new_id))

    @rule(topic=topics, factor=st.integers(1, 3))
    def create_placed(self, topic: str, factor: int) -> None:
        self.life.decide(
            create_topics(self.life.image, [NewTopic(topic, 2, factor)], self.life.config, self.life.new_id)
        )

    @rule(topic=topics)
    def add_partitions(self, topic: str) -> None:
        present = self.life.image.topics.get(topic)
        if present is not None and len(present.partitions) < 4:
            more = MorePartitions(topic, len(present.partitions) + 1)
            self.life.decide(create_partitions(self.life.image, [more]))

    @rule(topic=topics)
    def delete(self, topic: str) -> None:
        self.life.decide(delete_topics(self.life.image, [TopicChoice(topic)]))

    @rule(topic=topics, setting=st.sampled_from(["min.insync.replicas=1", "min.insync.replicas=2",
          "unclean.leader.election.enable=true", "unclean.leader.election.enable=false"]))  # fmt: skip
    def alter_topic(self, topic: str, setting: str) -> None:
        name, value = setting.split("=")
        alteration = Alteration(TOPIC_RESOURCE, topic, [Change(name, Operation.SET, value)])
        self.life.decide(alter_configs(self.life.image, [alteration], self.life.config))
        self.life.decide(elect_leaderless(self.life.image, self.life.config))

    @rule(value=st.sampled_from(["1", "2", "3"]))
    def alter_cluster(self, value: str) -> None:
        alteration = Alteration(BROKER_RESOURCE, "", [Change("min.insync.replicas", Operation.SET, value)])
        self.life.decide(alter_configs(self.life.image, [alteration], self.life.config))

    @rule(level=st.sampled_from([0, 1, 1, 1]))
    def change_elr(self, level: int) -> None:
        change = LevelChange(ELR_FEATURE, level, allow_downgrade=True)
        with suppress(ApiError):  # ELR cannot end while a partition has no ISR
            self.life.decide(change_feature_level(self.life.image, change, self.life.config))

    # Leaders and replicas

    @rule(data=st.data())
    @precondition(lambda self: bool(self.life.image.topics))
    def alter_isr(self, data: st.DataObject) -> None:
        topic = self.life.image.topics[data.draw(st.sampled_from(sorted(self.life.image.topics)))]
        number = data.draw(st.integers(0, len(topic.partitions) - 1))
        state = topic.partitions[number]
        if state.leader == NO_LEADER:
            return
        others = [replica for replica in state.replicas if replica != state.leader]
        members = [state.leader, *(data.draw(st.lists(st.sampled_from(others), unique=True)) if others else [])]
        brokers = self.life.image.brokers
        isr = [(member, brokers[member].epoch if member in brokers else -1) for member in members]
        proposal = IsrProposal(topic.topic_id, number, state.leader_epoch, state.partition_epoch, isr, RECOVERED)
        epoch = brokers[state.leader].epoch
        (result,) = self.life.decide(
            alter_partitions(self.life.image, state.leader, epoch, [proposal], self.life.config)
        )
        if result.error is ErrorCode.NONE:
            key = (topic.topic_id, number)
            for member in members:  # the leader has seen that they have caught up
                self.replicated.setdefault(key, {})[member] = self.committed.get(key, 0)
        else:
            assert result.error in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.NEW_LEADER_ELECTED)

    @rule(topic=topics, number=st.integers(0, 2), replicas=assignments)
    def reassign(self, topic: str, number: int, replicas: list[int]) -> None:
        self.life.decide(
            alter_reassignments(self.life.image, [Reassignment(topic, number, replicas)], self.life.config)
        )

    @rule(topic=topics, number=st.integers(0, 2))
    def cancel(self, topic: str, number: int) -> None:
        self.life.decide(alter_reassignments(self.life.image, [Reassignment(topic, number, None)], self.life.config))

    @rule(election_type=st.sampled_from([0, 1]))
    def elect(self, election_type: int) -> None:
        self.life.decide(elect_leaders(self.life.image, election_type, None, self.life.config))

    @rule()
    def rebalance(self) -> None:
        has_more = self.life.decide(rebalance_leaders(self.life.image, self.life.config))
        assert not has_more
        for state in states(self.life.image).values():
            if state.leader not in (NO_LEADER, state.replicas[0]):
                assert state.replicas[0] not in state.isr

    # The model of the records

    @invariant()
    def leaders_have_all_committed_records(self) -> None:
        self._check_leaders()
        self._commit_records()

    def _commit_records(self) -> None:
        for topic in self.life.image.topics.values():
            min_isr = self.life.min_isr(topic.name)
            for number, state in enumerate(topic.partitions):
                key = (topic.topic_id, number)
                if state.leader != NO_LEADER and len(state.isr) >= min(min_isr, len(state.replicas)):
                    self.committed[key] = self.committed.get(key, 0) + 1
                    self.replicated.setdefault(key, {}).update(dict.fromkeys(state.isr, self.committed[key]))

    def _lose_records(self, broker: int, keep: int) -> None:
        elr = self.life.image.feature_levels.get(ELR_FEATURE)
        for key, counts in self.replicated.items():
            if counts.get(broker, 0) > keep:
                counts[broker] = keep
                topic = self.life.image.topics_by_id.get(key[0])  # type: ignore[call-overload]
                state = topic.partitions[key[1]] if topic is not None else None
                if not elr and state is not None and state.isr == (broker,):
                    self.may_lose.add(key)

    def _check_leaders(self) -> None:
        for topic in self.life.image.topics.values():
            for number, state in enumerate(topic.partitions):
                key = (topic.topic_id, number)
                if state.leader == NO_LEADER or self.seen.get(key) == state.leader_epoch:
                    continue
                self.seen[key] = state.leader_epoch
                present = self.replicated.get(key, {}).get(state.leader, 0)
                if present < self.committed.get(key, 0):
                    assert state.recovery == RECOVERING or key in self.may_lose, (topic.name, number, state)
                    self.committed[key] = present
                    counts = self.replicated[key]
                    self.replicated[key] = {broker: min(count, present) for broker, count in counts.items()}
                    self.may_lose.discard(key)

    def teardown(self) -> None:
        self.life.check_replay()


TestControllerHistory = ControllerHistory.TestCase
TestControllerHistory.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
