"""Random histories of members that join, leave, stall, commit and rejoin, on the core without I/O, against invariants.

Members follow no protocol here: they send what a member could send, in any order. Seeds are Hypothesis's.
"""

from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from group_harness.invariants import check_core
from tidelog.coordinator.decision import Decision, Moment
from tidelog.coordinator.group.classic import JoinCall
from tidelog.coordinator.group.core import GroupCore
from tidelog.coordinator.group.durable import DurableGroups
from tidelog.coordinator.group.offsets import OffsetCommit, OffsetToCommit
from tidelog.coordinator.group.records import decode_record
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state import GroupState
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

GROUPS = ("g", "g", "h")
TOPIC_ID = b"\1" * 16
FOREVER_MS = 3_600_000

groups = st.sampled_from(GROUPS)
versions = st.sampled_from((0, 3, 4, 9))
instances = st.sampled_from((None, None, "i", "j"))
protocol_lists = st.sampled_from(
    (
        [("range", b"a")],
        [("range", b"b")],
        [("range", b"a"), ("rr", b"c")],
        [("rr", b"d"), ("range", b"e")],
        [("rr", b"f")],
    )
)
timeouts_ms = st.sampled_from((0, 500, 3000))


class Client:
    """What one member knows from the answers that it got."""

    def __init__(self, group: str, instance: str | None) -> None:
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.leads: list[str] = []


class GroupHistory(RuleBasedStateMachine):
    """The core, its log in encoded form, and what the clients were told."""

    @initialize(delay_ms=st.sampled_from((0, 300)), max_size=st.sampled_from((2, 100)))
    def begin(self, delay_ms: int, max_size: int) -> None:
        self.settings = GroupSettings(
            initial_rebalance_delay_ms=delay_ms, min_session_timeout_ms=0, group_max_size=max_size
        )
        self.core = GroupCore(self.settings)
        self.log: list[tuple[bytes, bytes | None, int]] = []
        self.time_ms = 1_000_000
        self.ids = 0
        self.asked = 0
        self.answered = 0
        self.clients: list[Client] = []
        self.leaders: dict[tuple[str, int], str] = {}
        self.generations: dict[str, int] = {}

    # The runtime's part

    @property
    def now(self) -> Moment:
        return Moment(1_700_000_000_000 + self.time_ms, self.time_ms)

    def apply(self, decision: Decision) -> None:
        if decision.records:
            next_offset = len(self.log) + len(decision.records)
            for record in decision.records:
                self.log.append((*record.encode(), next_offset))
            for record in decision.records:
                self.core.replay(record, next_offset)  # type: ignore[arg-type]
        for reply, answer in decision.replies:
            reply(answer)

    def apply_all(self, decisions: Iterator[Decision]) -> None:
        for decision in decisions:
            self.apply(decision)

    def pass_time(self, duration_ms: int) -> None:
        """From deadline to deadline, as a timer would."""
        end_ms = self.time_ms + duration_ms
        while (next_ms := self.core.next_deadline_ms()) is not None and next_ms <= end_ms:
            self.time_ms = max(next_ms, self.time_ms)
            self.apply_all(self.core.expire(self.now))
        self.time_ms = end_ms

    def once(self, take: Any) -> Any:
        """A reply that must come exactly once."""
        self.asked += 1
        told: list[Any] = []

        def reply(answer: Any) -> None:
            assert not told, "answered twice"
            told.append(answer)
            self.answered += 1
            if not isinstance(answer, ApiError):
                take(answer)

        return reply

    # What members do

    @rule(group=groups, version=versions, instance=instances, protocols=protocol_lists, rebalance_ms=timeouts_ms)
    def join_new(self, group: str, version: int, instance: str | None, protocols: Any, rebalance_ms: int) -> None:
        client = Client(group, instance if version >= 5 else None)
        self.clients.append(client)
        self.join(client, version, protocols, rebalance_ms)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), version=versions, protocols=protocol_lists, rebalance_ms=timeouts_ms)
    def join_again(self, data: Any, version: int, protocols: Any, rebalance_ms: int) -> None:
        self.join(data.draw(st.sampled_from(self.clients)), version, protocols, rebalance_ms)

    def join(self, client: Client, version: int, protocols: Any, rebalance_ms: int) -> None:
        def told(answer: Any) -> None:
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = answer.member_id
            if answer.error_code:
                return
            client.member_id = answer.member_id
            client.generation = answer.generation_id
            client.leads = [member.member_id for member in answer.members]
            self.check_joined(client, answer)

        request = JoinGroupRequest(
            group_id=client.group,
            session_timeout_ms=1000,
            rebalance_timeout_ms=rebalance_ms,
            member_id=client.member_id,
            group_instance_id=client.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name, metadata) for name, metadata in protocols],
        )
        self.ids += 1
        joining = JoinCall(request, self.once(told), "client", "/host", version, f"{self.ids:04}")
        self.apply(self.core.join(joining, self.now))

    def check_joined(self, client: Client, answer: Any) -> None:
        """One leader, which alone gets the members and is one of them; generations grow."""
        assert answer.generation_id >= self.generations.get(client.group, 0)
        self.generations[client.group] = answer.generation_id
        if not answer.members:
            return
        ids = [member.member_id for member in answer.members]
        assert answer.member_id == answer.leader
        assert len(set(ids)) == len(ids)
        assert answer.leader in ids
        group = self.core.groups[client.group]
        assert sorted(ids) == sorted(group.members.by_id)
        key = (client.group, answer.generation_id)
        former = self.leaders.setdefault(key, answer.leader)
        # A static leader that came back has a new id in the same generation.
        assert former == answer.leader or client.instance is not None
        self.leaders[key] = answer.leader

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def sync(self, data: Any) -> None:
        self.sync_as(data.draw(st.sampled_from(self.clients)))

    def sync_as(self, client: Client) -> None:
        assignments = {member: f"{client.generation}:{member}".encode() for member in client.leads}

        def told(answer: Any) -> None:
            if answer.error_code:
                assert not answer.assignment
                return
            group = self.core.groups[client.group]
            assert answer.protocol_name == group.protocol_name
            member = group.members.by_id.get(client.member_id)
            if member is not None:
                assert answer.assignment == member.assignment

        request = SyncGroupRequest(
            group_id=client.group,
            generation_id=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance,
            assignments=[SyncGroupRequestAssignment(member, data) for member, data in assignments.items()],
        )
        self.apply(self.core.sync(request, self.once(told), self.now))

    @rule(group=groups, version=versions, count=st.integers(1, 3), static=st.booleans())
    def settle(self, group: str, version: int, count: int, static: bool) -> None:
        """Some members do all that is right, until their group is stable or has lost them."""
        self.clients += [Client(group, f"s{number}" if static and version >= 5 else None) for number in range(count)]
        members = [client for client in self.clients if client.group == group][-4:]
        for _ in range(2):
            for client in members:
                self.join(client, version, [("range", b"a")], 3000)
            self.pass_time(700)
        for client in sorted(members, key=lambda client: not client.leads):
            self.sync_as(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def heartbeat(self, data: Any) -> None:
        client = data.draw(st.sampled_from(self.clients))
        request = HeartbeatRequest(client.group, client.generation, client.member_id, client.instance)
        code = self.core.heartbeat(request, self.now)
        if code == ErrorCode.NONE:
            assert self.core.groups[client.group].state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), by_instance=st.booleans())
    def leave(self, data: Any, by_instance: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        identity = MemberIdentity("" if by_instance else client.member_id, client.instance)
        request = LeaveGroupRequest(group_id=client.group, members=[identity])
        self.apply(self.core.leave(request, self.once(lambda answer: None), self.now))

    @rule(data=st.data(), group=groups, partition=st.integers(0, 2), retention_ms=st.sampled_from((-1, 5000)))
    def commit(self, data: Any, group: str, partition: int, retention_ms: int) -> None:
        known = [client for client in self.clients if client.group == group]
        client = data.draw(st.sampled_from([None, *known]))
        offset = OffsetToCommit("t", TOPIC_ID, partition, self.time_ms, 3, "m")
        commit = OffsetCommit(
            group,
            client.member_id if client else "",
            client.instance if client else None,
            client.generation if client else -1,
            retention_ms,
            9,
            [offset],
        )
        reply = self.once(lambda codes: None)
        try:
            self.apply(self.core.commit(commit, reply, self.now))
        except ApiError as error:
            reply(error)
        else:
            durable = self.core.durable.by_id[group].committed_offset("t", partition)
            assert durable is not None
            assert durable.offset == self.time_ms

    # What the world does

    @rule(duration_ms=st.sampled_from((100, 400, 1100, 4000)))
    def wait(self, duration_ms: int) -> None:
        self.pass_time(duration_ms)

    @precondition(lambda self: len(self.clients) % 3 == 2)
    @rule()
    def sweep(self) -> None:
        self.apply_all(self.core.sweep(self.core.group_ids(), self.now))
        for group in GROUPS:
            if group not in self.core.group_ids():  # its generations begin anew
                self.generations.pop(group, None)
                self.leaders = {key: leader for key, leader in self.leaders.items() if key[0] != group}

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        """Without members it goes, with all that it had; with members nothing happens."""
        before = told(self.core.durable)
        known = self.core.groups.get(group)
        has_members = known is not None and known.state is not GroupState.EMPTY
        refusal = None
        try:
            decision, is_last = self.core.delete_some(group, self.now)
        except ApiError as error:
            refusal = error.code
        if refusal is not None:
            assert refusal is (ErrorCode.NON_EMPTY_GROUP if has_members else ErrorCode.GROUP_ID_NOT_FOUND)
            assert told(self.core.durable) == before
            return
        self.apply(decision)
        assert is_last
        assert not has_members
        assert group not in self.core.group_ids()
        self.generations.pop(group, None)  # they begin anew
        self.leaders = {key: leader for key, leader in self.leaders.items() if key[0] != group}

    @rule(group=groups, partitions=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def delete_offsets(self, group: str, partitions: list[int]) -> None:
        """Members here say nothing that can be read: while there are some, they are taken to read everything."""
        known = self.core.groups.get(group)
        has_members = known is not None and known.state is not GroupState.EMPTY
        answers: list[list[ErrorCode]] = []
        reply = self.once(answers.append)
        refusal = None
        try:
            asked = [("t", partition) for partition in partitions]
            self.apply(self.core.delete_offsets(group, asked, reply, self.now))
        except ApiError as error:
            refusal = error.code
            reply(error)
        if refusal is not None:
            assert refusal is ErrorCode.GROUP_ID_NOT_FOUND
            assert group not in self.core.group_ids()
            return
        durable = self.core.durable.by_id.get(group)
        (codes,) = answers
        for partition, code in zip(partitions, codes, strict=True):
            if code is ErrorCode.NONE:
                assert durable is None or durable.committed_offset("t", partition) is None
            else:
                assert code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                assert has_members

    @precondition(lambda self: len(self.clients) % 3 == 1)
    @rule()
    def topic_deleted(self) -> None:
        self.apply_all(self.core.forget_topics({"t": None}, self.now))
        assert all("t" not in durable.offsets for durable in self.core.durable.by_id.values())

    @precondition(lambda self: len(self.clients) % 3 == 2)
    @rule()
    def coordinator_lost(self) -> None:
        """Soft state is gone; whoever waits is told so; the rest is in the log."""
        for reply in self.core.abandon():
            reply(ApiError())
        self.core = GroupCore(self.settings)
        self.core.durable = self.replayed()
        self.apply(self.core.loaded(self.now))
        self.generations = {
            group: durable.metadata.generation
            for group, durable in self.core.durable.by_id.items()
            if durable.metadata is not None
        }
        self.leaders.clear()

    def replayed(self) -> DurableGroups:
        durable = DurableGroups()
        for key, value, next_offset in self.log:
            record = decode_record(key, value)
            assert record is not None
            durable.replay(record, next_offset)
        return durable

    # What must hold

    @invariant()
    def state_is_valid(self) -> None:
        if hasattr(self, "core"):
            check_core(self.core)

    @invariant()
    def the_log_says_what_is_live(self) -> None:
        if hasattr(self, "core"):
            assert told(self.replayed()) == told(self.core.durable)

    def teardown(self) -> None:
        """Nobody is stuck: when all clients fall silent, everyone who waits is answered and every group is empty."""
        if not hasattr(self, "core"):
            return
        self.pass_time(FOREVER_MS)
        check_core(self.core)
        assert self.answered == self.asked
        for group in self.core.groups.values():
            assert group.state is GroupState.EMPTY
            assert not group.members.pending
        assert all(
            durable.metadata is None or not durable.metadata.members for durable in self.core.durable.by_id.values()
        )
        assert self.core.next_deadline_ms() is None or not self.core.groups


def told(groups: DurableGroups) -> dict[str, Any]:
    return {name: (durable.metadata, durable.offsets, durable.next_offset) for name, durable in groups.by_id.items()}


TestGroupHistory = GroupHistory.TestCase
TestGroupHistory.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
