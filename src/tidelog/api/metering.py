"""For clients with quotas: record how much each request uses, and compute its throttle time (KIP-13, 124, 219, 599)."""

from collections.abc import Callable
from typing import Any, Final

from tidelog.metadata.link import Requester
from tidelog.model.steps import Steps
from tidelog.quotas.client_quotas import ANONYMOUS, ClientQuotas

PRODUCE_KEY: Final = 0
MUTATIONS_REFUSED_SINCE: Final = {19: 6, 20: 5, 37: 3}
"""Since these versions, responses to CreateTopics, DeleteTopics and CreatePartitions may contain
THROTTLING_QUOTA_EXCEEDED. Requests of older versions are executed, and their clients are throttled afterwards."""
PERCENT: Final = 100.0


class Meter:
    """Measures one request. The usage is recorded when the response is known, and the throttle time is written into
    the response.
    """

    __slots__ = (
        "_began_s",
        "_clock",
        "_is_recorded",
        "_quotas",
        "_recorded_s",
        "_seconds",
        "_strict",
        "api_key",
        "client_id",
        "size",
        "throttle_ms",
        "user",
    )

    def __init__(
        self,
        quotas: ClientQuotas,
        clock: Callable[[], float],
        api_key: int,
        api_version: int,
        client_id: str | None,
        size: int,
    ) -> None:
        """`clock` returns monotonic seconds. `size` is the size of the request without its header."""
        self._quotas = quotas
        self._clock = clock
        self.api_key = api_key
        self.user = ANONYMOUS
        self.client_id = client_id or ""
        self.size = size
        self.throttle_ms = 0
        """Time for which the connection is not read after the response."""
        self._strict = api_version >= MUTATIONS_REFUSED_SINCE.get(api_key, 0)
        """Whether the controller refuses to create or delete partitions beyond the quota (see `MutationQuota.take`)."""
        self._seconds = 0.0
        """The measured time of the request on the event loop."""
        self._recorded_s = 0.0
        """The part of `_seconds` that `_percent` has returned already."""
        self._began_s: float | None = None
        self._is_recorded = False

    @property
    def next_request_waits(self) -> bool:
        """Whether the client's next request must wait for the response to this request. This is true if the client has
        a quota for produced bytes or for request time. If this request exceeds the quota, the client must be throttled
        before its next request is handled.
        """
        quotas = self._quotas
        return quotas.produce.applies(self.user, self.client_id) or quotas.requests.applies(self.user, self.client_id)

    # Time on the event loop

    def start(self) -> None:
        self._began_s = self._clock()

    def stop(self) -> None:
        if self._began_s is not None:
            self._seconds += self._clock() - self._began_s
            self._began_s = None

    def measure(self, steps: Steps[Any]) -> Steps[Any]:
        """Run `steps` and add their time to the time of the request."""
        try:
            while True:
                self.start()
                try:
                    next(steps)
                except StopIteration as end:
                    return end.value
                finally:
                    self.stop()
                yield
        finally:
            steps.close()

    def _percent(self) -> float:
        """Return the time measured since the last call, in percent of a second."""
        if self._began_s is not None:
            self.stop()
            self.start()
        used_s = self._seconds - self._recorded_s
        self._recorded_s = self._seconds
        return used_s * PERCENT

    # Usage

    @property
    def requester(self) -> Requester:
        """The client's identity for the controller, which counts the partitions that the request creates or deletes."""
        return Requester(self.user, self.client_id, self._strict)

    def throttle(self, throttle_ms: int) -> None:
        """Throttle the client for at least the time that the controller has computed."""
        self.throttle_ms = max(self.throttle_ms, throttle_ms)

    @property
    def fetch_bytes_max(self) -> int | None:
        """Upper bound on the bytes of one fetch; None without a quota. A larger fetch would exceed the quota even
        after a long pause, so it could never be answered.
        """
        burst_max = self._quotas.fetch.burst_max(self.user, self.client_id)
        return None if burst_max is None else int(min(burst_max, 2**31 - 1))

    def record_fetch(self, size: int) -> int:
        """Record a fetch response of `size` bytes, and return the throttle time in ms: 0 if the client is within its
        quotas for fetches and for request time.

        If the throttle time is not 0, the bytes are not counted, and the caller must send an empty response instead.
        """
        self._is_recorded = True
        now_ms = self._now_ms()
        quotas, user, client_id = self._quotas, self.user, self.client_id
        request_ms = quotas.requests.record(user, client_id, self._percent(), now_ms)
        self.throttle_ms = max(request_ms, quotas.fetch.record(user, client_id, size, now_ms))
        if self.throttle_ms:
            quotas.fetch.record(user, client_id, -size, now_ms)
        return self.throttle_ms

    def record_usage(self, response: Any) -> None:
        """Record the request's usage. If `response` is not None, write the throttle time into it."""
        if not self._is_recorded:
            self._is_recorded = True
            now_ms = self._now_ms()
            quotas, user, client_id = self._quotas, self.user, self.client_id
            if self.api_key == PRODUCE_KEY:
                self.throttle_ms = quotas.produce.record(user, client_id, self.size, now_ms)
            percent = self._percent()
            if response is not None:
                # As in Kafka, the time of a request without a response (acks=0) is not counted.
                request_ms = quotas.requests.record(user, client_id, percent, now_ms)
                self.throttle_ms = max(self.throttle_ms, request_ms)
        if response is not None:
            response.throttle_time_ms = self.throttle_ms

    def record_encoding(self) -> None:
        """Record how long the encoding of the response took. This time can throttle only later requests."""
        percent = self._percent()
        if percent > 0:
            self._quotas.requests.record(self.user, self.client_id, percent, self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def measure_steps(meter: Meter | None, steps: Steps[Any]) -> Steps[Any]:
    """If there is a meter, return steps that run `steps` and measure their time. Otherwise return `steps`."""
    return steps if meter is None else meter.measure(steps)
