"""ConsumerGroupDescribe (key 69), v0-1 (KIP-848). v1: which protocol each member speaks (KIP-1099)."""

from functools import partial

from tidelog.api.describe_groups import ALL_OPERATIONS
from tidelog.api.pending import Pending
from tidelog.api.repeats import REFUSED, Repeats
from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> Steps[ConsumerGroupDescribeResponse | Pending[ConsumerGroupDescribeResponse]]:
    describing = _Describing(request)
    yield from describing.ask(services, request.group_ids)
    return describing.returned()


_NOT_TOLD = DescribedGroup()


class _Describing:
    """Collects the groups' answers, which their coordinators may give at different times."""

    def __init__(self, request: ConsumerGroupDescribeRequest) -> None:
        self._with_operations = request.include_authorized_operations
        self._groups = [_NOT_TOLD] * len(request.group_ids)
        self._left = len(self._groups)
        self._pending: Pending[ConsumerGroupDescribeResponse] | None = None

    def ask(self, services: Services, group_ids: list[str]) -> Steps[None]:
        repeats = Repeats()
        for place, group_id in enumerate(group_ids):
            if repeats.is_one_too_many(group_id):
                self._reply(place, group_id, ApiError(REFUSED, ErrorCode.INVALID_REQUEST))
            else:
                self._ask(services, place, group_id)
            yield

    def returned(self) -> ConsumerGroupDescribeResponse | Pending[ConsumerGroupDescribeResponse]:
        if not self._left:
            return ConsumerGroupDescribeResponse(groups=self._groups)
        self._pending = Pending()
        return self._pending

    def _ask(self, services: Services, place: int, group_id: str) -> None:
        reply = partial(self._reply, place, group_id)
        try:
            services.groups.describe_consumer(group_id, reply)
        except ApiError as error:
            reply(error)

    def _reply(self, place: int, group_id: str, answer: DescribedGroup | ApiError) -> None:
        if isinstance(answer, ApiError):
            answer = DescribedGroup(group_id=group_id, error_code=answer.code, error_message=answer.message or None)
        elif self._with_operations:
            answer.authorized_operations = ALL_OPERATIONS
        self._groups[place] = answer
        self._left -= 1
        if not self._left and self._pending is not None:
            self._pending.complete(ConsumerGroupDescribeResponse(groups=self._groups))
