"""An administrator of a simulated cluster: reassignments of replicas, elections of preferred leaders, and features."""

import random
from collections import Counter
from collections.abc import Callable

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Unreachable
from tidelog.client.operations import AskAny, Operation, Retries
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster_client import BACKOFF, ClusterClient
from tidelog.wire.errors import ApiError, ErrorCode, error_for
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tidelog.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse

INTERNAL = "__consumer_offsets"
CALL_S = 10.0
SAFE_DOWNGRADE = 2
"""`upgrade_type` of an UpdateFeatures request that lowers a level."""


class Administrator:
    def __init__(
        self,
        client: ClusterClient,
        rng: random.Random,
        coverage: Counter[str],
        note: Callable[[str, str, str], None],
        brokers: int,
    ) -> None:
        self._client = client
        self._rng = rng
        self._coverage = coverage
        self._note = note
        self._brokers = brokers

    async def end_eligible_leader_replicas(self) -> None:
        """Finalize `eligible.leader.replicas.version` 0 (KIP-966). A new cluster has 1."""
        await self._client.run(_lower(self._client.cluster, "eligible.leader.replicas.version", 0), 60.0)
        self._coverage["lives without eligible leader replicas"] += 1

    async def run(
        self, until_s: float, now_s: Callable[[], float], partitions: Callable[[], list[TopicPartition]]
    ) -> None:
        """Reassign random partitions, or let their preferred leaders lead, until the time is over."""
        rng = self._rng
        while now_s() < until_s:
            await self._client.sleep(rng.uniform(0.5, 4.0))
            partition = rng.choice([*partitions(), TopicPartition(INTERNAL, 0), TopicPartition(INTERNAL, 1)])
            try:
                if rng.random() < 0.6:
                    await self._reassign(partition)
                else:
                    await self._client.run(_elect_preferred(), CALL_S)
                    self._coverage["requests for preferred leaders"] += 1
            except (ApiError, ClientError) as error:
                self._note("client", "refused", f"{partition} {error}")

    async def _reassign(self, partition: TopicPartition) -> None:
        """Change the order of the replicas, remove one of them, or add one again."""
        brokers = range(1, self._brokers + 1)
        count = self._rng.choice((self._brokers, self._brokers, self._brokers - 1))
        replicas = self._rng.sample(brokers, count)
        await self._client.run(_reassign(partition, replicas), CALL_S)
        self._note("client", "reassigned", f"{partition} to {replicas}")
        self._coverage["reassignments"] += 1


def _reassign(partition: TopicPartition, replicas: list[int]) -> Operation[None]:
    topic = ReassignableTopic(partition.topic, [ReassignablePartition(partition.partition, replicas)])
    answer = yield AskAny(AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=3000))
    assert isinstance(answer, AlterPartitionReassignmentsResponse)
    code = answer.error_code or answer.responses[0].partitions[0].error_code
    if code:
        raise error_for(code, "not reassigned")


def _elect_preferred() -> Operation[None]:
    answer = yield AskAny(ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=3000))
    assert isinstance(answer, ElectLeadersResponse)
    if answer.error_code:
        raise error_for(answer.error_code, "no leaders elected")


def _lower(cluster: Cluster, feature: str, level: int) -> Operation[None]:
    """Lower the finalized level of a feature. Temporary failures are retried."""
    retries = Retries(cluster, BACKOFF, ())
    while True:
        try:
            update = FeatureUpdateKey(feature, level, upgrade_type=SAFE_DOWNGRADE)
            answer = yield AskAny(UpdateFeaturesRequest(3000, [update]))
            assert isinstance(answer, UpdateFeaturesResponse)
            if answer.error_code == ErrorCode.NONE:
                return
            pause = retries.after(error_for(answer.error_code, f"{feature} not finalized: {answer.error_message}"))
        except Unreachable as error:
            pause = retries.after(error)
        yield pause
