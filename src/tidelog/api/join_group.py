"""JoinGroup (key 11), v0-9. v1: rebalance timeout; v4: a new member gets its id before it joins (KIP-394); v5: group
instance id (KIP-345); v7: protocol type in the response (KIP-559); v8: reason (KIP-800); v9: a static member that
returns as leader need not assign partitions (KIP-814).
"""

from tidelog.api.coordinator_reply import CoordinatorReply
from tidelog.api.pending import Pending
from tidelog.api.services import RequestContext, Services
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

NULLABLE_PROTOCOL_SINCE = 7
"""The first version in which the response's protocol name may be null. In older versions it is empty instead."""
PROTOCOLS_MAX = 1000
"""Upper bound on the protocols of one member, since every rebalance compares the protocols of all members. Clients
send only a few."""


def handle(
    services: Services, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Pending[JoinGroupResponse]:
    version = context.api_version
    if len(request.protocols) > PROTOCOLS_MAX:
        return JoinGroupResponse(
            error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=request.member_id, protocol_name=""
        )

    def build(answer: JoinGroupResponse | ApiError) -> JoinGroupResponse:
        if isinstance(answer, ApiError):
            answer = JoinGroupResponse(error_code=answer.code, member_id=request.member_id, protocol_name=None)
        if version < NULLABLE_PROTOCOL_SINCE and answer.protocol_name is None:
            answer.protocol_name = ""
        return answer

    reply = CoordinatorReply(build)
    try:
        services.groups.join(request, context.client_id or "", f"/{context.client_host}", version, reply)
    except ApiError as error:
        return build(error)
    return reply.outcome()
