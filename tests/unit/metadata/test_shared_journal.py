"""Several brokers on one store: each follows the journal, one is the controller, and requests from all reach it."""

import asyncio

import pytest

from metadata_harness.shared import LEASE_MS, SharedCluster, SharedNode, run_shared
from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata import journal, link
from tidelog.metadata.cluster_upkeep import DISCARD_S
from tidelog.metadata.controller import NewTopic, TopicChoice
from tidelog.metadata.publisher import MetadataCache
from tidelog.metadata.records import (
    ClusterNamed,
    ControllerElected,
    JournalError,
    JournalRecord,
    TopicCreated,
    decode,
    encode,
    new_partition,
)
from tidelog.metadata.service import MetadataService
from tidelog.model.ids import TopicId
from tidelog.simulation.shared_store import SharedStore, StoreHandle
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ApiError, ErrorCode


def controllers_in(cluster: SharedCluster) -> list[tuple[int, int]]:
    """Return (node, epoch) of each claim in the journal."""
    return [
        (record.broker_id, record.epoch)
        for position, entry in cluster.store.entries.items()
        for record in decode(entry.data, position).records
        if isinstance(record, ControllerElected)
    ]


# Following


@pytest.mark.parametrize("nodes", [2, 3])
def test_one_is_the_controller_and_all_follow(nodes: int) -> None:
    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        (result,) = await controller.controller.create_topics([NewTopic("t", 6, 1)])
        assert result.error == 0
        await cluster.all_followed()
        assert [list(node.image.brokers) for node in cluster.nodes] == [list(range(1, nodes + 1))] * nodes
        topic_ids = {node.image.topics["t"].topic_id for node in cluster.nodes}
        assert topic_ids == {result.topic_id}
        opened = sorted(key for node in cluster.nodes for key in node.partitions.opened)
        assert opened == [("t", index) for index in range(6)]
        assert all(node.partitions.opened for node in cluster.nodes)

    run_shared(scenario, nodes=nodes)


def test_only_the_controller_lets_the_store_discard_its_history() -> None:
    """Renewals fill the history of some stores, also in a cluster whose metadata does not change."""

    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()
        await asyncio.sleep(3.5 * DISCARD_S)
        assert [node.store.discards for node in cluster.nodes] == [4 * (node is first) for node in cluster.nodes]
        await first.stop()
        second = await cluster.controller()
        await asyncio.sleep(1.5 * DISCARD_S)
        assert (first.store.discards, second.store.discards) == (4, 2)

    run_shared(scenario, nodes=2, virtual_s=10 * DISCARD_S)


def test_every_brokers_requests_reach_the_controller() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        for node in cluster.nodes:
            name = f"by-{node.node_id}"
            (result,) = await node.controller.create_topics([NewTopic(name, 2, 1)])
            assert result.error == 0
            assert name in node.image.topics, "the broker that was asked has not processed the change"
            assert name in controller.image.topics
            (refused,) = await node.controller.create_topics([NewTopic(name)], validate_only=True)
            assert refused.error == ErrorCode.TOPIC_ALREADY_EXISTS
        blocks = [await node.controller.allocate_producer_ids() for node in cluster.nodes]
        assert blocks == [(0, 1000), (1000, 2000), (2000, 3000)]

    run_shared(scenario, nodes=3)


def test_roles_change_before_files_are_worked_on() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        events: list[str] = []

        async def open_files(old: object, new: object) -> None:
            events.append("files of the first part")

        await controller.metadata.subscribe(open_files, lambda old, new: events.append("roles of the first part"))
        await controller.metadata.subscribe(
            lambda old, new: events.append("files of the second part"),
            lambda old, new: events.append("roles of the second part"),
        )
        events.clear()
        await controller.controller.create_topics([NewTopic("t")])
        assert events == [
            "roles of the first part",
            "roles of the second part",
            "files of the first part",
            "files of the second part",
        ]

    run_shared(scenario, nodes=2)


def test_a_role_listener_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()

        def fail(old: object, new: journal.MetadataImage) -> None:
            if new.topics:
                raise KeyError("t")

        await controller.metadata.subscribe(lambda old, new: None, fail)
        await controller.controller.create_topics([NewTopic("t")])
        assert "t" in controller.image.topics

    run_shared(scenario, nodes=2)
    assert "listener failed" in caplog.text


def test_entries_that_were_deleted_while_a_broker_was_away_are_in_the_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "SNAPSHOT_BYTES_MIN", 2000)

    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        follower = next(node for node in cluster.nodes if not node.is_controller)
        await controller.controller.create_topics([NewTopic("old")])
        await follower.followed(controller.image.position)
        follower.cut_off()
        for number in range(30):
            await controller.controller.create_topics([NewTopic(f"t{number}")])
        await controller.controller.delete_topics([TopicChoice("old")])
        await asyncio.sleep(1)
        assert follower.image.position not in cluster.store.entries
        cluster.world.network.heal()
        await cluster.all_followed()
        assert list(follower.image.topics) == list(controller.image.topics)
        assert ("old", 0) not in follower.partitions.roles
        assert not follower.failures

    run_shared(scenario, nodes=2)


def test_a_journal_that_was_deleted_up_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower whose next entry is deleted, and with it all later ones, finds nothing to read but the snapshot."""
    monkeypatch.setattr(journal, "SNAPSHOT_BYTES_MIN", 1)

    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        follower = next(node for node in cluster.nodes if not node.is_controller)
        follower.cut_off()
        await controller.controller.create_topics([NewTopic(f"t{number}", 10) for number in range(100)])
        await asyncio.sleep(1)
        assert not cluster.store.entries
        cluster.world.network.heal()
        await cluster.all_followed()
        assert len(follower.image.topics) == 100

    run_shared(scenario, nodes=2)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (b"garbage", "metadata entry {} is damaged"),
        (
            b'{"v":1,"epoch":1,"records":[{"kind":"later"}]}',
            "metadata entry {} has a 'later' record, which is unknown here",
        ),
        (
            b'{"v":1,"epoch":1,"records":[{"kind":"topic-deleted","topic_id":"AAAAAAAAAAAAAAAAAAAAAQ"}]}',
            "metadata entry {} contradicts the entries before it",
        ),
        (b'{"v":1,"epoch":1,"records":[' + b" " * 20_000 + b'{"kind":"later"}]}', "metadata entry {} has a 'later'"),
    ],
)
def test_an_entry_that_cannot_be_replayed_stops_the_broker(entry: bytes, reason: str) -> None:
    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        follower = next(node for node in cluster.nodes if not node.is_controller)
        await cluster.all_followed()
        lease = controller.metadata._lease
        assert lease is not None
        position = cluster.store.next_position
        cluster.store.append(position, entry, lease.lease, "", 0)
        while not follower.failures:
            await asyncio.sleep(0.1)
        assert follower.failures[0].startswith(reason.format(position))
        assert follower.image.position == position

    run_shared(scenario, nodes=2)


def test_a_missing_entry_stops_the_broker() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        follower = next(node for node in cluster.nodes if not node.is_controller)
        await cluster.all_followed()
        follower.cut_off()
        missing = cluster.store.next_position
        await controller.controller.create_topics([NewTopic("t")])
        await controller.controller.create_topics([NewTopic("u")])
        del cluster.store.entries[missing]
        cluster.world.network.heal()
        while not follower.failures:
            await asyncio.sleep(0.1)
        assert follower.failures == [f"metadata entry {missing} is missing"]

    run_shared(scenario, nodes=2)


def test_a_broker_joins_a_cluster_that_has_been_running() -> None:
    async def start(cluster: SharedCluster) -> None:
        first, second = cluster.nodes
        await first.start()
        await first.controller.create_topics([NewTopic("t", 4)])
        await second.start()
        assert "t" in second.image.topics
        assert second.image.cluster_id == first.image.cluster_id
        (result,) = await second.controller.create_topics([NewTopic("u", 4)])
        assert result.error == 0
        assert {state.leader for state in second.image.topics["u"].partitions} == {1, 2}

    with simulated(1) as world:
        world.run(start(SharedCluster(world, 2)))


def test_a_new_cluster_whose_first_controller_died_before_its_first_entry() -> None:
    async def start(cluster: SharedCluster) -> None:
        assert cluster.store.acquire("controller", "broker-9/dead", LEASE_MS) is not None
        await cluster.start()
        await cluster.controller()
        assert cluster.world.loop.time() < 3 * LEASE_MS / 1000
        await cluster.all_followed()
        assert {node.image.cluster_id for node in cluster.nodes} == {cluster.nodes[0].image.cluster_id}
        assert list(cluster.nodes[0].image.brokers) == [1, 2]

    with simulated(1) as world:
        world.run(start(SharedCluster(world, 2)))


def test_a_broker_of_another_cluster_claims_nothing() -> None:
    async def start(cluster: SharedCluster) -> None:
        first, second = cluster.nodes
        await first.start()
        position = cluster.store.next_position
        first.host.kill()
        await asyncio.sleep(2 * LEASE_MS / 1000)
        starting = second.start(cluster_id="another")
        with pytest.raises(JournalError, match="the data directories to cluster another"):
            await starting
        assert cluster.store.next_position == position

    with simulated(1) as world:
        world.run(start(SharedCluster(world, 2)))


def test_a_restarted_follower_begins_new_leader_epochs() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        follower = next(node for node in cluster.nodes if not node.is_controller)
        await controller.controller.create_topics([NewTopic("t", 4)])
        follower.host.kill()
        await follower.start()
        await cluster.all_followed()
        epochs = {state.leader: state.leader_epoch for state in controller.image.topics["t"].partitions}
        # Its registration ended one epoch, and its election began the next one.
        assert epochs == {controller.node_id: 0, follower.node_id: 2}

    run_shared(scenario, nodes=2)


# The controller is replaced


@pytest.mark.parametrize("end", ["kill", "stop", "cut_power"])
def test_a_controller_that_ended_is_replaced(end: str) -> None:
    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()
        await first.controller.create_topics([NewTopic("t")])
        if end == "stop":
            await first.stop()
        else:
            getattr(first.host, end)()
        began_s = cluster.world.loop.time()
        second = await cluster.controller()
        assert second is not first
        assert cluster.world.loop.time() - began_s < LEASE_MS / 1000 * 1.6
        (result,) = await second.controller.create_topics([NewTopic("u")])
        assert result.error == 0
        await first.start()
        assert not first.is_controller
        await cluster.all_followed()
        assert list(first.image.topics) == ["t", "u"]
        assert controllers_in(cluster) == [(first.node_id, 1), (second.node_id, 2)]

    run_shared(scenario, nodes=3)


def test_a_request_waits_for_the_next_controller() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()
        other = next(node for node in cluster.nodes if node is not first)
        first.host.kill()
        (result,) = await other.controller.create_topics([NewTopic("t")], timeout_ms=20_000)
        assert result.error == 0

    run_shared(scenario, nodes=3)


def test_without_a_controller_a_request_is_answered_before_its_client_gives_up() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        for node in cluster.nodes:
            node.cut_off()
        await asyncio.sleep(2 * LEASE_MS / 1000)
        began_s = cluster.world.loop.time()
        request = link.CreateTopics([NewTopic("t")], timeout_ms=60_000)
        answer = await cluster.nodes[0].metadata.link.create_topics(request)
        assert answer.error == ErrorCode.NOT_CONTROLLER
        assert answer.message
        assert cluster.world.loop.time() - began_s < link.CONTROLLER_WAIT_S + 1

    run_shared(scenario, nodes=2)


def test_without_a_controller_the_time_is_up() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()
        other = next(node for node in cluster.nodes if node is not first)
        first.host.kill()
        other.cut_off()
        for timeout_ms, code in ((0, ErrorCode.REQUEST_TIMED_OUT), (300, ErrorCode.NOT_CONTROLLER)):
            with pytest.raises(ApiError) as caught:
                await other.controller.create_topics([NewTopic("t")], timeout_ms=timeout_ms)
            assert caught.value.code == code

    run_shared(scenario, nodes=2)


def test_all_that_claim_at_once_leave_one_controller() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        for _ in range(5):
            old = await cluster.controller()
            old.host.kill()
            await cluster.controller()
            await old.start()
        await cluster.all_followed()
        epochs = [epoch for _, epoch in controllers_in(cluster)]
        assert epochs == sorted(set(epochs))
        assert len(epochs) == 6

    run_shared(scenario, nodes=3, seed=5)


def test_two_processes_of_one_broker_do_not_take_the_lease_from_each_other() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        node = cluster.nodes[0]
        twin = SharedNode(cluster, 1)
        twin.host = cluster.world.host("twin")
        starting = asyncio.ensure_future(twin.start())
        await asyncio.sleep(30)
        assert node.is_controller
        assert not twin.is_controller
        assert controllers_in(cluster) == [(1, 1)]
        starting.cancel()

    run_shared(scenario, nodes=1)


def test_nothing_is_decided_before_the_claim_is_in() -> None:
    """The second broker has the lease, but its claim does not get through."""

    async def scenario(cluster: SharedCluster) -> None:
        first, second = cluster.nodes
        await cluster.all_followed()
        first.host.kill()
        while second.metadata._lease is None:
            await asyncio.sleep(0.0002)
        second.store.hold()
        await asyncio.sleep(0.5)
        answer = await second.metadata.controller.execute(link.CreateTopics([NewTopic("t")]))
        assert answer.error == ErrorCode.NOT_CONTROLLER
        second.store.go_on()
        assert await cluster.controller() is second
        assert (await second.controller.create_topics([NewTopic("t")]))[0].error == 0

    run_shared(scenario, nodes=2)


# The lease


def test_a_controller_that_is_cut_off_stops_before_its_lease_ends() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()
        await first.controller.create_topics([NewTopic("t")])
        await asyncio.sleep(2.3)
        first.cut_off()
        cut_s = cluster.world.loop.time()
        while not [node for node in cluster.controllers_now if node is not first]:
            await asyncio.sleep(0.01)
            if cluster.world.loop.time() > cut_s + LEASE_MS / 1000:
                assert not first.is_controller
        second = next(node for node in cluster.controllers_now if node is not first)
        await second.controller.delete_topics([TopicChoice("t")])
        stale = await first.metadata.controller.execute(link.CreateTopics([NewTopic("t")], validate_only=True))
        assert stale.error == ErrorCode.NOT_CONTROLLER
        cluster.world.network.heal()
        await cluster.all_followed()
        assert not first.image.topics
        assert not first.is_controller

    run_shared(scenario, nodes=3)


def test_a_holder_that_is_paused_does_not_answer_from_its_old_image() -> None:
    """The process is paused while it decides a request. When it goes on, the clock says that its lease has ended."""

    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()
        await first.controller.create_topics([NewTopic("t")])
        first.store.hold()
        await asyncio.sleep(LEASE_MS / 1000)
        second = await cluster.controller()
        assert second is not first
        await second.controller.delete_topics([TopicChoice("t")])
        answer = await first.metadata.controller.execute(link.CreateTopics([NewTopic("t")], validate_only=True))
        assert answer.error == ErrorCode.NOT_CONTROLLER
        first.store.go_on()
        (result,) = await first.controller.create_topics([NewTopic("t")], validate_only=True)
        assert result.error == 0

    run_shared(scenario, nodes=2)


def test_a_lease_that_ends_while_a_change_is_decided() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()
        await first.controller.create_topics([NewTopic("t")])
        lease = first.metadata._lease
        assert lease is not None
        changing = first.host.runtime.tasks.spawn(
            first.metadata.controller.execute(link.CreateTopics([NewTopic("t")], validate_only=True)), name="change"
        )
        await asyncio.sleep(0)
        lease.lose("the test")
        assert (await changing).error == ErrorCode.NOT_CONTROLLER

    run_shared(scenario, nodes=2)


def test_an_append_that_is_paused_beyond_the_lease_is_refused() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()
        await cluster.all_followed()
        first.store.hold()
        changing = asyncio.ensure_future(first.metadata.controller.execute(link.CreateTopics([NewTopic("paused")])))
        await asyncio.sleep(LEASE_MS / 1000)
        second = await cluster.controller()
        await second.controller.create_topics([NewTopic("t")])
        first.store.go_on()
        assert (await changing).error == ErrorCode.NOT_CONTROLLER
        await cluster.all_followed()
        assert list(first.image.topics) == ["t"]

    run_shared(scenario, nodes=2)


def test_a_confirmed_append_is_answered_even_if_the_lease_has_ended() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()

        async def pause() -> None:
            first.store.hold()
            await asyncio.sleep(2 * LEASE_MS / 1000)
            first.store.go_on()

        first.store.after_append = pause
        answer = await first.metadata.controller.execute(link.CreateTopics([NewTopic("t")]))
        assert answer.error == 0
        await cluster.all_followed()
        assert all(list(node.image.topics) == ["t"] for node in cluster.nodes)

    run_shared(scenario, nodes=2)


# Appends without an answer


@pytest.mark.parametrize("fate", ["done", "not done", "done later"])
def test_an_append_whose_answer_is_lost_is_read_back(fate: str) -> None:
    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        controller.store.lose_next = fate
        (result,) = await controller.controller.create_topics([NewTopic("t")])
        assert result.error == 0
        (again,) = await controller.controller.create_topics([NewTopic("t")])
        assert again.error == ErrorCode.TOPIC_ALREADY_EXISTS
        (other,) = await controller.controller.create_topics([NewTopic("u")])
        assert other.error == 0
        assert controller.is_controller
        await cluster.all_followed()
        assert all(list(node.image.topics) == ["t", "u"] for node in cluster.nodes)

    run_shared(scenario, nodes=2)


@pytest.mark.parametrize("fate", ["done", "not done"])
def test_nothing_is_answered_until_the_outcome_is_known(fate: str) -> None:
    """The answer is lost, and then the link. The next controller's claim takes the position, or the one after it."""

    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()
        first.store.lose_next = fate

        async def cut_off() -> None:
            first.cut_off()

        first.store.after_append = cut_off
        changing = asyncio.ensure_future(
            first.metadata.controller.execute(link.CreateTopics([NewTopic("t")], timeout_ms=60_000))
        )
        await asyncio.sleep(2 * LEASE_MS / 1000)
        assert not changing.done()
        second = await cluster.controller()
        assert second is not first
        cluster.world.network.heal()
        answer = await changing
        assert answer.error == (ErrorCode.NONE if fate == "done" else ErrorCode.NOT_CONTROLLER)
        assert ("t" in second.image.topics) == (fate == "done")
        assert ("t" in first.image.topics) == (fate == "done")

    run_shared(scenario, nodes=2)


def test_an_outcome_that_cannot_be_found_out_is_not_answered_as_an_error_that_promises_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "SNAPSHOT_BYTES_MIN", 1)

    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()
        first.store.lose_next = "done"

        async def cut_off() -> None:
            first.cut_off()

        first.store.after_append = cut_off
        changing = asyncio.ensure_future(first.metadata.controller.execute(link.CreateTopics([NewTopic("t")])))
        await asyncio.sleep(2 * LEASE_MS / 1000)
        second = await cluster.controller()
        await second.controller.create_topics([NewTopic(f"t{number}", 10) for number in range(100)])
        await asyncio.sleep(1)
        cluster.world.network.heal()
        assert (await changing).error == ErrorCode.REQUEST_TIMED_OUT
        await cluster.all_followed()
        assert "t" in first.image.topics

    run_shared(scenario, nodes=2)


@pytest.mark.parametrize("fate", ["done", "not done", "done later"])
def test_a_claim_whose_answer_is_lost(fate: str) -> None:
    async def scenario(cluster: SharedCluster) -> None:
        first, second = cluster.nodes
        await cluster.all_followed()
        first.host.kill()
        second.store.lose_next = fate
        assert await cluster.controller() is second
        assert (await second.controller.create_topics([NewTopic("t")]))[0].error == 0
        assert controllers_in(cluster) == [(1, 1), (2, 2)]

    run_shared(scenario, nodes=2)


def test_a_claim_comes_after_all_that_others_have_appended() -> None:
    """The position of the claim is taken when it arrives: it is repeated behind the entry there."""

    async def scenario(cluster: SharedCluster) -> None:
        first, second = cluster.nodes
        await cluster.all_followed()
        first.host.kill()
        while second.metadata._lease is None:
            await asyncio.sleep(0.0002)
        position = cluster.store.next_position
        cluster.store.append(position, encode(1, [ClusterNamed("renamed")]), second.metadata._lease.lease, "", 0)
        assert await cluster.controller() is second
        assert second.image.cluster_id == "renamed"
        assert second.image.position == position + 2

    run_shared(scenario, nodes=2)


def test_a_request_whose_answer_is_lost_between_the_brokers_is_not_sent_again() -> None:
    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        follower = next(node for node in cluster.nodes if node is not controller)
        cluster.world.network.partition_one_way(controller.host.name, follower.host.name)
        with pytest.raises(ApiError) as caught:
            await follower.controller.create_topics([NewTopic("t")], timeout_ms=60_000)
        assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert "t" in controller.image.topics
        (result,) = await controller.controller.create_topics([NewTopic("u")])
        assert result.error == 0
        asking = asyncio.ensure_future(follower.controller.allocate_producer_ids())
        await asyncio.sleep(12)
        assert not asking.done()
        cluster.world.network.heal()
        first, end = await asking
        assert end - first == 1000

    run_shared(scenario, nodes=2)


def test_a_change_that_is_too_large_for_one_entry_is_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreHandle, "entry_bytes_max", 2000)

    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        position = cluster.store.next_position
        results = await controller.controller.create_topics([NewTopic(f"t{number}") for number in range(100)])
        assert all(result.error == 0 for result in results)
        assert cluster.store.next_position > position + 5
        assert all(len(entry.data) <= 2000 for entry in cluster.store.entries.values())
        await cluster.all_followed()
        assert all(len(node.image.topics) == 100 for node in cluster.nodes)

    run_shared(scenario, nodes=2)


def test_a_change_of_several_entries_that_ends_in_the_middle_is_not_answered_as_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StoreHandle, "entry_bytes_max", 2000)

    async def scenario(cluster: SharedCluster) -> None:
        first = await cluster.controller()

        async def cut_off() -> None:
            first.cut_off()

        first.store.after_append = cut_off
        request = link.CreateTopics([NewTopic(f"t{number}") for number in range(100)])
        answer = await first.metadata.controller.execute(request)
        assert answer.error == ErrorCode.REQUEST_TIMED_OUT
        cluster.world.network.heal()
        await cluster.controller()
        await cluster.all_followed()
        counts = {len(node.image.topics) for node in cluster.nodes}
        assert len(counts) == 1
        assert 0 < counts.pop() < 100

    run_shared(scenario, nodes=2)


def test_a_record_that_is_too_large_for_an_entry_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreHandle, "entry_bytes_max", 2000)

    async def scenario(cluster: SharedCluster) -> None:
        controller = await cluster.controller()
        position = cluster.store.next_position
        topics = [
            NewTopic("small"),
            NewTopic("large", config=[("leader.replication.throttled.replicas", "0:1," * 999 + "0:1")]),
        ]
        with pytest.raises(ApiError, match="exceeds the 2000 bytes") as caught:
            await controller.controller.create_topics(topics)
        assert caught.value.code == ErrorCode.POLICY_VIOLATION
        assert cluster.store.next_position == position

    run_shared(scenario, nodes=2)


def test_an_adoption_that_is_too_large_for_one_entry_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the topics would be there after a kill, and the rest would never be adopted."""
    monkeypatch.setattr(StoreHandle, "entry_bytes_max", 2000)

    async def adopted() -> list[JournalRecord]:
        return [TopicCreated(f"t{n}", TopicId(bytes([n]) * 16), (new_partition((1,)),)) for n in range(1, 101)]

    async def life(world: World) -> None:
        store = SharedStore(world)
        runtime = world.host("broker-1").start()
        config = BrokerConfig.load(None, {}, {"node.id": "1"})
        handle = store.handle("broker-1", runtime)
        service = MetadataService(handle, config, runtime, MetadataCache(), lease_ms=LEASE_MS)
        with pytest.raises(JournalError, match=r"adopt these data directories without metadata\.store"):
            await service.start("cluster", adopted)
        assert store.next_position == 0
        await service.stop()

    with simulated(1) as world:
        world.run(life(world))
