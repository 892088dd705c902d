"""The controller at work: when it answers, what survives a crash, what happens when the store fails."""

import asyncio
import logging

import pytest

from metadata_harness.controlled import Node, run, with_node
from tidelog.metadata.alterations import Alteration, Change, Operation
from tidelog.metadata.controller import MorePartitions, NewTopic, TopicChoice
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.journal import SNAPSHOT_BYTES_MIN
from tidelog.metadata.records import ClusterNamed, JournalError, JournalRecord, TopicCreated, encode, new_partition
from tidelog.metadata.store import AppendUnknown, Lease, LeaseLost, PositionTaken, Store, StoreFailed, StoreUnavailable
from tidelog.model.ids import TopicId, uuid_from_text
from tidelog.simulation.world import SimHost, simulated
from tidelog.wire.errors import ApiError, ErrorCode


class Faulty:
    """A store whose appends can be made to fail, before or after they have been done."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refuse: Exception | None = None
        self.fail_after: Exception | None = None

    async def append(self, position: int, data: bytes, lease: Lease, writer: str, number: int) -> None:
        if self.refuse is not None:
            raise self.refuse
        await self._store.append(position, data, lease, writer, number)
        if self.fail_after is not None:
            raise self.fail_after

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def altered(name: str, setting: str, value: str) -> Alteration:
    return Alteration(2, name, [Change(setting, Operation.SET, value)])


# Starting


def test_a_new_cluster() -> None:
    async def scenario(host: SimHost) -> None:
        node = await Node(host, {}).started()
        image = node.image
        assert len(uuid_from_text(image.cluster_id)) == 16
        assert (image.controller_id, image.controller_epoch) == (1, 1)
        assert list(image.brokers) == [1]
        assert (image.brokers[1].host, image.brokers[1].port, image.brokers[1].rack) == ("127.0.0.1", 9092, None)

    run(scenario)


def test_a_cluster_with_a_given_id_and_topics_to_begin_with() -> None:
    async def scenario(host: SimHost) -> None:
        topic = TopicCreated("old", TopicId(bytes(15) + b"\1"), (new_partition((1,), 5),), {"retention.ms": "-1"})

        async def first() -> list[JournalRecord]:
            return [topic]

        node = Node(host, {})
        await node.controller.start("given", first)
        assert node.image.cluster_id == "given"
        assert node.image.topics["old"].partitions[0].leader_epoch == 5
        await node.controller.stop()
        again = Node(host, {})
        await again.controller.start("given", first)  # asked for at the first start only
        assert len(again.image.topics) == 1
        assert again.image.topics["old"].partitions[0].leader_epoch == 6

    run(scenario)


def test_a_restart_has_everything_and_begins_new_epochs() -> None:
    async def scenario(host: SimHost) -> None:
        node = await Node(host, {"broker.rack": "r"}).started()
        await node.controller.create_topics([NewTopic("t", 2, 1, config=[("retention.ms", "5")])])
        await node.controller.alter_configs([Alteration(4, "", [Change("log.retention.ms", Operation.SET, "7")])])
        await node.controller.allocate_producer_ids()
        before = node.image
        await node.controller.stop()
        node = Node(host, {})
        await node.controller.start()
        after = node.image
        assert (after.cluster_id, after.controller_epoch) == (before.cluster_id, 2)
        topic = after.topics["t"]
        assert (topic.topic_id, topic.config) == (before.topics["t"].topic_id, {"retention.ms": "5"})
        assert [p.leader_epoch for p in topic.partitions] == [1, 1]
        assert after.producer_ids_next == 1000
        assert after.brokers[1].rack == "r"
        assert node.config.get("log.retention.ms") == 7

    run(scenario)


def test_metadata_of_another_cluster_is_refused() -> None:
    async def scenario(host: SimHost) -> None:
        await (await Node(host, {}).started()).controller.stop()
        with pytest.raises(
            JournalError, match=r"the metadata belongs to cluster .*, but the data directories to cluster other"
        ):
            await Node(host, {}).controller.start("other")

    run(scenario)


def test_another_broker_is_the_controller() -> None:
    async def scenario(host: SimHost) -> None:
        await Node(host, {}).started()
        with pytest.raises(LeaseLost, match="another broker is the controller"):
            await Node(host, {"node.id": "2"}).controller.start()

    run(scenario)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (b"garbage", "metadata entry 2 is damaged"),
        (b'{"v":1,"epoch":1,"records":[{"kind":"later"}]}', "metadata entry 2 has a 'later' record"),
        (
            b'{"v":1,"epoch":1,"records":[{"kind":"topic-deleted","topic_id":"AAAAAAAAAAAAAAAAAAAAAQ"}]}',
            "metadata entry 2 contradicts the entries before it",
        ),
    ],
)
def test_a_journal_that_cannot_be_replayed_is_named(entry: bytes, reason: str) -> None:
    async def scenario(host: SimHost) -> None:
        node = await Node(host, {}).started()
        lease = await node.store.acquire("controller", "broker-1", None)
        assert lease is not None
        await node.store.append(2, entry, lease)
        with pytest.raises(JournalError, match=reason):
            await Node(host, {}).controller.start()

    run(scenario)


def test_a_journal_with_a_gap_is_refused() -> None:
    class Gap(Faulty):
        async def read(self, start: int, limit: int = 1000) -> list[object]:
            return [e for e in await self._store.read(start, limit) if e.position != 1]

    async def scenario(host: SimHost) -> None:
        await (await Node(host, {}).started()).controller.create_topics([NewTopic("t")])
        with pytest.raises(JournalError, match="metadata entry 1 is missing"):
            await Node(host, {}, wrap=Gap).controller.start()  # type: ignore[arg-type]

    run(scenario)


# Telling the broker's parts


def test_a_topic_is_seen_once_every_part_has_taken_it() -> None:
    async def scenario(node: Node) -> None:
        events: list[str] = []
        opened = asyncio.Event()

        async def slow(old: MetadataImage, new: MetadataImage) -> None:
            if "t" in new.topics:
                events.append(f"opening, cached: {'t' in node.image.topics}")
                await opened.wait()
                events.append("opened")

        await node.controller.subscribe(slow)
        creating = node.runtime.tasks.spawn(node.controller.create_topics([NewTopic("t")]), name="create")
        await node.runtime.tasks.sleep(10)
        assert not creating.done()
        assert "t" not in node.image.topics
        opened.set()
        (result,) = await creating
        assert result.error == 0
        assert events == ["opening, cached: False", "opened"]
        assert "t" in node.image.topics

    with_node(scenario)


def test_parts_hear_of_every_change_in_order() -> None:
    async def scenario(node: Node) -> None:
        heard: list[tuple[int, int]] = []
        known: list[list[str]] = []

        async def slow(old: MetadataImage, new: MetadataImage) -> None:
            await node.runtime.tasks.sleep(node.runtime.random.uniform(0, 0.1))
            heard.append((old.position, new.position))
            known.append(list(new.topics))

        def quick(old: MetadataImage, new: MetadataImage) -> None:
            assert heard[-1] == (old.position, new.position)

        await node.controller.subscribe(slow)
        await node.controller.subscribe(quick)
        heard.clear()
        names = [f"t{i}" for i in range(10)]
        results = await asyncio.gather(*(node.controller.create_topics([NewTopic(name)]) for name in names))
        assert all(result.error == 0 for (result,) in results)
        assert [new for _, new in heard] == [*[old for old, _ in heard][1:], node.image.position]
        assert sorted(node.image.topics) == names
        assert known[-1] == list(node.image.topics)

    with_node(scenario, seed=3)


def test_a_part_that_comes_later_begins_with_the_whole_image() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t")])
        heard: list[tuple[list[str], list[str]]] = []
        await node.controller.subscribe(lambda old, new: heard.append((list(old.topics), list(new.topics))))
        await node.controller.delete_topics([TopicChoice("t")])
        assert heard == [([], ["t"]), (["t"], [])]

    with_node(scenario)


def test_a_part_that_fails_keeps_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: Node) -> None:
        heard: list[str] = []

        def failing(old: MetadataImage, new: MetadataImage) -> None:
            if new.topics:
                raise OSError("no space")

        await node.controller.subscribe(failing)
        await node.controller.subscribe(lambda old, new: heard.append(",".join(new.topics)))
        (result,) = await node.controller.create_topics([NewTopic("t")])
        assert result.error == 0
        assert heard == ["", "t"]
        assert "t" in node.image.topics

    with_node(scenario)
    assert "listener failed" in caplog.text


def test_what_changes_nothing_is_appended_nowhere() -> None:
    async def scenario(node: Node) -> None:
        position = node.image.position
        await node.controller.create_topics([NewTopic("t")], validate_only=True)
        await node.controller.create_topics([NewTopic("bad name")])
        await node.controller.delete_topics([TopicChoice("nope")])
        await node.controller.ensure_topics([])
        assert node.image.position == position

    with_node(scenario)


# Time


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_no_time_at_all_is_answered_at_once(timeout_ms: int) -> None:
    async def scenario(node: Node) -> None:
        for request in (
            node.controller.create_topics([NewTopic("t")], timeout_ms=timeout_ms),
            node.controller.delete_topics([TopicChoice("t")], timeout_ms=timeout_ms),
            node.controller.create_partitions([MorePartitions("t", 5)], timeout_ms=timeout_ms),
        ):
            with pytest.raises(ApiError) as caught:
                await request
            assert (caught.value.code, caught.value.message) == (ErrorCode.REQUEST_TIMED_OUT, "")
        assert not node.image.topics

    with_node(scenario)


def test_too_little_time_is_answered_and_the_topic_comes_all_the_same() -> None:
    async def scenario(node: Node) -> None:
        async def slow(old: MetadataImage, new: MetadataImage) -> None:
            await node.runtime.tasks.sleep(10)

        await node.controller.subscribe(slow)
        with pytest.raises(ApiError) as caught:
            await node.controller.create_topics([NewTopic("t")], timeout_ms=5000)
        assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert "t" not in node.image.topics
        await node.runtime.tasks.sleep(10)
        assert "t" in node.image.topics

    with_node(scenario)


def test_a_change_goes_on_when_who_asked_has_left() -> None:
    async def scenario(node: Node) -> None:
        asking = node.runtime.tasks.spawn(node.controller.create_topics([NewTopic("t")]), name="ask")
        await node.runtime.tasks.sleep(0)
        asking.cancel()
        await node.controller.create_topics([NewTopic("u")])
        assert list(node.image.topics) == ["t", "u"]

    with_node(scenario)


# The store's failures


def faulty_node(host: SimHost) -> tuple[Node, Faulty]:
    made: list[Faulty] = []

    def wrap(store: Store) -> Store:
        made.append(Faulty(store))
        return made[0]  # type: ignore[return-value]

    return Node(host, {}, wrap), made[0]


def test_a_store_without_room_refuses_and_goes_on_later() -> None:
    async def scenario(host: SimHost) -> None:
        node, store = faulty_node(host)
        await node.started()
        store.refuse = StoreUnavailable("/data/metadata: no space")
        with pytest.raises(ApiError, match="no space") as caught:
            await node.controller.create_topics([NewTopic("t")])
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        store.refuse = None
        (result,) = await node.controller.create_topics([NewTopic("t")])
        assert result.error == 0

    run(scenario)


def test_changes_that_the_store_refuses_are_logged_at_most_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(host: SimHost) -> None:
        node, store = faulty_node(host)
        await node.started()
        store.refuse = StoreUnavailable("/data/metadata: no space")
        for pause_s in (0.0, 1.0, 58.0, 2.0):
            await asyncio.sleep(pause_s)
            with pytest.raises(ApiError, match="no space"):
                await node.controller.create_topics([NewTopic("t")])

    run(scenario)
    assert [r.getMessage() for r in caplog.records if r.getMessage().startswith("metadata not changed")] == [
        "metadata not changed reason=/data/metadata: no space"
    ] * 2


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StoreFailed("/data/metadata: I/O error"), ErrorCode.KAFKA_STORAGE_ERROR),
        (LeaseLost("lease controller is not broker-1's"), ErrorCode.NOT_CONTROLLER),
        (PositionTaken("position 3 is taken"), ErrorCode.NOT_CONTROLLER),
    ],
)
@pytest.mark.parametrize("done", [False, True])
def test_after_an_append_of_unknown_outcome_nothing_is_decided_any_more(
    failure: Exception, code: ErrorCode, done: bool
) -> None:
    async def scenario(host: SimHost) -> None:
        node, store = faulty_node(host)
        await node.started()
        if done:
            store.fail_after = failure
        else:
            store.refuse = failure
        with pytest.raises(ApiError) as caught:
            await node.controller.create_topics([NewTopic("t")])
        assert caught.value.code == code
        store.refuse = store.fail_after = None
        with pytest.raises(ApiError) as caught:
            await node.controller.create_topics([NewTopic("u")])
        assert caught.value.code == ErrorCode.NOT_CONTROLLER
        assert not node.image.topics
        await node.controller.stop()
        again = await Node(host, {}).started()
        assert list(again.image.topics) == (["t"] if done else [])

    run(scenario)


@pytest.mark.parametrize("done", [False, True])
def test_an_append_without_an_answer_is_settled(done: bool) -> None:
    async def scenario(host: SimHost) -> None:
        node, store = faulty_node(host)
        await node.started()
        if done:
            store.fail_after = AppendUnknown("/data/metadata: the commit failed")
        else:
            store.refuse = AppendUnknown("/data/metadata: the commit failed")
        creating = node.runtime.tasks.spawn(node.controller.create_topics([NewTopic("t")]), name="create")
        await node.runtime.tasks.sleep(3)
        assert creating.done() is done
        store.refuse = store.fail_after = None
        (result,) = await creating
        assert result.error == 0
        assert list(node.image.topics) == ["t"]
        await node.controller.create_topics([NewTopic("u")])

    run(scenario)


def test_an_append_whose_outcome_stays_unknown_is_not_answered_as_refused() -> None:
    async def scenario(host: SimHost) -> None:
        node, store = faulty_node(host)
        await node.started()
        store.refuse = AppendUnknown("/data/metadata: the commit failed")
        for code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER):
            with pytest.raises(ApiError) as caught:
                await node.controller.create_topics([NewTopic("t")])
            assert caught.value.code == code
            store.refuse = None

    run(scenario)


def test_the_lease_is_acquired_again_after_the_store_was_away() -> None:
    async def scenario(host: SimHost) -> None:
        made: list[Away] = []

        def wrap(store: Store) -> Store:
            made.append(Away(store))
            return made[0]  # type: ignore[return-value]

        node = await Node(host, {}, wrap, lease_ms=3000).started()
        made[0].is_away = True
        await node.runtime.tasks.sleep(10)
        with pytest.raises(ApiError, match="metadata cannot be changed") as caught:
            await node.controller.create_topics([NewTopic("t")])
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        made[0].is_away = False
        await node.runtime.tasks.sleep(1)
        (result,) = await node.controller.create_topics([NewTopic("t")])
        assert result.error == 0
        assert node.image.controller_epoch == 2

    run(scenario)


class Away(Faulty):
    """A store that cannot be reached while `is_away` is set."""

    is_away = False

    def __getattr__(self, name: str) -> object:
        if self.is_away:
            raise StoreUnavailable("the store is away")
        return getattr(self._store, name)


def test_a_lease_is_kept_as_long_as_the_broker_runs() -> None:
    async def scenario(host: SimHost) -> None:
        node = await Node(host, {}, lease_ms=3000).started()
        await node.runtime.tasks.sleep(60)
        (result,) = await node.controller.create_topics([NewTopic("t")])
        assert result.error == 0
        assert await node.store.acquire("controller", "broker-2", 3000) is None
        await node.controller.stop()
        assert await node.store.acquire("controller", "broker-2", 3000) is not None

    run(scenario)


def test_who_has_lost_the_lease_decides_nothing() -> None:
    async def scenario(host: SimHost) -> None:
        node = await Node(host, {}, lease_ms=3000).started()
        lease = node.metadata._lease
        assert lease is not None
        await node.store.release(lease.lease)  # as if its time had passed
        assert await node.store.acquire("controller", "broker-2", 60_000) is not None
        await node.runtime.tasks.sleep(10)
        with pytest.raises(ApiError) as caught:
            await node.controller.create_topics([NewTopic("t")])
        assert caught.value.code == ErrorCode.NOT_CONTROLLER

    run(scenario)


def test_a_stopped_controller_decides_nothing() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.stop()
        with pytest.raises(ApiError) as caught:
            await node.controller.create_topics([NewTopic("t")])
        assert caught.value.code == ErrorCode.NOT_CONTROLLER

    with_node(scenario)


# What survives


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("end", ["kill", "cut_power"])
def test_what_was_answered_survives_its_process(seed: int, end: str) -> None:
    with simulated(seed) as world:
        host = world.host("a")
        answered: list[str] = []

        async def work() -> None:
            node = await Node(host, {}).started()
            for number in range(1000):
                (result,) = await node.controller.create_topics([NewTopic(f"t{number}")])
                assert result.error == 0
                answered.append(f"t{number}")

        async def until() -> None:
            host.runtime.tasks.spawn(work(), name="work")
            await asyncio.sleep(world.rng("end").uniform(0.01, 0.3))
            getattr(host, end)()

        world.run(until())

        async def after() -> None:
            node = await Node(host, {}).started()
            topics = list(node.image.topics)
            assert topics[: len(answered)] == answered
            assert len(topics) <= len(answered) + 1

        world.run(after())


def test_the_journal_stays_short() -> None:
    async def scenario(host: SimHost) -> None:
        node = await Node(host, {}).started()
        await node.controller.create_topics([NewTopic("t")])
        largest = 0
        for number in range(200):
            replicas = ",".join(f"{i}:{number}" for i in range(1000))
            await node.controller.alter_configs([altered("t", "leader.replication.throttled.replicas", replicas)])
            largest = max(largest, sum(len(entry.data) for entry in await node.store.read(0, 10_000)))
        written = 200 * len(replicas)
        assert written > 5 * SNAPSHOT_BYTES_MIN
        assert largest < 2 * SNAPSHOT_BYTES_MIN
        assert await node.store.snapshot() is not None
        before = node.image
        await node.controller.stop()
        again = await Node(host, {}).started()
        assert again.image.topics["t"].config == before.topics["t"].config
        assert again.image.topics["t"].topic_id == before.topics["t"].topic_id
        assert again.image.position > before.position
        assert again.image.cluster_id == before.cluster_id

    run(scenario)


# Settings


def test_altered_settings_are_in_force_when_they_are_answered() -> None:
    async def scenario(node: Node) -> None:
        seen: list[object] = []
        await node.controller.subscribe(lambda old, new: seen.append(node.config.get("log.retention.ms")))
        await node.controller.alter_configs([Alteration(4, "1", [Change("log.retention.ms", Operation.SET, "7")])])
        assert seen == [None, 7]
        await node.controller.alter_configs([Alteration(4, "1", replace=True)])
        assert seen == [None, 7, None]

    with_node(scenario)


def test_settings_without_effect_are_warned_of_once_a_topic(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("t", config=[("preallocate", "true"), ("retention.ms", "5")])])
        await node.controller.alter_configs([altered("t", "retention.ms", "6")])
        await node.controller.create_partitions([MorePartitions("t", 2)])
        await node.controller.create_topics([NewTopic("u", config=[("retention.ms", "5")])])

    with caplog.at_level(logging.WARNING, "tidelog.metadata"):
        with_node(scenario)
    assert [record.getMessage() for record in caplog.records] == [
        "settings have no effect in Tidelog topic=t settings=preallocate"
    ]


# Topics on demand


def test_topics_are_made_on_demand() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topics([NewTopic("here", 7, 1)])
        results = await node.controller.ensure_topics(["here", "new", "bad name", "new"])
        assert [(r.name, r.error.name) for r in results] == [
            ("here", "NONE"),
            ("new", "NONE"),
            ("bad name", "INVALID_TOPIC_EXCEPTION"),
        ]
        assert len(node.image.topics["new"].partitions) == 3
        assert results[1].topic_id == node.image.topics["new"].topic_id

    with_node(scenario, num_partitions="3")


def test_a_topic_that_several_ask_for_at_once_is_made_once() -> None:
    async def scenario(node: Node) -> None:
        answers = await asyncio.gather(*(node.controller.ensure_topics(["t"]) for _ in range(5)))
        assert {result.topic_id for (result,) in answers} == {node.image.topics["t"].topic_id}
        assert all(result.error == 0 for (result,) in answers)

    with_node(scenario)


def test_the_coordinators_topic_is_made_as_it_is_needed() -> None:
    async def scenario(node: Node) -> None:
        (result,) = await node.controller.ensure_topics(["__consumer_offsets"])
        assert result.error == 0
        topic = node.image.topics["__consumer_offsets"]
        assert (len(topic.partitions), topic.replication_factor, topic.internal) == (5, 1, True)
        assert topic.config == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "104857600",
        }

    with_node(scenario, offsets_topic_num_partitions="5")


# Producer ids


def test_producer_ids_are_never_given_twice() -> None:
    async def scenario(host: SimHost) -> None:
        given: list[int] = []
        for _ in range(3):
            node = await Node(host, {}).started()
            ids = node.services.producer_ids
            given += await asyncio.gather(*(ids.next() for _ in range(700)))
            given += [await ids.next() for _ in range(700)]
            await node.controller.stop()
        assert len(set(given)) == len(given) == 4200
        assert given[:3] == [0, 1, 2]
        assert max(given) < 6000

    run(scenario)


def test_no_producer_id_without_the_store() -> None:
    async def scenario(host: SimHost) -> None:
        node, store = faulty_node(host)
        await node.started()
        store.refuse = StoreUnavailable("full")
        with pytest.raises(ApiError):
            await node.services.producer_ids.next()
        store.refuse = None
        assert await node.services.producer_ids.next() == 0

    run(scenario)


def test_a_journal_written_by_hand_is_read() -> None:
    """The format is for people too."""

    async def scenario(host: SimHost) -> None:
        node = Node(host, {})
        lease = await node.store.acquire("controller", "broker-1", None)
        assert lease is not None
        await node.store.append(0, encode(1, [ClusterNamed("by-hand")]), lease)
        await node.store.append(
            1,
            b'{"v": 1, "epoch": 1, "records": [{"kind": "topic", "name": "t", '
            b'"topic_id": "AAAAAAAAAAAAAAAAAAAAAQ", "partitions": [[2, [1]]]}]}',
            lease,
        )
        await node.started()
        assert len(node.image.topics["t"].partitions) == 2

    run(scenario)
