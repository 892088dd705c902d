"""Kafka's quota arithmetic: a rate over a sliding window of samples, and a token bucket (KIP-599)."""

from typing import Final, NamedTuple

THROTTLE_MS_MAX: Final = 2**31 - 1
"""The largest value of the field `throttle_time_ms`."""


class Window(NamedTuple):
    """Number and length of the samples from which a rate is computed (`quota.window.num`,
    `quota.window.size.seconds`).
    """

    samples: int
    sample_ms: int


class _Sample:
    __slots__ = ("began_ms", "last_ms", "sum")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.began_ms = now_ms
        self.last_ms = now_ms
        self.sum = 0.0


class Rate:
    """The sum of the recent samples, divided by the time that they cover.

    A sample collects the values that are recorded within `sample_ms` after its start. It expires `samples *
    sample_ms` after its last value. At most `samples + 1` samples exist. If the covered time contains fewer than
    `samples - 1` full samples, the length of the missing samples is added to this time, so that the first value alone
    does not look like a burst.
    """

    __slots__ = ("_current", "_samples")

    def __init__(self) -> None:
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, window: Window, now_ms: int) -> None:
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        sample = samples[self._current]
        if now_ms - sample.began_ms >= window.sample_ms:
            self._current = (self._current + 1) % (window.samples + 1)
            if self._current >= len(samples):
                samples.append(_Sample(now_ms))
            sample = samples[self._current]
            sample.reset(now_ms)
        sample.sum += value
        sample.last_ms = now_ms

    def span_ms(self, window: Window, now_ms: int) -> int:
        """Reset the expired samples, and return the time by which the sum is divided, in ms; at least 1."""
        self._reset_expired(window, now_ms)
        elapsed = now_ms - min(sample.began_ms for sample in self._samples)
        full = elapsed // window.sample_ms
        return max(elapsed + max(window.samples - 1 - full, 0) * window.sample_ms, 1)

    def measure(self, window: Window, now_ms: int) -> float:
        """Reset the expired samples, and return the rate per second."""
        span_ms = self.span_ms(window, now_ms)
        return sum(sample.sum for sample in self._samples) / (span_ms / 1000)

    def throttle_ms(self, bound: float, window: Window, now_ms: int) -> int:
        """Return the time for which the client must be idle until its rate has fallen to `bound`; 0 if the rate does
        not exceed `bound`.
        """
        rate = self.measure(window, now_ms)
        if rate <= bound:
            return 0
        return _round_ms((rate - bound) / bound * self.span_ms(window, now_ms))

    def _reset_expired(self, window: Window, now_ms: int) -> None:
        """Reset expired samples. A reset sample begins now and remains in the list. So the covered time includes the
        time for which the client is idle from now on.
        """
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        expire_ms = window.samples * window.sample_ms
        for sample in samples:
            if now_ms - sample.last_ms >= expire_ms:
                sample.reset(now_ms)


class TokenBucket:
    """A bucket that gains `rate` tokens per second, up to `rate` times the window's length. The number of tokens may
    become negative (debt).
    """

    __slots__ = ("_tokens", "_updated_ms")

    def __init__(self) -> None:
        self._tokens: float | None = None  # None means a full bucket; its first use computes the capacity
        self._updated_ms = 0

    def take(self, count: float, rate: float, window: Window, now_ms: int) -> None:
        burst = _burst(rate, window)
        self._tokens = min(burst, self.tokens(rate, window, now_ms) - count)

    def tokens(self, rate: float, window: Window, now_ms: int) -> float:
        """Refill the bucket for the time until now, and return its tokens. A negative number means debt."""
        burst = _burst(rate, window)
        if self._tokens is None:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + rate * ((now_ms - self._updated_ms) / 1000))
        self._updated_ms = now_ms
        return self._tokens

    def throttle_ms(self, rate: float, window: Window, now_ms: int) -> int:
        """Return the time until the bucket has no debt any more; 0 if it has no debt now."""
        tokens = self.tokens(rate, window, now_ms)
        return _round_ms(-tokens / rate * 1000) if tokens < 0 else 0


def _burst(rate: float, window: Window) -> float:
    """Return the capacity of a token bucket."""
    return window.samples * (window.sample_ms / 1000) * rate


def _round_ms(value: float) -> int:
    """Round to the nearest integer. Halves are rounded up, and the result is at most THROTTLE_MS_MAX."""
    return int(min(value, THROTTLE_MS_MAX) + 0.5)
