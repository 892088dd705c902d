"""The decision about a micro-batch, as the committed offsets of a group. Pure.

The group has no members. Its offsets are committed as if it read the topic `__consumer_offsets`. When a topic is
deleted, brokers forget its offsets. But `__consumer_offsets` exists wherever groups commit, and is not deleted in
normal use. Each offset is the number of the first micro-batch whose rows may still be written: the decided micro-batch
if it is PARTIAL, otherwise the micro-batch after it. The metadata of the offsets contains the decision, divided into
chunks: partition 0 has the first chunk. The offsets are committed in one transaction, so the chunks always belong
together.

The text of a decision is `COUNT TASKS STATE FORGOTTEN_BELOW EARLIER;`, and then for each of the COUNT transactions
`TASK,RECORDS,NAME,PRODUCER_ID,EPOCH,VERSION;`. Except COUNT and NAME, these words stand for fields of `Decision`,
`TaskTransaction` and `TransactionalProducer`. NAME is the transactional id without the prefix that all ids of the query
share. EARLIER is `-`, or ranges of numbers such as `0-6,9-9`.
"""

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from pyspark_tidelog.errors import WriteError
from tidelog.client.transactional_writes import CommittedOffset, TransactionalProducer
from tidelog.model.ids import TopicPartition

PREFIX = "tidelog-spark-"
"""Prefix of the group ids and the transactional ids of this sink."""
OFFSETS_TOPIC = "__consumer_offsets"
CHUNK_BYTES = 4096
"""Size of a chunk: Kafka's default of `offset.metadata.max.bytes`."""
CHUNK_BYTES_MIN = 64
NOTHING_DECIDED = -1
EARLIER_RANGES_MAX = 8
"""Upper bound on the number of ranges in `Decision.earlier`. If there are more, the lowest range is forgotten."""

_VERSION = 2
_HEADER = re.compile(rf"{_VERSION} (\d+);")
"""Beginning of the first chunk: the version of the format, and the number of chunks."""


class BatchIdentity(NamedTuple):
    """The query and the number of a micro-batch. Spark repeats a micro-batch with the same identity and the same
    rows.
    """

    query: str
    batch: int

    def __str__(self) -> str:
        return f"batch {self.batch} of query {self.query}"


class TaskTransaction(NamedTuple):
    """The transaction in which one task has written its rows."""

    task: int
    """Number of the task, which is the number of its Spark partition."""
    records: int
    producer: TransactionalProducer


class State(IntEnum):
    """What is known about the transactions of a decision. The values are stored."""

    DECIDED = 0
    """The transactions must be committed before anything else is decided. Their transactional ids must not be used
    again, because only the state that the coordinator has for an id shows whether the id's transaction is committed."""
    PARTIAL = 1
    """The transactions are committed. Other transactions of the micro-batch were aborted: the tasks of the aborted
    transactions must write again, before another micro-batch is decided."""
    FINISHED = 2
    """The transactions are committed, and they contain all rows of the micro-batch."""


class Decision(NamedTuple):
    """The newest decision of a query: only these `transactions` contain the rows of the micro-batch `batch`."""

    batch: int
    """NOTHING_DECIDED if there is no decision yet."""
    tasks: int = 0
    """Number of tasks of the micro-batch. Tasks without rows have no transaction."""
    transactions: tuple[TaskTransaction, ...] = ()
    state: State = State.DECIDED
    earlier: tuple[range, ...] = ()
    """Numbers of micro-batches that are written. All are below `batch`. The ranges are ascending and have gaps between
    them."""
    forgotten_below: int = 0
    """It is not known whether micro-batches with numbers below this number were written."""

    def covers(self, batch: int) -> bool:
        """Return whether no row of the micro-batch may be written any more: a later micro-batch is decided, or this one
        is decided and not PARTIAL.
        """
        return batch < self.batch or (batch == self.batch and self.state is not State.PARTIAL)

    def was_skipped(self, batch: int) -> bool:
        """Return whether the micro-batch, whose number is below `self.batch`, was certainly not written."""
        return self.forgotten_below <= batch and not any(batch in numbers for numbers in self.earlier)

    def next(self, batch: int, tasks: int, transactions: "tuple[TaskTransaction, ...]") -> "Decision":
        """Return a new decision in state DECIDED: about the next micro-batch, or again about one that is PARTIAL."""
        earlier, forgotten_below = list(self.earlier), self.forgotten_below
        if NOTHING_DECIDED < self.batch < batch and self.state is not State.PARTIAL:
            if earlier and earlier[-1].stop == self.batch:
                earlier[-1] = range(earlier[-1].start, self.batch + 1)
            else:
                earlier.append(range(self.batch, self.batch + 1))
        if len(earlier) > EARLIER_RANGES_MAX:
            forgotten_below = earlier.pop(0).stop
        return Decision(batch, tasks, transactions, State.DECIDED, tuple(earlier), forgotten_below)

    def written_tasks(self, batch: int) -> dict[int, int]:
        """Return the tasks that must not write again when the micro-batch is repeated, each with the number of its
        records. Call this only if `covers(batch)` is False.
        """
        return {each.task: each.records for each in self.transactions} if batch == self.batch else {}


def group_of(query: str) -> str:
    """Return the id of the group that stores the query's decisions. It is also the driver's transactional id."""
    return PREFIX + query


def task_id(query: str, worker: str, number: int) -> str:
    """Return a transactional id of a task. `worker` identifies a Python worker process."""
    return f"{PREFIX}{query}:{worker}:{number}"


def is_task_id(query: str, transactional_id: str) -> bool:
    return re.fullmatch(re.escape(PREFIX + query) + r":[0-9a-f]{12}:\d+", transactional_id) is not None


def encode(query: str, decision: Decision, chunk_bytes: int) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets that store the decision."""
    prefix_chars = len(PREFIX + query) + 1
    earlier = ",".join(f"{numbers.start}-{numbers.stop - 1}" for numbers in decision.earlier) or "-"
    summary = f"{len(decision.transactions)} {decision.tasks} {decision.state} {decision.forgotten_below} {earlier};"
    body = summary + "".join(
        f"{task},{records},{each.transactional_id[prefix_chars:]},{each.producer_id},{each.producer_epoch},"
        f"{each.version};"
        for task, records, each in decision.transactions
    )
    first_bytes = chunk_bytes - len(f"{_VERSION} {len(body)};")
    chunks = [body[:first_bytes], *(body[at : at + chunk_bytes] for at in range(first_bytes, len(body), chunk_bytes))]
    chunks[0] = f"{_VERSION} {len(chunks)};{chunks[0]}"
    offset = decision.batch if decision.state is State.PARTIAL else decision.batch + 1
    return {
        TopicPartition(OFFSETS_TOPIC, number): CommittedOffset(offset, chunk) for number, chunk in enumerate(chunks)
    }


def decode(query: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> Decision:
    """Return the decision that the offsets store. Raises WriteError if they are not a decision."""
    first = offsets.get(TopicPartition(OFFSETS_TOPIC, 0))
    if first is None:
        return Decision(NOTHING_DECIDED, state=State.FINISHED)
    header = _HEADER.match(first.metadata)
    if header is None:
        raise WriteError(_malformed(query, f"the metadata of its offset begins with {first.metadata[:40]!r}"))
    text = first.metadata[header.end() :]
    for number in range(1, int(header[1])):
        chunk = offsets.get(TopicPartition(OFFSETS_TOPIC, number))
        if chunk is None or chunk.offset != first.offset:
            raise WriteError(_malformed(query, f"chunk {number} of {header[1]} is missing"))
        text += chunk.metadata
    try:
        summary, *entries, _ = text.split(";")
        *numbers, earlier_text = summary.split(" ")
        count, tasks, state_value, forgotten_below = map(int, numbers)
        state, earlier = State(state_value), _ranges(earlier_text)
        transactions = tuple(_transaction(query, entry) for entry in entries)
    except ValueError:
        raise WriteError(_malformed(query, f"{text[:200]!r} is not a list of transactions")) from None
    if len(transactions) != count:
        raise WriteError(_malformed(query, f"it has {len(transactions)} of {count} transactions"))
    batch = first.offset if state is State.PARTIAL else first.offset - 1
    return Decision(batch, tasks, transactions, state, earlier, forgotten_below)


def _ranges(text: str) -> tuple[range, ...]:
    pairs = [part.split("-") for part in text.split(",")] if text != "-" else []
    return tuple(range(int(first), int(last) + 1) for first, last in pairs)


def _transaction(query: str, entry: str) -> TaskTransaction:
    task, records, name, producer_id, epoch, version = entry.split(",")
    producer = TransactionalProducer(f"{PREFIX}{query}:{name}", int(producer_id), int(epoch), int(version))
    return TaskTransaction(int(task), int(records), producer)


def _malformed(query: str, reason: str) -> str:
    return f"group {group_of(query)!r} does not hold a decision of the exactly-once sink: {reason}"
