"""The consumer of a chain that is a member of a group. The chain commits its offsets in transactions (KIP-447)."""

from collections.abc import Callable

from simulation_harness.cluster_ledger import Violation
from simulation_harness.cluster_members import COORDINATOR_CHANGES, REBALANCES, SESSION_MS, Coordinator
from simulation_harness.transactional_client import Refused
from tidelog.client.errors import ClientError
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster_client import ClusterClient
from tidelog.simulation.member import SimMember
from tidelog.wire.errors import ErrorCode


class ChainMember:
    """A member of a classic group that reads one topic."""

    def __init__(self, client: ClusterClient, group: str, topic: str, partition_count: int) -> None:
        self._client = client
        self._coordinator = Coordinator(client, group)
        self._group = group
        self._topic = topic
        self._partition_count = partition_count
        self._member = self._new_member()
        self._is_stable = False

    def _new_member(self) -> SimMember:
        return SimMember(self._coordinator, self._group, [self._topic], session_ms=SESSION_MS)

    @property
    def identity(self) -> tuple[str, int]:
        """The id and the generation of the member. The group's coordinator verifies them with each commit."""
        return self._member.member_id, self._member.generation

    @property
    def partitions(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return [TopicPartition(topic, index) for topic, indexes in self._member.assignment.items() for index in indexes]

    async def join(self, until_s: float, now_s: Callable[[], float]) -> bool:
        """Make sure that the member belongs to the group's generation. Returns whether it has joined another one.

        Raises Refused if the time is over.
        """
        has_joined = False
        while now_s() < until_s:
            try:
                if self._is_stable:
                    code = await self._member.heartbeat()
                    if not code:
                        return has_joined
                    self._is_stable = False
                else:
                    await self._coordinator.find()
                    code = await self._member.join() or await self._member.sync({self._topic: self._partition_count})
                    if not code:
                        self._is_stable = has_joined = True
                        continue
                if code == ErrorCode.UNKNOWN_MEMBER_ID:
                    self._member = self._new_member()
                elif code not in REBALANCES and code not in COORDINATOR_CHANGES:
                    raise Violation("NoFinalError", f"a member of {self._group} got {ErrorCode(code).name}")
                await self._client.sleep(0.1)
            except ClientError:
                self._is_stable = False
                await self._client.sleep(0.2)
        raise Refused(None, "JoinGroup")
