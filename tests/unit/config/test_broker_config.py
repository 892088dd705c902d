"""A broker's settings: their sources, their combinations, errors in one line."""

import typing

import pytest

from tidelog.cli import start
from tidelog.config.broker_config import BrokerConfig, ConfigError
from tidelog.config.endpoints import Endpoint
from tidelog.config.key import Type
from tidelog.config.keys import BROKER_KEYS, attribute_name

PYTHON_TYPES = {
    Type.BOOLEAN: bool,
    Type.SHORT: int,
    Type.INT: int,
    Type.LONG: int,
    Type.DOUBLE: float,
    Type.LIST: list[str],
    Type.STRING: str,
    Type.CLASS: str,
    Type.PASSWORD: str,
}


def load(
    file: str | None = None, environment: dict[str, str] | None = None, flags: dict[str, str] | None = None
) -> BrokerConfig:
    content = "" if file is None else file
    return BrokerConfig.load(
        None if file is None else "server.properties",
        environment or {},
        flags or {},
        read=lambda path: content.encode(),
    )


def test_flags_count_more_than_the_environment_than_the_file_than_defaults() -> None:
    file = "num.partitions=2\nlog.retention.hours=20\nmax.connections=200\n"
    environment = {"TIDELOG_LOG_RETENTION_HOURS": "30", "TIDELOG_MAX_CONNECTIONS": "300", "HOME": "/"}
    config = load(file, environment, {"max.connections": "400"})
    assert config.max_connections == 400
    assert config.get("log.retention.hours") == 30
    assert config.num_partitions == 2
    assert config.delete_topic_enable is True
    assert config.static["max.connections"] == "400"
    assert "delete.topic.enable" not in config.static
    assert config.origins == {
        "num.partitions": "server.properties:1",
        "log.retention.hours": "environment variable TIDELOG_LOG_RETENTION_HOURS",
        "max.connections": "the command line",
    }


def test_the_last_of_equal_lines_counts() -> None:
    assert load("num.partitions=2\nnum.partitions=3").num_partitions == 3


def test_attributes_have_the_tables_types() -> None:
    by_attribute = {attribute_name(name): key for name, key in BROKER_KEYS.items()}
    config = BrokerConfig()
    annotated = typing.get_type_hints(BrokerConfig)
    assert annotated
    for name, hint in annotated.items():
        key = by_attribute[name]
        expected: object = PYTHON_TYPES[key.type]
        assert hint == (expected | None if key.default is None else expected), name  # type: ignore[operator]
        assert getattr(config, name) == config.get(key.name)


@pytest.mark.parametrize(
    ("file", "environment", "flags", "line"),
    [
        (
            "num.partitons=3",
            {},
            {},
            "unknown setting num.partitons (server.properties:1); did you mean num.partitions?",
        ),
        (None, {}, {"zzzzzz": "3"}, "unknown setting zzzzzz (the command line)"),
        (
            None,
            {},
            {"retention.ms": "5"},
            "unknown setting retention.ms (the command line); it is a setting of topics, "
            "use log.retention.ms for a broker",
        ),
        (
            None,
            {},
            {"remote.storage.enable": "true"},
            "unknown setting remote.storage.enable (the command line); it is a setting of topics",
        ),
        (
            None,
            {"TIDELOG_NUM_PARTITION": "3"},
            {},
            "unknown setting in the environment: TIDELOG_NUM_PARTITION; did you mean TIDELOG_NUM_PARTITIONS?",
        ),
        (
            None,
            {"TIDELOG_DATA": "/x"},
            {},
            "unknown setting in the environment: TIDELOG_DATA; use TIDELOG_LOG_DIRS, or the flag --data DIR",
        ),
        (
            None,
            {"TIDELOG_REMOTE_STORAGE_ENABLE": "true"},
            {},
            "unknown setting remote.storage.enable (environment variable TIDELOG_REMOTE_STORAGE_ENABLE); "
            "it is a setting of topics",
        ),
        (
            "num.partitions=0",
            {},
            {},
            "Invalid value 0 for configuration num.partitions: Value must be at least 1 (server.properties:1)",
        ),
        (
            None,
            {"TIDELOG_NUM_PARTITIONS": "x"},
            {},
            "Invalid value x for configuration num.partitions: Not a number of type INT "
            "(environment variable TIDELOG_NUM_PARTITIONS)",
        ),
        (
            "log.roll.ms=0",
            {},
            {},
            "Invalid value 0 for configuration log.roll.ms: Value must be at least 1 (server.properties:1)",
        ),
        ("a=\\uZZ", {}, {}, "server.properties: line 1: \\uZZ is not four hexadecimal digits"),
        (
            "node.id=1\nbroker.id=2",
            {},
            {},
            "node.id is 1 (server.properties:1) and broker.id is 2 (server.properties:2): "
            "they are two names of one setting; remove one of them",
        ),
        (
            None,
            {},
            {"listeners": "PLAINTEXT://:9092"},
            "Invalid value PLAINTEXT://:9092 for configuration listeners: it accepts connections on all interfaces, "
            "but clients need one address: set advertised.listeners=PLAINTEXT://HOST:9092 with a host they can reach",
        ),
        (
            None,
            {},
            {"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"},
            "Invalid value PLAINTEXT://0.0.0.0:9092 for configuration advertised.listeners: clients cannot connect to "
            "a wildcard: set a host that they can reach",
        ),
        (
            "listener.security.protocol.map=A:PLAINTEXT,PLAINTEXT:PLAINTEXT\nadvertised.listeners=A://h:1",
            {},
            {},
            "Invalid value A://h:1 for configuration advertised.listeners: the list of listeners has no listener A",
        ),
        (
            None,
            {},
            {"log.dirs": "/a,/b,/a/"},
            "Invalid value /a,/b,/a/ for configuration log.dirs: the directory /a is named twice",
        ),
        (
            None,
            {},
            {"log.dirs": "/a,/b", "cordoned.log.dirs": "/c"},
            "Invalid value /c for configuration cordoned.log.dirs: not a data directory; "
            "the data directories are /a, /b",
        ),
        (
            None,
            {},
            {"authorizer.class.name": "org.x.Acl"},
            "Invalid value org.x.Acl for configuration authorizer.class.name: access control is not supported yet",
        ),
        (
            None,
            {},
            {"listeners": "SSL://h:9093"},
            "Invalid value SSL://h:9093 for configuration listeners: SSL is not supported yet, only PLAINTEXT",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    file: str | None, environment: dict[str, str], flags: dict[str, str], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file, environment, flags)
    assert str(caught.value) == line
    assert "\n" not in line


def test_a_file_that_is_not_text() -> None:
    with pytest.raises(ConfigError, match=r"^server.properties: .*utf-8"):
        BrokerConfig.load("server.properties", read=lambda path: b"a=\xff")


def test_variables_that_container_platforms_set_are_left_alone() -> None:
    environment = {
        "TIDELOG_PORT": "tcp://10.0.0.1:9092",
        "TIDELOG_SERVICE_HOST": "10.0.0.1",
        "TIDELOG_SERVICE_PORT": "9092",
        "TIDELOG_SERVICE_PORT_KAFKA": "9092",
        "TIDELOG_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "TIDELOG_PORT_9092_TCP_PROTO": "tcp",
        "TIDELOG_PORT_9092_TCP_PORT": "9092",
        "TIDELOG_PORT_9092_TCP_ADDR": "10.0.0.1",
        "TIDELOG_UI_PORT": "tcp://10.0.0.2:80",
        "TIDELOG_UI_SERVICE_HOST": "10.0.0.2",
        "TIDELOG_BOOTSTRAP": "localhost:9092",
    }
    config = load(environment=environment)
    assert (config.static, config.ignored) == ({}, [])


def test_unknown_variables_are_ignored_with_a_warning_each() -> None:
    config = load("of.a.plugin=1", environment={"TIDELOG_FOO": "x", "FOO": "x"})
    assert config.static == {}
    assert config.ignored == [
        ("of.a.plugin", "server.properties:1", "Tidelog does not know it"),
        ("TIDELOG_FOO", "environment", "Tidelog does not know it"),
    ]


def test_each_flag_of_the_start_is_refused_as_a_variable() -> None:
    for flag in set(start.FLAGS) - set(start.HIDDEN_FLAGS):
        variable = "TIDELOG_" + flag.removeprefix("--").replace("-", "_").upper()
        with pytest.raises(ConfigError, match=f"{variable}; use .*flag {flag} "):
            load(environment={variable: "x"})


def test_listeners_and_what_clients_are_told() -> None:
    config = load("listeners=PLAINTEXT://127.0.0.1:0")
    assert config.endpoints == (Endpoint("PLAINTEXT", "127.0.0.1", 0),)
    bound = [Endpoint("PLAINTEXT", "127.0.0.1", 4711)]
    assert config.advertised_endpoints(bound) == tuple(bound)
    config = load("listeners=PLAINTEXT://:0\nadvertised.listeners=PLAINTEXT://broker.example:0")
    assert config.advertised_endpoints([Endpoint("PLAINTEXT", "", 4711)]) == (
        Endpoint("PLAINTEXT", "broker.example", 4711),
    )
    config = load("listeners=PLAINTEXT://:9092\nadvertised.listeners=PLAINTEXT://broker.example:19092")
    assert config.advertised_endpoints([Endpoint("PLAINTEXT", "", 9092)]) == (
        Endpoint("PLAINTEXT", "broker.example", 19092),
    )


def test_listeners_of_kafkas_controllers_are_left_out() -> None:
    config = load(
        "process.roles=broker,controller\nlisteners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n"
        "controller.listener.names=CONTROLLER\ncontroller.quorum.voters=1@127.0.0.1:9093\n"
    )
    assert [e.listener for e in config.endpoints] == ["PLAINTEXT"]
    assert config.settings_without_effect() == ["controller.quorum.voters"]


def test_cordoned_directories() -> None:
    config = load("log.dirs=/a,/b\ncordoned.log.dirs=/b")
    assert (config.cordoned_directories, config.is_cordoned) == (["/b"], False)
    config.apply_dynamic({"cordoned.log.dirs": "*"}, {})
    assert (config.cordoned_directories, config.is_cordoned) == (["/a", "/b"], True)


def test_the_data_directory() -> None:
    assert load("log.dirs=/one,/two").data_directories == ["/one", "/two"]
    assert load().data_directory == "tidelog-data"
    assert load("log.dir=/one").data_directory == "/one"
    assert load("log.dir=/one\nlog.dirs=/two").data_directory == "/two"


def test_any_negative_time_of_retention_is_no_limit() -> None:
    assert load("log.retention.ms=-5").get("log.retention.ms") == -5


def test_both_names_of_the_nodes_number() -> None:
    assert load().node_id == 1
    config = load("broker.id=7")
    assert (config.node_id, config.get("broker.id")) == (7, 7)
    assert load("broker.id=-1").node_id == 1
    assert load("broker.id=-1\nnode.id=7").get("broker.id") == 7
    config = load()
    config.use_node_id(0)
    assert (config.node_id, config.static["node.id"]) == (0, "0")


def test_altered_settings_are_in_force_at_once() -> None:
    config = load("max.connections=100")
    config.apply_dynamic({"max.connections": "200", "log.retention.ms": "5"}, {})
    assert (config.max_connections, config.generation) == (200, 1)
    config.apply_dynamic({"max.connections": "200"}, {"max.connections": "300"})
    assert (config.max_connections, config.get("log.retention.ms"), config.generation) == (300, None, 2)
    config.apply_dynamic({"max.connections": "200"}, {"max.connections": "300"})
    assert config.generation == 2
    config.apply_dynamic({}, {"max.connections": "no number, as a newer version may have stored it"})
    assert config.max_connections == 100
    config.apply_dynamic({}, {})
    assert config.max_connections == 100


def test_an_unknown_setting_cannot_be_asked_for() -> None:
    with pytest.raises(KeyError):
        load().get("retention.ms")


def test_assignors_are_those_that_there_are() -> None:
    kafkas = "org.apache.kafka.coordinator.group.assignor.RangeAssignor,uniform"
    config = BrokerConfig.load(flags={"group.consumer.assignors": kafkas})
    assert len(config.group_consumer_assignors) == 2
    with pytest.raises(ConfigError, match=r"group\.consumer\.assignors"):
        BrokerConfig.load(flags={"group.consumer.assignors": "uniform,sticky"})
