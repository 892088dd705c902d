"""Tables and JSON of `tidelog topic describe`."""

import sys
from collections.abc import Mapping
from typing import Any

from tidelog.cli import cluster
from tidelog.cli.cluster_state import PartitionReplicas
from tidelog.cli.cluster_status import state_words
from tidelog.cli.tables import Column, Table, cell, comma_separated, size
from tidelog.cli.when import duration_text

NO_LIMIT = 2**63 - 1
"""The highest value of a setting. It means that there is no limit."""


def replicas_text(topic: cluster.TopicState) -> str:
    """Return the number of replicas per partition; a range such as 1-3 if partitions differ."""
    counts = sorted({len(part.replicas) for part in topic.partitions})
    return "-".join(map(str, counts[:1] + counts[1:][-1:]))  # the smallest number, and the largest if it differs


def partitions_table(
    topic: cluster.TopicState,
    offsets: dict[cluster.TopicAndPartition, cluster.Offsets],
    replicas: Mapping[cluster.TopicAndPartition, PartitionReplicas] = {},
) -> Table:
    """Return the table of partitions. Each of the columns ELR and State is shown only if at least one partition has a
    value for it.
    """
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
        partition_offsets = offsets.get((topic.name, part.partition))
        numbers = (
            (str(partition_offsets.earliest), str(partition_offsets.latest), cell(partition_offsets.records))
            if partition_offsets
            else ("?", "?", "?")
        )
        leader = str(part.leader) if part.leader >= 0 else "none"
        rows.append([str(part.partition), leader, comma_separated(part.replicas), comma_separated(part.isr), *numbers])
    parts = [replicas.get((topic.name, part.partition)) for part in topic.partitions]
    if any(part is not None and part.eligible for part in parts):
        columns.append(Column("ELR", spare=4))
        for part_replicas, row in zip(parts, rows, strict=True):
            row.append(comma_separated((part_replicas.eligible if part_replicas else None) or ()))
    states = [comma_separated(state_words(part)) if part else "" for part in parts]
    if any(states):
        columns.append(Column("State", style="red"))
        for state, row in zip(states, rows, strict=True):
            row.append(state)
    return Table(columns, rows)


def settings_table(settings: list[cluster.Setting]) -> Table:
    columns = [Column("Setting"), Column("Value", spare=-1, breaks=True), Column("From", spare=1)]
    rows = [[s.name, "(hidden)" if s.sensitive else value_text(s.name, s.value), s.origin] for s in settings]
    if not all(setting.effect for setting in settings):
        columns.append(Column("Note", style="yellow"))
        for setting, row in zip(settings, rows, strict=True):
            row.append("" if setting.effect else "no effect yet")
    return Table(columns, rows)


def value_text(name: str, value: str) -> str:
    """Return the value. If stdout is a terminal, add a text in brackets that explains a large number or says
    "no limit".
    """
    if not sys.stdout.isatty() or not value.removeprefix("-").isdigit():
        return value
    number = int(value)
    if number == NO_LIMIT or (number == -1 and name.startswith("retention.")):
        return f"{value} (no limit)"
    if name.endswith(".ms") and number >= 1000:
        return f"{value} ({duration_text(number / 1000)})"
    if name.endswith(".bytes") and number >= 1024:
        return f"{value} ({size(number)})"
    return value


def topic_json(
    topic: cluster.TopicState,
    offsets: dict[cluster.TopicAndPartition, cluster.Offsets] | None = None,
    replicas: Mapping[cluster.TopicAndPartition, PartitionReplicas] = {},
) -> dict[str, Any]:
    partitions: list[dict[str, Any]] = [
        {"partition": part.partition, "leader": part.leader, "replicas": part.replicas, "isr": part.isr}
        for part in topic.partitions
    ]
    if offsets is not None:
        for part in partitions:
            partition_offsets = offsets.get((topic.name, part["partition"]))
            part["offline"] = part["leader"] < 0
            if partition_offsets is not None:
                part |= {"first_offset": partition_offsets.earliest, "next_offset": partition_offsets.latest}
    for part in partitions:
        state = replicas.get((topic.name, part["partition"]))
        if state is not None:
            part |= {
                "eligible_leader_replicas": state.eligible,
                "offline_replicas": state.offline,
                "under_replicated": bool(state.out_of_sync),
                "under_min_isr": state.is_under_min_isr,
            }
    return {"topic": topic.name, "topic_id": topic.topic_id, "internal": topic.internal, "partitions": partitions}


def settings_json(settings: list[cluster.Setting] | None) -> dict[str, Any] | None:
    """Return the settings as JSON; None if they cannot be read."""
    if settings is None:
        return None
    return {s.name: {"value": None if s.sensitive else s.value, "from": s.origin, "effect": s.effect} for s in settings}
