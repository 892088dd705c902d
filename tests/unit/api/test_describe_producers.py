"""DescribeProducers: the limit of an answer, and offline logs. The rest is compared with Kafka."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from log_harness import LogOnDisk, leads_alone
from metadata_harness.controlled import Node, with_node
from tidelog.api import describe_producers
from tidelog.log.producer_state import ProducerState
from tidelog.replication.partition import Partition
from tidelog.replication.table import PartitionTable
from tidelog.wire.messages.describe_producers import TopicRequest


def partition(producers: int) -> Any:
    state = ProducerState()
    for producer_id in range(producers):
        state.appended(producer_id, 3, 0, producer_id * 2, 1, 1000 + producer_id, 0)
    return SimpleNamespace(log=SimpleNamespace(producers=state))


async def asked(node: Node, found: Any, *indexes: int) -> list[Any]:
    node.services.partitions = SimpleNamespace(replica=lambda topic, index: found)  # type: ignore[assignment]
    topics = [TopicRequest(name="t", partition_indexes=list(indexes))]
    answer = await node.call("DescribeProducers", 0, topics=topics)
    partitions: list[Any] = answer.topics[0].partitions
    return partitions


def test_every_producer_is_told() -> None:
    async def scenario(node: Node) -> None:
        (found,) = await asked(node, partition(describe_producers.PRODUCERS_PER_STEP + 1), 0)
        assert [p.producer_id for p in found.active_producers] == list(range(describe_producers.PRODUCERS_PER_STEP + 1))
        last = found.active_producers[-1]
        assert (last.producer_epoch, last.last_sequence, last.last_timestamp) == (3, 1, 1500)
        assert (last.coordinator_epoch, last.current_txn_start_offset) == (-1, -1)

    with_node(scenario)


def test_a_partition_named_again_and_again_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_producers, "PRODUCERS_MAX", 5)

    async def scenario(node: Node) -> None:
        found = await asked(node, partition(2), 0, 0, 0)
        assert [(p.error_code, len(p.active_producers)) for p in found] == [(0, 2), (0, 2), (42, 0)]

    with_node(scenario)


def test_a_log_that_is_offline() -> None:
    async def scenario(node: Node) -> None:
        log, nothing = LogOnDisk().log, cast(Any, SimpleNamespace(now_ms=int, monotonic=float))
        replica = leads_alone(log)
        table = PartitionTable(1)
        table.opened["t", 0] = Partition(
            "t", bytes(16), 0, log, replica=replica, internal=False, clock=nothing, tasks=nothing, flusher=nothing
        )
        node.services.partitions = table  # type: ignore[assignment]
        log.fail("input/output error")
        topics = [TopicRequest(name="t", partition_indexes=[0])]
        (found,) = (await node.call("DescribeProducers", 0, topics=topics)).topics[0].partitions
        assert (found.error_code, found.active_producers) == (56, [])
        assert "input/output error" in found.error_message

    with_node(scenario)
