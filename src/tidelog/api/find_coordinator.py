"""FindCoordinator (key 10), v0-6. v1: key type, error message; v4: several keys (KIP-699); v6: share groups
(KIP-932).

Transactions and share groups have no coordinator here yet. The response for a transactional id is
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the only error after which every client gives up. After most other errors,
librdkafka repeats the request forever.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode, InvalidRequest
from tidelog.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

SEVERAL_KEYS_VERSION = 4
GROUP_TYPE = 0
TRANSACTION_TYPE = 1
SHARE_TYPE = 2
NO_ERROR_MESSAGE = "NONE"
"""The error message of a success in versions 1 to 3, as in Kafka."""


def handle(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> "Outcome[FindCoordinatorResponse]":
    if request.key_type == GROUP_TYPE and not services.groups.host.has_topic:
        return _create_topic_first(services, context, request)
    return _answer(services, context, request)


async def _create_topic_first(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> Steps[FindCoordinatorResponse]:
    with suppress(ApiError):  # without the topic, the response contains an error for each key
        await services.groups.host.make_topic()
    return _answer(services, context, request)


def _answer(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> Steps[FindCoordinatorResponse]:
    if context.api_version >= SEVERAL_KEYS_VERSION:
        coordinators = []
        for key in request.coordinator_keys:
            coordinators.append(_coordinator(services, context, request.key_type, key))
            yield
        return FindCoordinatorResponse(coordinators=coordinators)
    coordinator = _coordinator(services, context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=coordinator.error_message or NO_ERROR_MESSAGE,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


def _coordinator(services: Services, context: RequestContext, key_type: int, key: str) -> Coordinator:
    try:
        _check_type(key_type)
        node_id, address = services.groups.host.address_of(key, context.peer.listener)
    except ApiError as error:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message)
    return Coordinator(key=key, node_id=node_id, host=address.host, port=address.port, error_message="")


def _check_type(key_type: int) -> None:
    if key_type == TRANSACTION_TYPE:
        raise ApiError("transactions are not supported yet", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if key_type == SHARE_TYPE:
        raise InvalidRequest("share groups are not supported yet")
    if key_type != GROUP_TYPE:
        raise InvalidRequest(f"coordinator key type {key_type} is not known")
