"""Produce (key 0), v3-13, advertised from 0. v9: flexible; v10: leader hints; v13: topic ids (KIP-516).

Batches are checked by their headers and appended as they came; records are decoded only where the topic asks for it
(`record.validation=full`, compacted topics), decompressed where `compression.type` wants another codec. Gaps:
transactional produce is refused.
"""

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidelog.api.pending import Gathering, Pending
from tidelog.api.repeats import NamedPartitions
from tidelog.api.services import NO_RESPONSE, CloseConnection, RequestContext, Services
from tidelog.log.validation import NotInline, RefusedRecords
from tidelog.model.steps import Steps, run_all
from tidelog.wire.batches import Codec, check_produced
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
"""The one client that Kafka lets write to internal topics."""
ZSTD_SINCE = 7
PARTITIONS_PER_STEP = 16
ERROR_MESSAGE_MAX = 1000
"""Characters. It may name what the client sent, which may be long."""

_Waiting = list[tuple["Partition", int, PartitionProduceResponse]]
_Handled = ProduceResponse | Pending[ProduceResponse] | CloseConnection | None
_TopicKey = tuple[str, bytes]
"""Name and id of a topic; a request has one of them."""
_Named = dict[_TopicKey, dict[int, PartitionProduceData]]
_Refused = dict[tuple[_TopicKey, int], ApiError]
"""Errors of batches that are not appended, though a later or an earlier one for the same partition is."""


def handle(
    services: Services, context: RequestContext, request: ProduceRequest, refused: _Refused | None = None
) -> _Handled:
    """Append every batch, in order; answer when all are committed at the level that `acks` asks for.

    `refused` comes with a request that names each partition once: see `_named_once`.
    """
    topic_data = request.topic_data
    one = len(topic_data) == 1 and len(topic_data[0].partition_data) == 1
    if refused is None and not one and not _names_each_once(topic_data):
        named, refused = run_all(_named_once(topic_data, context.api_version))
        topic_data = [TopicProduceData(*key, list(partitions.values())) for key, partitions in named.items()]
    by_id = context.api_version >= 13
    partitions = services.partitions
    waiting: _Waiting = []
    later: list[_Later] = []
    failed: PartitionProduceResponse | None = None
    topics: list[TopicProduceResponse] = []
    partitions.appending = True
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
                    answer = _append(partition, context, data, waiting, later)
                except ApiError as error:
                    answer = failed = PartitionProduceResponse(data.index)
                    refuse(answer, partition, error)
                if refused and partition is not None:
                    other = refused.get(((topic.name, topic.topic_id), data.index))
                    if other is not None:
                        answer = failed = PartitionProduceResponse(data.index)
                        refuse(answer, partition, other)
                answers.append(answer)
            if answers:
                topics.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
    finally:
        partitions.wake_fetches()
    if request.acks == 0:
        if failed is not None:
            return CloseConnection(f"produce with acks=0 failed: {failed.error_message}")
        if not later:
            return NO_RESPONSE
    response = ProduceResponse(topics)
    if not waiting and not later:
        return response
    return acknowledgement(services, waiting, later, request, response)


def _names_each_once(topics: list[TopicProduceData]) -> bool:
    """Whether no topic and no partition comes again, as in the requests of all usual clients."""
    if len(topics) > 1 and len({(topic.name, topic.topic_id): None for topic in topics}) < len(topics):
        return False
    return all(
        len(topic.partition_data) < 2
        or len({data.index: None for data in topic.partition_data}) == len(topic.partition_data)
        for topic in topics
    )


def handle_wide(services: Services, context: RequestContext, request: ProduceRequest) -> _Handled | Steps[Pending[Any]]:
    """As `handle`. A request of many partitions is handled as many of few, one after another."""
    topics = request.topic_data
    if len(topics) <= PARTITIONS_PER_STEP and sum(len(t.partition_data) for t in topics) <= PARTITIONS_PER_STEP:
        return handle(services, context, request)
    return _handle_in_steps(services, context, request)


def _handle_in_steps(services: Services, context: RequestContext, request: ProduceRequest) -> Steps[Pending[Any]]:
    answers: Gathering[Any] = Gathering(_joined if request.acks else _without_acknowledgement)
    named, refused = yield from _named_once(request.topic_data, context.api_version)
    for key in list(named):
        rest = iter(named.pop(key).values())  # each topic is freed once it has been handled, not all at the end
        while some := list(islice(rest, PARTITIONS_PER_STEP)):
            part = TopicProduceData(*key, some)
            asked = ProduceRequest(acks=request.acks, timeout_ms=request.timeout_ms, topic_data=[part])
            answer = handle(services, context, asked, refused)
            if answer is not None:
                answers.add(answer)
            yield
    return answers.returned()


def _named_once(topics: list[TopicProduceData], version: int) -> Steps[tuple[_Named, _Refused]]:
    """The topics and partitions of a request, each of them once, and the errors of batches that are left out.

    As in Kafka, the last batch for a partition that can be taken for a batch at all is appended. One that cannot is
    left out and refused, and its error is the partition's answer, whatever becomes of the batch that is appended.
    """
    named: NamedPartitions[_TopicKey, PartitionProduceData] = NamedPartitions()
    refused: _Refused = {}
    for topic in topics:
        key = (topic.name, topic.topic_id)
        for data in topic.partition_data:
            earlier = named.add(key, data.index, data)
            if earlier is not None:
                before, now = _framing_error(earlier, version), _framing_error(data, version)
                error = now or before
                if error is not None:
                    refused[key, data.index] = error
                if now is not None and before is None:
                    named.by_topic[key][data.index] = earlier
            yield
        yield
    return named.by_topic, refused


def _framing_error(data: PartitionProduceData, version: int) -> ApiError | None:
    """Why it is not one batch of a kind that this version carries. None if it is, though its content may be refused."""
    records: memoryview | None = data.records  # type: ignore[assignment]  # decoded, it is a view
    if not records:
        return _no_batch()
    try:
        header = check_produced(records, framing_only=True)
    except ApiError as error:
        return error.with_traceback(None)  # which would keep some KB for each of a request's million partitions
    return _no_zstd() if version < ZSTD_SINCE and header.codec == Codec.ZSTD else None


def _no_batch() -> ApiError:
    return InvalidRecord("the request carries no record batch for this partition")


def _no_zstd() -> ApiError:
    return UnsupportedCompressionType(f"zstd comes with Produce v{ZSTD_SINCE} (KIP-110)")


def _without_acknowledgement(answers: list[CloseConnection | None]) -> CloseConnection | None:
    """Of all parts: a refusal can only be told by hanging up, when everything else has been appended."""
    return next((answer for answer in answers if answer is not None), NO_RESPONSE)


def _joined(answers: list[ProduceResponse]) -> Steps[ProduceResponse]:
    topics: dict[tuple[str, bytes], TopicProduceResponse] = {}
    for answer in answers:
        for topic in answer.responses:
            known = topics.setdefault((topic.name, topic.topic_id), topic)
            if known is not topic:
                known.partition_responses += topic.partition_responses
        yield
    return ProduceResponse(list(topics.values()))


def _append(
    partition: "Partition",
    context: RequestContext,
    data: PartitionProduceData,
    waiting: _Waiting,
    later: "list[_Later]",
) -> PartitionProduceResponse:
    """Append one partition's batch; raises ApiError. What is not committed yet goes on `waiting`, what has to wait
    before it is appended on `later`.
    """
    plain = partition.appends_directly
    if not plain and partition.internal and context.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopic(f"{partition.topic} is internal: clients may not write to it")
    records: memoryview | None = data.records  # type: ignore[assignment]  # decoded, it is a view
    if not records:
        raise _no_batch()
    header = check_produced(records)
    if context.api_version < ZSTD_SINCE and header.codec == Codec.ZSTD:
        raise _no_zstd()
    if header.size != len(records):
        records = records[: header.size]
    appended: Appended | None
    if plain:
        try:
            appended = partition.append(records, header)
        except NotInline:
            waits = _Later(partition, PartitionProduceResponse(data.index))
            partition.queue.examine(records, waits.done)
            appended = None
    else:
        waits = _Later(partition, PartitionProduceResponse(data.index))
        appended = partition.queue.append(records, header, waits.done)
    if appended is None:
        later.append(waits)
        return waits.answer
    base_offset, next_offset, append_time_ms, log_start_offset = appended
    answer = PartitionProduceResponse(data.index, 0, base_offset, append_time_ms, log_start_offset)
    if partition.high_watermark < next_offset:
        waiting.append((partition, next_offset, answer))
    return answer


class _Later:
    """A batch that is appended in a later turn, and its place in the answer."""

    __slots__ = ("acknowledgement", "answer", "appended", "partition")

    def __init__(self, partition: "Partition", answer: PartitionProduceResponse) -> None:
        self.partition = partition
        self.answer = answer
        self.appended = False
        self.acknowledgement: _Acknowledgement | None = None

    def done(self, outcome: "Appended | ApiError") -> None:
        if self.acknowledgement is not None:
            self.acknowledgement.appended(self, outcome)


def acknowledgement(
    services: Services, waiting: _Waiting, later: list[_Later], request: ProduceRequest, response: ProduceResponse
) -> Pending[Any]:
    """The answer once all that is `waiting` is committed, and what comes `later` is appended and committed."""
    return _Acknowledgement(services, waiting, later, request, response).pending


class _Acknowledgement:
    """The answer to a request whose batches are not all committed yet, or not even appended."""

    __slots__ = ("_refused", "acks", "pending", "response", "timer", "waiting")

    def __init__(
        self,
        services: Services,
        waiting: _Waiting,
        later: list[_Later],
        request: ProduceRequest,
        response: ProduceResponse,
    ) -> None:
        self.acks = request.acks
        self.response = response
        self._refused = ""
        self.pending: Pending[Any] = Pending()
        # Whole before anyone is asked: the first may answer at once.
        self.waiting: dict[int | _Later, PartitionProduceResponse] = {
            ticket: answer for ticket, (_, _, answer) in enumerate(waiting) if self.acks
        }
        for item in later:
            item.acknowledgement = self
            self.waiting[item] = item.answer
        self.timer = services.runtime.tasks.call_later(max(request.timeout_ms, 0) / 1000, self._time_out)
        for ticket, (partition, next_offset, _) in enumerate(waiting):
            if self.acks:
                partition.when_committed(next_offset, partial(self._settled, ticket))

    def appended(self, item: _Later, outcome: "Appended | ApiError") -> None:
        """What became of a batch that had to wait."""
        answer = self.waiting.get(item)
        if answer is None:
            return  # timed out before
        if isinstance(outcome, ApiError):
            refuse(answer, item.partition, outcome)
            self._refused = outcome.message
            self._settled(item, None)
            return
        item.appended = True
        answer.base_offset = outcome.base_offset
        answer.log_append_time_ms = outcome.log_append_time_ms
        answer.log_start_offset = outcome.log_start_offset
        if self.acks:
            item.partition.when_committed(outcome.next_offset, partial(self._settled, item))
        else:
            self._settled(item, None)

    def _settled(self, ticket: int | _Later, error: ApiError | None) -> None:
        answer = self.waiting.pop(ticket, None)
        if answer is None:
            return  # timed out before
        if error is not None:
            refuse(answer, None, error)
        if not self.waiting:
            self.timer.cancel()
            self._complete()

    def _time_out(self) -> None:
        for ticket, answer in self.waiting.items():
            if isinstance(ticket, _Later) and not ticket.appended:
                message = "not appended within the request's timeout.ms; it may be yet"
            else:
                message = "appended, but not known to be durable within the request's timeout.ms"
            refuse(answer, None, RequestTimedOut(message))
        self.waiting.clear()
        self._complete()

    def _complete(self) -> None:
        if self.acks:
            self.pending.complete(self.response)
        elif self._refused:
            self.pending.complete(CloseConnection(f"produce with acks=0 failed: {self._refused}"))
        else:
            self.pending.complete(NO_RESPONSE)


def refuse(answer: PartitionProduceResponse, partition: "Partition | None", error: ApiError) -> None:
    """Make `answer` tell of `error`; with the partition, if it knows of it, come the details that Kafka gives."""
    answer.error_code = error.code
    answer.error_message = error.message[:ERROR_MESSAGE_MAX] or None
    answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1
    if partition is None:
        return
    if not isinstance(error, InvalidTopic):
        answer.log_start_offset = partition.log_start_offset
    if isinstance(error, RefusedRecords):
        answer.record_errors = [BatchIndexAndErrorMessage(place, text) for place, text in error.record_errors]
    elif isinstance(error, RecordTooLarge | RecordListTooLarge):
        partition.warn_too_large(error)
