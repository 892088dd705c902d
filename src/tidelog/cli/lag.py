"""How far consumer groups have come: what `tidelog group lag` and `tidelog group list` show."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli import cluster
from tidelog.cli.connection import ANSWER_S, answer
from tidelog.cli.tables import Column, Table, cell

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupDescription


Place = tuple[str, str, int]
"""Group, topic, partition."""


NO_LAG = "No group reads a topic or has committed an offset"


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
    known = admin.list_topics(timeout=ANSWER_S).topics
    of_topic = {name: sorted(topic.partitions) for name, topic in known.items()}
    led = {(name, part.id) for name, topic in known.items() for part in topic.partitions.values() if part.leader >= 0}
    # A partition without a commit is one that nobody has read: it must not be left out.
    places |= dict.fromkeys((g, t, other) for g, t, _ in list(places) for other in of_topic.get(t, ()))
    wanted = dict.fromkeys((topic, partition) for _, topic, partition in places if (topic, partition) in led)
    # One that went offline a moment ago has a leader still, and no end.
    ends = cluster.list_offsets(admin, list(wanted), OffsetSpec.latest(), skip_offline=True)
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


class Total(NamedTuple):
    """The lag of several partitions together."""

    records: int | None
    """Known to be unread; None where no partition's lag is known."""
    unknown: int
    """Partitions that may add to it: without a commit and not empty, or without a leader to ask."""

    def text(self) -> str:
        """`-` for unknown, and a `+` behind a sum that is not the whole: at least so many."""
        if self.records is None:
            return "-"
        return cell(self.records) + "+" * bool(self.unknown)


def total(lags: Sequence[Lag]) -> Total:
    unknown = sum(lag.records is None and lag.end != 0 for lag in lags)
    known = [lag.records for lag in lags if lag.records is not None]
    # A partition that never had a record adds nothing, committed or not.
    nothing_known = not known and (unknown or not lags)
    return Total(None if nothing_known else sum(known), unknown)


def lag_table(lags: Sequence[Lag]) -> Table:
    """One row a partition, and all of them together."""
    columns = [
        Column("Group"),
        Column("Topic"),
        Column("Partition", True),
        Column("Committed", True),
        Column("End", True),
        Column("Lag", True, style="bold"),
        Column("Read by"),
    ]
    rows = [
        [
            *(lag.group, lag.topic, str(lag.partition)),
            *map(cell_or_dash, (lag.committed, lag.end, lag.records)),
            lag.member,
        ]
        for lag in lags
    ]
    return Table(columns, rows, footer=["all", "", "", "", "", total(lags).text(), ""] if len(lags) > 1 else ())


def cell_or_dash(number: int | None) -> str:
    return "-" if number is None else cell(number)


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
