"""DescribeTransactions (key 65), v0 (KIP-664)."""

from collections.abc import Callable
from functools import partial

from tidelog.api.pending import Gathering, Pending
from tidelog.api.repeats import Repeats
from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.transaction.records import Transaction
from tidelog.model.ids import indexes_by_topic
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

PARTITION_BYTES = 8
"""Approximate bytes of a partition in a response."""


def handle(
    services: Services, context: RequestContext, request: DescribeTransactionsRequest
) -> Steps[Pending[DescribeTransactionsResponse]]:
    answers: Gathering[TransactionState] = Gathering(
        lambda states: DescribeTransactionsResponse(transaction_states=states)
    )
    repeats: Repeats[str] = Repeats()
    for transactional_id in request.transactional_ids:
        accept = partial(_answer, answers.reply(), repeats, transactional_id)
        try:
            services.transactions.describe(transactional_id, accept)
        except ApiError as error:
            accept(error)
        yield
    return answers.finish()


def _answer(
    reply: Callable[[TransactionState], None],
    repeats: Repeats[str],
    transactional_id: str,
    answer: Transaction | ApiError,
) -> None:
    state = _state(transactional_id, answer)
    size = sum(len(topic.partitions) for topic in state.topics) * PARTITION_BYTES
    if not repeats.allow(transactional_id, size):
        state = TransactionState(ErrorCode.INVALID_REQUEST, transactional_id)
    reply(state)


def _state(transactional_id: str, answer: Transaction | ApiError) -> TransactionState:
    if isinstance(answer, ApiError):
        return TransactionState(answer.code, transactional_id)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=answer.status.text,
        transaction_timeout_ms=answer.timeout_ms,
        transaction_start_time_ms=answer.started_ms,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        topics=[TopicData(topic, indexes) for topic, indexes in indexes_by_topic(sorted(answer.partitions)).items()],
    )
