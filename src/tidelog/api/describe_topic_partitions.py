"""DescribeTopicPartitions (key 75), v0 (KIP-966): topics in pages of partitions.

Topics come in the order of their names; the cursor says where the next page begins.
"""

from collections.abc import Sequence

from tidelog.api.operations import ON_TOPIC
from tidelog.api.services import RequestContext, Services
from tidelog.metadata.image import NO_LEADER, MetadataImage, TopicImage
from tidelog.metadata.topic_names import name_refusal
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


def handle(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    image = services.metadata.image
    asked = [topic.name for topic in request.topics]
    cursor = request.cursor
    if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
        error = ErrorCode.INVALID_REQUEST
        return DescribeTopicPartitionsResponse(
            topics=[DescribeTopicPartitionsResponseTopic(error_code=error, name=name) for name in dict.fromkeys(asked)]
        )
    names = sorted(dict.fromkeys(asked or image.topics))
    first = 0
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first = cursor.partition_index
    limit = min(max(request.response_partition_limit, 1), services.config.max_request_partition_size_limit)
    return _page(image, names, first, limit)


def _page(image: MetadataImage, names: Sequence[str], first: int, limit: int) -> DescribeTopicPartitionsResponse:
    """At most `limit` partitions of these topics, from partition `first` of the first one on."""
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if limit == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = image.topics.get(name)
        if topic is None:
            illegal = name_refusal(name) is not None
            error = ErrorCode.INVALID_TOPIC_EXCEPTION if illegal else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(error_code=error, name=name, topic_authorized_operations=ON_TOPIC)
            )
            first = 0
            continue
        stop = min(first + limit, len(topic.partitions))
        response.topics.append(_topic(topic, range(first, stop), image))
        limit -= max(stop - first, 0)
        first = 0
        if stop < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=stop)
            break
    return response


def _topic(topic: TopicImage, indexes: range, image: MetadataImage) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_partition(topic, index, image) for index in indexes],
        topic_authorized_operations=ON_TOPIC,
    )


def _partition(topic: TopicImage, index: int, image: MetadataImage) -> DescribeTopicPartitionsResponsePartition:
    state = topic.partitions[index]
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if state.leader == NO_LEADER else ErrorCode.NONE,
        partition_index=index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=[broker for broker in state.replicas if broker not in image.brokers],
    )
