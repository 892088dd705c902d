"""Several metadata services on one shared store in a simulated world, without whole brokers; and their faults."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from zlib import crc32

from metadata_harness.controlled import Controller
from tidelog.config.broker_config import BrokerConfig, Setting
from tidelog.config.endpoints import Endpoint
from tidelog.metadata import records
from tidelog.metadata.image import MetadataImage, snapshot
from tidelog.metadata.publisher import MetadataCache
from tidelog.metadata.service import MetadataService
from tidelog.metadata.store import AppendUnknown, Lease, Snapshot, Store, StoredEntry, StoredJournal
from tidelog.simulation.controller_network import ControllerNetwork
from tidelog.simulation.shared_store import HOST as STORE_HOST
from tidelog.simulation.shared_store import SharedStore
from tidelog.simulation.world import SimHost, World, simulated

T = TypeVar("T")

LEASE_MS = 3000
PORT = 9092


class FaultyStore:
    """The store of one process, whose calls can be held, and whose answers to appends can be lost."""

    def __init__(self, store: Store, host: SimHost) -> None:
        self._store = store
        self._tasks = host.runtime.tasks
        self._released: asyncio.Future[None] | None = None
        self.lose_next: str | None = None
        """The fate of the next append: "done", "not done" or "done later". In each case its answer is lost."""
        self.discards = 0
        """Number of calls of `discard_history`."""
        self.after_append: Callable[[], Awaitable[None]] | None = None
        """Called once, when the next append is stored, before its answer arrives."""

    def hold(self) -> None:
        """Hold all calls and answers until `go_on`, as if the process was paused after it had sent them."""
        self._released = self._released or self._tasks.future()

    def go_on(self) -> None:
        if self._released is not None:
            self._released.set_result(None)
            self._released = None

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        if self._released is not None:
            await asyncio.shield(self._released)
        try:
            return await call()
        finally:
            if self._released is not None:
                await asyncio.shield(self._released)

    @property
    def entry_bytes_max(self) -> int | None:
        return self._store.entry_bytes_max

    async def append(self, position: int, data: bytes, lease: Lease, writer: str = "", number: int = 0) -> None:
        entry = position, data, lease, writer, number
        fate, self.lose_next = self.lose_next, None
        if fate == "done later":
            self._tasks.spawn(self._append_later(*entry), name="late-append")
        if fate not in ("done later", "not done"):
            await self._call(lambda: self._store.append(*entry))
        after, self.after_append = self.after_append, None
        if after is not None:
            await after()
        if fate is not None:
            raise AppendUnknown("the answer is lost")

    async def _append_later(self, *entry: Any) -> None:
        await self._tasks.sleep(0.15)
        try:
            await self._store.append(*entry)
        except Exception:
            return  # as a message whose answer nobody waits for

    async def inspect(self) -> StoredJournal | None:
        return await self._call(self._store.inspect)

    async def read(self, start: int, limit: int = 1000) -> list[StoredEntry]:
        return await self._call(lambda: self._store.read(start, limit))

    async def wait(self, position: int) -> None:
        await self._call(lambda: self._store.wait(position))

    async def snapshot(self) -> Snapshot | None:
        return await self._call(self._store.snapshot)

    async def save_snapshot(self, stored_snapshot: Snapshot) -> None:
        await self._call(lambda: self._store.save_snapshot(stored_snapshot))

    async def acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        return await self._call(lambda: self._store.acquire(name, holder, ttl_ms))

    async def renew(self, lease: Lease, ttl_ms: int) -> None:
        await self._call(lambda: self._store.renew(lease, ttl_ms))

    async def release(self, lease: Lease) -> None:
        await self._call(lambda: self._store.release(lease))

    async def held_leases(self, prefix: str) -> list[Lease]:
        return await self._call(lambda: self._store.held_leases(prefix))

    async def discard_history(self) -> None:
        self.discards += 1
        await self._call(self._store.discard_history)

    async def wait_for_write(self, limit_s: float) -> None:
        await self._store.wait_for_write(limit_s)

    async def close(self) -> None:
        await self._store.close()


class PartitionsDouble:
    """Stands for the partitions of one broker: it has a role for each replica that the image gives to the broker, and
    opens the log of each of them.
    """

    def __init__(self, node: "SharedNode") -> None:
        self._node = node
        self.roles: dict[tuple[str, int], tuple[bool, int]] = {}
        """Whether this broker leads the partition, and in which epoch."""
        self.opened: dict[tuple[str, int], None] = {}
        self.open_s = 0.0
        """Time that the work on files takes, in seconds."""

    def change_roles(self, old: MetadataImage, new: MetadataImage) -> None:
        self.roles = {
            (topic.name, index): (state.leader == self._node.node_id, state.leader_epoch)
            for topic in new.topics.values()
            for index, state in enumerate(topic.partitions)
            if self._node.node_id in state.replicas
        }

    async def apply(self, old: MetadataImage, new: MetadataImage) -> None:
        if self.open_s:
            await self._node.host.runtime.tasks.sleep(self.open_s)
        self.opened = dict.fromkeys(self.roles)
        self._node.cluster.note_image(new)


class SharedNode:
    """The metadata of one broker, which can be started, stopped and killed."""

    def __init__(self, cluster: "SharedCluster", node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.host = cluster.world.host(f"broker-{node_id}")
        self.failures: list[str] = []
        """The reasons for which the broker has to stop."""
        self.metadata: MetadataService
        self.incarnation = ""
        """The last run that was registered. The next one knows that it has ended, as from its data directory."""
        self.store: FaultyStore
        self.cache = MetadataCache()
        self.partitions = PartitionsDouble(self)
        self.controller: Controller

    @property
    def image(self) -> MetadataImage:
        return self.cache.image

    @property
    def is_controller(self) -> bool:
        return self.host.running and self.metadata.controller.is_active

    async def start(self, cluster_id: str | None = None) -> None:
        runtime = self.host.runtime
        settings = {"node.id": str(self.node_id), "broker.session.timeout.ms": str(self.cluster.lease_ms)}
        config = BrokerConfig({name: Setting(text, "the test") for name, text in settings.items()})
        self.store = FaultyStore(self.cluster.store.handle(self.host.name, runtime), self.host)
        self.cache = MetadataCache()
        self.partitions = PartitionsDouble(self)
        metadata = self.metadata = MetadataService(
            self.store,
            config,
            runtime,
            self.cache,
            lease_ms=self.cluster.lease_ms,
            channel=self.cluster.controllers.channel(self.host.name, runtime),
        )
        self.metadata.on_failed = self.failures.append
        self.controller = Controller(self.metadata, self.node_id)
        self.cluster.controllers.add(self.node_id, self.host, lambda: metadata.controller)
        await runtime.tasks.spawn(self._start(cluster_id), name="start")

    async def _start(self, cluster_id: str | None) -> None:
        await self.metadata.start(cluster_id, previous_incarnation=self.incarnation)
        registration = self.metadata.registration([Endpoint("PLAINTEXT", self.host.address, PORT)])
        await self.metadata.register(registration)
        self.incarnation = registration.incarnation
        await self.metadata.subscribe(self.partitions.apply, self.partitions.change_roles)
        await self.metadata.begin_to_serve()

    async def stop(self) -> None:
        await self.host.runtime.tasks.spawn(self.metadata.stop(), name="stop")
        self.host.kill()

    def cut_off(self) -> None:
        """Cut the link between this broker and the store."""
        self.cluster.world.network.partition(self.host.name, STORE_HOST)

    async def followed(self, position: int) -> None:
        """Wait until this broker has processed the journal's entries before `position`."""
        await self.host.runtime.tasks.spawn(self.metadata.publisher.wait_for(position), name="followed")


class SharedCluster:
    """Nodes with the numbers 1, 2, ..., and the store that they share."""

    def __init__(self, world: World, nodes: int, lease_ms: int = LEASE_MS) -> None:
        self.world = world
        self.lease_ms = lease_ms
        self.store = SharedStore(world)
        self.controllers = ControllerNetwork(world)
        self.nodes = [SharedNode(self, number + 1) for number in range(nodes)]
        self.image_crcs: dict[int, int] = {}
        """CRC-32 of the image after the entries before each position."""

    async def start(self) -> "SharedCluster":
        await asyncio.gather(*(node.start() for node in self.nodes))
        return self

    def note_image(self, image: MetadataImage) -> None:
        """Check that every broker has the same image at the same position of the journal."""
        crc = crc32(records.encode(image.controller_epoch, snapshot(image)))
        assert self.image_crcs.setdefault(image.position, crc) == crc, f"two images at position {image.position}"

    @property
    def controllers_now(self) -> list[SharedNode]:
        return [node for node in self.nodes if node.is_controller]

    async def controller(self) -> SharedNode:
        """Wait until a broker is the controller, and return it."""
        while not self.controllers_now:
            await asyncio.sleep(0.05)
        (node,) = self.controllers_now
        return node

    async def all_followed(self) -> None:
        """Wait until every running node has processed the whole journal of the store."""
        running = [node for node in self.nodes if node.host.running]
        while any(node.image.position < self.store.next_position for node in running):
            await asyncio.sleep(0.05)


def run_shared(
    scenario: Callable[[SharedCluster], Awaitable[None]], *, nodes: int, seed: int = 1, virtual_s: float = 600
) -> None:
    """Run one scenario on a started cluster."""

    async def started(world: World) -> Any:
        await scenario(await SharedCluster(world, nodes).start())

    with simulated(seed) as world:
        world.run(started(world), virtual_s=virtual_s)
