"""Random histories of members of both protocols that join, leave, stall, change, miss answers and rejoin, checked
against named invariants. Topics are created, grow and are deleted, and the coordinator fails sometimes. Seeds are
Hypothesis's.
"""

import re
from itertools import combinations
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consumer_harness.members import ClassicMember, ConsumerMember
from consumer_harness.stage import Stage, visible_state
from group_harness.invariants import check_core
from tidelog.coordinator.consumer.settings import ConsumerSettings
from tidelog.coordinator.consumer.state import ConsumerGroupState
from tidelog.coordinator.group.offsets import OffsetCommit, OffsetToCommit
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state import GroupState
from tidelog.wire.errors import ApiError, ErrorCode

GROUP = "g"
TOPICS = {"t": 4, "u": 3}
ROUNDS = 60
ROUND_MS = 1100
RETENTION_MS = 30_000

subscriptions = st.sampled_from((["t"], ["u"], ["t", "u"], ["t", "no"], []))
instances = st.sampled_from((None, None, None, "i", "j"))


class ConsumerHistory(RuleBasedStateMachine):
    """The core, its log, and the clients with what they believe to have."""

    @initialize(interval_ms=st.sampled_from((0, 1000)), assignor=st.sampled_from(("uniform", "range")))
    def begin(self, interval_ms: int, assignor: str) -> None:
        consumer = ConsumerSettings(
            assignment_interval_ms=interval_ms, assignors=(assignor,), session_timeout_ms=45_000
        )
        settings = GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=RETENTION_MS, consumer=consumer)
        self.stage = Stage(settings, TOPICS)
        self.clients: list[Any] = []
        self.count = 0

    def live(self) -> list[Any]:
        return [client for client in self.clients if not client.has_left]

    def of_kind(self, kind: type[Any]) -> list[Any]:
        return [client for client in self.live() if isinstance(client, kind)]

    # What members do

    @rule(topics=subscriptions, instance=instances)
    def consumer_joins(self, topics: list[str], instance: str | None) -> None:
        self.count += 1
        client = ConsumerMember(self.stage, GROUP, f"m{self.count}", topics, instance)
        self.clients.append(client)
        client.beat()

    @rule(pattern=st.sampled_from(("t.*", "[tu]", "none", "t|v")))
    def consumer_joins_by_pattern(self, pattern: str) -> None:
        self.count += 1
        client = ConsumerMember(self.stage, GROUP, f"m{self.count}", [])
        client.pattern = pattern
        self.clients.append(client)
        client.beat()

    @rule(topics=subscriptions, eager=st.booleans(), instance=instances)
    def classic_joins(self, topics: list[str], eager: bool, instance: str | None) -> None:
        client = ClassicMember(self.stage, GROUP, topics, eager=eager, instance=instance)
        self.clients.append(client)
        client.beat()
        self.stage.pass_time(0)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), times=st.integers(1, 3))
    def beats(self, data: Any, times: int) -> None:
        client = data.draw(st.sampled_from(self.live()))
        for _ in range(times):
            if not client.has_left:
                client.beat()

    @precondition(lambda self: self.live())
    @rule(duration_ms=st.sampled_from((0, 1100)))
    def all_beat(self, duration_ms: int) -> None:
        for client in self.live():
            client.beat()
        self.stage.pass_time(duration_ms)

    @precondition(lambda self: self.of_kind(ConsumerMember))
    @rule(data=st.data())
    def misses_an_answer(self, data: Any) -> None:
        data.draw(st.sampled_from(self.of_kind(ConsumerMember))).beat(lose_answer=True)

    @precondition(lambda self: self.of_kind(ConsumerMember))
    @rule(data=st.data(), topics=subscriptions, pattern=st.sampled_from((None, "", "u.*")))
    def changes_subscription(self, data: Any, topics: list[str], pattern: str | None) -> None:
        client = data.draw(st.sampled_from(self.of_kind(ConsumerMember)))
        client.topics, client.sends_all_fields = topics, True
        client.pattern = pattern if pattern is not None else client.pattern
        client.beat()

    @precondition(lambda self: self.live())
    @rule(data=st.data(), for_a_while=st.booleans())
    def leaves(self, data: Any, for_a_while: bool) -> None:
        client = data.draw(st.sampled_from(self.live()))
        if isinstance(client, ConsumerMember) and client.instance is not None and for_a_while:
            client.leave(-2)
        else:
            client.leave()

    # Offsets, and the end of the group

    def offsets(self) -> dict[tuple[str, int], int]:
        durable = self.stage.core.durable.by_id.get(GROUP)
        found = {} if durable is None else durable.offsets
        return {(topic, p): value.offset for topic, parts in found.items() for p, value in parts.items()}

    def has_members(self) -> bool:
        core = self.stage.core
        consumer, classic = core.consumers.find(GROUP), core.groups.get(GROUP)
        if consumer is not None:
            return bool(consumer.members)
        return classic is not None and classic.state is not GroupState.EMPTY

    @rule(data=st.data(), topic=st.sampled_from(("t", "u")), partition=st.integers(0, 1))
    def commits(self, data: Any, topic: str, partition: int) -> None:
        """A member, or an outsider, who may commit when there are no members only."""
        if topic not in self.stage.image.topics:
            return
        client = data.draw(st.sampled_from([None, *self.live()]))
        who = ("", None, -1) if client is None else (client.member_id, client.instance, client.epoch)
        offset = OffsetToCommit(topic, self.stage.topic_id(topic), partition, self.stage.time_ms, 0, "m")
        commit = OffsetCommit(GROUP, *who, -1, 9, [offset])
        is_known = GROUP in self.stage.core.group_ids()
        may = not self.has_members()
        answers: list[Any] = []
        try:
            self.stage.apply(self.stage.core.commit(commit, answers.append, self.stage.now))
        except ApiError:
            assert client is not None or not may
        else:
            assert answers == [[ErrorCode.NONE]]
            assert self.offsets()[topic, partition] == self.stage.time_ms
            assert client is not None or may or not is_known

    @rule(topic=st.sampled_from(("t", "u")))
    def offsets_are_deleted(self, topic: str) -> None:
        """What nobody reads goes, what members read stays, and so does all the rest."""
        core = self.stage.core
        before = self.offsets()
        consumer = core.consumers.find(GROUP)
        answers: list[Any] = []
        refusal = None
        try:
            asked = [(topic, partition) for partition in range(4)]
            self.stage.apply(core.delete_offsets(GROUP, asked, answers.append, self.stage.now))
        except ApiError as error:
            refusal = error.code
        if refusal is not None:
            assert refusal is ErrorCode.GROUP_ID_NOT_FOUND
            assert not before
            return
        (codes,) = answers
        if codes[0]:
            assert self.has_members()
            assert self.offsets() == before
        else:
            assert consumer is None or topic not in consumer.subscribed_topics()
            assert self.offsets() == {place: offset for place, offset in before.items() if place[0] != topic}

    @rule()
    def group_is_deleted(self) -> None:
        core = self.stage.core
        had_members, before = self.has_members(), visible_state(core.durable)
        refusal = None
        try:
            decision, is_last = core.delete_some(GROUP, self.stage.now)
        except ApiError as error:
            refusal = error.code
        if refusal is not None:
            assert refusal is (ErrorCode.NON_EMPTY_GROUP if had_members else ErrorCode.GROUP_ID_NOT_FOUND)
            assert visible_state(core.durable) == before
            return
        self.stage.apply(decision)
        assert is_last
        assert not had_members
        assert GROUP not in core.group_ids()

    @rule()
    def offsets_expire(self) -> None:
        """Those of topics that are read never do."""
        core = self.stage.core
        consumer = core.consumers.find(GROUP)
        read = consumer.subscribed_topics() if consumer is not None else {}
        before, had_members = self.offsets(), self.has_members()
        self.stage.apply_all(core.sweep(core.group_ids(), self.stage.now))
        after = self.offsets()
        assert all(before.get(place) == offset for place, offset in after.items())
        assert {p for p in before if p[0] in read} <= after.keys()
        young_ms = self.stage.time_ms - RETENTION_MS
        assert {place for place, offset in before.items() if offset > young_ms} <= after.keys()
        assert had_members or after or GROUP not in core.group_ids()

    # What the world does

    @rule(duration_ms=st.sampled_from((500, 5000, 25_000, 50_000)))
    def wait(self, duration_ms: int) -> None:
        self.stage.pass_time(duration_ms)

    @rule(topics=st.sampled_from(({}, TOPICS, {"t": 4, "u": 5}, {"t": 4}, {"t": 6, "u": 3, "v": 2}, {"t": 1, "u": 3})))
    def topics_change(self, topics: dict[str, int]) -> None:
        self.stage.change_topics(topics)

    @precondition(lambda self: self.count % 3 == 2)
    @rule()
    def coordinator_lost(self) -> None:
        for reply in self.stage.core.abandon():
            reply(_lost())
        for client in self.of_kind(ClassicMember):
            client.joining = False
        self.stage.restart()

    # What must hold

    @invariant()
    def state_is_valid(self) -> None:
        if hasattr(self, "stage"):
            check_core(self.stage.core)

    @invariant()
    def the_log_says_what_is_live(self) -> None:
        if hasattr(self, "stage"):
            live = visible_state(self.stage.core.durable)
            assert visible_state(self.stage.replayed()) == live
            assert visible_state(self.stage.reloaded()) == live

    @invariant()
    def no_two_members_have_a_partition(self) -> None:
        """Those that are not fenced, that is: at most one owner of a partition at any time."""
        group = self.stage.core.consumers.find(GROUP) if hasattr(self, "stage") else None
        if group is None:
            return
        current = []
        for client in self.clients:
            member = group.members.get(client.member_id)
            if member is not None and not client.has_left and client.epoch == member.epoch:
                current.append({(t, p) for t, partitions in client.owned.items() for p in partitions})
        for one, other in combinations(current, 2):
            assert not one & other

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        self.settle()
        self.stage.change_topics({"t": 9, "u": 3, "v": 2})
        self.settle()
        self.stage.pass_time(3_600_000)
        self.state_is_valid()
        group = self.stage.core.consumers.find(GROUP)
        assert group is None or not group.members, "a silent member was kept"
        classic = self.stage.core.groups.get(GROUP)
        assert classic is None or classic.state is GroupState.EMPTY

    def settle(self) -> None:
        for _ in range(ROUNDS):
            self.all_beat(ROUND_MS)
        self.check_settled()

    def check_settled(self) -> None:
        """Nobody is stuck: the group is stable, and every partition that somebody reads has one owner who reads it."""
        core = self.stage.core
        group = core.consumers.find(GROUP)
        if group is not None and group.members:
            assert group.state is ConsumerGroupState.STABLE
            members = [c for c in self.live() if c.member_id in group.members]
            assert len(members) == len(group.members)
        else:
            classic = core.groups.get(GROUP)
            if classic is None or classic.state is GroupState.EMPTY:
                return
            assert classic.state is GroupState.STABLE
            members = [c for c in self.live() if c.member_id in classic.members.by_id]
        owners: dict[tuple[bytes, int], Any] = {}
        for client in members:
            for topic_id, partitions in client.owned.items():
                for partition in partitions:
                    assert (topic_id, partition) not in owners
                    owners[topic_id, partition] = client
        for topic in self.stage.image.topics.values():
            readers = [client for client in members if _reads(client, topic.name)]
            for partition in range(len(topic.partitions)):
                owner = owners.pop((topic.topic_id, partition), None)
                if group is not None and group.members:
                    assert (owner in readers) if readers else owner is None, (topic.name, partition)
        if group is not None and group.members:  # a classic leader has to notice by itself what is gone
            assert not owners, "partitions of topics that are gone"


def _reads(client: Any, topic: str) -> bool:
    pattern = getattr(client, "pattern", None)
    return topic in client.topics or bool(pattern and re.fullmatch(pattern, topic))


def _lost() -> Any:
    from tidelog.wire.errors import NotCoordinator

    return NotCoordinator()


TestConsumerHistory = ConsumerHistory.TestCase
TestConsumerHistory.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_an_upgrade_during_a_rebalance_assigns_partitions_even_if_the_new_member_reads_nothing() -> None:
    history = ConsumerHistory()
    history.begin(interval_ms=0, assignor="uniform")
    history.classic_joins(eager=False, instance=None, topics=["t"])
    history.consumer_joins_by_pattern(pattern="none")
    history.teardown()
