"""DeleteTopics (key 20), v1-6. v5: error messages; v6: a topic may be named by its id (KIP-516)."""

from typing import TYPE_CHECKING

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.controller import TopicChoice, TopicResult
from tidelog.metadata.link import Answer, DeleteTopics, topic_results
from tidelog.model.ids import TopicId
from tidelog.model.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

TOPIC_IDS_SINCE = 6
"""The first version whose requests may name topics by id."""
DELETION_DISABLED_SINCE = 3
"""The first version whose responses may contain TOPIC_DELETION_DISABLED. Responses of older versions contain
INVALID_REQUEST instead."""


def handle(
    services: Services, context: RequestContext, request: DeleteTopicsRequest
) -> "Steps[Outcome[DeleteTopicsResponse]]":
    choices = []
    if context.api_version >= TOPIC_IDS_SINCE:
        for topic in request.topics:
            choices.append(TopicChoice(topic.name, TopicId(topic.topic_id)))
            yield
    else:
        for name in request.topic_names:
            choices.append(TopicChoice(name))
            yield
    return _delete(services, context, request, choices)


async def _delete(
    services: Services, context: RequestContext, request: DeleteTopicsRequest, choices: list[TopicChoice]
) -> Steps[DeleteTopicsResponse]:
    answer: Answer[list[TopicResult]]
    if services.config.delete_topic_enable:
        answer = await services.controller.delete_topics(DeleteTopics(choices, request.timeout_ms, context.requester))
        context.throttle(answer.throttle_ms)
    else:
        is_old_version = context.api_version < DELETION_DISABLED_SINCE
        answer = Answer(None, ErrorCode.INVALID_REQUEST if is_old_version else ErrorCode.TOPIC_DELETION_DISABLED)
    return _response(topic_results(answer, choices))


def _response(results: list[TopicResult]) -> Steps[DeleteTopicsResponse]:
    response = DeleteTopicsResponse()
    for result in results:
        response.responses.append(
            DeletableTopicResult(
                name=result.name, topic_id=result.topic_id, error_code=result.error, error_message=result.message
            )
        )
        yield
    return response
