"""CreatePartitions (key 37), v0-3 (KIP-195). Answers when every new partition leads."""

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.controller import MorePartitions, TopicResult
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)


async def handle(
    services: Services, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    wanted = [
        MorePartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [assignment.broker_ids for assignment in topic.assignments],
        )
        for topic in request.topics
    ]
    try:
        results = await services.controller.create_partitions(
            wanted, validate_only=request.validate_only, timeout_ms=request.timeout_ms
        )
    except ApiError as error:
        message = error.message or None
        results = [
            TopicResult(name, error=error.code, message=message) for name in dict.fromkeys(w.topic for w in wanted)
        ]
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=result.name or "", error_code=result.error, error_message=result.message)
            for result in results
        ]
    )
