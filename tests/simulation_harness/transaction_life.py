"""The transactional clients of a simulated cluster: producers that write to several partitions, chains that consume,
transform and produce, and read_committed consumers. Each of them exists with transaction version 1 and 2.
"""

import asyncio
import random
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

from simulation_harness.cluster_ledger import Ledger
from simulation_harness.cluster_requests import create_topic
from simulation_harness.rack_reader import RackFetch, RackReader
from simulation_harness.read_committed import LIMITS, committed_records
from simulation_harness.special_topics import Call
from simulation_harness.transaction_ledger import TransactionLedger
from simulation_harness.transaction_odds import TRANSACTION_SETTINGS, Odds
from simulation_harness.transaction_process import LISTS, MOVES, PARTITIONS, WORKERS, Process, Worker
from simulation_harness.transactional_client import GROUP, V2, Refused, TransactionalProducer, find
from tidelog.client import operations
from tidelog.client.errors import BrokerUnreachable, ClientError
from tidelog.client.operations import READ_COMMITTED, Request, fetched_from
from tidelog.coordinator.marker_writer import MarkerWriter
from tidelog.coordinator.marker_writer import _marker as marker_of
from tidelog.coordinator.transaction import records, transitions
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

TIMEOUTS_MS = (2_500, 8_000)
OFFSETS_BY_NAME = 9
FEW_EPOCHS_MAX = 15
FOREVER = float("inf")


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
        self._racks = [f"rack-{node.node_id}" for node in cluster.nodes]
        self.client_hosts = [worker.name for worker in workers] + [f"committed-reader-{n}" for n in range(READERS)]
        self.client_hosts += [f"committed-reader-{rack}" for rack in self._racks]
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
        for rack in self._racks:
            yield self._read_in_rack(rack, until_s)

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
            process = Process(self, worker, f"{worker.name}.{incarnation}", producer, rng, until_s)
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

    async def _read_in_rack(self, rack: str, until_s: float) -> None:
        """Read all partitions, from followers where possible."""
        name = f"committed-reader-{rack}"

        def add(fetch: RackFetch) -> int:
            records, next_offset = committed_records(fetch.partition, fetch.start, fetched_from(fetch.data))
            self.ledger.read(fetch.reader, fetch.partition, fetch.start, next_offset, records)
            if fetch.is_follower:
                self._coverage["records of transactions read from followers"] += len(records)
            return next_offset

        async def earliest(*_: object) -> int:
            return 0  # no record of these topics is deleted

        client, rng = self._cluster.client(name), self.world.rng(name)
        reader = RackReader(
            client, rng, self._base_ledger, rack, lambda: self._partitions, add, earliest, READ_COMMITTED
        )
        await reader.run(until_s, self.now_s)

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
        output_topics = {worker.group: worker.topic for worker in self._workers if worker.group}
        committed = {group: await self.committed_offsets(client, group, FOREVER) for group in output_topics}
        read = {partition: await self._read_all(client, partition) for partition in self._partitions}
        self.ledger.check_everything(read)
        self.ledger.check_lists({partition: read[partition] for partition in read if partition.topic == LISTS})
        for group, offsets in committed.items():
            for partition, offset in offsets.items():
                self.ledger.check_offset(group, partition, offset)
            self.ledger.check_chain(group, offsets, read, output_topics[group])

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
        """Return all committed records. Waits until the last stable offset is the highest high watermark that any
        replica has had: a leader may have a lower one until its followers are in sync again.
        """
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
                has_more = self._base_ledger.has_been_committed(partition, position + 1)
                if position == fetched.high_watermark and not has_more:
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


@contextmanager
def few_epochs(rng: random.Random) -> Iterator[None]:
    """In half of the lives, a producer id has epochs up to FEW_EPOCHS_MAX only, instead of 32,767. So producers use up
    their epochs, and continue with other ids.
    """
    if rng.random() < 0.5:
        yield
        return
    with patch.object(records, "EPOCH_MAX", FEW_EPOCHS_MAX), patch.object(transitions, "EPOCH_MAX", FEW_EPOCHS_MAX):
        yield


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
