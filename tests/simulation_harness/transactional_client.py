"""A transactional producer of a simulated cluster. It speaks transaction version 1 or 2 with the requests that Kafka's
Java producer sends, repeats requests after temporary errors, and can send requests again much later.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from simulation_harness.cluster_ledger import Violation
from tidelog.client import operations
from tidelog.client.cluster import Address
from tidelog.client.connection import NEWEST
from tidelog.client.errors import BrokerUnreachable, ClientError
from tidelog.client.operations import Request
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster_client import ClusterClient
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.message import Message
from tidelog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.wire.records import Record, encode_batch

M = TypeVar("M", bound=Message)

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators in FindCoordinator."""
PAUSE_S = (0.02, 0.1)
FIND_S = 5.0
PRODUCE_TIMEOUT_MS = 2_000


class Dialect(NamedTuple):
    """The newest version of each request that clients of a transaction version send."""

    version: int
    produce: int
    txn_offset_commit: int
    end_txn: int


V1 = Dialect(1, produce=11, txn_offset_commit=4, end_txn=4)
V2 = Dialect(2, produce=NEWEST, txn_offset_commit=5, end_txn=5)
ADD_PARTITIONS_MAX = 3
"""Newer versions are sent by brokers only."""

COORDINATOR_CHANGES = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
TEMPORARY = (
    *COORDINATOR_CHANGES,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
)
FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
"""Errors after which the producer must begin anew. INVALID_PRODUCER_EPOCH: the partition knows a newer epoch."""
ABORTABLE = (
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
)


class Refused(Exception):
    """The producer cannot continue its transaction. `code` is the error; None if the time of the producer is over, or
    the client has crashed.
    """

    def __init__(self, code: ErrorCode | None, request: str) -> None:
        super().__init__(f"{request}: {'time is over' if code is None else code.name}")
        self.code = code


class TransactionalProducer:
    """One producer with a transactional id, from its first request until it stops for any reason."""

    def __init__(
        self,
        client: ClusterClient,
        late_client: ClusterClient,
        transactional_id: str,
        dialect: Dialect,
        *,
        timeout_ms: int,
        rng: random.Random,
        now_s: Callable[[], float],
        late_chance: float,
    ) -> None:
        """`late_client` sends copies of requests after some seconds; `late_chance` is the probability of each."""
        self.client = client
        self.transactional_id = transactional_id
        self.dialect = dialect
        self.timeout_ms = timeout_ms
        self.producer_id = self.epoch = -1
        self.crashes_at_s = float("inf")
        """From this time on, the client sends nothing and ignores all answers."""
        self.gives_up_at_s = float("inf")
        self.may_have_stray_requests = False
        """Whether a request of an earlier transaction of this epoch, which would harm a later one that uses version 1,
        may still be on its way."""
        self.has_repeated_end = False
        """Whether an earlier request of the last `end`, or a copy of it that is sent later, may have succeeded."""
        self.has_late_offsets = False
        """Whether a request of this transaction that commits offsets, or a copy of it, may still be on its way."""
        self.late_requests: set[asyncio.Task[None]] = set()
        self._late_client = late_client
        self._rng = rng
        self._now_s = now_s
        self._late_chance = late_chance
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition | str] = set()
        """Partitions and groups that belong to the transaction already (version 1)."""
        self._has_stray_requests = False

    async def initialize(self, *, keeps_identity: bool = False) -> None:
        """Send InitProducerId. `keeps_identity`: it continues after an error and asks for the next epoch (KIP-360)."""
        identity = (self.producer_id, self.epoch) if keeps_identity else (-1, -1)
        request = InitProducerIdRequest(self.transactional_id, self.timeout_ms, *identity)

        async def attempt() -> ErrorCode:
            answer = await self._ask_coordinator(TRANSACTION, self.transactional_id, request, InitProducerIdResponse)
            if not answer.error_code:
                self._begin_epoch(answer.producer_id, answer.producer_epoch)
            return ErrorCode(answer.error_code)

        await self._repeat("InitProducerId", attempt)

    def begin(self) -> None:
        """Begin a transaction. No request is necessary."""
        self._added.clear()
        self.has_late_offsets = False
        self.may_have_stray_requests = self._has_stray_requests

    async def send(self, partition: TopicPartition, values: Sequence[bytes], now_ms: int) -> int:
        """Append one batch in the transaction. Return its offset."""
        if self.dialect is V1:
            await self._add_partition(partition)
        sequence = self._sequences.get(partition, 0)
        batch = encode_batch(
            [Record(key=b"t", value=value, timestamp=now_ms) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        offset = -1

        async def attempt() -> ErrorCode:
            nonlocal offset
            cluster = self.client.cluster
            leader = cluster.leader(partition)
            if leader is None:
                await self.client.run(operations.refresh(cluster, [partition.topic]), FIND_S)
                leader = cluster.leader(partition)
                if leader is None:
                    return ErrorCode.LEADER_NOT_AVAILABLE
            data = TopicProduceData(partition.topic, cluster.topic_id(partition.topic))
            data.partition_data.append(PartitionProduceData(partition.partition, bytes(batch)))
            request = ProduceRequest(self.transactional_id, -1, PRODUCE_TIMEOUT_MS, [data])
            try:
                answer = await self._ask(leader[0], request, ProduceResponse, self.dialect.produce)
            except ClientError:
                cluster.forget([partition.topic])
                raise
            result = answer.responses[0].partition_responses[0]
            offset = result.base_offset
            if result.error_code:
                cluster.forget([partition.topic])
            return ErrorCode(result.error_code)

        await self._repeat(f"Produce to {partition}", attempt)
        self._sequences[partition] = sequence + len(values)
        return offset

    async def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], member: tuple[str, int] = ("", -1)
    ) -> None:
        """Commit offsets of a group in the transaction. `member` is the id and the generation of the group's member."""
        if self.dialect is V1 and group not in self._added:
            request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)

            async def add() -> ErrorCode:
                answer = await self._ask_coordinator(
                    TRANSACTION, self.transactional_id, request, AddOffsetsToTxnResponse
                )
                return ErrorCode(answer.error_code)

            await self._repeat("AddOffsetsToTxn", add)
            self._added.add(group)
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for (name, index), offset in offsets.items():
            topic = topics.setdefault(name, TxnOffsetCommitRequestTopic(name))
            topic.partitions.append(TxnOffsetCommitRequestPartition(index, offset))
        member_id, generation = member
        commit = TxnOffsetCommitRequest(
            self.transactional_id, group, self.producer_id, self.epoch, generation, member_id, None, [*topics.values()]
        )

        async def attempt() -> ErrorCode:
            version_max = self.dialect.txn_offset_commit
            answer = await self._ask_coordinator(GROUP, group, commit, TxnOffsetCommitResponse, version_max)
            codes = [partition.error_code for topic in answer.topics for partition in topic.partitions]
            return ErrorCode(next((code for code in codes if code), 0))

        await self._repeat("TxnOffsetCommit", attempt)

    async def end(self, *, commit: bool) -> None:
        """Send EndTxn. Raises Refused; `has_repeated_end` then says whether another copy of it may have succeeded."""
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)
        self.has_repeated_end = False

        async def attempt() -> ErrorCode:
            version_max = self.dialect.end_txn
            try:
                answer = await self._ask_coordinator(
                    TRANSACTION, self.transactional_id, request, EndTxnResponse, version_max
                )
            except ClientError:
                self.has_repeated_end = True
                raise
            code = ErrorCode(answer.error_code)
            if code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT):
                self.has_repeated_end = True  # the decision may be committed later
            if not code and self.dialect is V2:
                self._begin_epoch(answer.producer_id, answer.producer_epoch)
            return code

        await self._repeat("EndTxn", attempt)

    def _begin_epoch(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
            self._has_stray_requests = False
        self.producer_id, self.epoch = producer_id, epoch

    async def _add_partition(self, partition: TopicPartition) -> None:
        if partition in self._added:
            return
        topics = [AddPartitionsToTxnTopic(partition.topic, [partition.partition])]
        request = AddPartitionsToTxnRequest(None, self.transactional_id, self.producer_id, self.epoch, topics)

        async def attempt() -> ErrorCode:
            answer = await self._ask_coordinator(
                TRANSACTION, self.transactional_id, request, AddPartitionsToTxnResponse, ADD_PARTITIONS_MAX
            )
            result = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
            return ErrorCode(result.partition_error_code)

        await self._repeat("AddPartitionsToTxn", attempt)
        self._added.add(partition)

    # Requests

    async def _repeat(self, request: str, attempt: Callable[[], Awaitable[ErrorCode]]) -> None:
        """Repeat `attempt` until it succeeds. Raises Refused, or Violation for an error that no client expects."""
        while True:
            self._check_time(request)
            try:
                code = await attempt()
            except (ClientError, ApiError):
                code = ErrorCode.REQUEST_TIMED_OUT
            self._check_time(request)
            if code is ErrorCode.NONE:
                return
            if code in FENCED or code in ABORTABLE:
                raise Refused(code, request)
            if code not in TEMPORARY:
                raise Violation("NoFinalError", f"{request} of {self.transactional_id}: {code.name}")
            self.client.retries += 1
            await self.client.sleep(self._rng.uniform(*PAUSE_S))

    def _check_time(self, request: str) -> None:
        if self._now_s() >= min(self.crashes_at_s, self.gives_up_at_s):
            raise Refused(None, request)

    async def _ask_coordinator(
        self, kind: int, key: str, request: Message, response_class: type[M], version_max: int = NEWEST
    ) -> M:
        """Ask the coordinator of a transactional id or group. Raises ClientError if it does not answer."""
        address = self._coordinators.get((kind, key))
        if address is None:
            found = await self.client.run(find(kind, key), FIND_S)
            if found is None:
                raise ApiError("no coordinator", ErrorCode.COORDINATOR_NOT_AVAILABLE)
            address = self._coordinators[kind, key] = found
        try:
            answer = await self._ask(address, request, response_class, version_max)
        except ClientError:
            self._coordinators.pop((kind, key), None)
            raise
        if any(code in COORDINATOR_CHANGES for code in _codes(answer)):
            self._coordinators.pop((kind, key), None)
        return answer

    async def _ask(self, address: Address, request: Message, response_class: type[M], version_max: int) -> M:
        if self._rng.random() < self._late_chance:
            self._send_later(Request(address, request, version_max))
            self._note_stray(request)
        answer = await self.client.ask(Request(address, request, version_max))
        if isinstance(answer, BrokerUnreachable):
            self._note_stray(request)
            raise answer
        assert isinstance(answer, response_class)
        return answer

    def _note_stray(self, request: Message) -> None:
        if isinstance(request, EndTxnRequest | TxnOffsetCommitRequest):
            self._has_stray_requests = True
        if isinstance(request, TxnOffsetCommitRequest):
            self.has_late_offsets = True
        if isinstance(request, EndTxnRequest):
            self.has_repeated_end = True  # the other copy may arrive first, and end the transaction

    def _send_later(self, request: Request) -> None:
        delay_s = self._rng.choice((0.01, 0.3, 1.0, 5.0)) * self._rng.random()

        async def send() -> None:
            await self._late_client.sleep(delay_s)
            await self._late_client.ask(request)

        task = asyncio.ensure_future(send())
        self.late_requests.add(task)
        task.add_done_callback(self.late_requests.discard)


def find(kind: int, key: str) -> operations.Operation[Address | None]:
    answer = yield operations.AskAny(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]))
    assert isinstance(answer, FindCoordinatorResponse)
    entry = answer.coordinators[0]
    return None if entry.error_code else Address(entry.host, entry.port)


def _codes(answer: Message) -> list[int]:
    """Return the error codes in an answer of a coordinator."""
    if isinstance(answer, TxnOffsetCommitResponse):
        return [partition.error_code for topic in answer.topics for partition in topic.partitions]
    if isinstance(answer, AddPartitionsToTxnResponse):
        topics = answer.results_by_topic_v3_and_below
        return [partition.partition_error_code for topic in topics for partition in topic.results_by_partition]
    return [getattr(answer, "error_code", 0)]
