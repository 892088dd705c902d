"""How far consumer groups have come: `tidelog group lag`, once or watched."""

import json as json_text
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli import cluster
from tidelog.cli.connection import ANSWER_S, answer
from tidelog.cli.tables import Column, Table, cell, console, print_table, rich_table
from tidelog.cli.when import iso, span

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupDescription


Place = tuple[str, str, int]
"""Group, topic, partition."""


class Lag(NamedTuple):
    """How far one group has come in one partition."""

    group: str
    topic: str
    partition: int
    committed: int
    end: int
    """Exclusive; -1 when the topic is gone."""
    member: str
    """Client and host that read the partition; empty for nobody."""

    @property
    def place(self) -> Place:
        return self.group, self.topic, self.partition

    @property
    def records(self) -> int:
        """Not read yet."""
        return max(self.end - self.committed, 0)


def all_lags(admin: "AdminClient", described: Sequence["ConsumerGroupDescription"]) -> list[Lag]:
    """Every partition that a group has committed, with the end as it is now."""
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import OffsetSpec

    futures = {
        name: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)], request_timeout=ANSWER_S)[name]
        for name in (group.group_id for group in described)
    }
    committed = {
        (name, part.topic, part.partition): part.offset
        for name, future in futures.items()
        for part in answer(future, f"group {name}").topic_partitions
        if part.offset >= 0
    }
    readers: dict[Place, str] = {}
    for group in described:
        for member in group.members:
            for part in member.assignment.topic_partitions if member.assignment else ():
                readers[group.group_id, part.topic, part.partition] = f"{member.client_id}@{member.host.lstrip('/')}"
    alive = admin.list_topics(timeout=ANSWER_S).topics
    wanted = dict.fromkeys((t, p) for _, t, p in committed if t in alive and p in alive[t].partitions)
    ends = cluster.list_offsets(admin, list(wanted), OffsetSpec.latest())
    return [
        Lag(name, topic, part, offset, ends.get((topic, part), -1), readers.get((name, topic, part), ""))
        for (name, topic, part), offset in sorted(committed.items())
    ]


class Progress(NamedTuple):
    """What two looks tell together."""

    read_per_s: float
    written_per_s: float

    def until_caught_up(self, lag: int) -> str:
        if lag == 0:
            return "now"
        gain = self.read_per_s - self.written_per_s
        return span(lag / gain) if gain > 0 else "never at this rate"


def lag_table(lags: Sequence[Lag], progress: dict[Place, Progress] | None = None) -> Table:
    columns = [
        Column("Group"),
        Column("Topic"),
        Column("Partition", True),
        Column("Committed", True),
        Column("End", True),
        Column("Lag", True, style="bold"),
    ]
    rows = [
        [
            lag.group,
            lag.topic,
            str(lag.partition),
            cell(lag.committed),
            cell(lag.end) if lag.end >= 0 else "topic gone",
            cell(lag.records),
        ]
        for lag in lags
    ]
    total = sum(lag.records for lag in lags)
    footer = ["all", "", "", "", "", cell(total)]
    if progress is not None:
        columns += [Column("Read/s", True), Column("Written/s", True), Column("Caught up in", True)]
        for lag, row in zip(lags, rows, strict=True):
            row += progress_cells(lag.records, progress.get(lag.place))
        known = [progress[lag.place] for lag in lags if lag.place in progress]
        whole = Progress(sum(p.read_per_s for p in known), sum(p.written_per_s for p in known)) if known else None
        footer += progress_cells(total, whole)
    else:
        columns.append(Column("Read by"))
        for lag, row in zip(lags, rows, strict=True):
            row.append(lag.member)
        footer.append("")
    return Table(columns, rows, footer=footer if len(lags) > 1 else ())


def progress_cells(lag: int, progress: Progress | None) -> list[str]:
    if progress is None:
        return ["", "", ""]
    return [cell(round(progress.read_per_s)), cell(round(progress.written_per_s)), progress.until_caught_up(lag)]


def watch_lag(look: Callable[[], list[Lag]], interval_s: float, json: bool) -> None:
    """Look again until Ctrl-C: a terminal's table is drawn anew, a pipe gets one table or JSON line after another."""
    before: list[Lag] = []
    then = 0.0
    live = None
    if sys.stdout.isatty() and not json:
        from rich.live import Live

        live = Live(console=console(), auto_refresh=False)
        live.start()
    try:
        while True:
            now, lags = time.monotonic(), look()
            progress = measured(before, lags, now - then)
            if json:
                print(
                    json_text.dumps({"time": iso(time.time_ns() // 1_000_000), "lag": [*map(lag_json, lags)]}),
                    flush=True,
                )
            elif live is not None:
                live.update(rich_table(lag_table(lags, progress)), refresh=True)
            else:
                print_table(lag_table(lags, progress))
                print(flush=True)
            before, then = lags, now
            time.sleep(interval_s)
    finally:
        if live is not None:
            live.stop()


def measured(before: Sequence[Lag], after: Sequence[Lag], seconds: float) -> dict[Place, Progress]:
    """The rates between two looks, for the partitions that are in both."""
    old = {lag.place: lag for lag in before}
    return {
        lag.place: Progress(
            max(lag.committed - old[lag.place].committed, 0) / seconds, max(lag.end - old[lag.place].end, 0) / seconds
        )
        for lag in after
        if lag.place in old
    }


def lag_json(lag: Lag) -> dict[str, Any]:
    return {
        "group": lag.group,
        "topic": lag.topic,
        "partition": lag.partition,
        "committed": lag.committed,
        "end": lag.end if lag.end >= 0 else None,
        "lag": lag.records,
        "read_by": lag.member or None,
    }
