"""Batches that wait for a thread or a turn of the loop are appended in the order of their arrival."""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log_harness import LogOnDisk, leads_alone, make_batch
from tidelog.log.appended import Appended
from tidelog.log.config import LogConfig
from tidelog.log.partition_log import PartitionLog
from tidelog.log.validation import RefusedRecords
from tidelog.replication.append_queue import INLINE_BYTES_MAX, AppendQueue, QueuedBytes
from tidelog.replication.partition import Partition
from tidelog.replication.replica import BecameLeader
from tidelog.replication.shared_state import SharedByPartitions
from tidelog.runtime.turns import FIRST_TURNS_S, TURN_S, Turns
from tidelog.wire.batches import BatchHeader, Codec
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.errors import ApiError, ErrorCode, NotLeaderOrFollower, RequestTimedOut
from tidelog.wire.records import Record, decode_records, encode_batch

LARGE = b"v" * 2 * INLINE_BYTES_MAX


class Loop:
    """The loop that runs, and `run_blocking` whose calls end when and in the order that the test says."""

    def __init__(self) -> None:
        self.calls: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []

    def run_blocking(self, function: Callable[..., Any], *args: object, lane: str = "") -> "asyncio.Future[Any]":
        del lane
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((future, lambda: function(*args)))
        return future

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        asyncio.get_running_loop().call_soon(callback, *args)

    def defer_collection(self, deferred: bool) -> None:
        pass

    async def end(self, number: int) -> None:
        future, call = self.calls[number]
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


class Bench:
    def __init__(self, compression_type: str = "gzip", limit: int = 1 << 20, **settings: Any) -> None:
        self.threads = Loop()
        self.config = LogConfig(compression_type=compression_type, **settings)
        self.disk = LogOnDisk(self.config)
        self.time_s = 0.0
        self.step_s = 0.0
        clock: Any = SimpleNamespace(now_ms=lambda: self.disk.now_ms, monotonic=self.monotonic)
        flusher: Any = SimpleNamespace(dirty={})
        tasks: Any = self.threads
        shared = SharedByPartitions(Turns(clock, tasks))
        shared.queued_bytes = QueuedBytes(limit)
        self.partition = Partition(
            "orders", bytes(16), 0, self.disk.log, replica=leads_alone(self.disk.log), internal=False,
            clock=clock, tasks=tasks, flusher=flusher, shared=shared,
        )  # fmt: skip
        self.outcomes: dict[str, Appended | ApiError] = {}

    def monotonic(self) -> float:
        self.time_s += self.step_s
        return self.time_s

    @property
    def queue(self) -> AppendQueue:
        return self.partition.queue

    def append(self, name: str, value: bytes = b"small", **fields: Any) -> Appended | None:
        batch = make_batch(name.encode() + value, **fields)
        return self.queue.append(
            memoryview(batch), BatchHeader(batch), lambda outcome: self.outcomes.__setitem__(name, outcome)
        )

    def stored(self) -> list[str]:
        return [value[:1].decode() for _, value in self.disk.records()]

    def codecs(self) -> list[int]:
        part = self.disk.log.read(0, 1 << 20, self.disk.log.log_end_offset)
        assert part.file is not None
        data, position, found = part.file.pread(part.size, part.position), 0, []
        while position < len(data):
            header = BatchHeader(data, position)
            assert decode_records(data, position)
            found.append(header.codec)
            position += header.size
        return found


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


def test_a_small_batch_is_recompressed_at_once() -> None:
    async def scenario() -> None:
        bench = Bench()
        appended = bench.append("a")
        assert appended is not None
        assert (appended.base_offset, bench.codecs(), bench.threads.calls) == (0, [Codec.GZIP], [])
        assert not bench.partition.appends_directly

    run(scenario)


def test_batches_that_wait_are_not_appended_in_a_later_leader_epoch() -> None:
    async def scenario() -> None:
        bench = Bench()
        assert bench.append("a", LARGE) is None
        assert bench.append("b") is None
        bench.partition.step(BecameLeader(1, 1, (1,), (1,), 1))
        assert [type(outcome) for outcome in bench.outcomes.values()] == [NotLeaderOrFollower] * 2
        assert bench.partition.queue.is_empty
        assert bench.append("c", LARGE) is None
        await bench.threads.end(0)
        await bench.threads.end(1)
        assert bench.stored() == [], "the threads' results for batches of the old epoch are dropped"
        await bench.threads.end(2)
        assert bench.stored() == ["c"]

    run(scenario)


def test_large_ones_on_threads_and_in_order() -> None:
    """Whichever thread is done first; small ones and those in the right codec stand behind them."""

    async def scenario() -> None:
        bench = Bench()
        assert bench.append("a", LARGE) is None
        assert bench.append("b", LARGE) is None
        assert bench.append("c") is None
        assert bench.append("d", codec=Codec.GZIP) is None
        await bench.threads.end(2)
        await bench.threads.end(1)
        assert (bench.stored(), bench.outcomes) == ([], {})
        await bench.threads.end(0)
        assert bench.stored() == ["a", "b", "c", "d"]
        assert [outcome.base_offset for outcome in bench.outcomes.values() if isinstance(outcome, Appended)] == [
            0,
            1,
            2,
            3,
        ]
        assert bench.codecs() == [Codec.GZIP] * 4
        assert bench.append("e") is not None, "and now at once again"

    run(scenario)


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([Codec.NONE, Codec.GZIP, Codec.LZ4])), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_any_batches_in_any_order_of_the_threads(batches: list[tuple[bool, Codec]], order: random.Random) -> None:
    """Some threads end while others are still asked: the log has the batches as they came, each answered once."""

    async def scenario() -> None:
        bench = Bench()
        answered: list[str] = []
        running: list[int] = []
        for number, (large, codec) in enumerate(batches):
            name = chr(ord("a") + number)
            before = len(bench.threads.calls)
            if bench.append(name, LARGE if large else b"small", codec=codec) is not None:
                answered.append(name)
            running += range(before, len(bench.threads.calls))
            if running and order.random() < 0.4:
                await bench.threads.end(running.pop(order.randrange(len(running))))
        while running:
            await bench.threads.end(running.pop(order.randrange(len(running))))
        names = [chr(ord("a") + number) for number in range(len(batches))]
        assert bench.stored() == names
        assert sorted([*answered, *bench.outcomes]) == names
        assert set(bench.codecs()) == {Codec.GZIP}

    run(scenario)


def test_one_that_a_bomb_claims_to_be_small_goes_to_a_thread() -> None:
    async def scenario() -> None:
        bench = Bench()
        assert bench.append("a", bytes(1 << 20), codec=Codec.ZSTD) is None
        await bench.threads.end(0)
        assert bench.codecs() == [Codec.GZIP]

    run(scenario)


def test_one_that_fails_does_not_stop_the_others() -> None:
    async def scenario() -> None:
        bench = Bench()
        broken = make_batch(b"a" + LARGE)
        broken[22] |= Codec.LZ4
        bench.queue.append(
            memoryview(broken), BatchHeader(broken), lambda outcome: bench.outcomes.__setitem__("a", outcome)
        )
        bench.append("b", LARGE)
        await bench.threads.end(1)
        await bench.threads.end(0)
        refused = bench.outcomes["a"]
        assert isinstance(refused, ApiError)
        assert refused.code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert bench.stored() == ["b"]

    run(scenario)


def test_an_idempotent_producer_is_judged_when_its_turn_comes() -> None:
    async def scenario() -> None:
        bench = Bench()
        fields = {"producer_id": 5, "producer_epoch": 0}
        bench.append("a", LARGE, base_sequence=0, **fields)
        bench.append("b", LARGE, base_sequence=1, **fields)
        bench.append("c", LARGE, base_sequence=7, **fields)
        bench.append("d", LARGE, base_sequence=1, **fields)
        for number in (3, 1, 2, 0):
            await bench.threads.end(number)
        assert bench.stored() == ["a", "b"]
        gap, repeat = bench.outcomes["c"], bench.outcomes["d"]
        assert isinstance(gap, ApiError)
        assert gap.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert isinstance(repeat, Appended)
        assert repeat.base_offset == 1

    run(scenario)


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_marker_that_overtakes_a_batch_of_its_transaction(is_ended: bool) -> None:
    """With version 1, the batch would begin a transaction that nobody ends."""

    async def scenario() -> None:
        bench = Bench()
        transactional: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
        assert bench.append("a", base_sequence=0, **transactional) is not None
        assert bench.append("b", LARGE, base_sequence=1, **transactional) is None
        assert bench.append("c", base_sequence=2, **transactional) is None
        if is_ended:
            bench.partition.append_batch(marker_batch(7, 0, 0, is_commit=False, timestamp=1))
            bench.disk.log.producers.invalidate_verifications(7, 1)
        await bench.threads.end(0)
        await bench.threads.end(1)
        assert bench.disk.log.last_stable_offset == (2 if is_ended else 0)
        codes = [outcome.code for outcome in bench.outcomes.values() if isinstance(outcome, ApiError)]
        assert codes == ([ErrorCode.INVALID_TXN_STATE] * 2 if is_ended else [])
        assert bench.disk.log.producers._verifications == {}
        bench.partition._shared.queued_bytes.total = 1 << 20
        with pytest.raises(RequestTimedOut):
            bench.append("d", LARGE, base_sequence=3, **transactional)
        assert bench.disk.log.producers._verifications == {}

    run(scenario)


def test_the_topic_changes_its_mind_while_batches_wait() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.append("a", LARGE)
        bench.partition.configure(LogConfig(compression_type="producer"))
        assert not bench.partition.appends_directly, "what comes now stands behind"
        assert bench.append("b") is None
        await bench.threads.end(0)
        assert bench.stored() == ["a", "b"]
        assert bench.codecs() == [Codec.GZIP, Codec.NONE]
        assert bench.partition.appends_directly

    run(scenario)


def test_too_much_that_waits_is_refused() -> None:
    async def scenario() -> None:
        bench = Bench(limit=3 * len(LARGE))
        for name in "ab":
            bench.append(name, LARGE)
        with pytest.raises(RequestTimedOut, match="wait to be appended"):
            bench.append("c", LARGE * 2)
        await bench.threads.end(0)
        await bench.threads.end(1)
        bench.append("d", LARGE)
        await bench.threads.end(2)
        assert bench.stored() == ["a", "b", "d"]

    run(scenario)


def test_at_the_end_nothing_is_appended_any_more() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.append("a", LARGE)
        bench.partition.close_queue()
        assert isinstance(bench.outcomes["a"], NotLeaderOrFollower)
        await bench.threads.end(0)
        assert bench.stored() == []
        with pytest.raises(NotLeaderOrFollower):
            bench.append("b", LARGE)

    run(scenario)


def test_too_large_before_it_is_recompressed() -> None:
    async def scenario() -> None:
        bench = Bench()
        with pytest.raises(ApiError, match=r"max\.message\.bytes") as caught:
            bench.append("a", bytes(2 << 20))
        assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE

    run(scenario)


def test_of_a_compacted_topic_long_batches_are_looked_at_on_a_thread() -> None:
    """Which a few KB may be: others are served meanwhile, and what comes behind waits its turn."""

    async def scenario() -> None:
        bench = Bench("producer", cleanup_policy="compact")
        assert bench.partition.appends_directly
        assert bench.append("a") is not None
        assert bench.append("b", bytes(1 << 20), codec=Codec.ZSTD) is None
        assert not bench.partition.appends_directly
        assert bench.append("c") is None
        assert bench.append("d", bytes(1 << 20), codec=Codec.ZSTD) is None
        await asyncio.sleep(0)
        assert (bench.stored(), list(bench.outcomes)) == (["a"], [])
        await bench.threads.end(0)
        assert (bench.stored(), list(bench.outcomes)) == (["a", "b", "c"], ["b", "c"])
        await bench.threads.end(1)
        assert (bench.stored(), list(bench.outcomes)) == (["a", "b", "c", "d"], ["b", "c", "d"])
        assert bench.partition.appends_directly
        assert bench.append("e") is not None, "and now at once again"

    run(scenario)


def test_what_a_thread_finds_wrong_is_answered() -> None:
    async def scenario() -> None:
        bench = Bench("producer", cleanup_policy="compact")
        batch = encode_batch([Record(None, bytes(1 << 20), bench.disk.now_ms)], codec=Codec.ZSTD)
        told: list[Any] = []
        assert bench.queue.append(memoryview(batch), BatchHeader(batch), told.append) is None
        bench.append("b")
        await asyncio.sleep(0)
        await bench.threads.end(0)
        assert isinstance(told[0], RefusedRecords)
        assert bench.stored() == ["b"]

    run(scenario)


def test_recompressed_and_then_looked_at() -> None:
    async def scenario() -> None:
        bench = Bench("gzip", cleanup_policy="compact")
        bench.append("a", bytes(1 << 20), codec=Codec.ZSTD)
        bench.append("b")
        await bench.threads.end(1)
        await bench.threads.end(0)
        assert bench.stored() == []
        await bench.threads.end(2)
        assert bench.stored() == ["a", "b"]

    run(scenario)


def test_what_nobody_expected_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        bench = Bench("gzip")
        bench.append("a", bytes(1 << 15), codec=Codec.ZSTD)
        bench.append("b")
        with monkeypatch.context() as patched:
            patched.setattr(PartitionLog, "append", lambda *_, **__: 1 // 0)
            await bench.threads.end(0)
        await bench.threads.end(1)
        outcome = bench.outcomes["a"]
        assert isinstance(outcome, ApiError)
        assert "ZeroDivisionError" in str(outcome)
        assert (bench.stored(), bench.queue.is_empty) == (["b"], True)

    run(scenario)


SLOW_S = 0.002
MOST = round((FIRST_TURNS_S + TURN_S) / SLOW_S) + 2
"""Of batches that take SLOW_S: what one turn of the loop may append; the last of each kind may overdraw."""
NAMES = [chr(ord("A") + number) for number in range(50)]


@pytest.mark.parametrize("settings", [{"cleanup_policy": "compact"}, {"compression_type": "gzip"}], ids=str)
def test_many_small_ones_have_some_ms_of_each_turn_together(settings: dict[str, Any]) -> None:
    async def scenario() -> None:
        bench = Bench(**{"compression_type": "producer", **settings})
        bench.step_s = SLOW_S
        run_all = [name for name in NAMES if bench.append(name) is not None]
        assert 0 < len(run_all) <= MOST
        assert bench.stored() == run_all
        for number in range(len(bench.threads.calls)):
            await bench.threads.end(number)
        before = len(bench.outcomes)
        while len(bench.outcomes) < len(NAMES) - len(run_all):
            await asyncio.sleep(0)
            assert len(bench.outcomes) - before <= MOST
            before = len(bench.outcomes)
        assert bench.stored() == NAMES
        assert [*run_all, *bench.outcomes] == NAMES, "answered in order"
        await asyncio.sleep(0)
        assert bench.append("a") is not None, "and now at once again"

    run(scenario)


def test_what_a_thread_held_up_comes_in_turns_too() -> None:
    async def scenario() -> None:
        bench = Bench("producer", limit=4 << 20, cleanup_policy="compact")
        assert bench.append("0", bytes(1 << 20), codec=Codec.ZSTD) is None
        await asyncio.sleep(0)
        assert len(bench.threads.calls) == 1
        for name in NAMES:
            assert bench.append(name) is None
        bench.step_s = SLOW_S
        await bench.threads.end(0)
        assert 0 < len(bench.outcomes) <= 2 * MOST
        for _ in NAMES:
            await asyncio.sleep(0)
        assert bench.stored() == ["0", *NAMES] == list(bench.outcomes)

    run(scenario)


def test_at_the_end_those_that_have_turns_are_told_as_well() -> None:
    async def scenario() -> None:
        bench = Bench("producer", cleanup_policy="compact")
        bench.step_s = SLOW_S
        run_all = [name for name in NAMES if bench.append(name) is not None]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stored = bench.stored()
        assert len(run_all) < len(stored) < len(NAMES)
        bench.partition.close_queue()
        refused = [name for name, outcome in bench.outcomes.items() if isinstance(outcome, NotLeaderOrFollower)]
        assert [*stored, *refused] == NAMES
        await asyncio.sleep(0)
        assert bench.stored() == stored

    run(scenario)


def test_an_answer_that_fails_stops_nobody_else() -> None:
    async def scenario() -> None:
        bench = Bench("producer", cleanup_policy="compact")
        told: list[dict[str, Any]] = []

        def fail() -> None:
            raise ZeroDivisionError

        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        batch = make_batch(b"a", timestamps=[bench.disk.now_ms])
        bench.queue.examine(memoryview(batch), lambda _: fail())
        assert bench.append("b") is None
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert isinstance(told[0]["exception"], ZeroDivisionError)
        assert (bench.stored(), list(bench.outcomes)) == (["a", "b"], ["b"])

    run(scenario)
