"""DescribeTopicPartitions (key 75), v0 (KIP-966): describe topics, in pages of partitions.

Topics are sorted by name. The cursor of a response says where the next page begins.
"""

from collections.abc import Iterable, Iterator
from heapq import merge

from tidelog.api.encoded_partitions import VERSION, EncodedPartitions, encode_partitions, encode_topic, join_topics
from tidelog.api.operations import TOPIC_OPERATIONS
from tidelog.api.services import Encoded, RequestContext, Services
from tidelog.api.topic_partitions import partitions_of
from tidelog.metadata.image import MetadataImage, TopicImage
from tidelog.metadata.topic_names import name_refusal
from tidelog.model.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

NAMES_PER_STEP = 500


def handle(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> Steps[DescribeTopicPartitionsResponse | Encoded]:
    image = services.metadata.image
    requested_names: dict[str, None] = {}
    for topic in request.topics:
        requested_names[topic.name] = None
        yield
    cursor = request.cursor
    if cursor is not None and (
        cursor.partition_index < 0 or (requested_names and cursor.topic_name not in requested_names)
    ):
        return (yield from _refuse_all(request))
    names = yield from _sorted_names(requested_names or image.topics, "" if cursor is None else cursor.topic_name)
    limit = min(max(request.response_partition_limit, 1), services.config.max_request_partition_size_limit)
    # If the client has a quota, the response is not encoded here, since a throttle time is written into it later.
    if context.meter is not None:
        return (yield from _page(services, image, names, cursor, limit))
    encoded_topics: list[bytes] = []
    response = yield from _page(services, image, names, cursor, limit, encoded_topics)
    return Encoded([b"", join_topics(response, encoded_topics)])


def _refuse_all(request: DescribeTopicPartitionsRequest) -> Steps[DescribeTopicPartitionsResponse]:
    """Return the response to an invalid cursor: an error for each topic entry of the request. So a topic that is named
    more than once appears more than once, unlike in a successful response.
    """
    error = ErrorCode.INVALID_REQUEST
    response = DescribeTopicPartitionsResponse()
    for topic in request.topics:
        response.topics.append(DescribeTopicPartitionsResponseTopic(error_code=error, name=topic.name))
        yield
    return response


def _sorted_names(names: Iterable[str], first_name: str) -> Steps[Iterator[str]]:
    """Return the names in sorted order, without the names before `first_name`. The names are sorted in chunks and then
    merged, since one long sort would block the event loop.
    """
    runs: list[list[str]] = [[]]
    for count, name in enumerate(names):
        if name >= first_name:
            runs[-1].append(name)
            if len(runs[-1]) == NAMES_PER_STEP:
                runs[-1].sort()
                runs.append([])
        if count % NAMES_PER_STEP == 0:
            yield
    runs[-1].sort()
    return merge(*runs)


def _page(
    services: Services,
    image: MetadataImage,
    names: Iterator[str],
    cursor: Cursor | None,
    limit: int,
    encoded_topics: list[bytes] | None = None,
) -> Steps[DescribeTopicPartitionsResponse]:
    """Return at most `limit` partitions of the topics `names`, beginning at the cursor. If `encoded_topics` is given,
    the encoded topics are appended to this list, and the response itself has no topics.
    """
    response = DescribeTopicPartitionsResponse()
    stored = services.encoded_partitions.of(image, VERSION, TOPIC_OPERATIONS)
    for name in names:
        if limit == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        yield
        topic = image.topics.get(name)
        if topic is None:
            illegal = name_refusal(name) is not None
            error = ErrorCode.INVALID_TOPIC_EXCEPTION if illegal else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            unknown_topic = DescribeTopicPartitionsResponseTopic(
                error_code=error, name=name, topic_authorized_operations=TOPIC_OPERATIONS
            )
            if encoded_topics is None:
                response.topics.append(unknown_topic)
            else:
                encoded_topics.append(encode_topic(unknown_topic))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        stop = min(first + limit, len(topic.partitions))
        indexes = range(first, stop)
        if encoded_topics is None:
            description = _description(topic)
            description.partitions = yield from _partitions(services, topic, indexes, image)
            response.topics.append(description)
        else:
            partitions: EncodedPartitions | None = None
            may_be_offline = services.partitions.may_be_offline(name)
            if not may_be_offline:
                partitions = stored.find(topic)
            if partitions is None:
                every_index = range(len(topic.partitions))
                partitions = yield from encode_partitions((yield from _partitions(services, topic, every_index, image)))
                # A log may have gone offline while the partitions were encoded in steps.
                if not may_be_offline and not services.partitions.may_be_offline(name):
                    stored.store(topic, partitions)
            encoded_topics.append(encode_topic(_description(topic), partitions, indexes))
        limit -= max(stop - first, 0)
        if stop < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=stop)
            break
    return response


def _description(topic: TopicImage) -> DescribeTopicPartitionsResponseTopic:
    """Return the description of a topic, without its partitions."""
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partitions(
    services: Services, topic: TopicImage, indexes: range, image: MetadataImage
) -> Steps[list[DescribeTopicPartitionsResponsePartition]]:
    partitions = yield from partitions_of(
        topic, indexes, image, services.partitions, DescribeTopicPartitionsResponsePartition
    )
    for partition in partitions:
        state = topic.partitions[partition.partition_index]
        elr, last_known_elr = state.elr, state.last_known_elr
        if partition.leader_id != state.leader:
            # In the metadata, this broker is the leader, but the partition's log is offline. Both ELR fields of the
            # response get the ISR of the metadata: each of its replicas may lead again without loss of data (KIP-966).
            elr = last_known_elr = state.isr
        partition.eligible_leader_replicas, partition.last_known_elr = list(elr), list(last_known_elr)
        # As in Kafka, this API returns no error for a partition without a leader. (The Metadata API returns one.)
        partition.error_code = ErrorCode.NONE
    return partitions
