"""Produce requests of transactions: before a partition gets records of a transaction, the coordinator must know that
the partition belongs to the transaction (KIP-890).
"""

from typing import TYPE_CHECKING

from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.transaction_guard import Question
from tidelog.replication.unverified_batches import Inquiry
from tidelog.wire.errors import ApiError, ErrorCode, NotEnoughReplicas, error_for

if TYPE_CHECKING:
    from tidelog.replication.append_queue import OutcomeListener
    from tidelog.replication.partition import Partition
    from tidelog.wire.batches import BatchHeader

V2_SINCE = 12
"""From this version of Produce on, the leader adds the partition to the transaction. With older versions, the client
adds it."""
ABORTABLE_SINCE = 11
"""The first version with the error TRANSACTION_ABORTABLE."""
TEMPORARY_ERRORS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Temporary errors of the coordinator. As in Kafka, producers get NOT_ENOUGH_REPLICAS instead, because all producers
send the batch again after NOT_ENOUGH_REPLICAS."""


def verify_first(
    services: Services,
    context: RequestContext,
    transactional_id: str,
    partition: "Partition",
    batch: memoryview,
    header: "BatchHeader",
    done: "OutcomeListener",
) -> bool:
    """Return False if the batch may be appended now. Otherwise return True: the batch is appended when the
    coordinator has confirmed that the partition belongs to the transaction, and `done` is called with the result.

    Raises ApiError if the batch must be refused at once.
    """
    version = context.api_version
    adds = version >= V2_SINCE
    if not adds and not services.config.get("transaction.partition.verification.enable"):
        return False
    unverified = partition.unverified
    if not unverified.must_wait(header):
        return False
    question = Question(
        transactional_id, header.producer_id, header.producer_epoch, (partition.topic, partition.index), adds
    )

    async def ask() -> None:
        try:
            await services.transaction_guard.ensure(question)
        except ApiError as error:
            raise _for_producer(error, version) from None

    unverified.add(batch, header, Inquiry(question, ask, has_version_2=adds), done)
    return True


def _for_producer(error: ApiError, version: int) -> ApiError:
    """Return the error for a producer that uses version `version` of Produce."""
    code = error.code
    if code in TEMPORARY_ERRORS or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < V2_SINCE):
        return NotEnoughReplicas(f"the transaction could not be verified: {error.message or code.name}")
    return error_for(producer_code(code, knows_abortable=version >= ABORTABLE_SINCE), error.message)


def producer_code(code: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """Return the error code for a producer whose transaction could not be verified."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code
