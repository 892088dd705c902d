"""A transactional producer that sends the plain requests of version 1 (before KIP-890), and can leave some of them out.

It works with Tidelog and with Apache Kafka.
"""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from tidelog.client.blocking import Client
from tidelog.client.cluster import Address
from tidelog.client.operations import Ask, Request
from tidelog.wire.errors import ErrorCode
from tidelog.wire.message import Message
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.records import Record, encode_batch

PRODUCE_V1, ADD_PARTITIONS_V1, END_V1 = 11, 3, 4
"""The newest versions of Produce, AddPartitionsToTxn and EndTxn that a producer of version 1 sends."""
TRANSACTION_KEY = 1
"""Type of a transactional id in FindCoordinator."""
RETRIED = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
LIMIT_S = 30.0

M = TypeVar("M", bound=Message)


class RawProducer:
    """One transactional producer. Each method sends one request, and returns the error code of the answer.

    Answers that a client repeats (the coordinator moves or is not ready) are repeated for LIMIT_S.
    """

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self.client = Client(bootstrap)
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer_id, self.epoch = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()

    def initialize(self) -> None:
        """Get a producer id and an epoch; older producers with this transactional id are fenced."""
        request = InitProducerIdRequest(self.transactional_id, self.timeout_ms)
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self._ask(self._coordinator(), request, InitProducerIdResponse)
            if answer.error_code not in RETRIED:
                break
            assert time.monotonic() < deadline, ErrorCode(answer.error_code)
            time.sleep(0.05)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    def add(self, topic: str, *partitions: int) -> ErrorCode:
        """Add partitions to the transaction (AddPartitionsToTxn)."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(topic, list(partitions))],
        )

        def code() -> int:
            answer = self._ask(self._coordinator(), request, AddPartitionsToTxnResponse, ADD_PARTITIONS_V1)
            return next(
                part.partition_error_code
                for each in answer.results_by_topic_v3_and_below
                for part in each.results_by_partition
            )

        return self._repeat(code)

    def write(self, topic: str, partition: int, *values: bytes) -> ErrorCode:
        """Write one batch to a partition, without AddPartitionsToTxn."""
        place = (topic, partition)
        sequence = self._sequences.get(place, 0)
        now_ms = time.time_ns() // 1_000_000
        batch = encode_batch(
            [Record(None, value, now_ms, []) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(partition, batch)])]
        request = ProduceRequest(self.transactional_id, acks=-1, timeout_ms=30_000, topic_data=data)

        def code() -> int:
            leaders = self.client.topics([topic])[topic].leaders
            address = self.client.cluster.brokers[leaders[partition].broker_id]
            answer = self._ask(address, request, ProduceResponse, PRODUCE_V1)
            return answer.responses[0].partition_responses[0].error_code

        written = self._repeat(code)
        if written == ErrorCode.NONE:
            self._sequences[place] = sequence + len(values)
        return written

    def end(self, *, commit: bool) -> ErrorCode:
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)
        return self._repeat(lambda: self._ask(self._coordinator(), request, EndTxnResponse, END_V1).error_code)

    def transaction(self, writes: Sequence[tuple[str, int, bytes]], *, commit: bool = True) -> None:
        """Write the records in one transaction, and end it."""
        for topic, partition, value in writes:
            assert self.add(topic, partition) == ErrorCode.NONE
            assert self.write(topic, partition, value) == ErrorCode.NONE
        assert self.end(commit=commit) == ErrorCode.NONE

    def _repeat(self, code: Callable[[], int]) -> ErrorCode:
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = ErrorCode(code())
            if answer not in RETRIED or time.monotonic() > deadline:
                return answer
            time.sleep(0.05)

    def _coordinator(self) -> Address:
        request = FindCoordinatorRequest(key_type=TRANSACTION_KEY, coordinator_keys=[self.transactional_id])
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self.client.ask_any(request, self.client.deadline())
            assert isinstance(answer, FindCoordinatorResponse)
            [found] = answer.coordinators
            if found.error_code == ErrorCode.NONE:
                return Address(found.host, found.port)
            assert time.monotonic() < deadline, ErrorCode(found.error_code)
            time.sleep(0.05)

    def _ask(self, address: Address, request: Message, kind: type[M], version_max: int = 32767) -> M:
        deadline = self.client.deadline()
        tickets = self.client.send_all(Ask([Request(address, request, version_max)]), deadline)
        (answer,) = self.client.collect(tickets, deadline)
        assert isinstance(answer, kind), answer
        return answer


def hang(bootstrap: str, transactional_id: str, topic: str, partition: int, value: bytes) -> RawProducer:
    """Write a record of a transaction that no coordinator knows. Return its producer.

    The broker must run with transaction.partition.verification.enable=false.
    """
    producer = RawProducer(bootstrap, transactional_id)
    producer.initialize()
    assert producer.write(topic, partition, value) == ErrorCode.NONE
    return producer
