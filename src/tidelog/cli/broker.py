"""`tidelog broker`: show and change the settings of running brokers."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, key_values
from tidelog.cli.errors import UsageError
from tidelog.cli.own_client import connected
from tidelog.cli.tables import Column, Table, comma_separated, print_json, print_table
from tidelog.cli.topic_tables import value_text

if TYPE_CHECKING:
    from tidelog.cli.broker_settings import BrokerSetting, Layer

app = typer.Typer(add_completion=False, no_args_is_help=True)
config = typer.Typer(add_completion=False, no_args_is_help=True)
app.add_typer(config, name="config")

BrokerNumber = Annotated[
    int | None, typer.Option("--broker", min=0, metavar="N", show_default=False, help="Only this broker.")
]
OnlyCheck = Annotated[bool, typer.Option("--check", help="Only check whether the change would be accepted.")]


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

    A change takes effect at once and survives restarts. A value for one
    broker overrides the value for all brokers. Both override the values
    from the broker's configuration file, environment and command line.

    Examples:

    $ tidelog broker config describe log.retention.ms
    $ tidelog broker config set log.retention.ms=86400000
    $ tidelog broker config unset log.retention.ms
    """


@config.command()
def describe(
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY]...", show_default=False, help="Only these settings, with each place where they are set."
        ),
    ] = None,
    broker: BrokerNumber = None,
    all_brokers: Annotated[
        bool, typer.Option("--all-brokers", help="Only values that were set for all brokers together.")
    ] = False,
    all_settings: Annotated[bool, typer.Option("--all", help="Show every setting, including defaults.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Show a broker's settings whose values are not the defaults.

    Examples:

    $ tidelog broker config describe
    $ tidelog broker config describe --all
    $ tidelog broker config describe log.retention.ms log.segment.bytes
    $ tidelog broker config describe --all-brokers
    $ tidelog broker config describe --json | jq '.["log.retention.ms"]'
    """
    from tidelog.cli import broker_settings

    if all_brokers and broker is not None:
        raise UsageError("--broker and --all-brokers cannot be used together")
    with connected(bootstrap) as client:
        number, address = broker_settings.address_of(client, broker)
        settings = broker_settings.describe_settings(client, address, str(number), keys or [])
        if keys:
            broker_settings.check_known(keys, [setting.name for setting in settings], number)
        if all_brokers:
            settings = broker_settings.describe_settings(client, address, broker_settings.ALL_BROKERS, keys or [])
    if not keys and not all_settings:
        settings = [setting for setting in settings if not setting.is_default]
    if json:
        print_json(settings_json(settings))
    elif not settings:
        print(nothing_to_show(number, all_brokers, keys or []), file=sys.stderr)
    else:
        print_table(settings_table(settings))
        if keys:
            print_layers(settings)


@config.command("set")
def set_settings(
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", show_default=False, help="Settings and their new values.")
    ],
    broker: BrokerNumber = None,
    check: OnlyCheck = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Change settings of all brokers, or of one broker, while they run.

    Examples:

    $ tidelog broker config set log.retention.ms=86400000
    $ tidelog broker config set max.connections=500 --broker 1
    $ tidelog broker config set log.cleanup.policy=compact,delete --check
    """
    changes = key_values(settings, "set", "log.retention.ms=86400000")
    from tidelog.cli.broker_changes import change

    change(dict(changes), broker, check, bootstrap)


def nothing_to_show(number: int, all_brokers: bool, keys: list[str]) -> str:
    """Return the line that is printed if the table is empty."""
    if all_brokers:
        if keys:
            return f"{comma_separated(keys)}: no value was set for all brokers together."
        return "No setting was set for all brokers together."
    return (
        f"{comma_separated(keys)}: not set." if keys else f"All settings of broker {number} have their default values."
    )


@config.command("unset")
def unset(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", show_default=False, help="Settings to unset.")],
    broker: BrokerNumber = None,
    check: OnlyCheck = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Remove the values that were set for all brokers, or for one broker.

    If there is no such value to remove, the command names the origin of the
    value that the broker uses.

    Examples:

    $ tidelog broker config unset log.retention.ms
    $ tidelog broker config unset max.connections --broker 1
    """
    from tidelog.cli.broker_changes import change

    change(dict.fromkeys(keys), broker, check, bootstrap)


def settings_table(settings: "list[BrokerSetting]") -> Table:
    columns = [
        Column("Setting"),
        Column("Value", spare=-1, breaks=True),
        Column("From", spare=1),
        Column("Changes", spare=2),
    ]
    rows = [
        [s.name, displayed_value(s.name, s.shown_value, s.sensitive), origin_text(s), changes_when(s)] for s in settings
    ]
    if not all(setting.effect for setting in settings):
        columns.append(Column("Note", style="yellow"))
        for setting, row in zip(settings, rows, strict=True):
            row.append("" if setting.effect else "no effect yet")
    return Table(columns, rows)


def origin_text(setting: "BrokerSetting") -> str:
    """Return the origin of the value. If another setting takes precedence, the other setting's name is added. If only
    the other setting has a value, the text is the other setting's name and the origin of that value.
    """
    if setting.replaced_by is None:
        return setting.origin
    if setting.value is None:
        return f"{setting.replaced_by.name} ({setting.replaced_by.origin})"
    return f"{setting.origin} (overridden by {setting.replaced_by.name})"


def changes_when(setting: "BrokerSetting") -> str:
    return "at a restart" if setting.read_only else "live"


def displayed_value(name: str, value: str | None, sensitive: bool) -> str:
    if sensitive:
        return "(hidden)"
    return "(none)" if value is None else value_text(name, value)


def print_layers(settings: "list[BrokerSetting]") -> None:
    """Print every place where these settings have a value, in the order of precedence."""
    rows = [
        (setting.name, layer.name, displayed_value(layer.name, layer.value, setting.sensitive), layer.origin)
        for setting in settings
        for layer in setting.layers
    ]
    if rows:
        print()
        print_table(layers_table(rows))


def layers_table(rows: Sequence[tuple[str, str, str, str]]) -> Table:
    columns = [Column("Setting"), Column("Set as", spare=1), Column("Value", spare=-1, breaks=True), Column("From")]
    return Table(columns, rows)


def settings_json(settings: "list[BrokerSetting]") -> dict[str, Any]:
    return {
        s.name: {
            "value": s.value,
            "from": s.origin,
            "in_force": layer_json(s.in_force),
            "changes": changes_when(s),
            "effect": s.effect,
            "layers": [layer_json(layer) for layer in s.layers],
        }
        for s in settings
    }


def layer_json(layer: "Layer") -> dict[str, str | None]:
    return {"name": layer.name, "value": layer.value, "from": layer.origin}
