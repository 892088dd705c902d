"""How far consumer groups have come: what `tidelog group lag` and `tidelog group list` show."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli import cluster
from tidelog.cli.connection import ANSWER_S, ConnectionOptions, answer
from tidelog.cli.own_client import open_client
from tidelog.cli.tables import Column, Table, cell, is_terminal
from tidelog.cli.when import span

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

    from tidelog.client.blocking import Client


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


def all_lags(
    admin: "AdminClient", described: Sequence["ConsumerGroupDescription"], ages: "Ages | None" = None
) -> list[Lag]:
    """Every partition of every topic that a group reads or has committed in, with the end as it is now.

    `behind_ms` is known with `ages` only.
    """
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
    # One that went offline or was deleted a moment ago has a leader still, and no offsets.
    starts = cluster.list_offsets(admin, list(wanted), OffsetSpec.earliest(), skip_offline=True, missing_too=True)
    ends = cluster.list_offsets(admin, list(wanted), OffsetSpec.latest(), skip_offline=True, missing_too=True)
    lags = [
        Lag(*place, committed.get(place), ends.get(place[1:]), readers.get(place, ""), starts.get(place[1:], 0))
        for place in sorted(places)
    ]
    return lags if ages is None else ages.of(lags)


class Ages:
    """Looks up when the oldest record that is not committed was written: the first time of its batch, fetched once.

    Our own client gives headers of batches; it speaks PLAINTEXT only, and elsewhere no age is known.
    """

    def __init__(self, connection: ConnectionOptions) -> None:
        self._client = open_client(connection.bootstrap) if connection.is_plaintext else None
        self._times: dict[tuple[str, int, int], int | None] = {}

    def of(self, lags: Sequence[Lag]) -> list[Lag]:
        from tidelog.client.errors import ClientError

        now_ms = time.time_ns() // 1_000_000
        times: dict[tuple[str, int, int], int | None] = {}
        told = []
        fetches = 0
        for lag in lags:
            behind_ms = 0 if lag.records == 0 else None
            if lag.records and lag.committed is not None and self._client is not None:
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
            told.append(lag._replace(behind_ms=behind_ms))
        self._times = times
        return told


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
            *(lag.group, lag.topic, str(lag.partition)),
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
