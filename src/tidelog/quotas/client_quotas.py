"""The broker's client quotas: record each client's usage, and compute its throttle time."""

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
    """One quota: the limits of users and client ids, and the sensors of the clients that have a limit. If one
    limit applies to several clients together, they share a sensor.
    """

    __slots__ = ("_limits", "_sensors", "_window")

    def __init__(self, make_sensor: Callable[[], S], window: Window) -> None:
        self._window = window
        self._limits = Limits({}, "")
        self._sensors: Sensors[S] = Sensors(make_sensor)

    def set(self, limits: Limits) -> None:
        """Replace the limits. The recorded usage is retained if any limit remains."""
        self._limits = limits
        if not limits:
            self._sensors.clear()

    def applies(self, user: str, client_id: str) -> bool:
        return self._limits.of(user, client_id) is not None


class RateQuota(_Quota[Rate]):
    """A quota on a rate: bytes per second, or percent of one thread's time."""

    __slots__ = ("_throttle_max_ms",)

    def __init__(self, window: Window, *, throttle_max_ms: int | None = None) -> None:
        super().__init__(Rate, window)
        self._throttle_max_ms = throttle_max_ms

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Record `value` and return the throttle time in ms; 0 if the client is within its quota or has none."""
        limit = self._limits.of(user, client_id)
        if limit is None:
            return 0
        sensor = self._sensors.of(limit.user, limit.client_id, now_ms)
        sensor.record(value, self._window, now_ms)
        throttle_ms = sensor.throttle_ms(limit.bound, self._window, now_ms)
        return throttle_ms if self._throttle_max_ms is None else min(throttle_ms, self._throttle_max_ms)

    def burst_max(self, user: str, client_id: str) -> float | None:
        """Return the largest `value` with which one call of `record`, after an idle time, does not exceed the client's
        quota. Return None if the client has no quota.
        """
        limit = self._limits.of(user, client_id)
        if limit is None:
            return None
        # After an idle time, the rate is the value divided by the length of `samples - 1` samples: see `Rate.span_ms`.
        return limit.bound * (self._window.samples - 1) * (self._window.sample_ms / 1000)


class MutationQuota(_Quota[TokenBucket]):
    """`controller_mutation_rate`: partitions created or deleted per second (KIP-599)."""

    __slots__ = ()

    def __init__(self, window: Window) -> None:
        super().__init__(TokenBucket, window)

    def take(self, user: str, client_id: str, count: int, now_ms: int, *, strict: bool) -> tuple[bool, int]:
        """Remove `count` tokens, one for each partition, from the client's bucket. Return (allowed, throttle time in
        ms).

        A client without debt may use more tokens than it has, and is then in debt. With `strict`, a client in debt is
        refused. Without `strict`, a client in debt is allowed, and its debt and its throttle time grow. A client
        without a quota is always allowed.
        """
        limit = self._limits.of(user, client_id)
        if limit is None:
            return True, 0
        bucket = self._sensors.of(limit.user, limit.client_id, now_ms)
        if strict:
            throttle_ms = bucket.throttle_ms(limit.bound, self._window, now_ms)
            # The throttle time of a small debt is rounded to 0, but the client is still in debt.
            if throttle_ms or bucket.tokens(limit.bound, self._window, now_ms) < 0:
                return False, throttle_ms
            bucket.take(count, limit.bound, self._window, now_ms)
            return True, 0
        bucket.take(count, limit.bound, self._window, now_ms)
        return True, bucket.throttle_ms(limit.bound, self._window, now_ms)


class ClientQuotas:
    """All client quotas: produced bytes, fetched bytes, request time and partition mutations."""

    __slots__ = ("active", "fetch", "generation", "mutations", "produce", "requests")

    def __init__(self, window: Window, mutation_window: Window) -> None:
        self.active = False
        """Whether any quota is set. While it is False, callers skip look-ups and recording."""
        self.generation = 0
        """Incremented by every change of the quotas; callers use it to invalidate their caches."""
        self.produce = RateQuota(window)
        self.fetch = RateQuota(window)
        self.requests = RateQuota(window, throttle_max_ms=window.sample_ms)
        self.mutations = MutationQuota(mutation_window)

    def set(self, quotas: Quotas) -> None:
        """Replace all quotas. Recorded usage is retained, except for a quota that no client has any longer."""
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

    def has_quota(self, user: str, client_id: str) -> bool:
        """Return whether any quota applies to this client."""
        return any(
            quota.applies(user, client_id) for quota in (self.produce, self.fetch, self.requests, self.mutations)
        )
