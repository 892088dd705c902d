"""Idempotent producers and transactions. The expectations are answers of a live Kafka 4.3.1 to the same sequences."""

import pytest

from log_harness import NOW_MS, make_batch
from tidelog.log.producer_state import SEQUENCE_MAX, ProducedBatch, ProducerState, advance_sequence
from tidelog.log.transaction_index import AbortedTransaction
from tidelog.wire.batches import ABORT, COMMIT, BatchHeader
from tidelog.wire.errors import ApiError, ErrorCode


class Appending:
    """Checks and appends batches as the log does."""

    def __init__(self, state: ProducerState | None = None) -> None:
        self.state = state or ProducerState()
        self.offset = 0

    def send(
        self,
        sequence: int,
        count: int = 1,
        *,
        producer_id: int = 7,
        epoch: int = 0,
        transactional: bool = False,
        timestamp: int = NOW_MS,
    ) -> int | str:
        """The base offset, negative and less one for a repeat; or the name of the error."""
        batch = make_batch(
            *[b"v"] * count,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
        header = BatchHeader(batch)
        try:
            repeated = self.state.check(header)
        except ApiError as error:
            return error.code.name
        if repeated:
            return -1 - repeated.base_offset
        base = self.offset
        self.state.appended(producer_id, epoch, sequence, base, count - 1, timestamp, header.attributes)
        self.offset += count
        return base

    def expire(self, now_ms: int, expiration_ms: int = 1000) -> int:
        return self.state.expire(now_ms, expiration_ms, self.offset)

    def mark(self, kind: int, *, producer_id: int = 7, epoch: int = 0) -> AbortedTransaction | None:
        aborted = self.state.aborted_by_marker(producer_id, self.offset) if kind == ABORT else None
        self.state.marker_appended(producer_id, epoch, 0, self.offset, NOW_MS, kind)
        self.offset += 1
        return aborted


def test_an_unknown_producer_begins_anywhere_and_goes_on_in_order() -> None:
    to = Appending()
    assert to.send(7, 2) == 0
    assert to.send(7, 2) == -1
    assert to.send(9) == 2
    assert to.send(12) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert to.send(8) == "OUT_OF_ORDER_SEQUENCE_NUMBER"  # a part of a batch is no repeat
    assert to.send(7, 3) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert to.send(10) == 3


def test_the_last_five_batches_are_remembered() -> None:
    to = Appending()
    offsets = [to.send(sequence) for sequence in range(6)]
    assert offsets == [0, 1, 2, 3, 4, 5]
    assert [to.send(sequence) for sequence in range(1, 6)] == [-2, -3, -4, -5, -6]
    assert to.send(0) == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_a_new_epoch_begins_at_zero_and_fences_the_old() -> None:
    to = Appending()
    to.send(3, epoch=1)
    assert to.send(4, epoch=2) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert to.send(0, epoch=2) == 1
    assert to.send(4, epoch=1) == "INVALID_PRODUCER_EPOCH"
    assert to.send(3, epoch=1) == "INVALID_PRODUCER_EPOCH"
    assert to.send(0, epoch=2) == -2


def test_sequences_wrap_within_a_batch_and_between_batches() -> None:
    to = Appending()
    assert to.send(SEQUENCE_MAX - 1, 3) == 0
    assert to.send(1) == 3
    assert to.send(SEQUENCE_MAX - 1, 3) == -1
    assert to.send(SEQUENCE_MAX, producer_id=8) == 4
    assert to.send(0, producer_id=8) == 5
    assert (advance_sequence(SEQUENCE_MAX - 1, 2), advance_sequence(5, 2)) == (0, 7)


def test_after_a_marker_of_a_newer_epoch_sequences_begin_at_zero() -> None:
    to = Appending()
    to.send(0, transactional=True)
    to.mark(COMMIT, epoch=1)
    assert to.send(1, epoch=1) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert to.send(0, epoch=1) == 2


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    to = Appending()
    to.send(0, transactional=True)
    assert to.send(1) == "INVALID_TXN_STATE"
    to.mark(COMMIT)
    assert to.send(1) == 2


def test_markers_of_old_epochs_and_old_coordinators_are_refused() -> None:
    state = ProducerState()
    state.check_marker(7, 0, 0)
    state.marker_appended(7, 3, 5, 0, NOW_MS, COMMIT)
    with pytest.raises(ApiError) as refused:
        state.check_marker(7, 2, 5)
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(ApiError) as refused:
        state.check_marker(7, 3, 4)
    assert refused.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    state.check_marker(7, 3, 5)


def test_the_first_unstable_offset_waits_for_the_marker_below_the_high_watermark() -> None:
    to = Appending()
    to.send(0, 2, producer_id=1, transactional=True)
    to.send(0, 3, producer_id=2, transactional=True)
    assert to.state.first_unstable_offset(5) == 0
    aborted = to.mark(ABORT, producer_id=1)
    assert aborted == AbortedTransaction(producer_id=1, first_offset=0, last_offset=5, last_stable_offset=2)
    assert to.state.first_unstable_offset(5) == 0
    assert to.state.first_unstable_offset(6) == 2
    assert to.mark(COMMIT, producer_id=2) is None
    assert to.state.first_unstable_offset(6) == 2
    assert to.state.first_unstable_offset(7) is None
    assert to.mark(ABORT, producer_id=2) is None  # nothing was open


def test_silent_producers_are_forgotten_but_not_open_transactions() -> None:
    to = Appending()
    to.send(0, producer_id=1)
    to.send(0, producer_id=2, transactional=True)
    assert to.expire(NOW_MS + 999) == 0
    assert to.expire(NOW_MS + 1000) == 1
    assert list(to.state.entries) == [2]
    assert to.send(9, producer_id=1) == 2


def test_an_active_producer_of_old_timestamps_is_not_forgotten() -> None:
    """It copies old records. If it was forgotten, a batch that it repeats would be appended twice."""
    to = Appending()
    hour, day = 3_600_000, 24 * 3_600_000
    for hours in range(1, 100):
        to.send(hours - 1, producer_id=1)
        to.mark(COMMIT, producer_id=2)
        if hours == 30:
            to.send(0, producer_id=3)
        to.expire(NOW_MS + 1000 * day + hours * hour, day)
        assert {1, 2} <= to.state.entries.keys()
        assert hours not in range(30, 54) or 3 in to.state.entries
    assert to.send(98, producer_id=1) == -1 - 197
    assert list(to.state.entries) == [1, 2]


def test_a_clock_that_is_set_back_or_forward_makes_nobody_forgotten_who_has_just_written() -> None:
    to = Appending()
    for number, time_ms in enumerate((5_000, 10_000, 9_000, 1_000_000, 1_001_000, 0, 1)):
        to.send(number)
        assert to.expire(NOW_MS + time_ms) == 0


def test_memory_for_ids_of_markers_is_bounded() -> None:
    to = Appending(ProducerState(producers_max=20))
    for producer_id in range(100):
        to.mark(COMMIT, producer_id=producer_id)
        assert len(to.state.entries) <= 20


def test_the_producers_that_wrote_last_are_kept_whatever_their_timestamps() -> None:
    to = Appending(ProducerState(producers_max=20))
    to.send(0, producer_id=1000, timestamp=5)
    for producer_id in range(1, 100):
        to.send(0, producer_id=producer_id)
        to.send(producer_id, producer_id=1000, timestamp=5)
    assert 1000 in to.state.entries
    to.mark(COMMIT, producer_id=1001)
    for producer_id in range(100, 110):
        to.send(0, producer_id=producer_id)
    assert 1001 in to.state.entries


def test_memory_for_producer_ids_is_bounded() -> None:
    to = Appending(ProducerState(producers_max=20))
    to.send(0, producer_id=1000, transactional=True)
    for producer_id in range(100):
        to.send(0, producer_id=producer_id)
        assert len(to.state.entries) <= 20
    assert 1000 in to.state.entries
    assert 99 in to.state.entries


def test_the_answer_to_a_repeat_carries_the_old_offsets_and_time() -> None:
    to = Appending()
    to.send(0, 3)
    header = BatchHeader(make_batch(b"", b"", b"", producer_id=7, producer_epoch=0, base_sequence=0))
    assert to.state.check(header) == ProducedBatch(0, 2, 0, 2, NOW_MS)
