"""Several broker processes on one metadata store are a cluster: each of them serves requests to the controller."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from process_harness.raw import CREATE_TOPICS, RawConnection
from store_harness.servers import Servers
from tidelog.testing import Broker, BrokerFailedError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.wire.messages.envelope import EnvelopeRequest
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

TAKEOVER_S = 30
"""Longer than the controller lease, the pause before the next attempt to acquire it, and the claim."""
SESSION_MS = 3000
INIT_PRODUCER_ID = 5
METADATA = 12
INCREMENTAL_ALTER_CONFIGS = 1
EXISTS = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)


@pytest.fixture(params=["sqlite", "etcd"])
def store(request: pytest.FixtureRequest, tmp_path: Path, running: Callable[[str, int], Servers]) -> str:
    """Return a value of metadata.store."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/shared.sqlite"
    host, port = running(request.param, 1).addresses[0]
    return f"{request.param}://{host}:{port}/clusters/{tmp_path.name}"


@pytest.fixture
def brokers(store: str, tmp_path: Path) -> Iterator[list[Broker]]:
    with cluster(store, tmp_path, 3) as started:
        yield started


@contextmanager
def cluster(store: str, tmp_path: Path, count: int) -> Iterator[list[Broker]]:
    """Start brokers with the numbers 1, 2, ...; the first one becomes the controller."""
    with ExitStack() as stack:
        started = [broker_at(store, tmp_path, node_id) for node_id in range(1, count + 1)]
        stack.enter_context(started[0])
        with ThreadPoolExecutor(count) as executor:
            for broker in executor.map(_started, started[1:]):
                stack.callback(broker.stop)
        yield started


def broker_at(store: str, tmp_path: Path, node_id: int, data: str = "") -> Broker:
    settings = {
        "metadata.store": store,
        "node.id": node_id,
        "broker.session.timeout.ms": SESSION_MS,
        "broker.heartbeat.interval.ms": 500,
    }
    return Broker(process=True, data=tmp_path / (data or f"data-{node_id}"), settings=settings)


def _started(broker: Broker) -> Broker:
    broker.start()
    return broker


def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def raw(broker: Broker, timeout_s: float = 60) -> RawConnection:
    return RawConnection((broker.host, broker.port), timeout_s=timeout_s)


def create(broker: Broker, name: str, timeout_ms: int = 20_000) -> ErrorCode:
    """Create a topic with one replica. Return the error code."""
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    with raw(broker) as connection:
        answer = connection.ask(CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms), CREATE_TOPICS)
    assert isinstance(answer, CreateTopicsResponse)
    return ErrorCode(answer.topics[0].error_code)


def metadata(broker: Broker) -> MetadataResponse:
    with raw(broker) as connection:
        answer = connection.ask(MetadataRequest(topics=None), METADATA)
    assert isinstance(answer, MetadataResponse)
    return answer


def topics(broker: Broker) -> set[str]:
    return {topic.name or "" for topic in metadata(broker).topics}


def eventually(condition: Callable[[], bool], limit_s: float = TAKEOVER_S) -> None:
    latest_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < latest_s, "the condition has not become true in time"
        time.sleep(0.05)


def have_topics(brokers: Sequence[Broker], expected: set[str]) -> Callable[[], bool]:
    return lambda: all(topics(broker) == expected for broker in brokers)


def test_topics_that_any_broker_creates_are_on_all(brokers: list[Broker]) -> None:
    for number, broker in enumerate(brokers):
        assert create(broker, f"t{number}") == ErrorCode.NONE
        assert f"t{number}" in topics(broker), "the broker that answers has processed the change"
    eventually(have_topics(brokers, {"t0", "t1", "t2"}))
    for broker in brokers:
        assert create(broker, "t0") == ErrorCode.TOPIC_ALREADY_EXISTS
        answer = metadata(broker)
        assert [each.node_id for each in answer.brokers] == [1, 2, 3]
        assert answer.controller_id == brokers.index(broker) + 1


def test_any_broker_serves_changes(brokers: list[Broker]) -> None:
    """The changes go through a broker that is not the controller, and the checks through another one."""
    _, second, third = brokers
    assert create(second, "orders") == ErrorCode.NONE
    assert create(second, "doomed") == ErrorCode.NONE
    client = admin(second)
    client.create_partitions([NewPartitions("orders", 5)])["orders"].result()
    setting = ConfigEntry("retention.ms", "12345", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[setting])
    client.incremental_alter_configs([resource])[resource].result()
    own = ConfigEntry("log.retention.ms", "777", incremental_operation=AlterConfigOpType.SET)
    broker_resource = ConfigResource(ResourceType.BROKER, "2", incremental_configs=[own])
    client.incremental_alter_configs([broker_resource])[broker_resource].result()
    client.delete_topics(["doomed"])["doomed"].result()
    eventually(have_topics([third], {"orders"}))
    other = admin(third)
    assert len(other.list_topics("orders", timeout=10).topics["orders"].partitions) == 5
    found = other.describe_configs([ConfigResource(ResourceType.TOPIC, "orders")])
    assert next(iter(found.values())).result()["retention.ms"].value == "12345"
    change = AlterableConfig(name="log.retention.ms", value="9")
    of_second = AlterConfigsResource(resource_type=4, resource_name="2", configs=[change])
    with raw(third) as connection:
        answer = connection.ask(IncrementalAlterConfigsRequest(resources=[of_second]), INCREMENTAL_ALTER_CONFIGS)
    assert isinstance(answer, IncrementalAlterConfigsResponse)
    assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST, "the broker that was asked counts"


def test_all_producer_ids_are_different(brokers: list[Broker]) -> None:
    ids: list[int] = []
    for broker in brokers * 2:
        with raw(broker) as connection:
            for _ in range(3):
                answer = connection.ask(InitProducerIdRequest(transactional_id=None), INIT_PRODUCER_ID)
                assert isinstance(answer, InitProducerIdResponse)
                assert answer.error_code == ErrorCode.NONE
                ids.append(answer.producer_id)
    assert len(set(ids)) == len(ids) == 18


@pytest.mark.parametrize("count", [2, 3])
def test_another_broker_takes_over_from_a_killed_controller(store: str, tmp_path: Path, count: int) -> None:
    with cluster(store, tmp_path, count) as brokers:
        first, *others = brokers
        assert create(others[0], "before") == ErrorCode.NONE
        first.kill()
        assert create(others[0], "after", timeout_ms=TAKEOVER_S * 1000) == ErrorCode.NONE
        assert create(others[-1], "more", timeout_ms=TAKEOVER_S * 1000) == ErrorCode.NONE
        eventually(have_topics(others, {"before", "after", "more"}))
        first.start()
        eventually(have_topics(brokers, {"before", "after", "more"}))
        assert create(first, "again") == ErrorCode.NONE
        eventually(have_topics(brokers, {"before", "after", "more", "again"}))


def test_requests_under_way_end_with_a_right_answer(brokers: list[Broker]) -> None:
    """A topic whose creation succeeded exists. One whose creation failed, other than by a timeout, does not exist."""
    first, *others = brokers
    answers: dict[str, ErrorCode] = {}

    def create_many(worker: int) -> None:
        for number in range(1000):
            name = f"t{worker}-{number}"
            answers[name] = create(others[worker % 2], name, timeout_ms=4000)
            if number > 3 and is_over and answers[name] == ErrorCode.NONE:
                return

    is_over: list[bool] = []
    with ThreadPoolExecutor(6) as executor:
        running = [executor.submit(create_many, worker) for worker in range(6)]
        eventually(lambda: len(answers) > 20)
        first.kill()
        killed_s = time.monotonic()
        is_over.append(True)
        for each in running:
            each.result(TAKEOVER_S * 2)
    assert time.monotonic() - killed_s < TAKEOVER_S
    allowed = {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER}
    assert set(answers.values()) <= allowed
    assert ErrorCode.NONE in answers.values()
    created = {name for name, code in answers.items() if code == ErrorCode.NONE}
    refused = {name for name, code in answers.items() if code == ErrorCode.NOT_CONTROLLER}
    eventually(lambda: all(created <= topics(broker) for broker in others))
    for broker in others:
        assert not refused & topics(broker)


def test_acknowledged_records_survive_the_death_of_leader_and_controller(brokers: list[Broker]) -> None:
    first, *others = brokers
    client = admin(others[0])
    new = NewTopic("orders", 3, 3, config={"min.insync.replicas": "2"})
    client.create_topics([new])["orders"].result()
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    acknowledged: list[bytes] = []

    def delivered(error: object, message: Message) -> None:
        if error is None:
            acknowledged.append(message.value() or b"")

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 60_000, "linger.ms": 0, "retries": 1000}
    )
    for number in range(300):
        producer.produce("orders", b"%d" % number, partition=number % 3, on_delivery=delivered)
        producer.poll(0.01)
        if number == 100:
            first.kill()
    assert producer.flush(90) == 0
    assert sorted(acknowledged, key=int) == [b"%d" % number for number in range(300)]
    consumer = Consumer(
        {"bootstrap.servers": others[0].bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition("orders", partition, 0) for partition in range(3)])
    values: set[bytes] = set()
    latest_s = time.monotonic() + 60
    while len(values) < 300 and time.monotonic() < latest_s:
        values.update(message.value() or b"" for message in consumer.consume(500, timeout=1))
    consumer.close()
    assert values == set(acknowledged)


def test_a_paused_controller_is_replaced_and_returns_as_a_follower(brokers: list[Broker]) -> None:
    first, *others = brokers
    os.kill(first.pid, signal.SIGSTOP)
    try:
        assert create(others[0], "meanwhile", timeout_ms=TAKEOVER_S * 1000) in (
            ErrorCode.NONE,
            ErrorCode.REQUEST_TIMED_OUT,  # the request was sent to the paused controller
        )
        eventually(lambda: create(others[0], "later", timeout_ms=5000) in EXISTS)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    eventually(lambda: "later" in topics(first))
    assert create(first, "at last", timeout_ms=5000) == ErrorCode.INVALID_TOPIC_EXCEPTION
    eventually(lambda: create(first, "finally", timeout_ms=5000) in EXISTS)
    eventually(lambda: all("finally" in topics(broker) for broker in brokers))


def test_a_second_process_of_one_broker_is_refused(store: str, tmp_path: Path) -> None:
    with cluster(store, tmp_path, 2), pytest.raises(BrokerFailedError, match="another process runs as broker 2"):
        broker_at(store, tmp_path, 2, data="other").start()


def test_envelopes_of_strangers_close_their_connection(brokers: list[Broker]) -> None:
    for broker in brokers:
        for content in (b"", b"TLCR\1\x0cCreateTopics\1\1\3\1t\2\2", b"\0\x13\0\7\0\0\0\1\xff\xff"):
            with raw(broker) as connection, pytest.raises(ConnectionError):
                connection.ask(EnvelopeRequest(content, None, b""), 0)
        assert topics(broker) == set()
    for broker in brokers:
        assert "Traceback" not in broker.log()
