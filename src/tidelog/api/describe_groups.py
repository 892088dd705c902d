"""DescribeGroups (key 15), v0-6. v3: authorized operations (KIP-430); v4: group instance ids (KIP-345);
v6: GROUP_ID_NOT_FOUND for a group that does not exist, which reads Dead before (KIP-1043). A group of the consumer
protocol is none of these."""

from functools import partial

from tidelog.api.pending import Pending
from tidelog.api.repeats import REFUSED, Repeats
from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.group.state import GroupState
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode, GroupIdNotFound
from tidelog.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

NOT_FOUND_VERSION = 6
READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 3, 6, 8, 10, 11
ALL_OPERATIONS = sum(1 << operation for operation in (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS))
"""What can be done to a group, as bits by the numbers of Kafka's ACL operations. Nobody is refused any of it yet."""


def handle(
    services: Services, context: RequestContext, request: DescribeGroupsRequest
) -> Steps[DescribeGroupsResponse | Pending[DescribeGroupsResponse]]:
    describing = _Describing(context.api_version, request)
    yield from describing.ask(services, request.groups)
    return describing.returned()


_NOT_TOLD = DescribedGroup()


class _Describing:
    """Collects the groups' answers, which their coordinators may give at different times."""

    def __init__(self, version: int, request: DescribeGroupsRequest) -> None:
        self._version = version
        self._with_operations = request.include_authorized_operations
        self._groups: list[DescribedGroup] = [_NOT_TOLD] * len(request.groups)
        self._left = len(self._groups)
        self._pending: Pending[DescribeGroupsResponse] | None = None

    def ask(self, services: Services, group_ids: list[str]) -> Steps[None]:
        repeats = Repeats()
        for place, group_id in enumerate(group_ids):
            if repeats.is_one_too_many(group_id):
                self._reply(place, group_id, ApiError(REFUSED, ErrorCode.INVALID_REQUEST))
            else:
                self._ask(services, place, group_id)
            yield

    def returned(self) -> DescribeGroupsResponse | Pending[DescribeGroupsResponse]:
        if not self._left:
            return DescribeGroupsResponse(groups=self._groups)
        self._pending = Pending()
        return self._pending

    def _ask(self, services: Services, place: int, group_id: str) -> None:
        reply = partial(self._reply, place, group_id)
        try:
            services.groups.describe(group_id, reply)
        except ApiError as error:
            reply(error)

    def _reply(self, place: int, group_id: str, answer: DescribedGroup | ApiError | None) -> None:
        self._groups[place] = self._told(group_id, answer)
        self._left -= 1
        if not self._left and self._pending is not None:
            self._pending.complete(DescribeGroupsResponse(groups=self._groups))

    def _told(self, group_id: str, answer: DescribedGroup | ApiError | None) -> DescribedGroup:
        message = f"Group {group_id} not found."
        if isinstance(answer, GroupIdNotFound):
            message = answer.message
            answer = None
        if isinstance(answer, ApiError):
            return DescribedGroup(group_id=group_id, error_code=answer.code)
        if answer is None:
            answer = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
            if self._version >= NOT_FOUND_VERSION:
                answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                answer.error_message = message
                return answer
        if self._with_operations:
            answer.authorized_operations = ALL_OPERATIONS
        return answer
