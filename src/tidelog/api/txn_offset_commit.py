"""TxnOffsetCommit (key 28), v0-5. v2: leader epoch (KIP-320); v3: the member of the group (KIP-447); v5: transaction
version 2 (KIP-890).

Commit a group's offsets in a transaction. The offsets become valid when the transaction is committed.
"""

from typing import TYPE_CHECKING

from tidelog.api.coordinator_reply import CoordinatorReply
from tidelog.api.offset_commit import Entries, collect
from tidelog.api.produce_transactional import producer_code
from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.group.offsets import OffsetCommit
from tidelog.coordinator.transaction_guard import Question
from tidelog.metadata.image import CONSUMER_OFFSETS
from tidelog.model.steps import Steps
from tidelog.replication.verification import Verification
from tidelog.wire.errors import (
    ApiError,
    ErrorCode,
    InvalidGroupId,
    NotCoordinator,
    NotLeaderOrFollower,
    error_for,
)
from tidelog.wire.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

V2_SINCE = 5
ABORTABLE_SINCE = 4
"""The first version with the error TRANSACTION_ABORTABLE."""
OFFSET_COMMIT_VERSION = 9
"""A version of OffsetCommit whose entries have the same fields as the entries of TxnOffsetCommit: they contain the
names of topics, not their ids."""


def handle(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> "Steps[Outcome[TxnOffsetCommitResponse]]":
    """Commit offsets as OffsetCommit does, but only after the transaction's coordinator has confirmed that the
    group's partition of `__consumer_offsets` belongs to the transaction.
    """
    topics = []
    for topic in request.topics:
        partitions = [
            OffsetCommitRequestPartition(
                partition.partition_index,
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata,
            )
            for partition in topic.partitions
        ]
        topics.append(OffsetCommitRequestTopic(name=topic.name, partitions=partitions))
        yield
    entries = yield from collect(services.metadata.image, topics, OFFSET_COMMIT_VERSION)
    if not entries.offsets:
        return (yield from _response(entries, []))
    if not request.group_id:
        return (yield from _response(entries, InvalidGroupId()))
    commit = OffsetCommit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        -1,  # no retention time
        OFFSET_COMMIT_VERSION,
        entries.offsets,
        request.producer_id,
        request.producer_epoch,
    )
    return _verify(services, request.transactional_id, commit, entries, context.api_version)


async def _verify(
    services: Services, transactional_id: str, commit: OffsetCommit, entries: Entries, version: int
) -> "Outcome[TxnOffsetCommitResponse]":
    """Ask the transaction's coordinator about the group's partition, and commit the offsets if it confirms the
    partition.
    """
    try:
        index = services.groups.host.partition_index(commit.group_id)
        # Only the group's coordinator may ask. On any other broker, the next call raises NotCoordinator.
        services.groups.host.coordinator(commit.group_id)
        partition = services.partitions.get(CONSUMER_OFFSETS, index)
        verification = Verification(partition, commit.producer_id, commit.producer_epoch)
    except ApiError as error:
        return _response(entries, error)
    question = Question(
        transactional_id, commit.producer_id, commit.producer_epoch, (CONSUMER_OFFSETS, index), version >= V2_SINCE
    )
    is_confirmed = False
    try:
        await services.transaction_guard.ensure(question)
        is_confirmed = True
    except ApiError as error:
        code = producer_code(error.code, knows_abortable=version >= ABORTABLE_SINCE)
        return _response(entries, error_for(code, error.message))
    finally:
        if not is_confirmed:
            verification.end()
    return _commit(services, commit, entries, verification)


def _commit(
    services: Services, commit: OffsetCommit, entries: Entries, verification: Verification
) -> "Steps[Outcome[TxnOffsetCommitResponse]]":
    reply = CoordinatorReply(lambda result: _response(entries, result))
    try:
        yield from services.groups.commit(commit, reply, verification)
    except NotLeaderOrFollower:
        return _response(entries, NotCoordinator())
    except ApiError as error:
        return _response(entries, error)
    finally:
        verification.end()
    return reply.outcome()


def _response(entries: Entries, result: list[ErrorCode] | ApiError) -> Steps[TxnOffsetCommitResponse]:
    topics = []
    for topic in (yield from entries.answer(result)):
        topics.append(
            TxnOffsetCommitResponseTopic(
                topic.name,
                [
                    TxnOffsetCommitResponsePartition(entry.partition_index, entry.error_code)
                    for entry in topic.partitions
                ],
            )
        )
        yield
    return TxnOffsetCommitResponse(topics=topics)
