"""The groups of one broker on virtual time: real handlers and coordinators, logs in memory."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import CoroutineType, GeneratorType, SimpleNamespace
from typing import Any, cast

from group_harness.memory import LoopClock, MemoryPartition
from tidelog.api.pending import Pending
from tidelog.api.services import Peer, RequestContext, Services
from tidelog.config.broker_config import BrokerConfig, Setting
from tidelog.config.endpoints import Endpoint
from tidelog.coordinator.groups import GroupCoordinators
from tidelog.coordinator.transactions import TransactionCoordinators
from tidelog.metadata.controller import TopicResult
from tidelog.metadata.image import CONSUMER_OFFSETS, BrokerRegistration, MetadataImage, TopicImage
from tidelog.metadata.link import Answer, EnsureTopics
from tidelog.metadata.publisher import MetadataCache
from tidelog.metadata.records import PartitionState
from tidelog.model.ids import TopicId
from tidelog.model.steps import run_all
from tidelog.runtime.tasks import LoopTasks
from tidelog.runtime.turns import Turns
from tidelog.simulation.loop import SimLoop
from tidelog.wire.apis import APIS
from tidelog.wire.errors import ErrorCode

NODE_ID = 1
API_KEYS = {info.name: key for key, info in APIS.items()}


class CountingRandom:
    """Random bytes that differ at each call and are the same in every run."""

    def __init__(self) -> None:
        self._count = 0

    def randbytes(self, n: int) -> bytes:
        self._count += 1
        return self._count.to_bytes(n, "big")


class FakePartitions:
    """The broker's partitions by topic and index."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, int], MemoryPartition] = {}
        self._watchers: dict[str, Callable[[Any], None]] = {}

    def watch_roles(self, topic: str, watcher: Callable[[Any], None]) -> None:
        self._watchers[topic] = watcher

    def change_roles(self, image: MetadataImage) -> None:
        """Make the partitions that are not there yet, and give each the role that the image says."""
        for name, watcher in self._watchers.items():
            topic = image.topics.get(name)
            for index in range(0 if topic is None else len(topic.partitions)):
                self.table.setdefault((name, index), MemoryPartition(name, index, leads=False))
            for (other, index), partition in self.table.items():
                if other == name:
                    state = topic.partitions[index] if topic is not None else None
                    partition.watcher = watcher
                    partition.change_role(
                        partition.leader_epoch if state is None else state.leader_epoch,
                        leads=state is not None and state.leader == NODE_ID,
                    )

    def take_out(self, key: tuple[str, int]) -> MemoryPartition:
        """Remove a partition, as if its log could not be opened."""
        partition = self.table.pop(key)
        self._watchers[key[0]](partition)
        return partition

    def put_back(self, key: tuple[str, int], partition: MemoryPartition) -> None:
        """Open a partition that was taken out."""
        self.table[key] = partition
        self._watchers[key[0]](partition)

    def find(self, topic: str, index: int) -> MemoryPartition | None:
        return self.table.get((topic, index))

    def is_offline(self, topic: str, index: int) -> bool:
        return (topic, index) not in self.table


class VirtualBroker:
    """A broker. `call` sends one request to its handler; only `advance` moves the time."""

    def __init__(
        self,
        settings: Mapping[str, object] = {},
        *,
        topics: Mapping[str, int] = {"t": 3, "u": 1},
        offsets_partitions: int = 2,
        partitions: FakePartitions | None = None,
        brokers: Sequence[int] = (NODE_ID,),
        incarnation: str | None = None,
    ) -> None:
        """`brokers` are the registered brokers. With `incarnation` it is one of several, and is not registered before
        `register`.
        """
        self.loop = SimLoop()
        self.tasks = LoopTasks(self.loop)
        self.config = BrokerConfig(
            {
                name: Setting(str(value), "the test")
                for name, value in {
                    "node.id": NODE_ID,
                    "group.initial.rebalance.delay.ms": 300,
                    "group.min.session.timeout.ms": 100,
                    "offsets.topic.num.partitions": offsets_partitions,
                    **settings,
                }.items()
            }
        )
        self.partitions = partitions or FakePartitions()
        self.metadata = MetadataCache()
        self.made_topics: list[str] = []
        self.refuse_topics: ErrorCode | None = None
        clock = LoopClock(self.loop)
        runtime = SimpleNamespace(
            clock=clock, tasks=self.tasks, random=CountingRandom(), turns=Turns(clock, self.tasks)
        )
        runtime.new_uuid = lambda: runtime.random.randbytes(16)
        self.groups = GroupCoordinators(
            runtime=cast(Any, runtime),
            config=self.config,
            partitions=cast(Any, self.partitions),
            metadata=self.metadata,
            controller=cast(Any, self),
            incarnation=incarnation,
        )
        self.transactions = TransactionCoordinators(
            runtime=cast(Any, runtime),
            config=self.config,
            partitions=cast(Any, self.partitions),
            metadata=self.metadata,
            controller=cast(Any, self),
            producer_ids=cast(Any, None),
            perform=self._perform,
            incarnation=incarnation,
        )
        self._incarnation = incarnation
        self._brokers = {broker: _registration(broker, "") for broker in brokers}
        self.services = cast(
            Services,
            SimpleNamespace(
                groups=self.groups,
                transactions=self.transactions,
                metadata=self.metadata,
                config=self.config,
                runtime=runtime,
            ),
        )
        self.peer = Peer("127.0.0.1", 50000, "127.0.0.1", 9092)
        self.change_topics(dict(topics))

    # Time

    def advance(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def settle(self) -> None:
        """Run all work that is due now."""
        self.advance(0)
        self.advance(0)

    # Metadata

    def change_topics(self, topics: Mapping[str, int], ids: Mapping[str, bytes] = {}) -> None:
        """Replace the topics of the cluster (name -> partitions). `ids` has the new ids of topics that were created
        again.
        """
        made = {
            name: TopicImage(
                name,
                TopicId(ids.get(name, topic_id(name))),
                tuple(PartitionState(NODE_ID, 0, (NODE_ID,), (NODE_ID,), 0) for _ in range(count)),
                {},
            )
            for name, count in topics.items()
        }
        known = self.metadata.image.topics
        made = {
            name: known[name]
            if name in known
            and known[name].topic_id == topic.topic_id
            and len(known[name].partitions) == len(topic.partitions)
            else topic
            for name, topic in made.items()
        }
        self._publish(made)

    def _publish(self, topics: Mapping[str, TopicImage]) -> None:
        image = MetadataImage(
            brokers=self._brokers, topics=topics, topics_by_id={topic.topic_id: topic for topic in topics.values()}
        )
        old, self.metadata.image = self.metadata.image, image
        self.loop.call_soon(self._tell, old, image)
        self.settle()

    def elect(self, leader: int, *, epochs: int = 1) -> None:
        """Make `leader` the leader of all partitions of the offsets topic. `epochs` leader epochs begin with one
        image.
        """
        topics = dict(self.metadata.image.topics)
        topic = topics[CONSUMER_OFFSETS]
        states = tuple(s._replace(leader=leader, leader_epoch=s.leader_epoch + epochs) for s in topic.partitions)
        topics[CONSUMER_OFFSETS] = TopicImage(topic.name, topic.topic_id, states, topic.config)
        self._publish(topics)

    def register(self) -> None:
        """Register this run of the broker. In the same change its leaderships begin new epochs."""
        self._brokers = {**self._brokers, NODE_ID: _registration(NODE_ID, self._incarnation or "")}
        self.elect(NODE_ID)

    def fence(self, broker: int) -> None:
        self._brokers = {**self._brokers, broker: self._brokers[broker]._replace(fenced=True)}
        self._publish(self.metadata.image.topics)

    def _tell(self, old: MetadataImage, new: MetadataImage) -> None:
        self._change_roles(old, new)
        answer = self.groups.on_image(old, new)
        if answer is not None:
            self.loop.create_task(answer)

    def _change_roles(self, old: MetadataImage, new: MetadataImage) -> None:
        self.partitions.change_roles(new)
        self.groups.host.change_roles(old, new)
        self.transactions.host.change_roles(old, new)

    @staticmethod
    def _perform(coordinator: object, effect: object) -> None:
        raise AssertionError(f"this harness has no transactions to end: {effect}")

    def start_coordinators(self) -> None:
        """Start the coordinators, as an earlier FindCoordinator request does."""
        counts = {name: len(topic.partitions) for name, topic in self.metadata.image.topics.items()}
        self.change_topics({**counts, CONSUMER_OFFSETS: self.config.offsets_topic_num_partitions})

    async def ensure_topics(self, request: EnsureTopics) -> Answer[list[TopicResult]]:
        """Create one internal topic, in place of the metadata controller."""
        await asyncio.sleep(0)
        self.made_topics += request.names
        if self.refuse_topics is not None:
            message = "refused by the test"
            return Answer([TopicResult(name, error=self.refuse_topics, message=message) for name in request.names])
        image: MetadataImage = self.metadata.image
        (name,) = request.names
        count = self.config.offsets_topic_num_partitions
        state = PartitionState(NODE_ID, 0, (NODE_ID,), (NODE_ID,), 0)
        topic = TopicImage(name, TopicId(topic_id(name)), (state,) * count, {})
        new = MetadataImage(
            brokers=image.brokers,
            topics={**image.topics, name: topic},
            topics_by_id={**image.topics_by_id, topic.topic_id: topic},
        )
        self.metadata.image = new
        self._change_roles(image, new)
        self.groups.on_image(image, new)
        return Answer([TopicResult(name, topic.topic_id)])

    # Requests

    def send(self, api: str, version: int, request: Any, client_id: str | None = "client") -> "Sent":
        """Send a request. The request and its response are encoded and decoded in `version`, as on the wire."""
        info = APIS[API_KEYS[api]]
        messages = import_module(f"tidelog.wire.messages.{info.module}")
        handler = import_module(f"tidelog.api.{info.module}")
        raw = request.encode(version)
        decoded, end = type(request).decode(raw, 0, version)
        assert end == len(raw)
        context = RequestContext(API_KEYS[api], version, 1, client_id, self.peer)
        sent = Sent(getattr(messages, f"{api}Response"), version, self.loop)
        self.loop.call_soon(sent.take, lambda: handler.handle(self.services, context, decoded))
        self.settle()
        return sent

    def call(self, api: str, version: int, request: Any, client_id: str | None = "client") -> Any:
        """Return the response of a request that is answered without waiting."""
        return self.send(api, version, request, client_id).response

    def offsets_log(self, group_id: str) -> MemoryPartition:
        from tidelog.coordinator.group.hashing import partition_of

        return self.partitions.table[CONSUMER_OFFSETS, partition_of(group_id, self.config.offsets_topic_num_partitions)]


class Sent:
    """A request in flight."""

    def __init__(self, response_type: type[Any], version: int, loop: SimLoop) -> None:
        self._response_type = response_type
        self._version = version
        self._loop = loop
        self._response: Any = None
        self.pending: Pending[Any] | None = None
        self.on_answer: Any = None

    @property
    def answered(self) -> bool:
        return self._response is not None

    @property
    def response(self) -> Any:
        assert self._response is not None, "not answered"
        return self._response

    def take(self, handle: Any) -> None:
        self._settle(handle())

    def _settle(self, returned: Any) -> None:
        if isinstance(returned, Pending):
            self.pending = returned
            returned.listen(self._settle)
        elif isinstance(returned, CoroutineType):
            task = self._loop.create_task(returned)
            task.add_done_callback(lambda done: self._settle(done.result()))
        elif isinstance(returned, GeneratorType):
            self._settle(run_all(returned))
        else:
            self._answer(returned)

    def _answer(self, response: Any) -> None:
        raw = response.encode(self._version)
        self._response, end = self._response_type.decode(raw, 0, self._version)
        assert end == len(raw)
        if self.on_answer is not None:
            self.on_answer(self._response)


def _registration(broker: int, incarnation: str) -> BrokerRegistration:
    host = "broker.example" if broker == NODE_ID else f"broker-{broker}.example"
    return BrokerRegistration(
        broker,
        0,
        incarnation,
        (
            Endpoint(listener="PLAINTEXT", protocol="PLAINTEXT", host=host, port=9092),
            Endpoint(listener="INSIDE", protocol="PLAINTEXT", host=f"inside.{host}", port=19092),
        ),
        None,
    )


def topic_id(name: str) -> bytes:
    return name.encode()[:16].ljust(16, b"\1")
