"""ConsumerGroupDescribe (key 69), v0-1 (KIP-848): describe groups of the consumer protocol. v1: the protocol of each
member (KIP-1099).
"""

from functools import partial
from typing import TYPE_CHECKING

from tidelog.api.describe_groups import GROUP_OPERATIONS, MEMBER_BYTES
from tidelog.api.group_descriptions import Description, describe_all
from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

TOPIC_BYTES = 20
"""Approximate bytes of a topic in a response, without its name and partitions."""


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> "Steps[Outcome[ConsumerGroupDescribeResponse]]":
    del context
    to_description = partial(_description, request.include_authorized_operations)
    return describe_all(services.groups.describe_consumer, to_description, _response, request.group_ids)


def _response(groups: list[DescribedGroup]) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=groups)


def _description(with_operations: bool, group_id: str, answer: DescribedGroup | ApiError) -> Description:
    if isinstance(answer, ApiError):
        error = DescribedGroup(group_id=group_id, error_code=answer.code, error_message=answer.message or None)
        return Description(error, 0)
    if with_operations:
        answer.authorized_operations = GROUP_OPERATIONS
    return Description(answer, sum(map(_member_bytes, answer.members)))


def _member_bytes(member: Member) -> int:
    """Return the approximate bytes of a member in a response."""
    names = sum(TOPIC_BYTES + len(name) for name in member.subscribed_topic_names)
    topics = (*member.assignment.topic_partitions, *member.target_assignment.topic_partitions)
    return MEMBER_BYTES + names + sum(TOPIC_BYTES + len(t.topic_name) + 4 * len(t.partitions) for t in topics)
