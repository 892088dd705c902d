"""What one request of a client with quotas uses, and how long the client waits for the next (KIP-13, 124, 219, 599)."""

from collections.abc import Callable
from typing import Any, Final

from tidelog.model.steps import Steps
from tidelog.quotas.client_quotas import ANONYMOUS, ClientQuotas

PRODUCE_KEY: Final = 0
METADATA_KEY: Final = 3
MUTATIONS_REFUSED_SINCE: Final = {19: 6, 20: 5, 37: 3}
"""CreateTopics, DeleteTopics and CreatePartitions know THROTTLING_QUOTA_EXCEEDED from these versions on; older ones
are carried out, and their clients wait for longer."""
PERCENT: Final = 100.0


class Meter:
    """Counts for one request. What it used is recorded once its answer is known, which then says how long to wait."""

    __slots__ = (
        "_began_s",
        "_clock",
        "_quotas",
        "_recorded_s",
        "_seconds",
        "_settled",
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
        """`clock`: seconds that never go back. `size`: of the request without its header."""
        self._quotas = quotas
        self._clock = clock
        self.api_key = api_key
        self.user = ANONYMOUS
        self.client_id = client_id or ""
        self.size = size
        self.throttle_ms = 0
        """For how long nothing more of the connection is read once it is answered."""
        self._strict = api_version >= MUTATIONS_REFUSED_SINCE.get(api_key, 0)
        self._seconds = 0.0
        self._recorded_s = 0.0
        self._began_s: float | None = None
        self._settled = False

    @property
    def one_at_a_time(self) -> bool:
        """Whether the client's next request has to wait for this one's answer: it may be over a quota by then."""
        quotas = self._quotas
        return quotas.produce.applies(self.user, self.client_id) or quotas.requests.applies(self.user, self.client_id)

    # The time of the broker's one thread

    def start(self) -> None:
        self._began_s = self._clock()

    def stop(self) -> None:
        if self._began_s is not None:
            self._seconds += self._clock() - self._began_s
            self._began_s = None

    def timed(self, steps: Steps[Any]) -> Steps[Any]:
        """The same steps, their time counted."""
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
        """Of a second of the thread, since this was last asked."""
        if self._began_s is not None:
            self.stop()
            self.start()
        used_s = self._seconds - self._recorded_s
        self._recorded_s = self._seconds
        return used_s * PERCENT

    # What it used

    def take_partitions(self, count: int) -> bool:
        """Whether so many partitions may be made or deleted now."""
        allowed, throttle_ms = self._quotas.mutations.take(
            self.user, self.client_id, count, self._now_ms(), strict=self._strict
        )
        if self.api_key != METADATA_KEY:  # which tells of topics that are not made yet, and is asked again
            self.throttle_ms = max(self.throttle_ms, throttle_ms)
        return allowed

    @property
    def fetch_most(self) -> int | None:
        """More bytes at once would be over the quota whatever came before: a fetch of them would never be answered."""
        most = self._quotas.fetch.burst_max(self.user, self.client_id)
        return None if most is None else int(min(most, 2**31 - 1))

    def fetched(self, size: int) -> int:
        """Record a fetch's answer of `size` bytes. Where it is over a quota, its bytes are not counted, and it is to be
        emptied and to say the milliseconds that are returned."""
        self._settled = True
        now_ms = self._now_ms()
        quotas, user, client_id = self._quotas, self.user, self.client_id
        request_ms = quotas.requests.record(user, client_id, self._percent(), now_ms)
        self.throttle_ms = max(request_ms, quotas.fetch.record(user, client_id, size, now_ms))
        if self.throttle_ms:
            quotas.fetch.record(user, client_id, -size, now_ms)
        return self.throttle_ms

    def settle(self, response: Any) -> None:
        """Record what the request used; `response`, None where there is none, says for how long to wait."""
        if not self._settled:
            self._settled = True
            now_ms = self._now_ms()
            quotas, user, client_id = self._quotas, self.user, self.client_id
            if self.api_key == PRODUCE_KEY:
                self.throttle_ms = quotas.produce.record(user, client_id, self.size, now_ms)
            percent = self._percent()
            if response is not None:
                # As in Kafka, the time of what is not answered (acks=0) is nobody's.
                request_ms = quotas.requests.record(user, client_id, percent, now_ms)
                self.throttle_ms = max(self.throttle_ms, request_ms)
        if response is not None:
            response.throttle_time_ms = self.throttle_ms

    def sent(self) -> None:
        """Record what the answer's own encoding took. It delays only what comes after."""
        percent = self._percent()
        if percent > 0:
            self._quotas.requests.record(self.user, self.client_id, percent, self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def timed(meter: Meter | None, steps: Steps[Any]) -> Steps[Any]:
    """The steps; timed, where there is a meter."""
    return steps if meter is None else meter.timed(steps)
