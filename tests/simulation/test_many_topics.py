"""Operations on many topics at once leave turns of the loop to other work, and do not sync for each topic."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from simulation_harness import boot, connect
from tidelog.replication.partition import Partition
from tidelog.replication.reconcile import HOUSEKEEPING_BATCH
from tidelog.simulation.client import SimClient
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPICS = 150


async def client_of_many_topics(world: World) -> SimClient:
    host = world.host("broker")
    await boot(host)
    client = await connect(world.host("client"), host)
    topics = [CreatableTopic(name=f"t{number}", num_partitions=2, replication_factor=-1) for number in range(TOPICS)]
    made = await client.ask(CreateTopicsRequest(topics=topics, timeout_ms=30_000), CreateTopicsResponse)
    assert {topic.error_code for topic in made.topics} == {ErrorCode.NONE}
    return client


def counted_by_turn(monkeypatch: pytest.MonkeyPatch, method: str) -> list[int]:
    """Return a list that gets, for each turn of the loop, the number of calls of a partition's method."""
    turns: list[int] = []
    in_turn: list[None] = []
    inner: Callable[..., Any] = getattr(Partition, method)

    def over() -> None:
        turns.append(len(in_turn))
        in_turn.clear()

    def counted(partition: Partition, *args: Any) -> Any:
        if not in_turn:
            asyncio.get_running_loop().call_soon(over)
        in_turn.append(None)
        return inner(partition, *args)

    monkeypatch.setattr(Partition, method, counted)
    return turns


def test_many_topics_that_are_deleted_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> tuple[list[int], list[str]]:
        client = await client_of_many_topics(world)
        disk = world.host("broker").disk
        turns = counted_by_turn(monkeypatch, "fail")
        syncs: list[str] = []
        disk.on_operation = lambda operation, path: syncs.append(path) if "sync" in operation else None
        names = [f"t{number}" for number in range(TOPICS)]
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=30_000)
        deleted = await client.ask(request, DeleteTopicsResponse)
        assert {topic.error_code for topic in deleted.responses} == {ErrorCode.NONE}
        await asyncio.sleep(5)
        disk.on_operation = None
        assert any(name.endswith("-delete") for name in disk.list("/data"))
        await asyncio.sleep(70)
        assert not [name for name in disk.list("/data") if name.startswith("t")]
        return turns, syncs

    with simulated(1) as world:
        turns, syncs = world.run(scenario(world), virtual_s=200)
    assert sum(turns) >= 2 * TOPICS
    assert max(turns) <= HOUSEKEEPING_BATCH
    assert len(syncs) < 30


def test_a_setting_of_the_broker_reaches_its_partitions_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> list[int]:
        client = await client_of_many_topics(world)
        turns = counted_by_turn(monkeypatch, "configure")
        setting = AlterableConfig(name="log.retention.ms", config_operation=0, value="3600000")
        resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[setting])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        altered = await client.ask(request, IncrementalAlterConfigsResponse)
        assert altered.responses[0].error_code == ErrorCode.NONE, altered.responses[0].error_message
        await asyncio.sleep(1)
        return turns

    with simulated(1) as world:
        turns = world.run(scenario(world))
    assert sum(turns) == 2 * TOPICS
    assert max(turns) <= HOUSEKEEPING_BATCH
