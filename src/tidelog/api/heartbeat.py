"""Heartbeat (key 12), v0-4. v3: group instance id (KIP-345)."""

from tidelog.api.services import RequestContext, Services
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(services: Services, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    try:
        error = services.groups.heartbeat(request)
    except ApiError as refusal:
        error = refusal.code
    return HeartbeatResponse(error_code=error)
