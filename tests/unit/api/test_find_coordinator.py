from collections.abc import Iterator

import pytest

from group_harness.virtual_broker import NODE_ID, VirtualBroker
from tidelog.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest

VERSIONS = range(7)


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    broker = VirtualBroker()
    yield broker
    broker.groups.close()
    broker.loop.close()


def request(version: int, *keys: str, key_type: int = 0) -> FindCoordinatorRequest:
    if version >= 4:
        return FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
    return FindCoordinatorRequest(key=keys[0], key_type=key_type)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_first_asker_makes_the_topic(broker: VirtualBroker, version: int) -> None:
    response = broker.call("FindCoordinator", version, request(version, "g"))
    assert broker.made_topics == [CONSUMER_OFFSETS]
    if version >= 4:
        (told,) = response.coordinators
        assert told.key == "g"
        assert told.error_message == ""
    else:
        told = response
        assert told.error_message == ("NONE" if version >= 1 else "")
    assert (told.error_code, told.node_id, told.host, told.port) == (ErrorCode.NONE, NODE_ID, "broker.example", 9092)


def test_once_the_topic_is_there_nothing_is_made(broker: VirtualBroker) -> None:
    broker.start_coordinators()
    broker.call("FindCoordinator", 3, request(3, "g"))
    broker.call("FindCoordinator", 4, request(4, "g", "h"))
    assert broker.made_topics == []


@pytest.mark.parametrize("version", VERSIONS)
def test_no_topic_no_coordinator(broker: VirtualBroker, version: int) -> None:
    broker.refuse_topics = ErrorCode.INVALID_REPLICATION_FACTOR
    response = broker.call("FindCoordinator", version, request(version, "g"))
    told = response.coordinators[0] if version >= 4 else response
    assert told.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (told.node_id, told.host, told.port) == (-1, "", -1)


@pytest.mark.parametrize("version", [4, 5, 6])
def test_several_keys(broker: VirtualBroker, version: int) -> None:
    broker.start_coordinators()
    response = broker.call("FindCoordinator", version, request(version, "g", "h", "", "g"))
    assert [(told.key, told.error_code) for told in response.coordinators] == [("g", 0), ("h", 0), ("", 0), ("g", 0)]
    assert broker.call("FindCoordinator", version, request(version)).coordinators == []


@pytest.mark.parametrize("version", range(1, 7))
def test_the_first_transactional_id_makes_the_topic_of_transactions(broker: VirtualBroker, version: int) -> None:
    response = broker.call("FindCoordinator", version, request(version, "tx", key_type=1))
    told = response.coordinators[0] if version >= 4 else response
    assert (told.error_code, told.node_id, told.host, told.port) == (ErrorCode.NONE, NODE_ID, "broker.example", 9092)
    assert broker.made_topics == [TRANSACTION_STATE]
    broker.call("FindCoordinator", version, request(version, "another", key_type=1))
    assert broker.made_topics == [TRANSACTION_STATE]


@pytest.mark.parametrize("version", range(1, 7))
def test_an_empty_transactional_id_has_a_coordinator_as_in_kafka(broker: VirtualBroker, version: int) -> None:
    response = broker.call("FindCoordinator", version, request(version, "", key_type=1))
    told = response.coordinators[0] if version >= 4 else response
    assert (told.error_code, told.node_id) == (ErrorCode.NONE, NODE_ID)


@pytest.mark.parametrize("key_type", [2, 3, -1])
def test_other_key_types(broker: VirtualBroker, key_type: int) -> None:
    assert broker.call("FindCoordinator", 3, request(3, "k", key_type=key_type)).error_code == ErrorCode.INVALID_REQUEST
    response = broker.call("FindCoordinator", 6, request(6, "k", "l", key_type=key_type))
    assert [told.error_code for told in response.coordinators] == [ErrorCode.INVALID_REQUEST] * 2


def test_a_coordinator_that_was_just_found_takes_requests(broker: VirtualBroker) -> None:
    broker.call("FindCoordinator", 3, request(3, "g"))
    assert broker.call("Heartbeat", 4, HeartbeatRequest("g", 1, "m")).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_address_is_that_of_the_clients_listener() -> None:
    broker = VirtualBroker(brokers=(NODE_ID, 2))
    broker.start_coordinators()
    for listener, host, port in (
        ("PLAINTEXT", "broker", 9092),
        ("INSIDE", "inside.broker", 19092),
        ("", "broker", 9092),
    ):
        broker.peer.listener = listener
        told = broker.call("FindCoordinator", 3, request(3, "g"))
        assert (told.node_id, told.host, told.port) == (NODE_ID, f"{host}.example", port)
    broker.elect(2)
    broker.peer.listener = "INSIDE"
    told = broker.call("FindCoordinator", 6, request(6, "g")).coordinators[0]
    assert (told.node_id, told.host, told.port) == (2, "inside.broker-2.example", 19092)
    broker.groups.close()
    broker.loop.close()


def test_an_offline_log_matters_only_on_the_leader() -> None:
    broker = VirtualBroker(brokers=(NODE_ID, 2))
    broker.start_coordinators()
    for key in list(broker.partitions.table):
        broker.partitions.take_out(key)
    assert broker.call("FindCoordinator", 3, request(3, "g")).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.elect(2)
    assert broker.call("FindCoordinator", 3, request(3, "g")).node_id == 2
    broker.groups.close()
    broker.loop.close()
