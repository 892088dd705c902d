"""The members of one classic group: who they are, what they vote for, whom the group waits for."""

from collections import Counter
from collections.abc import Iterator, Sequence

from tidelog.coordinator.deadlines import Deadline
from tidelog.coordinator.decision import Reply
from tidelog.coordinator.group.hashing import hash_map_place
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.wire.primitives import MalformedMessage

PROTOCOL_OVERHEAD_BYTES = 200
"""Of objects and votes, for each protocol that a member names."""

Protocols = list[tuple[str, bytes]]
"""(name, metadata) in the member's order of preference, as it sent them: a name may come more than once."""


def protocols_to_vote_for(protocols: Sequence[tuple[str, bytes]]) -> list[str]:
    """The names that come once. Kafka never chooses a protocol that a member names more than once."""
    names = [name for name, _ in protocols]
    if len(dict.fromkeys(names)) == len(names):
        return names
    counts = Counter(names)
    return [name for name in names if counts[name] == 1]


class Member:
    """One member: what it said when it joined, and which of its requests are parked."""

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
        self.sync_reply: Reply | None = None
        self.is_new = False
        """Joined for the first time and not answered yet: it does not know its id, so it cannot send heartbeats."""

    def metadata_for(self, protocol: str | None) -> bytes:
        """The metadata that the member sent with that protocol; empty if it did not name it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""


def metadata_bytes(protocols: Protocols) -> int:
    """What they take in memory, roughly."""
    return sum(PROTOCOL_OVERHEAD_BYTES + len(name) + len(metadata) for name, metadata in protocols)


class Members:
    """Members in the order in which they joined, with the counts that a rebalance turns on. No step costs O(members),
    but those that go over all members by their nature (once a rebalance)."""

    __slots__ = ("_votes", "by_id", "joining", "leader_id", "metadata_bytes", "pending", "static_ids", "unsynced")

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        """Group instance id -> member id (KIP-345)."""
        self.pending: dict[str, Deadline] = {}
        """Member ids that were handed out and have not joined (KIP-394)."""
        self.unsynced: dict[str, None] = {}
        """Members of this generation that have not asked for their assignment."""
        self.joining = 0
        """Members whose join is parked."""
        self.leader_id: str | None = None
        self.metadata_bytes = 0
        """Of all protocols of all members."""
        self._votes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.by_id

    @property
    def all_joined(self) -> bool:
        return self.joining == len(self.by_id) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asked for."""
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    def add(self, member: Member) -> None:
        """The first to come leads, until it leaves."""
        assert member.member_id not in self.by_id
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self.static_ids
            self.static_ids[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count_votes(member.protocols, 1)

    def remove(self, member: Member) -> None:
        """Its parked requests must have been answered."""
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

    def rename(self, member: Member, member_id: str) -> None:
        """A static member came back under a new id; it takes the old one's place in every respect."""
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

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._count_votes(member.protocols, -1)
        member.protocols = protocols
        self._count_votes(protocols, 1)

    def park_join(self, member: Member, reply: Reply) -> Reply | None:
        """Returns the join that was parked before it, if there was one."""
        earlier = member.join_reply
        if earlier is None:
            self.joining += 1
        member.join_reply = reply
        return earlier

    def take_join(self, member: Member) -> Reply | None:
        """The parked join, which the caller answers."""
        reply = member.join_reply
        if reply is not None:
            member.join_reply = None
            self.joining -= 1
        return reply

    def support(self, protocols: Protocols) -> bool:
        """Whether one of `protocols` can be chosen: every member can vote for it."""
        everyone = len(self.by_id)
        return any(self._votes.get(name, 0) == everyone for name in protocols_to_vote_for(protocols))

    def select_protocol(self) -> str:
        """Of the protocols that all members can vote for, the one that most prefer; a tie ends as it does in Kafka."""
        everyone = len(self.by_id)
        counts: dict[str, int] = {}
        for member in self.by_id.values():
            for name, _ in member.protocols:
                if self._votes.get(name) == everyone:
                    counts[name] = counts.get(name, 0) + 1
                    break
        assert counts, "members without a common protocol"
        return max(counts, key=lambda name: (counts[name], -hash_map_place(name)))

    def elect_joined_leader(self) -> bool:
        """Keep the leader if its join is parked, else take the first member whose is. False if there is none."""
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
    """The topics of these consumers' metadata; None if one of them cannot be read."""
    topics: list[str] = []
    for metadata in subscriptions:
        try:
            version = int.from_bytes(metadata[:2], "big", signed=True)
            if len(metadata) < 2 or version < 0:
                return None
            known = min(version, ConsumerProtocolSubscription.max_version)
            topics += ConsumerProtocolSubscription.decode(metadata, 2, known)[0].topics
        except MalformedMessage:
            return None
    return frozenset(topics)
