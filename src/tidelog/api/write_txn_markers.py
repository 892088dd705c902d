"""WriteTxnMarkers (key 27), v1-2. v2: the transaction version of each marker (KIP-1228).

The transaction coordinator sends this request to the leaders of a transaction's partitions. Clients may send it, too:
administrators use it to end a hanging transaction.
"""

from collections.abc import Callable
from functools import partial

from tidelog.api.pending import Gathering, Pending
from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.decision import Producer
from tidelog.coordinator.transaction.records import NO_PRODUCER_ID, V2, Partition
from tidelog.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from tidelog.model.steps import Steps
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

PARTITIONS_PER_STEP = 50
GROUP_COORDINATOR_CODES = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
"""Errors of the group coordinator, which appends the markers to `__consumer_offsets`. The sender of a marker gets
NOT_LEADER_OR_FOLLOWER instead, as in Kafka: after this error, an admin client sends the marker again."""
_Codes = dict[Partition, ErrorCode]


def handle(
    services: Services, context: RequestContext, request: WriteTxnMarkersRequest
) -> Steps[Pending[Steps[WriteTxnMarkersResponse]]]:
    return write_markers(services, request)


def write_markers(
    services: Services, request: WriteTxnMarkersRequest
) -> Steps[Pending[Steps[WriteTxnMarkersResponse]]]:
    """Append the markers. The response is sent when all markers are committed or refused. If a marker names a
    partition more than once, the partition gets the marker once.
    """
    answers: Gathering[_Codes] = Gathering(partial(_response, request.markers))
    epoch_max = _coordinator_epoch_max(services)
    for marker in request.markers:
        partitions: dict[Partition, None] = {}
        codes: Gathering[ErrorCode] = Gathering(partial(_by_partition, partitions))
        for topic in marker.topics:
            for position, index in enumerate(topic.partition_indexes):
                if (topic.name, index) not in partitions:
                    partitions[topic.name, index] = None
                    _write(services, marker, epoch_max, topic.name, index, codes.reply())
                if not position % PARTITIONS_PER_STEP:
                    yield
        answers.add(codes.finish())
        yield
    return answers.finish()


def _by_partition(partitions: dict[Partition, None], codes: list[ErrorCode]) -> _Codes:
    return dict(zip(partitions, codes, strict=True))


def _response(markers: list[WritableTxnMarker], codes: list[_Codes]) -> Steps[WriteTxnMarkersResponse]:
    """Build the response. `codes` has the error codes of each marker.

    As in Kafka, there is one result for each producer, with one entry for each topic and partition. If several markers
    of a producer name a partition, the entry has the error code of the last one. A marker without partitions has no
    result.
    """
    producers: dict[int, dict[str, dict[int, ErrorCode]]] = {}
    for marker, code_by_partition in zip(markers, codes, strict=True):
        for position, ((name, index), code) in enumerate(code_by_partition.items()):
            producers.setdefault(marker.producer_id, {}).setdefault(name, {})[index] = code
            if not position % PARTITIONS_PER_STEP:
                yield
    results = []
    for producer_id, code_by_topic in producers.items():
        topics = []
        for name, code_by_index in code_by_topic.items():
            partitions = []
            for position, (index, code) in enumerate(code_by_index.items()):
                partitions.append(WritableTxnMarkerPartitionResult(index, code))
                if not position % PARTITIONS_PER_STEP:
                    yield
            topics.append(WritableTxnMarkerTopicResult(name, partitions))
        results.append(WritableTxnMarkerResult(producer_id, topics))
    return WriteTxnMarkersResponse(markers=results)


def _coordinator_epoch_max(services: Services) -> int:
    """Return the highest leader epoch of all transaction coordinators."""
    topic = services.metadata.newest.topics.get(TRANSACTION_STATE)
    return 0 if topic is None else max(partition.leader_epoch for partition in topic.partitions)


def _write(
    services: Services,
    marker: WritableTxnMarker,
    epoch_max: int,
    topic: str,
    index: int,
    reply: Callable[[ErrorCode], None],
) -> None:
    """Append the marker to one partition. `reply` is called with the error code when the marker is committed or
    refused.
    """

    def settle(error: ApiError | None) -> None:
        code = ErrorCode.NONE if error is None else error.code
        reply(ErrorCode.NOT_LEADER_OR_FOLLOWER if code in GROUP_COORDINATOR_CODES else code)

    try:
        if marker.producer_epoch < 0 or marker.producer_id == NO_PRODUCER_ID:
            text = f"a marker has the producer id {marker.producer_id} and the epoch {marker.producer_epoch}"
            raise ApiError(text, ErrorCode.UNKNOWN_SERVER_ERROR)
        partition = services.partitions.get(topic, index)
        partition.check_writable(-1)
        producers = partition.log.producers
        producers.check_coordinator_epoch(marker.producer_id, marker.coordinator_epoch, epoch_max)
        if marker.transaction_version >= V2:
            producers.check_epoch_of_v2_marker(marker.producer_id, marker.producer_epoch)
        batch = marker_batch(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            is_commit=marker.transaction_result,
            timestamp=services.runtime.clock.now_ms(),
        )
        if topic == CONSUMER_OFFSETS:
            producer = Producer(marker.producer_id, marker.producer_epoch)
            services.groups.end_transaction(index, batch, producer, is_commit=marker.transaction_result, reply=settle)
        else:
            appended = partition.append_batch(batch)
            partition.when_committed(appended.next_offset, settle)
        if marker.transaction_version < V2:
            # The transaction's records have the marker's epoch, or a lower one if the producer was fenced. The append
            # has made the verifications of lower epochs invalid. The verifications of the marker's epoch become invalid
            # here. With version 2 these must remain valid: the marker's epoch is the epoch of the next transaction,
            # whose first batches may wait for verification now.
            producers.invalidate_verifications(marker.producer_id, marker.producer_epoch + 1)
    except ApiError as error:
        settle(error)
