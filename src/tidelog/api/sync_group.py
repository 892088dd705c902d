"""SyncGroup (key 14), v0-5. v3: group instance id (KIP-345); v5: protocol type and name in request and response
(KIP-559).
"""

from tidelog.api.coordinator_reply import CoordinatorReply
from tidelog.api.pending import Pending
from tidelog.api.services import RequestContext, Services
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

PROTOCOL_REQUIRED_SINCE = 5
"""The first version whose requests must contain the protocol type and the protocol name."""
ASSIGNMENTS_MAX = 50_000
"""Upper bound on the assignments of one request. A valid request has one assignment for each member. All members of a
group are stored in one record, and a record cannot contain so many members."""


def handle(
    services: Services, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Pending[SyncGroupResponse]:
    if context.api_version >= PROTOCOL_REQUIRED_SINCE and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if len(request.assignments) > ASSIGNMENTS_MAX:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_REQUEST)
    reply = CoordinatorReply(_build)
    try:
        services.groups.sync(request, reply)
    except ApiError as error:
        return _build(error)
    return reply.outcome()


def _build(answer: SyncGroupResponse | ApiError) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=answer.code) if isinstance(answer, ApiError) else answer
