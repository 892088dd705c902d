"""The transactions of a simulated cluster as their clients know them, and the checks of everything that read_committed
consumers receive. Each invariant has a name.

- `NoAbortedRead`: a consumer never receives a record of a transaction whose commit was not requested, or whose commit
  was refused (G1a of Adya's anomalies).
- `Atomicity`: at the end, consumers find all records of a transaction that was acknowledged as committed, and all or
  none if the outcome is unknown (G1b: also no part of a transaction).
- `ExactlyOnce`: no record of a transaction is at two offsets of a partition.
- `InTransactionOrder`: the records of one producer are in its order in each partition.
- `StableReads`: two read_committed consumers never find different records in one range of offsets.
- `NotAboveLastStableOffset`: no read_committed answer has a record at or above the last stable offset of this answer,
  which is not above the high watermark.
- `OldProducersAreFenced`: no commit of a producer is acknowledged that was requested after another producer with the
  same transactional id has been initialized.
- `OffsetsOfTransactions`: the committed offset of a group is the one that the last committed transaction says.
- `G1c`: no two transactions have read each other, see `list_append`.
- `ExactlyOnceChain`: the output of a consume-transform-produce chain has one record for each input record below the
  group's committed offset, and no other record.

Version 1 cannot keep all of this: a request EndTxn or TxnOffsetCommit, or a marker, that arrives late counts for a
later transaction of the same producer epoch (KIP-890 removes this). `is_exposed` says for which transactions this is
possible. In these transactions the following anomalies are counted by name, and are no violations. Jepsen found the
first three in Kafka; the others are their consequences for a chain.

- aborted read: `NoAbortedRead` does not hold.
- write loss: all records of a transaction are missing that was acknowledged as committed.
- torn transaction: some records of a transaction are missing.
- moved offset: a group is at an offset that an exposed transaction has sent, or that a late request of an earlier
  transaction has sent, or at the offset before these.
- lost result, repeated result, result without offset: the output does not have exactly one record for an input record
  that one of these transactions has processed.
- cycle of reads: `G1c` does not hold, and a transaction of the cycle was read before it requested its commit.

Everything else is demanded of version 1, too: `ExactlyOnce`, `InTransactionOrder`, `StableReads`,
`NotAboveLastStableOffset` and `OldProducersAreFenced` always, and the others for all other transactions, offsets and
input records.
"""

import enum
from collections.abc import Callable, Mapping, Sequence

from simulation_harness.cluster_ledger import Ledger, Violation
from simulation_harness.list_append import History, components, find_cycle, read_dependencies, write_dependencies
from tidelog.model.ids import TopicPartition

ABORTED_READ, WRITE_LOSS, TORN_TRANSACTION = "aborted read", "write loss", "torn transaction"
"""The anomalies of single transactions."""


class State(enum.Enum):
    """What a client knows about its transaction."""

    OPEN = "its commit was not requested"
    REQUESTED = "its commit was requested, and the outcome is unknown"
    COMMITTED = "it was acknowledged as committed"
    ABORTED = "its commit was refused"


class Attempt:
    """One transaction of a client."""

    def __init__(self, producer: str, number: int, version: int, began_s: float, group: str = "") -> None:
        """`group`: the transaction belongs to a chain that commits the offsets of this group."""
        self.producer = producer
        self.number = number
        self.version = version
        self.began_s = began_s
        self.group = group
        self.state = State.OPEN
        self.records: dict[TopicPartition, list[bytes]] = {}
        """The values of its records. When the commit is requested, all of them were acknowledged."""
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        """Offsets that the transaction commits, by group and partition, after its client has begun to send them."""
        self.inputs: dict[TopicPartition, range] = {}
        """The offsets that a chain has processed in the transaction, by partition."""
        self.has_late_offsets = False
        """Whether a request that commits its offsets may arrive late, in a later transaction of the same epoch."""
        self.reads: dict[TopicPartition, int] = {}
        """The exclusive end of the records that the transaction has read, for the checks of lists."""
        self.next_record = 0
        self.producer_id = self.epoch = -1
        self.may_be_hit_by_strays = False

    @property
    def name(self) -> str:
        return f"{self.producer}.{self.number}"

    def value(self, partition: TopicPartition, payload: str = "") -> bytes:
        """Return the value of the next record, which is written into `partition`."""
        value = f"{self.name}:{self.next_record}:{payload}".encode()
        self.next_record += 1
        self.records.setdefault(partition, []).append(value)
        return value


def attempt_of(value: bytes) -> tuple[str, int, str]:
    """Return the name of the transaction, the record's number in it, and the payload."""
    name, number, payload = value.decode().split(":", 2)
    return name, int(number), payload


class TransactionLedger:
    def __init__(self, ledger: Ledger, note: Callable[[str, str, str], None]) -> None:
        self.coverage = ledger.coverage
        self._repeated_markers = ledger.repeated_markers
        self._call_listener = ledger.call_listener
        self._note = note
        self._anomalies: dict[tuple[str, str], None] = {}
        """The names of the transactions that were hit by late requests, and of their anomalies."""
        self._attempts: dict[str, Attempt] = {}
        self._producer_ids: dict[str, int] = {}
        """The producer id of each process of a producer."""
        self._initialized_s: dict[str, dict[str, tuple[float, float]]] = {}
        """When each producer of a transactional id began to be initialized, and when this was confirmed."""
        self._values: dict[TopicPartition, dict[int, bytes]] = {}
        """Everything that read_committed consumers have found, by offset."""
        self._offsets: dict[TopicPartition, dict[bytes, int]] = {}
        self._read_before: dict[TopicPartition, int] = {}
        """The offset up to which some consumer has read the whole partition."""
        self._chains: dict[str, list[Attempt]] = {}
        """For each group the transactions that have sent offsets, in the order in which they have begun to send them.
        The offsets of those that were committed count in this order: a client sends them after it has found the offset
        of the transactions before, and gets no offset while another one is pending."""

    def begin(self, attempt: Attempt) -> None:
        self._attempts[attempt.name] = attempt
        if self._producer_ids.setdefault(attempt.producer, attempt.producer_id) != attempt.producer_id:
            self._producer_ids[attempt.producer] = attempt.producer_id
            self.coverage["producer ids used up"] += 1
        self.coverage[f"transactions of version {attempt.version}"] += 1

    def initialized(self, transactional_id: str, producer: str, began_s: float, now_s: float) -> None:
        self._initialized_s.setdefault(transactional_id, {})[producer] = began_s, now_s

    def send_offsets(self, attempt: Attempt, offsets: Mapping[TopicPartition, int]) -> None:
        """The client begins to send the offsets of its group that the transaction commits."""
        attempt.offsets = {(attempt.group, partition): offset for partition, offset in offsets.items()}
        self._chains.setdefault(attempt.group, []).append(attempt)

    def request_commit(self, attempt: Attempt) -> None:
        attempt.state = State.REQUESTED
        self._note("client", "ends", f"commit {attempt.name} {', '.join(map(str, attempt.records))}")

    def committed(self, attempt: Attempt, transactional_id: str, requested_s: float) -> None:
        attempt.state = State.COMMITTED
        self.coverage["transactions committed"] += 1
        self._note("client", "committed", f"{attempt.name} {', '.join(map(str, attempt.records))}")
        producers = self._initialized_s.get(transactional_id, {})
        _, own_confirmed_s = producers[attempt.producer]
        for producer, (began_s, confirmed_s) in producers.items():
            if own_confirmed_s < began_s and confirmed_s < requested_s:
                text = f"{attempt.name} was committed, requested at {requested_s}, {producer} began at {began_s}"
                raise Violation("OldProducersAreFenced", text)
        self._call_listener("commit")

    def refused(self, attempt: Attempt) -> None:
        """The commit was refused, and no earlier request may have succeeded."""
        attempt.state = State.ABORTED
        self.coverage["commits refused"] += 1
        self._note("client", "refused", f"{attempt.name} {', '.join(map(str, attempt.records))}")

    def is_exposed(self, attempt: Attempt) -> bool:
        """Whether a late request or marker may hit the transaction, because its version does not fence them."""
        return attempt.version == 1 and (
            attempt.may_be_hit_by_strays or (attempt.producer_id, attempt.epoch) in self._repeated_markers
        )

    # Reading

    def read(
        self,
        reader: str,
        partition: TopicPartition,
        start: int,
        next_offset: int,
        records: Sequence[tuple[int, bytes]],
    ) -> None:
        """Add the committed records that a consumer has found from `start` on, before `next_offset`."""
        values = self._values.setdefault(partition, {})
        read_before = self._read_before.get(partition, 0)
        known = {offset for offset in values if start <= offset < min(next_offset, read_before)} if values else set()
        for offset, value in records:
            if offset < read_before and offset not in known:
                raise Violation("StableReads", f"{partition} at {offset}: {reader} finds {value!r}", partition)
            known.discard(offset)
            if values.setdefault(offset, value) != value:
                text = f"{partition} at {offset} was {values[offset]!r}, and is {value!r}"
                raise Violation("StableReads", text, partition)
            self._check_value(partition, offset, value)
        if known:
            raise Violation("StableReads", f"{partition} at {min(known)}: {reader} finds no record", partition)
        if start <= read_before < next_offset:
            self._read_before[partition] = next_offset
        self.coverage["records of transactions read"] += len(records)

    def _check_value(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        name, _, _ = attempt_of(value)
        attempt = self._attempts[name]
        if attempt.state in (State.OPEN, State.ABORTED):
            text = f"{partition} at {offset}: {value!r}, {attempt.state.value}"
            self._violate_unless_exposed(attempt, "NoAbortedRead", ABORTED_READ, text, partition)
        known = self._offsets.setdefault(partition, {}).setdefault(value, offset)
        if known != offset:
            raise Violation("ExactlyOnce", f"{partition} has {value!r} at {known} and {offset}", partition)

    def _violate_unless_exposed(
        self, attempt: Attempt, invariant: str, anomaly: str, text: str, partition: TopicPartition
    ) -> None:
        """Raise the violation, or count each anomaly of a transaction once if late requests may have hit it."""
        if not self.is_exposed(attempt):
            raise Violation(invariant, f"{text} (version {attempt.version})", partition)
        if (attempt.name, anomaly) not in self._anomalies:
            self._anomalies[attempt.name, anomaly] = None
            self._count_anomaly(anomaly, text)

    def _count_anomaly(self, anomaly: str, text: str) -> None:
        self.coverage[f"anomalies of version 1: {anomaly}"] += 1
        self._note("client", "anomaly", f"{anomaly}: {text}")

    def check_offset(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Check a committed offset (-1: none) that was read while no transaction of the group was in progress."""
        possible, moved = [-1], [-1]
        movers = self._movers(group)
        for attempt in self._chains.get(group, []):
            own = attempt.offsets.get((group, partition))
            if own is None:
                continue
            if attempt.state is State.COMMITTED:
                possible = [own]
                if not self.is_exposed(attempt):
                    moved = []
            elif attempt.state is State.REQUESTED:
                possible.append(own)
            if attempt.state in (State.COMMITTED, State.REQUESTED) or attempt.name in movers:
                moved.append(own)
        if offset not in possible:
            text = f"{group} is at {offset} of {partition}, transactions say {possible}"
            if offset not in moved:
                raise Violation("OffsetsOfTransactions", f"{text}, late requests may have left {moved}", partition)
            self._count_anomaly("moved offset", text)
        self.coverage["offsets of transactions read"] += 1

    def _attempts_of(self, group: str) -> list[Attempt]:
        """Return the transactions of a chain."""
        return [attempt for attempt in self._attempts.values() if attempt.group == group]

    def _movers(self, group: str) -> dict[str, Attempt]:
        """Return the transactions of a chain, by name, after which the group's offset may be wrong: those that late
        requests may hit, and those whose late offsets may count in one of them.
        """
        attempts = self._attempts_of(group)
        epochs = {(attempt.producer_id, attempt.epoch) for attempt in attempts if self.is_exposed(attempt)}
        return {
            attempt.name: attempt
            for attempt in attempts
            if self.is_exposed(attempt) or (attempt.has_late_offsets and (attempt.producer_id, attempt.epoch) in epochs)
        }

    def check_everything(self, read: dict[TopicPartition, list[tuple[int, bytes]]]) -> None:
        """Check all records at the end, when no transaction is open any more."""
        places: dict[bytes, TopicPartition] = {}
        for partition, records in read.items():
            last: dict[str, tuple[int, int]] = {}
            for offset, value in records:
                places[value] = partition
                name, number, _ = attempt_of(value)
                attempt = self._attempts[name]
                order = attempt.number, number
                if order <= last.get(attempt.producer, (-1, -1)):
                    text = f"{partition} at {offset} has {value!r} after {last[attempt.producer]}"
                    raise Violation("InTransactionOrder", text, partition)
                last[attempt.producer] = order
        for attempt in self._attempts.values():
            expected = [(value, partition) for partition, values in attempt.records.items() for value in values]
            missing = [(value, partition) for value, partition in expected if places.get(value) != partition]
            if not missing or not expected:
                continue
            is_whole = len(missing) == len(expected) and attempt.state is not State.COMMITTED
            if not is_whole and attempt.state is not State.OPEN:
                value, partition = missing[0]
                text = (
                    f"{attempt.name}: {attempt.state.value}, {len(missing)} of {len(expected)} are missing: {value!r}"
                )
                anomaly = WRITE_LOSS if len(missing) == len(expected) else TORN_TRANSACTION
                self._violate_unless_exposed(attempt, "Atomicity", anomaly, f"{text} in {partition}", partition)
        unknown = [attempt for attempt in self._attempts.values() if attempt.state is State.REQUESTED]
        self.coverage["transactions of unknown outcome"] += len(unknown)
        self.coverage["transactions exposed to late requests"] += sum(
            self.is_exposed(attempt) for attempt in self._attempts.values()
        )

    def check_lists(self, read: dict[TopicPartition, list[tuple[int, bytes]]]) -> None:
        """Look for cycles among the transactions that have appended to lists, see `list_append`."""
        lists = {
            partition: [(offset, attempt_of(value)[0]) for offset, value in records]
            for partition, records in read.items()
        }
        names = {name: None for records in lists.values() for _, name in records}
        history = History(lists, {name: self._attempts[name].reads for name in names})
        self.coverage["transactions of lists"] += len(names)
        writes, reads = write_dependencies(history), read_dependencies(history)
        self.coverage["cycles of writes"] += len(components(writes))
        both = {name: {**writes[name], **reads[name]} for name in writes}
        for component in components(both):
            if any(other in component for name in component for other in reads[name]):
                self.coverage["cycles of writes and reads"] += 1
        early = {name for name in names if (name, ABORTED_READ) in self._anomalies}
        cycle = find_cycle({name: reads[name] for name in reads if name not in early})
        if cycle:
            raise Violation("G1c", f"transactions have read each other: {', '.join(cycle)}")
        cycle = find_cycle(reads)
        if cycle:
            self._count_anomaly("cycle of reads", ", ".join(cycle))

    def check_chain(
        self,
        group: str,
        committed: dict[TopicPartition, int],
        read: dict[TopicPartition, list[tuple[int, bytes]]],
        output_topic: str,
    ) -> None:
        """Compare the output of a chain with its input, as far as the group's offsets say that it was processed."""
        outputs: dict[str, list[Attempt]] = {}
        for partition, records in read.items():
            if partition.topic == output_topic:
                for _, value in records:
                    name, _, payload = attempt_of(value)
                    outputs.setdefault(payload, []).append(self._attempts[name])
        expected = {
            f"{partition}@{offset}": None
            for partition, end in committed.items()
            for offset, _ in read[partition]
            if offset < end
        }
        exposed = {
            f"{partition}@{offset}"
            for attempt in self._movers(group).values()
            for partition, offsets in attempt.inputs.items()
            for offset in offsets
        }
        wrong = []
        for source in {**expected, **dict.fromkeys(outputs)}:
            writers, is_below = outputs.get(source, []), source in expected
            if is_below and len(writers) == 1:
                continue
            text = f"{source}: {len(writers)} times" if is_below else f"{source} is above the committed offset"
            # Late requests do not take the offset back behind a committed transaction that they cannot hit.
            certain_count = sum(not self.is_exposed(attempt) for attempt in writers)
            if source not in exposed or certain_count > (1 if is_below else 0):
                wrong.append(text)
            elif not is_below:
                self._count_anomaly("result without offset", text)
            else:
                self._count_anomaly("repeated result" if writers else "lost result", text)
        version = next((attempt.version for attempt in self._attempts_of(group)), 0)
        self.coverage[f"records of chains of version {version}"] += len(expected)
        self.coverage["records of chains exposed to late requests"] += sum(source in exposed for source in expected)
        if wrong:
            raise Violation("ExactlyOnceChain", f"{output_topic}: {', '.join(sorted(wrong)[:5])}")
