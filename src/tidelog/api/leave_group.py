"""LeaveGroup (key 13), v0-5. v3: several members, by id or group instance id (KIP-345); v5: reason (KIP-800)."""

from tidelog.api.group_reply import GroupReply
from tidelog.api.pending import Pending
from tidelog.api.services import RequestContext, Services
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

MEMBERS_VERSION = 3


def handle(
    services: Services, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Pending[LeaveGroupResponse]:
    single = context.api_version < MEMBERS_VERSION
    if single:
        request.members = [MemberIdentity(member_id=request.member_id)]

    def build(answer: LeaveGroupResponse | ApiError) -> LeaveGroupResponse:
        if isinstance(answer, ApiError):
            return LeaveGroupResponse(error_code=answer.code)
        if single:
            return LeaveGroupResponse(error_code=answer.members[0].error_code)
        return answer

    reply = GroupReply(build)
    try:
        services.groups.leave(request, reply)
    except ApiError as error:
        return build(error)
    return reply.returned()
