"""ListOffsets (key 2), v1-11. v2: isolation level; v4: leader epochs; v7: maximum timestamp (KIP-734);
v8, v9, v11: local and tiered ends (KIP-405, KIP-1005, KIP-1023), which here are those of the only tier."""

from typing import TYPE_CHECKING

from tidelog.api.repeats import NamedPartitions
from tidelog.api.services import RequestContext, Services
from tidelog.log.times import find_max_timestamp, find_timestamp
from tidelog.model.steps import Steps
from tidelog.replication.partition import READ_COMMITTED
from tidelog.wire.errors import ApiError, ErrorCode
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

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


def handle(services: Services, context: RequestContext, request: ListOffsetsRequest) -> Steps[ListOffsetsResponse]:
    """Each partition is answered once. One that the request names more than once is refused."""
    named: NamedPartitions[str, ListOffsetsPartition] = NamedPartitions()
    for topic in request.topics:
        for partition in topic.partitions:
            named.add(topic.name, partition.partition_index, partition)
            yield
        yield
    response = ListOffsetsResponse()
    for name, partitions in named.by_topic.items():
        told = ListOffsetsTopicResponse(name=name)
        response.topics.append(told)
        for partition in partitions.values():
            if (name, partition.partition_index) in named.repeated:
                answer = ListOffsetsPartitionResponse(partition.partition_index, ErrorCode.INVALID_REQUEST)
            else:
                answer = yield from _answer(services, context, request, name, partition)
            told.partitions.append(answer)
            yield
    return response


def _answer(
    services: Services,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    asked: ListOffsetsPartition,
) -> Steps[ListOffsetsPartitionResponse]:
    answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    try:
        if context.api_version < SINCE_VERSION.get(asked.timestamp, 0) or asked.timestamp < EARLIEST_PENDING_UPLOAD:
            raise ApiError(f"timestamp {asked.timestamp} is not known", ErrorCode.UNSUPPORTED_VERSION)
        partition = services.partitions.get(topic, asked.partition_index)
        partition.check_online()
        partition.check_leader_epoch(asked.current_leader_epoch)
        yield from _look_up(partition, request.isolation_level, asked.timestamp, answer)
        if context.api_version < 4:
            answer.leader_epoch = -1  # there is no place for it
    except ApiError as error:
        answer.error_code = error.code
    return answer


def _look_up(
    partition: "Partition", isolation: int, timestamp: int, answer: ListOffsetsPartitionResponse
) -> Steps[None]:
    """Fill in offset, timestamp and leader epoch; left at -1 when no record is there."""
    end = partition.last_stable_offset if isolation == READ_COMMITTED else partition.high_watermark
    log = partition.log
    if timestamp == LATEST:
        answer.offset = end
        answer.leader_epoch = partition.leader_epoch
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = partition.log_start_offset
        empty = answer.offset == partition.log_end_offset
        answer.leader_epoch = partition.leader_epoch if empty else log.epochs.epoch_at(answer.offset)
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        pass  # nothing is ever tiered
    else:
        found = yield from _find(partition, timestamp)
        if found is not None and found.offset < end:
            answer.offset = found.offset
            answer.timestamp = found.timestamp
            answer.leader_epoch = found.leader_epoch


def _find(partition: "Partition", timestamp: int) -> Steps["TimestampOffset | None"]:
    """The record of a time, in the log that the partition has at the end: it may move to another directory meanwhile,
    and the files of a deleted topic are closed. Raises StorageError.
    """
    while True:
        log = partition.log
        steps = find_max_timestamp(log) if timestamp == MAX_TIMESTAMP else find_timestamp(log, timestamp)
        while partition.log is log:
            partition.check_online()
            try:
                next(steps)
            except StopIteration as end:
                found: TimestampOffset | None = end.value
                return found
            yield
