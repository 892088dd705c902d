"""kafka-python's KafkaAdminClient, method by method."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import (
    ACL,
    AbortTransactionSpec,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    MemberToRemove,
    NewTopic,
    OffsetSpec,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    ScramMechanism,
    TransactionState,
    UserScramCredentialDeletion,
)
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NoError,
    NotCoordinatorError,
    TransactionalIdNotFoundError,
)
from kafka.structs import OffsetAndMetadata

from interop_harness.admin_calls import METHODS, public_methods
from interop_harness.admin_stage import RECORDS, Stage, check, set_up
from interop_harness.suite import wait_until

CLIENT = "kafka-python"
ROWS = METHODS[CLIENT]

Call: TypeAlias = Callable[[Any, Stage], None]


@pytest.fixture(scope="module")
def stage(bootstrap: str, is_tidelog: bool) -> Stage:
    return set_up(bootstrap, is_tidelog=is_tidelog)


def first(stage: Stage) -> TopicPartition:
    return TopicPartition(stage.topic, 0)


def created(admin: Any, stage: Stage, word: str) -> str:
    name = stage.name(word)
    admin.create_topics([NewTopic(name, 1, 1)])
    admin.wait_for_topics([name])
    return name


# Topics


def create_topics(admin: Any, stage: Stage) -> None:
    assert created(admin, stage, "new") in admin.list_topics()


def delete_topics(admin: Any, stage: Stage) -> None:
    name = created(admin, stage, "gone")
    admin.delete_topics([name])
    wait_until(lambda: name not in admin.list_topics(), "deleted")


def create_partitions(admin: Any, stage: Stage) -> None:
    name = created(admin, stage, "more")
    admin.create_partitions({name: 2})
    wait_until(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 2, "two partitions")


def list_topics(admin: Any, stage: Stage) -> None:
    assert stage.topic in admin.list_topics()


def describe_topics(admin: Any, stage: Stage) -> None:
    (described,) = admin.describe_topics([stage.topic])
    assert len(described["partitions"]) == 2


def describe_topic_partitions(admin: Any, stage: Stage) -> None:
    (described,) = admin.describe_topic_partitions([stage.topic])["topics"]
    assert len(described["partitions"]) == 2


def wait_for_topics(admin: Any, stage: Stage) -> None:
    admin.wait_for_topics([stage.topic])
    assert stage.topic in admin.list_topics()


def delete_records(admin: Any, stage: Stage) -> None:
    found = admin.delete_records({first(stage): 1})
    assert found[first(stage)]["low_watermark"] == 1


def list_partition_offsets(admin: Any, stage: Stage) -> None:
    assert admin.list_partition_offsets({first(stage): OffsetSpec.LATEST})[first(stage)].offset == RECORDS


def list_partition_reassignments(admin: Any, stage: Stage) -> None:
    assert admin.list_partition_reassignments() == {}


def alter_partition_reassignments(admin: Any, stage: Stage) -> None:
    assert first(stage) in admin.alter_partition_reassignments({first(stage): [broker(admin)]})


def elect_leaders(admin: Any, stage: Stage) -> None:
    admin.elect_leaders(0, {stage.topic: [0]}, raise_errors=False)


def alter_replica_log_dirs(admin: Any, stage: Stage) -> None:
    (directory,) = log_dirs(admin)
    moved = admin.alter_replica_log_dirs({(stage.topic, 1, broker(admin)): directory["log_dir"]})
    assert list(moved.values()) == [NoError]


def describe_log_dirs(admin: Any, stage: Stage) -> None:
    (directory,) = log_dirs(admin)
    assert stage.topic in {topic["name"] for topic in directory["topics"]}


def log_dirs(admin: Any) -> Any:
    (found,) = admin.describe_log_dirs()
    return found["log_dirs"] if "log_dirs" in found else found["results"]


def describe_producers(admin: Any, stage: Stage) -> None:
    (producer,) = admin.describe_producers([first(stage)])[first(stage)].active_producers
    assert (producer.producer_epoch, producer.last_sequence) == (0, RECORDS - 1)


# Settings


def topic_of(stage: Stage, configs: Any = None) -> ConfigResource:
    return ConfigResource(ConfigResourceType.TOPIC, stage.topic, configs)


def describe_configs(admin: Any, stage: Stage) -> None:
    assert stage.topic in str(admin.describe_configs([topic_of(stage)], config_filter="all"))


def alter_configs(admin: Any, stage: Stage) -> None:
    admin.alter_configs([topic_of(stage, {"retention.ms": "86400000"})])
    wait_until(lambda: "86400000" in str(admin.describe_configs([topic_of(stage)])), "altered")
    number = str(broker(admin))
    admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, number, {"log.roll.ms": "7654321"})])
    own = ConfigResource(ConfigResourceType.BROKER, number)
    wait_until(lambda: "7654321" in str(admin.describe_configs([own])), "altered of the broker")
    admin.reset_configs([ConfigResource(ConfigResourceType.BROKER, number, ["log.roll.ms"])])


def reset_configs(admin: Any, stage: Stage) -> None:
    admin.alter_configs([topic_of(stage, {"segment.ms": "76543210"})])
    admin.reset_configs([topic_of(stage, ["segment.ms"])])
    wait_until(lambda: "76543210" not in str(admin.describe_configs([topic_of(stage)])), "reset")


def list_config_resources(admin: Any, stage: Stage) -> None:
    assert stage.topic in admin.list_config_resources(["TOPIC"])["topic"]


# The cluster


def broker(admin: Any) -> int:
    return int(admin.describe_cluster()["brokers"][0]["broker_id"])


def api_versions(admin: Any, stage: Stage) -> None:
    assert admin.api_versions()


def describe_cluster(admin: Any, stage: Stage) -> None:
    assert len(admin.describe_cluster()["brokers"]) == 1


def get_broker_version_data(admin: Any, stage: Stage) -> None:
    assert admin.get_broker_version_data(broker(admin)).api_versions[18] == (0, 4)


def describe_features(admin: Any, stage: Stage) -> None:
    found = admin.describe_features()["group.version"]
    assert (found["supported"], found["finalized"]) == ((0, 1), (1, 1))


def update_features(admin: Any, stage: Stage) -> None:
    admin.update_features({"group.version": 1}, validate_only=True)
    with pytest.raises(Exception, match=r"(?i)update.?version|99|supports"):
        admin.update_features({"group.version": 99})


def describe_metadata_quorum(admin: Any, stage: Stage) -> None:
    assert "__cluster_metadata" in str(admin.describe_metadata_quorum())


# Groups


def list_groups(admin: Any, stage: Stage) -> None:
    found = admin.list_groups(states_filter=["Empty"], types_filter=["classic"])
    assert stage.group in {group["group_id"] for group in found}
    assert stage.group not in str(admin.list_groups(states_filter=["Stable"]))


def describe_groups(admin: Any, stage: Stage) -> None:
    assert stage.group in admin.describe_groups([stage.group])


def list_group_offsets(admin: Any, stage: Stage) -> None:
    assert admin.list_group_offsets({stage.group: None})[stage.group][first(stage)].offset == 2


def committed(admin: Any, stage: Stage, word: str) -> str:
    group = stage.name(word)
    assert admin.alter_group_offsets(group, {first(stage): OffsetAndMetadata(1, "", -1)}) == {first(stage): NoError}
    return group


def alter_group_offsets(admin: Any, stage: Stage) -> None:
    group = committed(admin, stage, "altered")
    assert admin.list_group_offsets({group: None})[group][first(stage)].offset == 1


def reset_group_offsets(admin: Any, stage: Stage) -> None:
    group = committed(admin, stage, "reset")
    admin.reset_group_offsets(group, {first(stage): OffsetSpec.LATEST})
    assert admin.list_group_offsets({group: None})[group][first(stage)].offset == RECORDS


def remove_group_members(admin: Any, stage: Stage) -> None:
    found = admin.remove_group_members(stage.group, [MemberToRemove(member_id="nobody")])
    assert "UnknownMemberId" in str(found)


def delete_groups(admin: Any, stage: Stage) -> None:
    group = committed(admin, stage, "deleted")
    assert admin.delete_groups([group]) == {group: "OK"}


def delete_group_offsets(admin: Any, stage: Stage) -> None:
    group = committed(admin, stage, "offsets")
    assert admin.delete_group_offsets(group, [first(stage)]) == {first(stage): NoError}


# Transactions


def abort_transaction(admin: Any, stage: Stage) -> None:
    """Abort in the second partition: the marker takes an offset, and other tests compare the end of the first one."""
    admin.abort_transaction(AbortTransactionSpec(TopicPartition(stage.topic, 1), 123456, 0))


def describe_transactions(admin: Any, stage: Stage) -> None:
    unknown = stage.name("transaction")

    def told() -> bool:
        try:
            admin.describe_transactions([unknown])
        except TransactionalIdNotFoundError:
            return True
        except (
            CoordinatorNotAvailableError,
            CoordinatorLoadInProgressError,
            NotCoordinatorError,
        ):  # its topic is being made
            return False
        raise AssertionError("a transaction that nobody began was found")

    wait_until(told, "there is no such transaction")


def list_transactions(admin: Any, stage: Stage) -> None:
    assert stage.topic not in str(admin.list_transactions())


def find_hanging_transactions(admin: Any, stage: Stage) -> None:
    assert admin.find_hanging_transactions() == []


# Access


def create_acls(admin: Any, stage: Stage) -> None:
    pattern = ResourcePattern(ResourceType.TOPIC, stage.topic)
    done = admin.create_acls([ACL("User:someone", "*", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)])
    raise_failures(done)


def describe_acls(admin: Any, stage: Stage) -> None:
    found, error = admin.describe_acls(acl_filter(stage))
    if error is not NoError:
        raise RuntimeError(f"{error}")
    assert found == []


def delete_acls(admin: Any, stage: Stage) -> None:
    raise_failures(admin.delete_acls([acl_filter(stage)]))


def acl_filter(stage: Stage) -> ACLFilter:
    pattern = ResourcePatternFilter(ResourceType.TOPIC, stage.topic, ACLResourcePatternType.LITERAL)
    return ACLFilter("User:someone", "*", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)


def raise_failures(done: Any) -> None:
    """kafka-python returns what was refused."""
    if "Error" in str(done) and "NoError" not in str(done):
        raise RuntimeError(str(done))


def describe_user_scram_credentials(admin: Any, stage: Stage) -> None:
    assert stage.topic not in str(admin.describe_user_scram_credentials())


def alter_user_scram_credentials(admin: Any, stage: Stage) -> None:
    deletion = UserScramCredentialDeletion(stage.name("user"), ScramMechanism.SCRAM_SHA_256)
    (error,) = admin.alter_user_scram_credentials([deletion]).values()
    assert error is not None


def close(admin: Any, stage: Stage) -> None:
    again = KafkaAdminClient(bootstrap_servers=stage.bootstrap)
    assert again.list_topics()
    again.close()


CALLS: dict[str, Call] = {name: globals()[name] for name in ROWS}


def test_every_method_of_the_client_has_its_row() -> None:
    """A version with more methods fails here: they belong into the table, and have to be tried."""
    assert set(ROWS) == public_methods(KafkaAdminClient)


@pytest.mark.exercises("admin-topics", "admin-groups")
@pytest.mark.parametrize("name", ROWS)
def test_method(name: str, stage: Stage) -> None:
    admin = KafkaAdminClient(bootstrap_servers=stage.bootstrap)
    try:
        check(ROWS[name], stage, lambda: CALLS[name](admin, stage))
    finally:
        admin.close()


@pytest.mark.exercises("admin-transactions")
def test_a_transaction_is_shown_and_aborted(stage: Stage) -> None:
    """Nothing but an open transaction of this test is in its topic."""
    name = stage.name("shown")
    admin = KafkaAdminClient(bootstrap_servers=stage.bootstrap)
    producer = KafkaProducer(bootstrap_servers=stage.bootstrap, transactional_id=name)
    try:
        topic = created(admin, stage, "transactional")
        place = TopicPartition(topic, 0)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"v", partition=0).get(30)
        described = admin.describe_transactions([name])[name]
        assert (described.state, described.topic_partitions) == (TransactionState.ONGOING, {place})
        everything = [one for listed in admin.list_transactions().values() for one in listed]
        (listed,) = [one for one in everything if one.transactional_id == name]
        assert (listed.producer_id, listed.state) == (described.producer_id, TransactionState.ONGOING)
        (active,) = admin.describe_producers([place])[place].active_producers
        assert (active.producer_id, active.current_transaction_start_offset) == (described.producer_id, 0)
        assert name not in str(admin.find_hanging_transactions())

        epoch, coordinator_epoch = active.producer_epoch, max(active.coordinator_epoch, 0)
        admin.abort_transaction(AbortTransactionSpec(place, active.producer_id, epoch, coordinator_epoch))
        (active,) = admin.describe_producers([place])[place].active_producers
        assert active.current_transaction_start_offset == -1
    finally:
        producer.close(timeout=0)
        admin.close()
