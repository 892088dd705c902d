"""The state of each producer id in a partition: epoch, the last five batches, the open transaction. Pure.

The rules are those of Kafka 4.3 (KIP-98, KIP-360). If a producer sends one of its last five batches again, the batch
is not appended again, and the response has the offsets of the first append. If the producer and its epoch are known, a
new batch must begin with the sequence that follows the last record's sequence. A new epoch begins at sequence 0. An
unknown or forgotten producer id may begin at any sequence. Sequences wrap from 2^31-1 to 0.
"""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.transaction_index import AbortedTransaction
from tidelog.wire.batches import ABORT, CONTROL_BIT, TRANSACTIONAL_BIT
from tidelog.wire.errors import ApiError, ErrorCode, InvalidProducerEpoch, OutOfOrderSequenceNumber

if TYPE_CHECKING:
    from tidelog.wire.batches import BatchHeader

BATCHES_MAX = 5
"""Number of last batches that are stored for each producer, as in Kafka. A batch that is sent again is recognized if it
is one of them."""
SEQUENCE_MAX = (1 << 31) - 1
NO_SEQUENCE = -1
PRODUCERS_MAX = 100_000
"""Maximum number of producer ids in one partition. If there are more, the producers whose last record or marker has the
lowest offset are forgotten, except those with an open transaction."""
FORGOTTEN_DIVISOR = 10
"""If the limit is reached, PRODUCERS_MAX / FORGOTTEN_DIVISOR producers are forgotten together. Therefore the search for
the producers with the lowest last offsets is rare."""
EXPIRY_SAMPLES = 8
"""`expire` stores the log end offset at most once in each 1/EXPIRY_SAMPLES of the expiration time."""


class ProducedBatch(NamedTuple):
    """One of a producer's last batches. `timestamp` is the largest timestamp of the batch, in ms."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry:
    """The state of one producer id. `transaction_start` is the first offset of its open transaction; -1 if no
    transaction is open.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_offset",
        "last_timestamp",
        "next_sequence",
        "transaction_start",
    )

    def __init__(self, epoch: int, last_timestamp: int) -> None:
        self.epoch = epoch
        self.batches: list[ProducedBatch] = []
        self.next_sequence = 0
        self.last_timestamp = last_timestamp
        """Largest timestamp of the last batch. Clients choose it: it may be years old, although the batch is new."""
        self.last_offset = -1
        """Offset of the producer's last record or marker. Snapshots do not contain the offset of a marker."""
        self.coordinator_epoch = -1
        self.transaction_start = -1

    def add(self, batch: ProducedBatch) -> None:
        batches = self.batches
        if len(batches) == BATCHES_MAX:
            del batches[0]
        batches.append(batch)
        self.next_sequence = 0 if batch.last_sequence == SEQUENCE_MAX else batch.last_sequence + 1
        self.last_timestamp = batch.timestamp
        self.last_offset = batch.last_offset

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches.clear()
        self.next_sequence = 0


class CompletedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


def advance_sequence(first: int, delta: int) -> int:
    """Return the sequence number `first` + `delta`. The number after SEQUENCE_MAX is 0."""
    total = first + delta
    return total if total <= SEQUENCE_MAX else total - SEQUENCE_MAX - 1


class ProducerState:
    """The producers of one partition."""

    __slots__ = ("_past_ends", "_replicating", "_verifications", "entries", "open_transactions", "producers_max")

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.open_transactions: dict[int, int] = {}
        """Producer ids of open transactions by first offset, ascending."""
        self._replicating: deque[CompletedTransaction] = deque()
        """Completed transactions whose marker may still be at or above the high watermark, in the order of their
        markers. See `forget_replicated`."""
        self.producers_max = producers_max
        self._past_ends: list[tuple[int, int]] = []
        """Pairs (time of an earlier call of `expire`, log end offset at this time), ascending."""
        self._verifications: dict[int, dict[object, int]] = {}
        """The verifications that are running for each producer id, with their epochs."""

    def begin_verification(self, producer_id: int, epoch: int) -> object:
        """Return a new object that stands for a question to the coordinator of the producer's transaction (KIP-890).

        The object becomes invalid when a marker ends the transaction, because the coordinator's answer may then be
        about a transaction that has ended. If the marker's epoch is higher than `epoch`, `marker_appended` makes the
        object invalid. If it is equal to `epoch` (before transaction version 2), WriteTxnMarkers calls
        `invalidate_verifications` with the marker's epoch + 1.

        Raises InvalidProducerEpoch if the log has a higher epoch of the producer: then the batch is refused without a
        question.
        """
        entry = self.entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise _old_epoch(producer_id, epoch, entry.epoch)
        verification = object()
        self._verifications.setdefault(producer_id, {})[verification] = epoch
        return verification

    def is_verification_valid(self, producer_id: int, verification: object) -> bool:
        return verification in self._verifications.get(producer_id, ())

    def invalidate_verifications(self, producer_id: int, epoch: int) -> None:
        """Make all verifications of the producer's epochs below `epoch` invalid."""
        running = self._verifications.get(producer_id)
        if running is not None:
            for verification in [v for v, verified_epoch in running.items() if verified_epoch < epoch]:
                del running[verification]
            if not running:
                del self._verifications[producer_id]

    def end_verification(self, producer_id: int, verification: object) -> None:
        running = self._verifications.get(producer_id)
        if running is not None:
            running.pop(verification, None)
            if not running:
                del self._verifications[producer_id]

    def check(self, header: "BatchHeader") -> ProducedBatch | None:
        """Check a client's batch before it is appended. Returns None if it may be appended. If it repeats an earlier
        batch, returns the earlier batch.

        Raises InvalidProducerEpoch, OutOfOrderSequenceNumber, or INVALID_TXN_STATE.
        """
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return None
        epoch = header.producer_epoch
        first = header.base_sequence
        if epoch == entry.epoch:
            # A batch of offsets that a transaction commits has no sequence: the group coordinator does not set one.
            if first != entry.next_sequence and first != NO_SEQUENCE:
                repeated = _find_repeated(entry, first, advance_sequence(first, header.last_offset_delta))
                if repeated is not None:
                    return repeated
                raise OutOfOrderSequenceNumber(
                    f"producer {header.producer_id} with epoch {epoch} sent sequence {first}, but sequence "
                    f"{entry.next_sequence} was expected"
                )
        elif epoch < entry.epoch:
            raise _old_epoch(header.producer_id, epoch, entry.epoch)
        elif first > 0:
            raise OutOfOrderSequenceNumber(
                f"producer {header.producer_id} began epoch {epoch} with sequence {first}, but each epoch begins with 0"
            )
        if entry.transaction_start >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            raise ApiError(
                f"producer {header.producer_id} sent a batch outside its open transaction", ErrorCode.INVALID_TXN_STATE
            )
        return None

    def check_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        """Check a transaction marker. Raises InvalidProducerEpoch or TRANSACTION_COORDINATOR_FENCED."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        if producer_epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"a marker for producer {producer_id} has epoch {producer_epoch}, but the partition has seen epoch "
                f"{entry.epoch}"
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise ApiError(
                f"a marker for producer {producer_id} comes from coordinator epoch {coordinator_epoch}, but an earlier "
                f"marker came from epoch {entry.coordinator_epoch}",
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            )

    def check_coordinator_epoch(self, producer_id: int, coordinator_epoch: int, epoch_max: int) -> None:
        """Raise INVALID_REQUEST if a marker states a coordinator epoch that no coordinator has had.

        `epoch_max` is the highest coordinator epoch that this broker knows. Epochs up to the epoch of the producer's
        last marker are also accepted. If an invented epoch was accepted, the partition would always refuse the markers
        of the real coordinator, and the producer's transactions would stay open in this partition. If this broker does
        not know the epoch of a real coordinator yet, the coordinator sends its marker again later.
        """
        entry = self.entries.get(producer_id)
        if coordinator_epoch > max(epoch_max, -1 if entry is None else entry.coordinator_epoch):
            raise ApiError(
                f"a marker for producer {producer_id} has coordinator epoch {coordinator_epoch}, but no coordinator "
                f"has a higher epoch than {epoch_max}",
                ErrorCode.INVALID_REQUEST,
            )

    def check_epoch_of_v2_marker(self, producer_id: int, producer_epoch: int) -> None:
        """Raise InvalidProducerEpoch if a marker of transaction version 2 does not have a higher epoch than the records
        of the open transaction.

        A valid marker always has a higher epoch than the records of its transaction, so this one belongs to an earlier
        transaction (KIP-1228). If no transaction is open, any epoch passes: the marker may be a repetition.
        """
        entry = self.entries.get(producer_id)
        if entry is not None and entry.transaction_start >= 0 and producer_epoch <= entry.epoch:
            raise InvalidProducerEpoch(
                f"a marker for producer {producer_id} has epoch {producer_epoch}, but the records of the open "
                f"transaction have epoch {entry.epoch}; with transaction version 2, the marker's epoch must be higher"
            )

    def appended(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        base_offset: int,
        last_offset_delta: int,
        timestamp: int,
        attributes: int,
    ) -> None:
        """Update the state for an appended batch of records. Live appends and recovery both call this method."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self._add_entry(producer_id, epoch, timestamp)
        elif entry.epoch != epoch:
            entry.begin_epoch(epoch)
        last_sequence = base_sequence + last_offset_delta
        if last_sequence > SEQUENCE_MAX:
            last_sequence -= SEQUENCE_MAX + 1
        elif base_sequence < 0:
            last_sequence = NO_SEQUENCE
        entry.add(ProducedBatch(base_sequence, last_sequence, base_offset, base_offset + last_offset_delta, timestamp))
        if attributes & TRANSACTIONAL_BIT and entry.transaction_start < 0 and not attributes & CONTROL_BIT:
            entry.transaction_start = base_offset
            self.open_transactions[base_offset] = producer_id

    def marker_appended(
        self, producer_id: int, epoch: int, coordinator_epoch: int, offset: int, timestamp: int, marker: int
    ) -> CompletedTransaction | None:
        """Update the state for an appended marker (`ABORT` or `COMMIT`). Returns the completed transaction; None if
        no transaction was open.
        """
        self.invalidate_verifications(producer_id, epoch)
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self._add_entry(producer_id, epoch, timestamp)
        elif entry.epoch != epoch:
            entry.begin_epoch(epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        entry.last_offset = offset
        if entry.transaction_start < 0:
            return None
        completed = CompletedTransaction(producer_id, entry.transaction_start, offset, marker == ABORT)
        del self.open_transactions[entry.transaction_start]
        entry.transaction_start = -1
        self._replicating.append(completed)
        return completed

    def aborted_by_marker(self, producer_id: int, offset: int) -> AbortedTransaction | None:
        """Return the entry that an abort marker at `offset` adds to the transaction index. Call this method before
        `marker_appended`. Returns None if the producer has no open transaction.
        """
        entry = self.entries.get(producer_id)
        if entry is None or entry.transaction_start < 0:
            return None
        other_starts = (start for start in self.open_transactions if start != entry.transaction_start)
        return AbortedTransaction(producer_id, entry.transaction_start, offset, next(other_starts, offset + 1))

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the oldest transaction that is open, or whose marker is not below the high
        watermark yet; None if there is no such transaction.
        """
        self.forget_replicated(high_watermark)
        first_open = next(iter(self.open_transactions), None)
        if not self._replicating:
            return first_open
        first = min(completed.first_offset for completed in self._replicating)
        return first if first_open is None else min(first, first_open)

    def forget_replicated(self, high_watermark: int) -> None:
        """Forget the completed transactions whose marker is below the high watermark.

        The reads of consumers call this method. But consumers never read some partitions, for example those of
        `__consumer_offsets`. Therefore code that appends markers also calls this method.
        """
        replicating = self._replicating
        while replicating and replicating[0].last_offset < high_watermark:
            replicating.popleft()

    def expire(self, now_ms: int, expiration_ms: int, end_offset: int) -> int:
        """Forget producers that have no open transaction and were silent for `expiration_ms`. Returns the number of
        forgotten producers.

        `end_offset` is the end of the log. A producer was silent if its last timestamp is at least `expiration_ms` old,
        and if it has appended nothing since an earlier call of this method. This earlier call is one that was made at
        least `expiration_ms` ago or, if no call was made so long ago, the first call. The timestamp alone does not show
        that a producer was silent: an active producer that copies old records has old timestamps, too. If an active
        producer was forgotten, a batch that it sends again would be appended twice.
        """
        ends = self._past_ends
        if ends and (not self.entries or now_ms < ends[-1][0]):  # no producers, or the clock was set back
            ends.clear()
        while len(ends) > 1 and now_ms - ends[1][0] >= expiration_ms:
            del ends[0]
        silent_below = ends[0][1] if ends else 0
        if self.entries and (not ends or now_ms - ends[-1][0] >= expiration_ms // EXPIRY_SAMPLES):
            ends.append((now_ms, end_offset))
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if now_ms - entry.last_timestamp >= expiration_ms
            and entry.transaction_start < 0
            and entry.last_offset < silent_below
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return len(expired)

    def restore(self, entries: dict[int, ProducerEntry]) -> None:
        """Replace the state by the state of a snapshot."""
        self.entries = entries
        self._past_ends = []
        self._replicating.clear()
        starts = sorted((e.transaction_start, i) for i, e in entries.items() if e.transaction_start >= 0)
        self.open_transactions = dict(starts)

    def _add_entry(self, producer_id: int, epoch: int, timestamp: int) -> ProducerEntry:
        if len(self.entries) >= self.producers_max:
            self._forget_silent()
        entry = self.entries[producer_id] = ProducerEntry(epoch, timestamp)
        return entry

    def _forget_silent(self) -> None:
        # Compare offsets, not timestamps: clients choose the timestamps, so an active producer may write old ones.
        silent = sorted(
            (entry.last_offset, producer_id)
            for producer_id, entry in self.entries.items()
            if entry.transaction_start < 0
        )
        for _, producer_id in silent[: max(1, self.producers_max // FORGOTTEN_DIVISOR)]:
            del self.entries[producer_id]


def _old_epoch(producer_id: int, epoch: int, newest_epoch: int) -> InvalidProducerEpoch:
    return InvalidProducerEpoch(
        f"producer {producer_id} sent epoch {epoch}, but the partition has seen epoch {newest_epoch}"
    )


def _find_repeated(entry: ProducerEntry, first_sequence: int, last_sequence: int) -> ProducedBatch | None:
    for batch in entry.batches:
        if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
            return batch
    return None
