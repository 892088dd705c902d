"""The life of the metadata of several brokers (one run): clients create and delete topics through all brokers while
controllers are killed, paused and cut off, and answers of the store are lost. Every answer is checked.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from zlib import crc32

import pytest

from metadata_harness.shared import SharedCluster, SharedNode
from tidelog.metadata import journal, link
from tidelog.metadata.controller import NewTopic, TopicChoice, TopicResult
from tidelog.metadata.image import EMPTY_IMAGE, ImageBuilder, MetadataImage, snapshot
from tidelog.metadata.link import Answer
from tidelog.metadata.records import ControllerElected, encode
from tidelog.metadata.records import decode as decode_entry
from tidelog.simulation.shared_store import HOST as STORE_HOST
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode

CLIENTS = 4
TIMEOUT_MS = 8000
RECOVERY_S = 60.0
"""Time, in virtual seconds after the last fault, within which every request must succeed again."""
ENDED_WITH_THE_PROCESS = "the asked broker ended"


class Violation(Exception):
    """A promise was broken. The text begins with the promise."""


class Outcome(NamedTuple):
    failure: str | None
    coverage: Counter[str]
    trace_crc: int


class Topic:
    """One topic, as far as its client knows. Only this client creates and deletes it, one request at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.exists: bool | None = False
        """None: unknown, since the last request may have been executed."""

    def expect(self, request: str, exists_before: bool, error: ErrorCode) -> None:
        if self.exists is not None and self.exists != exists_before:
            raise Violation(f"AnswersAreTrue: {request} of {self.name} got {error.name}, but exists={self.exists}")


def run_life(seed: int, *, nodes: int, minutes: float) -> Outcome:
    """Simulate one life. The same arguments result in the same trace."""
    coverage: Counter[str] = Counter()
    failure = None
    with simulated(seed) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "SNAPSHOT_BYTES_MIN", 3000)
        try:
            world.run(_Life(world, nodes, coverage).run(minutes * 60), virtual_s=minutes * 60 + 600)
        except (Violation, AssertionError, RuntimeError) as error:
            failure = f"{type(error).__name__}: {error}\n{world.trace.tail(30)}"
        return Outcome(failure, coverage, crc32(world.trace.text().encode()))


class _Life:
    def __init__(self, world: World, nodes: int, coverage: Counter[str]) -> None:
        self._world = world
        self._cluster = SharedCluster(world, nodes)
        self._coverage = coverage
        self._topics = [[Topic(f"c{client}-t{number}") for number in range(3)] for client in range(CLIENTS)]
        self._entries: dict[int, bytes] = {}
        """Every entry that was ever in the store, also those that were deleted since."""

    async def run(self, seconds: float) -> None:
        append = self._cluster.store.append

        def recorded(position: int, data: bytes, *arguments: object) -> None:
            append(position, data, *arguments)  # type: ignore[arg-type]
            self._entries[position] = data

        self._cluster.store.append = recorded  # type: ignore[method-assign]
        await self._cluster.start()
        until_s = self._world.loop.time() + seconds
        clients = [asyncio.ensure_future(self._client(number, until_s)) for number in range(CLIENTS)]
        tasks = [*clients, asyncio.ensure_future(self._inject_faults(until_s))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        await self._check_the_end()

    # Clients

    async def _client(self, number: int, until_s: float) -> None:
        rng = self._world.rng(f"client {number}")
        while self._world.loop.time() < until_s:
            await self._request(rng.choice(self._topics[number]), rng)
            await asyncio.sleep(rng.choice((0.0, 0.3, 1.0)))

    async def _request(self, topic: Topic, rng: random.Random) -> ErrorCode:
        node = rng.choice(self._cluster.nodes)
        kind = rng.choice(("create", "create", "delete", "validate"))
        error = await self._ask(node, kind, topic)
        self._coverage[f"{kind}: {error.name}"] += 1
        if error is ErrorCode.REQUEST_TIMED_OUT:
            topic.exists = topic.exists if kind == "validate" else None
        elif error is ErrorCode.NONE and kind == "delete":
            topic.expect(kind, True, error)
            topic.exists = False
        elif error is ErrorCode.NONE:
            topic.expect(kind, False, error)
            topic.exists = kind == "create"
        elif error is ErrorCode.TOPIC_ALREADY_EXISTS:
            topic.expect(kind, True, error)
            topic.exists = True
        elif error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            topic.expect(kind, False, error)
            topic.exists = False
        elif error not in (ErrorCode.NOT_CONTROLLER, ErrorCode.KAFKA_STORAGE_ERROR):
            raise Violation(f"KnownErrors: {kind} of {topic.name} got {error.name}")
        return error

    async def _ask(self, node: SharedNode, kind: str, topic: Topic) -> ErrorCode:
        if not node.host.running or (not node.partitions.opened and not node.image.position):
            return ErrorCode.NOT_CONTROLLER  # connection refused
        controller = node.metadata.link
        if kind == "delete":
            call = controller.delete_topics(link.DeleteTopics([TopicChoice(topic.name)], TIMEOUT_MS))
        else:
            new_topic = NewTopic(topic.name, 2, 1)
            call = controller.create_topics(link.CreateTopics([new_topic], kind == "validate", TIMEOUT_MS))
        task: asyncio.Task[Answer[list[TopicResult]]] = node.host.runtime.tasks.spawn(call, name="client-request")
        await asyncio.wait((task,))
        if task.cancelled():
            return ErrorCode.REQUEST_TIMED_OUT  # the asked broker was killed, and the client's connection was reset
        answer = task.result()
        return answer.error if answer.value is None else answer.value[0].error

    # Faults

    async def _inject_faults(self, until_s: float) -> None:
        rng = self._world.rng("faults")
        faults: dict[str, Callable[[SharedNode, random.Random], Awaitable[None]]] = {
            "kill": self._kill,
            "restart": self._restart,
            "cut off from the store": self._cut_off,
            "answers of the store lost": self._lose_answers,
            "pause": self._pause,
            "append without answer": self._lose_append,
            "append without answer, then cut off": self._lose_append_and_cut,
            "cut between brokers": self._cut_brokers,
        }
        while True:
            pause_s = rng.expovariate(1 / 2)
            if self._world.loop.time() + pause_s >= until_s:
                return
            await asyncio.sleep(pause_s)
            name = rng.choice(list(faults))
            controllers = self._cluster.controllers_now
            node = rng.choice(controllers if controllers and rng.random() < 0.7 else self._cluster.nodes)
            self._world.trace.note(node.host.name, "fault", name)
            self._coverage[name] += 1
            await faults[name](node, rng)

    async def _kill(self, node: SharedNode, rng: random.Random) -> None:
        node.host.kill()
        await asyncio.sleep(rng.choice((0.0, 1.0, 6.0)))
        await node.start()

    async def _restart(self, node: SharedNode, rng: random.Random) -> None:
        await node.stop()
        await asyncio.sleep(rng.choice((0.0, 1.0)))
        await node.start()

    async def _cut_off(self, node: SharedNode, rng: random.Random) -> None:
        node.cut_off()
        await asyncio.sleep(rng.uniform(0.5, 10))
        self._world.network.heal()

    async def _lose_answers(self, node: SharedNode, rng: random.Random) -> None:
        self._world.network.partition_one_way(STORE_HOST, node.host.name)
        await asyncio.sleep(rng.uniform(0.5, 10))
        self._world.network.heal()

    async def _cut_brokers(self, node: SharedNode, rng: random.Random) -> None:
        other = rng.choice(self._cluster.nodes)
        self._world.network.partition_one_way(other.host.name, node.host.name)
        await asyncio.sleep(rng.uniform(0.5, 10))
        self._world.network.heal()

    async def _pause(self, node: SharedNode, rng: random.Random) -> None:
        node.store.hold()
        await asyncio.sleep(rng.uniform(0.5, 8))
        node.store.go_on()

    async def _lose_append(self, node: SharedNode, rng: random.Random) -> None:
        node.store.lose_next = rng.choice(("done", "not done", "done later"))

    async def _lose_append_and_cut(self, node: SharedNode, rng: random.Random) -> None:
        """Lose the answer to the next append, and then the link to the store for longer than the lease."""

        async def cut_off() -> None:
            node.cut_off()

        node.store.lose_next = rng.choice(("done", "not done", "done later"))
        node.store.after_append = cut_off
        await asyncio.sleep(rng.uniform(1, 8))
        node.store.lose_next = node.store.after_append = None
        self._world.network.heal()

    # The end

    async def _check_the_end(self) -> None:
        """Check that every request succeeds again, that all brokers have the same image, and that it is the result of
        all entries that were ever appended.
        """
        rng = self._world.rng("the end")
        for node in self._cluster.nodes:
            assert not node.failures, node.failures
        ends_s = self._world.loop.time() + RECOVERY_S
        for topic in [topic for topics in self._topics for topic in topics]:
            while topic.exists is None or await self._request(topic, rng) in (
                ErrorCode.NOT_CONTROLLER,
                ErrorCode.REQUEST_TIMED_OUT,
            ):
                await self._request(topic, rng)
                if self._world.loop.time() > ends_s:
                    raise Violation(f"Liveness: requests fail {RECOVERY_S:g} s after the last fault")
        await asyncio.wait_for(self._cluster.all_followed(), RECOVERY_S)
        image = self._replay_all()
        self._check_images(image)
        for topic in [topic for topics in self._topics for topic in topics]:
            if topic.exists != (topic.name in image.topics):
                raise Violation(f"NoLostChange: {topic.name} exists={topic.exists}, which is not the journal's state")

    def _replay_all(self) -> MetadataImage:
        builder, epoch = ImageBuilder(EMPTY_IMAGE), 0
        for position in range(self._cluster.store.next_position):
            entry = decode_entry(self._entries[position], position)
            is_claim = any(isinstance(record, ControllerElected) for record in entry.records)
            if entry.epoch < epoch or (entry.epoch > epoch) != is_claim:
                raise Violation(f"OneControllerPerEpoch: entry {position} of epoch {entry.epoch} follows {epoch}")
            self._coverage["claims"] += is_claim
            epoch = entry.epoch
            builder.apply(entry.records)
        return builder.build()

    def _check_images(self, image: MetadataImage) -> None:
        expected = encode(0, snapshot(image))
        for node in self._cluster.nodes:
            if encode(0, snapshot(node.image)) != expected:
                raise Violation(f"SameImage: broker {node.node_id} has another image than the journal's")
            led = {key for key, (leads, _) in node.partitions.roles.items() if leads}
            leading = {
                (topic.name, index)
                for topic in image.topics.values()
                for index, state in enumerate(topic.partitions)
                if state.leader == node.node_id
            }
            if led != leading or dict.fromkeys(node.partitions.roles) != node.partitions.opened:
                raise Violation(f"RolesOfTheImage: broker {node.node_id} has other roles than the journal says")
