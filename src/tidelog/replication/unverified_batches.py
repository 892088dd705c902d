"""Transactional batches that wait until the coordinator has confirmed that the partition belongs to their transaction.

Only the first batch of a transaction in a partition waits, together with the batches that the same producer sends
before the wait has ended. The batches of all other producers are appended meanwhile.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.validation import NotInline
from tidelog.replication.verification import Verification, has_open_transaction, marker_of_lost_end
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import ApiError, ErrorCode, NotLeaderOrFollower, OutOfOrderSequenceNumber

if TYPE_CHECKING:
    from tidelog.log.appended import Appended
    from tidelog.replication.append_queue import OutcomeListener, QueuedBytes
    from tidelog.replication.partition import Partition
    from tidelog.runtime.interfaces import Tasks

logger = logging.getLogger("tidelog.partition")

ACKS_ALL = -1
REFUSED_MAX = 1_000
"""Maximum number of producers for which a partition remembers a refused batch."""
RETRIED_ERRORS = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""Errors after which producers send the batch again."""

Ask = Callable[[], Awaitable[None]]
"""Asks the coordinator about the partition. Raises an ApiError if the batches must be refused with this error."""


class Inquiry(NamedTuple):
    """The question to the coordinator before a batch is appended."""

    question: Hashable
    """Batches with equal questions get the same answer."""
    ask: Ask
    has_version_2: bool
    """Whether the producer has transaction version 2. In this version, each transaction has an epoch of its own, so its
    first batch in the partition has the sequence number 0."""


class _Waiting(NamedTuple):
    batch: bytearray
    inquiry: Inquiry
    done: "OutcomeListener"


class UnverifiedBatches:
    """The waiting batches of one partition; usually empty. All methods are called on the event loop."""

    __slots__ = ("_partition", "_queued_bytes", "_refused", "_tasks", "_waiting")

    def __init__(self, partition: "Partition", tasks: "Tasks", queued_bytes: "QueuedBytes") -> None:
        self._partition = partition
        self._tasks = tasks
        self._queued_bytes = queued_bytes
        self._waiting: dict[int, deque[_Waiting]] = {}
        """The waiting batches of each producer id, in the order of their arrival."""
        self._refused: dict[int, tuple[int, int]] = {}
        """By producer id: the epoch and the lowest base sequence of batches that were refused and may be sent again."""

    def must_wait(self, header: BatchHeader) -> bool:
        """Return whether the batch of a transaction must be passed to `add`. This is so if earlier batches of its
        producer wait, or if the partition has no records of an open transaction of this producer and epoch.
        """
        return header.producer_id in self._waiting or not has_open_transaction(
            self._partition, header.producer_id, header.producer_epoch
        )

    def add(self, batch: memoryview, header: BatchHeader, inquiry: Inquiry, done: "OutcomeListener") -> None:
        """Append the batch when the coordinator has confirmed the partition. `done` is called later with the result.

        Raises RequestTimedOut if too many bytes wait already, and the errors of `Partition.check_writable`.
        """
        try:
            self._partition.check_writable(ACKS_ALL)
            self._queued_bytes.reserve(len(batch))
        except ApiError as error:
            if error.code in RETRIED_ERRORS:
                self._remember_refused(header)
            raise
        item = _Waiting(bytearray(batch), inquiry, done)
        waiting = self._waiting.get(header.producer_id)
        if waiting is not None:
            waiting.append(item)
            return
        waiting = self._waiting[header.producer_id] = deque([item])
        name = f"verify-{self._partition.topic}-{self._partition.index}"
        self._tasks.spawn(self._verify_all(header.producer_id, waiting), name=name)

    async def _verify_all(self, producer_id: int, waiting: deque[_Waiting]) -> None:
        """Verify and append the waiting batches of one producer, until there are none."""
        error: ApiError | None = None
        try:
            while waiting:
                item = waiting[0]
                header = BatchHeader(item.batch)
                error = None if self._continues_transaction(header) else await self._verify(header, item.inquiry)
                if error is None:
                    self._append(waiting, header)
                    continue
                # Waiting batches of the same transaction are refused, too, so that the order of the batches does not
                # change.
                if error.code in RETRIED_ERRORS:
                    self._remember_refused(header)
                while waiting and waiting[0].inquiry.question == item.inquiry.question:
                    self._remove_first(waiting)(error)
        finally:  # if the broker stops, some batches may still wait
            del self._waiting[producer_id]
            while waiting:
                self._remove_first(waiting)(NotLeaderOrFollower("the broker stops"))

    async def _verify(self, header: BatchHeader, inquiry: Inquiry) -> ApiError | None:
        """Return the error with which the batch must be refused, or None if it may be appended."""
        try:
            verification = Verification(self._partition, header.producer_id, header.producer_epoch)
        except ApiError as refusal:
            return refusal
        try:
            await inquiry.ask()
            verification.check()
        except ApiError as refusal:
            return refusal
        finally:
            verification.end()
        return self._check_sequence(header, inquiry)

    def _check_sequence(self, header: BatchHeader, inquiry: Inquiry) -> ApiError | None:
        """Return an error for a batch that overtakes an earlier batch, which was refused and will be sent again.

        The log itself cannot notice this if it has no batch of the producer yet.
        """
        if inquiry.has_version_2 and header.base_sequence > 0 and not self._is_known(header):
            return OutOfOrderSequenceNumber(
                f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence {header.base_sequence} "
                "first; with transaction version 2, the first sequence in a partition must be 0"
            )
        refused = self._refused.get(header.producer_id)
        if refused is None:
            return None
        epoch, sequence = refused
        if header.producer_epoch == epoch and header.base_sequence > sequence and not self._has_batches_of(header):
            return OutOfOrderSequenceNumber(
                f"producer {header.producer_id} epoch {epoch} sent sequence {header.base_sequence}, expected {sequence}"
            )
        del self._refused[header.producer_id]
        return None

    def _remember_refused(self, header: BatchHeader) -> None:
        """Remember a refused batch that will be sent again, so that `_check_sequence` refuses later batches."""
        # The entry is removed and added again, so that the entries are in the order of their last refusals.
        epoch, sequence = self._refused.pop(header.producer_id, (header.producer_epoch, header.base_sequence))
        if epoch != header.producer_epoch or header.base_sequence < sequence:
            epoch, sequence = header.producer_epoch, header.base_sequence
        self._refused[header.producer_id] = epoch, sequence
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def _is_known(self, header: BatchHeader) -> bool:
        """Return whether the log has a batch of the producer, with any epoch."""
        entry = self._partition.log.producers.entries.get(header.producer_id)
        return entry is not None and bool(entry.batches)

    def _has_batches_of(self, header: BatchHeader) -> bool:
        """Return whether the log knows the next sequence of this producer and epoch."""
        entry = self._partition.log.producers.entries.get(header.producer_id)
        return entry is not None and entry.epoch == header.producer_epoch and entry.next_sequence > 0

    def _continues_transaction(self, header: BatchHeader) -> bool:
        return has_open_transaction(self._partition, header.producer_id, header.producer_epoch)

    def _remove_first(self, waiting: deque[_Waiting]) -> "OutcomeListener":
        item = waiting.popleft()
        self._queued_bytes.total -= len(item.batch)
        return item.done

    def _append(self, waiting: deque[_Waiting], header: BatchHeader) -> None:
        """Append the first waiting batch. Batches that arrive during the call wait behind the waiting ones."""
        batch = waiting[0].batch
        done = self._remove_first(waiting)
        outcome: Appended | ApiError | None
        try:
            outcome = self._append_or_queue(memoryview(batch), header, done)
        except ApiError as error:
            outcome = error
        except Exception as error:  # the client needs an answer, and the batches behind this one must be appended
            logger.exception("batch not appended partition=%s-%d", self._partition.topic, self._partition.index)
            outcome = ApiError(f"the batch could not be appended: {error!r}")
        if outcome is not None:
            done(outcome)

    def _append_or_queue(self, batch: memoryview, header: BatchHeader, done: "OutcomeListener") -> "Appended | None":
        """Append the batch. Returns None if it has to wait in the partition's queue; in this case `done` is called
        later. Raises ApiError.
        """
        partition = self._partition
        marker = marker_of_lost_end(partition, header.producer_id, header.producer_epoch, partition.wall_ms())
        if marker is not None:
            partition.append_batch(marker)
        if not partition.appends_directly:
            partition.check_writable(ACKS_ALL)
            return partition.queue.append(batch, header, done)
        try:
            return partition.append(batch, header)
        except NotInline:
            partition.queue.examine(batch, done)
            return None
