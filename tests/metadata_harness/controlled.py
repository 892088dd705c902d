"""A controller on virtual time with its store on a simulated disk, and the administrative handlers on it."""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import CoroutineType, GeneratorType, SimpleNamespace
from typing import Any, TypeVar, cast

from tidelog.api.registry import TABLE
from tidelog.api.services import Encoded, Peer, RequestContext, Services
from tidelog.config.broker_config import BrokerConfig, Setting
from tidelog.config.endpoints import Endpoint
from tidelog.metadata import link
from tidelog.metadata.alterations import Alteration, AlterationResult
from tidelog.metadata.controller import MorePartitions, NewTopic, TopicChoice, TopicResult
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.producer_ids import ProducerIds
from tidelog.metadata.publisher import MetadataCache
from tidelog.metadata.service import MetadataService
from tidelog.metadata.store import Store
from tidelog.model.steps import run_all
from tidelog.simulation.store import SimStore
from tidelog.simulation.world import SimHost, World, simulated
from tidelog.wire.apis import APIS

T = TypeVar("T")

PORT = 9092
API_KEYS = {info.name: key for key, info in APIS.items()}


class Controller:
    """The requests to a node's controller, as functions that return the value of the answer or raise its error."""

    def __init__(self, metadata: MetadataService, node_id: int) -> None:
        self._node_id = node_id
        self._link = metadata.link
        self.start = metadata.start
        self.stop = metadata.stop
        self.subscribe = metadata.subscribe

    async def create_topics(self, topics: Sequence[NewTopic], **options: Any) -> list[TopicResult]:
        return (await self._link.create_topics(link.CreateTopics(topics, **options))).result()

    async def ensure_topics(self, names: Sequence[str]) -> list[TopicResult]:
        return (await self._link.ensure_topics(link.EnsureTopics(names))).result()

    async def delete_topics(self, choices: Sequence[TopicChoice], **options: Any) -> list[TopicResult]:
        return (await self._link.delete_topics(link.DeleteTopics(choices, **options))).result()

    async def create_partitions(self, requests: Sequence[MorePartitions], **options: Any) -> list[TopicResult]:
        return (await self._link.create_partitions(link.CreatePartitions(requests, **options))).result()

    async def alter_configs(self, alterations: Sequence[Alteration]) -> list[AlterationResult]:
        return (await self._link.alter_configs(link.AlterConfigs(alterations, self._node_id))).result()

    async def allocate_producer_ids(self) -> tuple[int, int]:
        return (await self._link.allocate_producer_ids(link.AllocateProducerIds(self._node_id))).result()


class Node:
    """The metadata part of one run of a broker's process."""

    def __init__(
        self,
        host: SimHost,
        settings: Mapping[str, str],
        wrap: Callable[[Store], Store] = lambda store: store,
        lease_ms: int | None = None,
    ) -> None:
        runtime = host.runtime
        runtime.disk.make_dirs("/data")
        runtime.disk.sync_dir("/")
        self.runtime = runtime
        self.config = BrokerConfig({name: Setting(text, "the test") for name, text in settings.items()})
        self.store = wrap(SimStore("/data/metadata", runtime.clock, runtime.tasks, runtime.disk))
        self.cache = MetadataCache()
        self.metadata = MetadataService(self.store, self.config, runtime, self.cache, lease_ms=lease_ms)
        self.controller = Controller(self.metadata, self.config.node_id)
        self.listener = ""
        """The name of the listener that the client of `call` is connected to."""
        self.offline: set[tuple[str, int]] = set()
        """Partitions whose log is offline."""
        partitions = SimpleNamespace(
            node_id=1,
            is_offline=lambda topic, index: (topic, index) in self.offline,
            may_be_offline=lambda topic: any(topic == name for name, _ in self.offline),
        )
        self.services = Services(
            runtime=runtime,
            config=self.config,
            metadata=self.cache,
            controller=self.metadata.link,
            partitions=cast(Any, partitions),
            groups=cast(Any, None),
            transactions=cast(Any, None),
            transaction_guard=cast(Any, None),
            producer_ids=ProducerIds(self.metadata.link, self.config.node_id),
            fetch_sessions=cast(Any, None),
            quotas=cast(Any, None),
            connection_quotas=cast(Any, None),
        )

    @property
    def image(self) -> MetadataImage:
        return self.cache.image

    async def started(self) -> "Node":
        await self.metadata.start()
        await self.metadata.register(self.metadata.registration([Endpoint("PLAINTEXT", "127.0.0.1", PORT)]))
        return self

    async def call(self, api: str, version: int, **fields: Any) -> Any:
        """Return the answer to one request. Both are encoded and decoded as on the wire."""
        key = API_KEYS[api]
        handle = import_module(f"tidelog.api.{TABLE[key].module}").handle
        messages = import_module(f"tidelog.wire.messages.{APIS[key].module}")
        data = getattr(messages, f"{api}Request")(**fields).encode(version)
        request, _ = getattr(messages, f"{api}Request").decode(data, 0, version)
        peer = Peer("127.0.0.1", 50000, "127.0.0.1", PORT, self.listener)
        answer = handle(self.services, RequestContext(key, version, 1, "test", peer), request)
        while isinstance(answer, GeneratorType | CoroutineType):
            answer = run_all(answer) if isinstance(answer, GeneratorType) else await answer
        encoded = b"".join(answer.pieces) if isinstance(answer, Encoded) else answer.encode(version)
        decoded, end = getattr(messages, f"{api}Response").decode(encoded, 0, version)
        assert end == len(encoded)
        return decoded


@contextmanager
def cluster(seed: int = 1) -> Iterator[World]:
    with simulated(seed) as world:
        yield world


def run(scenario: Callable[[SimHost], Coroutine[Any, Any, T]], seed: int = 1) -> T:
    """Run one scenario on one host."""
    with simulated(seed) as world:
        return world.run(scenario(world.host("a")))


def with_node(scenario: Callable[[Node], Coroutine[Any, Any, T]], seed: int = 1, **settings: str) -> T:
    """Run one scenario on a started node with these settings (`num_partitions="3"`)."""

    async def on(host: SimHost) -> T:
        given = {name.replace("_", "."): text for name, text in settings.items()}
        return await scenario(await Node(host, given).started())

    return run(on, seed)
