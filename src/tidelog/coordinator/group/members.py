"""The members of one classic group, their votes for a protocol, and the counts that a rebalance depends on.

A request is parked while its answer waits for other members of the group.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from tidelog.coordinator.deadlines import Deadline
from tidelog.coordinator.decision import Reply
from tidelog.coordinator.group.hashing import hash_map_bucket
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.wire.primitives import MalformedMessage

PROTOCOL_OVERHEAD_BYTES = 200
"""Estimated memory, in bytes, that one protocol of a member needs for Python's objects and the member's vote. The name
and the metadata of the protocol need memory in addition."""

Protocols = list[tuple[str, bytes]]
"""Pairs of name and metadata, in the member's order of preference. They are stored as the member sent them, so a name
may occur more than once."""


def protocols_to_vote_for(protocols: Sequence[tuple[str, bytes]]) -> list[str]:
    """Return the names that occur exactly once. Kafka never chooses a protocol that a member names more than once."""
    names = [name for name, _ in protocols]
    if len(dict.fromkeys(names)) == len(names):
        return names
    counts = Counter(names)
    return [name for name in names if counts[name] == 1]


class ClassicMember:
    """One member: the fields of its join request, its parked requests and its assignment."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_reply",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "sync_reply",
    )

    def __init__(
        self,
        *,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        session: Deadline,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.session = session
        self.assignment = assignment
        self.join_reply: Reply | None = None
        """The reply of the member's parked JoinGroup request, if there is one."""
        self.sync_reply: Reply | None = None
        """The reply of the member's parked SyncGroup request, if there is one."""
        self.is_new = False
        """Whether the member's first join is not answered yet. Until the answer, the member sends no heartbeats: it may
        not even know its id."""

    def metadata_for(self, protocol: str | None) -> bytes:
        """Return the metadata that the member sent for the protocol; empty if the member does not support it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""


def metadata_bytes(protocols: Protocols) -> int:
    """Return the estimated memory of the protocols, in bytes."""
    return sum(PROTOCOL_OVERHEAD_BYTES + len(name) + len(metadata) for name, metadata in protocols)


class ClassicMembers:
    """Members in the order in which they joined, with the counts that a rebalance depends on.

    Only steps that occur once in a rebalance, or once for each restart of a static member, take time proportional to
    the number of members.
    """

    __slots__ = (
        "_votes",
        "by_id",
        "leader_id",
        "metadata_bytes",
        "parked_join_count",
        "pending",
        "static_ids",
        "unsynced",
    )

    def __init__(self) -> None:
        self.by_id: dict[str, ClassicMember] = {}
        self.static_ids: dict[str, str] = {}
        """Member id by group instance id (KIP-345)."""
        self.pending: dict[str, Deadline] = {}
        """Session deadlines of the member ids that clients have received but have not joined with yet (KIP-394)."""
        self.unsynced: dict[str, None] = {}
        """Ids of the members of this generation that have not sent SyncGroup yet."""
        self.parked_join_count = 0
        """Number of members whose join is parked."""
        self.leader_id: str | None = None
        """None if the group has no members."""
        self.metadata_bytes = 0
        """Estimated memory of all protocols of all members, in bytes."""
        self._votes: dict[str, int] = {}
        """For each protocol, the number of members that support it."""

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self.by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.by_id

    @property
    def all_joined(self) -> bool:
        return self.parked_join_count == len(self.by_id) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member."""
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    def add(self, member: ClassicMember) -> None:
        """Add a member. The first member becomes the leader."""
        assert member.member_id not in self.by_id
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self.static_ids
            self.static_ids[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count_votes(member.protocols, 1)

    def remove(self, member: ClassicMember) -> None:
        """Remove a member. Its parked requests must have been answered."""
        assert member.join_reply is None
        assert member.sync_reply is None
        member_id = member.member_id
        del self.by_id[member_id]
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        self.unsynced.pop(member_id, None)
        self._count_votes(member.protocols, -1)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.by_id), None)

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Change the id of a static member that restarted. If the member was the leader, it remains the leader. If
        it had not sent SyncGroup yet, the broker still expects its SyncGroup.
        """
        del self.by_id[member.member_id]
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        if member.member_id in self.unsynced:
            del self.unsynced[member.member_id]
            self.unsynced[member_id] = None
        assert member.instance_id is not None
        self.static_ids[member.instance_id] = member_id
        member.member_id = member_id
        self.by_id[member_id] = member

    def set_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        self._count_votes(member.protocols, -1)
        member.protocols = protocols
        self._count_votes(protocols, 1)

    def park_join(self, member: ClassicMember, reply: Reply) -> Reply | None:
        """Park a join. If a previous join of the member was still parked, return the reply of that join."""
        previous_reply = member.join_reply
        if previous_reply is None:
            self.parked_join_count += 1
        member.join_reply = reply
        return previous_reply

    def unpark_join(self, member: ClassicMember) -> Reply | None:
        """Remove the member's parked join and return its reply: a function that the caller must call with the answer.
        Returns None if no join is parked.
        """
        reply = member.join_reply
        if reply is not None:
            member.join_reply = None
            self.parked_join_count -= 1
        return reply

    def supports(self, protocols: Protocols) -> bool:
        """Return whether at least one of `protocols` is supported by all members, so that it can be selected."""
        member_count = len(self.by_id)
        return any(self._votes.get(name, 0) == member_count for name in protocols_to_vote_for(protocols))

    def select_protocol(self) -> str:
        """Return the protocol that gets the most votes. Each member votes for the first of its protocols that all
        members support. Ties are broken as in Kafka.
        """
        member_count = len(self.by_id)
        counts: dict[str, int] = {}
        for member in self.by_id.values():
            for name, _ in member.protocols:
                if self._votes.get(name) == member_count:
                    counts[name] = counts.get(name, 0) + 1
                    break
        assert counts, "members without a common protocol"
        return max(counts, key=lambda name: (counts[name], -hash_map_bucket(name)))

    def elect_joined_leader(self) -> bool:
        """Ensure that the leader is a member with a parked join. The current leader is preferred; the second choice is
        the first member with a parked join. Returns False if no join is parked.
        """
        if self.leader_id is None:
            return False
        if self.by_id[self.leader_id].join_reply is not None:
            return True
        for member in self.by_id.values():
            if member.join_reply is not None:
                self.leader_id = member.member_id
                return True
        return False

    def _count_votes(self, protocols: Protocols, change: int) -> None:
        votes = self._votes
        for name in protocols_to_vote_for(protocols):
            count = votes.get(name, 0) + change
            if count:
                votes[name] = count
            else:
                del votes[name]
        self.metadata_bytes += change * metadata_bytes(protocols)


def topics_of(subscriptions: list[bytes]) -> frozenset[str] | None:
    """Return the topics of these encoded subscriptions; None if one of the subscriptions cannot be decoded."""
    topics: list[str] = []
    for metadata in subscriptions:
        try:
            version = int.from_bytes(metadata[:2], "big", signed=True)
            if len(metadata) < 2 or version < 0:
                return None
            version_to_read = min(version, ConsumerProtocolSubscription.max_version)
            topics += ConsumerProtocolSubscription.decode(metadata, 2, version_to_read)[0].topics
        except MalformedMessage:
            return None
    return frozenset(topics)
