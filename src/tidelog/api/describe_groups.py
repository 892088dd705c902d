"""DescribeGroups (key 15), v0-6. v3: authorized operations (KIP-430); v4: group instance ids (KIP-345); v6:
GROUP_ID_NOT_FOUND (KIP-1043) for a group that does not exist. For such a group, older versions return the state
Dead without an error.

This API describes only classic groups. A group of the consumer protocol is treated as if it did not exist.
"""

from functools import partial
from typing import TYPE_CHECKING

from tidelog.api.group_descriptions import Description, describe_all
from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.group.state import GroupState
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode, GroupIdNotFound
from tidelog.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

NOT_FOUND_SINCE = 6
"""The first version whose responses may contain GROUP_ID_NOT_FOUND."""
READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 3, 6, 8, 10, 11
GROUP_OPERATIONS = sum(1 << operation for operation in (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS))
"""The operations on a group that a client may perform, as a bit mask of Kafka's ACL operations. All operations on
groups are allowed, since there is no access control."""
MEMBER_BYTES = 200
"""Approximate bytes of a member in a response, without its metadata and assignment."""


def handle(
    services: Services, context: RequestContext, request: DescribeGroupsRequest
) -> "Steps[Outcome[DescribeGroupsResponse]]":
    to_description = partial(_description, context.api_version, request.include_authorized_operations)
    return describe_all(services.groups.describe, to_description, _response, request.groups)


def _response(groups: list[DescribedGroup]) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=groups)


def _description(
    version: int, with_operations: bool, group_id: str, answer: DescribedGroup | ApiError | None
) -> Description:
    group = _group(version, with_operations, group_id, answer)
    size = sum(MEMBER_BYTES + len(m.member_metadata) + len(m.member_assignment) for m in group.members)
    return Description(group, size)


def _group(
    version: int, with_operations: bool, group_id: str, answer: DescribedGroup | ApiError | None
) -> DescribedGroup:
    message = f"Group {group_id} not found."
    if isinstance(answer, GroupIdNotFound):
        message = answer.message
        answer = None
    if isinstance(answer, ApiError):
        return DescribedGroup(group_id=group_id, error_code=answer.code)
    if answer is None:
        answer = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if version >= NOT_FOUND_SINCE:
            answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            answer.error_message = message
            return answer
    if with_operations:
        answer.authorized_operations = GROUP_OPERATIONS
    return answer
