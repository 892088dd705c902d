"""CreateTopics (key 19), v2-7. v4: defaults for partitions and replicas (KIP-464); v5: the settings in the response
(KIP-525); v7: the topic's id (KIP-516).

The response is sent when every partition has a leader.
"""

from typing import TYPE_CHECKING

from tidelog.api.services import RequestContext, Services
from tidelog.config.describe import describe_created_topic
from tidelog.metadata.controller import PARTITIONS_PER_REQUEST_MAX, SETTINGS_MAX, NewTopic, TopicChoice, TopicResult
from tidelog.metadata.link import CreateTopics, topic_results
from tidelog.model.steps import Steps
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

SETTINGS_SINCE = 5
"""The first version whose response contains the topic's settings."""


def handle(
    services: Services, context: RequestContext, request: CreateTopicsRequest
) -> "Steps[Outcome[CreateTopicsResponse]]":
    topics = []
    for topic in request.topics:
        topics.append(_new_topic(topic))
        yield
    return _create(services, context, request, topics)


async def _create(
    services: Services, context: RequestContext, request: CreateTopicsRequest, topics: list[NewTopic]
) -> Steps[CreateTopicsResponse]:
    answer = await services.controller.create_topics(
        CreateTopics(topics, request.validate_only, request.timeout_ms, context.requester)
    )
    context.throttle(answer.throttle_ms)
    return _response(services, context, topic_results(answer, (TopicChoice(topic.name) for topic in topics)))


def _response(services: Services, context: RequestContext, results: list[TopicResult]) -> Steps[CreateTopicsResponse]:
    response = CreateTopicsResponse()
    for result in results:
        response.topics.append(_result(services, result, context.api_version))
        yield
    return response


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        # The lists may have millions of entries. Copy at most one entry more than the limit: if a list is too long,
        # its copy is too long as well, and the controller refuses the topic.
        [
            (assignment.partition_index, assignment.broker_ids)
            for assignment in topic.assignments[: PARTITIONS_PER_REQUEST_MAX + 1]
        ],
        [(config.name, config.value) for config in topic.configs[: SETTINGS_MAX + 1]],
    )


def _result(services: Services, result: TopicResult, version: int) -> CreatableTopicResult:
    answer = CreatableTopicResult(
        name=result.name or "",
        topic_id=result.topic_id,
        error_code=result.error,
        error_message=result.message,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=[],
    )
    if version >= SETTINGS_SINCE and not result.error:
        answer.configs = [
            CreatableTopicConfigs(
                name=described.key.name,
                value=described.value,
                read_only=described.read_only,
                config_source=described.source,
                is_sensitive=described.key.sensitive,
            )
            for described in describe_created_topic(result.config, services.config)
        ]
    return answer
