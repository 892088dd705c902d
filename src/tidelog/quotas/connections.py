"""How fast connections may come: to the broker, and from one address."""

from tidelog.config.addresses import normal_ip
from tidelog.quotas.entities import CONNECTION_CREATION_RATE, Quotas
from tidelog.quotas.limits import AddressLimits
from tidelog.quotas.sensors import Sensors
from tidelog.quotas.windows import Rate, Window


class ConnectionQuotas:
    """`max.connection.creation.rate` and the addresses' `connection_creation_rate`. No wait is over one sample."""

    __slots__ = ("_addresses", "_all", "_limits", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._all = Rate()
        self._limits = AddressLimits({}, "")
        self._addresses: Sensors[Rate] = Sensors(Rate)

    def set(self, quotas: Quotas) -> None:
        self._limits = AddressLimits(quotas, CONNECTION_CREATION_RATE)
        if not self._limits:
            self._addresses.clear()

    def broker_wait_ms(self, bound: float, now_ms: int) -> int:
        """Count one connection; for how long no other is to be accepted. `bound`: connections a second."""
        self._all.record(1, self._window, now_ms)
        if not bound:
            return self._window.sample_ms
        return min(self._all.throttle_ms(bound, self._window, now_ms), self._window.sample_ms)

    def refused_ms(self, address: str, now_ms: int) -> int:
        """Count a connection from `address`; where that is one too many it is not counted, and is to be closed after
        so many milliseconds: a client that is shut out at once comes back at once."""
        if not self._limits:
            return 0
        address = normal_ip(address.strip("[]")) or address
        bound = self._limits.of(address)
        if bound is None:
            return 0
        rate = self._addresses.of(address, "", now_ms)
        rate.record(1, self._window, now_ms)
        wait_ms = min(rate.throttle_ms(bound, self._window, now_ms), self._window.sample_ms)
        if wait_ms:
            rate.record(-1, self._window, now_ms)
        return wait_ms
