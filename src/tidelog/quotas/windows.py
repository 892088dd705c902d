"""The arithmetic of quotas, as Kafka has it: a rate over a sliding window, and a bucket of tokens (KIP-599)."""

from typing import Final, NamedTuple

THROTTLE_MS_MAX: Final = 2**31 - 1
"""What `throttle_time_ms` can say."""


class Window(NamedTuple):
    """How long is looked back (`quota.window.num`, `quota.window.size.seconds`)."""

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
    """A sum over the last samples, by the time that they took.

    A sample takes what comes within `sample_ms` of its beginning and counts until `samples * sample_ms` after its last
    value; there are `samples + 1` at the most. While less than `samples - 1` of them could be full, the time is taken
    as if so many were: a first value is no burst.
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
        """What the sum is divided by; at least 1."""
        self._forget(window, now_ms)
        elapsed = now_ms - min(sample.began_ms for sample in self._samples)
        full = elapsed // window.sample_ms
        return max(elapsed + max(window.samples - 1 - full, 0) * window.sample_ms, 1)

    def measure(self, window: Window, now_ms: int) -> float:
        """Per second."""
        span_ms = self.span_ms(window, now_ms)
        return sum(sample.sum for sample in self._samples) / (span_ms / 1000)

    def throttle_ms(self, bound: float, window: Window, now_ms: int) -> int:
        """For how long nothing may come until the rate is `bound` again; 0 when it is not over it."""
        rate = self.measure(window, now_ms)
        if rate <= bound:
            return 0
        return _rounded((rate - bound) / bound * self.span_ms(window, now_ms))

    def _forget(self, window: Window, now_ms: int) -> None:
        """What is too old begins anew: an empty sample still says since when there has been nothing."""
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        expire_ms = window.samples * window.sample_ms
        for sample in samples:
            if now_ms - sample.last_ms >= expire_ms:
                sample.reset(now_ms)


class TokenBucket:
    """Holds `rate` tokens for each second of the window at the most; what is taken may leave it in debt."""

    __slots__ = ("_tokens", "_updated_ms")

    def __init__(self) -> None:
        self._tokens: float | None = None  # full, whatever that is
        self._updated_ms = 0

    def take(self, count: float, rate: float, window: Window, now_ms: int) -> None:
        burst = _burst(rate, window)
        self._tokens = min(burst, self.tokens(rate, window, now_ms) - count)

    def tokens(self, rate: float, window: Window, now_ms: int) -> float:
        """What is in it now; below 0 is debt."""
        burst = _burst(rate, window)
        if self._tokens is None:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + rate * ((now_ms - self._updated_ms) / 1000))
        self._updated_ms = now_ms
        return self._tokens

    def throttle_ms(self, rate: float, window: Window, now_ms: int) -> int:
        """How long the debt lasts; 0 without one."""
        tokens = self.tokens(rate, window, now_ms)
        return _rounded(-tokens / rate * 1000) if tokens < 0 else 0


def _burst(rate: float, window: Window) -> float:
    return window.samples * (window.sample_ms / 1000) * rate


def _rounded(value: float) -> int:
    """To the nearest, halves up; capped where a float has no whole number any more."""
    return int(min(value, THROTTLE_MS_MAX) + 0.5)
