"""Show the state of a cluster: for each broker, how many leaders and replicas it has; and the partitions that have a
problem.
"""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from tidelog.cli.cluster_state import UNKNOWN, ClusterState, PartitionReplicas
from tidelog.cli.tables import (
    Column,
    Table,
    cell,
    comma_separated,
    counted,
    print_heading,
    print_table,
    stdout_is_utf8,
)

DEGRADED = 3
"""Exit code of `tidelog cluster status` in these cases: a broker is fenced or was not reported; a partition has no
leader, is under its min ISR, or has replicas that are not in sync; a topic cannot be described, so the state of its
partitions is not known."""
BAR_CELLS = 12
SHOWN_PARTITIONS = 20
"""Upper bound on the partitions that are listed without --all."""


class Trouble(NamedTuple):
    """A kind of problem that a partition can have."""

    key: str
    """The JSON key."""
    title: str
    style: str
    applies: Callable[[PartitionReplicas], bool]


TROUBLES = (
    Trouble("offline", "offline", "bold red", lambda part: part.has_no_leader),
    Trouble("under_min_isr", "under min ISR", "red", lambda part: part.is_under_min_isr),
    Trouble("under_replicated", "under-replicated", "yellow", lambda part: bool(part.out_of_sync)),
    Trouble("not_preferred_leader", "led by another", "", lambda part: part.is_led_by_other),
)
"""All kinds, from the worst to the most harmless. The last one needs no action."""
MOVING = "moving"


def is_degraded(state: ClusterState) -> bool:
    return bool(state.fenced or state.missing or state.unread_topics) or any(
        trouble.applies(part) for trouble in TROUBLES[:-1] for part in state.partitions
    )


def troubles_of(part: PartitionReplicas) -> list[Trouble]:
    """Return the kinds of problems of the partition, the worst first. If the partition has no leader, only "offline"
    is returned.
    """
    troubles = [trouble for trouble in TROUBLES if trouble.applies(part)]
    return troubles[:1] if part.has_no_leader else troubles


def state_words(part: PartitionReplicas) -> list[str]:
    """Return the problems of a partition, and whether it is being moved. The problem "led by another" is omitted,
    because it needs no action.
    """
    words = [trouble.title for trouble in troubles_of(part) if trouble is not TROUBLES[-1]]
    return words + [MOVING] * (part.move is not None)


def print_status(state: ClusterState, *, all_partitions: bool) -> None:
    """Print the brokers, a summary, and the partitions that have trouble or are being moved. Without `all_partitions`,
    partitions whose only trouble is "led by another" are omitted unless they are being moved, and at most
    SHOWN_PARTITIONS are listed.
    """
    topics = len({part.topic for part in state.partitions})
    print_heading(
        f"Cluster {state.cluster_id}",
        *([f"controller {state.controller}"] if state.controller != UNKNOWN else []),
        counted(len(state.brokers), "broker"),
        counted(topics, "topic"),
        counted(len(state.partitions), "partition"),
    )
    print_table(brokers_table(state, with_bars=sys.stdout.isatty()))
    if state.missing:
        missing = comma_separated(state.missing)
        print(f"Brokers that have replicas and were not reported (down, or not registered): {missing}")
    print()
    counts = {trouble.key: sum(trouble.applies(part) for part in state.partitions) for trouble in TROUBLES}
    moving = sum(part.move is not None for part in state.partitions)
    print_line(summary_text(counts, moving, state.unread_topics), "red" if is_degraded(state) else "green")
    partitions = [part for part in state.partitions if state_words(part) or (all_partitions and troubles_of(part))]
    partitions.sort(key=lambda part: [not trouble.applies(part) for trouble in TROUBLES])
    if partitions:
        print()
        print_table(trouble_table(partitions if all_partitions else partitions[:SHOWN_PARTITIONS]))
        if len(partitions) > SHOWN_PARTITIONS and not all_partitions:
            print(f"... and {counted(len(partitions) - SHOWN_PARTITIONS, 'more partition')}; --all lists them")
    for warning in state.warnings:
        print_line(f"Warning: {warning}", "yellow")


def summary_text(counts: dict[str, int], moving: int, unread_topics: int = 0) -> str:
    """Return one line about all partitions. For the key of each kind of problem, `counts` has the number of partitions
    with this problem. `unread_topics` is the number of topics whose partitions are not known.
    """
    parts = [f"{counts[trouble.key]} {trouble.title}" for trouble in TROUBLES if counts[trouble.key]]
    if moving:
        parts.append(f"{moving} {MOVING}")
    if unread_topics:
        unknown = f"The partitions of {counted(unread_topics, 'topic')} are not known."
        return f"Partitions: {comma_separated(parts)}. {unknown}" if parts else unknown
    if not any(counts[trouble.key] for trouble in TROUBLES[:-1]):
        return "Every partition has a leader, and all replicas are in sync" + (
            f" ({comma_separated(parts)})." if parts else "."
        )
    return f"Partitions: {comma_separated(parts)}."


def print_line(text: str, style: str) -> None:
    if sys.stdout.isatty():
        from rich.text import Text

        from tidelog.cli.tables import console

        console().print(Text(text, style=style), soft_wrap=True)
    else:
        print(text)


def brokers_table(state: ClusterState, *, with_bars: bool = False) -> Table:
    """Return one row per broker: its state, and how many leaders and replicas it has. `with_bars` says whether to draw
    bars, too.
    """
    leaders = Counter(part.leader for part in state.partitions)
    replicas = Counter(broker for part in state.partitions for broker in part.replicas)
    out_of_sync = Counter(broker for part in state.partitions for broker in part.out_of_sync)
    columns = [
        Column("Broker", True),
        Column("Rack", spare=3),
        Column("Address", spare=1),
        Column("State"),
        Column("Leaders", True),
        Column("Replicas", True),
        Column("Behind", True, spare=2),
    ]
    if with_bars:
        columns[5:5] = [Column("", style="green", spare=5)]
        columns[7:7] = [Column("", style="cyan", spare=4)]
    rows, styles = [], []
    for broker in state.brokers:
        number = broker.number
        condition = "fenced" if broker.is_fenced else "active"
        row = [
            str(number),
            broker.rack or "",
            broker.address,
            f"{condition}, controller" if number == state.controller else condition,
            cell(leaders[number]),
            cell(replicas[number]),
            cell(out_of_sync[number]),
        ]
        if with_bars:
            row[5:5] = [bar(leaders[number], max(leaders.values(), default=0))]
            row[7:7] = [bar(replicas[number], max(replicas.values(), default=0))]
        rows.append(row)
        styles.append("red" if broker.is_fenced else "yellow" if out_of_sync[number] else "")
    return Table(columns, rows, row_styles=styles)


def bar(number: int, largest: int) -> str:
    """Return a bar for `number`. The bar for `largest` has BAR_CELLS cells; other bars are shorter in proportion.

    The length is rounded to eighths of a cell if stdout is UTF-8, otherwise to whole cells.
    """
    if not largest or not number:
        return ""
    if not stdout_is_utf8():
        return "#" * max(1, round(number * BAR_CELLS / largest))
    whole, eighths = divmod(max(1, round(number * BAR_CELLS * 8 / largest)), 8)
    # U+258F is a block of one eighth, U+2589 a block of seven eighths.
    return "█" * whole + (chr(0x2590 - eighths) if eighths else "")


def trouble_table(partitions: list[PartitionReplicas]) -> Table:
    columns = [
        Column("Topic"),
        Column("Partition", True),
        Column("State"),
        Column("Leader", True),
        Column("Replicas", spare=2),
        Column("ISR", spare=1),
        Column("ELR", spare=3),
    ]
    rows, styles = [], []
    for part in partitions:
        troubles = troubles_of(part)
        moving = [MOVING] * (part.move is not None)
        rows.append(
            [
                part.topic,
                str(part.partition),
                comma_separated([*(trouble.title for trouble in troubles), *moving]),
                "none" if part.has_no_leader else str(part.leader),
                comma_separated(part.replicas),
                comma_separated(part.isr),
                comma_separated(part.eligible or ()),
            ]
        )
        styles.append(troubles[0].style if troubles else "cyan")
    return Table(columns, rows, row_styles=styles, name_columns=2)


def state_json(state: ClusterState) -> dict[str, Any]:
    leaders = Counter(part.leader for part in state.partitions)
    replicas = Counter(broker for part in state.partitions for broker in part.replicas)
    out_of_sync = Counter(broker for part in state.partitions for broker in part.out_of_sync)
    document: dict[str, Any] = {
        "cluster_id": state.cluster_id,
        "controller": None if state.controller == UNKNOWN else state.controller,
        "healthy": not is_degraded(state),
        "brokers": [
            {
                "broker": broker.number,
                "rack": broker.rack,
                "host": broker.host,
                "port": broker.port,
                "fenced": broker.is_fenced,
                "controller": broker.number == state.controller,
                "leaders": leaders[broker.number],
                "replicas": replicas[broker.number],
                "replicas_not_in_sync": out_of_sync[broker.number],
            }
            for broker in state.brokers
        ],
        "missing_brokers": state.missing,
        "topics": len({part.topic for part in state.partitions}),
        "partitions": len(state.partitions),
        "problems": state.problems,
        "warnings": state.warnings,
    }
    for trouble in TROUBLES:
        document[trouble.key] = [partition_json(part) for part in state.partitions if trouble.applies(part)]
    document[MOVING] = [partition_json(part) for part in state.partitions if part.move is not None]
    return document


def partition_json(part: PartitionReplicas) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "topic": part.topic,
        "partition": part.partition,
        "leader": part.leader,
        "replicas": part.replicas,
        "isr": part.isr,
        "eligible_leader_replicas": part.eligible,
        "offline_replicas": part.offline,
        "min_insync_replicas": part.min_isr,
    }
    if part.move is not None:
        facts |= {"adding": part.move.adding, "removing": part.move.removing}
    return facts
