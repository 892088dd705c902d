"""Members of a consumer group in a simulated cluster, and the checks of their generations and commits.

The members join, read the partitions that they are assigned, and commit. They follow the coordinator from broker to
broker.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from simulation_harness.cluster_ledger import Violation
from tidelog.client import coordinators
from tidelog.client.cluster import Address
from tidelog.client.connection import NEWEST
from tidelog.client.errors import BrokerUnreachable, ClientError, GaveUp
from tidelog.client.operations import Request
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster_client import ClusterClient
from tidelog.simulation.member import SimMember
from tidelog.wire.errors import ErrorCode
from tidelog.wire.message import Message

M = TypeVar("M", bound=Message)

GROUP = "pipeline"
SESSION_MS = 2500
"""Session and rebalance timeout, in milliseconds. It is shorter than the time that a client waits for a response, so
that JoinGroup is answered."""
MEMBER_SETTINGS = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "100"}
FIND_S = 10.0

FENCED = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
REBALANCES = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
COORDINATOR_CHANGES = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
)


class CommitAttempt(NamedTuple):
    offset: int
    began_s: float
    ended_s: float
    """Infinite if the outcome is unknown: the commit may be executed at any later time."""


class GroupLedger:
    """The generations and commits of the members of one group."""

    def __init__(self, coverage: Counter[str], note: Callable[[str, str, str], None]) -> None:
        self._coverage = coverage
        self._note = note
        self._generations: list[tuple[float, int]] = []
        """Each generation that was synchronized, with the time of the first confirmation; both ascending."""
        self._leaders: dict[int, str] = {}
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self._attempts: dict[TopicPartition, dict[int, CommitAttempt]] = {}
        self._confirmed: dict[TopicPartition, dict[int, None]] = {}
        self._next_attempt = 0

    def generation_before(self, time_s: float) -> int:
        """Return the highest generation that was confirmed before this time."""
        return max((generation for confirmed_s, generation in self._generations if confirmed_s < time_s), default=-1)

    def synchronized(self, member: SimMember, join_began_s: float, now_s: float) -> None:
        """Check an assignment that a member has received.

        `GenerationsIncrease`: a later join does not lead to an older generation. `OneOwner`: a generation has one
        leader, and no two members of it are assigned the same partition.
        """
        generation = member.generation
        newest = self.generation_before(join_began_s)
        if generation < newest:
            text = f"{member.member_id} joined generation {generation} of {GROUP} after generation {newest}"
            raise Violation("GenerationsIncrease", text)
        for topic, indexes in member.assignment.items():
            for partition in (TopicPartition(topic, index) for index in indexes):
                owner = self._owners.setdefault((generation, partition), member.member_id)
                if owner != member.member_id:
                    text = f"{partition} is assigned to {owner} and {member.member_id} in generation {generation}"
                    raise Violation("OneOwner", text, partition)
        if generation > newest:
            self._generations.append((now_s, generation))
            self._coverage["generations of the group"] += 1
        self._note("client", "joined", f"{GROUP} generation={generation} {member.member_id} {member.assignment}")

    def attempt(self, partition: TopicPartition, offset: int, now_s: float) -> int:
        """Add a commit that is about to be sent. Returns its number."""
        self._next_attempt += 1
        self._attempts.setdefault(partition, {})[self._next_attempt] = CommitAttempt(offset, now_s, math.inf)
        return self._next_attempt

    def refuse(self, partition: TopicPartition, number: int) -> None:
        """The commit was not executed and never will be."""
        del self._attempts[partition][number]

    def confirm(self, partition: TopicPartition, number: int, generation: int, now_s: float) -> None:
        """`OldMembersAreFenced`: no commit of an older generation is confirmed that was sent after a newer generation
        was synchronized.
        """
        attempt = self._attempts[partition][number]
        newest = self.generation_before(attempt.began_s)
        if generation < newest:
            text = f"{partition} was committed at {attempt.offset} in generation {generation} after {newest}"
            raise Violation("OldMembersAreFenced", text, partition)
        self._attempts[partition][number] = attempt._replace(ended_s=now_s)
        self._confirmed.setdefault(partition, {})[number] = None
        self._coverage["commits of members"] += 1
        self._note("client", "committed", f"{partition} at {attempt.offset} in generation {generation}")

    def unknown_to_coordinator(self, partition: TopicPartition) -> None:
        """Count a commit for a partition that a member has read. The coordinator has not processed its creation."""
        if partition in self._confirmed:
            raise Violation("NoFinalError", f"{partition} was committed before, and is unknown", partition)
        self._coverage["topics not known to a broker"] += 1

    def check(self, partition: TopicPartition, offset: int, began_s: float) -> None:
        """Check a committed offset that was read by a request that began at `began_s`; -1 means that there is no
        committed offset. `CommitsStay`: the offset belongs to an attempt, and no later attempt was confirmed before the
        request.
        """
        attempts = self._attempts.get(partition, {})
        overwritten_s = max(
            (attempts[n].began_s for n in self._confirmed.get(partition, {}) if attempts[n].ended_s < began_s),
            default=-math.inf,
        )
        possible = [attempt.offset for attempt in attempts.values() if attempt.ended_s >= overwritten_s]
        if offset not in possible and (offset >= 0 or overwritten_s > -math.inf):
            text = f"{partition} of {GROUP} is at {offset}, and may be at {possible}"
            raise Violation("CommitsStay", text, partition)
        self._coverage["commits of members read"] += 1


class Coordinator:
    """Requests to the coordinator of a group."""

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._client = client
        self._group = group
        self._address: Address | None = None

    async def find(self) -> None:
        """Raises ClientError."""
        find = coordinators.find_coordinators([self._group], coordinators.GROUPS)
        found = (await self._client.run(find, FIND_S))[self._group]
        if not isinstance(found, coordinators.Coordinator):
            raise GaveUp(f"no coordinator: {found}")
        self._address = found.address

    async def ask(self, request: Message, response_class: type[M], *, version_max: int = NEWEST) -> M:
        assert self._address is not None
        answer = await self._client.ask(Request(self._address, request, version_max))
        if isinstance(answer, BrokerUnreachable):
            raise answer
        assert isinstance(answer, response_class)
        return answer


Consume = Callable[[TopicPartition, int], Awaitable[int]]
"""Reads a partition from an offset on. Returns the next offset."""


class GroupMember:
    """One consumer of the group, which joins again whenever its membership ends."""

    def __init__(
        self, client: ClusterClient, ledger: GroupLedger, now_s: Callable[[], float], partitions: dict[str, int]
    ) -> None:
        """`partitions` is the number of partitions by topic."""
        self.client = client
        self._ledger = ledger
        self._now_s = now_s
        self._partitions = partitions
        self._member = self._new_member()

    def _new_member(self) -> SimMember:
        return SimMember(Coordinator(self.client, GROUP), GROUP, [], session_ms=SESSION_MS)

    async def run(self, until_s: float, consume: Consume) -> None:
        """Join, consume and commit until the time is over."""
        while self._now_s() < until_s:
            try:
                await self._find_coordinator()
                if await self._join():
                    await self._work(until_s, consume)
            except ClientError:
                await self.client.sleep(0.2)

    async def _find_coordinator(self) -> None:
        coordinator = self._member.client
        assert isinstance(coordinator, Coordinator)
        await coordinator.find()

    async def _join(self) -> bool:
        member = self._member
        member.topics = sorted(self._partitions)
        began_s = self._now_s()
        code = await member.join() or await member.sync(self._partitions)
        if code:
            await self._refused(code)
            return False
        self._ledger.synchronized(member, began_s, self._now_s())
        return True

    async def _refused(self, code: int) -> None:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member = self._new_member()
        elif code not in REBALANCES and code not in COORDINATOR_CHANGES:
            raise Violation("NoFinalError", f"a member of {GROUP} got {ErrorCode(code).name}")
        await self.client.sleep(0.1)

    async def _work(self, until_s: float, consume: Consume) -> None:
        """Consume and commit in turn until the coordinator asks the member to join again."""
        member = self._member
        positions: dict[TopicPartition, int] = {}
        topics = dict(self._partitions)
        while self._now_s() < until_s and topics == self._partitions:
            code = await member.heartbeat()
            if code:
                await self._refused(code)
                return
            for topic, indexes in member.assignment.items():
                for partition in (TopicPartition(topic, index) for index in indexes):
                    if partition not in positions:
                        began_s = self._now_s()
                        offset, code = await member.committed(*partition)
                        if code:
                            return
                        self._ledger.check(partition, offset, began_s)
                        positions[partition] = max(offset, 0)
                    position = await consume(partition, positions[partition])
                    if position > positions[partition]:
                        positions[partition] = position
                        code = await self._commit(partition, position)
                        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                            self._ledger.unknown_to_coordinator(partition)
                        elif code:
                            await self._refused(code)
                            return
            await self.client.sleep(0.3)

    async def _commit(self, partition: TopicPartition, position: int) -> int:
        member = self._member
        number = self._ledger.attempt(partition, position, self._now_s())
        code = await member.commit(*partition, position)
        if code in (*FENCED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self._ledger.refuse(partition, number)
        elif not code:
            self._ledger.confirm(partition, number, member.generation, self._now_s())
        return code

    async def check(self) -> None:
        """Check the committed offsets of all partitions, when the members do not commit any more."""
        for partition in (TopicPartition(name, index) for name, n in self._partitions.items() for index in range(n)):
            code: int = ErrorCode.NOT_COORDINATOR
            while code:
                began_s = self._now_s()
                try:
                    await self._find_coordinator()
                    offset, code = await self._member.committed(*partition)
                    if not code:
                        self._ledger.check(partition, offset, began_s)
                except ClientError:
                    code = ErrorCode.NOT_COORDINATOR
                await self.client.sleep(0.1)
