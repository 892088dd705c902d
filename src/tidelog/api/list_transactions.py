"""ListTransactions (key 66), v0-2 (KIP-664). v1: filter by duration (KIP-994); v2: filter by a regular expression
on the transactional id (KIP-1152).

The response has the transactional ids that this broker coordinates.
"""

from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.consumer.patterns import compile_pattern
from tidelog.coordinator.transaction.records import Status
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

STATES = {status.text: status for status in Status}


def handle(
    services: Services, context: RequestContext, request: ListTransactionsRequest
) -> Steps[ListTransactionsResponse]:
    """List the transactional ids that pass every filter. If a filter has no values, every id passes it."""
    producer_ids = dict.fromkeys(request.producer_id_filters)
    statuses = {STATES[name]: None for name in request.state_filters if name in STATES}
    unknown = [name for name in dict.fromkeys(request.state_filters) if name not in STATES]
    listed = []
    now_ms = services.runtime.clock.now_ms()
    try:
        pattern = compile_pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
        for transactional_id, state in services.transactions.listing():
            # If the producer has not begun a transaction, the start time is -1, so the id passes, as in Kafka.
            is_too_young = request.duration_filter >= 0 and now_ms - state.started_ms <= request.duration_filter
            is_listed = (
                (not producer_ids or state.producer_id in producer_ids)
                and (not request.state_filters or state.status in statuses)
                and not is_too_young
                and (pattern is None or pattern.fullmatch(transactional_id) is not None)
            )
            if is_listed:
                listed.append(TransactionState(transactional_id, state.producer_id, state.status.text))
            yield
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.code)
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=listed)
