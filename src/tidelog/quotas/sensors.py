"""What each client was seen to use: a bounded number of sensors, of which the longest unused goes first."""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Generic, TypeVar

S = TypeVar("S")

SENSORS_MAX: Final = 10_000
"""Of one quota; some 15 MB when all are busy. Beyond it the longest unused client is forgotten, and begins anew."""
IDLE_MS: Final = 3_600_000
"""As in Kafka: what was not used for an hour is dropped."""
_NAME_MAX: Final = 100
_DIGEST_BYTES: Final = 16


class Sensors(Generic[S]):
    """Sensors by user and client id."""

    def __init__(self, make: Callable[[], S], *, sensors_max: int = SENSORS_MAX) -> None:
        self._make = make
        self._max = sensors_max
        self._sensors: OrderedDict[tuple[str, str], tuple[S, list[int]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sensors)

    def of(self, user: str, client_id: str, now_ms: int) -> S:
        """The sensor of that pair; a new one when it has none, or was forgotten."""
        sensors = self._sensors
        key = (_short(user), _short(client_id))
        found = sensors.get(key)
        if found is None:
            while sensors:
                oldest = next(iter(sensors))
                if len(sensors) < self._max and now_ms - sensors[oldest][1][0] < IDLE_MS:
                    break
                del sensors[oldest]
            found = sensors[key] = (self._make(), [now_ms])
        else:
            found[1][0] = now_ms
            sensors.move_to_end(key)
        return found[0]

    def clear(self) -> None:
        self._sensors.clear()


def _short(name: str) -> str:
    """Names are the clients' choice and may be long: then a digest stands for them."""
    if len(name) <= _NAME_MAX:
        return name
    return "#" + blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()
