"""The event trace of a simulated run. Equal seeds give equal lines, in any process."""

from collections.abc import Callable
from zlib import crc32


class Trace:
    """Lines of the form `SECONDS HOST WHAT DETAILS`, without memory addresses and without the order of sets."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.lines: list[str] = []

    def note(self, host: str, what: str, details: str = "") -> None:
        self.lines.append(f"{self._now():.6f} {host} {what} {details}".rstrip())

    def note_bytes(self, host: str, what: str, details: str, data: bytes | bytearray | memoryview) -> None:
        """Add a line with the length and CRC-32 of `data`."""
        self.note(host, what, f"{details} bytes={len(data)} crc={crc32(data):08x}")

    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)

    def tail(self, count: int) -> str:
        return "\n".join(self.lines[-count:])


def callback_name(callback: Callable[..., object]) -> str:
    """Return the callback's name without memory addresses."""
    function = getattr(callback, "func", callback)  # of a functools.partial
    return str(getattr(function, "__qualname__", type(function).__qualname__))
