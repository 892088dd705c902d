"""aiokafka's AIOKafkaAdminClient, method by method."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from interop_harness.admin_calls import METHODS, public_methods
from interop_harness.admin_stage import Stage, check, set_up

CLIENT = "aiokafka"
ROWS = METHODS[CLIENT]

Call: TypeAlias = Callable[[Any, Stage], Awaitable[None]]


@pytest.fixture(scope="module")
def stage(bootstrap: str, is_tidelog: bool) -> Stage:
    return set_up(bootstrap, is_tidelog=is_tidelog)


async def start(admin: Any, stage: Stage) -> None:
    again = AIOKafkaAdminClient(bootstrap_servers=stage.bootstrap)
    await again.start()
    assert stage.topic in await again.list_topics()
    await again.close()


close = start


async def create_topics(admin: Any, stage: Stage) -> None:
    answer = await admin.create_topics([NewTopic(stage.name("new"), 1, 1)])
    assert answer.topic_errors[0][1] == 0


async def delete_topics(admin: Any, stage: Stage) -> None:
    name = stage.name("gone")
    await admin.create_topics([NewTopic(name, 1, 1)])
    answer = await admin.delete_topics([name])
    assert [tuple(error) for error in answer.topic_error_codes] == [(name, 0)]


async def create_partitions(admin: Any, stage: Stage) -> None:
    name = stage.name("more")
    await admin.create_topics([NewTopic(name, 1, 1)])
    answer = await admin.create_partitions({name: NewPartitions(2)})
    assert answer.topic_errors[0][1] == 0


async def delete_records(admin: Any, stage: Stage) -> None:
    partition = TopicPartition(stage.topic, 0)
    assert await admin.delete_records({partition: RecordsToDelete(1)}) == {partition: 1}


async def list_topics(admin: Any, stage: Stage) -> None:
    assert stage.topic in await admin.list_topics()


async def describe_topics(admin: Any, stage: Stage) -> None:
    (described,) = await admin.describe_topics([stage.topic])
    assert (described["topic"], len(described["partitions"])) == (stage.topic, 2)


async def describe_cluster(admin: Any, stage: Stage) -> None:
    assert len((await admin.describe_cluster())["brokers"]) == 1


async def describe_configs(admin: Any, stage: Stage) -> None:
    (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, stage.topic)])
    assert answer.resources[0][0] == 0


async def alter_configs(admin: Any, stage: Stage) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, stage.topic, configs={"retention.ms": "86400000"})
    (answer,) = await admin.alter_configs([resource])
    assert answer.resources[0][0] == 0


async def find_coordinator(admin: Any, stage: Stage) -> None:
    assert await admin.find_coordinator(stage.group) >= 0


async def list_consumer_groups(admin: Any, stage: Stage) -> None:
    assert stage.group in {group[0] for group in await admin.list_consumer_groups()}


async def describe_consumer_groups(admin: Any, stage: Stage) -> None:
    (answer,) = await admin.describe_consumer_groups([stage.group])
    assert answer.groups[0][:3] == (0, stage.group, "Empty")


async def list_consumer_group_offsets(admin: Any, stage: Stage) -> None:
    found = await admin.list_consumer_group_offsets(stage.group)
    assert found[TopicPartition(stage.topic, 0)].offset == 2


CALLS: dict[str, Call] = {name: globals()[name] for name in ROWS}


def test_every_method_of_the_client_has_its_row() -> None:
    """A version with more methods fails here: they belong into the table, and have to be tried."""
    assert set(ROWS) == public_methods(AIOKafkaAdminClient)


@pytest.mark.exercises("admin-topics", "admin-groups")
@pytest.mark.parametrize("name", ROWS)
def test_method(name: str, stage: Stage) -> None:
    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=stage.bootstrap)
        await admin.start()
        try:
            await CALLS[name](admin, stage)
        finally:
            await admin.close()

    check(ROWS[name], stage, lambda: asyncio.run(run()))
