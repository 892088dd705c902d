"""ListOffsets (key 2), v1-11. v2: isolation level; v4: leader epochs; v7: maximum timestamp (KIP-734); v8, v9, v11:
start and end of local and tiered data (KIP-405, KIP-1005, KIP-1023). Tidelog has no tiered storage, so all data is
local.
"""

from typing import TYPE_CHECKING

from tidelog.api.follower_fetch import is_peer
from tidelog.api.repeats import NamedPartitions
from tidelog.api.services import RequestContext, Services
from tidelog.log.times import find_max_timestamp, find_timestamp
from tidelog.model.steps import Steps
from tidelog.replication.partition import READ_COMMITTED
from tidelog.wire.errors import ApiError, ErrorCode, LeaderNotAvailable, OffsetNotAvailable
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from tidelog.log.reader import TimestampOffset
    from tidelog.replication.partition import Partition

DEBUGGING_CONSUMER = -2
"""The replica id that tools use to compare replicas. Requests with this id are answered not only by leaders, but
also by followers."""
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

TIMESTAMP_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""The first version in which a request may contain each of these special timestamps."""


def handle(services: Services, context: RequestContext, request: ListOffsetsRequest) -> Steps[ListOffsetsResponse]:
    """Answer each partition once. A partition that the request names more than once gets an error."""
    partitions_by_topic: NamedPartitions[str, ListOffsetsPartition] = NamedPartitions()
    for topic in request.topics:
        for partition in topic.partitions:
            partitions_by_topic.add(topic.name, partition.partition_index, partition)
            yield
        yield
    response = ListOffsetsResponse()
    for name, partitions in partitions_by_topic.by_topic.items():
        topic_answer = ListOffsetsTopicResponse(name=name)
        response.topics.append(topic_answer)
        for partition in partitions.values():
            if (name, partition.partition_index) in partitions_by_topic.repeated:
                answer = ListOffsetsPartitionResponse(partition.partition_index, ErrorCode.INVALID_REQUEST)
            else:
                answer = yield from _answer(services, context, request, name, partition)
            topic_answer.partitions.append(answer)
            yield
    return response


def _answer(
    services: Services,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    requested: ListOffsetsPartition,
) -> Steps[ListOffsetsPartitionResponse]:
    answer = ListOffsetsPartitionResponse(partition_index=requested.partition_index)
    try:
        if (
            context.api_version < TIMESTAMP_SINCE.get(requested.timestamp, 0)
            or requested.timestamp < EARLIEST_PENDING_UPLOAD
        ):
            raise ApiError(f"timestamp {requested.timestamp} is not known", ErrorCode.UNSUPPORTED_VERSION)
        is_debugging = request.replica_id == DEBUGGING_CONSUMER
        find = services.partitions.replica if is_debugging else services.partitions.leader
        partition = find(topic, requested.partition_index, requested.current_leader_epoch)
        reads_to_log_end = is_debugging or (
            request.replica_id >= 0
            and services.followers is not None
            and is_peer(services, context, request.replica_id)
        )
        try:
            yield from _find_offset(
                partition, request.isolation_level, requested.timestamp, answer, reads_to_log_end=reads_to_log_end
            )
        except OffsetNotAvailable as error:
            # Clients know OFFSET_NOT_AVAILABLE only since v5.
            raise error if context.api_version >= 5 else LeaderNotAvailable(error.message) from error
        if context.api_version < 4:
            answer.leader_epoch = -1  # these versions have no such field
    except ApiError as error:
        answer.error_code = error.code
    return answer


def _find_offset(
    partition: "Partition",
    isolation: int,
    timestamp: int,
    answer: ListOffsetsPartitionResponse,
    *,
    reads_to_log_end: bool,
) -> Steps[None]:
    """Find the offset, timestamp and leader epoch, and write them into `answer`. If there is no matching record, the
    three fields remain -1. Followers and debugging consumers get answers up to the end of the log; all other clients
    get answers up to the high watermark or the last stable offset.

    Raises OffsetNotAvailable if the answer depends on the end of the committed records, and this leader does not know
    that end yet, because it was elected only a moment ago (KIP-207).
    """
    if reads_to_log_end:
        end = partition.log_end_offset
    else:
        end = partition.last_stable_offset if isolation == READ_COMMITTED else partition.high_watermark
    log = partition.log
    if timestamp == LATEST:
        if not reads_to_log_end:
            partition.check_committed_end()
        answer.offset = end
        answer.leader_epoch = partition.leader_epoch
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = partition.log_start_offset
        is_empty = answer.offset == partition.log_end_offset
        answer.leader_epoch = partition.leader_epoch if is_empty else log.epochs.epoch_at(answer.offset)
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        pass  # the fields remain -1, since there is no tiered storage
    else:
        record = yield from _find_record(partition, timestamp, reads_to_log_end)
        if record is not None and record.offset < end:
            answer.offset = record.offset
            answer.timestamp = record.timestamp
            answer.leader_epoch = record.leader_epoch
        elif not reads_to_log_end:
            partition.check_committed_end()


def _find_record(partition: "Partition", timestamp: int, reads_to_log_end: bool) -> Steps["TimestampOffset | None"]:
    """If `timestamp` is MAX_TIMESTAMP, find the record with the maximum timestamp. Otherwise find the first record
    whose timestamp is `timestamp` or later.

    If the partition moves to another directory during the search, the search begins again. Raises StorageError if
    the log is offline, or if the topic is deleted, since its deletion closes the files.
    """
    check = partition.check_log if reads_to_log_end else partition.check_online
    while True:
        log = partition.log
        steps = find_max_timestamp(log) if timestamp == MAX_TIMESTAMP else find_timestamp(log, timestamp)
        while partition.log is log:
            check()
            try:
                next(steps)
            except StopIteration as end:
                record: TimestampOffset | None = end.value
                return record
            yield
