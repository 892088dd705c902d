"""`tidelog topic`: create, list, describe, delete, add-partitions, config."""

import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli import cluster, offline
from tidelog.cli.connection import (
    ANSWER_S,
    LOCALHOST,
    PARTITIONS_MAX,
    REPLICAS_MAX,
    AsJson,
    Bootstrap,
    ClientSettings,
    answer,
    connect,
    key_values,
)
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.tables import Column, Table, cell, counted, heading, listed, print_json, print_table, size
from tidelog.cli.when import span

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

NO_LIMIT = 2**63 - 1

app = typer.Typer(add_completion=False, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="The topic.")]
Settings = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", show_default=False, help="A topic setting; repeatable.")
]


@app.callback()
def topic() -> None:
    """Create, list, describe, change and delete topics.

    Examples:

    $ tidelog topic create orders --partitions 12
    $ tidelog topic list
    $ tidelog topic describe orders
    $ tidelog topic config orders --set retention.ms=86400000
    """


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, max=PARTITIONS_MAX, metavar="N", help="How many; default: the broker's."
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", "-r", min=1, max=REPLICAS_MAX, metavar="N", help="Copies of each; default: the broker's."
        ),
    ] = None,
    set: Settings = [],  # noqa: B006 - typer copies it
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")] = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Create a topic.

    Examples:

    $ tidelog topic create orders
    $ tidelog topic create orders --partitions 12 --set retention.ms=86400000
    $ tidelog topic create orders --if-not-exists
    """
    settings = key_values(set, "--set", "retention.ms=86400000")
    admin = connect(bootstrap, client).admin()
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    new = NewTopic(name, num_partitions=partitions or -1, replication_factor=replicas or -1, config=settings)
    future = admin.create_topics([new], request_timeout=ANSWER_S)[name]
    error = future.exception()
    exists = isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    if if_not_exists and exists:
        print(f"Topic {name} already exists.", flush=True)
        warn_of_differences(admin, name, partitions, replicas, settings)
        return
    answer(future, f"topic {name}")
    print(f"Created topic {name}.")


def warn_of_differences(
    admin: "AdminClient", name: str, partitions: int | None, replicas: int | None, settings: dict[str, str]
) -> None:
    """Say where a topic that was there before is another than the one that was asked for."""
    (topic,) = cluster.describe(admin, [name])
    have = {setting.name: setting.value for setting in cluster.settings(admin, name)} if settings else {}
    differences, remedies = topic_differences(topic, have, partitions, replicas, settings)
    if differences:
        print(f"Warning: it is as it was: {'; '.join(differences)}.", file=sys.stderr)
    for remedy in remedies:
        print(f"  {remedy}", file=sys.stderr)


def topic_differences(
    topic: cluster.TopicState,
    have: dict[str, str],
    partitions: int | None,
    replicas: int | None,
    settings: dict[str, str],
) -> tuple[list[str], list[str]]:
    """What is not as it was asked for (None for what was not), and the commands that would change that."""
    differences, remedies = [], []
    count = len(topic.partitions)
    if partitions not in (None, count):
        differences.append(f"{counted(count, 'partition')}, not {partitions}")
        if partitions is not None and partitions > count:
            remedies.append(f"tidelog topic add-partitions {topic.name} {partitions}")
    if replicas is not None and any(len(part.replicas) != replicas for part in topic.partitions):
        differences.append(f"replicas {replicas_text(topic)}, not {replicas}")
    others = {key: value for key, value in settings.items() if have.get(key) != value}
    differences += [f"{key}={have.get(key, '')}, not {value}" for key, value in others.items()]
    if others:
        given = " ".join(f"--set {shlex.quote(f'{key}={value}')}" for key, value in others.items())
        remedies.append(f"tidelog topic config {topic.name} {given}")
    return differences, remedies


@app.command("list")
def list_topics(
    internal: Annotated[
        bool, typer.Option("--internal", help="Include topics that brokers keep for themselves.")
    ] = False,
    names: Annotated[bool, typer.Option("--names", help="Print names only, one per line.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """List the topics.

    Examples:

    $ tidelog topic list
    $ tidelog topic list --names | grep orders
    $ tidelog topic list --json
    """
    admin = connect(bootstrap, client).admin()
    # One that is deleted between two of the questions is none of the answer's.
    topics = cluster.describe(admin, cluster.topic_names(admin), missing_too=True)
    topics = [topic for topic in topics if internal or not topic.internal]
    if names:
        for topic in topics:
            print(topic.name)
        return
    offsets = cluster.offsets(admin, topics, missing_too=True)
    # A partition that cannot be asked (its leader has it offline) adds nothing.
    records = {
        t.name: sum(found.records for p in t.partitions if (found := offsets.get((t.name, p.partition))) is not None)
        for t in topics
    }
    if json:
        print_json([topic_json(topic) | {"records": records[topic.name]} for topic in topics])
    elif not topics:
        print("No topics yet. Create one with: tidelog topic create NAME", file=sys.stderr)
    else:
        print_table(topics_table(topics, records))


def topics_table(topics: list[cluster.TopicState], records: dict[str, int]) -> Table:
    columns = [Column("Topic"), Column("Partitions", True), Column("Replicas", True, spare=1), Column("Records", True)]
    rows = [[t.name, cell(len(t.partitions)), replicas_text(t), cell(records[t.name])] for t in topics]
    if any(trouble(topic) for topic in topics):
        columns.append(Column("Trouble", style="red"))
        for topic, row in zip(topics, rows, strict=True):
            row.append(trouble(topic))
    return Table(columns, rows)


def replicas_text(topic: cluster.TopicState) -> str:
    """The number of copies; a range where partitions differ."""
    counts = sorted({len(part.replicas) for part in topic.partitions})
    return "-".join(map(str, counts[:1] + counts[1:][-1:]))


def trouble(topic: cluster.TopicState) -> str:
    """What an operator should look at; empty when all is well."""
    leaderless = sum(part.leader < 0 for part in topic.partitions)
    behind = sum(len(part.isr) < len(part.replicas) for part in topic.partitions)
    parts = [f"{leaderless} without a leader"] * bool(leaderless) + [f"{behind} under-replicated"] * bool(behind)
    return listed(parts)


@app.command()
def describe(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False, help="One topic or several.")],
    all_settings: Annotated[bool, typer.Option("--all", help="Every setting, defaults included.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Show a topic's partitions, offsets and settings.

    Examples:

    $ tidelog topic describe orders
    $ tidelog topic describe orders --all
    $ tidelog topic describe orders --json | jq '.[0].partitions'
    """
    admin = connect(bootstrap, client).admin()
    found = cluster.describe(admin, topics)
    offsets = cluster.offsets(admin, found)
    settings = {topic.name: shown_settings(admin, topic.name, all_settings) for topic in found}
    if json:
        print_json([topic_json(t, offsets) | {"settings": settings_json(settings[t.name])} for t in found])
        tell_offline(found, offsets)
        return
    for number, topic in enumerate(found):
        print("\n" * bool(number), end="")
        heading(topic.name, f"topic ID {topic.topic_id}", f"replicas {replicas_text(topic)}")
        print_table(partitions_table(topic, offsets))
        print()
        if settings[topic.name]:
            print_table(settings_table(settings[topic.name]))
        else:
            print("All settings have their defaults (--all shows them).")
    tell_offline(found, offsets)


def tell_offline(topics: list[cluster.TopicState], offsets: dict[tuple[str, int], cluster.Offsets]) -> None:
    """What the tables show with ? in place of numbers."""
    unknown = {t.name: [p.partition for p in t.partitions if (t.name, p.partition) not in offsets] for t in topics}
    sys.stdout.flush()
    offline.warn(
        {name: partitions for name, partitions in unknown.items() if partitions},
        "Nobody can read or write there.",
    )


def shown_settings(admin: "AdminClient", topic: str, every: bool) -> list[cluster.Setting]:
    return [setting for setting in cluster.settings(admin, topic) if every or setting.origin != cluster.DEFAULT]


def partitions_table(topic: cluster.TopicState, offsets: dict[tuple[str, int], cluster.Offsets]) -> Table:
    columns = [
        Column("Partition", True),
        Column("Leader", True, spare=1),
        Column("Replicas", spare=3),
        Column("ISR", spare=2),
        Column("First offset", True),
        Column("Next offset", True),
        Column("Records", True, spare=1),
    ]
    rows = []
    for part in topic.partitions:
        known = offsets.get((topic.name, part.partition))
        numbers = (str(known.earliest), str(known.latest), cell(known.records)) if known else ("?", "?", "?")
        leader = str(part.leader) if part.leader >= 0 else "none"
        rows.append((str(part.partition), leader, listed(part.replicas), listed(part.isr), *numbers))
    return Table(columns, rows)


def settings_table(settings: list[cluster.Setting]) -> Table:
    columns = [Column("Setting"), Column("Value", spare=-1), Column("From", spare=1)]
    rows = [[s.name, "(hidden)" if s.sensitive else value_text(s.name, s.value), s.origin] for s in settings]
    if not all(setting.effect for setting in settings):
        columns.append(Column("Note", style="yellow"))
        for setting, row in zip(settings, rows, strict=True):
            row.append("" if setting.effect else "no effect yet")
    return Table(columns, rows)


def value_text(name: str, value: str) -> str:
    """The value as it is set, and at a terminal what it means where that takes counting digits."""
    if not sys.stdout.isatty() or not value.removeprefix("-").isdigit():
        return value
    number = int(value)
    if number == NO_LIMIT or (number == -1 and name.startswith("retention.")):
        return f"{value} (no limit)"
    if name.endswith(".ms") and number >= 1000:
        return f"{value} ({span(number / 1000)})"
    if name.endswith(".bytes") and number >= 1024:
        return f"{value} ({size(number)})"
    return value


def topic_json(
    topic: cluster.TopicState, offsets: dict[tuple[str, int], cluster.Offsets] | None = None
) -> dict[str, Any]:
    partitions: list[dict[str, Any]] = [
        {"partition": part.partition, "leader": part.leader, "replicas": part.replicas, "isr": part.isr}
        for part in topic.partitions
    ]
    if offsets is not None:
        for part in partitions:
            known = offsets.get((topic.name, part["partition"]))
            part["offline"] = known is None
            if known is not None:
                part |= {"first_offset": known.earliest, "next_offset": known.latest}
    return {"topic": topic.name, "topic_id": topic.topic_id, "internal": topic.internal, "partitions": partitions}


def settings_json(settings: list[cluster.Setting]) -> dict[str, Any]:
    return {s.name: {"value": None if s.sensitive else s.value, "from": s.origin, "effect": s.effect} for s in settings}


@app.command()
def delete(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False, help="One topic or several.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Delete topics and every record in them.

    It asks for each before it deletes any. After a no nothing is deleted,
    and the exit code is 0, as it is of kubectl and rpk.

    Examples:

    $ tidelog topic delete orders
    $ tidelog topic delete orders payments --yes
    """
    admin = connect(bootstrap, client).admin()
    found = cluster.describe(admin, topics)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("stdin is not a terminal, so nobody can confirm this: add --yes to delete")
        offsets = cluster.offsets(admin, found)
        for topic in found:
            records = sum(known.records for (name, _), known in offsets.items() if name == topic.name)
            if not typer.confirm(f"Delete topic {topic.name} with {counted(records, 'record')}?"):
                print("Nothing was deleted.")
                return
    for name, future in admin.delete_topics([topic.name for topic in found], request_timeout=ANSWER_S).items():
        answer(future, f"topic {name}")
        print(f"Deleted topic {name}.")


@app.command("add-partitions")
def add_partitions(
    name: Name,
    total: Annotated[
        int,
        typer.Argument(
            metavar="TOTAL", min=1, max=PARTITIONS_MAX, show_default=False, help="The new number of partitions."
        ),
    ],
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Give a topic more partitions.

    TOTAL is how many it will have, not how many are added.

    Existing records stay where they are. A key may move: its new records
    can go to a different partition than its old ones.

    Examples:

    $ tidelog topic add-partitions orders 24
    """
    admin = connect(bootstrap, client).admin()
    from confluent_kafka.admin import NewPartitions

    (topic,) = cluster.describe(admin, [name])
    have = len(topic.partitions)
    if total <= have:
        raise CommandError(
            f"topic {name} has {counted(have, 'partition')}: give a larger number, partitions cannot be removed"
        )
    answer(admin.create_partitions([NewPartitions(name, total)], request_timeout=ANSWER_S)[name], f"topic {name}")
    print(f"Topic {name} now has {counted(total, 'partition')} (it had {have}).")


@app.command("config")
def configure(
    name: Name,
    set: Settings = [],  # noqa: B006
    unset: Annotated[
        list[str], typer.Option("--unset", metavar="KEY", show_default=False, help="Reset to the default; repeatable.")
    ] = [],  # noqa: B006
    all_settings: Annotated[bool, typer.Option("--all", help="Show every setting, defaults included.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Change a topic's settings, then show them.

    Where nothing was set, --unset says so.

    Examples:

    $ tidelog topic config orders
    $ tidelog topic config orders --set retention.ms=86400000 --set cleanup.policy=delete
    $ tidelog topic config orders --unset retention.ms
    """
    changes = key_values(set, "--set", "retention.ms=86400000")
    if both := [key for key in unset if key in changes]:
        raise UsageError(f"{both[0]} is set and unset at once: give --set or --unset of it")
    admin = connect(bootstrap, client).admin()
    cluster.describe(admin, [name])
    unset = own_settings(admin, name, unset) if unset else []
    if changes or unset:
        change_settings(admin, name, changes, unset)
    settings = shown_settings(admin, name, all_settings)
    if json:
        print_json(settings_json(settings))
    elif settings:
        print_table(settings_table(settings))
    else:
        print(f"All settings of topic {name} have their defaults (--all shows them).", file=sys.stderr)


def own_settings(admin: "AdminClient", topic: str, names: list[str]) -> list[str]:
    """Those of `names` that the topic sets, once each; of the others it is said that there is nothing to take back.

    Raises CommandError for a name that is no topic's setting.
    """
    from tidelog.config.keys import TOPIC_KEYS

    found = {setting.name: setting for setting in cluster.settings(admin, topic)}
    for name in names:
        # What Kafka keeps to itself until it is set is no mistake.
        if name not in found and name not in TOPIC_KEYS:
            raise CommandError(f"there is no topic setting {name}{setting_hint(name, found)}")
    own = []
    for name in dict.fromkeys(names):
        if name in found and found[name].origin == cluster.TOPIC:
            own.append(name)
            continue
        origin = found[name].origin if name in found else cluster.DEFAULT
        more = "" if origin == cluster.DEFAULT else f" (its value, {found[name].value}, is from {origin})"
        print(f"{name} was not set on topic {topic}; nothing to do{more}.", file=sys.stderr)
    return own


def setting_hint(name: str, known: Iterable[str]) -> str:
    """What may have been meant: the topic's setting that a broker's gives the default of, or the nearest name."""
    from tidelog.config.keys import TOPIC_KEYS, nearest

    same = (key.name for key in TOPIC_KEYS.values() if any(of_broker == name for of_broker, _ in key.synonyms))
    near = next(same, None) or nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def change_settings(admin: "AdminClient", topic: str, changes: dict[str, str], unset: list[str]) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in changes.items()]
    entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    answer(
        admin.incremental_alter_configs([resource], request_timeout=ANSWER_S)[resource],
        f"topic {topic}",
    )
