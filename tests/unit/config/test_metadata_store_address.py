"""The setting metadata.store."""

import pytest

from tidelog.config.broker_config import BrokerConfig, ConfigError
from tidelog.config.metadata_store import StoreAddress, parse_store_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("sqlite:", StoreAddress("sqlite", (), "")),
        ("sqlite:/data/shared.sqlite", StoreAddress("sqlite", (), "/data/shared.sqlite")),
        ("etcd://a", StoreAddress("etcd", (("a", 2379),), "/tidelog")),
        ("etcd://a:1/", StoreAddress("etcd", (("a", 1),), "/tidelog")),
        ("etcd://a:1,b:2/clusters/one/", StoreAddress("etcd", (("a", 1), ("b", 2)), "/clusters/one")),
        ("zookeeper://a, b:2182/k", StoreAddress("zookeeper", (("a", 2181), ("b", 2182)), "/k")),
        ("zookeeper://[::1]:7,[fe80::2]", StoreAddress("zookeeper", (("::1", 7), ("fe80::2", 2181)), "/tidelog")),
    ],
)
def test_addresses_are_parsed_and_written_again(text: str, address: StoreAddress) -> None:
    assert parse_store_address(text) == address
    assert parse_store_address(str(address)) == address
    assert BrokerConfig.load(flags={"metadata.store": text}).metadata_store == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "takes sqlite:PATH"),
        ("etcd", "takes sqlite:PATH"),
        ("etcd:a:1", "takes sqlite:PATH"),
        ("consul://a:1", "takes sqlite:PATH"),
        ("ETCD://a:1", "takes sqlite:PATH"),
        ("sqlite:relative.sqlite", "absolute path"),
        ("sqlite:/data/", "absolute path"),
        ("etcd://", "an empty name is not HOST:PORT"),
        ("etcd://a,,b", "an empty name is not HOST:PORT"),
        ("etcd://a:0", "a:0 is not HOST:PORT"),
        ("etcd://a:65536", "a:65536 is not HOST:PORT"),
        ("etcd://a:x", "a:x is not HOST:PORT"),
        ("etcd://::1", "::1 is not HOST:PORT"),
        ("etcd://:2379", ":2379 is not HOST:PORT"),
        ("etcd://a b", "a b is not HOST:PORT"),
        ("etcd://a/x//y", "cannot be the prefix"),
        ("etcd://a/x?y", "cannot be the prefix"),
        ("zookeeper://a/../x", "cannot be the root node"),
    ],
)
def test_a_wrong_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.load(flags={"metadata.store": text})
    assert reason in str(refused.value)
    assert "metadata.store" in str(refused.value)
    assert "the command line" in str(refused.value)


@pytest.mark.parametrize("text", ["etcd://root:geheim@a:1/x", "zookeeper://a:1,u:geheim@b", "consul://u:geheim@a"])
def test_a_password_is_refused_and_in_no_message(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.load(flags={"metadata.store": text})
    assert "geheim" not in str(refused.value)
    assert "[hidden]" in str(refused.value)
