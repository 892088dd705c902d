"""Members that behave like clients: they revoke partitions before they accept new ones, and join again when fenced."""

from typing import Any

from consumer_harness.stage import Stage
from tidelog.coordinator.consumer.embedded import read_assignment
from tidelog.coordinator.consumer.heartbeats import HeartbeatCall, check_request
from tidelog.coordinator.group.classic import JoinCall
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from tidelog.wire.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

Owned = dict[bytes, set[int]]
REBALANCE_MS = 20_000
SESSION_MS = 30_000


class ConsumerMember:
    """A member of the consumer protocol. `beat` sends one heartbeat and handles its response as a client does."""

    def __init__(
        self, stage: Stage, group: str, member_id: str, topics: list[str], instance: str | None = None
    ) -> None:
        self.stage = stage
        self.group = group
        self.member_id = member_id
        self.instance = instance
        self.topics = topics
        self.pattern: str | None = None
        self.assignor: str | None = None
        self.rack: str | None = None
        self.epoch = 0
        self.owned: Owned = {}
        self.assigned: Owned = {}
        self.sends_all_fields = True
        self.has_left = False
        self.error = ErrorCode.NONE

    def beat(self, *, lose_answer: bool = False) -> Any:
        """Send one heartbeat. Return the response, or the ApiError."""
        request = ConsumerGroupHeartbeatRequest(self.group, self.member_id, self.epoch, self.instance)
        if self.sends_all_fields or self.epoch == 0:
            request.rack_id = self.rack
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names = list(self.topics)
            request.subscribed_topic_regex = self.pattern
            request.server_assignor = self.assignor
        request.topic_partitions = [TopicPartitions(topic, sorted(p)) for topic, p in self.owned.items() if p]
        answer = self._send(request)
        if lose_answer:
            self.sends_all_fields = True
        elif isinstance(answer, ApiError):
            self._handle_error(answer.code)
        else:
            self._apply_response(answer)
        return answer

    def leave(self, epoch: int = -1) -> Any:
        answer = self._send(ConsumerGroupHeartbeatRequest(self.group, self.member_id, epoch, self.instance))
        self.has_left = True
        self.owned = {}
        return answer

    def _send(self, request: ConsumerGroupHeartbeatRequest) -> Any:
        answers: list[Any] = []
        stage = self.stage
        try:
            check_request(request, 1, stage.settings.consumer)
            call = HeartbeatCall(request, answers.append, "c", "/h", 1, "")
            stage.apply(stage.core.consumer_heartbeat(call, stage.now))
        except ApiError as error:
            return error
        (answer,) = answers
        return answer

    def _handle_error(self, code: ErrorCode) -> None:
        self.error = code
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self.epoch = 0
            self.owned = {}
            self.assigned = {}
            self.sends_all_fields = True
        elif code == ErrorCode.UNRELEASED_INSTANCE_ID:
            self.sends_all_fields = True
        else:
            self.has_left = True
            self.owned = {}

    def _apply_response(self, answer: Any) -> None:
        self.error = ErrorCode.NONE
        self.sends_all_fields = False
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = {t.topic_id: set(t.partitions) for t in answer.assignment.topic_partitions}
            # A client accepts new partitions after it has revoked the old ones. Here revoking takes no time.
            self.owned = {topic: set(partitions) for topic, partitions in self.assigned.items()}


class ClassicMember:
    """A member of the classic protocol. Before it joins, it revokes all its partitions if it is eager. A cooperative
    member retains them.
    """

    def __init__(
        self, stage: Stage, group: str, topics: list[str], *, eager: bool = True, instance: str | None = None
    ) -> None:
        self.stage = stage
        self.group = group
        self.topics = topics
        self.eager = eager
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.owned: Owned = {}
        self.joining = False
        self.synced = False
        self.has_left = False
        self._fresh = 0
        self._members: list[Any] = []

    @property
    def epoch(self) -> int:
        return self.generation

    def beat(self) -> None:
        """Send the client's next request: join, sync, or heartbeat."""
        if self.joining:
            return
        if self.generation < 0:
            self.join()
        elif not self.synced:
            self.sync()
        else:
            request = HeartbeatRequest(self.group, self.generation, self.member_id, self.instance)
            self._handle_error(self.stage.core.heartbeat(request, self.stage.now))

    def join(self) -> None:
        stage = self.stage
        if self.eager:
            self.owned = {}
        self.joining = True
        self._fresh += 1
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", self._metadata())],
        )
        fresh = f"{id(self):x}-{self._fresh}"
        joining = JoinCall(request, self._on_join_response, "c", "/h", 5, f"classic-{fresh}", f"uuid-{fresh}")
        stage.apply(stage.core.join(joining, stage.now))

    def sync(self) -> None:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            assignments=self._leader_assignments(),
        )
        self.stage.apply(self.stage.core.sync(request, self._on_sync_response, self.stage.now))

    def leave(self) -> None:
        identity = MemberIdentity(self.member_id, self.instance)
        request = LeaveGroupRequest(group_id=self.group, members=[identity])
        self.stage.apply(self.stage.core.leave(request, lambda answer: None, self.stage.now))
        self.has_left = True
        self.owned = {}

    def _metadata(self) -> bytes:
        names = {topic.topic_id: topic.name for topic in self.stage.image.topics.values()}
        owned = [
            ConsumerProtocolSubscriptionTopicPartition(names[topic], sorted(partitions))
            for topic, partitions in self.owned.items()
            if topic in names
        ]
        return b"\0\1" + ConsumerProtocolSubscription(topics=self.topics, owned_partitions=owned).encode(1)

    def _on_join_response(self, answer: Any) -> None:
        self.joining = False
        if isinstance(answer, ApiError):
            return
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.join()
        elif answer.error_code:
            self._handle_error(answer.error_code)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self._members = answer.members
            self.synced = False

    def _leader_assignments(self) -> list[SyncGroupRequestAssignment]:
        """Return assignments as a classic leader computes them: each topic's partitions, round-robin over the topic's
        subscribers.
        """
        from tidelog.coordinator.consumer.embedded import read_subscription, write_assignment

        assignments: dict[str, dict[bytes, list[int]]] = {member.member_id: {} for member in self._members}
        readers = {m.member_id: read_subscription(bytes(m.metadata)).topics for m in self._members}
        for topic in self.stage.image.topics.values():
            subscribers = [member_id for member_id, topics in readers.items() if topic.name in topics]
            for partition in range(len(topic.partitions) if subscribers else 0):
                assignments[subscribers[partition % len(subscribers)]].setdefault(topic.topic_id, []).append(partition)
        return [
            SyncGroupRequestAssignment(
                member_id, write_assignment({t: tuple(p) for t, p in parts.items()}, 1, self.stage.image)
            )
            for member_id, parts in assignments.items()
        ]

    def _on_sync_response(self, answer: Any) -> None:
        if isinstance(answer, ApiError):
            return
        if answer.error_code:
            self._handle_error(answer.error_code)
            return
        self.synced = True
        topics = self.stage.image.topics
        self.owned = {
            topics[part.topic].topic_id: set(part.partitions)
            for part in read_assignment(bytes(answer.assignment)).assigned_partitions
            if part.topic in topics and part.partitions
        }

    def _handle_error(self, code: int) -> None:
        if code == ErrorCode.NONE:
            return
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            if self.eager:
                self.owned = {}
            self.join()
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self.has_left = True
            self.owned = {}
        else:
            self.generation = -1
            self.owned = {}
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
