"""ConsumerGroupHeartbeat (key 68), v0-1 (KIP-848): a member joins or leaves its group, and gets its assignment. v1:
subscription by a regular expression; clients choose their member ids (KIP-1082).
"""

from tidelog.api.coordinator_reply import CoordinatorReply
from tidelog.api.pending import Pending
from tidelog.api.services import RequestContext, Services
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Pending[ConsumerGroupHeartbeatResponse]:
    reply = CoordinatorReply(_build)
    try:
        services.groups.consumer_heartbeat(
            request, context.client_id or "", f"/{context.client_host}", context.api_version, reply
        )
    except ApiError as error:
        return _build(error)
    return reply.outcome()


def _build(answer: ConsumerGroupHeartbeatResponse | ApiError) -> ConsumerGroupHeartbeatResponse:
    if isinstance(answer, ApiError):
        return ConsumerGroupHeartbeatResponse(error_code=answer.code, error_message=answer.message or None)
    return answer
