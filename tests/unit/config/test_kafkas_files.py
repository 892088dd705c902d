"""The configuration files of Apache Kafka are accepted."""

import pytest

from tidelog.config.broker_config import BrokerConfig, ConfigError
from tidelog.config.endpoints import Endpoint
from tidelog.config.retired_keys import RETIRED

THREADS_AND_BUFFERS = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}
OF_SHARE_GROUPS = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
PROTOCOLS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
OF_KRAFT = {
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": PROTOCOLS,
    **THREADS_AND_BUFFERS,
    "num.recovery.threads.per.data.dir": "2",
    **OF_SHARE_GROUPS,
}
SERVER = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "log.dirs": "/tmp/kraft-combined-logs",
    **OF_KRAFT,
}
"""config/server.properties of Kafka 4: broker and controller in one process."""
BROKER = {
    "process.roles": "broker",
    "node.id": "2",
    "listeners": "PLAINTEXT://localhost:9092",
    "advertised.listeners": "PLAINTEXT://localhost:9092",
    "log.dirs": "/tmp/kraft-broker-logs",
    **OF_KRAFT,
}
"""config/broker.properties of Kafka 4."""
ZOOKEEPER = {
    "broker.id": "0",
    "log.dirs": "/tmp/kafka-logs",
    **THREADS_AND_BUFFERS,
    "zookeeper.connect": "localhost:2181",
    "zookeeper.connection.timeout.ms": "18000",
    "group.initial.rebalance.delay.ms": "0",
}
"""config/server.properties of Kafka 2 and 3, which then was a file for ZooKeeper."""


def load(settings: dict[str, str]) -> BrokerConfig:
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    return BrokerConfig.load("server.properties", read=lambda path: text.encode())


def refusal(settings: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as raised:
        load(settings)
    return str(raised.value)


def test_a_combined_node_opens_no_controllers_listener() -> None:
    config = load(SERVER)
    assert config.endpoints == (Endpoint("PLAINTEXT", "", 9092),)
    assert config.advertised_endpoints(config.endpoints) == (Endpoint("PLAINTEXT", "localhost", 9092),)
    assert config.controller_listeners == ["CONTROLLER://:9093"]
    assert config.ignored == []
    assert (config.node_id, config.data_directories) == (1, ["/tmp/kraft-combined-logs"])


def test_a_broker_of_a_cluster() -> None:
    config = load(BROKER)
    assert config.endpoints == (Endpoint("PLAINTEXT", "localhost", 9092),)
    assert (config.controller_listeners, config.ignored) == ([], [])


def test_a_broker_of_the_time_of_zookeeper() -> None:
    config = load(ZOOKEEPER)
    place = list(ZOOKEEPER).index("zookeeper.connect") + 1
    assert config.ignored == [
        ("zookeeper.connect", f"server.properties:{place}", "Kafka 4 no longer uses ZooKeeper"),
        ("zookeeper.connection.timeout.ms", f"server.properties:{place + 1}", "Kafka 4 no longer uses ZooKeeper"),
    ]
    assert (config.node_id, config.group_initial_rebalance_delay_ms) == (0, 0)


def test_a_file_of_a_controller_alone_is_refused() -> None:
    assert "the list must contain broker" in refusal({"process.roles": "controller", "listeners": "CONTROLLER://:9093"})


@pytest.mark.parametrize("name", RETIRED)
def test_what_kafka_4_dropped_is_ignored_in_a_file_and_refused_as_a_flag(name: str) -> None:
    [ignored] = load({name: "1"}).ignored
    assert ignored.name == name
    assert RETIRED[name] in ignored.reason
    with pytest.raises(ConfigError, match="Kafka 4 no longer has it"):
        BrokerConfig.load(flags={name: "1"})


def test_a_plugins_setting_is_ignored_and_a_misspelt_one_refused() -> None:
    [plugin, listener] = load({"confluent.balancer.enable": "true", "listener.name.a.max.connections": "3"}).ignored
    assert plugin == ("confluent.balancer.enable", "server.properties:1", "Tidelog does not know it")
    assert listener.reason == "settings with the prefix listener.name.NAME. have no effect in Tidelog"
    assert "did you mean log.retention.hours?" in refusal({"log.retention.hour": "1"})
    assert "it is a setting of topics, use log.retention.ms for a broker" in refusal({"retention.ms": "1"})
    with pytest.raises(ConfigError, match="unknown setting confluent"):
        BrokerConfig.load(flags={"confluent.balancer.enable": "true"})
