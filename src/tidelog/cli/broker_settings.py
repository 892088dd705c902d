"""What `tidelog broker config` asks, by Tidelog's own client: librdkafka cannot name all brokers together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.cli.cluster import origin
from tidelog.cli.errors import CommandError
from tidelog.cli.own_client import ask, broker_of, brokers, check
from tidelog.client.blocking import Client
from tidelog.client.cluster import Address
from tidelog.config.keys import BROKER_KEYS, LISTENER_SETTING, TOPIC_KEYS, broker_key, broker_synonyms, nearest
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

BROKER = 4
STATIC, DEFAULT = 4, 5
SET, DELETE = 0, 1
ALL = ""
"""How the protocol names all brokers together."""
NO_EFFECT = "No effect yet."
SET_AT_START = " Set at the start by "
"""In Tidelog's documentation, before the place: the protocol tells a file from the environment nowhere else."""
FALLBACKS = {"log.dirs": ("log.dirs", "log.dir"), "advertised.listeners": ("advertised.listeners", "listeners")}
"""Settings that take another's value while they have none, besides those that differ in their unit."""
OF_THEIR_OWN = ("log.flush.scheduler.interval.ms", "listeners")
"""Others fall back on them, and yet they say something else."""


class RefusedError(CommandError):
    """The broker would not take the change."""


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
    counts: Layer | None
    """Another setting that counts instead of this one, with the value that it has."""

    @property
    def in_force(self) -> Layer:
        return self.counts or Layer(self.name, self.value, self.origin)

    @property
    def effective(self) -> str | None:
        """The value; where there is none, that of what counts instead, in this one's unit."""
        if self.value is not None or self.counts is None:
            return self.value
        return in_unit_of(self.name, self.counts.name, self.counts.value)

    @property
    def is_own(self) -> bool:
        """Whether it was altered of the one broker that was asked."""
        return any(layer.name == self.name and layer.origin == "broker" for layer in self.layers)

    @property
    def is_of_the_start(self) -> bool:
        """Whether its value is one that the broker was started with."""
        return self.origin not in (origin(1), origin(2), origin(3), origin(DEFAULT))


def address_of(client: Client, broker: int | None) -> tuple[int, Address]:
    """The broker of that number; the only one for None. Raises CommandError."""
    found = brokers(client)
    if broker is None:
        if len(found) != 1:
            raise CommandError(f"the cluster has the brokers {', '.join(map(str, found))}: name one with --broker")
        return next(iter(found.items()))
    return broker, broker_of(found, broker)


def described(client: Client, address: Address, resource: str, names: Sequence[str]) -> list[BrokerSetting]:
    """Settings sorted by name; all for no `names`. `resource` is a broker's number, or ALL for what was set of all."""
    with_others = list(dict.fromkeys(other for name in names for other in group_of(name)))
    asked = DescribeConfigsResource(
        resource_type=BROKER, resource_name=resource, configuration_keys=with_others or None
    )
    request = DescribeConfigsRequest(resources=[asked], include_synonyms=True, include_documentation=True)
    [answer] = ask(client, [(address, request)], DescribeConfigsResponse)
    (result,) = answer.results
    check(result.error_code, result.error_message)
    starts = {entry.name: set_by(entry.documentation) for entry in result.configs}
    found = {entry.name: setting(entry, starts) for entry in sorted(result.configs, key=lambda entry: entry.name)}
    return [
        each if resource == ALL else in_force(each, found) for each in found.values() if not names or each.name in names
    ]


def setting(entry: DescribeConfigsResourceResult, starts: Mapping[str, str]) -> BrokerSetting:
    """`starts`: where settings were set at the start, by their names, as far as the broker tells."""

    def place(name: str, source: int) -> str:
        return (starts.get(name) if source == STATIC else None) or origin(source)

    documentation = entry.documentation or ""
    return BrokerSetting(
        entry.name,
        entry.value,
        place(entry.name, entry.config_source),
        entry.config_source == DEFAULT,
        entry.read_only and not LISTENER_SETTING.fullmatch(entry.name),  # which can be altered, whatever is told of them
        entry.is_sensitive,
        NO_EFFECT not in documentation,
        [Layer(each.name, each.value, place(each.name, each.source)) for each in entry.synonyms],
        None,
    )


def set_by(documentation: str | None) -> str:
    return (documentation or "").partition(SET_AT_START)[2].removesuffix(".")


def group_of(name: str) -> tuple[str, ...]:
    """The settings of which the first that has a value counts, `name` among them."""
    return next((names for names in FALLBACKS.values() if name in names), None) or broker_synonyms(name)


def in_force(own: BrokerSetting, found: Mapping[str, BrokerSetting]) -> BrokerSetting:
    """The setting with what counts instead of it: one that is asked for first, or where it has no value, the next."""
    if own.sensitive or own.name in OF_THEIR_OWN:
        return own
    other = next((found[name] for name in group_of(own.name) if name in found and found[name].value is not None), own)
    if other.name == own.name:
        return own
    return own._replace(counts=Layer(other.name, other.value, other.origin), layers=own.layers or other.layers)


def in_unit_of(name: str, other: str, value: str | None) -> str | None:
    """The value of `other` as `name` counts; as it stands where that is no whole number, and where it is no limit."""
    factors = next((dict(key.synonyms) for key in TOPIC_KEYS.values() if name in dict(key.synonyms)), {})
    try:
        number = int(value or "")
        whole, rest = divmod(number * factors[other], factors[name])
    except (ValueError, KeyError):
        return value
    return value if rest or number < 0 else str(whole)


def told(setting: BrokerSetting) -> str:
    return "(hidden)" if setting.sensitive else setting.value or "(none)"


def shown_value(name: str, value: str) -> str:
    """What was given to a setting, unless it is a secret."""
    key = broker_key(name)
    return "(hidden)" if key is not None and key.sensitive else value


def set_of_all(client: Client, address: Address, names: Sequence[str]) -> dict[str, str]:
    """What of these was altered of all brokers together."""
    return {each.name: told(each) for each in described(client, address, ALL, names)}


def check_known(names: Iterable[str], found: Iterable[str], broker: int) -> None:
    """Raise CommandError for a name that neither the broker (which told `found`) nor we know."""
    known = set(found)
    for name in names:
        # What Kafka keeps to itself until it is set is no mistake.
        if name not in known and name not in BROKER_KEYS and not LISTENER_SETTING.fullmatch(name):
            raise CommandError(f"broker {broker} has no setting {name}{hint(name)}")


def hint(name: str) -> str:
    """What may have been meant by an unknown name."""
    topics = TOPIC_KEYS.get(name)
    if topics is not None:
        return "; it is a topic's" + (f", a broker has {topics.synonyms[0][0]}" if topics.synonyms else "")
    near = nearest(name, BROKER_KEYS)
    return f"; did you mean {near}?" if near else ""


def alter(
    client: Client, address: Address, resource: str, changes: dict[str, str | None], *, only_check: bool = False
) -> None:
    """Set what has a value, take back what has None: all of it, or nothing and RefusedError."""
    configs = [
        AlterableConfig(name=name, config_operation=DELETE if value is None else SET, value=value)
        for name, value in changes.items()
    ]
    asked = AlterConfigsResource(resource_type=BROKER, resource_name=resource, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[asked], validate_only=only_check)
    [answer] = ask(client, [(address, request)], IncrementalAlterConfigsResponse)
    (result,) = answer.responses
    try:
        check(result.error_code, result.error_message)
    except CommandError as error:
        raise RefusedError(str(error)) from None
