"""Show, start, watch and cancel moves of replicas: for `tidelog cluster reassign`, `drain` and `unregister`."""

import json as json_module
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli.cluster import describe
from tidelog.cli.cluster_requests import (
    alter_reassignments,
    clear_throttle,
    elect_leaders,
    set_throttle,
    unregister_broker,
)
from tidelog.cli.cluster_state import ClusterBroker, Move, racks_of, read_brokers, read_moves, read_partitions
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.own_client import no_such_broker
from tidelog.cli.reassignment_plan import (
    PlannedMove,
    lead_elsewhere,
    moves_from_document,
    plan_document,
    plan_drain,
    plan_moves,
)
from tidelog.cli.tables import Column, Table, comma_separated, counted, print_json, print_table
from tidelog.model.ids import indexes_by_topic

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

POLL_S = 0.5
"""Time in seconds between two requests for the unfinished moves, or for the replicas after the moves have ended."""

READS_MAX = 10
"""Upper bound on the number of requests for the replicas after the moves have ended."""

Partition = tuple[str, int]


class Execution(NamedTuple):
    """Whether and how a plan is executed."""

    execute: bool
    watch: bool
    throttle: int | None
    """Limit of the traffic in bytes per second; None for no limit."""
    undo: str
    """File for the plan that reverses the moves; empty if this plan is not written."""
    json: bool


def broker_numbers(text: str) -> list[int]:
    """Return the numbers in a text such as `1,2,3`, sorted and without duplicates. Raises UsageError."""
    numbers = [part.strip() for part in text.split(",") if part.strip()]
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise UsageError(f"--brokers takes broker numbers, for example --brokers 1,2,3, not {text!r}")
    return sorted({int(number) for number in numbers})


def make_plan(
    client: "Client", brokers: Sequence[int], topics: Sequence[str], replicas: int | None, file: str
) -> list[PlannedMove]:
    """Return the moves. If `brokers` is empty, all active brokers are used. Raises CommandError."""
    if file:
        return moves_from_document(read_plan(file), read_partitions(client))
    _, _, registered = read_brokers(client)
    known = {broker.number for broker in registered}
    if unknown := [number for number in brokers if number not in known]:
        raise no_such_broker(unknown, sorted(known))
    if fenced := [broker.number for broker in registered if broker.is_fenced and broker.number in brokers]:
        are, them = ("is", "it") if len(fenced) == 1 else ("are", "them")
        brokers_text = f"broker{'s' * (len(fenced) > 1)} {comma_separated(fenced)}"
        raise CommandError(f"{brokers_text} {are} down or not ready: start {them} first")
    targets = brokers or [broker.number for broker in registered if not broker.is_fenced]
    partitions = read_partitions(client, topics)
    # If only the number of replicas changes (no brokers are named), the replicas that remain are not moved.
    return plan_moves(partitions, targets, racks_of(registered), replicas, balance=bool(brokers))


def read_plan(file: str) -> Any:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        return json_module.loads(text)
    except OSError as error:
        raise UsageError(f"--plan {file}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--plan {file} is not JSON: {error}") from None


def write_plan(file: str, document: Any) -> None:
    try:
        Path(file).write_text(json_module.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise CommandError(f"nothing was moved, because --undo {file} cannot be written: {error.strerror}") from None


def show_or_execute(client: "Client", moves: Sequence[PlannedMove], execution: Execution) -> int:
    """Show the plan and, with `execution.execute`, carry it out. Return the exit code."""
    if execution.json and not execution.execute:
        print_json(plan_document(moves))
        return 0
    if not moves:
        print_done(execution, "Nothing has to move.", [])
        return 0
    if not execution.json:
        print_table(plan_table(moves))
    if not execution.execute:
        added = sum(len(move.adding) for move in moves)
        print(
            f"\n{counted(len(moves), 'partition')} would change, {counted(added, 'replica')} would be copied. "
            "To carry this out, add --execute."
        )
        return 0
    if execution.undo:
        write_plan(execution.undo, plan_document(moves, before=True))
    if execution.throttle is not None:
        try:
            set_throttle(client, moves, execution.throttle)
        except CommandError as error:
            raise CommandError(
                f"nothing was moved, because the limit of --throttle could not be set everywhere: {error}; to remove it"
                " where it was set: tidelog cluster reassign --clear-throttle"
            ) from error
    failures = alter_reassignments(client, {(move.topic, move.partition): move.after for move in moves})
    report(failures)
    started = [move for move in moves if (move.topic, move.partition) not in failures]
    if execution.watch:
        wait_for(client, {(move.topic, move.partition) for move in started}, quiet=execution.json)
        if execution.throttle is not None:
            remove_throttle(client, list(dict.fromkeys(move.topic for move in moves)), quiet=True)
        not_moved = without_new_replicas(client, started)
        report(not_moved)
        failures |= not_moved
        started = [move for move in started if (move.topic, move.partition) not in not_moved]
        print_done(execution, f"Done: {counted(len(started), 'partition')}.", started)
    else:
        print_done(
            execution,
            f"Started: {counted(len(started), 'partition')}. To watch the moves: tidelog cluster reassign --watch",
            started,
        )
        if execution.throttle is not None and not execution.json:
            print("To remove the limit of --throttle after the moves: tidelog cluster reassign --clear-throttle")
    return 1 if failures else 0


def without_new_replicas(client: "Client", moves: Sequence[PlannedMove]) -> dict[Partition, CommandError]:
    """Return the errors of the moves that have ended although the partitions do not have the new replicas.

    A broker still reports the former replicas until it has applied the end of the moves to its metadata. Therefore the
    replicas are requested several times.
    """
    for read in range(READS_MAX):
        if read:
            time.sleep(POLL_S)
        replicas = {(part.topic, part.partition): part.replicas for part in read_partitions(client)}
        if all(replicas.get((move.topic, move.partition)) == move.after for move in moves):
            return {}
    failures = {}
    for move in moves:
        present = replicas.get((move.topic, move.partition))
        if present is None:
            failures[move.topic, move.partition] = CommandError("the topic was deleted, so the move has ended")
        elif present != move.after:
            brokers = comma_separated(present)
            text = f"the move was cancelled or replaced; the replicas are on {brokers}"
            failures[move.topic, move.partition] = CommandError(text)
    return failures


def print_done(execution: Execution, text: str, moves: Sequence[PlannedMove]) -> None:
    if execution.json:
        print_json(plan_document(moves))
    else:
        print(text)


def plan_table(moves: Sequence[PlannedMove]) -> Table:
    columns = [
        Column("Topic"),
        Column("Partition", True),
        Column("Replicas"),
        Column("New replicas", style="bold"),
        Column("Copied to", spare=1),
        Column("Removed from", spare=2),
    ]
    rows = [
        [
            move.topic,
            str(move.partition),
            comma_separated(move.before),
            comma_separated(move.after),
            comma_separated(move.adding),
            comma_separated(move.removing),
        ]
        for move in moves
    ]
    return Table(columns, rows, name_columns=2)


def report(failures: Mapping[Partition, CommandError]) -> None:
    sys.stdout.flush()
    for (topic, partition), failure in failures.items():
        print(f"Error: {topic}-{partition}: {failure}", file=sys.stderr)


# Unfinished moves


def show_moves(client: "Client", topics: Sequence[str], json: bool, *, watch: bool) -> int:
    """List the unfinished moves, or wait until all of them have ended."""
    moves = select_moves(client, topics)
    if watch:
        wait_for(client, set(moves), quiet=json)
        if not json:
            print(no_moves_text(topics))
        return 0
    if json:
        print_json(moves_json(moves))
    elif not moves:
        print(no_moves_text(topics))
    else:
        print_table(moves_table(moves))
    return 0


def select_moves(client: "Client", topics: Sequence[str]) -> dict[Partition, Move]:
    """Return the unfinished moves of these topics, or of all topics. Raises CommandError for a topic that does not
    exist.
    """
    describe(client, topics)
    moves = read_moves(client)
    return {partition: move for partition, move in sorted(moves.items()) if not topics or partition[0] in topics}


def no_moves_text(topics: Sequence[str]) -> str:
    return f"No partition of {comma_separated(topics)} moves." if topics else "No partition moves."


def moves_json(moves: Mapping[Partition, Move]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partition": partition, "adding": move.adding, "removing": move.removing}
        for (topic, partition), move in moves.items()
    ]


def moves_table(moves: Mapping[Partition, Move]) -> Table:
    columns = [Column("Topic"), Column("Partition", True), Column("Adding"), Column("Removing")]
    rows = [
        [topic, str(partition), comma_separated(move.adding), comma_separated(move.removing)]
        for (topic, partition), move in moves.items()
    ]
    return Table(columns, rows, name_columns=2)


def wait_for(client: "Client", partitions: set[Partition], *, quiet: bool) -> None:
    """Wait until the moves of all these partitions have ended. Unless `quiet`, print on stderr how many have ended and
    how many remain, when these numbers change.
    """
    total = remaining = len(partitions)
    shown = -1
    while partitions:
        moving = read_moves(client).keys() & partitions
        remaining = len(moving)
        if remaining != shown and not quiet:
            shown = remaining
            names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(moving)[:5])
            rest = f": {names}{', ...' if remaining > 5 else ''}" if names else ""
            print(f"{total - remaining} of {total} done, {remaining} moving{rest}", file=sys.stderr, flush=True)
        if not remaining:
            return
        time.sleep(POLL_S)


def cancel_moves(client: "Client", topics: Sequence[str], json: bool) -> int:
    """Cancel the unfinished moves. The replicas remain on their former brokers. Also remove the limit of --throttle,
    because this limit would later slow down replicas that have to catch up. Return the exit code.
    """
    moves = select_moves(client, topics)
    failures = alter_reassignments(client, dict.fromkeys(moves)) if moves else {}
    cancelled = {partition: move for partition, move in moves.items() if partition not in failures}
    if cancelled:
        cancelled_topics = list(dict.fromkeys(topic for topic, _ in cancelled))
        if read_moves(client):
            # The brokers keep their rate limits, because the other moves still need them.
            clear_throttle(client, [], cancelled_topics)
        else:
            remove_throttle(client, cancelled_topics, quiet=True)
    if json:
        print_json(moves_json(cancelled))
    else:
        print(f"Cancelled: {counted(len(cancelled), 'move')}." if moves else no_moves_text(topics))
    report(failures)
    return 1 if failures else 0


def remove_throttle(client: "Client", topics: Sequence[str], *, quiet: bool = False) -> None:
    """Remove the limit of --throttle from all active brokers and from these topics. If `topics` is empty, the limit is
    removed from all topics.
    """
    _, _, brokers = read_brokers(client)
    names = topics or list(dict.fromkeys(part.topic for part in read_partitions(client)))
    clear_throttle(client, [broker.number for broker in brokers if not broker.is_fenced], names)
    if not quiet:
        print("The limit of --throttle was removed.")


# Draining


def registered_with(client: "Client", broker: int) -> list[ClusterBroker]:
    """Return all registered brokers. Raises CommandError if `broker` is not one of them."""
    _, _, registered = read_brokers(client)
    if broker not in {other.number for other in registered}:
        raise no_such_broker([broker], [other.number for other in registered])
    return registered


def unregister(client: "Client", broker: int) -> None:
    """Remove the registration of a broker that does not run and has no replicas. Raises CommandError."""
    registered = registered_with(client, broker)
    remaining = [part for part in read_partitions(client) if broker in part.replicas]
    if remaining:
        raise CommandError(
            f"broker {broker} has {counted(len(remaining), 'replica')}, for example of {remaining[0]}: move them away "
            f"with tidelog cluster drain {broker} --execute, which also works if the broker is lost"
        )
    if not next(other.is_fenced for other in registered if other.number == broker):
        raise CommandError(f"broker {broker} is active, and would register again: stop it first")
    unregister_broker(client, broker)


def drain(client: "Client", broker: int, execution: Execution, *, only_leaders: bool) -> int:
    """Move all replicas, or only the leaderships, away from the broker. Return the exit code."""
    registered = registered_with(client, broker)
    partitions = read_partitions(client)
    if not only_leaders:
        others = [other.number for other in registered if other.number != broker and not other.is_fenced]
        return show_or_execute(client, plan_drain(partitions, broker, others, racks_of(registered)), execution)
    moves = lead_elsewhere(partitions, broker)
    code = show_or_execute(client, moves, execution)
    # A new order of the replicas does not change the leader. The election below makes the first replica the leader.
    led_partitions = {
        (part.topic, part.partition) for part in partitions if part.leader == broker and len(part.replicas) > 1
    } | {(move.topic, move.partition) for move in moves}
    if not execution.execute or not led_partitions:
        return code
    failures = {
        (election.topic, election.partition): CommandError(election.error)
        for election in elect_leaders(client, indexes_by_topic(sorted(led_partitions)), unclean=False)
        if election.error
    }
    report(failures)
    return 1 if failures else code
