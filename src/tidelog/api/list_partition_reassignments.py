"""ListPartitionReassignments (key 46), v0 (KIP-455): running moves of replicas between brokers.

One broker has all replicas, so the list is always empty. As in Kafka, unknown topics and partitions are not an error.
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
