"""Roles follow the newest image at once, while the file work of older images is still running."""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from log_harness import make_batch, read_records
from metadata_harness.builders import image, settings, topic_id
from tidelog.config.topic_config import TopicSettings
from tidelog.log.config import LogConfig
from tidelog.log.directories import DataDirectories
from tidelog.metadata.image import NO_LEADER, MetadataImage, TopicImage
from tidelog.metadata.publisher import MetadataCache, Publisher
from tidelog.metadata.records import PartitionState
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.replication.partition import Partition
from tidelog.replication.partitions import Partitions
from tidelog.replication.replica import AskForIsr, FetchFrom, Role
from tidelog.replication.waiters import Mark
from tidelog.simulation.world import SimHost, World, simulated
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import ApiError, UnknownTopicId, UnknownTopicOrPartition

NODE_ID = 1
MIN_ISR = "min.insync.replicas"


class Stage:
    """Broker 1 with its publisher and its partitions, whose file work can be held."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.image: MetadataImage = image(brokers=(1, 2, 3))
        self.cache = MetadataCache()
        self.peer_work: list[AskForIsr | FetchFrom] = []
        self._released: asyncio.Future[None] | None = None

    async def start(self) -> None:
        runtime = self.host.start()
        config = settings(node_id=str(NODE_ID))
        self.publisher = Publisher(runtime, config, self.cache)
        self.publisher.begin(self.image)
        self.directories = await runtime.tasks.run_blocking(DataDirectories.open, runtime.disk, ["/data"])
        topic_settings = TopicSettings(config)

        def log_config(image: MetadataImage, name: str) -> LogConfig:
            return LogConfig.from_settings(topic_settings.of(image.topics[name].config))

        self.partitions = Partitions(runtime, self.directories, log_config, node_id=NODE_ID, flush_interval_ms=100)
        self.partitions.on_peer_work = lambda _, work: self.peer_work.append(work)
        reconciler = self.partitions.reconciler

        async def apply(old: MetadataImage, new: MetadataImage) -> None:
            if self._released is not None:
                await self._released
            await reconciler.apply(old, new)

        await self.publisher.subscribe(apply, reconciler.change_roles)
        await self.partitions.start()

    def hold(self) -> None:
        """Hold the file work of the images that are published from now on, until `release`."""
        self._released = self._released or self.host.runtime.tasks.future()

    def release(self) -> None:
        if self._released is not None:
            self._released.set_result(None)
            self._released = None

    async def go_on(self) -> None:
        """Release the file work, and wait until all of it is done."""
        self.release()
        await self.publisher.wait_until_idle()

    def publish(self, topics: Mapping[str, TopicImage]) -> None:
        """Publish an image with these topics."""
        old = self.image
        self.image = MetadataImage(
            position=old.position + 1,
            brokers=old.brokers,
            topics=topics,
            topics_by_id={topic.topic_id: topic for topic in topics.values()},
        )
        self.publisher.publish(old, self.image)

    def publish_states(self, *states: PartitionState, number: int = 1, **config: str) -> None:
        """Publish an image in which topic t has these partitions and settings. `number` distinguishes topics that had
        this name one after another.
        """
        before = self.image.topics.get("t")
        new_config = {name.replace("_", "."): value for name, value in config.items()}
        if before is not None and before.config == new_config:
            new_config = before.config  # type: ignore[assignment]
        self.publish({"t": TopicImage("t", topic_id(number), states, new_config)} if states else {})

    def __getitem__(self, index: int) -> Partition:
        return self.partitions.get("t", index)


def led_by(leader: int, epoch: int, *, replicas: tuple[int, ...] = (1, 2), isr: tuple[int, ...] = ()) -> PartitionState:
    return PartitionState(leader, epoch, replicas, isr or replicas, epoch)


def run(scenario: Callable[[Stage], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    async def whole(world: World) -> None:
        stage = Stage(world.host("a"))
        await stage.start()
        await scenario(stage)

    with simulated(seed) as world:
        world.run(whole(world), virtual_s=600)


def append(partition: Partition, value: bytes) -> int:
    return partition.append_batch(make_batch(value)).next_offset


def values(partition: Partition) -> list[bytes]:
    return [value for _, value in read_records(partition.log)]


def test_an_election_does_not_wait_for_file_work() -> None:
    async def scenario(stage: Stage) -> None:
        stage.publish_states(led_by(2, 1))
        await stage.publisher.wait_until_idle()
        stage.hold()
        stage.publish_states(led_by(2, 1), led_by(1, 1))
        stage.publish_states(led_by(1, 2), led_by(1, 1))
        assert stage[0].replica.leads
        append(stage[0], b"a")
        assert len(stage.cache.image.topics["t"].partitions) == 1, "clients do not see the new partition yet"
        assert stage.cache.image.topics["t"].partitions[0].leader == NODE_ID
        await stage.go_on()
        assert stage.cache.image is stage.cache.processed is stage.image
        assert stage[1].replica.leads

    run(scenario)


def test_a_partition_that_comes_back_before_its_log_is_removed_keeps_its_log() -> None:
    async def scenario(stage: Stage) -> None:
        stage.publish_states(led_by(1, 1))
        await stage.publisher.wait_until_idle()
        partition = stage[0]
        append(partition, b"a")
        stage.hold()
        stage.publish_states(led_by(2, 2, replicas=(2, 3)))
        assert partition.replica.role is Role.OFFLINE
        stage.publish_states(led_by(2, 3, replicas=(2, 3, 1)))
        assert partition.replica.role is Role.FOLLOWER
        assert stage.peer_work[-1] == FetchFrom(2, 3)
        await stage.go_on()
        assert stage[0] is partition
        assert not partition.deleted
        assert values(partition) == [b"a"]
        stage.publish_states(led_by(2, 4, replicas=(2, 3)))
        await stage.publisher.wait_until_idle()
        assert partition.deleted
        assert not stage.host.disk.exists("/data/t-0")

    run(scenario)


def test_a_partition_that_comes_back_while_its_log_is_removed_begins_with_an_empty_log() -> None:
    async def scenario(stage: Stage) -> None:
        stage.publish_states(led_by(1, 1))
        await stage.publisher.wait_until_idle()
        partition = stage[0]
        append(partition, b"a")
        stage.publish_states(led_by(2, 2, replicas=(2, 3)))
        while not partition.deleted:
            await asyncio.sleep(0.0001)
        stage.publish_states(led_by(2, 3, replicas=(2, 3, 1)))
        assert stage.cache.processed is not stage.image
        await stage.publisher.wait_until_idle()
        assert stage[0] is not partition
        assert stage[0].replica.role is Role.FOLLOWER
        assert values(stage[0]) == []

    run(scenario)


def test_a_log_that_is_being_opened_gets_the_newest_role() -> None:
    async def scenario(stage: Stage) -> None:
        stage.publish_states(led_by(1, 1), led_by(2, 1))
        await asyncio.sleep(0.0001)
        assert not len(stage.partitions), "the logs are being opened"
        stage.publish_states(led_by(2, 2), led_by(1, 2))
        stage.publish_states(led_by(2, 2), led_by(1, 3))
        await stage.publisher.wait_until_idle()
        assert (stage[0].replica.role, stage[0].leader_epoch) == (Role.FOLLOWER, 2)
        assert (stage[1].replica.role, stage[1].leader_epoch) == (Role.LEADER, 3)
        assert stage.peer_work == [FetchFrom(2, 2)]

    run(scenario)


def test_a_partition_that_has_left_already_is_not_opened() -> None:
    async def scenario(stage: Stage) -> None:
        placed: list[TopicPartition] = []
        place = stage.directories.place

        def note_place(partition: TopicPartition, topic_id: bytes, *, new: bool) -> Any:
            placed.append(partition)
            return place(partition, topic_id, new=new)

        stage.directories.place = note_place  # type: ignore[method-assign]
        stage.hold()
        stage.publish_states(led_by(1, 1), led_by(1, 1))
        stage.publish_states(led_by(2, 2, replicas=(2, 3)), led_by(1, 1))
        stage.publish_states(led_by(2, 3, replicas=(2, 1)), led_by(1, 1))
        stage.publish_states(led_by(2, 4, replicas=(2, 3)), led_by(1, 1))
        await stage.go_on()
        assert placed == [("t", 1)]
        assert [partition.index for partition in stage.partitions] == [1]
        assert not stage.host.disk.exists("/data/t-0")
        assert not stage.partitions.unopened

    run(scenario)


@pytest.mark.parametrize("opened", ["before", "during"])
def test_a_leader_has_the_newest_min_insync_replicas(opened: str) -> None:
    """The ISR shrinks to one member. With the old value, the high watermark would move."""

    async def scenario(stage: Stage) -> None:
        stage.publish_states(led_by(1, 1), min_insync_replicas="1")
        if opened == "before":
            await stage.publisher.wait_until_idle()
            append(stage[0], b"a")
            stage.hold()
        stage.publish_states(led_by(1, 1), min_insync_replicas="2")
        stage.publish_states(led_by(1, 1)._replace(isr=(1,), partition_epoch=2), min_insync_replicas="2")
        if opened == "during":
            while not len(stage.partitions):
                await asyncio.sleep(0.0001)
            append(stage[0], b"a")
        assert stage[0].replica.is_below_min_isr
        assert stage[0].high_watermark == 0
        stage[0].freeze()
        stage[0].thaw()
        assert stage[0].high_watermark == 0, "the end of a cut or of a move does not bring the old value back"
        await stage.go_on()
        assert (stage[0].config.min_insync_replicas, stage[0].log.config.min_insync_replicas) == (2, 2)
        assert stage[0].high_watermark == 0

    run(scenario)


def test_older_settings_do_not_replace_the_newest_min_insync_replicas() -> None:
    async def scenario(stage: Stage) -> None:
        stage.publish_states(led_by(1, 1), min_insync_replicas="2")
        await stage.publisher.wait_until_idle()
        append(stage[0], b"a")
        stage.hold()
        stage.publish_states(led_by(1, 1), min_insync_replicas="1")
        stage.publish_states(led_by(1, 1), min_insync_replicas="2", retention_ms="5")
        stage.publish_states(
            led_by(1, 1)._replace(isr=(1,), partition_epoch=2), min_insync_replicas="2", retention_ms="5"
        )
        await stage.go_on()
        assert stage[0].log.config.retention_ms == 5
        assert stage[0].high_watermark == 0

    run(scenario)


def test_the_partitions_of_a_deleted_topic_serve_no_more_clients() -> None:
    """Otherwise records for a new topic of the same name could be acknowledged and lost, or a consumer that has asked
    for the new topic could get records of the old one.
    """

    async def scenario(stage: Stage) -> None:
        stage.publish_states(led_by(1, 1), led_by(2, 1))
        await stage.publisher.wait_until_idle()
        old, errors = stage[0], list[ApiError | None]()
        old.wait(Mark.COMMITTED, append(old, b"a"), errors.append)
        stage.hold()
        stage.publish_states()
        stage.publish_states(led_by(1, 0), number=2)
        with pytest.raises(UnknownTopicOrPartition):
            append(stage[0], b"b")
        with pytest.raises(UnknownTopicOrPartition):
            stage[1].read(0, 100, from_follower=True)
        with pytest.raises(UnknownTopicId):
            stage.partitions.topic_name(topic_id(1))
        stage.publish_states(led_by(1, 1), number=2)
        assert not old.replica.leads
        await stage.go_on()
        assert isinstance(errors[0], UnknownTopicOrPartition)
        assert stage[0].topic_id == topic_id(2)
        assert stage[0].replica.leads
        assert values(stage[0]) == []

    run(scenario)


def test_a_damaged_log_is_not_replaced_for_a_new_topic_of_the_same_name() -> None:
    """The log of the new topic would be removed with the log of the deleted topic."""

    async def scenario(stage: Stage) -> None:
        stage.publish_states(led_by(2, 1))
        await stage.publisher.wait_until_idle()
        stage.hold()
        stage.publish_states(led_by(2, 0), number=2)
        await stage.partitions.reconciler.replace_log(TopicPartition("t", 0), lambda _: True)
        assert stage[0].topic_id == topic_id(1)
        await stage.go_on()
        assert stage[0].topic_id == topic_id(2)
        await stage.partitions.reconciler.replace_log(TopicPartition("t", 0), lambda _: True)
        assert stage[0].topic_id == topic_id(2)

    run(scenario)


def test_a_log_that_is_opened_again_belongs_to_the_topic_whose_files_are_here() -> None:
    """The log of a new topic would be removed with the log of the deleted topic."""

    async def scenario(stage: Stage) -> None:
        stage.host.disk.fail("create", "/data/t-0/*", errno.ENOSPC)
        stage.publish_states(led_by(1, 1))
        await stage.publisher.wait_until_idle()
        assert list(stage.partitions.reconciler.to_reopen) == [("t", 0)]
        stage.hold()
        stage.publish_states(led_by(1, 0), number=2)
        await stage.partitions.open_again()
        assert stage[0].topic_id == topic_id(1)
        assert not stage[0].replica.leads
        await stage.go_on()
        assert stage[0].topic_id == topic_id(2)
        assert stage[0].replica.leads

    run(scenario)


def test_a_log_that_lacked_space_and_is_damaged_is_reported_and_not_opened_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log of the broker names the damage, and the log may be fetched from the leader."""

    async def scenario(stage: Stage) -> None:
        stage.host.disk.fail("create", "/data/t-0/*", errno.ENOSPC)
        stage.publish_states(led_by(1, 1))
        await stage.publisher.wait_until_idle()
        reconciler = stage.partitions.reconciler
        assert list(reconciler.to_reopen) == [("t", 0)]
        stage.host.disk.write_atomic("/data/t-0/partition.metadata", b"damaged")
        assert not await stage.partitions.open_again()
        assert not reconciler.to_reopen
        assert "partition.metadata" in stage.partitions.unopened["t", 0]
        assert caplog.text.count("partition offline partition=t-0") == 2

    run(scenario)


class History:
    """Random changes at random times, also while the file work of older changes is running. A model says which records
    must survive, and the newest image says which roles the partitions must have.
    """

    def __init__(self, stage: Stage, rng: random.Random) -> None:
        self.stage = stage
        self.rng = rng
        self.topics_created = 0
        self.last_index = 0
        self.written: dict[tuple[TopicId, int], list[bytes]] = {}
        """For each partition on this broker, the records that were appended since the broker has had the partition."""
        self.min_isrs: dict[tuple[TopicId, int], set[int]] = {}
        """For each partition, the values of min.insync.replicas since the last change of its state."""
        self.being_replaced: dict[tuple[TopicId, int], None] = {}
        self.work: list[asyncio.Task[Any]] = []
        self.events = 0

    async def run(self, changes: int) -> None:
        for _ in range(changes):
            for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
                topics = self.changed_topics(dict(self.stage.image.topics))
            self.publish(topics)
            self.check_roles()
            self.write()
            await asyncio.sleep(self.rng.choice((0, 0, 0, 0.0005, 0.002, 0.01, 0.5)))
            self.check_roles()
            self.write()
            self.disturb()
            if self.rng.random() < 0.08:
                await self.settle()
        await self.settle()

    async def settle(self) -> None:
        """Wait until all file work is done, and compare the logs with the model."""
        self.stage.host.disk.repair()
        await self.stage.go_on()
        await asyncio.gather(*self.work)
        while self.stage.partitions.reconciler.to_reopen:
            await self.stage.partitions.open_again()
            await asyncio.sleep(0.01)
        self.check_roles()
        self.write()
        self.check_end()

    # Changes

    def changed_topics(self, topics: dict[str, TopicImage]) -> dict[str, TopicImage]:
        rng = self.rng
        name = rng.choice(("t0", "t0", "t1"))
        topic = topics.get(name)
        choice = rng.random()
        if topic is None or choice < 0.06:
            self.topics_created += 1
            states = tuple(self.new_state() for _ in range(rng.randrange(1, 4)))
            topics[name] = TopicImage(name, topic_id(self.topics_created), states, self.new_config())
        elif choice < 0.12:
            del topics[name]
        elif choice < 0.2:
            topics[name] = TopicImage(name, topic.topic_id, topic.partitions, self.new_config())
        else:
            # A partition that has left this broker often comes back soon.
            index = self.last_index = min(rng.choice((self.last_index, rng.randrange(9))), len(topic.partitions) - 1)
            states = tuple(
                self.changed_state(state) if number == index else state for number, state in enumerate(topic.partitions)
            )
            if choice < 0.25:
                states += (self.new_state(),)
            topics[name] = TopicImage(name, topic.topic_id, states, topic.config)
        return topics

    def new_config(self) -> dict[str, str]:
        return {MIN_ISR: str(self.rng.randrange(1, 4))}

    def new_state(self) -> PartitionState:
        replicas = tuple(self.rng.sample((1, 2, 3), self.rng.randrange(1, 4)))
        return PartitionState(replicas[0], 0, replicas, replicas, 0)

    def changed_state(self, state: PartitionState) -> PartitionState:
        rng = self.rng
        replicas = state.replicas
        if rng.random() < 0.5:  # the broker gets the partition, or loses it
            replicas = tuple(r for r in replicas if r != NODE_ID) if NODE_ID in replicas else (*replicas, NODE_ID)
            replicas = replicas or (2,)
        leader = rng.choice((*replicas, NO_LEADER)) if rng.random() < 0.5 else state.leader
        leader = leader if leader in (*replicas, NO_LEADER) else replicas[0]
        isr = tuple(r for r in replicas if r == leader or rng.random() < 0.6)
        keeps_epoch = leader == state.leader and rng.random() < 0.7
        epoch = state.leader_epoch + (not keeps_epoch)
        return PartitionState(leader, epoch, replicas, isr, state.partition_epoch + 1)

    def publish(self, topics: dict[str, TopicImage]) -> None:
        old = self.stage.image
        for topic in topics.values():
            before = old.topics.get(topic.name)
            for index, state in enumerate(topic.partitions):
                key = topic.topic_id, index
                is_same = before is not None and before.topic_id == topic.topic_id and index < len(before.partitions)
                if not is_same or before.partitions[index] != state:  # type: ignore[union-attr]
                    self.min_isrs[key] = set()
                self.min_isrs[key].add(int(topic.config[MIN_ISR]))
        here = {
            (topic.topic_id, index)
            for topic in topics.values()
            for index, state in enumerate(topic.partitions)
            if NODE_ID in state.replicas
        }
        for key in list(self.written):
            if key not in here:
                del self.written[key]
        self.stage.publish(topics)
        self.events += len(self.stage.publisher._unprocessed) > 1

    def disturb(self) -> None:
        stage = self.stage
        tasks, partitions = stage.host.runtime.tasks, stage.partitions
        choice = self.rng.random()
        if choice < 0.1:
            stage.host.disk.fail("create", "/data/t?-?/*", errno.ENOSPC, skip=self.rng.randrange(3))
        elif choice < 0.2:
            self.work.append(tasks.spawn(partitions.open_again(), name="open-again"))
        elif choice < 0.3 and len(partitions):
            self.work.append(tasks.spawn(self.replace(self.rng.choice(list(partitions))), name="replace"))
        elif choice < 0.35:
            stage.hold()
        elif choice < 0.5:
            stage.release()

    async def replace(self, partition: Partition) -> None:
        """Replace the log of a partition, as if it were damaged."""
        key = TopicId(partition.topic_id), partition.index
        if key in self.being_replaced:
            return

        def may_be_replaced(state: PartitionState) -> bool:
            return NODE_ID in state.replicas and state.leader not in (NODE_ID, NO_LEADER)

        self.written.pop(key, None)
        self.being_replaced[key] = None
        await self.stage.partitions.reconciler.replace_log(
            TopicPartition(partition.topic, partition.index), may_be_replaced
        )
        del self.being_replaced[key]

    def write(self) -> None:
        """Append a record to each partition that this broker leads or follows, as its clients or fetchers do."""
        for partition in self.stage.partitions:
            if partition.deleted or partition.replica.role is Role.OFFLINE:
                continue
            key, value = (TopicId(partition.topic_id), partition.index), b"%d" % self.rng.getrandbits(60)
            if partition.replica.leads:
                append(partition, value)
            else:
                batch = make_batch(value)
                BatchHeader(batch).assign(base_offset=partition.log_end_offset, leader_epoch=partition.leader_epoch)
                partition.append_as_follower(memoryview(batch), partition.leader_epoch)
            if key not in self.being_replaced:
                self.written.setdefault(key, []).append(value)

    # Checks

    def check_roles(self) -> None:
        newest = self.stage.cache.newest
        assert newest is self.stage.image
        for partition in self.stage.partitions:
            assert not partition.deleted
            topic = newest.topics.get(partition.topic)
            if topic is None or topic.topic_id != partition.topic_id:
                assert partition.replica.role is Role.OFFLINE, "the topic is deleted"
                continue
            state = topic.partitions[partition.index]
            expected = Role.FOLLOWER
            if NODE_ID not in state.replicas or state.leader == NO_LEADER:
                expected = Role.OFFLINE
            elif state.leader == NODE_ID:
                expected = Role.LEADER
            replica = partition.replica
            assert (replica.role, replica.leader_epoch) == (expected, state.leader_epoch), (topic.name, state)
            if replica.isr is not None:
                assert (replica.isr.committed, replica.isr.replicas) == (state.isr, state.replicas)
                known = self.min_isrs[topic.topic_id, partition.index]
                assert replica.isr.min_insync_replicas in known, (replica.isr.min_insync_replicas, known)

    def check_end(self) -> None:
        stage = self.stage
        assert stage.cache.image is stage.cache.processed is stage.image
        expected = {
            (name, index): topic.topic_id
            for name, topic in stage.image.topics.items()
            for index, state in enumerate(topic.partitions)
            if NODE_ID in state.replicas
        }
        assert {key: partition.topic_id for key, partition in stage.partitions.opened.items()} == expected
        assert not stage.partitions.unopened
        names = {name for name in stage.host.disk.list("/data") if name[0] == "t" and "." not in name}
        assert names == {f"{name}-{index}" for name, index in expected}
        for (name, index), partition in stage.partitions.opened.items():
            assert stage.directories.of(TopicPartition(name, index)) is not None
            min_isr = int(stage.image.topics[name].config[MIN_ISR])
            assert partition.config.min_insync_replicas == partition.log.config.min_insync_replicas == min_isr
            assert partition.replica.isr is None or partition.replica.isr.min_insync_replicas == min_isr
            written = self.written.get((TopicId(partition.topic_id), index), [])
            assert values(partition)[-len(written) :] == written or not written, f"{name}-{index} lost records"
        assert {stage.partitions.topic_names[TopicId(each)] for each in expected.values()} == {n for n, _ in expected}


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_leave_the_logs_and_roles_of_the_newest_image(seed: int) -> None:
    async def scenario(stage: Stage) -> None:
        history = History(stage, random.Random(seed))
        await history.run(changes=120)
        assert history.events > 20, "few changes were published during file work"

    run(scenario, seed)
