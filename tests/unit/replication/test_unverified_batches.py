"""Batches that wait for the coordinator of their transaction: order, refusals, markers, leader epochs, limits."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from log_harness import LogOnDisk, leads_alone
from tidelog.log.appended import Appended
from tidelog.log.validation import NotInline
from tidelog.replication.append_queue import QueuedBytes
from tidelog.replication.partition import Partition
from tidelog.replication.replica import BecameLeader
from tidelog.replication.unverified_batches import REFUSED_MAX, Inquiry, UnverifiedBatches
from tidelog.wire.batches import BatchHeader
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.errors import ApiError, ErrorCode, NotEnoughReplicas, RequestTimedOut
from tidelog.wire.records import Record, encode_batch


class Bench:
    """A partition whose batches are verified. The test answers the questions."""

    def __init__(self, limit: int = 1 << 20) -> None:
        disk = LogOnDisk()
        nothing: Any = None
        tasks: Any = SimpleNamespace(spawn=lambda coroutine, name: asyncio.ensure_future(coroutine))
        clock: Any = SimpleNamespace(now_ms=int(disk.now_ms).__int__, monotonic=float)
        flusher: Any = SimpleNamespace(dirty={})
        self.log = disk.log
        self.partition = Partition(
            "t",
            bytes(16),
            0,
            disk.log,
            replica=leads_alone(disk.log),
            internal=False,
            clock=clock,
            tasks=nothing,
            flusher=flusher,
        )
        self.bytes = QueuedBytes(limit)
        self.unverified = UnverifiedBatches(self.partition, tasks, self.bytes)
        self.questions: list[asyncio.Future[None]] = []
        self.results: dict[bytes, int | ErrorCode] = {}
        """The offset or the error of each batch, by its value."""

    async def send(
        self, value: bytes, sequence: int, *, epoch: int = 0, producer_id: int = 7, is_v2: bool = False
    ) -> None:
        batch = encode_batch(
            [Record(value=value)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        header = BatchHeader(batch)

        async def ask() -> None:
            question: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.questions.append(question)
            await question

        def done(outcome: Appended | ApiError) -> None:
            self.results[value] = outcome.code if isinstance(outcome, ApiError) else outcome.base_offset

        if self.unverified.must_wait(header):
            inquiry = Inquiry((producer_id, epoch), ask, has_version_2=is_v2)
            self.unverified.add(memoryview(batch), header, inquiry, done)
        else:
            done(self.partition.append(memoryview(batch), header))
        await self.settle()

    async def answer(self, error: ApiError | None = None) -> None:
        """Answer the oldest question."""
        question = self.questions.pop(0)
        if error is None:
            question.set_result(None)
        else:
            question.set_exception(error)
        await self.settle()

    def mark(self, *, epoch: int = 0, is_commit: bool = True) -> None:
        batch = marker_batch(7, epoch, 0, is_commit=is_commit, timestamp=1)
        self.partition.append_batch(batch)

    @staticmethod
    async def settle() -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def refusal(code: ErrorCode) -> ApiError:
    return ApiError("no", code)


def test_batches_of_a_producer_keep_their_order_and_others_do_not_wait() -> None:
    async def scenario() -> None:
        bench = Bench()
        for number in range(3):
            await bench.send(b"%d" % number, number)
        await bench.send(b"other", 0, producer_id=8)
        assert len(bench.questions) == 2, "one for each producer"
        await bench.answer()
        assert bench.results == {b"0": 0, b"1": 1, b"2": 2}
        await bench.send(b"3", 3)
        assert bench.results[b"3"] == 3, "the transaction is open"
        await bench.answer()
        assert bench.results[b"other"] == 4
        assert bench.bytes.total == 0
        assert not bench.unverified._waiting

    asyncio.run(scenario())


def test_an_epoch_below_that_of_the_log_is_refused_without_a_question() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.send(b"0", 0, epoch=3)
        await bench.answer()
        bench.mark(epoch=4)
        await bench.send(b"old", 1, epoch=3)
        assert bench.questions == []
        assert bench.results == {b"0": 0, b"old": ErrorCode.INVALID_PRODUCER_EPOCH}
        assert bench.bytes.total == 0

    asyncio.run(scenario())


def test_a_refusal_is_the_answer_of_all_batches_of_the_transaction() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.send(b"0", 0)
        await bench.send(b"1", 1)
        await bench.answer(refusal(ErrorCode.TRANSACTION_ABORTABLE))
        assert bench.results == dict.fromkeys([b"0", b"1"], ErrorCode.TRANSACTION_ABORTABLE)
        assert bench.log.log_end_offset == bench.bytes.total == 0
        assert not bench.unverified._waiting

    asyncio.run(scenario())


def test_a_batch_of_the_next_epoch_has_its_own_question() -> None:
    """A delayed batch of the last transaction is fenced, and the first batch of the next one waits behind it."""

    async def scenario() -> None:
        bench = Bench()
        await bench.send(b"late", 3)
        await bench.send(b"next", 0, epoch=1)
        assert len(bench.questions) == 1
        await bench.answer(refusal(ErrorCode.INVALID_PRODUCER_EPOCH))
        assert bench.results == {b"late": ErrorCode.INVALID_PRODUCER_EPOCH}
        await bench.answer()
        assert bench.results[b"next"] == 0

    asyncio.run(scenario())


def test_a_batch_that_overtakes_a_refused_one_is_refused() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.send(b"0", 0)
        await bench.answer(NotEnoughReplicas("the coordinator is being loaded"))
        await bench.send(b"1", 1)
        await bench.answer()
        assert bench.results == {b"0": ErrorCode.NOT_ENOUGH_REPLICAS, b"1": ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
        await bench.send(b"0", 0)
        await bench.answer()
        await bench.send(b"1", 1)
        assert bench.results == {b"0": 0, b"1": 1}

    asyncio.run(scenario())


def test_a_batch_that_overtakes_the_first_one_is_refused_with_version_2() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.send(b"1", 1, is_v2=True)
        await bench.answer()
        await bench.send(b"0", 0, is_v2=True)
        await bench.answer()
        await bench.send(b"1 again", 1, is_v2=True)
        assert bench.results == {b"1": ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, b"0": 0, b"1 again": 1}
        bench.mark(epoch=1)
        await bench.send(b"next", 1, epoch=1, is_v2=True)
        await bench.answer()
        assert bench.results[b"next"] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    asyncio.run(scenario())


@pytest.mark.parametrize("limit", [200, 1 << 20])
def test_a_batch_that_overtakes_one_that_was_refused_before_a_question_is_refused(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other batch was refused because too many bytes waited, or because of too few in-sync replicas."""

    async def scenario() -> None:
        bench = Bench(limit)
        if limit == 200:
            await bench.send(b"0" * 100, 0, producer_id=8)
            with pytest.raises(RequestTimedOut):
                await bench.send(b"0" * 100, 0)
            await bench.answer()
        else:

            def refuse(*args: object) -> None:
                raise NotEnoughReplicas("one in-sync replica")

            with monkeypatch.context() as patch, pytest.raises(NotEnoughReplicas):
                patch.setattr(Partition, "check_writable", refuse)
                await bench.send(b"0", 0)
        await bench.send(b"1", 1)
        await bench.answer()
        assert bench.results[b"1"] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        await bench.send(b"0", 0)
        await bench.answer()
        await bench.send(b"1", 1)
        assert bench.results[b"1"] == bench.log.log_end_offset - 1

    asyncio.run(scenario())


def test_the_sequences_go_on_when_a_producer_of_version_1_changes_to_version_2() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.send(b"0", 4)
        await bench.answer()
        bench.mark()
        await bench.send(b"1", 5, is_v2=True)
        await bench.answer()
        assert bench.results == {b"0": 0, b"1": 2}

    asyncio.run(scenario())


def test_with_version_2_the_first_batch_in_a_partition_has_the_sequence_0() -> None:
    """Kafka 4.3.1 checks this, too: the producer has a new epoch, so an earlier batch is on its way."""

    async def scenario() -> None:
        bench = Bench()
        await bench.send(b"1", 1, is_v2=True)
        await bench.answer()
        assert bench.results == {b"1": ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
        await bench.send(b"0", 0, is_v2=True)
        await bench.answer()
        await bench.send(b"1", 1, is_v2=True)
        assert bench.results == {b"0": 0, b"1": 1}
        await bench.send(b"v1", 1, producer_id=8)
        await bench.answer()
        assert bench.results[b"v1"] == 2, "with version 1, the partition may have forgotten the producer"

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", [NotInline(), RuntimeError("unexpected")])
def test_a_batch_that_cannot_be_appended_is_answered(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records must be examined, but too many bytes wait in the queue already; or nobody has foreseen it."""

    async def scenario() -> None:
        bench = Bench()

        def fail(*args: object) -> Appended:
            raise failure

        monkeypatch.setattr(Partition, "append", fail)
        queued = bench.partition.queue._queued_bytes
        queued.total = queued.limit
        await bench.send(b"0", 0)
        await bench.send(b"1", 1)
        await bench.answer()
        code = ErrorCode.REQUEST_TIMED_OUT if isinstance(failure, NotInline) else ErrorCode.UNKNOWN_SERVER_ERROR
        assert bench.results[b"0"] == code
        await bench.answer()
        assert bench.results == dict.fromkeys([b"0", b"1"], code)
        assert bench.bytes.total == 0

    asyncio.run(scenario())


def test_refused_producers_are_remembered_within_a_limit() -> None:
    async def scenario() -> None:
        bench = Bench()
        for producer_id in range(REFUSED_MAX + 10):
            await bench.send(b"v", 0, producer_id=producer_id)
            await bench.answer(NotEnoughReplicas("not now"))
        assert len(bench.unverified._refused) == REFUSED_MAX

    asyncio.run(scenario())


def test_a_marker_between_question_and_append() -> None:
    """The coordinator's answer may be about the transaction that the marker has ended."""

    async def scenario() -> None:
        bench = Bench()
        await bench.send(b"0", 0)
        bench.mark(epoch=1, is_commit=False)
        await bench.answer()
        assert bench.results == {b"0": ErrorCode.INVALID_TXN_STATE}
        assert bench.log.log_end_offset == 1, "the marker"
        assert bench.log.last_stable_offset == 1

    asyncio.run(scenario())


def test_the_marker_of_the_transaction_before_does_not_matter() -> None:
    """With version 2 it has the epoch of the next transaction, whose first batch may wait for its answer already."""

    async def scenario() -> None:
        bench = Bench()
        await bench.send(b"0", 0, epoch=1)
        bench.mark(epoch=1)
        await bench.answer()
        assert bench.results == {b"0": 1}

    asyncio.run(scenario())


def test_the_handler_of_markers_ends_the_questions_of_version_1() -> None:
    """With version 1 a marker has the epoch of the records that it ends."""

    async def scenario() -> None:
        bench = Bench()
        await bench.send(b"0", 0, epoch=1)
        bench.log.producers.invalidate_verifications(7, 2)
        await bench.answer()
        assert bench.results == {b"0": ErrorCode.INVALID_TXN_STATE}

    asyncio.run(scenario())


def test_the_leader_epoch_ends_between_question_and_append() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.send(b"0", 0)
        bench.partition.step(BecameLeader(bench.partition.leader_epoch + 1, 1, (1,), (1,), 1))
        await bench.answer()
        assert bench.results == {b"0": ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert bench.log.log_end_offset == 0

    asyncio.run(scenario())


def test_too_many_bytes_are_refused() -> None:
    async def scenario() -> None:
        bench = Bench(limit=200)
        await bench.send(b"0" * 100, 0)
        with pytest.raises(RequestTimedOut):
            await bench.send(b"1" * 100, 1)
        await bench.answer()
        assert bench.results == {b"0" * 100: 0}
        assert bench.bytes.total == 0

    asyncio.run(scenario())


def test_the_broker_stops() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.send(b"0", 0)
        await bench.send(b"1", 1)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await bench.settle()
        assert bench.results == dict.fromkeys([b"0", b"1"], ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert bench.bytes.total == 0

    asyncio.run(scenario())
