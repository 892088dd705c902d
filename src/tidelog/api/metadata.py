"""Metadata (key 3), v0-13. v1: null asks for all topics; v4: a client can do without automatic creation; v7: leader
epochs; v8: authorized operations (KIP-430); v10: topic ids (KIP-516), asked for from v12; v13: an error for the whole.

A topic that is made on demand is in the same answer, with its leaders.
"""

from collections.abc import Sequence

from tidelog.api.operations import NOT_ASKED, ON_CLUSTER, ON_TOPIC
from tidelog.api.services import RequestContext, Services
from tidelog.metadata.image import CLUSTER_METADATA, NO_LEADER, MetadataImage, TopicImage
from tidelog.metadata.records import PartitionState
from tidelog.metadata.topic_names import name_refusal
from tidelog.model.ids import NO_TOPIC_ID, TopicId
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

IDS_SERVED_FROM = 12
"""Versions 10 and 11 have the field, and Kafka never took it there."""


async def handle(services: Services, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    asked = request.topics
    version = context.api_version
    operations = ON_TOPIC if request.include_topic_authorized_operations else NOT_ASKED
    if asked is None or (version == 0 and not asked):
        topics = [_topic(topic, services.metadata.image, operations) for topic in _all(services.metadata.image)]
    elif any(topic.name is None or topic.topic_id != NO_TOPIC_ID for topic in asked):
        ids = [TopicId(topic.topic_id) for topic in asked if topic.topic_id != NO_TOPIC_ID]
        if version < IDS_SERVED_FROM or not ids:
            return _refused(asked)
        topics = _by_id(services.metadata.image, ids, operations)
    else:
        topics = await _by_name(services, request, [topic.name or "" for topic in asked], operations)
    image = services.metadata.image
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in image.brokers.values()
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = ON_CLUSTER
    return response


def _all(image: MetadataImage) -> Sequence[TopicImage]:
    # librdkafka gives up for good on topics that come without any broker: say nothing until this one is registered.
    return list(image.topics.values()) if image.brokers else []


def _refused(asked: Sequence[MetadataRequestTopic]) -> MetadataResponse:
    error = ErrorCode.INVALID_REQUEST
    return MetadataResponse(
        error_code=error,
        topics=[MetadataResponseTopic(error_code=error, name=t.name or "", topic_id=t.topic_id) for t in asked],
    )


def _by_id(image: MetadataImage, ids: Sequence[TopicId], operations: int) -> list[MetadataResponseTopic]:
    """Each once. When one topic is asked for by its id, those that are asked for by name do not count."""
    topics: list[MetadataResponseTopic] = []
    for topic_id in dict.fromkeys(ids):
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID
            topics.append(MetadataResponseTopic(error_code=error, name=None, topic_id=topic_id))
        else:
            topics.append(_topic(topic, image, operations))
    return topics


async def _by_name(
    services: Services, request: MetadataRequest, names: Sequence[str], operations: int
) -> list[MetadataResponseTopic]:
    """Each once, in the order of the request."""
    names = list(dict.fromkeys(names))
    image = services.metadata.image
    errors: dict[str, ErrorCode] = {}
    missing: list[str] = []
    for name in names:
        if name not in image.topics:
            if name_refusal(name) is not None:
                errors[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif name != CLUSTER_METADATA:
                missing.append(name)
    if missing and request.allow_auto_topic_creation and services.config.auto_create_topics_enable:
        errors |= await _create(services, missing)
        image = services.metadata.image
    topics: list[MetadataResponseTopic] = []
    for name in names:
        topic = image.topics.get(name)
        if topic is not None:
            topics.append(_topic(topic, image, operations))
        else:
            error = errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topics.append(MetadataResponseTopic(error_code=error, name=name, topic_authorized_operations=operations))
    return topics


async def _create(services: Services, names: Sequence[str]) -> dict[str, ErrorCode]:
    """The errors of those that could not be made."""
    try:
        results = await services.controller.ensure_topics(names)
    except ApiError as error:
        return dict.fromkeys(names, error.code)
    return {result.name: result.error for result in results if result.name and result.error}


def _topic(topic: TopicImage, image: MetadataImage, operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_partition(index, state, image) for index, state in enumerate(topic.partitions)],
        topic_authorized_operations=operations,
    )


def _partition(index: int, state: PartitionState, image: MetadataImage) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if state.leader == NO_LEADER else ErrorCode.NONE,
        partition_index=index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=[broker for broker in state.replicas if broker not in image.brokers],
    )
