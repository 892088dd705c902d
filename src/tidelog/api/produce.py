"""Produce (key 0), v3-13. v9: flexible; v10: leader hints; v13: topic ids (KIP-516).

ApiVersions advertises v0-13, since librdkafka silently stops compressing if v0 is missing (KAFKA-18659).

Usually, only the header and the CRC of a batch are checked, and the records are appended unchanged. Records are decoded
only if the topic requires this (`record.validation=full`, compacted topics), or if the timestamps in the header cannot
be trusted (see `log/validation.py`). They are compressed again only if `compression.type` names another codec. The
first batch of a transaction in a partition waits until the transaction coordinator has confirmed that the partition
belongs to the transaction (`api/produce_transactional.py`).
"""

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidelog.api.leader_hints import PRODUCE_SINCE, add_to_produce
from tidelog.api.pending import Gathering, Pending
from tidelog.api.repeats import NamedPartitions
from tidelog.api.services import NO_RESPONSE, CloseConnection, RequestContext, Services
from tidelog.log.validation import NotInline, RefusedRecords
from tidelog.model.steps import Steps, run_all
from tidelog.replication.waiters import Mark
from tidelog.wire.batches import CONTROL_BIT, TRANSACTIONAL_BIT, Codec, check_produced
from tidelog.wire.errors import (
    ApiError,
    ErrorCode,
    InvalidRecord,
    InvalidTopic,
    RecordListTooLarge,
    RecordTooLarge,
    RequestTimedOut,
    UnsupportedCompressionType,
)
from tidelog.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from tidelog.log.partition_log import Appended
    from tidelog.replication.partition import Partition

ADMIN_CLIENT_ID = "__admin_client"
"""The only client id that may write to internal topics, as in Kafka."""
ZSTD_SINCE = 7
PARTITIONS_PER_STEP = 16
ERROR_MESSAGE_MAX = 1000
"""Upper bound on the length of an error message, in characters. A message may quote a long name that the client
sent."""

_Unacknowledged = list[tuple["Partition", int, PartitionProduceResponse]]
"""For each batch that is appended and not acknowledged yet: its partition, the offset after its last record, and its
response."""
_ProduceOutcome = ProduceResponse | Pending[ProduceResponse] | CloseConnection | None
_TopicKey = tuple[str, bytes]
"""Name and id of a topic; a request contains one of them."""
_DataByTopic = dict[_TopicKey, dict[int, PartitionProduceData]]
_FramingErrors = dict[tuple[_TopicKey, int], ApiError]
"""Framing errors, by topic and partition: the batch is missing, its size or format is invalid, or the request's version
does not allow its codec. Such a batch is not appended, but another batch for the same partition may have been
appended."""


def handle(
    services: Services, context: RequestContext, request: ProduceRequest, framing_errors: _FramingErrors | None = None
) -> _ProduceOutcome:
    """Append all batches in order. The response is sent when every batch has failed or is acknowledged. With acks=1, a
    batch is acknowledged when it is as durable on this broker as the topic's `durability` requires; with acks=-1, when
    it is committed. With acks=0, no response is sent.

    `framing_errors` is the second result of `_without_repeats`, or None if `_without_repeats` was not called. If it was
    called, `request` names each partition once.
    """
    topic_data = request.topic_data
    is_single = len(topic_data) == 1 and len(topic_data[0].partition_data) == 1
    if framing_errors is None and not is_single and not _has_no_repeats(topic_data):
        by_topic, framing_errors = run_all(_without_repeats(topic_data, context.api_version))
        topic_data = [TopicProduceData(*key, list(partitions.values())) for key, partitions in by_topic.items()]
    by_id = context.api_version >= 13
    partitions = services.partitions
    unacknowledged: _Unacknowledged = []
    deferred_appends: list[_DeferredAppend] = []
    failed_answer: PartitionProduceResponse | None = None
    topics: list[TopicProduceResponse] = []
    partitions.appending = True  # fetches are answered after `wake_fetches`, with all records of this produce request
    try:
        for topic in topic_data:
            answers = []
            for data in topic.partition_data:
                partition = None
                try:
                    if not -1 <= request.acks <= 1:
                        raise ApiError(f"acks must be -1, 0 or 1, not {request.acks}", ErrorCode.INVALID_REQUIRED_ACKS)
                    partition = partitions.get(
                        partitions.topic_name(topic.topic_id) if by_id else topic.name, data.index
                    )
                    answer = _append(services, partition, context, request, data, unacknowledged, deferred_appends)
                except ApiError as error:
                    answer = failed_answer = PartitionProduceResponse(data.index)
                    set_error(answer, partition, error)
                if framing_errors and partition is not None:
                    framing_error = framing_errors.get(((topic.name, topic.topic_id), data.index))
                    if framing_error is not None:
                        answer = failed_answer = PartitionProduceResponse(data.index)
                        set_error(answer, partition, framing_error)
                answers.append(answer)
            if answers:
                topics.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
    finally:
        partitions.wake_fetches()
    if request.acks == 0:
        if failed_answer is not None:
            return CloseConnection(f"produce with acks=0 failed: {failed_answer.error_message}")
        if not deferred_appends:
            return NO_RESPONSE
    response = ProduceResponse(topics)
    names_leaders = services.followers is not None and context.api_version >= PRODUCE_SINCE
    if not unacknowledged and not deferred_appends:
        if failed_answer is not None and names_leaders:
            add_to_produce(services, response, context.peer.listener)
        return response
    listener = context.peer.listener if names_leaders else None
    return acknowledgement(services, unacknowledged, deferred_appends, request, response, listener)


def _has_no_repeats(topics: list[TopicProduceData]) -> bool:
    """Return whether the request names each topic and each partition once, as all common clients do."""
    if len(topics) > 1 and len({(topic.name, topic.topic_id): None for topic in topics}) < len(topics):
        return False
    for topic in topics:
        partition_data = topic.partition_data
        if len(partition_data) > 1 and len({data.index: None for data in partition_data}) < len(partition_data):
            return False
    return True


def handle_wide(
    services: Services, context: RequestContext, request: ProduceRequest
) -> _ProduceOutcome | Steps[Pending[Any]]:
    """Handle a request of any size; see `handle`. A request for many partitions is split into parts, which are
    handled one after another.
    """
    topics = request.topic_data
    if len(topics) <= PARTITIONS_PER_STEP and sum(len(t.partition_data) for t in topics) <= PARTITIONS_PER_STEP:
        return handle(services, context, request)
    return _handle_in_steps(services, context, request)


def _handle_in_steps(services: Services, context: RequestContext, request: ProduceRequest) -> Steps[Pending[Any]]:
    answers: Gathering[Any] = Gathering(_join_responses if request.acks else _join_without_response)
    by_topic, framing_errors = yield from _without_repeats(request.topic_data, context.api_version)
    for key in list(by_topic):
        remaining = iter(by_topic.pop(key).values())  # frees each topic's data as soon as the topic was handled
        while chunk := list(islice(remaining, PARTITIONS_PER_STEP)):
            topic_part = TopicProduceData(*key, chunk)
            part_request = ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, [topic_part])
            answer = handle(services, context, part_request, framing_errors)
            if answer is not None:
                answers.add(answer)
            yield
    return answers.finish()


def _without_repeats(topics: list[TopicProduceData], version: int) -> Steps[tuple[_DataByTopic, _FramingErrors]]:
    """Return the batches to append, by topic and partition, and the framing errors of partitions that the request
    names more than once.

    If a partition is named more than once, its last batch without a framing error is appended, as in Kafka. If a
    batch of the partition has a framing error, this error is the response for the partition, even if another batch
    is appended.
    """
    entries: NamedPartitions[_TopicKey, PartitionProduceData] = NamedPartitions()
    framing_errors: _FramingErrors = {}
    for topic in topics:
        key = (topic.name, topic.topic_id)
        for data in topic.partition_data:
            earlier = entries.add(key, data.index, data)
            if earlier is not None:
                earlier_error, own_error = _framing_error(earlier, version), _framing_error(data, version)
                error = own_error or earlier_error
                if error is not None:
                    framing_errors[key, data.index] = error
                if own_error is not None and earlier_error is None:
                    entries.by_topic[key][data.index] = earlier
            yield
        yield
    return entries.by_topic, framing_errors


def _framing_error(data: PartitionProduceData, version: int) -> ApiError | None:
    """Return the framing error of `data`, or None if `data` begins with a whole batch whose format is valid and whose
    codec the request's version allows. Such a batch may still be refused because of its content.
    """
    records: memoryview | None = data.records  # type: ignore[assignment]  # a decoded field is a view
    if not records:
        return _missing_batch()
    try:
        header = check_produced(records, framing_only=True)
    except ApiError as error:
        return error.with_traceback(None)  # a traceback takes some KB, and a request may have a million partitions
    return _unsupported_zstd() if version < ZSTD_SINCE and header.codec == Codec.ZSTD else None


def _missing_batch() -> ApiError:
    return InvalidRecord("the request carries no record batch for this partition")


def _unsupported_zstd() -> ApiError:
    return UnsupportedCompressionType(f"zstd requires Produce v{ZSTD_SINCE} or newer (KIP-110)")


def _join_without_response(answers: list[CloseConnection | None]) -> CloseConnection | None:
    """Join the outcomes of the parts of a request with acks=0. If a part failed, the connection is closed, since
    there is no response that could report the error. The connection is closed only after all parts have been handled.
    """
    return next((answer for answer in answers if answer is not None), NO_RESPONSE)


def _join_responses(answers: list[ProduceResponse]) -> Steps[ProduceResponse]:
    topics: dict[tuple[str, bytes], TopicProduceResponse] = {}
    endpoints: dict[int, NodeEndpoint] = {}
    for answer in answers:
        endpoints.update((endpoint.node_id, endpoint) for endpoint in answer.node_endpoints)
        for topic in answer.responses:
            joined = topics.setdefault((topic.name, topic.topic_id), topic)
            if joined is not topic:
                joined.partition_responses += topic.partition_responses
        yield
    return ProduceResponse(list(topics.values()), node_endpoints=list(endpoints.values()))


def _append(
    services: Services,
    partition: "Partition",
    context: RequestContext,
    request: ProduceRequest,
    data: PartitionProduceData,
    unacknowledged: _Unacknowledged,
    deferred_appends: "list[_DeferredAppend]",
) -> PartitionProduceResponse:
    """Append one partition's batch, and return the answer. Raises ApiError.

    If the batch is not acknowledged yet, it is added to `unacknowledged`. If it must wait before it is appended, it is
    added to `deferred_appends`.
    """
    appends_directly = partition.appends_directly
    if not appends_directly and partition.internal and context.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopic(f"{partition.topic} is internal: clients may not write to it")
    records: memoryview | None = data.records  # type: ignore[assignment]  # a decoded field is a view
    if not records:
        raise _missing_batch()
    transactional_id = request.transactional_id
    header = check_produced(records) if transactional_id is None else check_produced(records, refused_kinds=CONTROL_BIT)
    if context.api_version < ZSTD_SINCE and header.codec == Codec.ZSTD:
        raise _unsupported_zstd()
    if header.size != len(records):
        records = records[: header.size]
    appended: Appended | None
    if transactional_id is not None and header.attributes & TRANSACTIONAL_BIT:
        from tidelog.api.produce_transactional import verify_first

        deferred = _DeferredAppend(partition, PartitionProduceResponse(data.index))
        if verify_first(services, context, transactional_id, partition, records, header, deferred.complete):
            deferred_appends.append(deferred)
            return deferred.answer
    if appends_directly:
        try:
            appended = partition.append(records, header)
        except NotInline:
            deferred = _DeferredAppend(partition, PartitionProduceResponse(data.index))
            partition.queue.examine(records, deferred.complete)
            appended = None
    else:
        partition.check_writable(request.acks)
        deferred = _DeferredAppend(partition, PartitionProduceResponse(data.index))
        appended = partition.queue.append(records, header, deferred.complete)
    if appended is None:
        deferred_appends.append(deferred)
        return deferred.answer
    base_offset, next_offset, append_time_ms, log_start_offset = appended
    answer = PartitionProduceResponse(data.index, 0, base_offset, append_time_ms, log_start_offset)
    is_committed = partition.replica.high_watermark >= next_offset
    if not is_committed and not partition.has_reached(mark_of(request.acks), next_offset):
        unacknowledged.append((partition, next_offset, answer))
    return answer


def mark_of(acks: int) -> Mark:
    """Return which mark must reach the end of a batch before the batch is acknowledged."""
    return Mark.COMMITTED if acks == -1 else Mark.LOCAL


class _DeferredAppend:
    """A batch that is appended in a later turn of the loop, and its answer in the response."""

    __slots__ = ("acknowledgement", "answer", "is_appended", "partition")

    def __init__(self, partition: "Partition", answer: PartitionProduceResponse) -> None:
        self.partition = partition
        self.answer = answer
        self.is_appended = False
        # Remains None if the request has acks=0 and another batch of it failed: then the connection is closed.
        self.acknowledgement: _Acknowledgement | None = None

    def complete(self, outcome: "Appended | ApiError") -> None:
        if self.acknowledgement is not None:
            self.acknowledgement.complete_append(self, outcome)


def acknowledgement(
    services: Services,
    unacknowledged: _Unacknowledged,
    deferred_appends: list[_DeferredAppend],
    request: ProduceRequest,
    response: ProduceResponse,
    listener: str | None = None,
) -> Pending[Any]:
    """Return the pending response. It is completed when all batches are appended and acknowledged. `listener` is the
    broker's listener to which the client is connected (see `Peer`), or None if the response does not name leaders.
    """
    return _Acknowledgement(services, unacknowledged, deferred_appends, request, response, listener).pending


class _Acknowledgement:
    """The response to a request with batches that are not acknowledged yet or not appended yet."""

    __slots__ = (
        "_append_error",
        "_listener",
        "_mark",
        "_services",
        "acks",
        "pending",
        "response",
        "timer",
        "unsettled",
    )

    def __init__(
        self,
        services: Services,
        unacknowledged: _Unacknowledged,
        deferred_appends: list[_DeferredAppend],
        request: ProduceRequest,
        response: ProduceResponse,
        listener: str | None = None,
    ) -> None:
        self._services = services
        self._listener = listener
        self.acks = request.acks
        self._mark = mark_of(request.acks)
        self.response = response
        self._append_error = ""
        self.pending: Pending[Any] = Pending()
        # Fill this dictionary before the first call of `Partition.wait`, which may call `_settle` immediately.
        self.unsettled: dict[int | _DeferredAppend, PartitionProduceResponse] = {
            ticket: answer for ticket, (_, _, answer) in enumerate(unacknowledged) if self.acks
        }
        for deferred in deferred_appends:
            deferred.acknowledgement = self
            self.unsettled[deferred] = deferred.answer
        self.timer = services.runtime.tasks.call_later(max(request.timeout_ms, 0) / 1000, self._time_out)
        for ticket, (partition, next_offset, _) in enumerate(unacknowledged):
            if self.acks:
                partition.wait(self._mark, next_offset, partial(self._settle, ticket))

    def complete_append(self, deferred: _DeferredAppend, outcome: "Appended | ApiError") -> None:
        """Process the outcome of a deferred append."""
        answer = self.unsettled.get(deferred)
        if answer is None:
            return  # the request has timed out
        if isinstance(outcome, ApiError):
            set_error(answer, deferred.partition, outcome)
            self._append_error = outcome.message
            self._settle(deferred, None)
            return
        deferred.is_appended = True
        answer.base_offset = outcome.base_offset
        answer.log_append_time_ms = outcome.log_append_time_ms
        answer.log_start_offset = outcome.log_start_offset
        if self.acks:
            deferred.partition.wait(self._mark, outcome.next_offset, partial(self._settle, deferred))
        else:
            self._settle(deferred, None)

    def _settle(self, ticket: int | _DeferredAppend, error: ApiError | None) -> None:
        answer = self.unsettled.pop(ticket, None)
        if answer is None:
            return  # the request has timed out
        if error is not None:
            set_error(answer, None, error)
        if not self.unsettled:
            self.timer.cancel()
            self._complete()

    def _time_out(self) -> None:
        for ticket, answer in self.unsettled.items():
            if isinstance(ticket, _DeferredAppend) and not ticket.is_appended:
                message = "the batch was not appended within the request's timeout.ms; it may still be appended later"
            else:
                missing = "replicated and durable" if self.acks == -1 else "durable"
                message = f"the batch was appended, but was not known to be {missing} within the request's timeout.ms"
            set_error(answer, None, RequestTimedOut(message))
        self.unsettled.clear()
        self._complete()

    def _complete(self) -> None:
        if self.acks:
            if self._listener is not None:
                add_to_produce(self._services, self.response, self._listener)
            self.pending.complete(self.response)
        elif self._append_error:
            self.pending.complete(CloseConnection(f"produce with acks=0 failed: {self._append_error}"))
        else:
            self.pending.complete(NO_RESPONSE)


def set_error(answer: PartitionProduceResponse, partition: "Partition | None", error: ApiError) -> None:
    """Write `error` into `answer`. With `partition`, also write the details that Kafka returns for an existing
    partition, and log a warning if the batch is too large.
    """
    answer.error_code = error.code
    answer.error_message = error.message[:ERROR_MESSAGE_MAX] or None
    answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1
    if partition is None:
        return
    if not isinstance(error, InvalidTopic):
        answer.log_start_offset = partition.log_start_offset
    if isinstance(error, RefusedRecords):
        answer.record_errors = [BatchIndexAndErrorMessage(index, text) for index, text in error.record_errors]
    elif isinstance(error, RecordTooLarge | RecordListTooLarge):
        partition.warn_too_large(error)
