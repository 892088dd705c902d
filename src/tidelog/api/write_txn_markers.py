"""WriteTxnMarkers (key 27), v1-2. v2: the transaction version of each marker (KIP-1228).

The transaction coordinator sends this request to the leaders of a transaction's partitions. Clients may send it, too:
administrators use it to end a hanging transaction.
"""

from collections.abc import Callable
from functools import partial

from tidelog.api.pending import Gathering, Pending
from tidelog.api.services import RequestContext, Services
from tidelog.coordinator.decision import Producer
from tidelog.coordinator.transaction.records import V2, Partition
from tidelog.metadata.image import CONSUMER_OFFSETS
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
_Codes = dict[Partition, ErrorCode]


def handle(
    services: Services, context: RequestContext, request: WriteTxnMarkersRequest
) -> Steps[Pending[Steps[WriteTxnMarkersResponse]]]:
    return write_markers(services, request)


def write_markers(
    services: Services, request: WriteTxnMarkersRequest
) -> Steps[Pending[Steps[WriteTxnMarkersResponse]]]:
    """Append the markers. The response is sent when each marker is committed or refused. If a marker names a
    partition more than once, the partition gets the marker once.
    """
    answers: Gathering[_Codes] = Gathering(partial(_response, request.markers))
    for marker in request.markers:
        partitions: dict[Partition, None] = {}
        codes: Gathering[ErrorCode] = Gathering(partial(_by_partition, partitions))
        for topic in marker.topics:
            for position, index in enumerate(topic.partition_indexes):
                if (topic.name, index) not in partitions:
                    partitions[topic.name, index] = None
                    _write(services, marker, topic.name, index, codes.reply())
                if not position % PARTITIONS_PER_STEP:
                    yield
        answers.add(codes.finish())
        yield
    return answers.finish()


def _by_partition(partitions: dict[Partition, None], codes: list[ErrorCode]) -> _Codes:
    return dict(zip(partitions, codes, strict=True))


def _response(markers: list[WritableTxnMarker], codes: list[_Codes]) -> Steps[WriteTxnMarkersResponse]:
    """Build the response. `codes` has the error codes of each marker."""
    results = []
    for marker, code_by_partition in zip(markers, codes, strict=True):
        topics = []
        for topic in marker.topics:
            partitions = []
            for position, index in enumerate(topic.partition_indexes):
                partitions.append(WritableTxnMarkerPartitionResult(index, code_by_partition[topic.name, index]))
                if not position % PARTITIONS_PER_STEP:
                    yield
            topics.append(WritableTxnMarkerTopicResult(topic.name, partitions))
            yield
        results.append(WritableTxnMarkerResult(marker.producer_id, topics))
    return WriteTxnMarkersResponse(markers=results)


def _write(
    services: Services, marker: WritableTxnMarker, topic: str, index: int, reply: Callable[[ErrorCode], None]
) -> None:
    """Append the marker to one partition. `reply` is called with the error code when the marker is committed or
    refused.
    """

    def settle(error: ApiError | None) -> None:
        reply(ErrorCode.NONE if error is None else error.code)

    try:
        if marker.producer_epoch < 0:
            raise ApiError(f"a marker has the producer epoch {marker.producer_epoch}", ErrorCode.UNKNOWN_SERVER_ERROR)
        partition = services.partitions.get(topic, index)
        partition.check_writable(-1)
        producers = partition.log.producers
        if marker.transaction_version >= V2:
            producers.check_epoch_of_v2_marker(marker.producer_id, marker.producer_epoch)
        else:
            # The transaction's records have the marker's epoch, or a lower one if the producer was fenced. With
            # version 2, no verification may be invalidated: the marker's epoch is the epoch of the next transaction,
            # whose first batches may wait for verification now.
            producers.invalidate_verifications(marker.producer_id, marker.producer_epoch + 1)
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
            return
        appended = partition.append_batch(batch)
        partition.when_committed(appended.next_offset, settle)
    except ApiError as error:
        settle(error)
