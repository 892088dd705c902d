"""DeleteRecords (key 21), v0-2: moves the start of a log; the answer comes when a crash would not move it back.

Segments that lie wholly below the start leave the disk with the next retention.
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
"""As the offset: all that consumers may see."""
INVALID_LOW_WATERMARK = -1


def handle(
    services: Services, context: RequestContext, request: DeleteRecordsRequest
) -> "Steps[Outcome[DeleteRecordsResponse]]":
    """Each partition is answered once. Of one that the request names more than once the last offset counts."""
    named: NamedPartitions[str, int] = NamedPartitions()
    for topic in request.topics:
        for partition in topic.partitions:
            named.add(topic.name, partition.partition_index, partition.offset)
            yield
        yield
    moved: dict[Partition, DeleteRecordsPartitionResult] = {}
    topics = []
    for name, partitions in named.by_topic.items():
        results = []
        for index, offset in partitions.items():
            results.append(_delete(services, name, index, offset, moved))
            yield
        topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
    return _persist(services, moved, DeleteRecordsResponse(topics=topics))


async def _persist(
    services: Services, moved: "dict[Partition, DeleteRecordsPartitionResult]", response: DeleteRecordsResponse
) -> DeleteRecordsResponse:
    for partition in await services.partitions.persist_starts(moved):
        moved[partition].error_code = ErrorCode.KAFKA_STORAGE_ERROR
        moved[partition].low_watermark = INVALID_LOW_WATERMARK
    return response


def _delete(
    services: Services, topic: str, index: int, offset: int, moved: "dict[Partition, DeleteRecordsPartitionResult]"
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=index, low_watermark=INVALID_LOW_WATERMARK)
    try:
        partition = services.partitions.get(topic, index)
        if topic in INTERNAL_TOPICS:
            raise ApiError(f"{topic} is an internal topic", ErrorCode.INVALID_TOPIC_EXCEPTION)
        log = partition.log
        if log.config.compacts and not log.config.deletes:
            raise ApiError(f"the records of {topic} go by compaction only", ErrorCode.POLICY_VIOLATION)
        partition.check_online()
        if offset == HIGH_WATERMARK:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            raise OffsetOutOfRange(f"offset {offset} is not within 0..{partition.high_watermark} of {topic}-{index}")
        result.low_watermark = log.delete_before(offset)
        moved[partition] = result
    except ApiError as error:
        result.error_code = error.code
    return result
