"""InitProducerId (key 22), v0-5. v3: a producer may send its old id (KIP-360).

Only idempotent producers are supported. There are no transactions yet: a transactional id gets an error after which
clients do not retry.
"""

from tidelog.api.services import RequestContext, Services
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NONE = -1
WITHOUT_CONTROLLER = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
"""Errors that mean that the controller is temporarily unable to answer. As in Kafka, producers get
COORDINATOR_LOAD_IN_PROGRESS instead. All producers repeat the request after this error, but some give up after
REQUEST_TIMED_OUT."""


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        _check(request)
        producer_id = await services.producer_ids.next()
    except ApiError as error:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error.code in WITHOUT_CONTROLLER else error.code
        return InitProducerIdResponse(error_code=code, producer_id=NONE, producer_epoch=NONE)
    # A producer that sends its old id gets a new id. To return the old id with a higher epoch, this broker would
    # have to remember the epoch of every id.
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _check(request: InitProducerIdRequest) -> None:
    """Raise ApiError unless this is a valid request of an idempotent producer."""
    if request.transactional_id == "":
        raise ApiError("the transactional id is empty", ErrorCode.INVALID_REQUEST)
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        raise ApiError("the request has only one of producer id and epoch", ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        # The producers of librdkafka, Java and aiokafka give up immediately after this error, but retry after most
        # other errors.
        raise ApiError("transactions are not supported yet", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
