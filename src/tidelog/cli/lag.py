"""How far consumer groups have come: what `tidelog group lag` and `tidelog group list` show."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli import cluster
from tidelog.cli.connection import client_error
from tidelog.cli.errors import CommandError
from tidelog.cli.groups import group_error, host_text, member_problems
from tidelog.cli.tables import Column, Table, cell, is_terminal, name_text
from tidelog.cli.when import span

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.client.groups import Group


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
    start: int = 0
    """The first offset that is there: what was deleted before it was read is no lag."""
    behind_ms: int | None = None
    """Age of the oldest record that is not committed; 0 when nothing is left, None when that cannot be known."""

    @property
    def place(self) -> Place:
        return self.group, self.topic, self.partition

    @property
    def records(self) -> int | None:
        """Not read yet; None where that cannot be known."""
        if self.committed is None or self.end is None:
            return None
        return max(self.end - max(self.committed, self.start), 0)


class Lags(NamedTuple):
    """As much as is known, and what is not known."""

    lags: list[Lag]
    problems: list[str]
    """Of members, partitions and brokers."""
    failures: dict[str, CommandError]
    """The groups whose commits cannot be read, and why."""


def all_lags(
    client: "Client", names: Iterable[str], described: "Mapping[str, Group]", ages: "Ages | None" = None
) -> Lags:
    """Every partition of every topic that one of these groups reads or has committed in, with the end as it is now.

    `described` says who reads what, as far as that is known. `behind_ms` is known with `ages` only.
    """
    from tidelog.client.operations import EARLIEST, LATEST

    found = commits(client, names)
    problems = [line for group in described.values() for line in member_problems(group)]
    readers = {
        (group.group_id, part.topic, part.partition): f"{member.client_id}@{host_text(member)}"
        for group in described.values()
        for member in group.members
        for part in member.partitions
    }
    places = dict.fromkeys([*found.offsets, *found.unknown, *readers])
    topics = cluster.describe_each(client, [*dict.fromkeys(topic for _, topic, _ in places if topic)], missing_too=True)
    of_topic = {topic.name: topic.partitions for topic in topics.topics}
    # A partition without a commit is one that nobody has read: it must not be left out.
    places |= dict.fromkeys((g, t, part.partition) for g, t, _ in list(places) for part in of_topic.get(t, ()))
    has_leader = {(name, part.partition) for name, parts in of_topic.items() for part in parts if part.leader >= 0}
    wanted = dict.fromkeys((topic, partition) for _, topic, partition in places if (topic, partition) in has_leader)
    starts, failures = cluster.list_offsets(client, dict.fromkeys(wanted, EARLIEST))
    ends, more_failures = cluster.list_offsets(client, dict.fromkeys(starts, LATEST))
    problems += [*found.unknown.values()] + [
        str(each) for each in (failures | more_failures | topics.failures).values()
    ]
    lags = [
        Lag(*place, found.offsets.get(place), ends.get(place[1:]), readers.get(place, ""), starts.get(place[1:], 0))
        for place in sorted(places)
    ]
    return Lags(lags if ages is None else ages.of(lags), problems, found.failures)


class Ages:
    """Looks up when the oldest record that is not committed was written: the first time of its batch, fetched once."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._times: dict[tuple[str, int, int], int | None] = {}

    def of(self, lags: Sequence[Lag]) -> list[Lag]:
        from tidelog.client.errors import ClientError

        now_ms = time.time_ns() // 1_000_000
        times: dict[tuple[str, int, int], int | None] = {}
        with_ages = []
        fetches = 0
        for lag in lags:
            behind_ms = 0 if lag.records == 0 else None
            if lag.records and lag.committed is not None:
                first = (lag.topic, lag.partition, max(lag.committed, lag.start))
                if first not in times:
                    if first in self._times:
                        times[first] = self._times[first]
                    elif fetches < FETCHES_MAX:
                        fetches += 1
                        try:
                            times[first] = first_time_ms(self._client, *first)
                        except ClientError:
                            fetches = FETCHES_MAX  # the next broker may not answer either, and each takes its time
                time_ms = times.get(first)
                behind_ms = None if time_ms is None else max(now_ms - time_ms, 0)
            with_ages.append(lag._replace(behind_ms=behind_ms))
        self._times = times
        return with_ages


FETCHES_MAX = 500
"""Of one look; partitions beyond it have their turn at the next one."""


def first_time_ms(client: "Client", topic: str, partition: int, offset: int) -> int | None:
    """The first timestamp of the batch that holds the offset; None where it cannot be known. Raises ClientError where
    no broker answers.
    """
    from tidelog.client.errors import ApiNotSupported, BrokenProtocol
    from tidelog.client.operations import FetchLimits
    from tidelog.model.ids import TopicPartition
    from tidelog.wire.batches import BatchHeader
    from tidelog.wire.errors import ApiError

    # As few bytes as there may be: a broker gives one whole batch all the same (KIP-74).
    limits = FetchLimits(max_wait_ms=0, max_bytes=1, partition_max_bytes=1)
    try:
        return BatchHeader(client.fetch(TopicPartition(topic, partition), offset, limits).records).first_timestamp_ms
    except (ApiError, ApiNotSupported, BrokenProtocol):
        return None


class Commits(NamedTuple):
    offsets: dict[Place, int]
    unknown: dict[Place, str]
    """Partitions whose commit cannot be read, and why."""
    failures: dict[str, CommandError]
    """Of whole groups, by their names."""


def commits(client: "Client", names: Iterable[str]) -> Commits:
    """What these groups have committed, as far as it can be read."""
    found = Commits({}, {}, {})
    for name, answer in client.committed([*names]).items():
        if isinstance(answer, Exception):
            found.failures[name] = group_error(answer, name)
            continue
        for place, offset in answer.items():
            if isinstance(offset, Exception):
                why = str(client_error(offset, f"group {name_text(name)}, {place}"))
                found.unknown[name, place.topic, place.partition] = why
            else:
                found.offsets[name, place.topic, place.partition] = offset
    return found


class Total(NamedTuple):
    """The lag of several partitions together."""

    records: int | None
    """Known to be unread; None where no partition's lag is known."""
    unknown: int
    """Partitions that may add to it: without a commit and not empty, or without a leader to ask."""
    behind_ms: int | None = None
    """The oldest record of all that are not committed; None where no age is known."""

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
    ages = [lag.behind_ms for lag in lags if lag.behind_ms is not None]
    return Total(None if nothing_known else sum(known), unknown, max(ages, default=None))


def lag_table(lags: Sequence[Lag]) -> Table:
    """One row a partition, and all of them together."""
    columns = [
        Column("Group"),
        Column("Topic"),
        Column("Partition", True, spare=-1),
        Column("Committed", True, spare=2),
        Column("End", True, spare=2),
        Column("Lag", True, style="bold", spare=-1),
        Column("Behind", True, spare=1),
        Column("Read by", spare=3),
    ]
    rows = [
        [
            *(name_text(lag.group), name_text(lag.topic), str(lag.partition)),
            *map(cell_or_dash, (lag.committed, lag.end, lag.records)),
            behind_text(lag.behind_ms),
            lag.member,
        ]
        for lag in lags
    ]
    sum_of_all = total(lags)
    footer = ["all", "", "", "", "", sum_of_all.text(), behind_text(sum_of_all.behind_ms), ""]
    return Table(columns, rows, footer=footer if len(lags) > 1 else (), row_styles=[urgency(lag) for lag in lags])


def behind_text(behind_ms: int | None) -> str:
    """At a terminal in words, for programs in whole seconds."""
    if behind_ms is None:
        return "-"
    return (
        span(behind_ms / 1000 if behind_ms < 10_000 else behind_ms // 1000) if is_terminal() else str(behind_ms // 1000)
    )


LATE_MS = 60_000
VERY_LATE_MS = 600_000


def urgency(lag: Lag) -> str:
    """The colour of a partition: green when it is at the end, yellow from a minute on, red from ten."""
    if lag.records == 0:
        return "green"
    if lag.behind_ms is None or lag.behind_ms < LATE_MS:
        return ""
    return "red" if lag.behind_ms >= VERY_LATE_MS else "yellow"


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
        "behind_ms": lag.behind_ms,
        "read_by": lag.member or None,
    }
