"""`tidelog quota`: list, set and remove client quotas."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, split_key_value
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.own_client import ask_any, connected, raise_for_code
from tidelog.cli.tables import Column, Table, comma_separated, print_json, print_table, size

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.quotas.entities import Entity

app = typer.Typer(add_completion=False, no_args_is_help=True)

DEFAULT = "(default)"
EXAMPLE = "producer_byte_rate=1MiB"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
BYTE_RATES = ("producer_byte_rate", "consumer_byte_rate")

ENTITY_PANEL = "Whose quotas"
User = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="NAME",
        show_default=False,
        help="A user. Without authentication, every client is the user ANONYMOUS.",
        rich_help_panel=ENTITY_PANEL,
    ),
]
ClientId = Annotated[
    str | None,
    typer.Option("--client-id", metavar="NAME", show_default=False, help="A client id.", rich_help_panel=ENTITY_PANEL),
]
Ip = Annotated[
    str | None,
    typer.Option(
        "--ip",
        metavar="ADDRESS",
        show_default=False,
        help="Clients with this IP address.",
        rich_help_panel=ENTITY_PANEL,
    ),
]
DefaultUser = Annotated[
    bool, typer.Option("--default-user", help="Users without quotas of their own.", rich_help_panel=ENTITY_PANEL)
]
DefaultClientId = Annotated[
    bool,
    typer.Option("--default-client-id", help="Client ids without quotas of their own.", rich_help_panel=ENTITY_PANEL),
]
DefaultIp = Annotated[
    bool, typer.Option("--default-ip", help="Addresses without quotas of their own.", rich_help_panel=ENTITY_PANEL)
]


class Quota(NamedTuple):
    entity: "Entity"
    key: str
    value: float


@app.callback()
def quota() -> None:
    """Show and change quotas: limits on what clients may use.

    producer_byte_rate and consumer_byte_rate limit the bytes per second.
    request_percentage limits the time that the broker's event loop spends
    on requests, in percent.
    controller_mutation_rate limits how many partitions are created or
    deleted per second.
    connection_creation_rate limits the new connections per second.

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
    """List all quotas, or only those of a user, a client id or an address.

    --user also lists the quotas of this user's client ids. --client-id also
    lists the quotas that users have for this client id.

    Examples:

    $ tidelog quota list
    $ tidelog quota list --default-client-id
    $ tidelog quota list --json | jq '.[].quotas'
    """
    wanted = entity_from_options(user, client_id, ip, default_user, default_client_id, default_ip)
    with connected(bootstrap) as client:
        quotas = describe_quotas(client, wanted, strict=False)
    if json:
        print_json(quotas_json(quotas))
    elif not quotas:
        subject = f" for {entity_text(wanted)}" if wanted else ""
        print(f"No quotas are set{subject}. To set one: tidelog quota set --client-id NAME {EXAMPLE}", file=sys.stderr)
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
    """Set quotas of a user, a client id, a user's client id, or an address.

    A value may end in KiB, MiB or GiB. It takes effect at once, even for
    clients that are already connected.

    Examples:

    $ tidelog quota set --client-id importer producer_byte_rate=10MiB
    $ tidelog quota set --user ANONYMOUS --default-client-id request_percentage=50
    $ tidelog quota set --default-ip connection_creation_rate=20
    """
    entity = require_entity(entity_from_options(user, client_id, ip, default_user, default_client_id, default_ip))
    values = dict(parse_quota(text) for text in quotas)
    with connected(bootstrap) as client:
        alter_quotas(client, entity, dict(values))
    print(f"{comma_separated(values)} {'is' if len(values) == 1 else 'are'} now set for {entity_text(entity)}.")


@app.command()
def remove(
    keys: Annotated[
        list[str], typer.Argument(metavar="[QUOTA...]", show_default=False, help="The quotas to remove; default: all.")
    ] = [],  # noqa: B006 - typer copies it
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Remove quotas, so that they no longer limit clients.

    Examples:

    $ tidelog quota remove --client-id importer
    $ tidelog quota remove --client-id importer producer_byte_rate
    """
    entity = require_entity(entity_from_options(user, client_id, ip, default_user, default_client_id, default_ip))
    with connected(bootstrap) as client:
        present = [quota.key for quota in describe_quotas(client, entity, strict=True)]
        missing = [key for key in keys if key not in present]
        if missing or not present:
            absent = missing[0] if missing else "quotas"
            raise CommandError(f"{entity_text(entity)} has no {absent}; tidelog quota list shows all quotas")
        removed = keys or present
        alter_quotas(client, entity, dict.fromkeys(removed))
    verb = "is" if len(removed) == 1 else "are"
    print(f"{comma_separated(removed)} {verb} no longer set for {entity_text(entity)}.")


# The entity that quotas belong to


def entity_from_options(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    default_user: bool,
    default_client_id: bool,
    default_ip: bool,
) -> "Entity":
    """Return the entity that the options select: the types and names of its parts. It is empty without options.

    The name None means the default entity. Raises UsageError for options that cannot be used together.
    """
    parts: list[tuple[str, str | None]] = []
    for kind, name, default in (
        ("client-id", client_id, default_client_id), ("user", user, default_user), ("ip", ip, default_ip),
    ):  # fmt: skip
        if name is not None and default:
            raise UsageError(f"--{kind} and --default-{kind} cannot be used together")
        if name is not None or default:
            parts.append((kind, name))
    if len(parts) > 1 and any(kind == "ip" for kind, _ in parts):
        raise UsageError("--ip and --default-ip cannot be used together with options for users or client ids")
    return tuple(parts)


def require_entity(entity: "Entity") -> "Entity":
    """Return the entity. Raises UsageError if it is empty."""
    if not entity:
        raise UsageError(
            "no user, client id or address: add --client-id or --user (or both), or --ip, or a --default-... option "
            "(see --help)"
        )
    return entity


def entity_text(entity: "Entity") -> str:
    """Return the entity in words: `the default client-id, user alice`."""
    return ", ".join(f"the default {kind}" if name is None else f"{kind} {name}" for kind, name in entity)


def parse_quota(text: str) -> tuple[str, float]:
    """Parse QUOTA=VALUE into the quota's name and number. Raises UsageError."""
    key, value = split_key_value(text, f"expected QUOTA=VALUE, for example {EXAMPLE}")
    number, factor = value, 1
    for unit, unit_factor in UNITS.items():
        if value.endswith(unit):
            number, factor = value.removesuffix(unit).rstrip(), unit_factor
    try:
        return key, float(number) * factor
    except ValueError:
        raise UsageError(
            f"{key} takes a number that may end in KiB, MiB or GiB, for example {EXAMPLE}, not {value!r}"
        ) from None


# The cluster


def describe_quotas(client: "Client", wanted: "Entity", *, strict: bool) -> list[Quota]:
    """Request the quotas of the entity and return them, sorted.

    Without `strict`, also return the quotas of entities that have the parts of `wanted` and further parts: for a user,
    also the quotas of the user's client ids.
    """
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
    raise_for_code(answer.error_code, answer.error_message)
    quotas = [
        Quota(tuple((part.entity_type, part.entity_name) for part in entry.entity), value.key, value.value)
        for entry in answer.entries or ()
        for value in entry.values
    ]
    return sorted(quotas, key=lambda quota: ([(kind, name or "") for kind, name in quota.entity], quota.key))


def alter_quotas(client: "Client", entity: "Entity", values: dict[str, float | None]) -> None:
    """Set the quotas that have a value, and remove those with None. Raises CommandError."""
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
        raise_for_code(result.error_code, result.error_message)


# Output


def quota_table(quotas: Sequence[Quota]) -> Table:
    columns = [Column(title) for title in ("user", "client id", "ip", "quota")]
    rows = []
    for entity, key, value in quotas:
        parts = dict(entity)
        names = [(parts[kind] or DEFAULT) if kind in parts else "-" for kind in ("user", "client-id", "ip")]
        rows.append([*names, key, value_text(key, value)])
    return Table([*columns, Column("value", right=True, spare=-1)], rows)


def value_text(key: str, value: float) -> str:
    """Return the value as text: at a terminal with its unit, otherwise as a number without a unit."""
    if not sys.stdout.isatty():
        return f"{value:.15g}"
    if key in BYTE_RATES:
        return f"{size(value)}/s"
    return f"{value:.15g} %" if key == "request_percentage" else f"{value:.15g}/s"


def quotas_json(quotas: Sequence[Quota]) -> list[dict[str, object]]:
    """Return one object for each entity that has quotas. The name null means the default entity."""
    by_entity: dict[Entity, dict[str, float]] = {}
    for entity, key, value in quotas:
        by_entity.setdefault(entity, {})[key] = value
    return [
        {"entity": [{"type": kind, "name": name} for kind, name in entity], "quotas": values}
        for entity, values in by_entity.items()
    ]
