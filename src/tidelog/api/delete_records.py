"""DeleteRecords (key 21), v0-2: raise the log start offset of partitions. The response is sent when two conditions are
met: the new log start offset is durable on this broker, and the logs of all other online replicas begin at this offset
or above it. A partition whose followers do not meet the second condition in time gets an error.

The next retention pass deletes the segments that are completely below the log start offset.
"""

import asyncio
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
    from tidelog.api.follower_fetch import Followers
    from tidelog.api.pending import Outcome
    from tidelog.replication.partition import Partition

HIGH_WATERMARK = -1
"""A request with this offset deletes all records that consumers can read."""
INVALID_LOW_WATERMARK = -1
"""The low watermark in the answer for a partition with an error."""


def handle(
    services: Services, context: RequestContext, request: DeleteRecordsRequest
) -> "Steps[Outcome[DeleteRecordsResponse]]":
    """Delete the records. Each partition is answered once. If the request names a partition more than once, only the
    offset in the last entry for this partition is used.
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
    return _persist(services, moved_starts, DeleteRecordsResponse(topics=topics), request.timeout_ms)


async def _persist(
    services: Services,
    moved_starts: "dict[Partition, DeleteRecordsPartitionResult]",
    response: DeleteRecordsResponse,
    timeout_ms: int,
) -> DeleteRecordsResponse:
    began_s = services.runtime.clock.monotonic()
    for failed_partition in await services.partitions.persist_start_offsets(moved_starts):
        _set_error(moved_starts[failed_partition], ErrorCode.KAFKA_STORAGE_ERROR)
    if services.followers is not None:
        timeout_s = began_s + timeout_ms / 1000 - services.runtime.clock.monotonic()
        waits = [
            _wait_for_followers(services, services.followers, partition, result, timeout_s)
            for partition, result in moved_starts.items()
            if not partition.replica.is_alone and not result.error_code
        ]
        await asyncio.gather(*waits)
    return response


async def _wait_for_followers(
    services: Services,
    followers: "Followers",
    partition: "Partition",
    result: DeleteRecordsPartitionResult,
    timeout_s: float,
) -> None:
    def is_online(broker_id: int) -> bool:
        return services.metadata.newest.is_online(broker_id)

    try:
        start_offset = result.low_watermark
        result.low_watermark = await followers.wait_for_log_start(partition, start_offset, is_online, timeout_s)
    except ApiError as error:
        _set_error(result, error.code)


def _set_error(result: DeleteRecordsPartitionResult, code: ErrorCode) -> None:
    result.error_code = code
    result.low_watermark = INVALID_LOW_WATERMARK


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
        partition.notify_followers()
        moved_starts[partition] = result
    except ApiError as error:
        result.error_code = error.code
    return result
