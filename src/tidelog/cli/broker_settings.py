"""Describe and alter settings of brokers for `tidelog broker config`.

The requests are sent by Tidelog's own client, because librdkafka cannot address all brokers together.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.cli.cluster import origin
from tidelog.cli.errors import CommandError
from tidelog.cli.own_client import ask, broker_address, broker_addresses, raise_for_code
from tidelog.cli.tables import name_text
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

RESOURCE_BROKER = 4
"""Type of a broker resource in DescribeConfigs and IncrementalAlterConfigs."""
SOURCE_START, SOURCE_DEFAULT = 4, 5
"""Sources of a value in DescribeConfigs (KIP-226). START means that the value was set when the broker started. DEFAULT
means that the value is the default."""
SOURCES = 7
"""Sources are numbers below this one. The function `origin` has a text for each. Source 0 means "not known"."""
SET, DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""
ALL_BROKERS = ""
"""Resource name that means all brokers together."""
NO_EFFECT = "No effect yet."
"""Words in the documentation of settings that Tidelog stores but does not use yet."""
SET_AT_START = " Set at the start by "
"""Words in Tidelog's documentation of a setting. They are followed by the place where the setting was set (file and
line, environment, or command line). The documentation is used because the protocol has no field for this place."""
FALLBACKS = (("log.dirs", "log.dir"), ("advertised.listeners", "listeners"))
"""Groups of settings. In each group, the broker uses the first setting that has a value. Settings that differ only in
their unit are not listed here: `broker_synonyms` returns them."""
NEVER_REPLACED = ("log.flush.scheduler.interval.ms", "listeners")
"""Settings that are never overridden by another setting, although other settings fall back on their values."""


class RefusedError(CommandError):
    """The broker refused the change."""


class Layer(NamedTuple):
    """A value of a setting, and the place where the value was set. A list of layers begins with the one that has the
    highest precedence.
    """

    name: str
    value: str | None
    origin: str


class BrokerSetting(NamedTuple):
    name: str
    value: str | None
    """None for a secret, and for a setting without a value."""
    origin: str
    is_default: bool
    read_only: bool
    """Whether a change needs a restart."""
    sensitive: bool
    effect: bool
    """False if the broker stores the setting but does not use it yet."""
    layers: list[Layer]
    replaced_by: Layer | None
    """Another setting, with its value and origin, that the broker uses instead of this setting; None if there is no
    such setting."""

    @property
    def in_force(self) -> Layer:
        """The setting that the broker uses: this setting or its replacement."""
        return self.replaced_by or Layer(self.name, self.value, self.origin)

    @property
    def shown_value(self) -> str | None:
        """The value of this setting. If the setting has no value: the value of its replacement, in the unit of this
        setting.
        """
        if self.value is not None or self.replaced_by is None:
            return self.value
        return convert_value(self.name, self.replaced_by.name, self.replaced_by.value)

    @property
    def is_own(self) -> bool:
        """Whether a value of this setting was set for the described broker alone. In addition, another value may be set
        for all brokers.
        """
        return any(layer.name == self.name and layer.origin == "broker" for layer in self.layers)

    @property
    def is_from_start(self) -> bool:
        """Whether the broker was started with this value. The origin of such a value can be any text (see
        `start_place`). Therefore the code checks that the value's origin is not the text of any other source.
        """
        return self.origin not in [origin(source) for source in range(SOURCES) if source != SOURCE_START]


def address_of(client: Client, broker: int | None) -> tuple[int, Address]:
    """Return the number and the address of `broker`, or of the only broker of the cluster if `broker` is None.

    Raises CommandError if there is no broker with this number, or if `broker` is None and there are several brokers.
    """
    addresses = broker_addresses(client)
    if broker is None:
        if len(addresses) != 1:
            raise CommandError(f"the cluster has the brokers {', '.join(map(str, addresses))}: name one with --broker")
        return next(iter(addresses.items()))
    return broker, broker_address(addresses, broker)


def describe_settings(client: Client, address: Address, resource: str, names: Sequence[str]) -> list[BrokerSetting]:
    """Return the settings with these names (all if `names` is empty), sorted by name.

    `resource` is a broker's number, or ALL_BROKERS for the values that were set for all brokers together.
    """
    names_and_fallbacks = list(dict.fromkeys(member for name in names for member in precedence_group(name)))
    described = DescribeConfigsResource(
        resource_type=RESOURCE_BROKER, resource_name=resource, configuration_keys=names_and_fallbacks or None
    )
    request = DescribeConfigsRequest(resources=[described], include_synonyms=True, include_documentation=True)
    [answer] = ask(client, [(address, request)], DescribeConfigsResponse)
    (result,) = answer.results
    raise_for_code(result.error_code, result.error_message)
    start_places = {entry.name: start_place(entry.documentation) for entry in result.configs}
    settings = {
        entry.name: setting_from(entry, start_places) for entry in sorted(result.configs, key=lambda entry: entry.name)
    }
    return [
        setting if resource == ALL_BROKERS else with_replacement(setting, settings)
        for setting in settings.values()
        if not names or setting.name in names
    ]


def setting_from(entry: DescribeConfigsResourceResult, start_places: Mapping[str, str]) -> BrokerSetting:
    """Decode one setting. `start_places` contains, by name, the places where settings were set at the start; "" if
    the broker does not report the place.
    """

    def place(name: str, source: int) -> str:
        return (start_places.get(name) if source == SOURCE_START else None) or origin(source)

    documentation = entry.documentation or ""
    return BrokerSetting(
        entry.name,
        entry.value,
        place(entry.name, entry.config_source),
        entry.config_source == SOURCE_DEFAULT,
        # Settings of a listener can be altered, although brokers report them as read-only.
        entry.read_only and not LISTENER_SETTING.fullmatch(entry.name),
        entry.is_sensitive,
        NO_EFFECT not in documentation,
        [Layer(synonym.name, synonym.value, place(synonym.name, synonym.source)) for synonym in entry.synonyms],
        None,
    )


def start_place(documentation: str | None) -> str:
    """Return the place where a setting was set at the start (file and line, environment, command line); empty if
    unknown.
    """
    return (documentation or "").partition(SET_AT_START)[2].removesuffix(".")


def precedence_group(name: str) -> tuple[str, ...]:
    """Return the settings that can replace each other, including `name`. The broker uses the first one that has a
    value.
    """
    return next((names for names in FALLBACKS if name in names), None) or broker_synonyms(name)


def with_replacement(setting: BrokerSetting, settings: Mapping[str, BrokerSetting]) -> BrokerSetting:
    """Return the setting with the field `replaced_by` filled in, if the broker uses another setting of its precedence
    group. Secrets and NEVER_REPLACED are returned unchanged.
    """
    if setting.sensitive or setting.name in NEVER_REPLACED:
        return setting
    group = precedence_group(setting.name)
    used = next((settings[name] for name in group if name in settings and settings[name].value is not None), setting)
    if used.name == setting.name:
        return setting
    replacement = Layer(used.name, used.value, used.origin)
    return setting._replace(replaced_by=replacement, layers=setting.layers or used.layers)


def convert_value(name: str, other: str, value: str | None) -> str | None:
    """Convert `value` from the unit of the setting `other` to the unit of the setting `name`.

    The value is returned unchanged if the units are not known, if the value is negative ("no limit"), or if the
    result is not an integer.
    """
    factors = next((dict(key.synonyms) for key in TOPIC_KEYS.values() if name in dict(key.synonyms)), {})
    try:
        number = int(value or "")
        whole, rest = divmod(number * factors[other], factors[name])
    except (ValueError, KeyError):
        return value
    return value if rest or number < 0 else str(whole)


def setting_value_text(setting: BrokerSetting) -> str:
    """Return the value as text for a message: "(hidden)" for a secret, and "(none)" for a setting without a value."""
    if setting.sensitive:
        return "(hidden)"
    return "(none)" if setting.value is None else name_text(setting.value)


def value_or_hidden(name: str, value: str) -> str:
    """Return the user's value as text for a message, or "(hidden)" if the setting is a secret."""
    key = broker_key(name)
    return "(hidden)" if key is not None and key.sensitive else name_text(value)


def values_for_all_brokers(client: Client, address: Address, names: Sequence[str]) -> dict[str, str]:
    """Return, as text, the values of these settings that were set for all brokers together."""
    return {
        setting.name: setting_value_text(setting) for setting in describe_settings(client, address, ALL_BROKERS, names)
    }


def check_known(names: Iterable[str], reported: Iterable[str], broker: int) -> None:
    """Raise CommandError for a name that neither the broker (which sent the names `reported`) nor Tidelog knows."""
    reported_names = set(reported)
    for name in names:
        # Kafka does not report some settings until they are set. Names in Tidelog's own tables are therefore accepted.
        if name not in reported_names and name not in BROKER_KEYS and not LISTENER_SETTING.fullmatch(name):
            raise CommandError(f"broker {broker} has no setting {name}{hint(name)}")


def hint(name: str) -> str:
    """Return a suggestion that is appended to the error for an unknown setting: the name that the user may have
    meant.
    """
    topic_key = TOPIC_KEYS.get(name)
    if topic_key is not None:
        return "; it is a topic setting" + (
            f", the broker setting is {topic_key.synonyms[0][0]}" if topic_key.synonyms else ""
        )
    near = nearest(name, BROKER_KEYS)
    return f"; did you mean {near}?" if near else ""


def alter(
    client: Client, address: Address, resource: str, changes: dict[str, str | None], *, only_check: bool = False
) -> None:
    """Change settings. `changes` maps each name to the new value, or to None if the setting is to be unset.

    If the broker refuses one of the changes, no change is made, and RefusedError is raised.
    """
    configs = [
        AlterableConfig(name=name, config_operation=DELETE if value is None else SET, value=value)
        for name, value in changes.items()
    ]
    altered = AlterConfigsResource(resource_type=RESOURCE_BROKER, resource_name=resource, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[altered], validate_only=only_check)
    [answer] = ask(client, [(address, request)], IncrementalAlterConfigsResponse)
    (result,) = answer.responses
    try:
        raise_for_code(result.error_code, result.error_message)
    except CommandError as error:
        raise RefusedError(str(error)) from None
