"""EndTxn (key 26), v0-5. v2: the error PRODUCER_FENCED; v5: transaction version 2 (KIP-890). The response to v5
contains the producer id and the epoch with which the client continues.
"""

from tidelog.api.coordinator_reply import CoordinatorReply
from tidelog.api.pending import Pending
from tidelog.api.services import RequestContext, Services
from tidelog.api.transactions import code_for_version
from tidelog.coordinator.decision import Producer
from tidelog.coordinator.transaction.records import V2
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

FENCED_SINCE = 2
V2_SINCE = 5


async def handle(
    services: Services, context: RequestContext, request: EndTxnRequest
) -> EndTxnResponse | Pending[EndTxnResponse]:
    """Decide the end of the transaction. The response is sent when the decision is committed. The markers are
    written afterwards.
    """
    version = context.api_version

    def build(answer: Producer | ApiError) -> EndTxnResponse:
        if isinstance(answer, ApiError):
            return EndTxnResponse(error_code=code_for_version(answer.code, version, FENCED_SINCE))
        if version < V2_SINCE:
            return EndTxnResponse()
        return EndTxnResponse(producer_id=answer.producer_id, producer_epoch=answer.epoch)

    reply = CoordinatorReply(build)
    try:
        await services.transactions.end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            commit=request.committed,
            version=V2 if version >= V2_SINCE else 0,
            reply=reply,
        )
    except ApiError as error:
        return build(error)
    return reply.outcome()
