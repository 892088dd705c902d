"""Quota entities, quota keys, and the filters of DescribeClientQuotas (KIP-546)."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tidelog.config.addresses import normal_ip
from tidelog.wire.decoding import STRING_BYTES_MAX
from tidelog.wire.errors import ApiError, ErrorCode

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

Entity = tuple[tuple[str, str | None], ...]
"""Pairs of an entity type and a name. The types are client-id, user or both (in this order), or ip alone. The name
None means the default entity of the type. Its quotas apply to all entities of this type without quotas of their own."""

Quotas = Mapping[Entity, Mapping[str, float]]
"""For each entity, its quotas: quota key -> value."""

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_WHOLE_TOLERANCE: Final = 1e-6
"""A value that is at most this much larger than a whole number counts as whole (as in Kafka)."""

_CLIENT_KEYS: Final[Mapping[str, int | None]] = {
    PRODUCER_BYTE_RATE: _LONG_MAX,
    CONSUMER_BYTE_RATE: _LONG_MAX,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
"""The quota keys of users and client ids. Each key maps to the quota's largest allowed value if the quota must be a
whole number, otherwise to None."""
_IP_KEYS: Final[Mapping[str, int | None]] = {CONNECTION_CREATION_RATE: _INT_MAX}

MATCH_EXACT: Final = 0
MATCH_DEFAULT: Final = 1
MATCH_ANY: Final = 2


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Build the entity from pairs of type and name. Raises ApiError (INVALID_REQUEST) if it cannot have quotas."""
    names_by_type: dict[str, str | None] = {}
    for kind, name in parts:
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid_request(f"{kind!r} has no quotas: only user, client-id and ip have quotas")
        if name == "":
            raise _invalid_request(f"the name of the {kind} is empty; use null for the default {kind}")
        if name is not None and len(name.encode()) > STRING_BYTES_MAX:
            raise _invalid_request(f"the name of the {kind} is longer than {STRING_BYTES_MAX} bytes")
        names_by_type[kind] = name
    if not names_by_type:
        raise _invalid_request("the entity is empty: it must have a user, a client-id, both, or an ip")
    if IP in names_by_type:
        if len(names_by_type) > 1:
            raise _invalid_request("an ip cannot be combined with a user or a client-id")
        address = names_by_type[IP]
        if address is not None and normal_ip(address) is None:
            raise _invalid_request(f"{address!r} is not an IP address; host names are not resolved")
    return tuple((kind, names_by_type[kind]) for kind in (CLIENT_ID, USER, IP) if kind in names_by_type)


def check_quota(entity: Entity, key: str, value: float) -> None:
    """Raise ApiError (INVALID_REQUEST) unless `entity` can have the quota `key` with this value."""
    keys = _IP_KEYS if entity[0][0] == IP else _CLIENT_KEYS
    if key not in keys:
        raise _invalid_request(f"{entity[0][0]} has no quota {key!r}: its quotas are {', '.join(keys)}")
    if not value > 0:
        raise _invalid_request(f"{key} must be greater than 0, not {value:g}")
    largest = keys[key]
    if largest is not None and not (value <= largest and value % 1 <= _WHOLE_TOLERANCE):
        raise _invalid_request(f"{key} must be a whole number up to {largest}, not {value:g}")


class Component(NamedTuple):
    """One component of a filter: an entity type, and the names of this type that match."""

    kind: str
    match_type: int
    match: str | None


class Filter:
    """Selects the entities that a DescribeClientQuotas request asks for."""

    __slots__ = ("_any", "_exact", "_strict")

    def __init__(self, components: Iterable[Component], *, strict: bool) -> None:
        """With `strict`, an entity matches only if the filter names all types of the entity.

        Raises ApiError if a component is not valid, or if the components contradict each other.
        """
        self._exact: dict[str, str | None] = {}  # by entity type, the name that an entity must have (None: the default)
        self._any: dict[str, None] = {}  # the types that an entity must have, with any name
        self._strict = strict
        for component in components:
            self._add(component)
        kinds = [*self._exact, *self._any]
        if IP in kinds and len(kinds) > 1:
            raise _invalid_request("an ip cannot be combined with a user or a client-id")

    def _add(self, component: Component) -> None:
        kind, match_type, match = component
        if not kind:
            raise _invalid_request("a component of the filter has no entity type")
        if kind in self._exact or kind in self._any:
            raise _invalid_request(f"the filter names {kind} more than once")
        if kind not in (USER, CLIENT_ID, IP):
            raise ApiError(
                f"{kind!r} has no quotas: only user, client-id and ip have quotas", ErrorCode.UNSUPPORTED_VERSION
            )
        if match_type == MATCH_EXACT:
            if match is None:
                raise _invalid_request(f"an exact match of {kind} needs a name")
            self._exact[kind] = match
        elif match_type not in (MATCH_DEFAULT, MATCH_ANY):
            known = "0 matches a name, 1 the default, 2 any name and the default"
            raise _invalid_request(f"match type {match_type} is unknown: {known}")
        elif match is not None:
            raise _invalid_request(f"only an exact match of {kind} (match type 0) has a name")
        elif match_type == MATCH_DEFAULT:
            self._exact[kind] = None
        else:
            self._any[kind] = None

    def matches(self, entity: Entity) -> bool:
        if self._strict and len(entity) != len(self._exact) + len(self._any):
            return False
        parts = dict(entity)
        return all(kind in parts and parts[kind] == name for kind, name in self._exact.items()) and all(
            kind in parts for kind in self._any
        )


def _invalid_request(message: str) -> ApiError:
    return ApiError(message, ErrorCode.INVALID_REQUEST)
