"""DeleteRecords (key 21), v0-2: move the start offset of logs. The response is sent when the new start survives a
crash.

Segments that lie wholly below the start are deleted by the next run of retention.
"""

from typing import TYPE_CHECKING

from tidelog.api.repeats import NamedPartitions
from tidelog.api.services import RequestContext, Services
from tidelog.metadata.image import INTERNAL_TOPICS
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode, OffsetOutOfRange
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome
    from tidelog.replication.partition import Partition

HIGH_WATERMARK = -1
"""The offset in a request that means: delete all records that consumers can read."""
INVALID_LOW_WATERMARK = -1
"""The low watermark in the answer for a partition with an error."""


def handle(
    services: Services, context: RequestContext, request: DeleteRecordsRequest
) -> "Steps[Outcome[DeleteRecordsResponse]]":
    """Delete the records. Each partition is answered once. If a partition is named more than once, its last offset
    counts.
    """
    offsets: NamedPartitions[str, int] = NamedPartitions()
    for topic in request.topics:
        for partition in topic.partitions:
            offsets.add(topic.name, partition.partition_index, partition.offset)
            yield
        yield
    moved_starts: dict[Partition, DeleteRecordsPartitionResult] = {}
    topics = []
    for name, partitions in offsets.by_topic.items():
        results = []
        for index, offset in partitions.items():
            results.append(_delete(services, name, index, offset, moved_starts))
            yield
        topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
    return _persist(services, moved_starts, DeleteRecordsResponse(topics=topics))


async def _persist(
    services: Services, moved_starts: "dict[Partition, DeleteRecordsPartitionResult]", response: DeleteRecordsResponse
) -> DeleteRecordsResponse:
    for failed_partition in await services.partitions.persist_start_offsets(moved_starts):
        moved_starts[failed_partition].error_code = ErrorCode.KAFKA_STORAGE_ERROR
        moved_starts[failed_partition].low_watermark = INVALID_LOW_WATERMARK
    return response


def _delete(
    services: Services,
    topic: str,
    index: int,
    offset: int,
    moved_starts: "dict[Partition, DeleteRecordsPartitionResult]",
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=index, low_watermark=INVALID_LOW_WATERMARK)
    try:
        partition = services.partitions.get(topic, index)
        if topic in INTERNAL_TOPICS:
            raise ApiError(f"{topic} is an internal topic", ErrorCode.INVALID_TOPIC_EXCEPTION)
        log = partition.log
        if log.config.compacts and not log.config.deletes:
            raise ApiError(f"the cleanup.policy of {topic} is compact, without delete", ErrorCode.POLICY_VIOLATION)
        partition.check_online()
        if offset == HIGH_WATERMARK:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            raise OffsetOutOfRange(f"offset {offset} is not within 0..{partition.high_watermark} of {topic}-{index}")
        result.low_watermark = log.delete_before(offset)
        moved_starts[partition] = result
    except ApiError as error:
        result.error_code = error.code
    return result
