"""ElectLeaders (key 43), v0-2 (KIP-183, KIP-460). v1: unclean elections, and a response field for an error of
the whole request.

A request without a list of partitions concerns all partitions. Its response contains every topic, but only the
partitions that needed an election.
"""

from typing import TYPE_CHECKING

from tidelog.api.request_order import in_request_order
from tidelog.api.services import RequestContext, Services
from tidelog.metadata.controller import NAMED_PARTITIONS_MAX
from tidelog.metadata.elections import ElectionResult
from tidelog.metadata.link import ElectLeaders
from tidelog.model.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

TOP_LEVEL_ERROR_SINCE = 1
"""The first version whose response has a field for an error of the whole request."""


def handle(
    services: Services, context: RequestContext, request: ElectLeadersRequest
) -> "Steps[Outcome[ElectLeadersResponse]]":
    partitions: list[tuple[str, int]] | None = None
    if request.topic_partitions is not None:
        if not request.topic_partitions:
            return ElectLeadersResponse()
        partitions = []
        for topic in request.topic_partitions:
            if len(partitions) + len(topic.partitions) > NAMED_PARTITIONS_MAX:
                return (yield from _refuse_all(context, request, ErrorCode.POLICY_VIOLATION))
            for partition in topic.partitions:
                partitions.append((topic.topic, partition))
                yield
            yield
    return _elect(services, context, request, partitions)


async def _elect(
    services: Services, context: RequestContext, request: ElectLeadersRequest, partitions: list[tuple[str, int]] | None
) -> Steps[ElectLeadersResponse]:
    answer = await services.controller.elect_leaders(
        ElectLeaders(request.election_type, partitions, request.timeout_ms)
    )
    if answer.value is None:
        return _refuse_all(context, request, answer.error, answer.message)
    if request.topic_partitions is None:
        return _all_topics(services, answer.value)
    return _requested_topics(request, answer.value)


def _refuse_all(
    context: RequestContext, request: ElectLeadersRequest, error: ErrorCode, message: str = ""
) -> Steps[ElectLeadersResponse]:
    """Return the response to a request that failed as a whole. Each requested partition gets the error, too, because v0
    has no field for an error of the whole request.
    """
    response = ElectLeadersResponse()
    if context.api_version >= TOP_LEVEL_ERROR_SINCE:
        response.error_code = error
    for topic in request.topic_partitions or ():
        results = []
        for partition in topic.partitions:
            results.append(PartitionResult(partition, error, message or None))
            yield
        response.replica_election_results.append(ReplicaElectionResult(topic.topic, results))
        yield
    return response


def _all_topics(services: Services, results: list[ElectionResult]) -> Steps[ElectLeadersResponse]:
    results_by_topic: dict[str, list[PartitionResult]] = {}
    for name in services.metadata.image.topics:
        results_by_topic[name] = []
        yield
    for result in results:
        results_by_topic.setdefault(result.topic, []).append(_partition_result(result))
        yield
    response = ElectLeadersResponse()
    for name, partition_results in results_by_topic.items():
        response.replica_election_results.append(ReplicaElectionResult(name, partition_results))
        yield
    return response


def _requested_topics(request: ElectLeadersRequest, results: list[ElectionResult]) -> Steps[ElectLeadersResponse]:
    ordered = yield from in_request_order(request.topic_partitions or (), results, _partition_result)
    return ElectLeadersResponse(
        replica_election_results=[ReplicaElectionResult(topic.topic, parts) for topic, parts in ordered]
    )


def _partition_result(result: ElectionResult) -> PartitionResult:
    return PartitionResult(result.partition, result.error, result.message)
