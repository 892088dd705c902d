"""FindCoordinator (key 10), v0-6. v1: key type, error message; v4: several keys (KIP-699); v6: share groups
(KIP-932).

Tidelog has no coordinator of share groups yet.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, InvalidRequest
from tidelog.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome
    from tidelog.coordinator.host import CoordinatorHost

SEVERAL_KEYS_SINCE = 4
GROUP_TYPE = 0
TRANSACTION_TYPE = 1
SHARE_TYPE = 2
NO_ERROR_MESSAGE = "NONE"
"""The error message of a success in versions 1 to 3, as in Kafka."""


def handle(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> "Outcome[FindCoordinatorResponse]":
    if request.key_type in (GROUP_TYPE, TRANSACTION_TYPE):
        host = _host(services, request.key_type)
        if not host.has_topic:
            return _create_topic_first(host, services, context, request)
    return _answer(services, context, request)


async def _create_topic_first(
    host: "CoordinatorHost[Any]", services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> Steps[FindCoordinatorResponse]:
    with suppress(ApiError):  # without the topic, the response contains an error for each key
        await host.make_topic()
    return _answer(services, context, request)


def _answer(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> Steps[FindCoordinatorResponse]:
    if context.api_version >= SEVERAL_KEYS_SINCE:
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
        host = _host(services, key_type)
        node_id, address = host.address_of(key, context.peer.listener)
    except ApiError as error:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message)
    return Coordinator(key=key, node_id=node_id, host=address.host, port=address.port, error_message="")


def _host(services: Services, key_type: int) -> "CoordinatorHost[Any]":
    """Return the coordinators of this type of key. Raises InvalidRequest if there are none."""
    if key_type == GROUP_TYPE:
        return services.groups.host
    if key_type == TRANSACTION_TYPE:
        return services.transactions.host
    if key_type == SHARE_TYPE:
        raise InvalidRequest("share groups are not supported yet")
    raise InvalidRequest(f"coordinator key type {key_type} is not known")
