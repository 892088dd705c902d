"""CreatePartitions (key 37), v0-3 (KIP-195). The response is sent when every new partition has a leader."""

from typing import TYPE_CHECKING

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.controller import PARTITIONS_PER_REQUEST_MAX, MorePartitions, TopicChoice, TopicResult
from tidelog.metadata.link import CreatePartitions, topic_results
from tidelog.model.steps import Steps
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome


def handle(
    services: Services, context: RequestContext, request: CreatePartitionsRequest
) -> "Steps[Outcome[CreatePartitionsResponse]]":
    new_partitions = []
    for topic in request.topics:
        assignments = None
        if topic.assignments is not None:
            # The list may have millions of entries. Copy at most one assignment more than the limit: if the list is too
            # long, the copy is too long as well, and the controller refuses the topic's partitions.
            assignments = [assignment.broker_ids for assignment in topic.assignments[: PARTITIONS_PER_REQUEST_MAX + 1]]
        new_partitions.append(MorePartitions(topic.name, topic.count, assignments))
        yield
    return _create(services, context, request, new_partitions)


async def _create(
    services: Services, context: RequestContext, request: CreatePartitionsRequest, new_partitions: list[MorePartitions]
) -> Steps[CreatePartitionsResponse]:
    answer = await services.controller.create_partitions(
        CreatePartitions(new_partitions, request.validate_only, request.timeout_ms, context.requester)
    )
    context.throttle(answer.throttle_ms)
    return _response(topic_results(answer, (TopicChoice(each.topic) for each in new_partitions)))


def _response(results: list[TopicResult]) -> Steps[CreatePartitionsResponse]:
    response = CreatePartitionsResponse()
    for result in results:
        response.results.append(
            CreatePartitionsTopicResult(name=result.name or "", error_code=result.error, error_message=result.message)
        )
        yield
    return response
