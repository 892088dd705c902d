"""Offsets that reach the group coordinator when their transaction has just ended are refused: nobody would end them."""

import asyncio
from typing import Any

import pytest

from simulation_harness import boot, connect
from tidelog.coordinator.transaction_guard import Question, TransactionGuard
from tidelog.simulation.client import SimClient
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.message import Message
from tidelog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

GROUP, TRANSACTIONAL_ID, TOPIC = "g", "mover", "orders"
ALONE: dict[str, Any] = {
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
}


@pytest.mark.parametrize("version", [4, 5])
def test_offsets_that_are_confirmed_before_the_end_of_their_transaction(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated(1) as world:
        world.run(_commit_offsets_late(world, version, monkeypatch), virtual_s=60)


async def _commit_offsets_late(world: World, version: int, patch: pytest.MonkeyPatch) -> None:
    await boot(world.host("broker"), **ALONE)
    client = await connect(world.host("client"), world.host("broker"))
    other = await connect(world.host("other"), world.host("broker"))
    await client.create_topic(TOPIC, 1)
    await _until_found(client, 0, GROUP)
    await _until_found(client, 1, TRANSACTIONAL_ID)
    init = InitProducerIdRequest(TRANSACTIONAL_ID, 60_000)
    producer = await client.ask(init, InitProducerIdResponse)
    identity = TRANSACTIONAL_ID, producer.producer_id, producer.producer_epoch
    if version < 5:
        assert not (await client.ask(AddOffsetsToTxnRequest(*identity, GROUP), AddOffsetsToTxnResponse)).error_code
    ensure = TransactionGuard.ensure

    async def end_after_the_answer(guard: TransactionGuard, question: Question) -> None:
        await ensure(guard, question)
        patch.setattr(TransactionGuard, "ensure", ensure)
        end = EndTxnRequest(*identity, committed=False)
        assert not (await other.ask(end, EndTxnResponse, version_max=version)).error_code
        await asyncio.sleep(1.0)  # the marker is written

    patch.setattr(TransactionGuard, "ensure", end_after_the_answer)
    assert await _commit(client, version, identity) in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH)
    topic = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(GROUP, topics=[topic])], require_stable=True)
    answer = await client.ask(fetch, OffsetFetchResponse, version_max=9)
    offset = answer.groups[0].topics[0].partitions[0]
    assert (offset.committed_offset, offset.error_code) == (-1, ErrorCode.NONE)


async def _commit(client: SimClient, version: int, identity: tuple[str, int, int]) -> int:
    transactional_id, producer_id, epoch = identity
    topic = TxnOffsetCommitRequestTopic(TOPIC, [TxnOffsetCommitRequestPartition(0, 7)])
    request = TxnOffsetCommitRequest(transactional_id, GROUP, producer_id, epoch, topics=[topic])
    answer = await client.ask(request, TxnOffsetCommitResponse, version_max=version)
    return answer.topics[0].partitions[0].error_code


async def _until_found(client: SimClient, kind: int, key: str) -> None:
    request: Message = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    while (await client.ask(request, FindCoordinatorResponse)).coordinators[0].error_code:
        await asyncio.sleep(0.1)
