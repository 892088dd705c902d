"""A broker whose metadata are in a store elsewhere: restarts, a store that is away, directories of another store."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from store_harness.proxy import Proxy
from store_harness.servers import Servers
from tidelog.testing import Broker, BrokerFailedError


@pytest.fixture(params=["etcd", "zookeeper"])
def remote(
    request: pytest.FixtureRequest, tmp_path: Path, running: Callable[[str, int], Servers]
) -> Iterator[tuple[str, Proxy]]:
    """Return a value of metadata.store, and the proxy in front of the store's server."""
    proxy = Proxy(running(request.param, 1).addresses[0])
    yield f"{request.param}://127.0.0.1:{proxy.port}/brokers/{tmp_path.name}", proxy
    proxy.close()


@pytest.fixture(params=["etcd", "zookeeper", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path, running: Callable[[str, int], Servers]) -> str:
    """Return a value of metadata.store."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/shared.sqlite"
    host, port = running(request.param, 1).addresses[0]
    return f"{request.param}://{host}:{port}/brokers/{tmp_path.name}"


def broker_at(address: str, data: Path, **settings: object) -> Broker:
    return Broker(process=True, data=data, settings={"metadata.store": address} | settings)


def create(broker: Broker, name: str, timeout_s: float = 20) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 2, 1)], request_timeout=timeout_s)[name].result()


def topics(broker: Broker) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics)


def produce(broker: Broker, topic: str, value: bytes) -> None:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 10_000})
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(15) == 0
    assert errors == [None]


def values(broker: Broker, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, timeout=15)]
    finally:
        consumer.close()


def test_topics_and_records_survive_restarts_and_kills(address: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_at(address, data) as broker:
        create(broker, "orders")
        produce(broker, "orders", b"one")
        for end in (broker.stop, broker.kill):
            end()
            broker.start()
            assert "orders" in topics(broker)
        assert values(broker, "orders", 1) == [b"one"]
        create(broker, "more")
        assert topics(broker) >= {"orders", "more"}
        assert (data / "metadata.store").read_text() == f"{address}\n"
        assert not (data / "metadata.sqlite").exists()


def test_while_the_store_is_away_records_flow_and_changes_are_refused(
    remote: tuple[str, Proxy], tmp_path: Path
) -> None:
    url, proxy = remote
    with broker_at(url, tmp_path / "data") as broker:
        create(broker, "orders")
        proxy.go_away()
        with pytest.raises(KafkaException) as refused:
            create(broker, "refused")
        assert "metadata" in str(refused.value) or "unknown" in str(refused.value)
        produce(broker, "orders", b"one")
        time.sleep(11)  # longer than the lease of the controller
        produce(broker, "orders", b"two")
        assert values(broker, "orders", 2) == [b"one", b"two"]
        with pytest.raises(KafkaException, match="cannot be changed"):
            create(broker, "refused")
        assert topics(broker) & {"refused"} == set()
        proxy.come_back()
        latest_s = time.monotonic() + 30
        while True:
            try:
                create(broker, "accepted")
                break
            except KafkaException:
                assert time.monotonic() < latest_s, broker.log()
        assert "accepted" in topics(broker)
        assert "read-only" not in broker.log()
        broker.restart()
        assert topics(broker) >= {"orders", "accepted"}


def test_a_broker_does_not_start_while_the_store_is_away(remote: tuple[str, Proxy], tmp_path: Path) -> None:
    url, proxy = remote
    proxy.go_away()
    data = tmp_path / "data"
    with pytest.raises(BrokerFailedError, match=r"cannot be reached.*127\.0\.0\.1"):
        broker_at(url, data).start()
    assert not data.exists()


@pytest.mark.parametrize("address", ["etcd"], indirect=True)
def test_a_second_process_with_the_same_number_is_refused(address: str, tmp_path: Path) -> None:
    with broker_at(address, tmp_path / "one") as broker:
        with pytest.raises(BrokerFailedError, match="another process runs as broker 1"):
            broker_at(address, tmp_path / "two").start()
        create(broker, "still")
        assert "still" in topics(broker)


def test_a_directory_belongs_to_its_store(address: str, tmp_path: Path) -> None:
    data, local = tmp_path / "data", tmp_path / "local"
    with broker_at(address, data) as broker:
        create(broker, "orders")
    with pytest.raises(BrokerFailedError, match=f"set metadata.store={address}"):
        Broker(process=True, data=data).start()
    with pytest.raises(BrokerFailedError, match="has no metadata, but"):
        broker_at(f"{address}x", data).start()
    with Broker(process=True, data=local):
        pass
    with pytest.raises(BrokerFailedError, match=r"metadata\.sqlite"):
        broker_at(address, local).start()
    with broker_at(address, data) as broker:
        assert "orders" in topics(broker)
