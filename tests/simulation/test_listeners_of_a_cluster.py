"""Brokers of a cluster with two listeners: each client gets the addresses of the listener that it is connected to."""

import asyncio
from typing import Any

import pytest

from replication_harness.brokers import TOPIC, Stage
from tidelog.client.channel import Channel
from tidelog.client.cluster import Address
from tidelog.config.broker_config import BrokerConfig
from tidelog.simulation.cluster import SimNode
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.wire.records import Record, encode_batch

PORTS = {"INSIDE": 9092, "OUTSIDE": 9192}


def with_two_listeners(stage: Stage) -> None:
    for node in stage.cluster.nodes:
        _add_listener(stage, node)


def _add_listener(stage: Stage, node: SimNode) -> None:
    make = node._config

    def config() -> BrokerConfig:
        stage.cluster.settings |= {
            "listeners": ",".join(f"{name}://{node.host.address}:{port}" for name, port in PORTS.items()),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in PORTS),
            "inter.broker.listener.name": "INSIDE",
        }
        return make()

    node._config = config  # type: ignore[method-assign]


def run(scenario: Any) -> None:
    async def whole(world: World) -> None:
        stage = Stage(world, 3, {}, has_racks=False)
        with_two_listeners(stage)
        await stage.start(replicas=(1, 2))
        await scenario(stage)

    with simulated(1) as world:
        world.run(whole(world))


def channel(stage: Stage, node: SimNode, port: int) -> Channel:
    return Channel(stage.world.host("client").runtime, Address(node.host.address, port))


@pytest.mark.parametrize("port", PORTS.values())
def test_every_answer_has_the_addresses_of_the_clients_listener(port: int) -> None:
    async def scenario(stage: Stage) -> None:
        addresses = {node.node_id: (node.host.address, port) for node in stage.cluster.nodes}
        client = channel(stage, stage.node(3), port)
        described = await client.ask(DescribeClusterRequest(endpoint_type=1), DescribeClusterResponse)
        assert {broker.broker_id: (broker.host, broker.port) for broker in described.brokers} == addresses
        metadata = await client.ask(MetadataRequest(topics=None), MetadataResponse)
        assert {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers} == addresses
        for _ in range(100):
            found = await client.ask(
                FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), FindCoordinatorResponse
            )
            (coordinator,) = found.coordinators
            if coordinator.error_code == ErrorCode.NONE:
                break
            await asyncio.sleep(0.1)
        assert (coordinator.host, coordinator.port) == addresses[coordinator.node_id]

    run(scenario)


@pytest.mark.parametrize("port", PORTS.values())
def test_a_producer_whose_leader_resigns_gets_the_new_leaders_address_on_its_listener(port: int) -> None:
    """The second of two requests that differ in their batch only takes the short way through the broker."""

    async def scenario(stage: Stage) -> None:
        leader, follower = stage.leader, stage.followers[0]
        topic_id = stage.image.topics[TOPIC].topic_id
        client = channel(stage, leader, port)

        async def produce() -> ProduceResponse:
            data = PartitionProduceData(index=0, records=encode_batch([Record(value=b"x")]))
            request = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[TopicProduceData("", topic_id, [data])])
            return await client.ask(request, ProduceResponse)

        assert (await produce()).responses[0].partition_responses[0].error_code == ErrorCode.NONE
        stage.world.network.partition_one_way(leader.host.name, follower.host.name)
        waiting = asyncio.ensure_future(produce())
        await asyncio.sleep(1)
        assert not waiting.done()
        stage.world.network.heal()
        await stage.elect(follower)
        answer = await waiting
        (part,) = answer.responses[0].partition_responses
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert part.current_leader.leader_id == follower.node_id
        endpoints = [(endpoint.node_id, endpoint.host, endpoint.port) for endpoint in answer.node_endpoints]
        assert endpoints == [(follower.node_id, follower.host.address, port)]

    run(scenario)
