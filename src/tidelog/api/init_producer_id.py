"""InitProducerId (key 22), v0-5. v3: a producer can go on with its id (KIP-360).

Idempotent producers only: there are no transactions yet, and a transactional id is refused for good.
"""

from tidelog.api.services import RequestContext, Services
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NONE = -1


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        _check(request)
        producer_id = await services.producer_ids.next()
    except ApiError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=NONE, producer_epoch=NONE)
    # A new id even for a producer that names its old one: its epoch would have to be known, which it is not here.
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _check(request: InitProducerIdRequest) -> None:
    """Raises ApiError."""
    if request.transactional_id == "":
        raise ApiError("an empty transactional id is none", ErrorCode.INVALID_REQUEST)
    if (request.producer_id == NONE) != (request.producer_epoch == NONE):
        raise ApiError("id and epoch of a producer come together", ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        # librdkafka, Java's and aiokafka's producers give up at once on this one, and retry most others.
        raise ApiError("transactions are not served yet", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
