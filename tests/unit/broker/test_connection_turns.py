"""Long requests, handlers that run in steps, and clients that disconnect before the end."""

import asyncio
import struct
from typing import Any

import pytest

from connection_harness import (
    HEARTBEAT,
    PRODUCE,
    Bench,
    FakeStream,
    TimedSteps,
    frame,
    make_bench,
    wide_frame,
)
from tidelog.api.pending import Pending
from tidelog.broker import connection as connection_module
from tidelog.wire.errors import ErrorCode, InvalidRequest
from tidelog.wire.messages.heartbeat import HeartbeatResponse
from tidelog.wire.messages.produce import ProduceRequest, ProduceResponse


def test_steps_are_taken_in_turns_and_the_answer_keeps_its_place(bench: Bench) -> None:
    timed_steps = TimedSteps(bench)
    bench.answers = [timed_steps.steps(30, HeartbeatResponse())]
    bench.feed(frame(1) + frame(2))
    assert bench.correlation_ids() == []
    assert timed_steps.step_count < 5
    assert len(bench.requests) == 1
    bench.tasks.run()
    assert bench.correlation_ids() == [1, 2]
    assert timed_steps.step_count == 30


def test_what_comes_of_steps_may_be_anything_that_a_handler_gives(bench: Bench) -> None:
    pending: Pending[Any] = Pending()
    bench.answers = [TimedSteps(bench).steps(10, pending), TimedSteps(bench).steps(10, InvalidRequest("no"))]
    bench.feed(frame(1) + frame(2))
    bench.tasks.run()
    pending.complete(TimedSteps(bench).steps(10, HeartbeatResponse()))
    bench.tasks.run()
    assert bench.correlation_ids() == [1, 2]
    assert bench.stream.sent[-2:] == struct.pack(">h", ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("key", [HEARTBEAT, PRODUCE])
def test_a_long_request_is_answered_as_a_short_one(bench: Bench, key: int) -> None:
    version = 3 if key == HEARTBEAT else 7
    bench.feed(frame(1, key, version) + wide_frame(2, key, version) + frame(3, key, version))
    bench.tasks.run()
    assert bench.correlation_ids() == [1, 2, 3]
    assert bench.requests[0] == bench.requests[1]


def test_produce_requests_do_not_overtake_one_that_has_turns(bench: Bench) -> None:
    pending: Pending[ProduceResponse] = Pending()
    bench.answers = [TimedSteps(bench).steps(10, pending)]
    bench.feed(wide_frame(1, PRODUCE, 7) + frame(2, PRODUCE, 7))
    assert len(bench.requests) == 1
    bench.tasks.run()
    assert len(bench.requests) == 2  # appended, and waiting: now the next may be appended
    assert bench.correlation_ids() == []
    pending.complete(ProduceResponse())
    assert bench.correlation_ids() == [1, 2]


def test_nobody_writes_to_what_a_request_in_turns_lies_in(bench: Bench) -> None:
    before = bench.listener.buffer.obj
    bench.answers = [TimedSteps(bench).steps(10, HeartbeatResponse())]
    bench.feed(wide_frame(1))
    assert bench.listener.buffer.obj is not before
    assert bench.bounds.frame_bytes == len(before)
    bench.tasks.run()
    assert bench.bounds.frame_bytes == 0
    assert bench.correlation_ids() == [1]


def test_the_work_for_a_client_that_has_gone_is_abandoned(bench: Bench) -> None:
    timed_steps = TimedSteps(bench)
    bench.answers = [timed_steps.steps(100, HeartbeatResponse())]
    bench.feed(wide_frame(1))
    bench.connection.closed(None)
    assert timed_steps.abandoned
    taken = timed_steps.step_count
    bench.tasks.run()
    assert timed_steps.step_count == taken
    assert bench.stream.sent == b""
    assert bench.bounds.frame_bytes == 0


def test_steps_that_come_too_late_are_not_begun(bench: Bench) -> None:
    pending: Pending[Any] = Pending()
    timed_steps = TimedSteps(bench)

    async def later() -> Any:
        return timed_steps.steps(10, HeartbeatResponse())

    async def scenario() -> None:
        bench.answers = [later()]
        bench.feed(frame(1))
        bench.connection.closed(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert timed_steps.step_count == 0
    assert not pending.done


def test_a_long_request_that_is_malformed_closes_the_connection(bench: Bench) -> None:
    bench.feed(frame(1, body=b"\x7f\xff" + bytes(connection_module.WIDE_REQUEST_BYTES)))
    assert bench.stream.ended == "aborted"


def test_a_draining_connection_answers_what_has_turns(bench: Bench) -> None:
    bench.answers = [TimedSteps(bench).steps(50, HeartbeatResponse())]
    bench.feed(frame(1))
    bench.connection.drain()
    assert bench.stream.ended == ""
    bench.tasks.run()
    assert bench.correlation_ids() == [1]
    assert bench.stream.ended == "finished"


# Clients that leave


def two_wide_produces(bench: Bench) -> TimedSteps:
    """The first has begun; behind it is one more, and one after a request that changes nothing."""
    timed_steps = TimedSteps(bench)
    bench.answers = [timed_steps.steps(100, None)]
    bench.feed(wide_frame(1, PRODUCE, 7) + frame(2, PRODUCE, 7) + frame(3) + frame(4, PRODUCE, 7))
    assert 0 < timed_steps.step_count < 10
    return timed_steps


def test_what_a_client_asked_for_before_it_left_is_done(bench: Bench) -> None:
    timed_steps = two_wide_produces(bench)
    held = bench.bounds.frame_bytes
    bench.connection.closed(None)
    assert not bench.listener._connections
    assert bench.bounds.frame_bytes == held  # nobody may write there
    bench.tasks.run()
    assert timed_steps.step_count == 100
    assert [type(request) for request in bench.requests] == [ProduceRequest] * 3
    assert bench.stream.sent == b""
    assert (bench.bounds.frame_bytes, bench.listener._ending) == (0, {})
    assert not bench.connection.open


def test_a_connection_that_is_closed_ends_what_was_begun_and_begins_no_more(bench: Bench) -> None:
    timed_steps = two_wide_produces(bench)
    bench.connection.close("a test")
    bench.tasks.run()
    assert timed_steps.step_count == 100
    assert len(bench.requests) == 1
    assert (bench.bounds.frame_bytes, bench.listener._ending) == (0, {})


def test_nothing_is_handled_behind_what_breaks_the_protocol(bench: Bench) -> None:
    bench.answers = [Pending()]
    bench.feed(frame(1, PRODUCE, 7) + frame(2, PRODUCE, 99, b"") + frame(3, PRODUCE, 7))
    bench.tasks.run()
    assert len(bench.requests) == 1
    assert bench.stream.ended == "aborted"


def test_requests_of_clients_that_left_count_against_the_budget_until_they_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = make_bench(monkeypatch, queued_max_request_bytes=(1 << 20) + 1000)
    timed_steps = two_wide_produces(bench)
    bench.connection.closed(None)
    late = FakeStream()
    bench.feed(struct.pack(">i", 2000) + b"x", connection=bench.connect(late))
    assert late.ended == "aborted"
    bench.tasks.run()
    assert timed_steps.step_count == 100
    assert bench.bounds.frame_bytes == 0
    later = FakeStream()
    bench.feed(struct.pack(">i", 2000) + b"x", connection=bench.connect(later))
    assert later.ended == ""


def test_the_steps_of_an_answer_are_not_taken_for_a_client_that_left(bench: Bench) -> None:
    pending: Pending[Any] = Pending()
    building = TimedSteps(bench)
    bench.answers = [TimedSteps(bench).steps(10, pending)]
    bench.feed(wide_frame(1, PRODUCE, 7))
    bench.tasks.run()
    bench.connection.closed(None)
    assert bench.connection.open  # its batches may be still to be appended
    pending.complete(building.steps(10, ProduceResponse()))
    bench.tasks.run()
    assert building.step_count == 0
    assert not bench.connection.open


def test_a_stop_waits_for_the_requests_of_clients_that_left(bench: Bench) -> None:
    timed_steps = two_wide_produces(bench)
    bench.connection.closed(None)

    async def scenario() -> None:
        bench.tasks.future = asyncio.get_running_loop().create_future  # type: ignore[attr-defined]
        draining = asyncio.ensure_future(bench.listener.drain(1.0))
        await asyncio.sleep(0)
        assert not draining.done()
        bench.tasks.run()
        await draining

    asyncio.run(scenario())
    assert timed_steps.step_count == 100
    assert len(bench.requests) == 1  # what was not begun is not
    assert bench.bounds.frame_bytes == 0
