"""The transactional clients of a simulated cluster: producers that write to several partitions, chains that consume,
transform and produce, and read_committed consumers. Each of them exists with transaction version 1 and 2.
"""

import asyncio
import random
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from simulation_harness.cluster_ledger import Ledger
from simulation_harness.cluster_requests import create_topic
from simulation_harness.read_committed import LIMITS, committed_records
from simulation_harness.special_topics import Call
from simulation_harness.transaction_ledger import Attempt, TransactionLedger
from simulation_harness.transaction_odds import TRANSACTION_SETTINGS, Odds
from simulation_harness.transactional_client import GROUP, V1, V2, Dialect, Refused, TransactionalProducer, find
from tidelog.client import operations
from tidelog.client.errors import BrokerUnreachable, ClientError
from tidelog.client.operations import Request
from tidelog.coordinator.marker_writer import MarkerWriter
from tidelog.coordinator.marker_writer import _marker as marker_of
from tidelog.metadata.image import TRANSACTION_STATE
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster import SimCluster
from tidelog.simulation.cluster_client import BACKOFF, ClusterClient
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.message import Message
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidelog.wire.messages.write_txn_markers import WriteTxnMarkersRequest

MOVES, LISTS = "moves", "lists"
PARTITIONS = 3
TIMEOUTS_MS = (2_500, 8_000)
OFFSETS_BY_NAME = 9
FOREVER = float("inf")


class Worker(NamedTuple):
    """A producer of the profile. `reads`: it is a chain that reads MOVES and writes to a topic of its own."""

    name: str
    dialect: Dialect
    reads: bool = False
    appends: bool = False
    """It appends to lists and reads them."""

    @property
    def topic(self) -> str:
        if self.appends:
            return LISTS
        return f"{self.name}-output" if self.reads else MOVES


WORKERS = (
    Worker("producer-v2", V2),
    Worker("producer-v1", V1),
    Worker("chain-v2", V2, reads=True),
    Worker("chain-v1", V1, reads=True),
    Worker("lists-v2", V2, appends=True),
    Worker("lists-v1", V1, appends=True),
)
READERS = 2


class TransactionLife:
    def __init__(
        self, cluster: SimCluster, ledger: Ledger, call: Call, odds: Odds, workers: tuple[Worker, ...] = WORKERS
    ) -> None:
        self._cluster = cluster
        self.world = cluster.world
        self._base_ledger = ledger
        self._coverage = ledger.coverage
        self._call = call
        self.odds = odds
        self._workers = workers
        self.now_s = cluster.world.loop.time
        self.ledger = TransactionLedger(ledger, cluster.world.trace.note)
        self.client_hosts = [worker.name for worker in workers] + [f"committed-reader-{n}" for n in range(READERS)]
        self._topics = list(dict.fromkeys([MOVES, *(worker.topic for worker in workers)]))
        self._rng = cluster.world.rng("late markers")
        ledger.on_markers = self._send_markers_later
        self._background: set[asyncio.Task[None]] = set()
        """Old processes that continue, and late requests."""
        self.waits_for = ""
        """What the final check waits for."""

    @property
    def moved_partitions(self) -> list[TopicPartition]:
        """The partitions whose replicas the administrator moves."""
        count = int(TRANSACTION_SETTINGS["transaction.state.log.num.partitions"])
        return [*self._partitions, *(TopicPartition(TRANSACTION_STATE, index) for index in range(count))]

    @property
    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, index) for topic in self._topics for index in range(PARTITIONS)]

    async def create_topics(self, client: ClusterClient) -> None:
        for topic in self._topics:
            await self._call(client, partial(create_topic, client.cluster, topic, PARTITIONS, {}), FOREVER)

    def tasks(self, until_s: float) -> Iterator[Awaitable[None]]:
        for worker in self._workers:
            yield self._work(worker, until_s)
        for number in range(READERS):
            yield self._read(f"committed-reader-{number}", until_s)

    # Producers

    async def _work(self, worker: Worker, until_s: float) -> None:
        """Run one process of the worker after the other."""
        client = self._cluster.client(worker.name)
        rng = self.world.rng(worker.name)
        incarnation = 0
        while self.now_s() < until_s:
            late_client = self._cluster.client(f"{worker.name}-late")
            producer = TransactionalProducer(
                client,
                late_client,
                worker.name,
                worker.dialect,
                timeout_ms=rng.choice(TIMEOUTS_MS),
                rng=random.Random(rng.getrandbits(64)),
                now_s=self.now_s,
                late_chance=self.odds.late_requests,
            )
            producer.gives_up_at_s = until_s
            producer.late_requests = self._background
            process = _Process(self, worker, f"{worker.name}.{incarnation}", producer, rng, until_s)
            incarnation += 1
            if rng.random() < self.odds.zombie:
                task = asyncio.ensure_future(process.run())
                self._background.add(task)
                await asyncio.wait([task], timeout=rng.uniform(0.5, 5.0))
                if not task.done():
                    self._coverage["old producers that continue"] += 1
                    continue
                self._background.discard(task)
                task.result()
            else:
                await process.run()

    async def _read(self, name: str, until_s: float) -> None:
        """Read all partitions. All readers except the first one sometimes begin again."""
        client, rng = self._cluster.client(name), self.world.rng(name)
        positions: dict[TopicPartition, int] = {}
        while self.now_s() < until_s:
            partition = rng.choice(self._partitions)
            if name != "committed-reader-0" and rng.random() < 0.03:
                positions.clear()
            records = await self.fetch(client, name, partition, positions.get(partition, 0), until_s)
            if records is not None:
                positions[partition] = records[1]
            await client.sleep(rng.choice((0.0, 0.05, 0.1)))

    async def fetch(
        self, client: ClusterClient, reader: str, partition: TopicPartition, start: int, until_s: float
    ) -> tuple[list[tuple[int, bytes]], int] | None:
        """Return the committed records from `start` on that one response has, and the next offset; None at the end."""
        fetch = partial(operations.fetch, client.cluster, BACKOFF, partition, start, LIMITS)
        fetched = await self._call(client, fetch, until_s)
        if fetched is None:
            return None
        records, next_offset = committed_records(partition, start, fetched)
        self.ledger.read(reader, partition, start, next_offset, records)
        return records, next_offset

    def _send_markers_later(self, request: Message) -> None:
        """Sometimes send a copy of a request of a coordinator again after a while, to the leaders of that time."""
        assert isinstance(request, WriteTxnMarkersRequest)
        is_harmful = any(marker.transaction_version < V2.version for marker in request.markers)
        if self._rng.random() >= self.odds.late_markers * (0.1 if is_harmful else 1.0):
            return
        delay_s = self._rng.choice((0.03, 0.3, 2.0)) * self._rng.random()
        self._coverage["markers that arrive late"] += len(request.markers)
        for marker in request.markers:
            self._base_ledger.repeated_markers[marker.producer_id, marker.producer_epoch] = None

        async def send() -> None:
            client = self._cluster.client("late-markers")
            await client.sleep(delay_s)
            for node in self._cluster.nodes:
                await client.ask(Request(node.address, request))

        task = asyncio.ensure_future(send())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # The end

    async def check(self) -> None:
        """Wait until every transaction has ended, and check what consumers find then.

        `LastStableOffsetMoves`: each transaction ends after its timeout at the latest, and then the last stable offset
        reaches the high watermark, and no offset of a group is pending. The caller limits the time.
        """
        client = self._cluster.client("transaction-checker")
        while self._background:
            done, _ = await asyncio.wait([*self._background], return_when=asyncio.FIRST_COMPLETED)
            self._background -= done
            for task in done:
                task.result()
        if self._coverage["wrong clock"]:
            await self._fence_all(client)
        committed: dict[Worker, dict[TopicPartition, int]] = {}
        for worker in self._workers:
            if worker.reads:
                committed[worker] = await self.committed_offsets(client, worker.name, FOREVER)
        read = {partition: await self._read_all(client, partition) for partition in self._partitions}
        self.ledger.check_everything(read)
        self.ledger.check_lists({partition: read[partition] for partition in read if partition.topic == LISTS})
        for worker, offsets in committed.items():
            for partition, offset in offsets.items():
                self.ledger.check_offset(worker.name, partition, offset)
            self.ledger.check_chain(worker.name, offsets, read, worker.topic)

    async def _fence_all(self, client: ClusterClient) -> None:
        """End all transactions. A coordinator whose clock went back would not find them too old for a long time."""
        for worker in self._workers:
            producer = TransactionalProducer(
                client,
                client,
                worker.name,
                worker.dialect,
                timeout_ms=TIMEOUTS_MS[0],
                rng=self.world.rng(f"{worker.name} end"),
                now_s=self.now_s,
                late_chance=0.0,
            )
            await producer.initialize()

    async def _read_all(self, client: ClusterClient, partition: TopicPartition) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        position = 0
        while True:
            fetch = partial(operations.fetch, client.cluster, BACKOFF, partition, position, LIMITS)
            fetched = await self._call(client, fetch, FOREVER)
            assert fetched is not None
            records, next_offset = committed_records(partition, position, fetched)
            self.ledger.read("checker", partition, position, next_offset, records)
            found += records
            if next_offset == position:
                if position == fetched.high_watermark:
                    return found
                self.waits_for = (
                    f"{partition}: last stable offset {fetched.last_stable_offset}, {fetched.high_watermark}"
                )
                await client.sleep(0.2)
            position = next_offset

    async def committed_offsets(self, client: ClusterClient, group: str, until_s: float) -> dict[TopicPartition, int]:
        """Return the committed offsets of MOVES (-1: none). Waits while some of them are pending in a transaction."""
        partitions = [TopicPartition(MOVES, index) for index in range(PARTITIONS)]
        topic = OffsetFetchRequestTopics(name=MOVES, partition_indexes=[*range(PARTITIONS)])
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=[topic])], require_stable=True)
        while self.now_s() < until_s:
            with suppress(ClientError, ApiError):
                address = await client.run(find(GROUP, group), 5.0)
                if address is not None:
                    answer = await client.ask(Request(address, request, OFFSETS_BY_NAME))
                    if isinstance(answer, BrokerUnreachable):
                        raise answer
                    assert isinstance(answer, OffsetFetchResponse)
                    result = answer.groups[0]
                    items = [item for entry in result.topics for item in entry.partitions]
                    code = ErrorCode(
                        result.error_code or next((item.error_code for item in items if item.error_code), 0)
                    )
                    if not code:
                        return {partitions[item.partition_index]: item.committed_offset for item in items}
                    self._coverage[f"offsets refused: {code.name}"] += 1
                    self.waits_for = f"offsets of {group}: {code.name}"
            await client.sleep(0.1)
        raise Refused(None, "OffsetFetch")


class _Process:
    """One process of a worker: one producer, and for a chain also the positions of its consumer."""

    def __init__(
        self,
        life: TransactionLife,
        worker: Worker,
        name: str,
        producer: TransactionalProducer,
        rng: random.Random,
        until_s: float,
    ) -> None:
        self._life = life
        self._world = life.world
        self._odds = life.odds
        self._ledger = life.ledger
        self._worker = worker
        self._name = name
        self._producer = producer
        self._rng = random.Random(rng.getrandbits(64))
        self._until_s = until_s
        self._positions: dict[TopicPartition, int] = {}
        self._now_s = life.now_s

    async def run(self) -> None:
        """Run transactions until the process ends."""
        try:
            began_s = self._now_s()
            await self._producer.initialize()
            self._ledger.initialized(self._worker.name, self._name, began_s, self._now_s())
            number = 0
            while self._now_s() < self._until_s:
                await self._transaction(number)
                number += 1
                await self._producer.client.sleep(self._rng.choice((0.0, 0.02, 0.1, 0.3)))
        except Refused as refusal:
            if refusal.code is not None:
                self._ledger.coverage[f"producers refused: {refusal.code.name}"] += 1

    async def _transaction(self, number: int) -> None:
        producer, rng, odds = self._producer, self._rng, self._odds
        attempt = Attempt(self._name, number, self._worker.dialect.version, self._now_s())
        producer.begin()
        attempt.producer_id, attempt.epoch = producer.producer_id, producer.epoch
        attempt.may_be_hit_by_strays = producer.may_have_stray_requests
        self._ledger.begin(attempt)
        if rng.random() < odds.crash:
            producer.crashes_at_s = self._now_s() + rng.choice((0.001, 0.02, 0.5)) * rng.random()
        try:
            if self._worker.appends:
                await self._append(attempt)
            else:
                await (self._transform if self._worker.reads else self._write)(attempt)
        except Refused as refusal:
            await self._recover(refusal)
            return
        if not attempt.records:
            return
        if rng.random() < odds.abort:
            self._ledger.coverage["transactions aborted by their client"] += 1
            await self._end(attempt, commit=False)
        else:
            await self._end(attempt, commit=True)

    async def _recover(self, refusal: Refused) -> None:
        """Continue after an error as the Java producer does: abort the transaction, and begin another epoch. Raises
        Refused if the producer is fenced or its process has ended.
        """
        if refusal.code is None or refusal.code is ErrorCode.PRODUCER_FENCED:
            raise refusal
        self._ledger.coverage[f"transactions refused: {refusal.code.name}"] += 1
        with suppress(Refused):
            await self._producer.end(commit=False)
        await self._producer.initialize(keeps_identity=True)
        self._positions.clear()

    async def _end(self, attempt: Attempt, *, commit: bool) -> None:
        producer = self._producer
        requested_s = self._now_s()
        if commit:
            self._ledger.request_commit(attempt)
        else:
            self._positions.clear()
        try:
            await producer.end(commit=commit)
        except Refused as refusal:
            if commit and refusal.code is not None and not producer.has_repeated_end:
                self._ledger.refused(attempt)
            await self._recover(refusal)
            return
        if commit:
            self._ledger.committed(attempt, self._worker.name, requested_s)

    async def _write(self, attempt: Attempt) -> None:
        """Write a set of records into several partitions."""
        rng = self._rng
        for _ in range(rng.choice((1, 2, 3, 5))):
            partition = TopicPartition(self._worker.topic, rng.randrange(PARTITIONS))
            values = [attempt.value(partition) for _ in range(rng.choice((1, 1, 3)))]
            await self._producer.send(partition, values, self._clock_ms())
            await self._pause()

    async def _append(self, attempt: Attempt) -> None:
        """Append to lists, and read lists up to the last stable offset."""
        rng = self._rng
        for _ in range(rng.choice((2, 3, 4))):
            partition = TopicPartition(LISTS, rng.randrange(PARTITIONS))
            if rng.random() < 0.5:
                start = self._positions.get(partition, 0)
                read = await self._life.fetch(self._producer.client, self._name, partition, start, self._until_s)
                if read is None:
                    raise Refused(None, "Fetch")
                self._positions[partition] = attempt.reads[partition] = read[1]
            else:
                await self._producer.send(partition, [attempt.value(partition)], self._clock_ms())
            await self._pause()

    async def _transform(self, attempt: Attempt) -> None:
        """Read some records of MOVES, write one for each of them, and commit the group's offset in the transaction."""
        life, producer, rng = self._life, self._producer, self._rng
        group = self._worker.name
        if not self._positions:
            offsets = await life.committed_offsets(producer.client, group, self._until_s)
            for partition, offset in offsets.items():
                self._positions[partition] = max(offset, 0)
        offsets = {}
        for source in rng.sample([*self._positions], rng.choice((1, 2))):
            read = await life.fetch(producer.client, self._name, source, self._positions[source], self._until_s)
            if read is None:
                raise Refused(None, "Fetch")
            records, next_offset = read
            limit = rng.choice((2, 10))
            if len(records) > limit:
                next_offset = records[limit][0]
            values: dict[TopicPartition, list[bytes]] = {}
            for offset, _ in records[:limit]:
                partition = TopicPartition(self._worker.topic, offset % PARTITIONS)
                values.setdefault(partition, []).append(attempt.value(partition, f"{source}@{offset}"))
            for partition, batch in values.items():
                await producer.send(partition, batch, self._clock_ms())
            if values:
                offsets[source] = next_offset
            await self._pause()
        if offsets:
            attempt.offsets = {(group, source): offset for source, offset in offsets.items()}
            await producer.send_offsets(group, offsets)
            self._positions.update(offsets)
            if rng.random() < self._odds.pending_offsets:
                await producer.client.sleep(rng.random())

    async def _pause(self) -> None:
        """Sometimes do nothing for a while; seldom for longer than the transaction's timeout."""
        rng, pause_s = self._rng, 0.0
        if rng.random() < self._odds.pause:
            self._ledger.coverage["pauses within a transaction"] += 1
            pause_s = self._producer.timeout_ms / 1000 * rng.uniform(0.3, 1.6)
        elif rng.random() < 0.2:
            pause_s = rng.uniform(0.0, 0.3)
        if pause_s:
            await self._producer.client.sleep(pause_s)

    def _clock_ms(self) -> int:
        return self._world.host("admin").clock.now_ms()


@contextmanager
def observed_markers(ledger: Ledger) -> Iterator[None]:
    """Report to the ledger the markers that a coordinator sends again because it got no answer."""
    send = MarkerWriter._send

    async def observed(writer: MarkerWriter, broker_id: int, batch: Any) -> Any:
        if ledger.on_markers is not None:
            ledger.on_markers(WriteTxnMarkersRequest([marker_of(work, batch[work]) for work in batch]))
        try:
            return await send(writer, broker_id, batch)
        except ClientError:
            for work in batch:
                ledger.repeated_markers[work.markers.producer_id, work.markers.producer_epoch] = None
            ledger.coverage["markers sent again"] += 1
            raise

    with patch.object(MarkerWriter, "_send", observed):
        yield
