"""What happened in a simulated run, line by line: equal for equal seeds, in any process."""

from collections.abc import Callable
from zlib import crc32


class Trace:
    """Lines of `SECONDS HOST WHAT DETAILS`. They hold no address of memory and no order of a set."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.lines: list[str] = []

    def note(self, host: str, what: str, details: str = "") -> None:
        self.lines.append(f"{self._now():.6f} {host} {what} {details}".rstrip())

    def note_bytes(self, host: str, what: str, details: str, data: bytes | bytearray | memoryview) -> None:
        """A line with the length and the CRC-32 of what was moved."""
        self.note(host, what, f"{details} bytes={len(data)} crc={crc32(data):08x}")

    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)

    def tail(self, count: int) -> str:
        return "\n".join(self.lines[-count:])


def callback_name(callback: Callable[..., object]) -> str:
    """A name without addresses."""
    function = getattr(callback, "func", callback)  # of a functools.partial
    return str(getattr(function, "__qualname__", type(function).__qualname__))
