"""LeaveGroup (key 13), v0-5. v3: several members, by id or group instance id (KIP-345); v5: reason (KIP-800)."""

from typing import TYPE_CHECKING

from tidelog.api.coordinator_reply import CoordinatorReply
from tidelog.api.pending import Gathering
from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

SEVERAL_MEMBERS_SINCE = 3
MEMBERS_PER_STEP = 200


def handle(services: Services, context: RequestContext, request: LeaveGroupRequest) -> "Outcome[LeaveGroupResponse]":
    if len(request.members) > MEMBERS_PER_STEP:
        return _leave_in_steps(services, request)
    is_single = context.api_version < SEVERAL_MEMBERS_SINCE
    if is_single:
        request.members = [MemberIdentity(member_id=request.member_id)]

    def build(answer: LeaveGroupResponse | ApiError) -> LeaveGroupResponse:
        if isinstance(answer, ApiError):
            return LeaveGroupResponse(error_code=answer.code)
        if is_single:
            return LeaveGroupResponse(error_code=answer.members[0].error_code)
        return answer

    reply = CoordinatorReply(build)
    try:
        services.groups.leave(request, reply)
    except ApiError as error:
        return build(error)
    return reply.outcome()


def _leave_in_steps(services: Services, request: LeaveGroupRequest) -> "Steps[Outcome[LeaveGroupResponse]]":
    """Remove many members in steps. If one member cannot be removed, the other members are removed nevertheless. Other
    requests may run between two steps.

    If the coordinator refuses one step, its error is the answer to the whole request, so that the client searches for
    the coordinator again. In the client's next attempt, the members that have already left are unknown, as after a lost
    response.
    """
    leaving: Gathering[LeaveGroupResponse] = Gathering(_join_responses)
    for start in range(0, len(request.members), MEMBERS_PER_STEP):
        part_request = LeaveGroupRequest(
            group_id=request.group_id, members=request.members[start : start + MEMBERS_PER_STEP]
        )
        reply = CoordinatorReply(_to_response)
        try:
            services.groups.leave(part_request, reply)
        except ApiError as error:
            leaving.add(_to_response(error))
        else:
            leaving.add(reply.outcome())
        yield
    return leaving.finish()


def _to_response(answer: LeaveGroupResponse | ApiError) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=answer.code) if isinstance(answer, ApiError) else answer


def _join_responses(answers: list[LeaveGroupResponse]) -> LeaveGroupResponse:
    response = LeaveGroupResponse()
    for answer in answers:
        if answer.error_code:
            return answer
        response.members += answer.members
    return response
