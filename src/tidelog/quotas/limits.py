"""Find the quota that applies to a client, by Kafka's order of precedence. Clients may share one quota."""

from typing import Final, NamedTuple

from tidelog.config.addresses import normal_ip
from tidelog.quotas.entities import CLIENT_ID, IP, USER, Quotas

_ABSENT: Final = object()
"""In a key of `Limits._bounds`, stands for the user or the client id that an entity does not have. (None means the
default user or client id.)"""


class Limit(NamedTuple):
    """The quota that applies to one client, and the key (user and client id) of the sensor that measures the use of
    this quota.
    """

    bound: float
    user: str
    """The user; "" if all users with this client id share the quota."""
    client_id: str
    """The client id; "" if all clients of the user share the quota."""


class Limits:
    """The quotas of one kind (`key`, such as producer_byte_rate), by user and client id."""

    __slots__ = ("_bounds",)

    def __init__(self, quotas: Quotas, key: str) -> None:
        self._bounds: dict[tuple[object, object], float] = {}
        for entity, values in quotas.items():
            if key in values:
                parts: dict[str, str | None] = dict(entity)
                self._bounds[parts.get(USER, _ABSENT), parts.get(CLIENT_ID, _ABSENT)] = values[key]

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def of(self, user: str, client_id: str) -> Limit | None:
        """Return the most specific quota of this client, or None if no quota applies.

        The order of precedence is: the user with the client id, the user with the default client id, the user alone;
        then the default user in the same three forms; then the client id alone; then the default client id alone.
        """
        bounds = self._bounds
        if not bounds:
            return None
        for name in (user, None):
            for client in (client_id, None):
                bound = bounds.get((name, client))
                if bound is not None:
                    return Limit(bound, user, client_id)
            bound = bounds.get((name, _ABSENT))
            if bound is not None:
                return Limit(bound, user, "")
        for client in (client_id, None):
            bound = bounds.get((_ABSENT, client))
            if bound is not None:
                return Limit(bound, "", client_id)
        return None


class AddressLimits:
    """The quotas of one kind (`key`, such as connection_creation_rate), by IP address."""

    __slots__ = ("_bounds", "_default")

    def __init__(self, quotas: Quotas, key: str) -> None:
        self._bounds: dict[str, float] = {}
        self._default: float | None = None
        for entity, values in quotas.items():
            kind, name = entity[0]
            if kind == IP and key in values:
                if name is None:
                    self._default = values[key]
                else:
                    self._bounds[normal_ip(name) or name] = values[key]

    def __bool__(self) -> bool:
        return bool(self._bounds) or self._default is not None

    def of(self, address: str) -> float | None:
        return self._bounds.get(address, self._default)
