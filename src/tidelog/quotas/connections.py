"""Limits on the rate of new connections: for the whole broker, and for one IP address (KIP-612)."""

from tidelog.config.addresses import normal_ip
from tidelog.quotas.entities import CONNECTION_CREATION_RATE, Quotas
from tidelog.quotas.limits import AddressLimits
from tidelog.quotas.sensors import Sensors
from tidelog.quotas.windows import Rate, Window


class ConnectionQuotas:
    """`max.connection.creation.rate` and the quotas `connection_creation_rate` of IP addresses.

    No computed wait is longer than one sample of the quota window.
    """

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
        """Count one connection. Return the time in milliseconds during which the broker accepts no further
        connection.

        `bound` is in connections per second. With 0, the time is one sample of the quota window.
        """
        self._all.record(1, self._window, now_ms)
        if not bound:
            return self._window.sample_ms
        return min(self._all.throttle_ms(bound, self._window, now_ms), self._window.sample_ms)

    def close_delay_ms(self, address: str, now_ms: int) -> int:
        """If a connection from `address` is within the limit, count it and return 0. If no limit applies, return 0.

        Otherwise the connection is not counted, and the caller closes it after the returned number of milliseconds.
        If it were closed immediately, the client would also reconnect immediately.
        """
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
