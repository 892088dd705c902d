"""An administrator of a simulated cluster who deletes records, alters settings of topics and adds partitions."""

import random
from collections.abc import Callable

from simulation_harness.cluster_ledger import Ledger
from tidelog.client import operations
from tidelog.client.errors import BrokerUnreachable, ClientError
from tidelog.client.operations import AskAny, Operation, Request
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster_client import BACKOFF, ClusterClient
from tidelog.wire.errors import ApiError, ErrorCode, error_for
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

CALL_S = 10.0
PARTITIONS_MAX = 4
TOPIC_RESOURCE = 2
SETTINGS = (
    ("min.insync.replicas", "2"),
    ("min.insync.replicas", "3"),
    ("retention.ms", "6000"),
    ("retention.ms", "604800000"),
    ("segment.ms", "1500"),
    ("max.message.bytes", "2000000"),
)
"""Alterations with which no acknowledged record may be lost. `min.insync.replicas` stays at 2 or above."""


class TopicChanges:
    """Changes of the topics in the ledger. The ledger knows which records may be missing afterwards."""

    def __init__(
        self, client: ClusterClient, rng: random.Random, ledger: Ledger, note: Callable[[str, str, str], None]
    ) -> None:
        self._client = client
        self._rng = rng
        self._ledger = ledger
        self._note = note

    async def run(self, until_s: float, now_s: Callable[[], float]) -> None:
        """Make random changes until the time is over."""
        changes = (self._delete_records, self._delete_records, self._alter_setting, self._add_partition)
        while now_s() < until_s:
            await self._client.sleep(self._rng.uniform(0.3, 3.0))
            partition = self._rng.choice(self._ledger.partitions)
            try:
                await self._rng.choice(changes)(partition)
            except (ApiError, ClientError) as error:
                self._note("client", "refused", f"{partition} {error}")

    async def _delete_records(self, partition: TopicPartition) -> None:
        """Delete some or all records. The start of the log may be at the offset in the request, or before it."""
        ends = operations.list_offsets(self._client.cluster, BACKOFF, {partition: operations.LATEST}, 0)
        end = (await self._client.run(ends, CALL_S))[partition].offset
        offset = self._rng.choice((-1, end, self._rng.randint(0, max(end, 0)), self._rng.randint(0, max(end, 0))))
        self._ledger.attempt_deletion(partition, float("inf") if offset < 0 else offset)
        leader = self._client.cluster.leader(partition)
        if leader is None:
            return
        topic = DeleteRecordsTopic(partition.topic, [DeleteRecordsPartition(partition.partition, offset)])
        answer = await self._client.ask(Request(leader[0], DeleteRecordsRequest([topic], timeout_ms=2_000)))
        if isinstance(answer, BrokerUnreachable):
            raise answer
        assert isinstance(answer, DeleteRecordsResponse)
        result = answer.topics[0].partitions[0]
        if result.error_code:
            raise error_for(result.error_code, "no records deleted")
        self._note("client", "deleted records", f"{partition} below {result.low_watermark}")
        self._ledger.coverage["deletions of records"] += 1

    async def _alter_setting(self, partition: TopicPartition) -> None:
        name, value = self._rng.choice(SETTINGS)
        if (name, value) == ("retention.ms", "6000"):
            self._ledger.expiring_topics[partition.topic] = None
        await self._client.run(_alter(partition.topic, name, value), CALL_S)
        self._note("client", "altered", f"{partition.topic} {name}={value}")
        self._ledger.coverage["altered settings"] += 1

    async def _add_partition(self, partition: TopicPartition) -> None:
        count = self._ledger.topics[partition.topic] + 1
        if count > PARTITIONS_MAX:
            return
        try:
            await self._client.run(_add_partitions(partition.topic, count), CALL_S)
        except ApiError as error:
            if error.code != ErrorCode.INVALID_PARTITIONS:  # an earlier request without an answer was carried out
                raise
        self._ledger.topics[partition.topic] = count
        self._note("client", "added partitions", f"{partition.topic} has {count}")
        self._ledger.coverage["added partitions"] += 1


def _alter(topic: str, name: str, value: str) -> Operation[None]:
    resource = AlterConfigsResource(TOPIC_RESOURCE, topic, [AlterableConfig(name, 0, value)])
    answer = yield AskAny(IncrementalAlterConfigsRequest([resource]))
    assert isinstance(answer, IncrementalAlterConfigsResponse)
    if answer.responses[0].error_code:
        raise error_for(answer.responses[0].error_code, f"{name} not altered: {answer.responses[0].error_message}")


def _add_partitions(topic: str, count: int) -> Operation[None]:
    answer = yield AskAny(CreatePartitionsRequest([CreatePartitionsTopic(topic, count, None)], timeout_ms=3_000))
    assert isinstance(answer, CreatePartitionsResponse)
    if answer.results[0].error_code:
        raise error_for(answer.results[0].error_code, f"no partition added: {answer.results[0].error_message}")
