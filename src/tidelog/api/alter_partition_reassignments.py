"""AlterPartitionReassignments (key 45), v0-1 (KIP-455): move replicas between brokers, or cancel such moves. v1: a
request can forbid changes of the number of replicas (KIP-860).

The response is sent when the moves have begun. ListPartitionReassignments lists them until they are complete.
"""

from typing import TYPE_CHECKING

from tidelog.api.request_order import in_request_order
from tidelog.api.services import RequestContext, Services
from tidelog.metadata.controller import NAMED_PARTITIONS_MAX
from tidelog.metadata.link import AlterReassignments
from tidelog.metadata.reassignment import REPLICAS_MAX, Reassignment, ReassignmentResult
from tidelog.model.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome


def handle(
    services: Services, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> "Steps[Outcome[AlterPartitionReassignmentsResponse]]":
    if not request.topics:
        return AlterPartitionReassignmentsResponse()
    reassignments: list[Reassignment] = []
    for topic in request.topics:
        if len(reassignments) + len(topic.partitions) > NAMED_PARTITIONS_MAX:
            return AlterPartitionReassignmentsResponse(
                allow_replication_factor_change=request.allow_replication_factor_change,
                error_code=ErrorCode.POLICY_VIOLATION,
                error_message=f"the request names more than {NAMED_PARTITIONS_MAX} partitions, which is the limit",
            )
        for partition in topic.partitions:
            # The list of replicas may be millions long. Copy at most one replica more than the limit: if the list is
            # too long, the copy is too long as well, and the controller refuses the partition.
            replicas = None if partition.replicas is None else partition.replicas[: REPLICAS_MAX + 1]
            reassignments.append(Reassignment(topic.name, partition.partition_index, replicas))
            yield
        yield
    return _alter(services, request, reassignments)


async def _alter(
    services: Services, request: AlterPartitionReassignmentsRequest, reassignments: list[Reassignment]
) -> Steps[AlterPartitionReassignmentsResponse]:
    answer = await services.controller.alter_reassignments(
        AlterReassignments(reassignments, request.allow_replication_factor_change, request.timeout_ms)
    )
    results = answer.value
    if results is None:
        error, message = answer.error, answer.message or None
        results = [ReassignmentResult(topic, partition, error, message) for topic, partition, _ in reassignments]
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=answer.error,
        error_message=answer.message or None,
    )
    return _with_results(response, request, results)


def _with_results(
    response: AlterPartitionReassignmentsResponse,
    request: AlterPartitionReassignmentsRequest,
    results: list[ReassignmentResult],
) -> Steps[AlterPartitionReassignmentsResponse]:
    ordered = yield from in_request_order(request.topics, results, _partition_response)
    response.responses = [ReassignableTopicResponse(topic.name, parts) for topic, parts in ordered]
    return response


def _partition_response(result: ReassignmentResult) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(result.partition, result.error, result.message)
