"""Topics of a simulated cluster with clients of their own, since the rules of the ledger do not hold for them: one is
deleted and created again under the same name, one is compacted, and one allows unclean elections.
"""

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from simulation_harness.cluster_ledger import Ledger, Violation
from simulation_harness.cluster_requests import create_topic, delete_topic, new_producer
from tidelog.client import operations
from tidelog.client.errors import BrokerUnreachable, ClientError, GaveUp
from tidelog.client.operations import FetchLimits, Operation, Request
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster_client import BACKOFF, ClusterClient
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.message import Message
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.primitives import Buffer
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

T = TypeVar("T")

CALL_S = 10.0
KEYS = (b"a", b"b", b"c", b"d", b"e")
FOREVER = float("inf")


class Call(Protocol):
    """Runs an operation until it succeeds; None at the end of the time."""

    def __call__(
        self, client: ClusterClient, operation: Callable[[], Operation[T]], until_s: float
    ) -> Awaitable[T | None]: ...


class SpecialTopic:
    """The client of one topic. `run` uses the topic while faults happen, `check` checks it afterwards."""

    name: str
    config: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self, client: ClusterClient, rng: random.Random, ledger: Ledger, call: Call, now_s: Callable[[], float]
    ) -> None:
        self._client = client
        self._rng = rng
        self._ledger = ledger
        self._call = call
        self._now_s = now_s

    async def create(self, until_s: float) -> None:
        creation = partial(create_topic, self._client.cluster, self.name, 1, self.config)
        await self._call(self._client, creation, until_s)

    async def run(self, until_s: float) -> None:
        raise NotImplementedError

    async def check(self) -> None:
        raise NotImplementedError

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.name, 0)

    async def _read_all(self) -> list[Record]:
        """Return all records of the topic."""
        client, found, position = self._client, list[Record](), 0
        limits = FetchLimits(max_wait_ms=200, max_bytes=1 << 20, partition_max_bytes=1 << 16)
        while True:
            fetch = partial(operations.fetch, client.cluster, BACKOFF, self.partition, position, limits)
            fetched = await self._call(client, fetch, FOREVER)
            assert fetched is not None
            records = [record for record in records_in(fetched.records) if record.offset >= position]
            if not records and position >= fetched.high_watermark:
                return found
            found += records
            position = max((record.offset + 1 for record in records), default=fetched.high_watermark)


def records_in(data: Buffer) -> Iterator[Record]:
    for header in batches_in(data):
        yield from decode_records(data, header.position)


class Attempt(NamedTuple):
    number: int
    offset: int | None
    """None if the write was not acknowledged: it may have happened, or happen later."""


class RecreatedTopic(SpecialTopic):
    """A topic that is deleted and created again under the same name.

    `NoOldRecords`: a topic has no record that was written to an older topic of its name. `NoAckedLoss`: it has all
    records that were acknowledged since its creation. The requests name the topic by its id; some of them come late,
    and name the deleted topic.
    """

    name = "reborn"

    async def run(self, until_s: float) -> None:
        old_id = bytes(16)
        generation = 0
        while self._now_s() < until_s:
            await self.create(until_s)
            topic_id = await self._new_id(old_id, until_s)
            if topic_id is None:
                return
            generation += 1
            await self._live(topic_id, old_id, generation, until_s)
            deleted = await self._call(self._client, partial(delete_topic, self._client.cluster, topic_id), until_s)
            if deleted is None:
                return
            self._ledger.coverage["topics created again"] += 1
            old_id = topic_id

    async def check(self) -> None:
        """Everything was checked by `run`."""

    async def _new_id(self, old_id: bytes, until_s: float) -> bytes | None:
        """Wait until the metadata name another topic than the deleted one."""
        cluster = self._client.cluster
        while self._now_s() < until_s:
            with suppress(ApiError, ClientError):
                await self._client.run(operations.refresh(cluster, [self.name]), CALL_S)
            if cluster.leader(self.partition) is not None and bytes(cluster.topic_id(self.name)) != old_id:
                return bytes(cluster.topic_id(self.name))
            await self._client.sleep(0.1)
        return None

    async def _live(self, topic_id: bytes, old_id: bytes, generation: int, until_s: float) -> None:
        """Write and read for some seconds. After a write of unknown outcome nothing more is written."""
        acknowledged: dict[int, bytes] = {}
        number, writes = 0, True
        ends_s = min(until_s, self._now_s() + self._rng.uniform(1.0, 8.0))
        while self._now_s() < ends_s:
            if writes:
                value = b"%d:%d" % (generation, number)
                offset = await self._write(topic_id, value)
                number += 1
                if offset is None:
                    writes = False
                else:
                    acknowledged[offset] = value
            if generation > 1 and self._rng.random() < 0.2:
                await self._write(topic_id, b"%d:late" % (generation - 1), old_id)
                self._ledger.coverage["late writes to deleted topics"] += 1
            for record in await self._read(topic_id, acknowledged):
                if not (record.value or b"").startswith(b"%d:" % generation):
                    text = f"{self.name} was created {generation} times, and has {record.value!r} at {record.offset}"
                    raise Violation("NoOldRecords", text, self.partition)
            await self._client.sleep(self._rng.choice((0.0, 0.1, 0.3)))

    async def _ask_leader(self, topic_id: bytes, request: Callable[[int], Message]) -> Message | None:
        """Send the request, made from the leader epoch, to the leader. None: no leader of this topic is known."""
        cluster = self._client.cluster
        leader = cluster.leader(self.partition)
        if leader is None or bytes(cluster.topic_id(self.name)) != topic_id:
            with suppress(ApiError, ClientError):
                await self._client.run(operations.refresh(cluster, [self.name]), CALL_S)
            return None
        answer = await self._client.ask(Request(leader[0], request(leader[1].epoch)))
        if isinstance(answer, BrokerUnreachable):
            cluster.forget([self.name])
            return None
        return answer

    async def _write(self, topic_id: bytes, value: bytes, named_id: bytes | None = None) -> int | None:
        """Return the offset of the record; None if it was not acknowledged. `named_id`: the id in the request."""
        data = TopicProduceData(topic_id=named_id or topic_id)
        data.partition_data.append(PartitionProduceData(index=0, records=encode_batch([Record(value=value)])))
        answer = await self._ask_leader(topic_id, lambda _epoch: ProduceRequest(None, -1, 2_000, [data]))
        if not isinstance(answer, ProduceResponse):
            return None
        result = answer.responses[0].partition_responses[0]
        if result.error_code:
            self._client.cluster.forget([self.name])
            return None
        return result.base_offset

    async def _read(self, topic_id: bytes, acknowledged: dict[int, bytes]) -> list[Record]:
        """Read from the beginning, as far as one response reaches, and look for the acknowledged records."""

        def request(epoch: int) -> FetchRequest:
            item = FetchPartition(partition=0, current_leader_epoch=epoch, partition_max_bytes=1 << 18)
            topic = FetchTopic(topic_id=topic_id, partitions=[item])
            return FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 18, topics=[topic])

        answer = await self._ask_leader(topic_id, request)
        if not isinstance(answer, FetchResponse) or not answer.responses:
            return []
        data = answer.responses[0].partitions[0]
        if data.error_code:
            self._client.cluster.forget([self.name])
            return []
        records = list(records_in(data.records or b""))  # type: ignore[arg-type]  # decoded: always a view
        found = {record.offset: record.value for record in records}
        # An older leader may still answer reads, but not below the offset that it has committed itself.
        for offset, value in acknowledged.items():
            if offset < data.high_watermark and found.get(offset) != value:
                text = f"{self.name} at {offset}: {value!r} was acknowledged, {found.get(offset)!r} is there"
                raise Violation("NoAckedLoss", text, self.partition)
        return records


class CompactedTopic(SpecialTopic):
    """A compacted topic. `LatestValueStays`: the last acknowledged value of each key is there, or a later one."""

    name = "latest"
    config = MappingProxyType(
        {
            "cleanup.policy": "compact",
            "segment.ms": "1000",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "3000",
        }
    )

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._acknowledged: dict[bytes, tuple[int, bytes | None]] = {}
        """Offset and value of the last acknowledged record of each key; None: the key was deleted."""
        self._unknown: dict[bytes, dict[bytes | None, None]] = {}
        """The values of writes of unknown outcome, by key. They may arrive late."""

    async def run(self, until_s: float) -> None:
        await self.create(until_s)
        client, number = self._client, 0
        while self._now_s() < until_s:
            identity = await self._call(client, partial(new_producer, client.cluster), until_s)
            if identity is None:
                return
            sequence = 0
            while self._now_s() < until_s:
                key = self._rng.choice(KEYS)
                value = None if self._rng.random() < 0.1 else b"%d" % number
                number += 1
                if not await self._write(key, value, (*identity, sequence)):
                    break
                sequence += 1
                await client.sleep(self._rng.choice((0.0, 0.02, 0.2)))

    async def _write(self, key: bytes, value: bytes | None, producer: tuple[int, int, int]) -> bool:
        now_ms = int(self._now_s() * 1000)
        batch = encode_batch(
            [Record(key=key, value=value, timestamp=now_ms)],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
        produce = operations.produce(self._client.cluster, BACKOFF, {self.partition: batch}, -1, 5_000)
        try:
            done = await self._client.run(produce, CALL_S)
        except (GaveUp, ApiError) as error:
            if isinstance(error, ApiError) and error.code not in (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.UNKNOWN_TOPIC_ID,
            ):
                raise Violation("NoFinalError", f"produce to {self.partition}: {error}", self.partition) from error
            self._unknown.setdefault(key, {})[value] = None
            return False
        self._acknowledged[key] = done[self.partition].base_offset, value
        self._ledger.coverage["records of the compacted topic"] += 1
        return True

    async def check(self) -> None:
        found: dict[bytes, tuple[int, bytes | None]] = {}
        count = 0
        for record in await self._read_all():
            found[bytes(record.key or b"")] = record.offset, record.value
            count += 1
        self._ledger.coverage["records that compaction has left"] += count
        for key, (offset, value) in self._acknowledged.items():
            offset_there, value_there = found.get(key, (-1, None))
            if value is None and offset_there < 0:
                continue  # the deletion itself was removed after a time
            is_same = (offset_there, value_there) == (offset, value)
            if not is_same and not (offset_there > offset and value_there in self._unknown.get(key, {})):
                text = f"{self.name} has {value_there!r} of {key!r} at {offset_there}, it was {value!r} at {offset}"
                raise Violation("LatestValueStays", text, self.partition)


class UncleanTopic(SpecialTopic):
    """A topic with `unclean.leader.election.enable`.

    `OnlyUncleanLoss`: an acknowledged record is lost only if a leader was elected out of the ISR that did not have it.
    """

    name = "unclean"
    config = MappingProxyType({"unclean.leader.election.enable": "true", "min.insync.replicas": "1"})

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.acknowledged: dict[int, bytes] = {}
        """The acknowledged records that must be there, by offset."""
        self.is_on_leader: Callable[[TopicPartition, int, bytes], bool] = lambda _partition, _offset, _value: True
        """Returns whether the leader that the journal names has this record."""

    async def run(self, until_s: float) -> None:
        await self.create(until_s)
        number = 0
        while self._now_s() < until_s:
            value = b"%d" % number
            number += 1
            batch = encode_batch([Record(value=value)])
            produce = operations.produce(self._client.cluster, BACKOFF, {self.partition: batch}, -1, 3_000)
            try:
                done = await self._client.run(produce, CALL_S)
            except (ApiError, GaveUp):
                continue
            offset = done[self.partition].base_offset
            if self.is_on_leader(self.partition, offset, value):
                self.acknowledged[offset] = value
                self._ledger.coverage["records of the unclean topic"] += 1
            else:  # a leader that the controller has replaced without asking it
                self._ledger.coverage["records of replaced leaders"] += 1
            await self._client.sleep(self._rng.choice((0.0, 0.02, 0.2)))

    def unclean_election(self, partition: TopicPartition, has_record: Callable[[int, bytes], bool]) -> None:
        """A leader was elected out of the ISR. The records that it does not have are lost."""
        if partition != self.partition:
            return
        lost = [offset for offset, value in self.acknowledged.items() if not has_record(offset, value)]
        self._ledger.coverage["records lost by unclean elections"] += len(lost)
        for offset in lost:
            del self.acknowledged[offset]

    async def check(self) -> None:
        found = {record.offset: record.value for record in await self._read_all()}
        for offset, value in self.acknowledged.items():
            if found.get(offset) != value:
                text = f"{self.name} at {offset}: {value!r} was acknowledged, {found.get(offset)!r} is there"
                raise Violation("OnlyUncleanLoss", text, self.partition)


TOPICS: dict[str, type[SpecialTopic]] = {topic.name: topic for topic in (RecreatedTopic, CompactedTopic, UncleanTopic)}
