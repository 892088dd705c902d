"""UnregisterBroker (key 64), v0: remove the registration of a broker that will not return (KIP-500)."""

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.link import UnregisterBroker
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


async def handle(
    services: Services, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    answer = await services.controller.unregister_broker(UnregisterBroker(request.broker_id))
    return UnregisterBrokerResponse(error_code=answer.error, error_message=answer.message)
