"""Metadata (key 3), v0-13. v1: null asks for all topics; v4: automatic creation can be switched off; v7: leader
epochs; v8: authorized operations (KIP-430); v10: topic ids (KIP-516), which requests use from v12; v13: top-level
error.

If a request creates a topic automatically, the response to this request already contains the topic, with its leaders.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.api.encoded_topics import encode_topics, join_topics
from tidelog.api.operations import CLUSTER_OPERATIONS, OPERATIONS_NOT_REQUESTED, TOPIC_OPERATIONS
from tidelog.api.services import Encoded, RequestContext, Services
from tidelog.api.topic_partitions import partitions_of
from tidelog.metadata.image import CLUSTER_METADATA, MetadataImage, TopicImage
from tidelog.metadata.link import EnsureTopics
from tidelog.metadata.topic_names import name_refusal
from tidelog.model.ids import NO_TOPIC_ID, TopicId
from tidelog.model.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

TOPIC_IDS_SINCE = 12
"""The first version whose requests may name topics by id. The requests of versions 10 and 11 also have the field, but
Kafka has never accepted an id in them."""
STORED_TOPICS_PER_STEP = 32
"""Number of topics whose stored encoding is used in one step."""


def handle(
    services: Services, context: RequestContext, request: MetadataRequest
) -> "Steps[Outcome[MetadataResponse | Encoded]]":
    """Answer from one image. If missing topics are created first, this image is the one after their creation."""
    image = services.metadata.image
    requested_topics = request.topics
    version = context.api_version
    if requested_topics is None or (version == 0 and not requested_topics):
        return (yield from _all_topics(services, context, image, request))
    ids: dict[TopicId, None] = {}
    names: dict[str, None] = {}
    has_nameless = False
    for topic in requested_topics:
        if topic.topic_id != NO_TOPIC_ID:
            ids[TopicId(topic.topic_id)] = None
        has_nameless |= topic.name is None
        names[topic.name or ""] = None
        yield
    if has_nameless or ids:
        if version < TOPIC_IDS_SINCE or not ids:
            return (yield from _refuse_all(requested_topics))
        return (yield from _topics_by_id(services, context, image, ids, request))
    errors: dict[str, ErrorCode] = {}
    missing: list[str] = []
    for name in names:
        if name not in image.topics:
            if name_refusal(name) is not None:
                errors[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
            elif name != CLUSTER_METADATA:
                missing.append(name)
        yield
    if missing and request.allow_auto_topic_creation and services.config.auto_create_topics_enable:
        return _create_first(services, context, request, names, errors, missing)
    return (yield from _topics_by_name(services, context, image, names, errors, request))


def _respond(
    services: Services,
    context: RequestContext,
    image: MetadataImage,
    request: MetadataRequest,
    topics: "list[MetadataResponseTopic | TopicImage]",
) -> Steps[MetadataResponse | Encoded]:
    """Return the response with these topics. A `TopicImage` is described, or its stored encoding is used. This
    function may remove all elements of `topics`, to free them in steps.

    If the client has a quota, the response is not encoded here, since a throttle time is written into it later.
    """
    version = context.api_version
    if context.meter is not None or version == 0:
        described = []
        for topic in topics:
            if isinstance(topic, TopicImage):
                topic = yield from _topic(services, context, topic, image, request)
            described.append(topic)
        return _response(services, context, image, request, described)
    partitions = services.partitions
    stored = services.encoded_topics.of(image, version, _operations(request))
    encoded = []
    errors: list[MetadataResponseTopic] = []  # consecutive topics that are not in the image
    for position, topic in enumerate(topics):
        if position % STORED_TOPICS_PER_STEP == 0:
            yield
        if not isinstance(topic, TopicImage):
            errors.append(topic)
            continue
        if errors:
            encoded.append((yield from encode_topics(errors, version)))
            errors = []
        data = None
        if not partitions.may_be_offline(topic.name):
            data = stored.find(topic)
        if data is None:
            described_topic = yield from _topic(services, context, topic, image, request)
            data = yield from encode_topics([described_topic], version)
            if not partitions.may_be_offline(topic.name):
                stored.store(topic, data)
        encoded.append(data)
    if errors:
        encoded.append((yield from encode_topics(errors, version)))
        del errors  # its elements are freed in steps, with the elements of `topics`
    data = join_topics(_response(services, context, image, request, []), len(topics), encoded, version)
    while topics:
        del topics[-STORED_TOPICS_PER_STEP:]
        yield
    return Encoded([b"", data])


def _response(
    services: Services,
    context: RequestContext,
    image: MetadataImage,
    request: MetadataRequest,
    topics: list[MetadataResponseTopic],
) -> MetadataResponse:
    brokers = []
    for broker in image.brokers.values():
        if not broker.fenced:
            address = broker.endpoint(context.peer.listener)
            brokers.append(MetadataResponseBroker(broker.broker_id, address.host, address.port, broker.rack))
    response = MetadataResponse(
        brokers=brokers,
        cluster_id=image.cluster_id,
        controller_id=image.reported_controller(services.config.node_id),
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _refuse_all(requested_topics: Sequence[MetadataRequestTopic]) -> Steps[MetadataResponse]:
    error = ErrorCode.INVALID_REQUEST
    response = MetadataResponse(error_code=error)
    for topic in requested_topics:
        topic_answer = MetadataResponseTopic(error_code=error, name=topic.name or "", topic_id=topic.topic_id)
        response.topics.append(topic_answer)
        yield
    return response


def _all_topics(
    services: Services, context: RequestContext, image: MetadataImage, request: MetadataRequest
) -> Steps[MetadataResponse | Encoded]:
    # librdkafka permanently gives up on topics whose leader is not among the brokers of the response, so no topics are
    # returned until a broker is registered. While all registered brokers are fenced, no partition has a leader. In this
    # case topics are returned, as by Kafka, and the clients ask again.
    topics: list[MetadataResponseTopic | TopicImage] = [*image.topics.values()] if image.brokers else []
    return (yield from _respond(services, context, image, request, topics))


def _topics_by_id(
    services: Services, context: RequestContext, image: MetadataImage, ids: Iterable[TopicId], request: MetadataRequest
) -> Steps[MetadataResponse | Encoded]:
    """Return topics by id. If any topic is requested by its id, topics requested by name are ignored."""
    topics: list[MetadataResponseTopic | TopicImage] = []
    for topic_id in ids:
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID
            topics.append(MetadataResponseTopic(error_code=error, name=None, topic_id=topic_id))
        else:
            topics.append(topic)
        yield
    return (yield from _respond(services, context, image, request, topics))


def _topics_by_name(
    services: Services,
    context: RequestContext,
    image: MetadataImage,
    names: Iterable[str],
    errors: Mapping[str, ErrorCode],
    request: MetadataRequest,
) -> Steps[MetadataResponse | Encoded]:
    """Return topics by name, in the order of the request."""
    operations = _operations(request)
    topics: list[MetadataResponseTopic | TopicImage] = []
    for name in names:
        topic = image.topics.get(name)
        if topic is not None:
            topics.append(topic)
        else:
            error = errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topics.append(MetadataResponseTopic(error_code=error, name=name, topic_authorized_operations=operations))
        yield
    return (yield from _respond(services, context, image, request, topics))


async def _create_first(
    services: Services,
    context: RequestContext,
    request: MetadataRequest,
    names: Iterable[str],
    errors: Mapping[str, ErrorCode],
    missing: Sequence[str],
) -> Steps[MetadataResponse | Encoded]:
    errors = {**errors, **await _create(services, context, missing)}
    return _topics_by_name(services, context, services.metadata.image, names, errors, request)


async def _create(services: Services, context: RequestContext, names: Sequence[str]) -> dict[str, ErrorCode]:
    """Create topics. Return the errors of topics that were not created.

    The result does not contain a topic whose creation exceeds a quota. For such a topic, the client gets
    UNKNOWN_TOPIC_OR_PARTITION.
    """
    answer = await services.controller.ensure_topics(EnsureTopics(names, context.requester))
    if answer.value is None:
        return dict.fromkeys(names, answer.error)
    return {
        result.name: result.error
        for result in answer.value
        if result.name and result.error and result.error != ErrorCode.THROTTLING_QUOTA_EXCEEDED
    }


def _operations(request: MetadataRequest) -> int:
    return TOPIC_OPERATIONS if request.include_topic_authorized_operations else OPERATIONS_NOT_REQUESTED


def _topic(
    services: Services, context: RequestContext, topic: TopicImage, image: MetadataImage, request: MetadataRequest
) -> Steps[MetadataResponseTopic]:
    indexes = range(len(topic.partitions))
    partitions = yield from partitions_of(topic, indexes, image, services.partitions, MetadataResponsePartition)
    if context.api_version == 0:
        yield from _leave_out_offline_replicas(partitions)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=partitions,
        topic_authorized_operations=_operations(request),
    )


def _leave_out_offline_replicas(partitions: list[MetadataResponsePartition]) -> Steps[None]:
    """Remove offline replicas from the lists of replicas, and give every partition with an offline replica an error.
    Kafka does the same, in v0 only.
    """
    for partition in partitions:
        offline = partition.offline_replicas
        if offline:
            partition.replica_nodes = [replica for replica in partition.replica_nodes if replica not in offline]
            partition.isr_nodes = [replica for replica in partition.isr_nodes if replica not in offline]
            if not partition.error_code:
                partition.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
        yield
