"""The commands `tidelog topic`: create, list, describe, delete, add-partitions, config."""

import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli import cluster, offline
from tidelog.cli.cluster_state import PartitionReplicas, read_partitions
from tidelog.cli.connection import (
    LOCALHOST,
    PARTITIONS_MAX,
    REPLICAS_MAX,
    AsJson,
    Bootstrap,
    ClientSettings,
    connect,
    key_values,
)
from tidelog.cli.errors import CommandError, UsageError, raise_together, refuse_names_with_json
from tidelog.cli.tables import (
    Column,
    Table,
    cell,
    comma_separated,
    counted,
    name_text,
    print_heading,
    print_json,
    print_notes,
    print_table,
    printable,
)
from tidelog.cli.topic_tables import (
    partitions_table,
    replicas_text,
    settings_json,
    settings_table,
    topic_json,
)

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

INTERNAL_CONTENTS = {
    "__consumer_offsets": "the committed offsets of every consumer group",
    "__transaction_state": "the state of every transaction",
    "__share_group_state": "the state of every share group",
}
"""The data that brokers store in their internal topics."""

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
            "--partitions",
            "-p",
            min=1,
            max=PARTITIONS_MAX,
            metavar="N",
            help="Number of partitions; default: the broker's setting.",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            "-r",
            min=1,
            max=REPLICAS_MAX,
            metavar="N",
            help="Copies of each partition; default: the broker's setting.",
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
    with connect(bootstrap, client).open() as cluster_client:
        if cluster.create_topic(cluster_client, name, partitions, replicas, settings):
            print(f"Created topic {name}.")
        elif if_not_exists:
            print(f"Topic {name} already exists.", flush=True)
            warn_of_differences(cluster_client, name, partitions, replicas, settings)
        else:
            raise CommandError(f"topic {name} already exists (--if-not-exists accepts that)")


def warn_of_differences(
    client: "Client", name: str, partitions: int | None, replicas: int | None, settings: dict[str, str]
) -> None:
    """Print how an existing topic differs from the request, and commands that would remove differences."""
    (topic,) = cluster.describe(client, [name])
    current = {setting.name: setting.value for setting in cluster.settings(client, name)} if settings else {}
    differences, remedies = topic_differences(topic, current, partitions, replicas, settings)
    if differences:
        print(
            f"Warning: topic {name} differs from the request and was not changed: {'; '.join(differences)}.",
            file=sys.stderr,
        )
    for remedy in remedies:
        print(f"  {remedy}", file=sys.stderr)


def topic_differences(
    topic: cluster.TopicState,
    current: dict[str, str],
    partitions: int | None,
    replicas: int | None,
    settings: dict[str, str],
) -> tuple[list[str], list[str]]:
    """Return the differences from the request, and commands that would remove them.

    No command is returned for a different number of replicas, or for a number of partitions that is larger than
    requested. None in `partitions` or `replicas` means that no number was requested.
    """
    differences, remedies = [], []
    count = len(topic.partitions)
    if partitions not in (None, count):
        differences.append(f"{counted(count, 'partition')}, not {partitions}")
        if partitions is not None and partitions > count:
            remedies.append(f"tidelog topic add-partitions {topic.name} {partitions}")
    if replicas is not None and any(len(part.replicas) != replicas for part in topic.partitions):
        differences.append(f"replicas {replicas_text(topic)}, not {replicas}")
    changed = {key: value for key, value in settings.items() if current.get(key) != value}
    differences += [f"{key}={current.get(key, '')}, not {value}" for key, value in changed.items()]
    if changed:
        set_options = " ".join(f"--set {shlex.quote(f'{key}={value}')}" for key, value in changed.items())
        remedies.append(f"tidelog topic config {topic.name} {set_options}")
    return differences, remedies


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics, which brokers use.")] = False,
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
    refuse_names_with_json(names, json)
    with connect(bootstrap, client).open() as cluster_client:
        # A topic that is deleted between two requests is left out.
        described = cluster.describe_each(cluster_client, cluster.topic_names(cluster_client), skip_missing=True)
        topics = [topic for topic in described.topics if internal or not topic.internal]
        if names:
            for topic in topics:
                print(printable(topic.name))
            print_notes([str(failure) for failure in described.failures.values()])
            return
        known_offsets = cluster.offsets(cluster_client, topics)
    if json:
        print_json([topic_json(topic) | records_json(topic, known_offsets) for topic in topics])
    elif topics:
        print_table(topics_table(topics, known_offsets))
    print_notes(
        [str(failure) for failure in described.failures.values()]
        + [str(each) for each in known_offsets.failures.values()]
    )
    if not topics and not described.failures and not json:
        print("No topics yet. Create one with: tidelog topic create NAME", file=sys.stderr)


def records_json(topic: cluster.TopicState, known_offsets: cluster.KnownOffsets) -> dict[str, int]:
    """Return the number of records in partitions whose offsets are known, and the number of the other partitions."""
    partition_offsets = [known_offsets.offsets.get((topic.name, part.partition)) for part in topic.partitions]
    return {
        "records": sum(offsets.records for offsets in partition_offsets if offsets is not None),
        "partitions_without_offsets": sum(offsets is None for offsets in partition_offsets),
    }


def records_text(topic: cluster.TopicState, known_offsets: cluster.KnownOffsets) -> str:
    """Return the number of records as text, and the number of partitions whose records are not included."""
    facts = records_json(topic, known_offsets)
    records = counted(facts["records"], "record")
    if not facts["partitions_without_offsets"]:
        return records
    return f"at least {records} ({counted(facts['partitions_without_offsets'], 'partition')} cannot be read)"


def topics_table(topics: list[cluster.TopicState], known_offsets: cluster.KnownOffsets) -> Table:
    """Return the table of topics. "12+" in the column of records means: the offsets of some partitions could not be
    read, and all other partitions together have 12 records.
    """
    columns = [Column("Topic"), Column("Partitions", True), Column("Replicas", True, spare=1), Column("Records", True)]
    rows = []
    for topic in topics:
        facts = records_json(topic, known_offsets)
        records = cell(facts["records"]) + "+" * bool(facts["partitions_without_offsets"])
        rows.append([name_text(topic.name), cell(len(topic.partitions)), replicas_text(topic), records])
    if any(trouble(topic) for topic in topics):
        columns.append(Column("Trouble", style="red"))
        for topic, row in zip(topics, rows, strict=True):
            row.append(trouble(topic))
    return Table(columns, rows)


def trouble(topic: cluster.TopicState) -> str:
    """Return a text about partitions that an operator should check; empty if there are no such partitions."""
    leaderless = sum(part.leader < 0 for part in topic.partitions)
    out_of_sync = sum(len(part.isr) < len(part.replicas) for part in topic.partitions)
    parts = [f"{leaderless} without a leader"] * bool(leaderless) + [f"{out_of_sync} under-replicated"] * bool(
        out_of_sync
    )
    return comma_separated(parts)


@app.command()
def describe(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False, help="One topic or several.")],
    all_settings: Annotated[bool, typer.Option("--all", help="Show every setting, defaults included.")] = False,
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
    settings: dict[str, list[cluster.Setting]] = {}
    failures: dict[str, CommandError] = {}
    with connect(bootstrap, client).open() as cluster_client:
        described, refused = cluster.describe_each(cluster_client, topics)
        replicas = replicas_by_partition(cluster_client, [topic.name for topic in described])
        known_offsets = cluster.offsets(cluster_client, described)
        for topic in described:
            try:
                settings[topic.name] = settings_to_show(cluster_client, topic.name, all_settings)
            except CommandError as error:
                failures[topic.name] = error
    if json:
        print_json(
            [
                topic_json(t, known_offsets.offsets, replicas) | {"settings": settings_json(settings.get(t.name))}
                for t in described
            ]
        )
    else:
        for number, topic in enumerate(described):
            print("\n" * bool(number), end="")
            show_topic(topic, known_offsets, settings.get(topic.name), replicas)
    print_notes([str(failure) for failure in known_offsets.failures.values()])
    report_offline(described, known_offsets)
    raise_together((refused | failures).values())


def replicas_by_partition(client: "Client", topics: list[str]) -> dict[cluster.TopicAndPartition, PartitionReplicas]:
    """Return the replicas and their state. Topics that were deleted in the meantime, or that the client may not
    describe, are left out.
    """
    try:
        partitions = read_partitions(client, topics, problems=[]) if topics else []
    except CommandError:
        return {}
    return {(part.topic, part.partition): part for part in partitions}


def show_topic(
    topic: cluster.TopicState,
    known_offsets: cluster.KnownOffsets,
    settings: list[cluster.Setting] | None,
    replicas: dict[cluster.TopicAndPartition, PartitionReplicas],
) -> None:
    """Print one topic. `settings` is None if the settings cannot be read."""
    print_heading(topic.name, f"topic ID {topic.topic_id}", f"replicas {replicas_text(topic)}")
    print_table(partitions_table(topic, known_offsets.offsets, replicas))
    print()
    if settings:
        print_table(settings_table(settings))
    elif settings is None:
        print("The settings of this topic cannot be read.")
    else:
        print("All settings have their default values; --all shows them.")


def report_offline(topics: list[cluster.TopicState], known_offsets: cluster.KnownOffsets) -> None:
    """Warn about the partitions whose offsets are unknown, except those for which a note already names the reason."""
    answered_or_reported = {*known_offsets.offsets, *known_offsets.failures}
    unknown = {
        t.name: [p.partition for p in t.partitions if (t.name, p.partition) not in answered_or_reported] for t in topics
    }
    sys.stdout.flush()
    offline.warn(
        {name: partitions for name, partitions in unknown.items() if partitions},
        "No records can be read or written there.",
    )


def settings_to_show(client: "Client", topic: str, all_settings: bool) -> list[cluster.Setting]:
    return [setting for setting in cluster.settings(client, topic) if all_settings or setting.origin != cluster.DEFAULT]


@app.command()
def delete(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False, help="One topic or several.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Also delete internal topics, in which brokers store their state.")
    ] = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Delete topics and every record in them.

    The command first asks about every topic. If one answer is no, nothing
    is deleted and the exit code is 0, as with kubectl and rpk. If some
    topics cannot be deleted, they are reported, and all others are deleted.

    An internal topic such as __consumer_offsets contains state of brokers,
    for example the committed offsets of every group. It is deleted only with
    --internal.

    Examples:

    $ tidelog topic delete orders
    $ tidelog topic delete orders payments --yes
    """
    with connect(bootstrap, client).open() as cluster_client:
        described, failures = cluster.describe_each(cluster_client, topics)
        if not internal:
            refuse_internal(described, "nothing was deleted; --internal deletes the topic and this state")
        if described and not yes and not confirm_all(cluster_client, described):
            print("Nothing was deleted.")
            return
        results = cluster.delete_topics(cluster_client, [topic.name for topic in described]) if described else {}
    for name, failure in results.items():
        if failure is None:
            print(f"Deleted topic {name}.")
        else:
            failures[name] = failure
    sys.stdout.flush()
    raise_together(failures.values())


def refuse_internal(topics: Iterable[cluster.TopicState], remedy: str) -> None:
    """Raise UsageError if one of the topics is internal."""
    for topic in topics:
        if topic.internal:
            raise UsageError(f"topic {topic.name} is internal and contains {internal_content(topic.name)}: {remedy}")


def internal_content(name: str) -> str:
    return INTERNAL_CONTENTS.get(name, "state of the brokers")


def confirm_all(client: "Client", topics: list[cluster.TopicState]) -> bool:
    """Ask about each topic until the first no. Return whether every answer was yes.

    Raises UsageError when stdin is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError("the deletion cannot be confirmed, because stdin is not a terminal: add --yes to delete")
    known_offsets = cluster.offsets(client, topics)
    for topic in topics:
        records = records_text(topic, known_offsets)
        question = f"Delete topic {topic.name} with {records}?"
        if topic.internal:
            question = f"Delete internal topic {topic.name} with {records}, {internal_content(topic.name)}?"
        if not typer.confirm(question):
            return False
    return True


@app.command("add-partitions")
def add_partitions(
    name: Name,
    total: Annotated[
        int,
        typer.Argument(
            metavar="TOTAL", min=1, max=PARTITIONS_MAX, show_default=False, help="The new number of partitions."
        ),
    ],
    internal: Annotated[
        bool, typer.Option("--internal", help="Also change an internal topic, in which brokers store their state.")
    ] = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Give a topic more partitions.

    TOTAL is the number after the change, not the number to add.

    Existing records remain in their partitions. New records of a key may
    be written to another partition than existing records of the same key.
    If an internal topic gets more partitions, brokers do not find most of
    the state in it any more, so this change needs --internal.

    Examples:

    $ tidelog topic add-partitions orders 24
    """
    with connect(bootstrap, client).open() as cluster_client:
        (topic,) = cluster.describe(cluster_client, [name])
        if not internal:
            refuse_internal(
                [topic],
                "with more partitions, brokers would not find most of this state; nothing was changed; "
                "--internal changes the topic",
            )
        current = len(topic.partitions)
        if total <= current:
            raise CommandError(
                f"topic {name} has {counted(current, 'partition')}: use a larger number, because partitions cannot be"
                " removed"
            )
        cluster.set_partitions(cluster_client, name, total)
    print(f"Topic {name} now has {counted(total, 'partition')} (it had {current}).")


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

    Without --set and --unset, the command only shows them. If --unset names
    a setting that is not set, the command reports this and does not fail.

    Examples:

    $ tidelog topic config orders
    $ tidelog topic config orders --set retention.ms=86400000 --set cleanup.policy=delete
    $ tidelog topic config orders --unset retention.ms
    """
    changes = key_values(set, "--set", "retention.ms=86400000")
    if both := [key for key in unset if key in changes]:
        raise UsageError(f"--set and --unset cannot be used together for {both[0]}")
    with connect(bootstrap, client).open() as cluster_client:
        cluster.describe(cluster_client, [name])
        unset = settings_to_unset(cluster_client, name, unset) if unset else []
        if changes or unset:
            cluster.change_settings(cluster_client, name, changes, unset)
        settings = settings_to_show(cluster_client, name, all_settings)
    if json:
        print_json(settings_json(settings))
    elif settings:
        print_table(settings_table(settings))
    else:
        print(f"All settings of topic {name} have their default values; --all shows them.", file=sys.stderr)


def settings_to_unset(client: "Client", topic: str, names: list[str]) -> list[str]:
    """Return the settings of `names` that are set on the topic itself, without duplicates.

    Report the settings that are not set on the topic. Raises CommandError for an unknown name.
    """
    from tidelog.config.keys import TOPIC_KEYS

    topic_settings = {setting.name: setting for setting in cluster.settings(client, topic)}
    for name in names:
        # Kafka lists only some of the settings that are not set. So a known name may be missing in its list.
        if name not in topic_settings and name not in TOPIC_KEYS:
            raise CommandError(f"there is no topic setting {name}{setting_hint(name, topic_settings)}")
    own_names = []
    for name in dict.fromkeys(names):
        if name in topic_settings and topic_settings[name].origin == cluster.TOPIC:
            own_names.append(name)
            continue
        origin = topic_settings[name].origin if name in topic_settings else cluster.DEFAULT
        more = "" if origin == cluster.DEFAULT else f" (its value, {topic_settings[name].value}, is from {origin})"
        print(f"{name} was not set on topic {topic}; nothing to do{more}.", file=sys.stderr)
    return own_names


def setting_hint(name: str, known_names: Iterable[str]) -> str:
    """Return a suggestion that is appended to the error for an unknown setting; empty if there is no suggestion.

    If `name` is the broker setting from which a topic setting takes its default, this topic setting is suggested.
    Otherwise the most similar of `known_names` is suggested.
    """
    from tidelog.config.keys import TOPIC_KEYS, nearest

    same_setting = (key.name for key in TOPIC_KEYS.values() if any(of_broker == name for of_broker, _ in key.synonyms))
    suggestion = next(same_setting, None) or nearest(name, known_names)
    return f"; did you mean {suggestion}?" if suggestion else ""
