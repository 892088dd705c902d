"""AddPartitionsToTxn (key 24), v0-5. v2: the error PRODUCER_FENCED; v4: several transactions, and verification
(KIP-890).

Before a producer with a transaction version below 2 writes to a partition, it sends v0-3. The leader of a partition
sends v4-5 when the first batch of a transaction arrives, or a commit of consumer offsets in the transaction. If the
producer has transaction version 2, the leader adds the partition to the transaction. Otherwise it verifies that the
partition was added.
"""

from collections.abc import Callable
from typing import NamedTuple

from tidelog.api.pending import Gathering, Pending
from tidelog.api.services import RequestContext, Services
from tidelog.api.transactions import code_for_version
from tidelog.coordinator.decision import Producer
from tidelog.coordinator.transaction.records import V2, Partition
from tidelog.metadata.image import INTERNAL_TOPICS, MetadataImage
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

FENCED_SINCE = 2
SEVERAL_SINCE = 4
PARTITIONS_PER_STEP = 200
_Codes = dict[Partition, ErrorCode]


class _Answer(NamedTuple):
    """The error codes of one transaction's partitions."""

    codes: _Codes
    is_joined: bool
    """Whether the response names each topic and partition only once, although the request may name them repeatedly. As
    in Kafka, the response is joined if a partition does not exist or is forbidden, and after a verification. Otherwise
    it has the same entries as the request.
    """


def handle(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Steps[Pending[Steps[AddPartitionsToTxnResponse]]]:
    """Add partitions to transactions, or verify that the transactions contain them. If one of a transaction's
    partitions does not exist or is forbidden, none of them is added, and the others get OPERATION_NOT_ATTEMPTED.
    """
    version = context.api_version
    image = services.metadata.image
    if version < SEVERAL_SINCE:
        topics = request.v3_and_below_topics
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        answer: Gathering[_Answer] = Gathering(lambda answers: _response(topics, answers[0], version))
        codes = yield from _check(image, topics, allow_internal=False)
        transaction = _Change(services, request.v3_and_below_transactional_id, producer, codes, answer.reply())
        transaction.add(0)
        return answer.finish()
    answers: Gathering[_Answer] = Gathering(
        lambda received: _response_of_several(request.transactions, received, version)
    )
    for entry in request.transactions:
        codes = yield from _check(image, entry.topics, allow_internal=True)
        producer = Producer(entry.producer_id, entry.producer_epoch)
        transaction = _Change(services, entry.transactional_id, producer, codes, answers.reply())
        if entry.verify_only:
            transaction.verify()
        else:
            transaction.add(V2)
        yield
    return answers.finish()


def _check(image: MetadataImage, topics: list[AddPartitionsToTxnTopic], *, allow_internal: bool) -> Steps[_Codes]:
    """Return the error code of each partition. With `allow_internal`, partitions of internal topics may be added."""
    codes: _Codes = {}
    for entry in topics:
        topic = image.topics.get(entry.name)
        count = 0 if topic is None else len(topic.partitions)
        is_forbidden = not allow_internal and entry.name in INTERNAL_TOPICS
        for position, index in enumerate(entry.partitions):
            if is_forbidden:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            else:
                code = ErrorCode.NONE if 0 <= index < count else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            codes[entry.name, index] = code
            if not position % PARTITIONS_PER_STEP:
                yield
    if any(codes.values()):
        return {partition: code or ErrorCode.OPERATION_NOT_ATTEMPTED for partition, code in codes.items()}
    return codes


class _Change:
    """Adds the partitions that a request names for one transaction, or verifies that the transaction contains them.
    `reply` is called once, with the error codes of the partitions.
    """

    def __init__(
        self,
        services: Services,
        transactional_id: str,
        producer: Producer,
        codes: _Codes,
        reply: Callable[[_Answer], None],
    ) -> None:
        self._coordinators = services.transactions
        self._transactional_id = transactional_id
        self._producer = producer
        self._codes = codes
        self._reply = reply
        self._is_joined = False

    def add(self, version: int) -> None:
        """Add the partitions. `version` is the client's transaction version: V2, or 0 for every older version."""
        if self._is_refused():
            return
        try:
            self._coordinators.add_partitions(
                self._transactional_id, self._producer, self._codes, version, self._answer
            )
        except ApiError as error:
            self._answer(error)

    def verify(self) -> None:
        if self._is_refused():
            return
        self._is_joined = True
        try:
            self._coordinators.verify_partitions(self._transactional_id, self._producer, self._codes, self._answer)
        except ApiError as error:
            self._answer(error)

    def _is_refused(self) -> bool:
        if any(self._codes.values()):
            self._reply(_Answer(self._codes, is_joined=True))
            return True
        return False

    def _answer(self, answer: list[ErrorCode] | ApiError | None) -> None:
        """Accept the coordinator's answer: a code for each partition, an error of all partitions, or None if all
        partitions were added.
        """
        if isinstance(answer, ApiError):
            self._codes = dict.fromkeys(self._codes, answer.code)
        elif answer is not None:
            self._codes = dict(zip(self._codes, answer, strict=True))
        self._reply(_Answer(self._codes, self._is_joined))


def _response(
    topics: list[AddPartitionsToTxnTopic], answer: _Answer, version: int
) -> Steps[AddPartitionsToTxnResponse]:
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=(yield from _results(topics, answer, version)))


def _response_of_several(
    transactions: list[AddPartitionsToTxnTransaction], answers: list[_Answer], version: int
) -> Steps[AddPartitionsToTxnResponse]:
    results = []
    for entry, answer in zip(transactions, answers, strict=True):
        topics = yield from _results(entry.topics, answer, version)
        results.append(AddPartitionsToTxnResult(entry.transactional_id, topics))
        yield
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _results(
    topics: list[AddPartitionsToTxnTopic], answer: _Answer, version: int
) -> Steps[list[AddPartitionsToTxnTopicResult]]:
    if answer.is_joined:
        joined: dict[str, list[int]] = {}
        for position, (name, index) in enumerate(answer.codes):
            joined.setdefault(name, []).append(index)
            if not position % PARTITIONS_PER_STEP:
                yield
        topics = [AddPartitionsToTxnTopic(name, indexes) for name, indexes in joined.items()]
    results = []
    for topic in topics:
        partitions = []
        for position, index in enumerate(topic.partitions):
            code = code_for_version(answer.codes[topic.name, index], version, FENCED_SINCE)
            partitions.append(AddPartitionsToTxnPartitionResult(index, code))
            if not position % PARTITIONS_PER_STEP:
                yield
        results.append(AddPartitionsToTxnTopicResult(topic.name, partitions))
        yield
    return results
