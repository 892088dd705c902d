"""Measure the lag of consumer groups, for `tidelog group lag` and `tidelog group list`."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli import cluster
from tidelog.cli.cluster import TopicAndPartition
from tidelog.cli.connection import client_error
from tidelog.cli.errors import CommandError
from tidelog.cli.groups import group_error, host_text, member_problems
from tidelog.cli.tables import Column, Table, cell, is_terminal, name_text
from tidelog.cli.when import duration_text

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.client.groups import Group


GroupPartition = tuple[str, str, int]
"""Group, topic, partition."""


NO_LAG = "No group reads a topic or has committed an offset"


class Lag(NamedTuple):
    """The committed offset of one group in one partition, and the end of the partition's log."""

    group: str
    topic: str
    partition: int
    committed: int | None
    """None if the group has not committed in this partition, or if the committed offset cannot be read. Without a
    commit, the setting `auto.offset.reset` of the group's consumers decides where they begin."""
    end: int | None
    """The log's end, exclusive. None if it cannot be read, for example because the topic was deleted or the
    partition has no leader."""
    member: str
    """Client and host of the member that reads the partition; empty if no member reads it."""
    start: int = 0
    """The log's first offset. Records that were deleted before the group read them are not lag."""
    behind_ms: int | None = None
    """Age of the oldest record that the group has not committed; 0 if there is no such record, None if the age is
    unknown."""

    @property
    def group_partition(self) -> GroupPartition:
        return self.group, self.topic, self.partition

    @property
    def records(self) -> int | None:
        """The number of records that the group has not read yet; None if it is unknown."""
        if self.committed is None or self.end is None:
            return None
        return max(self.end - max(self.committed, self.start), 0)

    @property
    def is_missing_in_total(self) -> bool:
        """Whether the number of records that the group has not read yet is unknown and may be more than 0.

        False if the partition's log contains no record, even if the group has not committed an offset.
        """
        return self.records is None and (self.end is None or self.start < self.end)


class Lags(NamedTuple):
    """The lags of several groups, and the items that could not be read."""

    lags: list[Lag]
    problems: list[str]
    """One line for each member, partition or topic about which something is unknown."""
    failures: dict[str, CommandError]
    """Groups whose committed offsets cannot be read, with the reason."""


def all_lags(
    client: "Client", names: Iterable[str], described: "Mapping[str, Group]", ages: "Ages | None" = None
) -> Lags:
    """Return the lag of each group in every partition of the topics that the group reads or in which it has
    committed.

    `described` contains the groups' members, as far as they are known. `behind_ms` is set only with `ages`.
    """
    from tidelog.client.operations import EARLIEST, LATEST

    committed = read_commits(client, names)
    problems = [line for group in described.values() for line in member_problems(group)]
    readers = {
        (group.group_id, part.topic, part.partition): f"{member.client_id}@{host_text(member)}"
        for group in described.values()
        for member in group.members
        for part in member.partitions
    }
    keys = dict.fromkeys([*committed.offsets, *committed.unknown, *readers])
    topics = cluster.describe_each(client, [*dict.fromkeys(topic for _, topic, _ in keys if topic)], skip_missing=True)
    by_topic = {topic.name: topic.partitions for topic in topics.topics}
    # Partitions without a commit are included, because the group has not read their records.
    keys |= dict.fromkeys((g, t, part.partition) for g, t, _ in list(keys) for part in by_topic.get(t, ()))
    with_leader = {(name, part.partition) for name, parts in by_topic.items() for part in parts if part.leader >= 0}
    wanted = dict.fromkeys((topic, partition) for _, topic, partition in keys if (topic, partition) in with_leader)
    starts, failures = cluster.list_offsets(client, dict.fromkeys(wanted, EARLIEST))
    ends, more_failures = cluster.list_offsets(client, dict.fromkeys(starts, LATEST))
    problems += [*committed.unknown.values()] + [
        str(failure) for failure in (failures | more_failures | topics.failures).values()
    ]
    lags = [
        Lag(*key, committed.offsets.get(key), ends.get(key[1:]), readers.get(key, ""), starts.get(key[1:], 0))
        for key in sorted(keys)
    ]
    if ages is not None:
        lags = ages.add_to(lags)
        problems += ages.problems
    return Lags(lags, problems, committed.failures)


class Ages:
    """Measures the age of the oldest record that a group has not committed in a partition. The age is computed from the
    first timestamp of the record's batch.

    The timestamp is fetched once and cached until another record is the oldest one.
    """

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._timestamps: dict[OldestRecord, int | None] = {}
        self._last_fetches: dict[TopicAndPartition, int] = {}
        """For each partition, the number of its last fetch. The fetches of all partitions are numbered together."""
        self._failed: set[TopicAndPartition] = set()
        """Partitions whose last fetch failed."""
        self._fetch_count = 0
        self.problems: list[str] = []
        """Lines that say why ages are missing in the last measurement."""

    def add_to(self, lags: Sequence[Lag]) -> list[Lag]:
        """Return the lags with `behind_ms`. At most FETCHES_MAX timestamps are fetched. If a timestamp is missing, the
        age is None.
        """
        now_ms = time.time_ns() // 1_000_000
        oldest_records = [
            (lag.topic, lag.partition, max(lag.committed, lag.start))
            if lag.records and lag.committed is not None
            else None
            for lag in lags
        ]
        wanted = dict.fromkeys(oldest for oldest in oldest_records if oldest is not None)
        self._timestamps = {oldest: self._timestamps[oldest] for oldest in wanted if oldest in self._timestamps}
        partitions = {oldest[:2] for oldest in wanted}
        self._last_fetches = {tp: number for tp, number in self._last_fetches.items() if tp in partitions}
        self._failed &= partitions
        self.problems = self._fetch([oldest for oldest in wanted if oldest not in self._timestamps])
        with_ages = []
        for lag, oldest in zip(lags, oldest_records, strict=True):
            behind_ms = 0 if lag.records == 0 else None
            timestamp_ms = None if oldest is None else self._timestamps.get(oldest)
            if timestamp_ms is not None:
                behind_ms = max(now_ms - timestamp_ms, 0)
            with_ages.append(lag._replace(behind_ms=behind_ms))
        return with_ages

    def _fetch(self, missing: Sequence["OldestRecord"]) -> list[str]:
        """Fetch the timestamps of these records. Stop after FETCHES_MAX fetches, or after the first failure. Return a
        line that says why ages are missing; no line if all timestamps were fetched.

        The partitions whose last fetch failed are fetched last, and of the others, those that have waited the longest
        are fetched first. Otherwise some partitions would never get an age.
        """
        from tidelog.client.errors import ClientError

        def turn(oldest: OldestRecord) -> tuple[bool, int]:
            return oldest[:2] in self._failed, self._last_fetches.get(oldest[:2], 0)

        for oldest in sorted(missing, key=turn)[:FETCHES_MAX]:
            tp = oldest[:2]
            self._fetch_count += 1
            self._last_fetches[tp] = self._fetch_count
            self._failed.discard(tp)
            try:
                self._timestamps[oldest] = batch_timestamp_ms(self._client, *oldest)
            except ClientError as error:
                # Fetch no more: if other brokers do not answer either, each fetch lasts until its timeout.
                self._failed.add(tp)
                return [f"not every value of Behind is known: {client_error(error, f'{oldest[0]}-{oldest[1]}')}"]
        if len(missing) > FETCHES_MAX:
            rest = "with --watch, later measurements read the others"
            return [f"not every value of Behind is known: one measurement reads at most {FETCHES_MAX} values; {rest}"]
        return []


OldestRecord = tuple[str, int, int]
"""Topic, partition and offset of the oldest record that a group has not committed."""

FETCHES_MAX = 500
"""Upper bound on the fetches of one measurement. The next measurements fetch the missing timestamps."""


def batch_timestamp_ms(client: "Client", topic: str, partition: int, offset: int) -> int | None:
    """Return the first timestamp of the batch that contains the offset; None if the batch has no timestamp, or if
    the broker does not return the batch.

    Raises ClientError if no broker answers.
    """
    from tidelog.client.errors import ApiNotSupported, BrokenProtocol
    from tidelog.client.operations import FetchLimits
    from tidelog.model.ids import TopicPartition
    from tidelog.wire.batches import BatchHeader
    from tidelog.wire.errors import ApiError

    # The smallest limits are enough, because a broker always returns at least one whole batch (KIP-74).
    limits = FetchLimits(max_wait_ms=0, max_bytes=1, partition_max_bytes=1)
    try:
        return BatchHeader(client.fetch(TopicPartition(topic, partition), offset, limits).records).first_timestamp_ms
    except (ApiError, ApiNotSupported, BrokenProtocol):
        return None


class Commits(NamedTuple):
    """Committed offsets of several groups."""

    offsets: dict[GroupPartition, int]
    unknown: dict[GroupPartition, str]
    """Partitions whose committed offset cannot be read, with the reason."""
    failures: dict[str, CommandError]
    """The error of each group whose committed offsets could not be read, by the group's name."""


def read_commits(client: "Client", names: Iterable[str]) -> Commits:
    """Read the committed offsets of these groups. An offset or group that cannot be read has an error in the result."""
    result = Commits({}, {}, {})
    for name, answer in client.committed_offsets([*names]).items():
        if isinstance(answer, Exception):
            result.failures[name] = group_error(answer, name)
            continue
        for tp, offset in answer.items():
            if isinstance(offset, Exception):
                reason = str(client_error(offset, f"group {name_text(name)}, {tp}"))
                result.unknown[name, tp.topic, tp.partition] = reason
            else:
                result.offsets[name, tp.topic, tp.partition] = offset
    return result


class Total(NamedTuple):
    """The lag of several partitions together."""

    records: int | None
    """Sum of the known lags, in records; None if there are no partitions, or if no lag is known and `unknown` is not
    0."""
    unknown: int
    """Number of partitions whose lag is unknown and may be more than 0. The sum does not include these partitions. For
    example, the group has not committed an offset there, the partition has no leader, or its topic was deleted."""
    behind_ms: int | None = None
    """Age of the oldest record, in all partitions, that a group has not committed; None if no age is known."""

    def text(self) -> str:
        """Return the sum as text. A `+` follows the sum if it does not include all partitions. The text is `-` if
        the sum is unknown.
        """
        if self.records is None:
            return "-"
        return cell(self.records) + "+" * bool(self.unknown)


def total(lags: Sequence[Lag]) -> Total:
    unknown = sum(lag.is_missing_in_total for lag in lags)
    known = [lag.records for lag in lags if lag.records is not None]
    nothing_known = not known and (unknown or not lags)
    ages = [lag.behind_ms for lag in lags if lag.behind_ms is not None]
    return Total(None if nothing_known else sum(known), unknown, max(ages, default=None))


def lag_table(lags: Sequence[Lag]) -> Table:
    """Return a table with a row for each partition. If there are several rows, a footer shows the total."""
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
    footer = footer if len(lags) > 1 else []
    return Table(columns, rows, footer=footer, row_styles=[row_style(lag) for lag in lags], name_columns=2)


def behind_text(behind_ms: int | None) -> str:
    """Return an age as text: with units at a terminal, otherwise in whole seconds; `-` if it is unknown."""
    if behind_ms is None:
        return "-"
    if not is_terminal():
        return str(behind_ms // 1000)
    # Fractions of a second are shown only if the age is below 10 seconds.
    return duration_text(behind_ms / 1000 if behind_ms < 10_000 else behind_ms // 1000)


LATE_MS = 60_000
VERY_LATE_MS = 600_000
"""Ages of the oldest record that the group has not committed. From LATE_MS on, the partition's row is yellow; from
VERY_LATE_MS on, it is red."""


def row_style(lag: Lag) -> str:
    """Return the colour of a partition's row: green without lag, yellow or red for old records, otherwise none."""
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
