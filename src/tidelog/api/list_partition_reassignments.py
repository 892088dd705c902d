"""ListPartitionReassignments (key 46), v0 (KIP-455): running moves of replicas between brokers.

As in Kafka, unknown topics and partitions are not an error.
"""

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.reassignment import list_reassignments
from tidelog.model.steps import Steps
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(
    services: Services, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> Steps[ListPartitionReassignmentsResponse]:
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
    response = ListPartitionReassignmentsResponse(error_message=None)
    for name, ongoing in (yield from list_reassignments(services.metadata.image, requested)).items():
        partitions = []
        for partition, replicas, adding, removing in ongoing:
            partitions.append(
                OngoingPartitionReassignment(partition, list(replicas), list(adding), list(removing)),
            )
            yield
        response.topics.append(OngoingTopicReassignment(name, partitions))
    return response
