"""ListPartitionReassignments (key 46), v0 (KIP-455): moves of replicas between brokers that are on their way.

One broker holds every replica, so there are none, whatever is asked for; as in Kafka, what does not exist is not moved
either and is no error.
"""

from tidelog.api.services import RequestContext, Services
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    services: Services, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)
