"""Produce (key 0), v3-13, advertised from 0. v9: flexible; v10: leader hints; v13: topic ids (KIP-516).

Batches are checked by their headers and appended as they came; records are decoded only where the topic asks for it
(`record.validation=full`, compacted topics). Gaps: transactional produce is refused.
"""

from functools import partial
from typing import TYPE_CHECKING

from tidelog.api.pending import Pending
from tidelog.api.services import NO_RESPONSE, CloseConnection, RequestContext, Services
from tidelog.wire.batches import TRANSACTIONAL_BIT, check_produced
from tidelog.wire.errors import (
    ApiError,
    ErrorCode,
    InvalidRecord,
    InvalidTopic,
    NotEnoughReplicas,
    RequestTimedOut,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from tidelog.replication.partition import Partition

ACKS_ALL = -1
ADMIN_CLIENT_ID = "__admin_client"
"""The one client that Kafka lets write to internal topics."""
NO_TRANSACTIONS = "transactions are not served by this broker"

_Waiting = list[tuple["Partition", int, PartitionProduceResponse]]


def handle(
    services: Services, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Pending[ProduceResponse] | CloseConnection | None:
    """Append every batch, in order; answer when all are committed at the level that `acks` asks for."""
    by_id = context.api_version >= 13
    refused = _check_request(request)
    partitions = services.partitions
    waiting: _Waiting = []
    failed: PartitionProduceResponse | None = None
    topics = []
    for topic in request.topic_data:
        answers = []
        for data in topic.partition_data:
            try:
                if refused is not None:
                    raise refused
                partition = partitions.get(partitions.topic_name(topic.topic_id) if by_id else topic.name, data.index)
                answer = _append(partition, context, request.acks, data, waiting)
            except ApiError as error:
                answer = failed = _refusal(data.index, error)
            answers.append(answer)
        topics.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
    partitions.wake_fetches()
    if request.acks == 0:
        if failed is None:
            return NO_RESPONSE
        return CloseConnection(f"produce with acks=0 failed: {failed.error_message}")
    response = ProduceResponse(topics)
    if not waiting:
        return response
    return _Acknowledgement(services, waiting, request.timeout_ms, response).pending


def _check_request(request: ProduceRequest) -> ApiError | None:
    """What is wrong with the request as a whole, and so the answer for each of its partitions."""
    if not -1 <= request.acks <= 1:
        return ApiError(f"acks must be -1, 0 or 1, not {request.acks}", ErrorCode.INVALID_REQUIRED_ACKS)
    if request.transactional_id is not None:
        return ApiError(NO_TRANSACTIONS, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return None


def _append(
    partition: "Partition", context: RequestContext, acks: int, data: PartitionProduceData, waiting: _Waiting
) -> PartitionProduceResponse:
    """Append one partition's batch; raises ApiError. What is not committed yet goes on `waiting`."""
    if partition.internal and context.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopic(f"{partition.topic} is internal: clients may not write to it")
    records: memoryview | None = data.records  # type: ignore[assignment]  # decoded, it is a view
    if not records:
        raise InvalidRecord("the request carries no record batch for this partition")
    header = check_produced(records)
    if header.attributes & TRANSACTIONAL_BIT:
        raise ApiError(NO_TRANSACTIONS, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if acks == ACKS_ALL and partition.config.min_insync_replicas > 1:
        raise NotEnoughReplicas(f"min.insync.replicas is {partition.config.min_insync_replicas}, this broker is alone")
    base_offset, next_offset, append_time_ms, log_start_offset, _ = partition.append(records, header)
    answer = PartitionProduceResponse(data.index, 0, base_offset, append_time_ms, log_start_offset)
    if partition.high_watermark < next_offset:
        waiting.append((partition, next_offset, answer))
    return answer


def _refusal(index: int, error: ApiError) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index, error_code=error.code, base_offset=-1, error_message=error.message or None
    )


class _Acknowledgement:
    """The answer to a request whose batches are appended and not all committed yet."""

    __slots__ = ("pending", "response", "timer", "waiting")

    def __init__(self, services: Services, waiting: _Waiting, timeout_ms: int, response: ProduceResponse) -> None:
        self.response = response
        self.pending: Pending[ProduceResponse] = Pending()
        self.waiting: dict[int, PartitionProduceResponse] = {}
        self.timer = services.runtime.tasks.call_later(max(timeout_ms, 0) / 1000, self._time_out)
        for ticket, (partition, next_offset, answer) in enumerate(waiting):
            self.waiting[ticket] = answer
            partition.when_committed(next_offset, partial(self._settled, ticket))

    def _settled(self, ticket: int, error: ApiError | None) -> None:
        answer = self.waiting.pop(ticket, None)
        if answer is None:
            return  # timed out before
        if error is not None:
            _refuse(answer, error)
        if not self.waiting:
            self.timer.cancel()
            self.pending.complete(self.response)

    def _time_out(self) -> None:
        for answer in self.waiting.values():
            _refuse(answer, RequestTimedOut("appended, but not known to be durable within the request's timeout.ms"))
        self.waiting.clear()
        self.pending.complete(self.response)


def _refuse(answer: PartitionProduceResponse, error: ApiError) -> None:
    answer.error_code = error.code
    answer.error_message = error.message or None
    answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1
