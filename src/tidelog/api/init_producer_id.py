"""InitProducerId (key 22), v0-5. v3: a producer may send its old id and epoch (KIP-360); v4: the error
PRODUCER_FENCED.

An idempotent producer, which has no transactional id, gets a new producer id. A transactional producer gets the
producer id that belongs to its transactional id, with the next epoch.
"""

from tidelog.api.coordinator_reply import CoordinatorReply
from tidelog.api.pending import Pending
from tidelog.api.services import RequestContext, Services
from tidelog.api.transactions import code_for_version
from tidelog.wire.errors import ApiError, InvalidRequest
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NONE = -1
FENCED_SINCE = 4
"""The first version with the error PRODUCER_FENCED."""


async def handle(
    services: Services, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Pending[InitProducerIdResponse]:
    version = context.api_version
    try:
        if (request.producer_id == NONE) != (request.producer_epoch == NONE):
            raise InvalidRequest("the request has only one of producer id and epoch")
        if request.transactional_id is not None:
            return await _initialize(services, version, request, request.transactional_id)
        producer_id = await services.producer_ids.next()
    except ApiError as error:
        return _failure(version, error)
    # An idempotent producer that sends its old id also gets a new id. To return the old id with a higher epoch, this
    # broker would have to remember the epoch of every id.
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _initialize(
    services: Services, version: int, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse | Pending[InitProducerIdResponse]:
    from tidelog.coordinator.decision import Producer

    def build(answer: Producer | ApiError) -> InitProducerIdResponse:
        if isinstance(answer, ApiError):
            return _failure(version, answer)
        return InitProducerIdResponse(producer_id=answer.producer_id, producer_epoch=answer.epoch)

    reply = CoordinatorReply(build)
    expected = Producer(request.producer_id, request.producer_epoch)
    await services.transactions.initialize(transactional_id, request.transaction_timeout_ms, expected, reply)
    return reply.outcome()


def _failure(version: int, error: ApiError) -> InitProducerIdResponse:
    code = code_for_version(error.code, version, FENCED_SINCE)
    return InitProducerIdResponse(error_code=code, producer_id=NONE, producer_epoch=NONE)
