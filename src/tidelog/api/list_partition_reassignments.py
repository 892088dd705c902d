"""ListPartitionReassignments (key 46), v0 (KIP-455): running moves of replicas between brokers.

As in Kafka, the answer contains every move that the controller has begun. So this broker first waits until it has all
metadata that the controller has: a tool may have begun a move through another broker a moment ago. Unknown topics and
partitions are not an error.
"""

from typing import TYPE_CHECKING

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.link import CatchUp
from tidelog.metadata.reassignment import list_reassignments
from tidelog.model.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome


def handle(
    services: Services, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> "Steps[Outcome[ListPartitionReassignmentsResponse]]":
    """List the reassignments of the partitions in the request, or of all topics. A partition that the request names
    more than once is listed once.
    """
    requested: dict[str, dict[int, None]] | None = None
    if request.topics is not None:
        requested = {}
        for topic in request.topics:
            numbers = requested.setdefault(topic.name, {})
            for number in topic.partition_indexes:
                numbers[number] = None
                yield
            yield
    return _list_when_caught_up(services, requested)


async def _list_when_caught_up(
    services: Services, requested: dict[str, dict[int, None]] | None
) -> "Outcome[ListPartitionReassignmentsResponse]":
    answer = await services.controller.catch_up(CatchUp())  # Kafka, too, ignores the request's timeout
    if answer.error is not ErrorCode.NONE:
        return ListPartitionReassignmentsResponse(error_code=answer.error, error_message=answer.message or None)
    return _list(services.metadata.image, requested)


def _list(
    image: MetadataImage, requested: dict[str, dict[int, None]] | None
) -> Steps[ListPartitionReassignmentsResponse]:
    response = ListPartitionReassignmentsResponse(error_message=None)
    for name, ongoing in (yield from list_reassignments(image, requested)).items():
        partitions = []
        for partition, replicas, adding, removing in ongoing:
            partitions.append(
                OngoingPartitionReassignment(partition, list(replicas), list(adding), list(removing)),
            )
            yield
        response.topics.append(OngoingTopicReassignment(name, partitions))
    return response
