"""The processes of transactional clients in a simulated cluster: producers that write to several partitions, chains
that consume, transform and produce, alone or as members of a group, and clients that append to lists.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from simulation_harness.chain_member import ChainMember
from simulation_harness.transaction_ledger import Attempt, TransactionLedger
from simulation_harness.transaction_odds import Odds
from simulation_harness.transactional_client import V1, V2, Dialect, Refused, TransactionalProducer
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster_client import ClusterClient
from tidelog.simulation.world import World
from tidelog.wire.errors import ErrorCode

MOVES, LISTS = "moves", "lists"
PARTITIONS = 3


class Worker(NamedTuple):
    """A producer of the profile."""

    name: str
    """Its transactional id."""
    dialect: Dialect
    group: str = ""
    """If not empty, it is a chain: it reads MOVES, writes to a topic of this group, and commits the group's offsets."""
    is_member: bool = False
    """Whether it joins the group, and reads only the partitions that it is assigned. Otherwise it reads all."""
    appends: bool = False
    """It appends to lists and reads them."""

    @property
    def topic(self) -> str:
        if self.appends:
            return LISTS
        return f"{self.group}-output" if self.group else MOVES


WORKERS = (
    Worker("producer-v2", V2),
    Worker("producer-v1", V1),
    Worker("chain-v2", V2, "chain-v2"),
    Worker("chain-v1", V1, "chain-v1"),
    Worker("member-0", V2, "members", is_member=True),
    Worker("member-1", V2, "members", is_member=True),
    Worker("lists-v2", V2, appends=True),
    Worker("lists-v1", V1, appends=True),
)


class Life(Protocol):
    """The parts of the simulated life that a process uses."""

    world: World
    ledger: TransactionLedger
    odds: Odds
    now_s: Callable[[], float]

    def fetch(
        self, client: ClusterClient, reader: str, partition: TopicPartition, start: int, until_s: float
    ) -> Awaitable[tuple[list[tuple[int, bytes]], int] | None]: ...

    def committed_offsets(
        self, client: ClusterClient, group: str, until_s: float
    ) -> Awaitable[dict[TopicPartition, int]]: ...


class Process:
    """One process of a worker: one producer, and for a chain also its consumer."""

    def __init__(
        self,
        life: "Life",
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
        self._member = ChainMember(producer.client, worker.group, MOVES, PARTITIONS) if worker.is_member else None
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
        attempt = Attempt(self._name, number, self._worker.dialect.version, self._now_s(), self._worker.group)
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
                await (self._transform if self._worker.group else self._write)(attempt)
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
        group, member = self._worker.group, self._member
        if member is not None and await member.join(self._until_s, self._now_s):
            self._positions.clear()
            self._ledger.coverage["generations of chains"] += 1
        if not self._positions:
            offsets = await life.committed_offsets(producer.client, group, self._until_s)
            for partition, offset in offsets.items():
                if member is None or partition in member.partitions:
                    self._positions[partition] = max(offset, 0)
        offsets = {}
        for source in rng.sample([*self._positions], min(rng.choice((1, 2)), len(self._positions))):
            read = await life.fetch(producer.client, self._name, source, self._positions[source], self._until_s)
            if read is None:
                raise Refused(None, "Fetch")
            records, next_offset = read
            limit = rng.choice((2, 10))
            if len(records) > limit:
                next_offset = records[limit][0]
            attempt.inputs[source] = range(self._positions[source], next_offset)
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
            self._ledger.send_offsets(attempt, offsets)
            try:
                if member is None:
                    await producer.send_offsets(group, offsets)
                else:
                    await producer.send_offsets(group, offsets, member.identity)
            finally:
                attempt.has_late_offsets = producer.has_late_offsets
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
