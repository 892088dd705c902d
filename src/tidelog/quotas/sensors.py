"""Sensors that record each client's usage. The number of sensors is bounded; the least recently used sensor is
dropped first.
"""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Generic, TypeVar

S = TypeVar("S")

SENSORS_MAX: Final = 10_000
"""Upper bound on the sensors of one quota. They need about 15 MB when all are busy. If a further client needs a
sensor, the least recently used sensor is dropped. The client of the dropped sensor later starts again with an empty
sensor."""
IDLE_MS: Final = 3_600_000
"""Sensors that were not used for this time, in milliseconds, are dropped when a further client needs a sensor. Kafka
uses the same time."""
_NAME_MAX: Final = 100
"""A user or client id of at most this many characters is stored unchanged; see `_short`."""
_DIGEST_BYTES: Final = 16


class Sensors(Generic[S]):
    """A least-recently-used cache of sensors by user and client id."""

    def __init__(self, make: Callable[[], S], *, sensors_max: int = SENSORS_MAX) -> None:
        self._make = make
        self._max = sensors_max
        self._sensors: OrderedDict[tuple[str, str], tuple[S, list[int]]] = OrderedDict()
        # By user and client id: the sensor, and the time of the sensor's last use in ms. The time is the only item of a
        # list, so that it can be changed in place.

    def __len__(self) -> int:
        return len(self._sensors)

    def of(self, user: str, client_id: str, now_ms: int) -> S:
        """Return the sensor of this user and client id; create one if it does not exist or was dropped."""
        sensors = self._sensors
        key = (_short(user), _short(client_id))
        entry = sensors.get(key)
        if entry is None:
            while sensors:
                oldest = next(iter(sensors))
                if len(sensors) < self._max and now_ms - sensors[oldest][1][0] < IDLE_MS:
                    break
                del sensors[oldest]
            entry = sensors[key] = (self._make(), [now_ms])
        else:
            entry[1][0] = now_ms
            sensors.move_to_end(key)
        return entry[0]

    def clear(self) -> None:
        self._sensors.clear()


def _short(name: str) -> str:
    """Return `name`, or a digest of it if it is long. Clients choose their names, but the keys must remain small."""
    if len(name) <= _NAME_MAX:
        return name
    return "#" + blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()
