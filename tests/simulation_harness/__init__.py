"""Run the real broker on simulated hosts, and check that it keeps its promises to clients."""

from tidelog.broker.broker import BrokerServer
from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.store import Store
from tidelog.runtime.interfaces import Runtime
from tidelog.simulation.client import SimClient
from tidelog.simulation.store import SimStore
from tidelog.simulation.world import SimHost

PORT = 9092


def store(path: str, runtime: Runtime) -> Store:
    return SimStore(path, runtime.clock, runtime.tasks, runtime.disk)


def config(host: SimHost, **settings: object) -> BrokerConfig:
    """Return the configuration of a broker on this host. Settings are keyword arguments, with `_` in place of `.`."""
    flags = {
        "log.dirs": "/data",
        "listeners": f"PLAINTEXT://{host.address}:{PORT}",
        "offsets.topic.num.partitions": "2",
        "group.initial.rebalance.delay.ms": "100",
    }
    flags.update({name.replace("_", "."): str(value) for name, value in settings.items()})
    return BrokerConfig.load(None, {}, flags)


async def boot(host: SimHost, **settings: object) -> BrokerServer:
    """Start a broker in a new process of this host. Returns when the broker accepts requests."""
    broker = BrokerServer(config(host, **settings), host.runtime, store_factory=store)
    await host.runtime.tasks.spawn(broker.start(), name="start")
    return broker


async def connect(client: SimHost, broker: SimHost) -> SimClient:
    return await SimClient.connect(client.runtime, broker.address, PORT)
