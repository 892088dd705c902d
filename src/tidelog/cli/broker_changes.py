"""`tidelog broker config set` and `unset`: make the changes. If `unset` is called for a setting that is not set, the
command reports this. If the broker refuses a change, the error says what to do.
"""

import sys
from collections.abc import Iterable

from tidelog.cli import broker_settings
from tidelog.cli.broker_settings import ALL_BROKERS, BrokerSetting, RefusedError
from tidelog.cli.errors import CommandError
from tidelog.cli.own_client import broker_addresses, connected
from tidelog.cli.tables import comma_separated
from tidelog.client.blocking import Client

ONLY_PER_BROKER = "cluster level"
"""Words in Kafka's error message for a setting that cannot be set for all brokers together, only for a single broker.
"""


class ChangeTarget:
    """The target of the changes: one broker, or all brokers together. `number` and `address` are those of the
    broker to which the requests are sent.
    """

    def __init__(self, client: Client, broker: int | None) -> None:
        """`broker` None means all brokers. Raises CommandError if the cluster has no broker with this number."""
        self.client = client
        self.brokers = broker_addresses(client)
        if broker is None:
            self.number, self.address = next(iter(self.brokers.items()))
        else:
            self.number, self.address = broker_settings.address_of(client, broker)
        self.is_all_brokers = broker is None
        self.resource = ALL_BROKERS if self.is_all_brokers else str(broker)
        self.text = "all brokers" if self.is_all_brokers else f"broker {broker}"


def change(changes: dict[str, str | None], broker: int | None, check: bool, bootstrap: str) -> None:
    """Set each setting in `changes` to its new value; None means to unset it. With `check`, only check the changes.

    `broker` None means all brokers. If the broker refuses one change, no change is made, and CommandError is raised.
    """
    with connected(bootstrap) as client:
        target = ChangeTarget(client, broker)
        unset_reasons = explain_unset(target, [key for key, value in changes.items() if value is None])
        changes = {key: value for key, value in changes.items() if key not in unset_reasons}
        if changes:
            alter(target, changes, only_check=check)
        for key, value in changes.items():
            if check:
                print(f"{key} can be {'unset' if value is None else 'set'} for {target.text}.")
            elif value is None:
                print(f"{key} is no longer set for {target.text}.")
            else:
                print(f"{key} is now {broker_settings.value_or_hidden(key, value)} for {target.text}.")
        for key, reason in unset_reasons.items():
            print(f"{key} was not set for {target.text}; nothing to do{reason}.", file=sys.stderr)
        if target.is_all_brokers and not check and changes:
            warn_of_broker_values(target, changes)


def explain_unset(target: ChangeTarget, keys: list[str]) -> dict[str, str]:
    """Return the settings of `keys` that are not set for the target itself, each with a text that says where its value
    comes from instead.

    The text is in brackets. It is empty if the setting has its default value. Raises CommandError for a name that
    neither the broker nor Tidelog knows.
    """
    if not keys:
        return {}
    described = broker_settings.describe_settings(target.client, target.address, str(target.number), keys)
    settings = {setting.name: setting for setting in described}
    common_values = broker_settings.values_for_all_brokers(target.client, target.address, keys)
    broker_settings.check_known(keys, [*settings, *common_values], target.number)
    if target.is_all_brokers:
        unset = [key for key in keys if key not in common_values]
    else:
        unset = [key for key in keys if key not in settings or not settings[key].is_own]
    per_broker = values_per_broker(target, unset) if unset and target.is_all_brokers else {}
    explanations = {}
    for key in unset:
        reasons = [
            f"broker {number} has its own value, {value}: to unset it, add --broker {number}"
            for number, value in per_broker.get(key, ())
        ]
        if not target.is_all_brokers and key in common_values:
            reasons = [f"all brokers have the value {common_values[key]}: to unset it, leave out --broker"]
        elif not reasons and key in settings:
            reasons = origin_reasons(settings[key])
        explanations[key] = f" ({'; '.join(reasons)})" if reasons else ""
    return explanations


def origin_reasons(setting: BrokerSetting) -> list[str]:
    """Return a list with a phrase that says where the value comes from; empty if the setting has its default value."""
    if setting.replaced_by is not None:
        return [
            f"{setting.replaced_by.name} is used instead: its value {setting.replaced_by.value} is from"
            f" {setting.replaced_by.origin}"
        ]
    return [f"its value is from {setting.origin}"] if setting.is_from_start else []


def values_per_broker(target: ChangeTarget, keys: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """Return, for each setting, the brokers that have their own values, and these values as text."""
    values: dict[str, list[tuple[int, str]]] = {}
    for number, address in target.brokers.items():
        for setting in broker_settings.describe_settings(target.client, address, str(number), list(keys)):
            if setting.is_own:
                values.setdefault(setting.name, []).append((number, broker_settings.setting_value_text(setting)))
    return values


def alter(target: ChangeTarget, changes: dict[str, str | None], *, only_check: bool) -> None:
    """Make or only check the changes. If the broker refuses them, raises CommandError with the broker's message,
    and with advice if the message does not say what to do.
    """
    try:
        broker_settings.alter(target.client, target.address, target.resource, changes, only_check=only_check)
    except RefusedError as error:
        raise CommandError(f"{error}{remedy(target, changes, str(error))}") from None


def remedy(target: ChangeTarget, changes: dict[str, str | None], refusal: str) -> str:
    """Return a text that says what the user can do. It is appended to the broker's message. Empty if there is no
    advice.
    """
    if target.is_all_brokers and ONLY_PER_BROKER in refusal:
        return "; choose one broker with --broker N"
    if "restart" in refusal:  # the broker's message itself says that a restart is needed
        return ""
    described = broker_settings.describe_settings(target.client, target.address, str(target.number), list(changes))
    read_only = [setting.name for setting in described if setting.read_only and setting.name in refusal]
    if not read_only:
        return ""
    verb, them = ("changes", "it") if len(read_only) == 1 else ("change", "them")
    return f"; {comma_separated(read_only)} {verb} only at a restart: put {them} into the broker's configuration file"


def warn_of_broker_values(target: ChangeTarget, keys: Iterable[str]) -> None:
    """After a change of the settings `keys` for all brokers, report brokers that still use their own values."""
    for key, values in values_per_broker(target, keys).items():
        for number, value in values:
            print(f"Broker {number} still uses its own value of {key}, {value}.", file=sys.stderr)
