"""The commands `tidelog cluster`: status, brokers, elect, reassign, drain, unregister, upgrade."""

import sys
from typing import Annotated

import typer

from tidelog.cli import cluster_features, cluster_moves
from tidelog.cli.cluster_growth import with_warnings
from tidelog.cli.cluster_state import PartitionReplicas, read_partitions, read_state
from tidelog.cli.cluster_status import DEGRADED, brokers_table, is_degraded, print_status, state_json
from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, ClientSettings, connect
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.tables import Column, Table, counted, print_json, print_notes, print_table
from tidelog.model.ids import indexes_by_topic

app = typer.Typer(add_completion=False, no_args_is_help=True)

Topics = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC...]", show_default=False, help="Topics; all topics if none is named."),
]


Throttle = Annotated[
    int | None,
    typer.Option("--throttle", min=1, metavar="BYTES", show_default=False, help="Limit the moves to BYTES per second."),
]
Replicas = Annotated[
    int | None,
    typer.Option("--replicas", min=1, metavar="N", show_default=False, help="Replicas of each partition."),
]
Undo = Annotated[
    str,
    typer.Option("--undo", metavar="FILE", show_default=False, help="Write to FILE the plan that reverses the moves."),
]


@app.callback()
def cluster() -> None:
    """Show and change how partitions are spread over the brokers.

    Examples:

    $ tidelog cluster status
    $ tidelog cluster brokers
    $ tidelog cluster elect
    $ tidelog cluster reassign --brokers 1,2,3,4
    $ tidelog cluster drain 3
    $ tidelog cluster unregister 3
    """


@app.command()
def status(
    all_partitions: Annotated[
        bool, typer.Option("--all", help="List all partitions with trouble, even if the trouble is harmless.")
    ] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006 - typer copies it
) -> int:
    """Show the brokers, and the partitions with trouble.

    \b
    offline            no leader: nobody can read or write
    under min ISR      fewer replicas in sync than min.insync.replicas:
                       acks=all is refused
    under-replicated   some replicas are not in sync
    led by another     the leader is not the first replica, which is preferred

    A cluster that was grown from one broker gets warnings until its
    metadata has the newest level and its internal topics have enough
    replicas.

    The exit code is 0 if all brokers are active and all replicas are in
    sync. It is 3 if this is not so, or if a topic cannot be described. It is
    1 if no broker answers.

    Examples:

    $ tidelog cluster status
    $ tidelog cluster status --all
    $ tidelog cluster status --json | jq .under_min_isr
    """
    with connect(bootstrap, client).open() as cluster_client:
        state = with_warnings(cluster_client, read_state(cluster_client))
    if json:
        print_json(state_json(state))
    else:
        print_status(state, all_partitions=all_partitions)
    print_notes(state.problems)
    return DEGRADED if is_degraded(state) else 0


@app.command()
def brokers(
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """List the brokers with their racks, addresses, leaders and replicas.

    A fenced broker is registered, but is down or not ready. It leads no
    partitions.

    Examples:

    $ tidelog cluster brokers
    $ tidelog cluster brokers --json | jq '.[] | select(.fenced) | .broker'
    """
    with connect(bootstrap, client).open() as cluster_client:
        state = read_state(cluster_client)
    if json:
        print_json(state_json(state)["brokers"])
    else:
        print_table(brokers_table(state))
    print_notes(state.problems)


@app.command()
def elect(
    topics: Topics = None,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Elect leaders even if they lack records; these records are lost."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> int:
    """Elect preferred leaders; with --unclean, any live replicas.

    The first replica of a partition is its preferred leader. While a broker
    is down, other brokers lead its partitions. When it is back, this command
    makes it the leader of these partitions again, and no record is lost.
    Brokers with auto.leader.rebalance.enable do the same after some minutes.

    With --unclean, a partition without a leader gets a live replica as its
    leader, even if this replica lacks acknowledged records. These records
    are lost. Use --unclean only if no replica with all records can return.

    The exit code is 1 if a leader could not be elected.

    Examples:

    $ tidelog cluster elect
    $ tidelog cluster elect orders
    $ tidelog cluster elect orders --unclean
    """
    from tidelog.cli.cluster_requests import elect_leaders

    with connect(bootstrap, client).open() as cluster_client:
        chosen = choose_partitions(read_partitions(cluster_client, topics or []), unclean=unclean)
        if unclean and chosen and not yes:
            confirm_unclean(chosen)
        numbers = indexes_by_topic((part.topic, part.partition) for part in chosen)
        results = elect_leaders(cluster_client, numbers, unclean=unclean) if numbers else []
        leaders = {
            (part.topic, part.partition): part.leader
            for part in read_partitions(cluster_client, list(dict.fromkeys(result.topic for result in results)))
            if results
        }
    failures = [result for result in results if result.error]
    if json:
        print_json(
            [
                {
                    "topic": r.topic,
                    "partition": r.partition,
                    "leader": leaders.get((r.topic, r.partition)),
                    "error": r.error,
                }
                for r in results
            ]
        )
    elif not results:
        print("Every partition is led by its preferred leader." if not unclean else "Every partition has a leader.")
    else:
        rows = [
            [result.topic, str(result.partition), str(leaders.get((result.topic, result.partition), "?")), result.error]
            for result in results
        ]
        columns = [Column("Topic"), Column("Partition", True), Column("Leader", True), Column("Error", style="red")]
        print_table(Table(columns if failures else columns[:-1], rows if failures else [row[:-1] for row in rows]))
    return 1 if failures else 0


def choose_partitions(partitions: list[PartitionReplicas], *, unclean: bool) -> list[PartitionReplicas]:
    """Return the partitions that need an election."""
    if unclean:
        return [part for part in partitions if part.has_no_leader]
    return [part for part in partitions if part.is_led_by_other or part.has_no_leader]


def confirm_unclean(partitions: list[PartitionReplicas]) -> None:
    """Ask the user. Raises CommandError if the answer is no, or if stdin is not a terminal."""
    names = ", ".join(map(str, partitions[:10])) + (", ..." if len(partitions) > 10 else "")
    if not sys.stdin.isatty():
        raise CommandError(f"an unclean election may lose records of {names}; to elect leaders anyway, add --yes")
    if not typer.confirm(f"Records of {counted(len(partitions), 'partition')} may be lost ({names}). Elect leaders?"):
        raise CommandError("no leader was elected")


@app.command()
def reassign(
    to_brokers: Annotated[
        str,
        typer.Option(
            "--brokers", metavar="N,N...", show_default=False, help="The brokers that will have the replicas."
        ),
    ] = "",
    topics: Annotated[
        str, typer.Option("--topics", metavar="TOPIC,...", show_default=False, help="Only these topics.")
    ] = "",
    replicas: Replicas = None,
    plan: Annotated[
        str,
        typer.Option(
            "--plan", metavar="FILE", show_default=False, help="A plan in the format of Kafka's tool; - is stdin."
        ),
    ] = "",
    execute: Annotated[bool, typer.Option("--execute", help="Carry the plan out.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the progress until all moves are done.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the unfinished moves.")] = False,
    throttle: Throttle = None,
    undo: Undo = "",
    clear_throttle: Annotated[bool, typer.Option("--clear-throttle", help="Remove the limit of --throttle.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> int:
    """Move replicas to other brokers, or change the number of replicas.

    Without --execute, the command shows the plan and changes nothing. After
    a plan with --brokers, all replicas are on the named brokers, which have
    about equal numbers of replicas and leaders. A plan moves as few replicas
    as possible. Each partition is on as many racks as possible. While
    replicas move, clients read and write as usual.

    Without options, the command lists the moves that are not finished.
    --json prints a plan in the format of Kafka's kafka-reassign-partitions;
    --plan reads such a plan. --throttle limits the traffic. If --watch is
    used together with --throttle, the limit is removed after the last move.
    --cancel also removes it. In other cases, remove it with
    --clear-throttle. --undo writes the plan that moves the replicas back.

    The exit code is 1 if a move was refused.

    Examples:

    $ tidelog cluster reassign --brokers 1,2,3,4
    $ tidelog cluster reassign --brokers 1,2,3,4 --execute --watch
    $ tidelog cluster reassign --topics orders --replicas 3 --execute
    $ tidelog cluster reassign --watch
    $ tidelog cluster reassign --cancel
    """
    makes_plan = bool(to_brokers or replicas or plan)
    check_without_plan(makes_plan, cancel, clear_throttle, watch, json)
    if plan and (to_brokers or topics or replicas):
        raise UsageError("--plan already says which partitions move: leave out --brokers, --topics and --replicas")
    if not makes_plan and (execute or throttle or undo):
        raise UsageError("there is no plan: name the brokers with --brokers, for example --brokers 1,2,3")
    names = [name for name in topics.split(",") if name]
    with connect(bootstrap, client).open() as cluster_client:
        if clear_throttle:
            cluster_moves.remove_throttle(cluster_client, names)
            return 0
        if cancel:
            return cluster_moves.cancel_moves(cluster_client, names, json)
        if not makes_plan:
            return cluster_moves.show_moves(cluster_client, names, json, watch=watch)
        moves = cluster_moves.make_plan(cluster_client, cluster_moves.broker_numbers(to_brokers), names, replicas, plan)
        execution = cluster_moves.Execution(execute, watch, throttle, undo, json)
        return cluster_moves.show_or_execute(cluster_client, moves, execution)


def check_without_plan(makes_plan: bool, cancel: bool, clear_throttle: bool, watch: bool, json: bool) -> None:
    """Raise UsageError for options that --cancel or --clear-throttle would ignore."""
    if sum((makes_plan, cancel, clear_throttle)) > 1:
        raise UsageError("a plan (--brokers, --replicas, --plan), --cancel and --clear-throttle cannot be combined")
    if watch and (cancel or clear_throttle):
        raise UsageError("--watch waits for moves: it cannot be combined with --cancel or --clear-throttle")
    if json and clear_throttle:
        raise UsageError("--clear-throttle prints no JSON: leave out --json")


@app.command()
def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", show_default=False, help="The broker's number.")],
    leaders: Annotated[bool, typer.Option("--leaders", help="Move only the leaderships away. No data moves.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Carry the plan out, and wait until it is done.")] = False,
    throttle: Throttle = None,
    undo: Undo = "",
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> int:
    """Empty a broker before it is removed from the cluster.

    All its replicas move to other brokers. Without --execute, the command
    shows the plan and changes nothing. If there are too few other brokers
    for the replicas, nothing is moved: add a broker first.

    With --leaders, replicas on other brokers become the leaders, and the
    broker keeps its replicas as followers. This is not needed before a
    restart, because a broker hands over its leaderships when it is stopped
    cleanly.

    The exit code is 1 if a move was refused.

    Examples:

    $ tidelog cluster drain 3
    $ tidelog cluster drain 3 --execute
    $ tidelog cluster drain 3 --leaders --execute
    """
    if leaders and throttle:
        raise UsageError("--leaders moves no data, so there is nothing for --throttle to limit")
    with connect(bootstrap, client).open() as cluster_client:
        execution = cluster_moves.Execution(execute, True, throttle, undo, json)
        return cluster_moves.drain(cluster_client, broker, execution, only_leaders=leaders)


@app.command()
def unregister(
    broker: Annotated[int, typer.Argument(metavar="BROKER", show_default=False, help="The broker's number.")],
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Remove from the cluster a broker that was emptied and stopped.

    Until the broker is removed, the cluster expects it to return, and
    `cluster status` shows it as fenced. A broker that runs or has replicas
    is refused: drain it first, then stop it. A broker that starts again is
    registered again.

    Examples:

    $ tidelog cluster unregister 3
    """
    with connect(bootstrap, client).open() as cluster_client:
        cluster_moves.unregister(cluster_client, broker)
    if json:
        print_json({"unregistered": broker})
    else:
        print(f"Broker {broker} is no longer registered.")


@app.command()
def upgrade(
    execute: Annotated[bool, typer.Option("--execute", help="Finalize the newest levels.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> int:
    """Show the levels of the features, or finalize the newest levels.

    A new version of Tidelog may store metadata that older versions cannot
    read. It stores such metadata only after the new level is finalized.
    Finalize the levels in each of these two cases: all brokers run the new
    version of Tidelog, or a single broker was extended to a cluster. The
    level of tidelog.metadata.version cannot be lowered again.

    Examples:

    $ tidelog cluster upgrade
    $ tidelog cluster upgrade --execute
    """
    with connect(bootstrap, client).open() as cluster_client:
        return cluster_features.upgrade(cluster_client, execute=execute, json=json)
