"""The event trace of a simulated run. Equal seeds give equal lines, in any process."""

from collections.abc import Callable
from zlib import crc32


class Trace:
    """Lines of the form `SECONDS HOST EVENT DETAILS`. They contain no memory addresses and do not depend on the order
    in which sets are iterated.

    Most runs never read their trace. So an event is stored as a tuple, and formatted only when lines are requested.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._events: list[tuple[float, str, str, str, int, int]] = []

    def note(self, host: str, event: str, details: str = "") -> None:
        self._events.append((self._now(), host, event, details, -1, 0))

    def note_bytes(self, host: str, event: str, details: str, data: bytes | bytearray | memoryview) -> None:
        """Add a line with the length and CRC-32 of `data`."""
        self._events.append((self._now(), host, event, details, len(data), crc32(data)))

    @property
    def lines(self) -> list[str]:
        return [_line(event) for event in self._events]

    def text(self) -> str:
        return "".join(_line(event) + "\n" for event in self._events)

    def tail(self, count: int) -> str:
        return "\n".join(_line(event) for event in self._events[-count:])


def _line(stored_event: tuple[float, str, str, str, int, int]) -> str:
    time_s, host, event, details, size, crc = stored_event
    line = f"{time_s:.6f} {host} {event} {details}"
    return line.rstrip() if size < 0 else f"{line} bytes={size} crc={crc:08x}"


def callback_name(callback: Callable[..., object]) -> str:
    """Return the callback's name without memory addresses."""
    function = getattr(callback, "func", callback)  # a functools.partial has its function in `func`
    return str(getattr(function, "__qualname__", type(function).__qualname__))
