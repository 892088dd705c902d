"""One core without I/O and its log, driven step by step by a test."""

from typing import Any

from group_harness.invariants import check_core
from tidelog.coordinator.decision import Decision, Moment
from tidelog.coordinator.group.classic import ClassicGroup, JoinCall
from tidelog.coordinator.group.core import GroupCore
from tidelog.coordinator.group.offsets import OffsetCommit, OffsetToCommit
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

WALL_MS = 1_700_000_000_000
TOPIC_ID = b"\7" * 16


class Reply:
    """Takes the one answer to a request."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def __call__(self, answer: Any) -> None:
        self.answers.append(answer)

    @property
    def only(self) -> Any:
        (answer,) = self.answers
        return answer

    @property
    def error(self) -> ErrorCode:
        return ErrorCode(self.only.error_code)


class World:
    """Records of a decision are replayed at once, replies given at once."""

    def __init__(self, *, checked: bool = True, **settings: int) -> None:
        self.core = GroupCore(GroupSettings(**{"initial_rebalance_delay_ms": 300, **settings}))
        self.time_ms = 0
        self.records: list[Any] = []
        self.lines: list[str] = []
        """What the broker's log is told."""
        self._fresh = 0
        self._checked = checked
        """Whether its state is looked at after each step, which costs a walk over all members."""

    @property
    def now(self) -> Moment:
        return Moment(WALL_MS + self.time_ms, self.time_ms)

    @property
    def group(self) -> ClassicGroup:
        return self.core.groups["g"]

    def apply(self, decision: Decision) -> Decision:
        self.records += decision.records
        for record in decision.records:
            self.core.replay(record, len(self.records))  # type: ignore[arg-type]
        self.lines += [line.text % line.arguments for line in decision.lines]
        for reply, answer in decision.replies:
            reply(answer)
        if self._checked:
            check_core(self.core)
        return decision

    def wait(self, duration_ms: int) -> None:
        end_ms = self.time_ms + duration_ms
        while (next_ms := self.core.next_deadline_ms()) is not None and next_ms <= end_ms:
            self.time_ms = max(self.time_ms, next_ms)
            for decision in self.core.expire(self.now):
                self.apply(decision)
        self.time_ms = end_ms

    def sweep(self) -> None:
        for decision in self.core.sweep(self.core.group_ids(), self.now):
            self.apply(decision)

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        version: int = 3,
        protocols: list[tuple[str, bytes]] = [("range", b"m")],  # noqa: B006
        protocol_type: str = "consumer",
        session_ms: int = 1000,
        rebalance_ms: int = 2000,
        group: str = "g",
    ) -> Reply:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name, metadata) for name, metadata in protocols],
        )
        self._fresh += 1
        reply = Reply()
        self.apply(self.core.join(JoinCall(request, reply, "c", "/host", version, str(self._fresh)), self.now))
        return reply

    def sync(self, member_id: str, generation: int, *, instance: str | None = None, **assignments: bytes) -> Reply:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            assignments=[
                SyncGroupRequestAssignment(member.replace("_", "-"), data) for member, data in assignments.items()
            ],
        )
        reply = Reply()
        self.apply(self.core.sync(request, reply, self.now))
        return reply

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return self.core.heartbeat(HeartbeatRequest("g", generation, member_id, instance), self.now)

    def leave(self, *members: tuple[str, str | None]) -> Reply:
        reply = Reply()
        request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(one, instance) for one, instance in members])
        self.apply(self.core.leave(request, reply, self.now))
        return reply

    def commit(
        self,
        *offsets: tuple[int, int, str],
        member_id: str = "",
        instance: str | None = None,
        generation: int = -1,
        retention_ms: int = -1,
        version: int = 9,
        group: str = "g",
        topic: str = "t",
    ) -> list[ErrorCode]:
        told = [OffsetToCommit(topic, TOPIC_ID, partition, offset, 4, text) for partition, offset, text in offsets]
        commit = OffsetCommit(group, member_id, instance, generation, retention_ms, version, told)
        reply = Reply()
        self.apply(self.core.commit(commit, reply, self.now))
        codes: list[ErrorCode] = reply.only
        return codes

    def refusal(self, **arguments: Any) -> ErrorCode:
        """Why a commit is refused as a whole."""
        try:
            self.commit((0, 1, ""), **arguments)
        except ApiError as error:
            return error.code
        raise AssertionError("it was taken")

    def stable(self, count: int = 2, **arguments: Any) -> list[str]:
        """A stable group of so many members; the first leads. `arguments` are those of `join`."""
        joins = [self.join(**arguments) for _ in range(count)]
        self.wait(600)
        ids = [join.only.member_id for join in joins]
        leader = joins[0].only.leader
        generation = joins[0].only.generation_id
        self.sync(leader, generation, **{one.replace("-", "_"): one.encode() for one in ids})
        for one in ids:
            if one != leader:
                self.sync(one, generation)
        return ids
