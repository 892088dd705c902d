"""How `tidelog consume` reads: from chosen offsets or as a member of a group, until there is a reason to stop.

Our own client fetches, so that no record hides another: librdkafka cuts and refuses header keys that are no C strings.
In a group librdkafka is the member: it joins, is assigned partitions, and commits; it fetches nothing.
"""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.cli import cluster, offline
from tidelog.cli.connection import ConnectionOptions, client_error, in_one_line, kafka_error
from tidelog.cli.errors import CommandError
from tidelog.cli.interrupts import Interrupts
from tidelog.cli.records import IncomingRecord

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

    from tidelog.client.blocking import Client
    from tidelog.client.reader import Chunk, Skipped, Stopped

WAIT_S = 0.1
QUIET_S = 2.0
LOOK_S = 5.0
"""Silence after which it is looked whether partitions have gone offline."""
JOINING_S = 0.5
"""After so long a terminal is told what is being waited for: records, or partitions of a group."""
FETCH_BYTES_MAX = 16 << 20
PARTITION_BYTES_MAX = 1 << 20
"""Of one answer; a single batch that is larger comes whole all the same."""


class RecordSink(Protocol):
    def check(self) -> None: ...

    def write(self, records: Sequence[IncomingRecord]) -> None: ...


class TopicReader:
    """Reads until Ctrl-C, the limit of records, or the ends that were there when it began."""

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
        self.left = records_max
        self.until_end = until_end
        self.open: dict[int, int] = {}
        """Partitions whose end (exclusive) has not been reached yet. Only with `until_end`."""
        self.committed_only = connection.settings.get("isolation.level", "read_committed") == "read_committed"
        limits = FetchLimits(
            round(WAIT_S * 1000),
            max_bytes=FETCH_BYTES_MAX,
            partition_max_bytes=PARTITION_BYTES_MAX,
            isolation=READ_COMMITTED if self.committed_only else READ_UNCOMMITTED,
        )
        check_crcs = connection.settings.get("check.crcs", "true") != "false"
        self.reader = Reader(client, limits, Backoff(), check_crcs=check_crcs)
        self.member: GroupMember | None = None
        self.failures: list[str] = []
        """What could not be read, of what was asked for."""
        self.missing: dict[str, list[int]] = {}
        """Partitions that should be read, and are offline."""
        self.looked_s = 0.0
        self.told_outage = False
        self.hint = f"Waiting for new records in {topic}; Ctrl-C stops."
        self.hinted = not (sys.stderr.isatty() and sys.stdout.isatty())

    def join(self, group: str, reset: str) -> None:
        """Read as a member of `group`; where it has no commit yet, from the beginning or from now on."""
        gone = offline.offline_of(cluster.describe(self.client, [self.topic]))
        if lost := offline.coordinator_is_offline(self.client, group):
            raise lost
        self.note_offline(gone.get(self.topic, []))
        self.member = GroupMember(self.connection, self.client, group, self.topic, reset)

    def note_offline(self, gone: Sequence[int]) -> None:
        """Say once of each partition that it cannot be read, and do not wait for its end."""
        known = self.missing.setdefault(self.topic, []) if gone else []
        new = [index for index in gone if index not in known]
        known += new
        for index in new:
            self.open.pop(index, None)
        offline.warn({self.topic: new} if new else {}, "What is there is not read, what the others have is.")

    def run(self, interrupted: Interrupts) -> None:
        """Print records until there is a reason to stop. Raises KeyboardInterrupt, and CommandError when the end that
        was asked for could not be reached everywhere.
        """
        began = time.monotonic()
        while not self.finished():
            if interrupted():
                raise KeyboardInterrupt
            self.step(interrupted, time.monotonic() - began)
        if self.until_end and self.missing and self.left != 0:
            self.failures.append(f"{offline.named(self.missing)} could not be read to the end")
        if self.failures:
            raise CommandError("; ".join(self.failures))

    def finished(self) -> bool:
        if self.left == 0:
            return True
        if self.member is not None:
            all_stopped = bool(self.member.known) and not self.reader.positions
            return all_stopped or (self.until_end and self.member.assigned and not self.open)
        return not self.reader.positions or (self.until_end and not self.open)

    def step(self, interrupted: Interrupts, seconds: float) -> None:
        """Print what has come, `seconds` after the beginning, or say why nothing has."""
        from tidelog.client.reader import Chunk

        if self.member is not None:
            self.follow(self.member)
        now_s = time.monotonic()
        wait_s = self.reader.due_in_s(now_s) if self.reader.positions else WAIT_S
        if wait_s > 0:
            interrupted.during(lambda: time.sleep(min(wait_s, WAIT_S)))
        with in_one_line():
            events = interrupted.during(lambda: self.reader.poll(time.monotonic()))
        printed = False
        for event in events:
            if isinstance(event, Chunk):
                printed = self.take(event) or printed
            else:
                self.fail(event)
        self.tell_outage()
        if printed:
            self.hinted = True
            self.looked_s = seconds
            return
        self.sink.check()
        self.say_what_it_waits_for(seconds)
        if self.open and seconds - self.looked_s > LOOK_S and not self.reader.unreachable():
            self.looked_s = seconds
            gone = offline.look_for_offline(self.client, [self.topic]).get(self.topic, [])
            self.note_offline([index for index in gone if index in self.open])

    def take(self, chunk: "Chunk") -> bool:
        """Print, then remember how far; whether there was something to print."""
        place = chunk.partition
        end = self.open.get(place.partition)
        # What was written after we began is beyond the end that was asked for.
        records = [r for r in chunk.records if not self.until_end or (end is not None and r.offset < end)]
        position = chunk.next_offset
        if self.left is not None and len(records) > self.left:
            records = records[: self.left]
            position = records[-1].offset + 1 if records else self.reader.positions.get(place, position)
        if records:
            self.sink.write(
                [
                    IncomingRecord(
                        self.topic,
                        place.partition,
                        record.offset,
                        record.timestamp if record.timestamp >= 0 else None,
                        record.key,
                        record.value,
                        record.headers,
                    )
                    for record in records
                ]
            )
            if self.left is not None:
                self.left -= len(records)
            if self.member is not None:
                position = min(position, end) if end is not None else position
                self.member.store(place.partition, position)
        if end is not None and chunk.end_offset >= 0 and position >= min(end, chunk.end_offset):
            # Markers of transactions and compaction take offsets without being records.
            del self.open[place.partition]
        return bool(records)

    def fail(self, event: "Skipped | Stopped") -> None:
        """Say what of a partition cannot be read, on stderr and, as it was asked for, in the end."""
        from tidelog.client.reader import Skipped

        place = event.partition
        if isinstance(event, Skipped):
            records = "offset" if event.next_offset - event.first == 1 else "offsets"
            last = f" to {event.next_offset - 1}" if event.next_offset - event.first > 1 else ""
            line = f"{place}: {records} {event.first}{last} cannot be read: {event.reason}"
            print(f"{line}. Reading goes on behind.", file=sys.stderr)
        else:
            reason = event.reason
            if isinstance(reason, ValueError):
                where = f"tidelog consume {self.topic} -p {place.partition} --offset N reads behind the damage"
                line = f"{place} is damaged at offset {event.offset}: {reason}; {where}"
            else:
                line = str(client_error(reason, f"topic {self.topic}, partition {place.partition}"))
            if self.reader.positions:
                print(f"{line}. Reading goes on elsewhere.", file=sys.stderr)
            self.open.pop(place.partition, None)
        self.failures.append(line)

    def tell_outage(self) -> None:
        """Say once that it goes on trying while no broker answers."""
        if self.reader.unreachable() and not self.told_outage:
            self.told_outage = True
            print("No broker can be reached any more; still trying. Ctrl-C stops.", file=sys.stderr)

    def say_what_it_waits_for(self, seconds: float) -> None:
        """Each reason once, and to a terminal only; records that come make it plain that all is well."""
        if self.member is not None and not self.member.assigned:
            self.member.tell_joining(seconds)
        elif not self.hinted and seconds > QUIET_S:
            self.hinted = True
            print(self.hint, file=sys.stderr)

    def follow(self, member: "GroupMember") -> None:
        """Read the partitions that the group has given us by now, and no others."""
        from tidelog.model.ids import TopicPartition

        member.poll()
        wanted = {TopicPartition(self.topic, number): start for number, start in member.starts.items()}
        for place in [place for place in self.reader.positions if place not in wanted]:
            del self.reader.positions[place]
            self.open.pop(place.partition, None)
        new = [place for place in wanted if place not in self.reader.positions and place.partition not in member.known]
        if not new:
            if member.assigned and not member.starts and self.member is not None:
                self.hint = f"Group {member.group} has a member for every partition; waiting for one to leave."
            return
        for place in new:
            member.known.add(place.partition)
            self.reader.positions[place] = wanted[place]
        if self.until_end:
            from tidelog.client.operations import LATEST

            places = [(place.topic, place.partition) for place in new]
            ends, failures = cluster.list_offsets(
                self.client, dict.fromkeys(places, LATEST), committed=self.committed_only
            )
            for (_, number), end in ends.items():
                if number not in self.missing.get(self.topic, ()) and wanted[TopicPartition(self.topic, number)] < end:
                    self.open[number] = end
            self.failures += [f"{failure}" for failure in failures.values() if not self.missing]

    def close(self) -> None:
        """Leave the group, committing what was printed."""
        if self.member is not None:
            self.member.close()


class GroupMember:
    """Our place in a group, by librdkafka: which partitions are ours, and what we commit."""

    def __init__(self, connection: ConnectionOptions, client: "Client", group: str, topic: str, reset: str) -> None:
        self.client = client
        self.group = group
        self.topic = topic
        self.reset = connection.settings.get("auto.offset.reset", reset)
        self.assigned = False
        """Whether the group has said which partitions are ours, if any."""
        self.starts: dict[int, int] = {}
        """Our partitions, and where reading begins in each."""
        self.known: set[int] = set()
        """Those of them that are being read, or were until they failed."""
        self._told_joining = not sys.stderr.isatty()
        settings: dict[str, Any] = {
            "group.id": group,
            "enable.auto.commit": True,
            "enable.auto.offset.store": False,  # what is committed has been printed
        }
        self._consumer: Consumer = connection.consumer(settings)
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def poll(self) -> None:
        """Let librdkafka tell of the group. Raises CommandError for an error that lasts."""
        from confluent_kafka import KafkaError

        message = self._consumer.poll(0)
        if paused := self._consumer.assignment():
            self._consumer.pause(paused)  # our own client fetches
        error = message.error() if message is not None else None
        passing = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._PARTITION_EOF)
        if error is not None and not error.retriable() and error.code() not in passing:
            unknown = error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
            raise kafka_error(error, f"topic {self.topic}" if unknown else f"group {self.group}")

    def _on_assign(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        self.assigned = True
        self.starts |= self._starts([part.partition for part in partitions if part.topic == self.topic])

    def _on_revoke(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        for part in partitions:
            self.starts.pop(part.partition, None)
            self.known.discard(part.partition)

    def _starts(self, numbers: list[int]) -> dict[int, int]:
        """Where the group has committed, or else where --from-beginning says."""
        from tidelog.client.operations import EARLIEST, LATEST
        from tidelog.model.ids import TopicPartition

        if not numbers:
            return {}
        with in_one_line():
            committed = self.client.committed([self.group])[self.group]
            if isinstance(committed, Exception):
                raise client_error(committed, f"group {self.group}")
            found: dict[int, int] = {}
            for number in numbers:
                offset = committed.get(TopicPartition(self.topic, number))
                if isinstance(offset, int):
                    found[number] = offset
            others = [(self.topic, number) for number in numbers if number not in found]
            timestamp = EARLIEST if self.reset in ("earliest", "smallest", "beginning") else LATEST
            offsets, failures = cluster.list_offsets(self.client, dict.fromkeys(others, timestamp))
        for failure in failures.values():
            print(f"Note: {failure}", file=sys.stderr)
        return found | {number: offset for (_, number), offset in offsets.items()}

    def store(self, partition: int, offset: int) -> None:
        """What comes before `offset` has been printed, and may be committed."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            self._consumer.store_offsets(offsets=[TopicPartition(self.topic, partition, offset)])
        except KafkaException:
            return  # the group has taken the partition away meanwhile: another member reads these records again

    def tell_joining(self, seconds: float) -> None:
        if not self._told_joining and seconds > JOINING_S:
            self._told_joining = True
            print(f"Joining {self.group}: a new group waits a few seconds for more members.", file=sys.stderr)

    def close(self) -> None:
        self._consumer.close()
