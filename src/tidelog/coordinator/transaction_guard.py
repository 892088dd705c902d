"""Before the first records of a transaction are appended to a partition, ask the transaction's coordinator whether the
partition belongs to the transaction (KIP-890).

So the coordinator knows every partition that has records of the transaction. In a partition that the coordinator did
not know, nobody would ever end the transaction, and read_committed consumers would wait for ever.
"""

import logging
from typing import TYPE_CHECKING, NamedTuple

from tidelog.client.errors import ApiNotSupported, BrokenProtocol, BrokerUnreachable
from tidelog.model.ids import indexes_by_topic
from tidelog.wire.errors import ApiError, CoordinatorNotAvailable, ErrorCode, error_for
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    import asyncio
    from typing import Any

    from tidelog.config.broker_config import BrokerConfig
    from tidelog.coordinator.transaction.records import Partition
    from tidelog.coordinator.transactions import TransactionCoordinators
    from tidelog.metadata.broker_channels import BrokerChannels
    from tidelog.metadata.publisher import MetadataCache
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.coordinator")

QUESTIONS_PER_REQUEST_MAX = 1_000


class Question(NamedTuple):
    """Asks whether the partition belongs to the producer's transaction. With `adds`, asks the coordinator to add the
    partition to the transaction.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partition: "Partition"
    adds: bool

    @property
    def transaction(self) -> "_Key":
        return self.transactional_id, self.producer_id, self.producer_epoch, self.adds


_Key = tuple[str, int, int, bool]
"""All fields of a question except the partition."""


class TransactionGuard:
    """Asks coordinators. Each of the other brokers gets one request at a time. A request contains the waiting questions
    for its receiver, at most QUESTIONS_PER_REQUEST_MAX.

    Questions about several partitions of one transaction are asked together. Otherwise the coordinator would write,
    for each question, a record with all partitions of the transaction.
    """

    def __init__(
        self,
        runtime: "Runtime",
        config: "BrokerConfig",
        metadata: "MetadataCache",
        coordinators: "TransactionCoordinators",
        channels: "BrokerChannels | None",
    ) -> None:
        """`channels` are the connections to the other brokers; None if there are no other brokers."""
        self._tasks = runtime.tasks
        self._clock = runtime.clock
        self._config = config
        self._metadata = metadata
        self._coordinators = coordinators
        self._channels = channels
        self._waiting: dict[int, _Questions] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}
        self._is_closed = False

    async def ensure(self, question: Question) -> None:
        """Return when the coordinator has confirmed that the partition belongs to the transaction.

        The coordinator answers CONCURRENT_TRANSACTIONS while the end of the producer's previous transaction is not
        completely written. Then a question that adds the partition is repeated for a short time
        (add.partitions.to.txn.retry.backoff.max.ms). This is cheaper than to let the client try again.

        Raises the ApiError of the coordinator, or CoordinatorNotAvailable if the coordinator gives no answer.
        """
        config = self._config
        wait_max_ms = min(config.get("add.partitions.to.txn.retry.backoff.max.ms"), config.get("request.timeout.ms"))
        ends_at_s = self._clock.monotonic() + wait_max_ms / 1000
        while True:
            code = await self._ask(question)
            is_too_late = self._clock.monotonic() >= ends_at_s
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS or not question.adds or is_too_late:
                break
            await self._tasks.sleep(config.get("add.partitions.to.txn.retry.backoff.ms") / 1000)
        if code:
            topic, index = question.partition
            raise error_for(
                code, f"{topic}-{index} is not known to be in the transaction of {question.transactional_id!r}"
            )

    def close(self) -> None:
        """Refuse all waiting questions and all new ones (COORDINATOR_NOT_AVAILABLE)."""
        self._is_closed = True
        for sender in self._senders.values():
            sender.cancel()
        for waiting in self._waiting.values():  # a sender that is cancelled before its first step refuses nothing
            _refuse(waiting)
        if self._channels is not None:
            self._channels.close()

    async def _ask(self, question: Question) -> ErrorCode:
        answer: asyncio.Future[ErrorCode] = self._tasks.future()
        host = self._coordinators.host
        if self._is_closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            broker_id, _ = host.address_of(question.transactional_id, "")
        except ApiError as error:
            return error.code
        self._waiting.setdefault(broker_id, []).append((question, answer))
        if broker_id not in self._senders:
            self._senders[broker_id] = self._tasks.spawn(self._send_all(broker_id), name=f"transactions-{broker_id}")
        return await answer

    def _ask_locally(self, transaction: _Key, asked: "_Asked") -> None:
        """Pass the questions about one transaction to its coordinator, which is on this broker."""
        from tidelog.coordinator.decision import Producer
        from tidelog.coordinator.transaction.records import V2

        def reply(result: "Any") -> None:
            """`result` is an ApiError, None for success, or a list with one code for each partition."""
            codes = result if isinstance(result, list) else [result.code if result else ErrorCode.NONE] * len(asked)
            for answers, code in zip(asked.values(), codes, strict=True):
                _answer(answers, code)

        transactional_id, producer_id, epoch, adds = transaction
        producer = Producer(producer_id, epoch)
        try:
            if adds:
                self._coordinators.add_partitions(transactional_id, producer, asked, V2, reply)
            else:
                self._coordinators.verify_partitions(transactional_id, producer, asked, reply)
        except ApiError as error:
            reply(error)

    async def _send_all(self, broker_id: int) -> None:
        """Send the questions that wait for the broker `broker_id`, until there are none."""
        waiting = self._waiting[broker_id]
        batch: _Questions = []
        try:
            while waiting:
                batch = waiting[:QUESTIONS_PER_REQUEST_MAX]
                del waiting[:QUESTIONS_PER_REQUEST_MAX]
                if broker_id == self._config.node_id:
                    for transaction, asked in _by_transaction(batch).items():
                        self._ask_locally(transaction, asked)
                    batch = []  # the coordinator answers all of them, perhaps later
                    await self._tasks.sleep(0)
                    continue
                try:
                    # Questions that were not attempted are the first ones of the next request.
                    waiting[:0] = await self._send(broker_id, batch)
                except (BrokerUnreachable, BrokenProtocol, ApiNotSupported, ApiError) as error:
                    logger.debug("transactions not verified broker=%d reason=%s", broker_id, error)
                    _refuse(batch)
        finally:  # if `close` has cancelled this task, some questions have no answer yet
            del self._waiting[broker_id], self._senders[broker_id]
            _refuse([*batch, *waiting])

    async def _send(self, broker_id: int, questions: "_Questions") -> "_Questions":
        """Ask another broker. If the broker refuses some partitions of a transaction, it does not attempt the other
        partitions of this transaction. Returns the questions about partitions that were not attempted for this reason.
        """
        broker = self._metadata.newest.brokers.get(broker_id)
        if broker is None or self._channels is None:
            raise CoordinatorNotAvailable(f"broker {broker_id} is not registered")
        transactions = _by_transaction(questions)
        request = AddPartitionsToTxnRequest(
            [
                AddPartitionsToTxnTransaction(
                    transactional_id,
                    producer_id,
                    epoch,
                    not adds,
                    [AddPartitionsToTxnTopic(topic, indexes) for topic, indexes in indexes_by_topic(asked).items()],
                )
                for (transactional_id, producer_id, epoch, adds), asked in transactions.items()
            ]
        )
        response = await self._channels.ask(broker, request, AddPartitionsToTxnResponse)
        if response.error_code or len(response.results_by_transaction) != len(transactions):
            raise CoordinatorNotAvailable(f"broker {broker_id} answered with error {response.error_code}")
        not_attempted: _Questions = []
        for asked, result in zip(transactions.values(), response.results_by_transaction, strict=True):
            codes = {
                (topic.name, partition.partition_index): partition.partition_error_code
                for topic in result.topic_results
                for partition in topic.results_by_partition
            }
            # If no partition of the transaction was attempted, another request would get the same answer.
            has_progress = any(code != ErrorCode.OPERATION_NOT_ATTEMPTED for code in codes.values())
            for partition, answers in asked.items():
                code = codes.get(partition)
                if code == ErrorCode.OPERATION_NOT_ATTEMPTED and has_progress:
                    not_attempted += answers
                else:
                    _answer(answers, _known_code(code))
        return not_attempted


_Questions = list[tuple[Question, "asyncio.Future[ErrorCode]"]]
"""Questions, each with the future that gets its answer."""
_Asked = dict["Partition", _Questions]
"""The questions about one transaction, by partition. Usually there is one question for each partition."""


def _by_transaction(questions: _Questions) -> dict[_Key, _Asked]:
    transactions: dict[_Key, _Asked] = {}
    for question, answer in questions:
        asked = transactions.setdefault(question.transaction, {})
        asked.setdefault(question.partition, []).append((question, answer))
    return transactions


def _known_code(code: int | None) -> ErrorCode:
    """Return the code of an answer; COORDINATOR_NOT_AVAILABLE if the code is missing or unknown."""
    if code is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE


def _answer(questions: _Questions, code: ErrorCode) -> None:
    for _, answer in questions:
        if not answer.done():
            answer.set_result(code)


def _refuse(questions: _Questions) -> None:
    """Answer COORDINATOR_NOT_AVAILABLE to each question that has no answer yet."""
    _answer(questions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
