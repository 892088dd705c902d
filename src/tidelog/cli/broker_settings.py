"""What `tidelog broker config` asks, by Tidelog's own client: librdkafka cannot name all brokers together."""

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.cli.cluster import origin
from tidelog.cli.errors import CommandError
from tidelog.cli.own_client import ask, brokers, check
from tidelog.client.blocking import Client
from tidelog.client.cluster import Address
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

BROKER = 4
DEFAULT = 5
SET, DELETE = 0, 1
AT_START = "Takes a restart."
"""In Tidelog's documentation of what Kafka alters while it runs."""
NO_EFFECT = "No effect yet."
"""How Tidelog's documentation of such a setting ends."""


class Layer(NamedTuple):
    """One of the places that give a setting a value; the first of them counts."""

    name: str
    value: str | None
    origin: str


class BrokerSetting(NamedTuple):
    name: str
    value: str | None
    """None for a secret, and where there is none."""
    origin: str
    is_default: bool
    read_only: bool
    """Takes a restart."""
    sensitive: bool
    effect: bool
    layers: list[Layer]


def address_of(client: Client, broker: int | None) -> tuple[int, Address]:
    """The broker of that number; the only one for None. Raises CommandError."""
    found = brokers(client)
    numbers = ", ".join(map(str, found))
    if broker is None:
        if len(found) != 1:
            raise CommandError(f"the cluster has the brokers {numbers}: name one with --broker")
        return next(iter(found.items()))
    if broker not in found:
        raise CommandError(f"there is no broker {broker}; the cluster has {numbers}")
    return broker, found[broker]


def described(client: Client, address: Address, resource: str, names: Sequence[str]) -> list[BrokerSetting]:
    """Settings sorted by name; all for no `names`. `resource` is a broker's number, or "" for what all have altered."""
    asked = DescribeConfigsResource(
        resource_type=BROKER, resource_name=resource, configuration_keys=list(names) or None
    )
    request = DescribeConfigsRequest(resources=[asked], include_synonyms=True, include_documentation=True)
    [answer] = ask(client, [(address, request)], DescribeConfigsResponse)
    (result,) = answer.results
    check(result.error_code, result.error_message)
    return [
        BrokerSetting(
            entry.name,
            entry.value,
            origin(entry.config_source),
            entry.config_source == DEFAULT,
            entry.read_only or AT_START in (entry.documentation or ""),
            entry.is_sensitive,
            not (entry.documentation or "").endswith(NO_EFFECT),
            [Layer(each.name, each.value, origin(each.source)) for each in entry.synonyms],
        )
        for entry in sorted(result.configs, key=lambda entry: entry.name)
    ]


def alter(
    client: Client, address: Address, resource: str, changes: dict[str, str | None], *, only_check: bool = False
) -> None:
    """Set what has a value, take back what has None: all of it, or nothing and CommandError."""
    configs = [
        AlterableConfig(name=name, config_operation=DELETE if value is None else SET, value=value)
        for name, value in changes.items()
    ]
    asked = AlterConfigsResource(resource_type=BROKER, resource_name=resource, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[asked], validate_only=only_check)
    [answer] = ask(client, [(address, request)], IncrementalAlterConfigsResponse)
    (result,) = answer.responses
    check(result.error_code, result.error_message)
