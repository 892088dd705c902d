"""A simulated cluster: real brokers that share one metadata store. Each runs on its own simulated host. Tests can cause
faults.

with simulated(seed) as world:
    cluster = SimCluster(world, brokers=3)
    world.run(life(cluster))
"""

import asyncio
from typing import Final

from tidelog.broker.broker import BrokerServer
from tidelog.client.cluster import Address
from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.store import Store
from tidelog.runtime.interfaces import Runtime
from tidelog.simulation.cluster_client import ClusterClient
from tidelog.simulation.medium import PowerCutOdds
from tidelog.simulation.shared_store import SharedStore
from tidelog.simulation.world import SimHost, World

PORT: Final = 9092
DATA: Final = "/data"
LEASE_MS: Final = 6000
"""Duration of the leases of a cluster's controller and of its brokers, in milliseconds. If a lease is not renewed for
this time, the controller is replaced or the broker is fenced."""


class SimNode:
    """One broker of the cluster: its host, and its server while it runs."""

    def __init__(self, cluster: "SimCluster", node_id: int) -> None:
        self.node_id = node_id
        self.host: SimHost = cluster.world.host(f"broker-{node_id}")
        self.broker: BrokerServer | None = None
        self._cluster = cluster

    @property
    def address(self) -> Address:
        return Address(self.host.address, PORT)

    @property
    def running(self) -> bool:
        return self.host.running

    async def start(self) -> None:
        """Start a process, and wait until the broker accepts requests. If the broker cannot start, the simulation
        fails.
        """
        self.host.disk.cold_chance = 0.2
        cluster, runtime = self._cluster, self.host.runtime
        if cluster.has_several_brokers:
            broker = BrokerServer(self._config(), runtime, store_factory=self._store, lease_ms=LEASE_MS)
        else:
            broker = BrokerServer(self._config(), runtime, store_factory=self._store)
        self.broker = broker
        await runtime.tasks.spawn(broker.start(), name="start")

    async def stop(self) -> None:
        """Stop the broker cleanly, as SIGTERM does."""
        assert self.broker is not None
        await self.host.runtime.tasks.spawn(self.broker.stop(), name="stop")
        self.kill()

    def kill(self) -> None:
        self.broker = None
        self.host.kill()

    def cut_power(self, odds: PowerCutOdds | None = None) -> None:
        self.broker = None
        self.host.cut_power(odds)

    def _store(self, _path: str, runtime: Runtime) -> Store:
        return self._cluster.store.handle(self.host.name, runtime)

    def _config(self) -> BrokerConfig:
        flags = {
            "node.id": str(self.node_id),
            "log.dirs": DATA,
            "listeners": f"PLAINTEXT://{self.host.address}:{PORT}",
            "offsets.topic.num.partitions": "2",
            "broker.session.timeout.ms": str(LEASE_MS),
        }
        for name, value in self._cluster.settings.items():
            flags[name] = value.replace("{node_id}", str(self.node_id))
        return BrokerConfig.load(None, {}, flags)


class SimCluster:
    """Brokers with the numbers 1, 2, ..., and the store that they share. `settings` maps the name of each setting
    to its value for all brokers; `{node_id}` in a value is replaced by the broker's number.
    """

    def __init__(self, world: World, brokers: int, settings: dict[str, str] | None = None) -> None:
        self.world = world
        self.settings = settings or {}
        self.store = SharedStore(world)
        self.has_several_brokers = brokers > 1
        self.nodes = [SimNode(self, number + 1) for number in range(brokers)]

    @property
    def seeds(self) -> list[Address]:
        return [node.address for node in self.nodes]

    async def start(self) -> None:
        """In parallel, start all brokers that are not running."""
        await asyncio.gather(*(node.start() for node in self.nodes if not node.running))

    def client(self, name: str) -> ClusterClient:
        """Return a new client on its own host. The client and the host are called `name`."""
        host = self.world.host(name)
        return ClusterClient(host.runtime, self.seeds, self.world.rng(f"{name}/client"), name)
