"""The arithmetic of quotas, compared with results of Kafka's classes and with plain sums."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.quotas.windows import THROTTLE_MS_MAX, Rate, TokenBucket, Window

GOLDEN = Path(__file__).parents[2] / "golden/quotas/kafka-4.3.1.tsv"
ELEVEN = Window(11, 1000)


def traces() -> dict[str, list[list[str]]]:
    runs: dict[str, list[list[str]]] = defaultdict(list)
    for line in GOLDEN.read_text().splitlines():
        kind, run, *_ = fields = line.split("\t")
        runs[f"{kind}-{run}"].append(fields)
    return runs


@pytest.mark.parametrize("run", traces())
def test_throttle_times_are_kafkas(run: str) -> None:
    rate, bucket = Rate(), TokenBucket()
    throttled = 0
    for kind, _, samples, seconds, bound_text, at, value_text, throttle in traces()[run]:
        window, bound, value, now_ms = (
            Window(int(samples), int(seconds) * 1000),
            float(bound_text),
            float(value_text),
            int(at),
        )
        if kind == "rate":
            rate.record(value, window, now_ms)
            found = rate.throttle_ms(bound, window, now_ms)
        else:
            bucket.take(value, bound, window, now_ms)
            found = bucket.throttle_ms(bound, window, now_ms)
        assert found == int(throttle), f"at {at} ms"
        throttled += found > 0
    assert throttled, "a run in which nobody waits shows nothing"


Events = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 5000)), min_size=1, max_size=80)
"""Milliseconds since the one before, and a value."""


@given(Events, st.integers(2, 11), st.integers(1, 3))
def test_a_rate_is_no_less_than_that_of_the_last_full_windows(
    events: list[tuple[int, int]], samples: int, seconds: int
) -> None:
    """What came within the last `samples - 1` windows counts in full, what is older than `samples + 1` not at all."""
    window = Window(samples, seconds * 1000)
    rate, now_ms, seen = Rate(), 0, list[tuple[int, int]]()
    for pause_ms, value in events:
        now_ms += pause_ms
        rate.record(value, window, now_ms)
        seen.append((now_ms, value))
        measured = rate.measure(window, now_ms)
        span_ms = rate.span_ms(window, now_ms)
        assert (samples - 1) * window.sample_ms <= span_ms <= (samples + 1) * window.sample_ms
        least = sum(v for at, v in seen if now_ms - at < (samples - 1) * window.sample_ms)
        most = sum(v for at, v in seen if now_ms - at < (samples + 1) * window.sample_ms)
        assert least * 1000 / span_ms - 1e-6 <= measured <= most * 1000 / span_ms + 1e-6


@given(Events, st.integers(1, 2000))
def test_who_waits_as_told_is_within_the_quota_again(events: list[tuple[int, int]], bound: int) -> None:
    """After the wait, a value of nothing finds the rate at the bound or below."""
    rate, now_ms = Rate(), 0
    for pause_ms, value in events:
        now_ms += pause_ms
        rate.record(value, ELEVEN, now_ms)
        throttle_ms = rate.throttle_ms(bound, ELEVEN, now_ms)
        span_ms = rate.span_ms(ELEVEN, now_ms)
        total = rate.measure(ELEVEN, now_ms) * span_ms / 1000
        if total * 1000 / span_ms > bound * (1 + 1e-9):
            assert abs(total * 1000 / (span_ms + throttle_ms) - bound) <= bound * 0.001 + 1
        else:
            assert throttle_ms == 0


@given(Events, st.floats(0.01, 1000))
def test_a_bucket_is_refilled_and_never_over_full(events: list[tuple[int, int]], bound: float) -> None:
    """The naive model: tokens by time, capped."""
    bucket, now_ms, tokens, before_ms = TokenBucket(), 0, 11 * bound, 0
    for pause_ms, value in events:
        now_ms += pause_ms
        tokens = min(11 * bound, tokens + bound * (now_ms - before_ms) / 1000) - value
        before_ms = now_ms
        bucket.take(value, bound, ELEVEN, now_ms)
        assert bucket.tokens(bound, ELEVEN, now_ms) == pytest.approx(tokens, rel=1e-6, abs=1e-6)
        wait_ms = bucket.throttle_ms(bound, ELEVEN, now_ms)
        assert wait_ms == pytest.approx(min(max(-tokens, 0) / bound * 1000, THROTTLE_MS_MAX), rel=1e-6, abs=0.51)


def test_a_wait_fits_its_field() -> None:
    rate = Rate()
    rate.record(1 << 40, ELEVEN, 0)
    assert rate.throttle_ms(1, ELEVEN, 0) == THROTTLE_MS_MAX


def test_infinitely_much_is_never_too_much() -> None:
    rate, bucket = Rate(), TokenBucket()
    rate.record(1 << 40, ELEVEN, 0)
    assert rate.throttle_ms(float("inf"), ELEVEN, 0) == 0
    bucket.take(1 << 40, float("inf"), ELEVEN, 0)
    assert bucket.throttle_ms(float("inf"), ELEVEN, 5) == 0
