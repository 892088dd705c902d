"""One real broker in the simulation, and a client that sends it the requests of transactions in any version."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from simulation_harness import PORT, boot
from tidelog.broker.broker import BrokerServer
from tidelog.replication.partition import Partition
from tidelog.simulation.client import SimClient
from tidelog.simulation.world import SimHost, World, simulated
from tidelog.wire.apis import APIS
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.add_partitions_to_txn import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction
from tidelog.wire.messages.describe_transactions import TransactionState
from tidelog.wire.messages.fetch import FetchPartition, FetchTopic
from tidelog.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic
from tidelog.wire.messages.offset_fetch import OffsetFetchRequestTopic
from tidelog.wire.messages.produce import PartitionProduceData, TopicProduceData
from tidelog.wire.messages.txn_offset_commit import TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic
from tidelog.wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

MODULES = {info.name: info.module for info in APIS.values()}
TOPIC = "t"
PRODUCE_V1, PRODUCE_V2 = 11, 12
END_V1, END_V2 = 4, 5
COMMIT_V1, COMMIT_V2 = 4, 5
FAST = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 1000, "transaction_state_log_num_partitions": 2}


class Producer(NamedTuple):
    producer_id: int
    epoch: int

    @property
    def next(self) -> "Producer":
        return self._replace(epoch=self.epoch + 1)


class Stage:
    """A running broker with the topic TOPIC of three partitions."""

    def __init__(self, world: World, settings: dict[str, object]) -> None:
        self.world = world
        self.settings = {**FAST, **settings}
        self.host: SimHost = world.host("broker")
        self.broker: BrokerServer
        self._client: SimClient | None = None

    async def start(self, **settings: object) -> None:
        self.settings.update(settings)
        self.broker = await boot(self.host, **self.settings)

    async def stop(self) -> None:
        await self.host.runtime.tasks.spawn(self.broker.stop(), name="stop")
        self.host.kill()
        self._client = None

    async def restart(self, **settings: object) -> None:
        """Stop the broker in order, and start it again."""
        await self.stop()
        await self.start(**settings)

    async def kill(self, **settings: object) -> None:
        """Kill the broker's process, and start it again."""
        self.host.kill()
        self._client = None
        await self.start(**settings)

    async def client(self) -> SimClient:
        return await SimClient.connect(self.world.host("client").runtime, self.host.address, PORT)

    async def post(self, api: str, version: int, **fields: Any) -> "asyncio.Future[Any]":
        """Send one request on the common connection, and return the future of its response."""
        if self._client is None or not self._client.open:
            self._client = await self.client()
        request = getattr(import_module(f"tidelog.wire.messages.{MODULES[api]}"), f"{api}Request")(**fields)
        return self._client.post(request, version_max=version)

    async def call(self, api: str, version: int, **fields: Any) -> Any:
        return await (await self.post(api, version, **fields))

    def partition(self, topic: str = TOPIC, index: int = 0) -> Partition:
        return self.broker.services.partitions.get(topic, index)

    # Transactions

    async def init(
        self,
        transactional_id: str = "tx",
        *,
        expected: tuple[int, int] = (-1, -1),
        timeout_ms: int = 60_000,
        version: int = 5,
    ) -> Any:
        """Return the response of InitProducerId, repeated while the coordinator is being created or loaded, or ends
        the last transaction.
        """
        while True:
            response = await self.call(
                "InitProducerId",
                version,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=expected[0],
                producer_epoch=expected[1],
            )
            passing = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS)
            if response.error_code not in passing:
                return response
            await asyncio.sleep(0.05)

    async def producer(self, transactional_id: str = "tx", *, timeout_ms: int = 60_000) -> Producer:
        """Return a new producer of the transactional id."""
        await self.call("FindCoordinator", 4, key_type=1, coordinator_keys=[transactional_id])
        response = await self.init(transactional_id, timeout_ms=timeout_ms)
        assert response.error_code == 0, response
        return Producer(response.producer_id, response.producer_epoch)

    async def add(self, producer: Producer, *indexes: int, tx: str = "tx", topic: str = TOPIC, version: int = 3) -> int:
        """Add partitions of one topic, and return the first error code that is not 0."""
        topics = [AddPartitionsToTxnTopic(topic, list(indexes))]
        if version < 4:
            response = await self.call(
                "AddPartitionsToTxn",
                version,
                v3_and_below_transactional_id=tx,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=topics,
            )
            results = response.results_by_topic_v3_and_below
        else:
            entry = AddPartitionsToTxnTransaction(tx, producer.producer_id, producer.epoch, False, topics)
            response = await self.call("AddPartitionsToTxn", version, transactions=[entry])
            results = response.results_by_transaction[0].topic_results
        codes = [partition.partition_error_code for result in results for partition in result.results_by_partition]
        return next((code for code in codes if code), 0)

    async def post_produce(
        self,
        producer: Producer,
        *values: bytes,
        sequence: int = 0,
        index: int = 0,
        topic: str = TOPIC,
        tx: str | None = "tx",
        version: int = PRODUCE_V2,
        transactional: bool = True,
        acks: int = -1,
    ) -> "asyncio.Future[Any]":
        batch = encode_batch(
            [Record(offset=delta, value=value) for delta, value in enumerate(values)],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
        return await self.post(
            "Produce",
            version,
            transactional_id=tx,
            acks=acks,
            timeout_ms=30_000,
            topic_data=[
                TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=batch)])
            ],
        )

    async def produce(self, producer: Producer, *values: bytes, **options: Any) -> int:
        """Produce one batch, and return the error code."""
        response = await (await self.post_produce(producer, *values, **options))
        code: int = response.responses[0].partition_responses[0].error_code
        return code

    async def end(self, producer: Producer, *, commit: bool, tx: str = "tx", version: int = END_V2) -> Any:
        return await self.call(
            "EndTxn",
            version,
            transactional_id=tx,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )

    async def describe(self, tx: str = "tx") -> TransactionState:
        response = await self.call("DescribeTransactions", 0, transactional_ids=[tx])
        state: TransactionState = response.transaction_states[0]
        return state

    async def until_state(self, name: str, tx: str = "tx", seconds: float = 60.0) -> TransactionState:
        """Wait until the transaction is in this state."""
        ends_s = self.world.loop.time() + seconds
        while (state := await self.describe(tx)).transaction_state != name:
            assert self.world.loop.time() < ends_s, f"{state} is not {name}"
            await asyncio.sleep(0.02)
        return state

    async def finish(self, producer: Producer, *, commit: bool, tx: str = "tx", version: int = END_V2) -> Producer:
        """End the transaction, wait for its markers, and return the producer that continues."""
        response = await self.end(producer, commit=commit, tx=tx, version=version)
        assert response.error_code == 0, response
        await self.until_state("CompleteCommit" if commit else "CompleteAbort", tx)
        return producer if version < END_V2 else Producer(response.producer_id, response.producer_epoch)

    async def mark(
        self,
        producer: Producer,
        *indexes: int,
        commit: bool = False,
        topic: str = TOPIC,
        coordinator_epoch: int = 0,
        transaction_version: int = 0,
        version: int = 2,
    ) -> list[int]:
        """Write markers as an administrator does, and return their error codes."""
        marker = WritableTxnMarker(
            producer.producer_id,
            producer.epoch,
            commit,
            [WritableTxnMarkerTopic(topic, list(indexes))],
            coordinator_epoch,
            transaction_version,
        )
        response = await self.call("WriteTxnMarkers", version, markers=[marker])
        return [p.error_code for topic in response.markers[0].topics for p in topic.partitions]

    # Offsets

    async def commit_offset(
        self,
        producer: Producer,
        offset: int,
        *,
        group: str = "g",
        index: int = 0,
        tx: str = "tx",
        version: int = COMMIT_V2,
        generation: int = -1,
        member: str = "",
        topic: str = TOPIC,
    ) -> int:
        """Commit an offset in the transaction, and return the error code."""
        await self.call("FindCoordinator", 4, key_type=0, coordinator_keys=[group])
        names_member = {"generation_id": generation, "member_id": member} if version >= 3 else {}
        while True:
            response = await self.call(
                "TxnOffsetCommit",
                version,
                transactional_id=tx,
                group_id=group,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                topics=[TxnOffsetCommitRequestTopic(topic, [TxnOffsetCommitRequestPartition(index, offset)])],
                **names_member,
            )
            code: int = response.topics[0].partitions[0].error_code
            if code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return code
            await asyncio.sleep(0.05)

    async def offset(self, *, group: str = "g", index: int = 0, stable: bool = True, topic: str = TOPIC) -> int | str:
        """Return the committed offset, or the name of the error."""
        await self.call("FindCoordinator", 4, key_type=0, coordinator_keys=[group])
        while True:
            response = await self.call(
                "OffsetFetch",
                7,
                group_id=group,
                topics=[OffsetFetchRequestTopic(topic, [index])],
                require_stable=stable,
            )
            if response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                await asyncio.sleep(0.05)
                continue
            assert response.error_code == 0
            partition = response.topics[0].partitions[0]
            if partition.error_code:
                return ErrorCode(partition.error_code).name
            committed: int = partition.committed_offset
            return committed

    # Reading

    async def fetch(self, *, committed: bool, start: int = 0, index: int = 0, topic: str = TOPIC) -> Any:
        """Return the partition's part of a Fetch response."""
        response = await self.call(
            "Fetch",
            12,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            topics=[
                FetchTopic(topic, partitions=[FetchPartition(index, fetch_offset=start, partition_max_bytes=1 << 20)])
            ],
        )
        return response.responses[0].partitions[0]

    async def values(self, *, committed: bool = True, index: int = 0, topic: str = TOPIC) -> list[bytes]:
        """Return the values that a consumer returns to its application: with `committed`, without those of aborted
        transactions.
        """
        data = await self.fetch(committed=committed, index=index, topic=topic)
        assert data.error_code == 0, data
        remaining = sorted(data.aborted_transactions or (), key=lambda t: t.first_offset)
        open_aborted: set[int] = set()
        values: list[bytes] = []
        for header in batches_in(data.records or b""):
            while remaining and remaining[0].first_offset <= header.base_offset + header.last_offset_delta:
                open_aborted.add(remaining.pop(0).producer_id)
            if header.is_control:
                open_aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in open_aborted):
                values += [record.value or b"" for record in decode_records(data.records, header.position)]
        return values

    async def end_offset(self, *, committed: bool, index: int = 0, topic: str = TOPIC) -> int:
        """Return the latest offset of ListOffsets."""
        response = await self.call(
            "ListOffsets",
            5,
            replica_id=-1,
            isolation_level=int(committed),
            topics=[ListOffsetsTopic(topic, [ListOffsetsPartition(index, timestamp=-1)])],
        )
        offset: int = response.topics[0].partitions[0].offset
        return offset


Scenario = Callable[[Stage], Coroutine[Any, Any, None]]


def run(scenario: Scenario, *, seed: int = 1, topics: Sequence[str] = (TOPIC,), **settings: object) -> None:
    """Run a scenario with a broker, which is stopped in order afterwards."""

    async def whole(stage: Stage) -> None:
        await stage.start()
        client = await stage.client()
        for topic in topics:
            assert (await client.create_topic(topic, 3)).error_code == 0
        await scenario(stage)
        await stage.stop()

    with simulated(seed) as world:
        world.run(whole(Stage(world, settings)))
