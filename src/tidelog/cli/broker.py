"""`tidelog broker`: the settings of running brokers."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, key_values
from tidelog.cli.errors import UsageError
from tidelog.cli.own_client import connected
from tidelog.cli.tables import Column, Table, comma_separated, print_json, print_table
from tidelog.cli.topic import value_text

if TYPE_CHECKING:
    from tidelog.cli.broker_settings import BrokerSetting, Layer

app = typer.Typer(add_completion=False, no_args_is_help=True)
config = typer.Typer(add_completion=False, no_args_is_help=True)
app.add_typer(config, name="config")

Of = Annotated[
    int | None, typer.Option("--broker", min=0, metavar="N", show_default=False, help="Of this broker alone.")
]
Check = Annotated[bool, typer.Option("--check", help="Only say whether it would be taken.")]


@app.callback()
def broker() -> None:
    """Show and change the settings of running brokers.

    Examples:

    $ tidelog broker config describe
    $ tidelog broker config set log.retention.ms=86400000
    """


@config.callback()
def settings() -> None:
    """Show and change the settings of running brokers.

    A change holds at once and after restarts. Of one broker it counts
    more than of all of them, and both count more than what the broker was
    started with: its file, its environment, its command line.

    Examples:

    $ tidelog broker config describe log.retention.ms
    $ tidelog broker config set log.retention.ms=86400000
    $ tidelog broker config unset log.retention.ms
    """


@config.command()
def describe(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", show_default=False, help="Only these, with every place that sets them."),
    ] = None,
    broker: Of = None,
    altered: Annotated[
        bool, typer.Option("--all-brokers", help="What was set of all brokers, and nothing else.")
    ] = False,
    all_settings: Annotated[bool, typer.Option("--all", help="Every setting, defaults included.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Show a broker's settings: those that are not at their defaults.

    Examples:

    $ tidelog broker config describe
    $ tidelog broker config describe --all
    $ tidelog broker config describe log.retention.ms log.segment.bytes
    $ tidelog broker config describe --all-brokers
    $ tidelog broker config describe --json | jq '.["log.retention.ms"]'
    """
    from tidelog.cli import broker_settings

    if altered and broker is not None:
        raise UsageError("--broker and --all-brokers exclude each other")
    with connected(bootstrap) as client:
        number, address = broker_settings.address_of(client, broker)
        found = broker_settings.described(client, address, str(number), keys or [])
        if keys:
            broker_settings.check_known(keys, [setting.name for setting in found], number)
        if altered:
            found = broker_settings.described(client, address, broker_settings.ALL, keys or [])
    if not keys and not all_settings:
        found = [setting for setting in found if not setting.is_default]
    if json:
        print_json(settings_json(found))
    elif not found:
        print(nothing_to_show(number, altered, keys or []), file=sys.stderr)
    else:
        print_table(settings_table(found))
        if keys:
            print_layers(found)


@config.command("set")
def set_settings(
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", show_default=False, help="What to set.")],
    broker: Of = None,
    check: Check = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Set settings of all brokers, or of one, while they run.

    Examples:

    $ tidelog broker config set log.retention.ms=86400000
    $ tidelog broker config set max.connections=500 --broker 1
    $ tidelog broker config set log.cleanup.policy=compact,delete --check
    """
    changes = key_values(settings, "set", "log.retention.ms=86400000")
    from tidelog.cli.broker_changes import change

    change(dict(changes), broker, check, bootstrap)


def nothing_to_show(number: int, altered: bool, keys: list[str]) -> str:
    if altered:
        return f"{comma_separated(keys)}: not set for all brokers." if keys else "Nothing was set of all brokers."
    return f"{comma_separated(keys)}: not set." if keys else f"All settings of broker {number} have their defaults."


@config.command("unset")
def unset(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", show_default=False, help="What to take back.")],
    broker: Of = None,
    check: Check = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Take back what was set of all brokers, or of one.

    Where nothing was set it says so, and where the value comes from.

    Examples:

    $ tidelog broker config unset log.retention.ms
    $ tidelog broker config unset max.connections --broker 1
    """
    from tidelog.cli.broker_changes import change

    change(dict.fromkeys(keys), broker, check, bootstrap)


def settings_table(found: "list[BrokerSetting]") -> Table:
    columns = [Column("Setting"), Column("Value", spare=-1), Column("From", spare=1), Column("Changes", spare=2)]
    rows = [[s.name, shown(s.name, s.effective, s.sensitive), comes_from(s), changes_when(s)] for s in found]
    if not all(setting.effect for setting in found):
        columns.append(Column("Note", style="yellow"))
        for setting, row in zip(found, rows, strict=True):
            row.append("" if setting.effect else "no effect yet")
    return Table(columns, rows)


def comes_from(setting: "BrokerSetting") -> str:
    if setting.counts is None:
        return setting.origin
    if setting.value is None:
        return f"{setting.counts.name} ({setting.counts.origin})"
    return f"{setting.origin} ({setting.counts.name} counts)"


def changes_when(setting: "BrokerSetting") -> str:
    return "at a restart" if setting.read_only else "live"


def shown(name: str, value: str | None, sensitive: bool) -> str:
    if sensitive:
        return "(hidden)"
    return "(none)" if value is None else value_text(name, value)


def print_layers(found: "list[BrokerSetting]") -> None:
    """Every place that gives these settings a value, the one that counts first."""
    rows = [
        (setting.name, layer.name, shown(layer.name, layer.value, setting.sensitive), layer.origin)
        for setting in found
        for layer in setting.layers
    ]
    if rows:
        print()
        print_table(layers_table(rows))


def layers_table(rows: Sequence[tuple[str, str, str, str]]) -> Table:
    columns = [Column("Setting"), Column("Set as", spare=1), Column("Value", spare=-1), Column("From")]
    return Table(columns, rows)


def settings_json(found: "list[BrokerSetting]") -> dict[str, Any]:
    return {
        s.name: {
            "value": s.value,
            "from": s.origin,
            "in_force": layer_json(s.in_force),
            "changes": changes_when(s),
            "effect": s.effect,
            "layers": [layer_json(layer) for layer in s.layers],
        }
        for s in found
    }


def layer_json(layer: "Layer") -> dict[str, str | None]:
    return {"name": layer.name, "value": layer.value, "from": layer.origin}
