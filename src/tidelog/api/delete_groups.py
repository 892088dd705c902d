"""DeleteGroups (key 42), v0-2 (KIP-229): delete groups that have no members, and all their committed offsets."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.api.pending import Gathering
from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.decision import Reply
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome


def handle(
    services: Services, context: RequestContext, request: DeleteGroupsRequest
) -> "Steps[Outcome[DeleteGroupsResponse]]":
    """Delete the groups. Each group succeeds or fails on its own. A group that is named more than once is deleted
    and answered once.
    """
    group_ids: dict[str, None] = {}
    deleting: Gathering[ErrorCode] = Gathering(lambda codes: _response(group_ids, codes))
    for group_id in request.groups_names:
        if group_id in group_ids:
            yield
            continue
        group_ids[group_id] = None
        reply = _reply(deleting)
        try:
            yield from services.groups.delete(group_id, reply)
        except ApiError as error:
            reply(error)
        yield
    return deleting.finish()


def _reply(deleting: Gathering[ErrorCode]) -> Reply:
    accept = deleting.reply()

    def reply(answer: ApiError | None) -> None:
        # Store only the code: a request may name a million groups, and each error's traceback would take 2 KB.
        accept(ErrorCode.NONE if answer is None else answer.code)

    return reply


def _response(group_ids: Iterable[str], codes: list[ErrorCode]) -> Steps[DeleteGroupsResponse]:
    response = DeleteGroupsResponse()
    for group_id, code in zip(group_ids, codes, strict=True):
        response.results.append(DeletableGroupResult(group_id, code))
        yield
    return response
