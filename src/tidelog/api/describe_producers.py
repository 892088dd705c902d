"""DescribeProducers (key 61), v0 (KIP-664): the producers that a partition remembers, and their open transactions.

Followers also answer. A follower describes the producers of its own records, and it may have fewer records than the
leader.
"""

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.topic_names import name_refusal
from tidelog.model.steps import Steps
from tidelog.replication.partition import Partition
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

PRODUCERS_MAX = 200_000
"""Upper bound on the producers of one response. A partition may remember 100,000 producers, and a request may name the
same partition a million times."""
PRODUCERS_PER_STEP = 500


def handle(
    services: Services, context: RequestContext, request: DescribeProducersRequest
) -> Steps[DescribeProducersResponse]:
    topics = []
    producers_left = PRODUCERS_MAX
    for topic in request.topics:
        answers = []
        for index in topic.partition_indexes:
            answer = PartitionResponse(partition_index=index)
            try:
                partition = _partition(services, topic.name, index)
                count = len(partition.log.producers.entries)
                if count > producers_left:
                    message = f"the response would contain more than {PRODUCERS_MAX} producers; name fewer partitions"
                    raise ApiError(message, ErrorCode.INVALID_REQUEST)
                producers_left -= count
                yield from _describe(partition, answer)
            except ApiError as error:
                answer.error_code = error.code
                answer.error_message = error.message
            answers.append(answer)
            yield
        topics.append(TopicResponse(name=topic.name, partitions=answers))
        yield
    return DescribeProducersResponse(topics=topics)


def _partition(services: Services, topic: str, index: int) -> Partition:
    refusal = name_refusal(topic)
    if refusal is not None:
        raise ApiError(refusal, ErrorCode.INVALID_TOPIC_EXCEPTION)
    return services.partitions.replica(topic, index)


def _describe(partition: Partition, answer: PartitionResponse) -> Steps[None]:
    for number, (producer_id, entry) in enumerate(list(partition.log.producers.entries.items()), 1):
        answer.active_producers.append(
            ProducerState(
                producer_id=producer_id,
                producer_epoch=entry.epoch,
                last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.transaction_start,
            )
        )
        if number % PRODUCERS_PER_STEP == 0:
            yield
