"""What `tidelog broker config set` and `unset` do: what is changed, what was never set, what helps on a refusal."""

import sys
from collections.abc import Iterable

from tidelog.cli import broker_settings
from tidelog.cli.broker_settings import ALL, BrokerSetting, RefusedError
from tidelog.cli.errors import CommandError
from tidelog.cli.own_client import brokers, connected
from tidelog.cli.tables import comma_separated
from tidelog.client.blocking import Client

NOT_IN_COMMON = "cluster level"
"""In Kafka's refusal of what only a single broker can be given."""


class Target:
    """The broker that is asked, and whose settings are changed: its own, or those of all brokers together."""

    def __init__(self, client: Client, broker: int | None) -> None:
        """Raises CommandError for a broker that is not there."""
        self.client = client
        self.brokers = brokers(client)
        if broker is None:
            self.number, self.address = next(iter(self.brokers.items()))
        else:
            self.number, self.address = broker_settings.address_of(client, broker)
        self.of_all = broker is None
        self.resource = ALL if self.of_all else str(broker)
        self.whose = "all brokers" if self.of_all else f"broker {broker}"


def change(changes: dict[str, str | None], broker: int | None, check: bool, bootstrap: str) -> None:
    """Set what has a value, take back what has None: all of it, or nothing and CommandError."""
    with connected(bootstrap) as client:
        target = Target(client, broker)
        missing = not_set(target, [key for key, value in changes.items() if value is None])
        changes = {key: value for key, value in changes.items() if key not in missing}
        if changes:
            alter(target, changes, only_check=check)
        for key, value in changes.items():
            if check:
                print(f"{key} of {target.whose} can be {'taken back' if value is None else 'set'}.")
            else:
                back = f"Took back {key} of {target.whose}."
                shown = broker_settings.shown_value(key, value or "")
                print(back if value is None else f"Set {key} of {target.whose} to {shown}.")
        for key, why in missing.items():
            print(f"{key} was not set for {target.whose}; nothing to do{why}.", file=sys.stderr)
        if target.of_all and not check and changes:
            warn_of_own(target, changes)


def not_set(target: Target, keys: list[str]) -> dict[str, str]:
    """Those of `keys` that have nothing to take back, each with where its value comes from, in brackets or empty.

    Raises CommandError for a name that nobody knows.
    """
    if not keys:
        return {}
    described = broker_settings.described(target.client, target.address, str(target.number), keys)
    found = {setting.name: setting for setting in described}
    in_common = broker_settings.set_of_all(target.client, target.address, keys)
    broker_settings.check_known(keys, [*found, *in_common], target.number)
    if target.of_all:
        missing = [key for key in keys if key not in in_common]
    else:
        missing = [key for key in keys if key not in found or not found[key].is_own]
    own = own_values(target, missing) if missing and target.of_all else {}
    told = {}
    for key in missing:
        reasons = [f"broker {number} has its own, {value}: --broker {number}" for number, value in own.get(key, ())]
        if not target.of_all and key in in_common:
            reasons = [f"all brokers have {in_common[key]}: leave out --broker"]
        elif not reasons and key in found:
            reasons = where_from(found[key])
        told[key] = f" ({'; '.join(reasons)})" if reasons else ""
    return told


def where_from(setting: BrokerSetting) -> list[str]:
    """In at most one reason; none for what has its default."""
    if setting.counts is not None:
        return [f"{setting.counts.name} counts, {setting.counts.value} from {setting.counts.origin}"]
    return [f"its value is from {setting.origin}"] if setting.is_of_the_start else []


def own_values(target: Target, keys: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """By setting, the brokers that have values of their own, and these."""
    found: dict[str, list[tuple[int, str]]] = {}
    for number, where in target.brokers.items():
        for setting in broker_settings.described(target.client, where, str(number), list(keys)):
            if setting.is_own:
                found.setdefault(setting.name, []).append((number, broker_settings.told(setting)))
    return found


def alter(target: Target, changes: dict[str, str | None], *, only_check: bool) -> None:
    """Raises CommandError with what can be done about it, which Apache Kafka does not say."""
    try:
        broker_settings.alter(target.client, target.address, target.resource, changes, only_check=only_check)
    except RefusedError as error:
        raise CommandError(f"{error}{remedy(target, changes, str(error))}") from None


def remedy(target: Target, changes: dict[str, str | None], refusal: str) -> str:
    if target.of_all and NOT_IN_COMMON in refusal:
        return "; name the broker with --broker N"
    if "restart" in refusal:
        return ""
    described = broker_settings.described(target.client, target.address, str(target.number), list(changes))
    fixed = [setting.name for setting in described if setting.read_only and setting.name in refusal]
    return (
        f"; {comma_separated(fixed)} changes at a restart: put it into the broker's configuration file" if fixed else ""
    )


def warn_of_own(target: Target, keys: Iterable[str]) -> None:
    """Say where a broker's own value counts more than what was just set of all."""
    for key, own in own_values(target, keys).items():
        for number, value in own:
            print(f"Broker {number} keeps its own {key}, {value}.", file=sys.stderr)
