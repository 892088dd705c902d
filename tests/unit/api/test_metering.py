"""The meter of one request: the thread's time in percent, and the throttle time in its answer."""

from typing import Any

import pytest

from tidelog.api.metering import Meter
from tidelog.model.steps import Steps, run_all
from tidelog.quotas.client_quotas import ClientQuotas
from tidelog.quotas.entities import entity_of
from tidelog.quotas.windows import Window
from tidelog.wire.messages.heartbeat import HeartbeatResponse
from tidelog.wire.messages.produce import ProduceResponse

WINDOW = Window(11, 1000)
HEARTBEAT, PRODUCE = 12, 0


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def meter(clock: Clock, api_key: int = HEARTBEAT, size: int = 0, **quotas: float) -> Meter:
    made = ClientQuotas(WINDOW, WINDOW)
    made.set({entity_of([("client-id", "c")]): quotas})
    return Meter(made, clock, api_key, 4, "c", size)


def test_the_time_of_steps_counts_and_that_between_them_does_not() -> None:
    """50 ms of the thread in ten seconds are half a percent."""
    clock = Clock()
    metered = meter(clock, request_percentage=0.45)

    def steps() -> Steps[str]:
        for _ in range(5):
            clock.now_s += 0.01
            yield
        return "done"

    timed = metered.measure(steps())
    with pytest.raises(StopIteration, match="done"):
        while True:
            next(timed)
            clock.now_s += 0.1
    answer = HeartbeatResponse()
    metered.record_usage(answer)
    assert answer.throttle_time_ms == 1000
    other = meter(clock, request_percentage=0.55)
    assert run_all(other.measure(steps())) == "done"
    other.record_usage(answer)
    assert answer.throttle_time_ms == 0


def test_the_longer_wait_counts() -> None:
    clock = Clock()
    metered = meter(clock, PRODUCE, 20_000, producer_byte_rate=1000.0, request_percentage=0.01)
    metered.start()
    clock.now_s += 1
    metered.stop()
    answer = ProduceResponse()
    metered.record_usage(answer)
    assert answer.throttle_time_ms == metered.throttle_ms == 10_000


def test_what_is_not_answered_counts_by_its_bytes_alone() -> None:
    clock = Clock()
    metered = meter(clock, PRODUCE, 1000, request_percentage=0.01)
    metered.start()
    clock.now_s += 1
    metered.stop()
    metered.record_usage(None)
    metered.record_encoding()
    assert metered.throttle_ms == 0
    following = Meter(metered._quotas, clock, HEARTBEAT, 4, "c", 0)
    following.record_usage(HeartbeatResponse())
    assert following.throttle_ms == 0, "nor does it delay what is answered"
    metered = meter(clock, PRODUCE, 20_000, producer_byte_rate=1000.0)
    metered.record_usage(None)
    assert metered.throttle_ms == 10_000


def test_a_fetch_over_its_quota_is_not_counted() -> None:
    clock = Clock()
    metered = meter(clock, 1, consumer_byte_rate=100.0)
    assert metered.fetch_bytes_max == 1000
    assert metered.record_fetch(5000) > 0
    again: Any = Meter(metered._quotas, clock, 1, 4, "c", 0)
    assert again.record_fetch(1000) == 0


def test_the_time_after_the_answer_is_for_the_next_one() -> None:
    clock = Clock()
    metered = meter(clock, request_percentage=1.0)
    metered.record_usage(HeartbeatResponse())
    metered.start()
    clock.now_s += 0.5
    metered.stop()
    metered.record_encoding()
    following = Meter(metered._quotas, clock, HEARTBEAT, 4, "c", 0)
    answer = HeartbeatResponse()
    following.record_usage(answer)
    assert answer.throttle_time_ms == 1000
