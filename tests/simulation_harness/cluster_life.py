"""The life of a simulated cluster (one run): clients write, read and commit while faults happen, and all results are
checked.
"""

import asyncio
import gc
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

from simulation_harness.cluster_admin import Administrator
from simulation_harness.cluster_checks import CHECK_INTERVAL_S, ClusterChecks
from simulation_harness.cluster_faults import Faults, without_lost_writes
from simulation_harness.cluster_ledger import UNORDERED, Batch, Ledger, Violation
from simulation_harness.cluster_members import GroupLedger, GroupMember
from simulation_harness.cluster_profiles import IDEMPOTENT, Producer, Profile
from simulation_harness.cluster_requests import create_topic, new_producer
from simulation_harness.rack_reader import RackFetch, RackReader
from simulation_harness.special_topics import TOPICS, SpecialTopic, UncleanTopic
from simulation_harness.topic_changes import TopicChanges
from simulation_harness.transaction_life import TransactionLife, few_epochs, observed_markers
from tidelog.client import groups, operations
from tidelog.client.errors import GaveUp
from tidelog.client.operations import FetchLimits, Operation
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster import SimCluster
from tidelog.simulation.cluster_client import BACKOFF, ClusterClient
from tidelog.simulation.world import World, simulated
from tidelog.wire.batches import Codec
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.primitives import Buffer
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

T = TypeVar("T")

GROUP = "billing"
PRODUCERS, READERS, TOPICS_MAX = 3, 2, 4
CALL_S = 30.0
RECOVERY_S = 60.0
"""Time, in virtual seconds after the end of the last fault, within which every partition must accept requests again."""
TRACE_LINES = 60
COMPACTED_CHECK_EVERY = 20
"""The replicas of compacted topics are compared at every 20th check, since all their records are decoded."""
NOT_KNOWN_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
"""Errors of a broker that has not processed the creation of a topic. The client retries them for a short time only,
since it does not know whether the topic exists. Here it exists."""
_MAIN_EVENTS = re.compile(
    r" (?:host\.|fault |start failed|stop failed|net\.partition|net\.unblock|store\.(?:acquire|expire))"
)
"""Events that are in the trace of every partition."""


class Outcome(NamedTuple):
    seed: int
    failure: str | None
    """The violation; None if no invariant was violated."""
    trace: str
    """The selected lines of the trace; "" if no invariant was violated and no trace was requested."""
    virtual_s: float
    coverage: dict[str, int]


def run_seed(seed: int, profile: Profile, *, brokers: int, minutes: float, trace: str | None = None) -> Outcome:
    """Simulate one life. The same arguments result in the same trace, byte for byte.

    `trace` selects the lines of the trace that the result contains: "all", a partition ("topic0-1"), or a host
    ("broker-2"). With None it contains, if an invariant was violated, the last lines of the affected partition.
    """
    with (
        _rare_collection(),
        simulated(seed) as world,
        observed_markers(ledger := Ledger(world.trace.note)),
        few_epochs(world.rng("epochs")),
    ):
        error: Exception | None = None
        try:
            world.run(_live(world, profile, ledger, brokers, minutes * 60), virtual_s=minutes * 60 + 600)
        except Exception as raised:
            error = raised
        return Outcome(
            seed,
            None if error is None else f"{type(error).__name__}: {error}",
            _selected_trace(world, error, trace),
            world.loop.time(),
            dict(ledger.coverage),
        )


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Let the garbage collector run rarely. It would take a tenth of the time, and finds little in a short life."""
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _selected_trace(world: World, error: Exception | None, selection: str | None) -> str:
    if selection == "all":
        return world.trace.text()
    lines = world.trace.lines if error is not None or selection is not None else []
    if selection is not None and selection in world.hosts:
        return "\n".join(line for line in lines if line.split()[1] == selection)
    partition = selection or (str(error.partition) if isinstance(error, Violation) and error.partition else None)
    if partition is not None:
        names_it = re.compile(rf"(?<![\w.-]){re.escape(partition)}(?![\w-])")
        lines = [line for line in lines if names_it.search(line) or _MAIN_EVENTS.search(line)]
    return "\n".join(lines if selection else lines[-TRACE_LINES:])


async def _live(world: World, profile: Profile, ledger: Ledger, brokers: int, seconds: float) -> None:
    cluster = SimCluster(world, brokers, dict(profile.settings))
    checks = ClusterChecks(cluster, ledger)
    await cluster.start()
    life = _Life(cluster, ledger, profile)
    await life.add_topic(life.admin)
    administrator = Administrator(
        cluster.client("administrator"), world.rng("administrator"), ledger.coverage, world.trace.note, brokers
    )
    if profile.has_administrator and world.rng("features").random() < 0.25:
        await administrator.end_eligible_leader_replicas()
        profile = without_lost_writes(profile)
    transactions = TransactionLife(cluster, ledger, life.call, profile.transactions) if profile.transactions else None
    if transactions is not None:
        await transactions.create_topics(life.admin)
        life.client_hosts += transactions.client_hosts
    faults = Faults(cluster, profile, ledger, checks, life.client_hosts)
    until_s = world.loop.time() + seconds
    tasks = [
        *(
            asyncio.ensure_future(life.produce(number, until_s))
            for number in range(PRODUCERS if profile.producers else 0)
        ),
        *(asyncio.ensure_future(life.read(number, until_s)) for number in range(READERS)),
        asyncio.ensure_future(life.commit(until_s)),
        *(asyncio.ensure_future(life.consume(number, until_s)) for number in range(profile.members)),
        asyncio.ensure_future(faults.run(until_s)),
    ]
    if profile.changes_topics:
        changes = TopicChanges(cluster.client("changer"), world.rng("changer"), ledger, world.trace.note)
        tasks.append(asyncio.ensure_future(changes.run(until_s, world.loop.time)))
        tasks += [asyncio.ensure_future(life.read_in_rack(f"rack-{node.node_id}", until_s)) for node in cluster.nodes]
    if profile.has_administrator:
        others = transactions.moved_partitions if transactions is not None else []
        moved = administrator.run(until_s, world.loop.time, lambda: [*ledger.partitions, *others])
        tasks.append(asyncio.ensure_future(moved))
    special = [life.special_topic(name, checks) for name in profile.special_topics]
    tasks += [asyncio.ensure_future(topic.run(until_s)) for topic in special]
    if transactions is not None:
        tasks += [asyncio.ensure_future(task) for task in transactions.tasks(until_s)]
    background = [
        asyncio.ensure_future(_check_until_cancelled(checks)),
        asyncio.ensure_future(faults.supervise()),
    ]
    try:
        await _gather(tasks, background)
        last = [
            asyncio.ensure_future(life.check_everything()),
            asyncio.ensure_future(_converged(checks)),
            *(asyncio.ensure_future(topic.check()) for topic in special),
            *([asyncio.ensure_future(transactions.check())] if transactions is not None else []),
        ]
        tasks += last
        try:
            await asyncio.wait_for(_gather(last, background), RECOVERY_S)
        except TimeoutError:
            reason = checks.not_converged() or (transactions and transactions.waits_for) or "a client is not served"
            raise Violation("Liveness", f"{RECOVERY_S:g} s after the last fault: {reason}") from None
        checks.check()
        checks.check_compacted()
    finally:
        for task in (*tasks, *background):
            task.cancel()


async def _gather(tasks: "Sequence[asyncio.Task[None]]", background: "Sequence[asyncio.Task[None]]") -> None:
    """Wait for all `tasks`. Raises the first failure of a task, also of those in the background."""
    pending = {*tasks, *background}
    while not pending <= {*background}:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in sorted(done, key=asyncio.Task.get_name):
            task.result()


async def _check_until_cancelled(checks: ClusterChecks) -> None:
    count = 0
    while True:
        checks.check()
        count += 1
        if count % COMPACTED_CHECK_EVERY == 0:
            checks.check_compacted()
        await asyncio.sleep(CHECK_INTERVAL_S)


async def _converged(checks: ClusterChecks) -> None:
    while checks.not_converged() is not None:
        await asyncio.sleep(CHECK_INTERVAL_S)


class _Life:
    """The clients, and the positions that they have reached."""

    def __init__(self, cluster: SimCluster, ledger: Ledger, profile: Profile) -> None:
        self._cluster = cluster
        self._producers = profile.producers
        self._topic_configs = profile.topic_configs
        self._world = world = cluster.world
        self._ledger = ledger
        self.admin = cluster.client("admin")
        self.client_hosts = [
            *(f"producer-{n}" for n in range(PRODUCERS)),
            *(f"reader-{n}" for n in range(READERS)),
            "committer",
            *(f"member-{n}" for n in range(profile.members)),
        ]
        group = GroupLedger(ledger.coverage, world.trace.note)
        self._members = [
            GroupMember(cluster.client(f"member-{n}"), group, world.loop.time, ledger.topics)
            for n in range(profile.members)
        ]
        self._batches: dict[tuple[TopicPartition, int, int], Batch] = {}
        """Batches that were decoded, by partition, base offset and checksum."""
        self._positions: dict[TopicPartition, int] = {}
        """Next offset of the first reader in each partition."""

    async def call(self, client: ClusterClient, operation: Callable[[], Operation[T]], until_s: float) -> T | None:
        """Run an operation until it succeeds, or return None at the end of the life."""
        while self._world.loop.time() < until_s:
            before = client.retries
            try:
                return await client.run(operation(), CALL_S)
            except GaveUp:
                self._ledger.coverage["calls given up"] += 1
            except ApiError as error:
                if error.code not in NOT_KNOWN_YET:
                    raise
                self._ledger.coverage["topics not known to a broker"] += 1
            finally:
                self._ledger.coverage["retries"] += client.retries - before
        return None

    async def add_topic(self, client: ClusterClient) -> None:
        rng = self._world.rng(f"topic {len(self._ledger.topics)}")
        name, partitions = f"topic{len(self._ledger.topics)}", rng.choice((1, 2, 3))
        configs = self._topic_configs
        config = configs[0] if len(configs) == 1 else rng.choice(configs)
        if "retention.ms" in config:
            self._ledger.expiring_topics[name] = None
        await self.call(client, partial(create_topic, client.cluster, name, partitions, config), float("inf"))
        self._ledger.topics[name] = partitions

    async def produce(self, number: int, until_s: float) -> None:
        client = self._cluster.client(f"producer-{number}")
        rng = self._world.rng(f"producer {number}")
        generation = 0
        while self._world.loop.time() < until_s:
            kind = self._producers[0] if len(self._producers) == 1 else rng.choice(self._producers)
            writer = _Writer(f"{number}.{generation}", client, self._ledger, rng, kind)
            generation += 1
            identity = await self.call(client, partial(new_producer, client.cluster), until_s)
            if identity is None:
                return
            # A batch of unknown outcome may arrive late. So this writer sends nothing after it.
            while self._world.loop.time() < until_s and await writer.write(identity, self._clock_ms()):
                if number == 0 and len(self._ledger.topics) < TOPICS_MAX and rng.random() < 0.02:
                    await self.add_topic(client)
                await client.sleep(rng.choice((0.0, 0.01, 0.1, 0.5)))

    async def read(self, number: int, until_s: float) -> None:
        """Read all partitions from their beginnings. All readers except the first one sometimes start again from the
        beginning.
        """
        client = self._cluster.client(f"reader-{number}")
        rng = self._world.rng(f"reader {number}")
        positions: dict[TopicPartition, int] = self._positions if number == 0 else {}
        while self._world.loop.time() < until_s:
            partition = rng.choice(self._ledger.partitions)
            if number and rng.random() < 0.02:
                positions.clear()
            start = positions.get(partition, 0)
            batches = await self._fetch(client, f"reader-{number}", partition, start, until_s)
            if batches:
                positions[partition] = batches[-1].last_offset + 1
            await client.sleep(rng.choice((0.0, 0.0, 0.05)))

    def special_topic(self, name: str, checks: ClusterChecks) -> SpecialTopic:
        client = self._cluster.client(f"client-{name}")
        topic = TOPICS[name](client, self._world.rng(name), self._ledger, self.call, self._world.loop.time)
        if isinstance(topic, UncleanTopic):
            topic.is_on_leader = checks.is_on_leader
            checks.on_unclean_election = topic.unclean_election
        return topic

    async def read_in_rack(self, rack: str, until_s: float) -> None:
        """Read all partitions, from followers where possible."""
        name = f"reader-{rack}"
        client, rng, ledger = self._cluster.client(name), self._world.rng(name), self._ledger

        def add(fetch: RackFetch) -> int | None:
            data = fetch.data
            batches = self._decode(fetch.partition, data.records or b"")  # type: ignore[arg-type]  # always a view
            if fetch.is_follower:
                ledger.coverage["records read from followers"] += sum(len(batch.records) for batch in batches)
            ledger.read(fetch.reader, fetch.partition, fetch.leader_epoch, data.high_watermark, batches)
            return batches[-1].last_offset + 1 if batches else None

        reader = RackReader(client, rng, ledger, rack, lambda: ledger.partitions, add, self._earliest)
        await reader.run(until_s, self._world.loop.time)

    async def consume(self, number: int, until_s: float) -> None:
        """Read and commit as a member of a group."""
        name = f"member-{number}"

        async def read(partition: TopicPartition, offset: int) -> int:
            batches = await self._fetch(self._members[number].client, name, partition, offset, until_s)
            return batches[-1].last_offset + 1 if batches else offset

        await self._members[number].run(until_s, read)

    async def _fetch(
        self, client: ClusterClient, reader: str, partition: TopicPartition, start: int, until_s: float
    ) -> list[Batch]:
        limits = FetchLimits(max_wait_ms=200, max_bytes=1 << 20, partition_max_bytes=1 << 16)
        fetch = partial(operations.fetch, client.cluster, BACKOFF, partition, start, limits)
        try:
            fetched = await self.call(client, fetch, until_s)
        except ApiError as error:
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                earliest = await self._earliest(client, partition, until_s)
                if earliest is None:
                    return []  # the life has ended
                if start < earliest:
                    self._ledger.coverage["reads of deleted records"] += 1
                    return await self._fetch(client, reader, partition, earliest, until_s)
                if self._ledger.may_lack_records(partition):
                    self._ledger.coverage["starts of logs that went back"] += 1
                    await client.sleep(0.1)  # a new leader does not know of the deletion yet
                    return []
            raise Violation("NoFinalError", f"fetch of {partition} at {start}: {error}", partition) from error
        if fetched is None:
            return []
        batches = self._decode(partition, fetched.records)
        leader = client.cluster.leader(partition)
        epoch = leader[1].epoch if leader is not None else -1
        self._ledger.read(reader, partition, epoch, fetched.high_watermark, batches)
        return batches

    async def _earliest(self, client: ClusterClient, partition: TopicPartition, until_s: float) -> int | None:
        """Return the log start offset; None if the life has ended."""
        return await self._offset(client, partition, operations.EARLIEST, until_s)

    async def _offset(self, client: ClusterClient, partition: TopicPartition, time: int, until_s: float) -> int | None:
        """Return the offset of `time`, EARLIEST or LATEST; None if the life has ended."""
        ask = partial(operations.list_offsets, client.cluster, BACKOFF, {partition: time}, 0)
        listed = await self.call(client, ask, until_s)
        return None if listed is None else listed[partition].offset

    def _decode(self, partition: TopicPartition, data: Buffer) -> list[Batch]:
        """Decode all batches. A batch that a client has decoded before is found by its checksum."""
        batches = []
        for header in batches_in(data):
            if not header.crc_ok():
                text = f"{partition} at {header.base_offset}: the checksum of the batch is wrong"
                raise Violation("WholeBatches", text, partition)
            key = partition, header.base_offset, header.crc
            batch = self._batches.get(key)
            if batch is None:
                decoded = decode_records(data, header.position)
                batch = self._batches[key] = Batch(header.base_offset, header.last_offset, header.crc, decoded)
            batches.append(batch)
        return batches

    async def commit(self, until_s: float) -> None:
        """Commit the positions of the first reader, and read the committed offsets."""
        client = self._cluster.client("committer")
        rng = self._world.rng("committer")
        while self._world.loop.time() < until_s:
            await client.sleep(rng.uniform(0.1, 2.0))
            if not self._positions:
                continue
            partition = rng.choice(sorted(self._positions))
            if rng.random() < 0.1 and partition in self._ledger.committed:
                await self._delete_commit(client, partition, until_s)
            else:
                await self._commit(client, partition, self._positions[partition], until_s)
            if rng.random() < 0.3:
                await self._check_commits(client, until_s)

    async def _commit(self, client: ClusterClient, partition: TopicPartition, offset: int, until_s: float) -> None:
        self._ledger.attempt_commit(partition, offset)
        retries = client.retries
        commit = partial(groups.commit, client.cluster, BACKOFF, GROUP, {partition: offset})
        done = await self.call(client, commit, until_s)
        if done is None or done[partition] != offset:
            self._ledger.committed[partition].give_up(offset)
            if done is not None and not getattr(done[partition], "retriable", True):
                raise Violation("NoFinalError", f"commit of {partition}: {done[partition]}", partition)
            return
        self._ledger.confirm_commit(partition, offset, repeated=client.retries > retries)

    async def _delete_commit(self, client: ClusterClient, partition: TopicPartition, until_s: float) -> None:
        self._ledger.attempt_commit(partition, None)
        retries = client.retries
        delete = partial(groups.delete_offsets, client.cluster, BACKOFF, GROUP, [partition])
        try:
            done = await self.call(client, delete, until_s)
        except ApiError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:  # the group is empty: its only offset was deleted before
                raise Violation("NoFinalError", f"deletion of the commit of {partition}: {error}", partition) from error
            done = {partition: 0}
        if done is None or done[partition]:
            self._ledger.committed[partition].give_up(None)
        else:
            self._ledger.confirm_commit(partition, None, repeated=client.retries > retries)

    async def _check_commits(self, client: ClusterClient, until_s: float) -> bool:
        """Check the committed offsets. Returns False if the coordinator does not answer for all of them."""
        found = await self.call(client, partial(groups.committed_offsets, client.cluster, BACKOFF, [GROUP]), until_s)
        offsets = None if found is None else found[GROUP]
        if not isinstance(offsets, dict) or not all(isinstance(offset, int) for offset in offsets.values()):
            return False
        self._ledger.check_commits({p: offset for p, offset in offsets.items() if isinstance(offset, int)})
        return True

    async def check_everything(self) -> None:
        """Check, after all faults have ended, that every partition accepts requests and has all acknowledged
        records.
        """
        client = self._cluster.client("checker")
        forever = float("inf")
        generation = 0
        for partition in self._ledger.partitions:
            written = False
            while not written:  # a batch of unknown outcome may arrive late, so its writer sends nothing after it
                writer = _Writer(
                    f"checker.{generation}", client, self._ledger, self._world.rng(f"checker {generation}")
                )
                generation += 1
                identity = await self.call(client, partial(new_producer, client.cluster), forever)
                assert identity is not None
                written = await writer.write(identity, self._clock_ms(), partition)
            position = await self._earliest(client, partition, forever) or 0
            everything: list[Record] = []
            # Even without faults, a leader may be elected meanwhile, for example if a lease was acquired late. Its high
            # watermark may be lower than what the earlier leader has acknowledged, and it states no end until then.
            end = await self._offset(client, partition, operations.LATEST, forever) or 0
            while position < end:
                batches = await self._fetch(client, "checker", partition, position, forever)
                everything += [record for batch in batches for record in batch.records if record.offset >= position]
                if batches:
                    position = batches[-1].last_offset + 1
                else:  # perhaps retention has deleted the records
                    position = max(position, await self._earliest(client, partition, forever) or 0)
            # Retention may have deleted records since the first request.
            start = await self._earliest(client, partition, forever) or 0
            self._ledger.check_log(partition, everything, start)
        while not await self._check_commits(client, forever):
            await client.sleep(0.2)  # Liveness: the caller limits the time
        for member in self._members[:1]:
            await member.check()

    def _clock_ms(self) -> int:
        return self._world.host("admin").clock.now_ms()


class _Writer:
    """A producer. It numbers its records from 0 in each partition."""

    def __init__(
        self, name: str, client: ClusterClient, ledger: Ledger, rng: random.Random, kind: Producer = IDEMPOTENT
    ) -> None:
        self._name = name if kind.is_idempotent else f"{name}{UNORDERED}acks={kind.acks}"
        self._kind = kind
        self._client = client
        self._ledger = ledger
        self._rng = rng
        self._numbers: dict[TopicPartition, int] = {}

    async def write(self, identity: tuple[int, int], now_ms: int, partition: TopicPartition | None = None) -> bool:
        """Write one batch to `partition`, or to a random partition. Returns whether the batch was acknowledged."""
        rng = self._rng
        partition = partition or rng.choice(self._ledger.partitions)
        first = self._numbers.get(partition, 0)
        count = rng.choice((1, 1, 2, 20))
        values = [b"%s:%d:%s" % (self._name.encode(), first + n, bytes(rng.randrange(200))) for n in range(count)]
        producer_id, producer_epoch, sequence = (*identity, first) if self._kind.is_idempotent else (-1, -1, -1)
        batch = encode_batch(
            [Record(key=b"k", value=value, timestamp=now_ms) for value in values],
            codec=rng.choice((Codec.NONE, Codec.NONE, Codec.LZ4)),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
        )
        cluster, acks = self._client.cluster, self._kind.acks
        try:
            done = await self._client.run(operations.produce(cluster, BACKOFF, {partition: batch}, acks, 5_000), CALL_S)
        except GaveUp:
            self._ledger.coverage["batches of unknown fate"] += 1
            return False
        except ApiError as error:
            if error.code in NOT_KNOWN_YET:
                self._ledger.coverage["topics not known to a broker"] += 1
                return False
            raise Violation("NoFinalError", f"produce to {partition}: {error} ({error.code})", partition) from error
        self._numbers[partition] = first + count
        if acks == 1:
            self._ledger.acknowledge_by_leader(count)
        else:
            self._ledger.acknowledge(partition, done[partition].base_offset, values)
        return True
