"""ConsumerGroupDescribe (key 69), v0-1 (KIP-848). v1: which protocol each member speaks (KIP-1099)."""

from functools import partial
from typing import TYPE_CHECKING

from tidelog.api.describe_groups import ALL_OPERATIONS
from tidelog.api.describing import described_groups
from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> "Steps[Outcome[ConsumerGroupDescribeResponse]]":
    del context
    told = partial(_told, request.include_authorized_operations)
    return described_groups(services.groups.describe_consumer, told, _response, request.group_ids)


def _response(groups: list[DescribedGroup]) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=groups)


def _told(with_operations: bool, group_id: str, answer: DescribedGroup | ApiError) -> DescribedGroup:
    if isinstance(answer, ApiError):
        return DescribedGroup(group_id=group_id, error_code=answer.code, error_message=answer.message or None)
    if with_operations:
        answer.authorized_operations = ALL_OPERATIONS
    return answer
