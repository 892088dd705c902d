"""The broker's quotas of clients: what is recorded of whom, and for how long a client has to wait."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from tidelog.quotas.entities import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Quotas,
)
from tidelog.quotas.limits import Limits
from tidelog.quotas.sensors import Sensors
from tidelog.quotas.windows import Rate, TokenBucket, Window

S = TypeVar("S")

ANONYMOUS: Final = "ANONYMOUS"
"""The user of every connection without authentication."""


class _Quota(Generic[S]):
    """One quota: its limits, and what each of those that have one has used, measured by `kind`."""

    __slots__ = ("_limits", "_sensors", "_window")

    def __init__(self, kind: Callable[[], S], window: Window) -> None:
        self._window = window
        self._limits = Limits({}, "")
        self._sensors: Sensors[S] = Sensors(kind)

    def set(self, limits: Limits) -> None:
        self._limits = limits
        if not limits:
            self._sensors.clear()

    def applies(self, user: str, client_id: str) -> bool:
        return self._limits.of(user, client_id) is not None


class RateQuota(_Quota[Rate]):
    """One quota of a rate: bytes, or percent of a thread."""

    __slots__ = ("_throttle_max_ms",)

    def __init__(self, window: Window, *, throttle_max_ms: int | None = None) -> None:
        super().__init__(Rate, window)
        self._throttle_max_ms = throttle_max_ms

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Count `value`; returns for how many milliseconds the client has to wait, 0 within its quota."""
        limit = self._limits.of(user, client_id)
        if limit is None:
            return 0
        sensor = self._sensors.of(limit.user, limit.client_id, now_ms)
        sensor.record(value, self._window, now_ms)
        throttle_ms = sensor.throttle_ms(limit.bound, self._window, now_ms)
        return throttle_ms if self._throttle_max_ms is None else min(throttle_ms, self._throttle_max_ms)

    def most(self, user: str, client_id: str) -> float | None:
        """What may come at once after a long pause without being over the quota; None without a quota."""
        limit = self._limits.of(user, client_id)
        if limit is None:
            return None
        return limit.bound * (self._window.samples - 1) * (self._window.sample_ms / 1000)


class MutationQuota(_Quota[TokenBucket]):
    """`controller_mutation_rate`: partitions made or deleted, in a second (KIP-599)."""

    __slots__ = ()

    def __init__(self, window: Window) -> None:
        super().__init__(TokenBucket, window)

    def take(self, user: str, client_id: str, count: int, now_ms: int, *, strict: bool) -> tuple[bool, int]:
        """Take `count` partitions: whether they may be made, and for how long the client has to wait.

        Who is not in debt yet may always take some. `strict`: who is gets none; otherwise they are taken, and the
        client only waits for longer.
        """
        limit = self._limits.of(user, client_id)
        if limit is None:
            return True, 0
        bucket = self._sensors.of(limit.user, limit.client_id, now_ms)
        if strict:
            throttle_ms = bucket.throttle_ms(limit.bound, self._window, now_ms)
            if throttle_ms or bucket.tokens(limit.bound, self._window, now_ms) < 0:
                return False, throttle_ms
            bucket.take(count, limit.bound, self._window, now_ms)
            return True, 0
        bucket.take(count, limit.bound, self._window, now_ms)
        return True, bucket.throttle_ms(limit.bound, self._window, now_ms)


class ClientQuotas:
    """All that clients have quotas of."""

    __slots__ = ("active", "fetch", "generation", "mutations", "produce", "requests")

    def __init__(self, window: Window, mutation_window: Window) -> None:
        self.active = False
        """Whether any client has any: where not, nothing is looked up or recorded."""
        self.generation = 0
        """Grows with every change: a key for caches."""
        self.produce = RateQuota(window)
        self.fetch = RateQuota(window)
        self.requests = RateQuota(window, throttle_max_ms=window.sample_ms)
        self.mutations = MutationQuota(mutation_window)

    def set(self, quotas: Quotas) -> None:
        """From now on these hold. What was recorded stays."""
        self.active = False
        self.generation += 1
        for quota, key in (
            (self.produce, PRODUCER_BYTE_RATE),
            (self.fetch, CONSUMER_BYTE_RATE),
            (self.requests, REQUEST_PERCENTAGE),
            (self.mutations, CONTROLLER_MUTATION_RATE),
        ):
            limits = Limits(quotas, key)
            quota.set(limits)
            self.active = self.active or bool(limits)

    def concern(self, user: str, client_id: str) -> bool:
        """Whether anything of that client's is counted."""
        return any(
            quota.applies(user, client_id) for quota in (self.produce, self.fetch, self.requests, self.mutations)
        )
