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
    committed: int | None
    """None: the group has not committed there, and will begin where its consumers' `auto.offset.reset` says."""
    end: int | None
    """Exclusive. None: the topic is gone, or the partition has no leader to ask."""
    member: str
    """Client and host that read the partition; empty for nobody."""

    @property
    def place(self) -> Place:
        return self.group, self.topic, self.partition

    @property
    def records(self) -> int | None:
        """Not read yet; None where that cannot be known."""
        if self.committed is None or self.end is None:
            return None
        return max(self.end - self.committed, 0)


def all_lags(admin: "AdminClient", described: Sequence["ConsumerGroupDescription"]) -> list[Lag]:
    """Every partition of every topic that a group reads or has committed in, with the end as it is now."""
    from confluent_kafka.admin import OffsetSpec

    committed = commits(admin, [group.group_id for group in described])
    readers = {
        (group.group_id, part.topic, part.partition): f"{member.client_id}@{member.host.lstrip('/')}"
        for group in described
        for member in group.members
        for part in (member.assignment.topic_partitions if member.assignment else ())
    }
    places = dict.fromkeys([*committed, *readers])
    led = {
        (name, partition.id)
        for name, topic in admin.list_topics(timeout=ANSWER_S).topics.items()
        for partition in topic.partitions.values()
        if partition.leader >= 0
    }
    of_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(led):
        of_topic.setdefault(topic, []).append(partition)
    # A partition without a commit is one that nobody has read: it must not be left out of sight.
    places |= dict.fromkeys((g, t, other) for g, t, _ in list(places) for other in of_topic.get(t, ()))
    wanted = dict.fromkeys((topic, partition) for _, topic, partition in places if (topic, partition) in led)
    ends = cluster.list_offsets(admin, list(wanted), OffsetSpec.latest())
    return [Lag(*place, committed.get(place), ends.get(place[1:]), readers.get(place, "")) for place in sorted(places)]


def commits(admin: "AdminClient", groups: Sequence[str]) -> dict[Place, int]:
    """What these groups have committed."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    futures = {
        name: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)], request_timeout=ANSWER_S)[name]
        for name in groups
    }
    return {
        (name, part.topic, part.partition): part.offset
        for name, future in futures.items()
        for part in answer(future, f"group {name}").topic_partitions
        if part.offset >= 0
    }


def total(lags: Sequence[Lag]) -> int:
    """Records that are known to be unread."""
    return sum(lag.records or 0 for lag in lags)


class Progress(NamedTuple):
    """What two looks tell together."""

    read_per_s: float
    written_per_s: float

    def until_caught_up(self, lag: int) -> str:
        """How long at this rate."""
        if lag == 0:
            return "now"
        gain = self.read_per_s - self.written_per_s
        return span(lag / gain) if gain > 0 else "never"


def lag_table(lags: Sequence[Lag], progress: dict[Place, Progress] | None = None) -> Table:
    """One row a partition, and all of them together; with `progress` also how fast each is read."""
    columns = [
        Column("Group"),
        Column("Topic"),
        Column("Partition", True),
        Column("Committed", True),
        Column("End", True),
        Column("Lag", True, style="bold"),
    ]
    rows = [
        [lag.group, lag.topic, str(lag.partition), known(lag.committed), known(lag.end), known(lag.records)]
        for lag in lags
    ]
    footer = ["all", "", "", "", "", cell(total(lags))]
    if progress is None:
        columns.append(Column("Read by"))
        for lag, row in zip(lags, rows, strict=True):
            row.append(lag.member)
        footer.append("")
    else:
        columns += [Column("Read/s", True), Column("Written/s", True), Column("Done in", True)]
        for lag, row in zip(lags, rows, strict=True):
            row += progress_cells(lag.records, progress.get(lag.place))
        footer += progress_cells(total(lags), summed([progress[lag.place] for lag in lags if lag.place in progress]))
    return Table(columns, rows, footer=footer if len(lags) > 1 else ())


def known(number: int | None) -> str:
    return "-" if number is None else cell(number)


def summed(parts: Sequence[Progress]) -> Progress | None:
    if not parts:
        return None
    return Progress(sum(part.read_per_s for part in parts), sum(part.written_per_s for part in parts))


def progress_cells(lag: int | None, progress: Progress | None) -> list[str]:
    if progress is None or lag is None:
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
    """The rates between two looks, for the partitions that both know."""
    old = {lag.place: lag for lag in before if lag.records is not None}
    return {
        lag.place: Progress(
            growth(old[lag.place].committed, lag.committed) / seconds, growth(old[lag.place].end, lag.end) / seconds
        )
        for lag in after
        if lag.records is not None and lag.place in old
    }


def growth(before: int | None, after: int | None) -> int:
    """Never negative: an offset that was set back is no reading."""
    return max((after or 0) - (before or 0), 0)


def lag_json(lag: Lag) -> dict[str, Any]:
    return {
        "group": lag.group,
        "topic": lag.topic,
        "partition": lag.partition,
        "committed": lag.committed,
        "end": lag.end,
        "lag": lag.records,
        "read_by": lag.member or None,
    }
