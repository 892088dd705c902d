"""Batches of transactions that wait until the transaction's coordinator has confirmed that the partition belongs to it.

Only the first batch of a transaction in a partition waits, and the batches that the same producer sends behind it. The
batches of all other producers are appended meanwhile.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tidelog.log.validation import NotInline
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import ApiError, ErrorCode, NotLeaderOrFollower

if TYPE_CHECKING:
    from tidelog.log.appended import Appended
    from tidelog.replication.append_queue import Outcome, QueuedBytes
    from tidelog.replication.partition import Partition
    from tidelog.runtime.interfaces import Tasks

ACKS_ALL = -1
Ask = Callable[[], Awaitable[None]]
"""Asks the coordinator. Raises the ApiError with which the batches are refused."""


class UnverifiedBatches:
    """The waiting batches of one partition; usually empty. All methods are called on the event loop."""

    __slots__ = ("_bytes", "_partition", "_tasks", "_waiting")

    def __init__(self, partition: "Partition", tasks: "Tasks", queued_bytes: "QueuedBytes") -> None:
        self._partition = partition
        self._tasks = tasks
        self._bytes = queued_bytes
        self._waiting: dict[int, list[tuple[bytearray, Outcome]]] = {}
        """By producer id, in the order of their arrival."""

    def must_wait(self, header: BatchHeader) -> bool:
        """Return whether the batch of a transaction must be passed to `add`.

        That is so unless it continues the transaction that the partition has records of.
        """
        if header.producer_id in self._waiting:
            return True
        entry = self._partition.log.producers.entries.get(header.producer_id)
        return entry is None or entry.transaction_start < 0 or entry.epoch != header.producer_epoch

    def add(self, batch: memoryview, header: BatchHeader, ask: Ask, done: "Outcome") -> None:
        """Append the batch when the coordinator has confirmed it. `done` is called later with the result.

        Raises RequestTimedOut if too many bytes wait already.
        """
        self._bytes.reserve(len(batch))
        waiting = self._waiting.get(header.producer_id)
        if waiting is not None:
            waiting.append((bytearray(batch), done))
            return
        self._waiting[header.producer_id] = [(bytearray(batch), done)]
        name = f"verify-{self._partition.topic}-{self._partition.index}"
        self._tasks.spawn(self._verify(header.producer_id, ask), name=name)

    async def _verify(self, producer_id: int, ask: Ask) -> None:
        partition, producers = self._partition, self._partition.log.producers
        leader_epoch = partition.leader_epoch
        verification = producers.begin_verification(producer_id)
        error: ApiError | None = NotLeaderOrFollower("the broker stops")
        try:
            await ask()
            error = None
            if partition.leader_epoch != leader_epoch or partition.log.producers is not producers:
                error = NotLeaderOrFollower(f"the leader epoch of {partition.topic}-{partition.index} has ended")
            elif not producers.is_verification_valid(producer_id, verification):
                # The coordinator may have confirmed a transaction that has ended since.
                error = ApiError("the transaction has ended meanwhile", ErrorCode.INVALID_TXN_STATE)
        except ApiError as refusal:
            error = refusal
        finally:
            producers.end_verification(producer_id, verification)
            for batch, done in self._waiting.pop(producer_id):
                self._bytes.total -= len(batch)
                if error is None:
                    self._append(batch, done)
                else:
                    done(error)

    def _append(self, batch: bytearray, done: "Outcome") -> None:
        partition = self._partition
        outcome: Appended | ApiError | None
        try:
            if partition.appends_directly:
                outcome = partition.append(memoryview(batch), BatchHeader(batch))
            else:
                partition.check_writable(ACKS_ALL)
                outcome = partition.queue.append(memoryview(batch), BatchHeader(batch), done)
        except NotInline:
            partition.queue.examine(memoryview(batch), done)
            return
        except ApiError as error:
            outcome = error
        if outcome is not None:
            done(outcome)
