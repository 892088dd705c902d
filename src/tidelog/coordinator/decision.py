"""What a coordinator's core hands to the runtime: records to append, then replies."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

Reply: TypeAlias = Callable[[Any], None]
"""Takes the answer to one request, once: the response, or the ApiError that stands for it."""


if TYPE_CHECKING:
    from typing import Protocol

    class CoordinatorRecord(Protocol):
        """One record of an internal topic, decoded."""

        def encode(self) -> tuple[bytes, bytes | None]:
            """Key and value as they stand in the log; a value of None is a tombstone."""


class Moment(NamedTuple):
    """Now, twice: records carry wall-clock time, deadlines must not jump with it."""

    wall_ms: int
    monotonic_ms: int


class LogLine(NamedTuple):
    """A line for the broker's log, as `logging` takes it."""

    text: str
    arguments: tuple[object, ...]


class Decision:
    """The outcome of one request, timer or sweep. Durable state changes when `records` are replayed, not before."""

    __slots__ = ("batch", "lines", "records", "replies", "shows")

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        """Appended first, as one batch, then replayed."""
        self.batch: bytearray | None = None
        """The batch of the records, where they are so many that it was made in steps before."""
        self.replies: list[tuple[Reply, Any]] = []
        """Given only once the records, and everything below `shows`, are committed."""
        self.lines: list[LogLine] = []
        """Written once the records are replayed."""
        self.shows = 0
        """Exclusive end of the log that the replies tell of, beyond the records above."""

    def reply(self, to: Reply, answer: Any) -> None:
        self.replies.append((to, answer))

    def log(self, text: str, *arguments: object) -> None:
        self.lines.append(LogLine(text, arguments))
