"""The reading loop of `tidelog consume`. It reads from given offsets, or as a member of a group, until there is a
reason to stop.

Tidelog's own client fetches the records, because librdkafka truncates or rejects header keys that contain a NUL or
are not UTF-8. In a group, librdkafka is the member: it joins, receives partitions and commits offsets, but does not
fetch records.
"""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.cli import cluster, offline
from tidelog.cli.connection import NO_BROKER, ConnectionOptions, client_error, kafka_error, one_line_errors
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.interrupts import Interrupts
from tidelog.cli.records import IncomingRecord
from tidelog.cli.tables import name_text, print_notes, ranges

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

    from tidelog.client.blocking import Client
    from tidelog.client.each import Failure, Results
    from tidelog.client.reader import Chunk, Skipped, Stopped

FETCH_WAIT_S = 0.1
"""Upper bound, in seconds, on the time for which a fetch waits for records, and on a pause between fetches. A signal
ends a wait and a pause immediately."""
HINT_AFTER_S = 2.0
"""After this many seconds without any record, a message on the terminal says that the command waits."""
OFFLINE_CHECK_S = 5.0
"""With `until_end`, after this many seconds without a record, the reader checks whether partitions have gone
offline."""
JOINING_NOTICE_S = 0.5
"""After this many seconds without an assignment from the group, a message on the terminal says that the command waits
for it."""
UNSTABLE_RETRY_S = 0.5
"""Pause, in seconds, before requesting again the committed offsets that an open transaction may change."""
FETCH_BYTES_MAX = 16 << 20
"""Upper bound on the bytes of records in a fetch response."""
PARTITION_BYTES_MAX = 1 << 20
"""Upper bound on the bytes of one partition in a fetch response. A single larger batch is still returned as a whole."""


class RecordSink(Protocol):
    def check(self) -> None: ...

    def write(self, records: Sequence[IncomingRecord]) -> None: ...


class TopicReader:
    """Prints records of one topic until Ctrl-C, or until it has printed the maximum number of records.

    With `until_end`, it stops at the end offsets that the partitions had when it began to read them.
    """

    def __init__(
        self,
        connection: ConnectionOptions,
        client: "Client",
        topic: str,
        sink: RecordSink,
        records_max: int | None,
        until_end: bool,
    ) -> None:
        from tidelog.client.operations import READ_COMMITTED, READ_UNCOMMITTED, Backoff, FetchLimits
        from tidelog.client.reader import Reader

        self.connection = connection
        self.client = client
        self.topic = topic
        self.sink = sink
        self.remaining_records = records_max
        self.until_end = until_end
        self.pending_ends: dict[int, int] = {}
        """End offset (exclusive) of each partition that has not been read to its end. Only used with `until_end`."""
        self.waiting_from: dict[int, int] = {}
        """The last stable offset of each partition in which a transaction is open. The records from this offset on are
        not printed. Only used with `until_end`."""
        self.committed_only = connection.settings.get("isolation.level", "read_committed") == "read_committed"
        limits = FetchLimits(
            round(FETCH_WAIT_S * 1000),
            max_bytes=FETCH_BYTES_MAX,
            partition_max_bytes=PARTITION_BYTES_MAX,
            isolation=READ_COMMITTED if self.committed_only else READ_UNCOMMITTED,
        )
        check_crcs = connection.settings.get("check.crcs", "true") != "false"
        self.reader = Reader(client, limits, Backoff(), check_crcs=check_crcs)
        self.member: GroupMember | None = None
        self.failures: list[str] = []
        """One line for each partition or range of offsets that was requested and could not be read."""
        self.offline_by_topic: dict[str, list[int]] = {}
        """Partitions that were requested and are offline, by topic."""
        self.offline_checked_s = 0.0
        self.outage_reported = False
        self.hint = f"Waiting for new records in {topic}; Ctrl-C stops."
        # Without a terminal, the hint is never shown.
        self.hint_shown = not (sys.stderr.isatty() and sys.stdout.isatty())

    def join(self, group: str, reset: str) -> None:
        """Read as a member of `group`. `reset` is the policy for partitions without a commit: "earliest" or "latest".

        Raises CommandError when the topic does not exist or the group's coordinator is offline, and UsageError if the
        user has set one of OWN_SETTINGS.
        """
        check_member_settings(self.connection.settings)
        offline_partitions = offline.offline_partitions_of(cluster.describe(self.client, [self.topic]))
        if coordinator_failure := offline.coordinator_failure(self.client, group):
            raise coordinator_failure
        self.report_offline(offline_partitions.get(self.topic, []))
        self.member = GroupMember(
            self.connection, self.client, group, self.topic, reset, committed_only=self.committed_only
        )

    def report_offline(self, offline_partitions: Sequence[int]) -> None:
        """Warn once about each offline partition, and no longer wait until it is read to its end."""
        reported = self.offline_by_topic.setdefault(self.topic, []) if offline_partitions else []
        new = [index for index in offline_partitions if index not in reported]
        reported += new
        for index in new:
            self.pending_ends.pop(index, None)
        offline.warn({self.topic: new} if new else {}, "They are not read; all other partitions are read.")

    def run(self, interrupted: Interrupts) -> None:
        """Print records until there is a reason to stop.

        Raises KeyboardInterrupt, and CommandError when some of the requested records could not be read.
        """
        started_s = time.monotonic()
        while not self.is_finished():
            if interrupted():
                raise KeyboardInterrupt
            self.step(interrupted, time.monotonic() - started_s)
        if self.until_end and self.offline_by_topic and self.remaining_records != 0:
            self.failures.append(f"{offline.partitions_text(self.offline_by_topic)} could not be read to the end")
        if self.remaining_records != 0:
            print_notes(self.open_transaction_notes(self.waiting_from))
        if failures := self.failures + self.unknown_starts():
            raise CommandError("; ".join(failures))

    def end_offsets(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset after the last record of each partition that has a leader. The last record may belong to an
        open transaction. Partitions whose offset cannot be listed are omitted.
        """
        from tidelog.client.operations import LATEST

        ends, _ = cluster.list_offsets(self.client, {(self.topic, number): LATEST for number in partitions})
        return {number: end for (_, number), end in ends.items()}

    def record_open_transactions(self, all_ends: Mapping[int, int], stable_ends: Mapping[int, int]) -> None:
        """Remember the partitions in which a transaction is open, for a note at the end.

        `stable_ends` contains the last stable offsets, and must be listed after `all_ends`. Then, if the offset of a
        partition is larger in `all_ends`, a transaction is open; a write between the two requests is not the cause.
        """
        self.waiting_from |= {
            number: stable_ends[number]
            for number, end in all_ends.items()
            if number in stable_ends and stable_ends[number] < end
        }

    def open_transaction_notes(self, waiting_from: Mapping[int, int]) -> list[str]:
        """Return a note that says why the last records of these partitions are not printed; an empty list if there
        are no partitions.
        """
        if not waiting_from:
            return []
        numbers = ranges(list(waiting_from))
        if len(waiting_from) == 1:
            hidden = f"offset {next(iter(waiting_from.values()))} and later offsets of partition {numbers} are"
        else:
            hidden = f"the last offsets of partitions {numbers} are"
        return [
            f"{hidden} not shown, because a transaction is open there. tidelog transaction describe-producers --topic"
            f" {name_text(self.topic)}:{numbers} --open shows its producer; with -X isolation.level=read_uncommitted,"
            " consume shows the records."
        ]

    def is_finished(self) -> bool:
        if self.remaining_records == 0:
            return True
        if self.member is not None:
            if self.member.unresolved:
                return False
            all_stopped = bool(self.member.seen or self.unknown_starts()) and not self.reader.positions
            return all_stopped or (self.until_end and self.member.assigned and not self.pending_ends)
        return not self.reader.positions or (self.until_end and not self.pending_ends)

    def unknown_starts(self) -> list[str]:
        """Return a line for each partition that is assigned to this member but is not read, because the offset where
        reading starts cannot be listed. Partitions that were reported as offline are left out.
        """
        if self.member is None:
            return []
        offline_partitions = self.offline_by_topic.get(self.topic, ())
        failures = self.member.unknown_starts.items()
        return [str(failure) for number, failure in failures if number not in offline_partitions]

    def step(self, interrupted: Interrupts, seconds: float) -> None:
        """Print the records of one fetch, or report why there are no records. `seconds` is the time since the start."""
        from tidelog.client.reader import Chunk

        if self.member is not None:
            self.follow_assignment(self.member)
        now_s = time.monotonic()
        wait_s = self.reader.due_in_s(now_s) if self.reader.positions else FETCH_WAIT_S
        if wait_s > 0:
            interrupted.call_interruptibly(lambda: time.sleep(min(wait_s, FETCH_WAIT_S)))
        with one_line_errors():
            events = interrupted.call_interruptibly(lambda: self.reader.poll(time.monotonic()))
        printed = False
        for event in events:
            if isinstance(event, Chunk):
                printed = self.print_chunk(event) or printed
            else:
                self.report_failure(event)
        self.report_outage()
        if printed:
            self.hint_shown = True
            self.offline_checked_s = seconds
            return
        self.sink.check()
        self.report_waiting(seconds)
        if self.pending_ends and seconds - self.offline_checked_s > OFFLINE_CHECK_S and not self.reader.unreachable():
            self.offline_checked_s = seconds
            offline_partitions = offline.find_offline_partitions(self.client, [self.topic]).get(self.topic, [])
            self.report_offline([index for index in offline_partitions if index in self.pending_ends])

    def print_chunk(self, chunk: "Chunk") -> bool:
        """Print the records of a chunk and, in a group, store the new position. Return whether anything was printed."""
        tp = chunk.partition
        end = self.pending_ends.get(tp.partition)
        # With `until_end`, only records before the end offset are printed.
        records = [r for r in chunk.records if not self.until_end or (end is not None and r.offset < end)]
        position = chunk.next_offset
        if self.remaining_records is not None and len(records) > self.remaining_records:
            records = records[: self.remaining_records]
            position = records[-1].offset + 1 if records else self.reader.positions.get(tp, position)
        if records:
            self.sink.write(
                [
                    IncomingRecord(
                        self.topic,
                        tp.partition,
                        record.offset,
                        record.timestamp if record.timestamp >= 0 else None,
                        record.key,
                        record.value,
                        record.headers,
                    )
                    for record in records
                ]
            )
            if self.remaining_records is not None:
                self.remaining_records -= len(records)
            if self.member is not None:
                position = min(position, end) if end is not None else position
                self.member.store(tp.partition, position)
        if end is not None and chunk.end_offset >= 0 and position >= min(end, chunk.end_offset):
            # Positions are compared, not offsets of records, because transaction markers and compaction leave offsets
            # without records.
            del self.pending_ends[tp.partition]
        return bool(records)

    def report_failure(self, event: "Skipped | Stopped") -> None:
        """Add a line to `failures` that says which records cannot be read. Print it on stderr if reading continues."""
        from tidelog.client.reader import Skipped

        tp = event.partition
        if isinstance(event, Skipped):
            records = "offset" if event.next_offset - event.first == 1 else "offsets"
            last = f" to {event.next_offset - 1}" if event.next_offset - event.first > 1 else ""
            line = f"{tp}: {records} {event.first}{last} cannot be read: {event.reason}"
            print(f"{line}. Reading continues.", file=sys.stderr)
        else:
            reason = event.reason
            if isinstance(reason, ValueError):
                remedy = f"tidelog consume {self.topic} -p {tp.partition} --offset N reads the records after the damage"
                line = f"{tp} is damaged at offset {event.offset}: {reason}; {remedy}"
            else:
                line = str(client_error(reason, f"topic {self.topic}, partition {tp.partition}"))
            if self.reader.positions:
                print(f"{line}. The other partitions are still read.", file=sys.stderr)
            self.pending_ends.pop(tp.partition, None)
        self.failures.append(line)

    def report_outage(self) -> None:
        """Print a message the first time that no broker can be reached. The command keeps trying."""
        if self.reader.unreachable() and not self.outage_reported:
            self.outage_reported = True
            print(NO_BROKER, file=sys.stderr)

    def report_waiting(self, seconds: float) -> None:
        """Print each reason for waiting once. Messages are printed only on a terminal, and only until the first
        record arrives.
        """
        if self.member is not None and not self.member.assigned:
            self.member.report_joining(seconds)
        elif not self.hint_shown and seconds > HINT_AFTER_S:
            self.hint_shown = True
            print(self.hint, file=sys.stderr)
            if self.committed_only and not self.reader.unreachable():
                self.report_open_transactions()

    def report_open_transactions(self) -> None:
        """Print a note if the command has reached an open transaction, and waits for its end."""
        from tidelog.client.operations import LATEST

        positions = {tp.partition: position for tp, position in self.reader.positions.items()}
        try:
            with one_line_errors():
                all_ends = self.end_offsets(positions)
                behind = {(self.topic, number): LATEST for number, end in all_ends.items() if positions[number] < end}
                stable_ends, _ = cluster.list_offsets(self.client, behind, committed=True)
        except CommandError:
            return  # `report_outage` reports brokers that cannot be reached, and reading continues
        print_notes(
            self.open_transaction_notes(
                {number: end for (_, number), end in stable_ends.items() if end <= positions[number] < all_ends[number]}
            )
        )

    def follow_assignment(self, member: "GroupMember") -> None:
        """Read exactly the partitions that the group has assigned to this member."""
        from tidelog.model.ids import TopicPartition

        member.poll()
        assigned = {TopicPartition(self.topic, number): start for number, start in member.starts.items()}
        for tp in [tp for tp in self.reader.positions if tp not in assigned]:
            del self.reader.positions[tp]
            self.pending_ends.pop(tp.partition, None)
        new = [tp for tp in assigned if tp not in self.reader.positions and tp.partition not in member.seen]
        if not new:
            if member.assigned and not member.starts and not member.unresolved and not member.unknown_starts:
                self.hint = f"Group {member.group} has a member for every partition; waiting for one to leave."
            return
        for tp in new:
            member.seen.add(tp.partition)
            self.reader.positions[tp] = assigned[tp]
        if self.until_end:
            from tidelog.client.operations import LATEST

            all_ends = self.end_offsets([tp.partition for tp in new]) if self.committed_only else {}
            keys = [(tp.topic, tp.partition) for tp in new]
            ends, failures = cluster.list_offsets(
                self.client, dict.fromkeys(keys, LATEST), committed=self.committed_only
            )
            self.record_open_transactions(all_ends, {number: end for (_, number), end in ends.items()})
            for (_, number), end in ends.items():
                if (
                    number not in self.offline_by_topic.get(self.topic, ())
                    and assigned[TopicPartition(self.topic, number)] < end
                ):
                    self.pending_ends[number] = end
            # The ends of offline partitions cannot be listed, and `run` reports these partitions.
            offline_partitions = self.offline_by_topic.get(self.topic, ())
            self.failures += [
                str(failure) for (_, number), failure in failures.items() if number not in offline_partitions
            ]

    def close(self) -> None:
        """Leave the group and commit the offsets of the printed records."""
        if self.member is not None:
            self.member.close()


OWN_SETTINGS = {
    "group.id": "the option --group names the group",
    "enable.auto.offset.store": "only the offsets of printed records are committed",
}
"""Settings of librdkafka that `GroupMember` needs for itself, each with the reason."""


def check_member_settings(settings: Mapping[str, str]) -> None:
    """Raise UsageError if the user has set one of OWN_SETTINGS. With another value, the member would read or commit the
    offsets of the wrong group, or commit nothing.
    """
    for name, reason in OWN_SETTINGS.items():
        if name in settings:
            raise UsageError(f"-X {name} cannot be used with --group: {reason}")


class GroupMember:
    """The membership of this process in a group. A consumer of librdkafka receives the partitions that the
    process reads, and commits the offsets.
    """

    def __init__(
        self,
        connection: ConnectionOptions,
        client: "Client",
        group: str,
        topic: str,
        reset: str,
        *,
        committed_only: bool,
    ) -> None:
        """`committed_only` says whether to wait for the end of open transactions that contain offsets of the group."""
        self.client = client
        self.group = group
        self.topic = topic
        self.reset = connection.settings.get("auto.offset.reset", reset)
        self.assigned = False
        """Whether the group has sent an assignment, even an empty assignment."""
        self.starts: dict[int, int] = {}
        """The offset where reading starts, by assigned partition."""
        self.unresolved: list[int] = []
        """Assigned partitions whose start is not known yet."""
        self.unknown_starts: dict[int, CommandError] = {}
        """Assigned partitions that are not read, because their start cannot be listed; with the reason."""
        self._committed_only = committed_only
        self._resolve_at_s = 0.0
        self._transaction_reported = False
        self.seen: set[int] = set()
        """Assigned partitions that are being read, or were read until they failed."""
        self._joining_reported = not sys.stderr.isatty()  # without a terminal, joining is never reported
        settings: dict[str, Any] = {
            "group.id": group,
            "enable.auto.commit": True,
            # The method `store` stores offsets instead, so that only offsets of printed records are committed.
            "enable.auto.offset.store": False,
        }
        self._consumer: Consumer = connection.consumer(settings)
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def poll(self) -> None:
        """Let librdkafka process group events. Raises CommandError for an error that is not temporary."""
        from confluent_kafka import KafkaError

        message = self._consumer.poll(0)
        if assignment := self._consumer.assignment():
            self._consumer.pause(assignment)  # because Tidelog's own client fetches the records
        error = message.error() if message is not None else None
        temporary_codes = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._PARTITION_EOF)
        if error is not None and not error.retriable() and error.code() not in temporary_codes:
            topic_is_unknown = error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
            raise kafka_error(error, f"topic {self.topic}" if topic_is_unknown else f"group {self.group}")
        if self.unresolved and time.monotonic() >= self._resolve_at_s:
            self._resolve()
            self._resolve_at_s = time.monotonic() + UNSTABLE_RETRY_S

    def _on_assign(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        self.assigned = True
        self.unresolved += [part.partition for part in partitions if part.topic == self.topic]
        self._resolve_at_s = 0.0

    def _on_revoke(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        for part in partitions:
            self.starts.pop(part.partition, None)
            self.unknown_starts.pop(part.partition, None)
            self.seen.discard(part.partition)
            if part.topic == self.topic and part.partition in self.unresolved:
                self.unresolved.remove(part.partition)

    def _resolve(self) -> None:
        """Find the offset where reading begins, for each partition in `unresolved`.

        This is the committed offset. If no offset is committed, the reset policy selects the earliest or the latest
        offset. Raises CommandError if this policy is "error". A partition whose offset cannot be listed is reported,
        and is not read until the group assigns it again: its error is in `unknown_starts`. While a transaction that
        contains an offset of a partition is open, the partition stays in `unresolved`, because a commit of the
        transaction changes the committed offset. If any other error prevents reading a committed offset, raises
        CommandError.
        """
        from tidelog.client.operations import EARLIEST, LATEST
        from tidelog.model.ids import TopicPartition
        from tidelog.wire.errors import ApiError, ErrorCode

        with one_line_errors():
            committed: Results[TopicPartition, int] | Failure
            if self._committed_only:
                committed = self.client.stable_offsets(self.group, self.topic, self.unresolved)
            else:
                committed = self.client.committed_offsets([self.group])[self.group]
            if isinstance(committed, Exception):
                raise client_error(committed, f"group {self.group}")
            unstable: list[int] = []
            uncommitted: list[tuple[str, int]] = []
            for number in self.unresolved:
                offset = committed.get(TopicPartition(self.topic, number))
                if offset is None:
                    uncommitted.append((self.topic, number))
                elif isinstance(offset, int):
                    self.starts[number] = offset
                elif isinstance(offset, ApiError) and offset.code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    unstable.append(number)
                else:
                    raise client_error(offset, f"group {self.group}, topic {self.topic}, partition {number}")
            if uncommitted and self.reset == "error":
                partitions = offline.partitions_text({self.topic: [number for _, number in uncommitted]})
                raise CommandError(
                    f"group {self.group} has no committed offset for {partitions}, and auto.offset.reset=error does not"
                    " select another offset; tidelog group reset-offsets sets a committed offset"
                )
            timestamp = EARLIEST if self.reset in ("earliest", "smallest", "beginning") else LATEST
            offsets, failures = cluster.list_offsets(self.client, dict.fromkeys(uncommitted, timestamp))
        self.unknown_starts |= {number: failure for (_, number), failure in failures.items()}
        print_notes([f"{failure}. The partition is not read." for failure in failures.values()])
        self.starts |= {number: offset for (_, number), offset in offsets.items()}
        self.unresolved = unstable
        if unstable and not self._transaction_reported:
            self._transaction_reported = True
            partitions = "partition" if len(unstable) == 1 else "partitions"
            print_notes(
                [
                    f"waiting for the end of a transaction that contains an offset of group {name_text(self.group)} for"
                    f" {partitions} {ranges(unstable)}. tidelog transaction list --state ongoing shows open"
                    " transactions; tidelog transaction abort ends one."
                ]
            )

    def store(self, partition: int, offset: int) -> None:
        """Let librdkafka commit `offset`, because the records before this offset have been printed.

        Raises CommandError if librdkafka refuses the offset.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        try:
            self._consumer.store_offsets(offsets=[TopicPartition(self.topic, partition, offset)])
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise kafka_error(
                    error, f"group {self.group}: the offset of a printed record is not committed"
                ) from error
            # The partition was revoked in the meantime, and another member will read these records again.

    def report_joining(self, seconds: float) -> None:
        if not self._joining_reported and seconds > JOINING_NOTICE_S:
            self._joining_reported = True
            print(f"Joining group {self.group}; a new group waits a few seconds for more members.", file=sys.stderr)

    def close(self) -> None:
        self._consumer.close()
