"""Plan new committed offsets for a group, show the plan as a table or JSON, and read offsets from files.

A plan is a list of `OffsetChange`, one for each partition. The user sees it before the offsets are committed.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.cli.cluster import Offsets, TopicAndPartition
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.tables import Column, Table, cell, counted


class OffsetChange(NamedTuple):
    """The committed offset of one partition before and after the plan."""

    topic: str
    partition: int
    before: int | None
    """None if no offset was committed."""
    after: int
    note: str = ""
    """The reason why `after` differs from the requested offset; empty if both are equal."""

    @property
    def difference(self) -> int | None:
        return None if self.before is None else self.after - self.before


def topics_and_partitions(texts: Iterable[str]) -> dict[str, list[int] | None]:
    """Parse `T` or `T:0,3-5` into topic -> partitions; None means all partitions. Raises UsageError."""
    wanted: dict[str, list[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not topic or (colon and not numbers):
            raise UsageError(f"--topic takes TOPIC or TOPIC:PARTITIONS, for example orders:0,3-5, not {text!r}")
        if not colon:
            wanted[topic] = None
            continue
        partitions = wanted.setdefault(topic, [])
        if partitions is not None:
            partitions += _partition_numbers(numbers, text)
    return {topic: None if parts is None else sorted(dict.fromkeys(parts)) for topic, parts in wanted.items()}


PARTITIONS_MAX = 100_000
"""Upper bound on the partitions of one range, such as 3-5."""


def _partition_numbers(text: str, whole: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last] if dash else [first, first]
        if not all(end.isascii() and end.isdigit() and len(end) < 10 for end in ends) or int(ends[0]) > int(ends[1]):
            raise UsageError(f"--topic {whole}: {part!r} is not a partition or a range; example: orders:0,3-5")
        if int(ends[1]) - int(ends[0]) >= PARTITIONS_MAX:
            raise UsageError(f"--topic {whole}: more than {PARTITIONS_MAX} partitions")
        numbers += range(int(ends[0]), int(ends[1]) + 1)
    return numbers


def plan(
    partitions: Sequence[TopicAndPartition],
    wanted: Mapping[TopicAndPartition, int],
    committed: Mapping[TopicAndPartition, int],
    logs: Mapping[TopicAndPartition, Offsets],
) -> list[OffsetChange]:
    """Return one change for each partition. The new offset is the requested offset. If the requested offset is
    outside the partition's log, the new offset is the log's start or end.
    """
    changes = []
    for tp in partitions:
        log = logs[tp]
        after = min(max(wanted[tp], log.earliest), log.latest)
        note = ""
        if wanted[tp] < log.earliest:
            note = f"{wanted[tp]} is below the log's start"
        elif wanted[tp] > log.latest:
            note = f"{wanted[tp]} is above the log's end"
        changes.append(OffsetChange(*tp, committed.get(tp), after, note))
    return changes


def omitted_partitions(
    partitions: Iterable[TopicAndPartition], all_partitions: Iterable[TopicAndPartition]
) -> list[TopicAndPartition]:
    """Return the partitions of `all_partitions` that are not in `partitions`, sorted."""
    planned = set(partitions)
    return sorted(tp for tp in all_partitions if tp not in planned)


def changes_table(changes: Sequence[OffsetChange]) -> Table:
    columns = [
        Column("Topic"),
        Column("Partition", True, spare=-1),
        Column("Committed", True, spare=1),
        Column("New", True, style="bold", spare=-1),
        Column("Change", True, spare=2),
    ]
    rows = [
        [
            change.topic,
            str(change.partition),
            "-" if change.before is None else cell(change.before),
            cell(change.after),
            "" if not change.difference else ("+" if change.difference > 0 else "-") + cell(abs(change.difference)),
        ]
        for change in changes
    ]
    if any(change.note for change in changes):
        columns.append(Column("Note", style="yellow", spare=3))
        for row, change in zip(rows, changes, strict=True):
            row.append(change.note)
    return Table(columns, rows)


def changes_json(changes: Sequence[OffsetChange]) -> list[dict[str, Any]]:
    """Return the changes as JSON objects, in the form that `--from-file` reads."""
    return [
        {
            "topic": change.topic,
            "partition": change.partition,
            "committed": change.before,
            "offset": change.after,
            "note": change.note or None,
        }
        for change in changes
    ]


# Files

EXPECTED_FORMAT = 'CSV lines "topic,partition,offset" or "group,topic,partition,offset", or JSON as --json prints it'


def read_offsets(path: str, group: str) -> dict[TopicAndPartition, int]:
    """Read the offsets for a group from a file. Lines or items with the name of another group are skipped.

    Raises CommandError that names the file, and the line or item that is wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CommandError(f"{path} cannot be read: {reason}") from error
    rows = _json_rows(path, text, group) if text.lstrip().startswith(("{", "[")) else _csv_rows(path, text, group)
    offsets: dict[TopicAndPartition, int] = {}
    for location, topic, partition, offset in rows:
        number, target = _whole_number(partition), _whole_number(offset)
        if not topic or number is None or target is None:
            raise CommandError(
                f"{path}, {location}: topic {topic!r}, partition {partition!r} and offset {offset!r} are not all valid;"
                f" expected {EXPECTED_FORMAT}"
            )
        if (topic, number) in offsets:
            raise CommandError(f"{path}, {location}: {topic}-{number} occurs twice")
        offsets[topic, number] = target
    if not offsets:
        raise CommandError(f"{path} has no offsets for group {group}; expected {EXPECTED_FORMAT}")
    return offsets


def _whole_number(value: Any) -> int | None:
    """Return a value from a file as an integer if it consists of 1 to 19 digits, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _csv_rows(path: str, text: str, group: str) -> list[tuple[str, str, Any, Any]]:
    """Return location, topic, partition and offset of each line for the group. Raises CommandError."""
    rows = []
    for number, fields in enumerate(csv.reader(text.splitlines(), skipinitialspace=True), start=1):
        fields = [field.strip() for field in fields]
        if not any(fields) or (number == 1 and fields[-1].lower() in ("offset", "new-offset")):
            continue
        if len(fields) not in (3, 4):
            raise CommandError(f"{path}, line {number} has {counted(len(fields), 'field')}; expected {EXPECTED_FORMAT}")
        if len(fields) == 4 and fields.pop(0) != group:
            continue
        rows.append((f"line {number}", fields[0], fields[1], fields[2]))
    return rows


def _json_rows(path: str, text: str, group: str) -> list[tuple[str, str, Any, Any]]:
    """Return location, topic, partition and offset of each item for the group. Raises CommandError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path} is not JSON: {error}") from error
    if isinstance(document, dict):
        document = document.get("offsets")
    if not isinstance(document, list) or not all(isinstance(item, dict) for item in document):
        raise CommandError(f"{path} is not a list of offsets; expected {EXPECTED_FORMAT}")
    return [
        (f"item {number}", str(item.get("topic") or ""), item.get("partition"), item.get("offset"))
        for number, item in enumerate(document, start=1)
        if item.get("group", group) == group
    ]
