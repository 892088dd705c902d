"""`tidelog quota`: list, set, remove."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, key_value
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.own_client import ask_any, check, connected
from tidelog.cli.tables import Column, Table, print_json, print_table, size

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.quotas.entities import Entity

app = typer.Typer(add_completion=False, no_args_is_help=True)

DEFAULT = "(default)"
EXAMPLE = "producer_byte_rate=1MiB"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
BYTE_RATES = ("producer_byte_rate", "consumer_byte_rate")

WHOSE = "Whose quotas"
User = Annotated[
    str | None,
    typer.Option("--user", metavar="NAME", show_default=False, help="A user; ANONYMOUS without authentication.",
                 rich_help_panel=WHOSE),
]  # fmt: skip
ClientId = Annotated[
    str | None,
    typer.Option("--client-id", metavar="NAME", show_default=False, help="A client id.", rich_help_panel=WHOSE),
]
Ip = Annotated[
    str | None,
    typer.Option(
        "--ip", metavar="ADDRESS", show_default=False, help="An IP address of clients.", rich_help_panel=WHOSE
    ),
]
DefaultUser = Annotated[
    bool, typer.Option("--default-user", help="Users without quotas of their own.", rich_help_panel=WHOSE)
]
DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", help="Client ids without quotas of their own.", rich_help_panel=WHOSE)
]
DefaultIp = Annotated[
    bool, typer.Option("--default-ip", help="Addresses without quotas of their own.", rich_help_panel=WHOSE)
]


class Quota(NamedTuple):
    entity: "Entity"
    key: str
    value: float


@app.callback()
def quota() -> None:
    """Show and change quotas: limits on what clients may use.

    producer_byte_rate and consumer_byte_rate are bytes per second,
    request_percentage is the share of the broker's thread in percent,
    controller_mutation_rate is partitions created or deleted per second,
    connection_creation_rate is new connections per second.

    Examples:

    $ tidelog quota set --client-id importer producer_byte_rate=10MiB
    $ tidelog quota list
    $ tidelog quota remove --client-id importer
    """


@app.command("list")
def list_quotas(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """List all quotas, or those of the user, client id or address.

    --user also lists the quotas of that user's client ids.

    Examples:

    $ tidelog quota list
    $ tidelog quota list --default-client-id
    $ tidelog quota list --json | jq '.[].quotas'
    """
    wanted = chosen(user, client_id, ip, default_user, default_client_id, default_ip)
    with connected(bootstrap) as client:
        quotas = described(client, wanted, strict=False)
    if json:
        print_json(as_json(quotas))
    elif not quotas:
        print(f"No quotas. One is set with: tidelog quota set --client-id NAME {EXAMPLE}", file=sys.stderr)
    else:
        print_table(quota_table(quotas))


@app.command("set")
def set_quotas(
    quotas: Annotated[
        list[str], typer.Argument(metavar="QUOTA=VALUE...", show_default=False, help=f"For example {EXAMPLE}.")
    ],
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Set quotas of a user, a client id, a client of a user, or an address.

    Values accept KiB, MiB and GiB. They take effect at once, also for
    clients that are already connected.

    Examples:

    $ tidelog quota set --client-id importer producer_byte_rate=10MiB
    $ tidelog quota set --user ANONYMOUS --default-client-id request_percentage=50
    $ tidelog quota set --default-ip connection_creation_rate=20
    """
    entity = required(chosen(user, client_id, ip, default_user, default_client_id, default_ip))
    values = dict(parsed(text) for text in quotas)
    with connected(bootstrap) as client:
        alter(client, entity, dict(values))
    print(f"Set {', '.join(values)} of {named(entity)}.")


@app.command()
def remove(
    keys: Annotated[
        list[str], typer.Argument(metavar="[QUOTA...]", show_default=False, help="Default: all its quotas.")
    ] = [],  # noqa: B006 - typer copies it
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Remove quotas.

    Examples:

    $ tidelog quota remove --client-id importer
    $ tidelog quota remove --client-id importer producer_byte_rate
    """
    entity = required(chosen(user, client_id, ip, default_user, default_client_id, default_ip))
    with connected(bootstrap) as client:
        present = [quota.key for quota in described(client, entity, strict=True)]
        missing = [key for key in keys if key not in present]
        if missing or not present:
            absent = missing[0] if missing else "quotas"
            raise CommandError(f"{named(entity)} has no {absent} (tidelog quota list shows all quotas)")
        removed = keys or present
        alter(client, entity, dict.fromkeys(removed))
    print(f"Removed {', '.join(removed)} of {named(entity)}.")


# The entity that quotas belong to


def chosen(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    default_user: bool,
    default_client_id: bool,
    default_ip: bool,
) -> "Entity":
    """Return the entity that the options name, in parts; empty if no option is given. Raises UsageError."""
    parts: list[tuple[str, str | None]] = []
    for kind, name, default in (
        ("client-id", client_id, default_client_id), ("user", user, default_user), ("ip", ip, default_ip),
    ):  # fmt: skip
        if name is not None and default:
            raise UsageError(f"--{kind} and --default-{kind} exclude each other")
        if name is not None or default:
            parts.append((kind, name))
    if len(parts) > 1 and any(kind == "ip" for kind, _ in parts):
        raise UsageError("--ip cannot be combined with --user or --client-id")
    return tuple(parts)


def required(entity: "Entity") -> "Entity":
    if not entity:
        raise UsageError("whose quotas? Give --client-id, --user, both, --ip, or a --default-... option (see --help)")
    return entity


def named(entity: "Entity") -> str:
    return ", ".join(f"the default {kind}" if name is None else f"{kind} {name}" for kind, name in entity)


def parsed(text: str) -> tuple[str, float]:
    """Parse QUOTA=VALUE into the quota's name and number. Raises UsageError."""
    key, value = key_value(text, "QUOTA=VALUE", EXAMPLE)
    number, factor = value, 1
    for unit, unit_factor in UNITS.items():
        if value.endswith(unit):
            number, factor = value.removesuffix(unit).rstrip(), unit_factor
    try:
        return key, float(number) * factor
    except ValueError:
        raise UsageError(
            f"{key} takes a number, optionally with KiB, MiB or GiB, for example {EXAMPLE}, not {value!r}"
        ) from None


# The cluster


def described(client: "Client", wanted: "Entity", *, strict: bool) -> list[Quota]:
    from tidelog.wire.messages.describe_client_quotas import (
        ComponentData,
        DescribeClientQuotasRequest,
        DescribeClientQuotasResponse,
    )

    components = [
        ComponentData(entity_type=kind, match_type=1 if name is None else 0, match=name) for kind, name in wanted
    ]
    request = DescribeClientQuotasRequest(components=components, strict=strict)
    answer = ask_any(client, request, DescribeClientQuotasResponse)
    check(answer.error_code, answer.error_message)
    quotas = [
        Quota(tuple((part.entity_type, part.entity_name) for part in entry.entity), value.key, value.value)
        for entry in answer.entries or ()
        for value in entry.values
    ]
    return sorted(quotas, key=lambda quota: ([(kind, name or "") for kind, name in quota.entity], quota.key))


def alter(client: "Client", entity: "Entity", values: dict[str, float | None]) -> None:
    from tidelog.wire.messages.alter_client_quotas import (
        AlterClientQuotasRequest,
        AlterClientQuotasResponse,
        EntityData,
        EntryData,
        OpData,
    )

    entry = EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
    )
    for result in ask_any(client, AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse).entries:
        check(result.error_code, result.error_message)


# Output


def quota_table(quotas: Sequence[Quota]) -> Table:
    columns = [Column(title) for title in ("user", "client id", "ip", "quota")]
    rows = []
    for entity, key, value in quotas:
        parts = dict(entity)
        names = [(parts[kind] or DEFAULT) if kind in parts else "-" for kind in ("user", "client-id", "ip")]
        rows.append([*names, key, shown(key, value)])
    return Table([*columns, Column("value", right=True, spare=-1)], rows)


def shown(key: str, value: float) -> str:
    if not sys.stdout.isatty():
        return f"{value:.15g}"
    if key in BYTE_RATES:
        return f"{size(value)}/s"
    return f"{value:.15g} %" if key == "request_percentage" else f"{value:.15g}/s"


def as_json(quotas: Sequence[Quota]) -> list[dict[str, object]]:
    """Return one object for each entity that has quotas; the name null is the default entity."""
    by_entity: dict[Entity, dict[str, float]] = {}
    for entity, key, value in quotas:
        by_entity.setdefault(entity, {})[key] = value
    return [
        {"entity": [{"type": kind, "name": name} for kind, name in entity], "quotas": values}
        for entity, values in by_entity.items()
    ]
