"""DeleteGroups (key 42), v0-2 (KIP-229): removes groups that have no members, with all that they committed."""

from tidelog.api.pending import Gathering, Pending
from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


def handle(
    services: Services, context: RequestContext, request: DeleteGroupsRequest
) -> Steps[Pending[DeleteGroupsResponse]]:
    """Each group for itself: one that may not go does not keep the others."""
    group_ids = list(dict.fromkeys(request.groups_names))

    def build(answers: list[ApiError | None]) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(
            results=[
                DeletableGroupResult(group_id, ErrorCode.NONE if answer is None else answer.code)
                for group_id, answer in zip(group_ids, answers, strict=True)
            ]
        )

    deleting: Gathering[ApiError | None] = Gathering(build)
    for group_id in group_ids:
        reply = deleting.reply()
        try:
            yield from services.groups.delete(group_id, reply)
        except ApiError as error:
            reply(error)
    return deleting.returned()
