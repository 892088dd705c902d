"""Real brokers of one simulated cluster: registration, fencing, elections, lost leases, controlled shutdown."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tidelog.broker.broker import BrokerServer
from tidelog.broker.last_run import LAST_RUN, LastRun, read_last_run
from tidelog.client.operations import Request
from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata import link
from tidelog.metadata.alterations import Alteration, Change, Operation
from tidelog.metadata.controller import NewTopic
from tidelog.metadata.image import ELR_FEATURE, METADATA_FEATURE, NO_LEADER, TRANSACTION_FEATURE, MetadataImage
from tidelog.metadata.isr_changes import IsrProposal
from tidelog.metadata.records import ClusterNamed, ControllerElected, PartitionState, encode
from tidelog.metadata.store import LeaseLost
from tidelog.replication.partitions import Partitions
from tidelog.runtime.boot import read_boot_id
from tidelog.simulation.cluster import LEASE_MS, SimCluster, SimNode
from tidelog.simulation.shared_store import HOST as STORE_HOST
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse

TOPIC_RESOURCE = 2
ELECTIONS_S = 2.0
"""Time after the end of a broker's lease within which all its partitions must have new leaders."""


def run(scenario: Callable[[SimCluster], Awaitable[None]], *, brokers: int = 3, seed: int = 1, **settings: str) -> None:
    async def life(world: World) -> None:
        texts = {name.replace("_", "."): text for name, text in settings.items()}
        cluster = SimCluster(world, brokers, texts)
        await cluster.start()
        await scenario(cluster)

    with simulated(seed) as world:
        world.run(life(world))


def broker_of(node: SimNode) -> BrokerServer:
    assert node.broker is not None
    return node.broker


def image_of(node: SimNode) -> MetadataImage:
    return broker_of(node).services.metadata.image


async def controller_of(cluster: SimCluster) -> SimNode:
    """Wait until a broker is the controller, and return it."""
    while True:
        for node in cluster.nodes:
            controller = node.broker and node.broker.controller
            if controller is not None and controller.is_active and not node.host.paused:
                return node
        await asyncio.sleep(0.05)


async def create(cluster: SimCluster, name: str, partitions: int, factor: int = 3) -> None:
    """Create a topic, and wait until every broker has its partitions."""
    node = cluster.nodes[0]
    request = link.CreateTopics([NewTopic(name, partitions, factor)])
    creating = broker_of(node).services.controller.create_topics(request)
    (result,) = (await node.host.runtime.tasks.spawn(creating, name="create")).result()
    assert result.error == ErrorCode.NONE, result
    for each in cluster.nodes:
        await until(lambda each=each: name in image_of(each).topics)  # type: ignore[misc]


def states(node: SimNode, topic: str) -> tuple[PartitionState, ...]:
    return image_of(node).topics[topic].partitions


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> float:
    """Wait until the condition is true. Returns the time that it took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not condition():
        assert loop.time() - began_s < timeout_s, "the condition has not become true"
        await asyncio.sleep(0.02)
    return loop.time() - began_s


def led_here(node: SimNode, topic: str) -> list[int]:
    """Return the partitions that the broker serves as their leader."""
    return [p.index for p in broker_of(node).services.partitions if p.topic == topic and p.replica.leads]


# Registration


def test_brokers_register_fenced_and_serve_when_they_are_unfenced() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await asyncio.sleep(1)
        for node in cluster.nodes:
            image = image_of(node)
            assert image.feature_levels == {METADATA_FEATURE: 1, ELR_FEATURE: 1, TRANSACTION_FEATURE: 2}
            assert image.broker_configs == {"": {"min.insync.replicas": "1"}}
            assert list(image.brokers) == [1, 2, 3]
            assert all(broker.active for broker in image.brokers.values())
            own = image.brokers[node.node_id]
            assert broker_of(node).broker_epoch == own.epoch >= 0
            assert len(own.directories) == 1
            assert METADATA_FEATURE in own.features

    run(scenario)


def test_one_broker_with_its_own_store_stays_at_level_0() -> None:
    async def scenario(cluster: SimCluster) -> None:
        (node,) = cluster.nodes
        image = image_of(node)
        (broker,) = image.brokers.values()
        assert image.feature_levels == {}
        assert (broker.fenced, broker.features, broker.directories, broker.boot_id) == (False, {}, (), "")
        assert broker_of(node).broker_epoch == -1

    run(scenario, brokers=1)


def test_a_second_process_with_the_same_node_id_is_refused() -> None:
    async def scenario(cluster: SimCluster) -> None:
        first = cluster.nodes[1]
        epoch = broker_of(first).broker_epoch
        host = cluster.world.host("impostor")
        config = BrokerConfig.load(
            None,
            {},
            {
                "node.id": str(first.node_id),
                "log.dirs": "/data",
                "listeners": f"PLAINTEXT://{host.address}:9092",
                "broker.session.timeout.ms": str(LEASE_MS),
            },
        )
        runtime = host.runtime
        second = BrokerServer(
            config,
            runtime,
            store_factory=lambda _path, of: cluster.store.handle(host.name, of),
            lease_ms=LEASE_MS,
        )
        with pytest.raises(LeaseLost, match=r"another process runs as broker 2: stop it, or choose another node\.id"):
            await runtime.tasks.spawn(second.start(), name="start")
        assert broker_of(first).broker_epoch == epoch == image_of(first).brokers[2].epoch
        assert image_of(first).brokers[2].active

    run(scenario)


def test_a_killed_broker_that_starts_again_need_not_wait_for_its_lease() -> None:
    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "t", 6)
        node = next(node for node in cluster.nodes if node is not controller)
        before = image_of(controller).brokers[node.node_id]
        node.kill()
        began_s = cluster.world.loop.time()
        await node.start()
        assert cluster.world.loop.time() - began_s < LEASE_MS / 1000 / 2
        after = image_of(controller).brokers[node.node_id]
        assert (after.epoch > before.epoch, after.incarnation != before.incarnation, after.active) == (True,) * 3
        # The registration of the new run ended the leaderships and places in ISRs of the old one.
        for state in states(controller, "t"):
            assert state.leader != node.node_id
            assert node.node_id not in state.isr

    run(scenario)


def test_a_copy_of_a_data_directory_does_not_end_the_lease_of_the_running_broker() -> None:
    async def scenario(cluster: SimCluster) -> None:
        node = cluster.nodes[1]
        disk = node.host.disk
        (path,) = broker_of(node).config.data_directories
        boot_id = read_boot_id(disk)
        run = read_last_run(disk, [path], boot_id)
        assert (run.incarnation, run.has_ended) == (image_of(node).brokers[2].incarnation, True)
        disk.make_dirs("/copy")
        disk.write_atomic(f"/copy/{LAST_RUN}", disk.read(f"{path}/{LAST_RUN}"))
        assert read_last_run(disk, ["/copy"], boot_id) == run._replace(has_ended=False)
        without_names = LastRun(broker_epoch=run.broker_epoch, is_synced=run.is_synced)
        assert read_last_run(disk, [path, "/copy"], boot_id) == without_names
        assert not read_last_run(disk, [path], "another-boot").has_ended

    run(scenario)


# The level of tidelog.metadata.version


def level_of(node: SimNode, level: int, feature: str = METADATA_FEATURE, upgrade_type: int = 1) -> Awaitable[object]:
    """Ask the broker to finalize a level, as kafka-features does."""
    update = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=upgrade_type)
    client = node._cluster.client("admin")
    return client.ask(Request(node.address, UpdateFeaturesRequest(feature_updates=[update])))


def test_a_journal_of_level_0_works_without_fencing_until_its_level_is_raised() -> None:
    async def life(world: World) -> None:
        cluster = SimCluster(world, 3)
        lease = cluster.store.acquire("controller", "an older version", 1)
        assert lease is not None
        cluster.store.append(0, encode(1, [ClusterNamed("old"), ControllerElected(9, 1)]), lease, "", 0)
        await cluster.start()
        controller = await controller_of(cluster)
        await create(cluster, "t", 6)
        assert image_of(controller).feature_levels == {}
        first, second = (node for node in cluster.nodes if node is not controller)
        first.kill()
        await asyncio.sleep(2 * LEASE_MS / 1000)
        assert image_of(controller).brokers[first.node_id].active
        await first.start()
        for _ in range(2):  # a request for the present level succeeds, too
            response = await level_of(second, 1)
            assert isinstance(response, UpdateFeaturesResponse)
            assert (response.error_code, response.error_message) == (0, None)
        assert image_of(second).feature_levels == {METADATA_FEATURE: 1}
        lowered = await level_of(second, 0, upgrade_type=3)
        assert isinstance(lowered, UpdateFeaturesResponse)
        assert lowered.error_code == ErrorCode.INVALID_UPDATE_VERSION
        first.kill()
        await until(lambda: image_of(controller).brokers[first.node_id].fenced)
        assert all(state.leader != first.node_id for state in states(controller, "t"))

    with simulated(1) as world:
        world.run(life(world))


def test_eligible_leader_replicas_can_be_switched_off_and_on() -> None:
    async def scenario(cluster: SimCluster) -> None:
        node = cluster.nodes[2]
        for level, upgrade_type in ((0, 2), (1, 1)):
            response = await level_of(node, level, ELR_FEATURE, upgrade_type)
            assert isinstance(response, UpdateFeaturesResponse)
            assert response.error_code == 0, response.error_message
            assert image_of(node).feature_levels.get(ELR_FEATURE, 0) == level
        unknown = await level_of(node, 1, "no.such.version")
        assert isinstance(unknown, UpdateFeaturesResponse)
        assert unknown.error_code == ErrorCode.INVALID_UPDATE_VERSION

    run(scenario)


# The end of a broker


@pytest.mark.parametrize("victim", ["the controller", "another broker"])
@pytest.mark.parametrize("end", ["kill", "cut_power"])
def test_a_dead_broker_is_fenced_and_its_1000_partitions_get_leaders(victim: str, end: str) -> None:
    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "t", 1000)
        dying = controller if victim == "the controller" else next(n for n in cluster.nodes if n is not controller)
        witness = next(node for node in cluster.nodes if node is not dying)
        led = {index for index, state in enumerate(states(witness, "t")) if state.leader == dying.node_id}
        assert len(led) > 300
        name = f"broker/{dying.node_id}"
        getattr(dying, end)()
        lease_s = await until(lambda: all(lease.name != name for lease in cluster.store.leases.held("broker/")))
        assert lease_s > LEASE_MS / 1000 / 2
        elections_s = await until(lambda: all(states(witness, "t")[index].leader != dying.node_id for index in led))
        assert elections_s < ELECTIONS_S
        assert image_of(witness).brokers[dying.node_id].fenced
        for index, state in enumerate(states(witness, "t")):
            assert state.leader not in (NO_LEADER, dying.node_id)
            assert dying.node_id not in state.isr
            assert state.leader_epoch == (1 if index in led else 0)
        for node in cluster.nodes:
            if node is not dying:
                await until(lambda node=node: len(led_here(node, "t")) >= 450)

    run(scenario)


def test_a_fenced_broker_comes_back_with_a_new_epoch_and_leads_what_only_it_can_lead() -> None:
    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "alone", 6, factor=1)
        node = next(node for node in cluster.nodes if node is not controller)
        (led, _) = [i for i, state in enumerate(states(controller, "alone")) if state.leader == node.node_id]
        node.kill()
        await until(lambda: states(controller, "alone")[led].leader == NO_LEADER)
        await node.start()
        state = states(node, "alone")[led]
        assert (state.leader, state.isr, state.leader_epoch) == (node.node_id, (node.node_id,), 2)
        assert led in led_here(node, "alone")

    run(scenario)


def test_a_running_broker_that_was_unregistered_registers_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "t", 6)
        node = next(node for node in cluster.nodes if node is not controller)
        epoch = broker_of(node).broker_epoch
        unregistering = broker_of(controller).services.controller.unregister_broker(link.UnregisterBroker(node.node_id))
        (await controller.host.runtime.tasks.spawn(unregistering, name="unregister")).result()
        await until(lambda: broker_of(node).broker_epoch > epoch)
        await until(lambda: image_of(controller).is_active(node.node_id))
        assert image_of(controller).brokers[node.node_id].epoch == broker_of(node).broker_epoch
        await until(lambda: all(node.node_id in state.isr for state in states(controller, "t")))
        assert not broker_of(node)._failed.done()
        await node.stop()
        await node.start()
        assert image_of(node).is_active(node.node_id)

    run(scenario)


# Lost leases


def test_a_paused_broker_is_fenced_and_serves_nothing_when_it_goes_on() -> None:
    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "t", 6)
        node = next(node for node in cluster.nodes if node is not controller)
        epoch = broker_of(node).broker_epoch
        assert led_here(node, "t")
        node.host.pause()
        await until(lambda: image_of(controller).brokers[node.node_id].fenced)
        node.host.resume()
        await asyncio.sleep(0.001)
        assert led_here(node, "t") == []
        await until(lambda: image_of(controller).brokers[node.node_id].active)
        assert broker_of(node).broker_epoch == epoch, "it is the same run"
        assert led_here(node, "t") == []
        assert not broker_of(node)._failed.done()

    run(scenario)


def test_a_broker_that_regains_its_lease_during_its_start_is_not_unfenced_before_it_can_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it may become the leader of partitions whose logs it has not opened."""
    open_logs = Partitions.start

    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "t", 6)
        node = next(node for node in cluster.nodes if node is not controller)
        node.kill()
        may_open = asyncio.Event()
        is_opening = asyncio.Event()

        async def open_logs_later(partitions: Partitions) -> None:
            is_opening.set()
            await may_open.wait()
            await open_logs(partitions)

        monkeypatch.setattr(Partitions, "start", open_logs_later)
        starting = asyncio.create_task(node.start())
        await is_opening.wait()
        leases = cluster.store.leases
        name = f"broker/{node.node_id}"
        node.host.pause()
        await until(lambda: all(lease.name != name for lease in leases.held("broker/")))
        node.host.resume()
        await until(lambda: any(lease.name == name for lease in leases.held("broker/")))
        await asyncio.sleep(5)  # several times the interval of heartbeats
        assert image_of(controller).brokers[node.node_id].fenced
        may_open.set()
        await starting
        assert image_of(controller).brokers[node.node_id].active

    run(scenario)


def test_a_broker_whose_lease_another_process_acquired_stops(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        node = next(node for node in cluster.nodes if node is not controller)
        node.host.pause()
        await until(lambda: image_of(controller).brokers[node.node_id].fenced)
        assert cluster.store.acquire(f"broker/{node.node_id}", "another run", LEASE_MS) is not None
        node.host.resume()
        reason = await asyncio.wait_for(broker_of(node).wait_for_failure(), 10)
        assert reason == f"another process runs as broker {node.node_id}"

    run(scenario)


def test_while_the_store_is_away_leaders_serve_on_until_a_follower_no_longer_fetches() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create(cluster, "t", 6)
        await create(cluster, "alone", 6, factor=1)
        network, names = cluster.world.network, [node.host.name for node in cluster.nodes]
        for name in names:
            network.partition(name, STORE_HOST)
        await asyncio.sleep(3 * LEASE_MS / 1000)
        for node in cluster.nodes:
            assert len(led_here(node, "t")) == len(led_here(node, "alone")) == 2
        network.partition(names[0], names[1])
        network.partition(names[0], names[2])
        await asyncio.sleep(LEASE_MS / 1000 + 1)
        for node in cluster.nodes:
            assert led_here(node, "t") == [], "a member of the ISR may be the leader by now"
            assert len(led_here(node, "alone")) == 2, "no other broker can lead it"
        network.heal()
        for node in cluster.nodes:
            await until(lambda node=node: len(led_here(node, "t")) == 2)
            assert all(broker.active for broker in image_of(node).brokers.values())
            assert {state.leader_epoch for state in states(node, "t")} == {0}
            assert not broker_of(node)._failed.done()

    run(scenario)


def test_a_broker_that_cannot_reach_the_store_is_fenced_resigns_and_comes_back() -> None:
    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "t", 6)
        node = next(node for node in cluster.nodes if node is not controller)
        cluster.world.network.partition(node.host.name, STORE_HOST)
        await until(lambda: image_of(controller).brokers[node.node_id].fenced)
        # The other members of the ISR follow new leaders now, so they fetch no more from this one.
        resigned_s = await until(lambda: led_here(node, "t") == [])
        assert resigned_s < LEASE_MS / 1000 + 1
        cluster.world.network.heal()
        await until(lambda: image_of(controller).brokers[node.node_id].active)
        await until(lambda: all(node.node_id in state.isr for state in states(controller, "t")))
        assert led_here(node, "t") == []

    run(scenario)


# AlterPartition, elections


def test_a_leader_changes_the_isr_through_the_controller() -> None:
    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "t", 3)
        node = next(node for node in cluster.nodes if node is not controller)
        topic = image_of(node).topics["t"]
        (index,) = [i for i, state in enumerate(topic.partitions) if state.leader == node.node_id]
        controllers = broker_of(node).services.controller

        async def propose(broker_epoch: int, partition_epoch: int) -> link.Answer[object]:
            isr = [(node.node_id, broker_of(node).broker_epoch)]
            proposal = IsrProposal(topic.topic_id, index, 0, partition_epoch, isr)
            request = link.AlterPartition(node.node_id, broker_epoch, [proposal])
            return await node.host.runtime.tasks.spawn(controllers.alter_partition(request), name="propose")  # type: ignore[return-value]

        stale = await propose(broker_of(node).broker_epoch - 1, 0)
        assert stale.error is ErrorCode.STALE_BROKER_EPOCH
        (result,) = (await propose(broker_of(node).broker_epoch, 0)).result()  # type: ignore[misc]
        assert (result.error, result.state.isr, result.state.partition_epoch) == (ErrorCode.NONE, (node.node_id,), 1)
        assert states(node, "t")[index] == result.state
        (again,) = (await propose(broker_of(node).broker_epoch, 0)).result()  # type: ignore[misc]
        assert again.error is ErrorCode.INVALID_UPDATE_VERSION

    run(scenario)


def test_leaderless_partitions_get_leaders_when_unclean_elections_are_allowed() -> None:
    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "t", 3)
        node = next(node for node in cluster.nodes if node is not controller)
        topic = image_of(node).topics["t"]
        (index,) = [i for i, state in enumerate(topic.partitions) if state.leader == node.node_id]
        proposal = IsrProposal(topic.topic_id, index, 0, 0, [(node.node_id, broker_of(node).broker_epoch)])
        request = link.AlterPartition(node.node_id, broker_of(node).broker_epoch, [proposal])
        await node.host.runtime.tasks.spawn(broker_of(node).services.controller.alter_partition(request), name="isr")
        node.kill()
        await until(lambda: states(controller, "t")[index].leader == NO_LEADER)
        change = Change("unclean.leader.election.enable", Operation.SET, "true")
        alter = link.AlterConfigs([Alteration(TOPIC_RESOURCE, "t", [change])], controller.node_id)
        links = broker_of(controller).services.controller
        (await controller.host.runtime.tasks.spawn(links.alter_configs(alter), name="alter")).result()
        assert states(controller, "t")[index].leader not in (NO_LEADER, node.node_id)

    run(scenario)


def test_partitions_return_to_their_preferred_leaders() -> None:
    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "t", 6, factor=2)
        node = next(node for node in cluster.nodes if node is not controller)
        node.host.pause()
        await until(lambda: image_of(controller).brokers[node.node_id].fenced)
        node.host.resume()
        await until(lambda: image_of(controller).brokers[node.node_id].active)
        position = image_of(controller).position
        await until(lambda: all(image_of(each).position >= position for each in cluster.nodes))
        # Put the broker back into the ISRs, as the leaders do when it has caught up.
        for leader in cluster.nodes:
            topic = image_of(leader).topics["t"]
            proposals = [
                IsrProposal(topic.topic_id, i, s.leader_epoch, s.partition_epoch, [(r, -1) for r in s.replicas])
                for i, s in enumerate(topic.partitions)
                if s.leader == leader.node_id and len(s.isr) == 1
            ]
            request = link.AlterPartition(leader.node_id, broker_of(leader).broker_epoch, proposals)
            links = broker_of(leader).services.controller
            (await leader.host.runtime.tasks.spawn(links.alter_partition(request), name="isr")).result()
        await until(lambda: all(state.leader == state.replicas[0] for state in states(controller, "t")), timeout_s=12)

    run(scenario, leader_imbalance_check_interval_seconds="10")


# Controlled shutdown


@pytest.mark.parametrize("stopping", ["the controller", "another broker"])
def test_a_broker_that_stops_gives_its_partitions_away_before(stopping: str) -> None:
    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "t", 30)
        node = controller if stopping == "the controller" else next(n for n in cluster.nodes if n is not controller)
        rest = [each for each in cluster.nodes if each is not node]
        broker = broker_of(node)
        stop_groups = broker.services.groups.close

        def check() -> None:
            for other in rest:
                assert image_of(other).brokers[node.node_id].in_controlled_shutdown
                assert all(state.leader not in (NO_LEADER, node.node_id) for state in states(other, "t"))
                assert all(node.node_id not in state.isr for state in states(other, "t"))
            stop_groups()

        broker.services.groups.close = check  # type: ignore[method-assign]
        began_s = cluster.world.loop.time()
        await node.stop()
        assert cluster.world.loop.time() - began_s < 3
        await until(lambda: image_of(rest[0]).brokers[node.node_id].fenced, timeout_s=2)
        await node.start()
        await until(lambda: image_of(rest[0]).brokers[node.node_id].active)

    run(scenario)


def test_a_controlled_shutdown_waits_neither_for_a_dead_broker_nor_for_a_store_that_is_away() -> None:
    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "t", 6)
        dead, stopping = (node for node in cluster.nodes if node is not controller)
        dead.kill()
        began_s = cluster.world.loop.time()
        await stopping.stop()
        # The dead broker counts as active until its lease has ended.
        assert cluster.world.loop.time() - began_s < LEASE_MS / 1000 + 2
        cluster.world.network.partition(controller.host.name, STORE_HOST)
        began_s = cluster.world.loop.time()
        await controller.stop()
        assert cluster.world.loop.time() - began_s < 3 * LEASE_MS / 1000

    run(scenario)


def test_all_brokers_stop_at_the_same_time() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create(cluster, "t", 6)
        began_s = cluster.world.loop.time()
        await asyncio.gather(*(node.stop() for node in cluster.nodes))
        assert cluster.world.loop.time() - began_s < LEASE_MS / 1000 + 3
        await cluster.start()
        for node in cluster.nodes:
            await until(lambda node=node: all(s.leader != NO_LEADER for s in states(node, "t")))

    run(scenario)


@pytest.mark.parametrize(
    ("enabled", "line"),
    [("true", ("INFO", "it was in controlled shutdown")), ("false", ("WARNING", "its lease has ended"))],
)
def test_controlled_shutdown_can_be_switched_off(
    enabled: str, line: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    logging.disable(logging.NOTSET)
    caplog.set_level(logging.INFO, "tidelog.metadata")

    async def scenario(cluster: SimCluster) -> None:
        controller = await controller_of(cluster)
        await create(cluster, "t", 6)
        node = next(node for node in cluster.nodes if node is not controller)
        caplog.clear()
        await node.stop()
        assert image_of(controller).brokers[node.node_id].in_controlled_shutdown == (enabled == "true")
        await until(lambda: image_of(controller).brokers[node.node_id].fenced, timeout_s=2)
        await until(lambda: fenced_lines() == [(line[0], f"broker fenced, {line[1]} node={node.node_id}")])

    def fenced_lines() -> list[tuple[str, str]]:
        lines = [(record.levelname, record.getMessage().partition(" epoch=")[0]) for record in caplog.records]
        return [line for line in lines if line[1].startswith("broker fenced")]

    run(scenario, controlled_shutdown_enable=enabled)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
