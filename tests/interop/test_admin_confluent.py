"""confluent-kafka's AdminClient, method by method."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
)

from interop_harness.admin_calls import METHODS, public_methods
from interop_harness.admin_stage import RECORDS, Stage, check, set_up

CLIENT = "confluent-kafka"
ROWS = METHODS[CLIENT]
LIMIT_S = 30

Call: TypeAlias = Callable[[AdminClient, Stage], None]


@pytest.fixture(scope="module")
def stage(bootstrap: str, is_tidelog: bool) -> Stage:
    return set_up(bootstrap, is_tidelog=is_tidelog)


def done(futures: dict[Any, Any]) -> Any:
    """The result of the only one of them."""
    (future,) = futures.values()
    return future.result(LIMIT_S)


def alter_configs(admin: AdminClient, stage: Stage) -> None:
    resource = ConfigResource(ResourceType.TOPIC, stage.topic, set_config={"retention.ms": "86400000"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        assert done(admin.alter_configs([resource])) is None


def incremental_alter_configs(admin: AdminClient, stage: Stage) -> None:
    entry = ConfigEntry("segment.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, stage.topic, incremental_configs=[entry])
    assert done(admin.incremental_alter_configs([resource])) is None


def describe_configs(admin: AdminClient, stage: Stage) -> None:
    assert done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, stage.topic)]))["cleanup.policy"].value


def create_topics(admin: AdminClient, stage: Stage) -> None:
    assert done(admin.create_topics([NewTopic(stage.name("new"), 1, 1)])) is None


def delete_topics(admin: AdminClient, stage: Stage) -> None:
    name = stage.name("gone")
    done(admin.create_topics([NewTopic(name, 1, 1)]))
    assert done(admin.delete_topics([name])) is None


def create_partitions(admin: AdminClient, stage: Stage) -> None:
    name = stage.name("more")
    done(admin.create_topics([NewTopic(name, 1, 1)]))
    assert done(admin.create_partitions([NewPartitions(name, 2)])) is None


def delete_records(admin: AdminClient, stage: Stage) -> None:
    assert done(admin.delete_records([TopicPartition(stage.topic, 0, 1)])).low_watermark == 1


def describe_topics(admin: AdminClient, stage: Stage) -> None:
    assert len(done(admin.describe_topics(TopicCollection([stage.topic]))).partitions) == 2


def list_topics(admin: AdminClient, stage: Stage) -> None:
    assert stage.topic in admin.list_topics(timeout=LIMIT_S).topics


def list_offsets(admin: AdminClient, stage: Stage) -> None:
    assert done(admin.list_offsets({TopicPartition(stage.topic, 0): OffsetSpec.latest()})).offset == RECORDS


def describe_cluster(admin: AdminClient, stage: Stage) -> None:
    described = admin.describe_cluster().result(LIMIT_S)
    assert (len(described.nodes), described.controller.id) == (1, described.nodes[0].id)


def cluster_id(admin: AdminClient, stage: Stage) -> None:
    assert admin.cluster_id(LIMIT_S) == admin.describe_cluster().result(LIMIT_S).cluster_id


def list_consumer_groups(admin: AdminClient, stage: Stage) -> None:
    assert stage.group in {g.group_id for g in admin.list_consumer_groups().result(LIMIT_S).valid}


def list_groups(admin: AdminClient, stage: Stage) -> None:
    with pytest.warns(DeprecationWarning, match="list_groups"):
        found = admin.list_groups(stage.group, timeout=LIMIT_S)
    assert [group.state for group in found] == ["Empty"]


def describe_consumer_groups(admin: AdminClient, stage: Stage) -> None:
    assert done(admin.describe_consumer_groups([stage.group])).members == []


def list_consumer_group_offsets(admin: AdminClient, stage: Stage) -> None:
    asked = [ConsumerGroupTopicPartitions(stage.group, [TopicPartition(stage.topic, 0)])]
    assert done(admin.list_consumer_group_offsets(asked)).topic_partitions[0].offset == 2


def alter_consumer_group_offsets(admin: AdminClient, stage: Stage) -> None:
    group = stage.name("altered")
    asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(stage.topic, 0, 1)])]
    assert done(admin.alter_consumer_group_offsets(asked)).topic_partitions[0].error is None


def delete_consumer_groups(admin: AdminClient, stage: Stage) -> None:
    group = stage.name("deleted")
    done(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [TopicPartition(stage.topic, 0, 1)])]))
    assert done(admin.delete_consumer_groups([group])) is None


def elect_leaders(admin: AdminClient, stage: Stage) -> None:
    found = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(stage.topic, 0)]).result(LIMIT_S)
    assert [error.name() for error in found.values()] == ["ELECTION_NOT_NEEDED"]


ACL = ("User:someone", "*", AclOperation.READ, AclPermissionType.ALLOW)


def create_acls(admin: AdminClient, stage: Stage) -> None:
    done(admin.create_acls([AclBinding(ResourceType.TOPIC, stage.topic, ResourcePatternType.LITERAL, *ACL)]))


def describe_acls(admin: AdminClient, stage: Stage) -> None:
    admin.describe_acls(acl_filter(stage)).result(LIMIT_S)


def delete_acls(admin: AdminClient, stage: Stage) -> None:
    done(admin.delete_acls([acl_filter(stage)]))


def acl_filter(stage: Stage) -> AclBindingFilter:
    return AclBindingFilter(ResourceType.TOPIC, stage.topic, ResourcePatternType.LITERAL, *ACL)


def describe_user_scram_credentials(admin: AdminClient, stage: Stage) -> None:
    not_found(lambda: done(admin.describe_user_scram_credentials([stage.name("user")])))


def alter_user_scram_credentials(admin: AdminClient, stage: Stage) -> None:
    deletion = UserScramCredentialDeletion(stage.name("user"), ScramMechanism.SCRAM_SHA_256)
    not_found(lambda: done(admin.alter_user_scram_credentials([deletion])))


def not_found(call: Callable[[], None]) -> None:
    """There is nobody of that name; any other error goes on to the caller."""
    try:
        call()
    except KafkaException as error:
        if error.args[0].name() != "RESOURCE_NOT_FOUND":
            raise
    else:
        raise AssertionError("a user that nobody made was found")


def poll(admin: AdminClient, stage: Stage) -> None:
    assert admin.poll(0) == 0


def set_sasl_credentials(admin: AdminClient, stage: Stage) -> None:
    assert admin.set_sasl_credentials("user", "password") is None  # type: ignore[func-returns-value]


CALLS: dict[str, Call] = {name: globals()[name] for name in ROWS}


def test_every_method_of_the_client_has_its_row() -> None:
    """A version with more methods fails here: they belong into the table, and have to be tried."""
    assert set(ROWS) == public_methods(AdminClient)


@pytest.mark.exercises("admin-topics", "admin-groups")
@pytest.mark.parametrize("name", ROWS)
def test_method(name: str, stage: Stage) -> None:
    admin = AdminClient({"bootstrap.servers": stage.bootstrap, "log_level": 2})
    check(ROWS[name], stage, lambda: CALLS[name](admin, stage))
