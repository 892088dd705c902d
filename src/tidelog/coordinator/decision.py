"""The output of a coordinator's core: records to append, and what follows when they are committed."""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

Reply: TypeAlias = Callable[[Any], None]
"""Called once with the answer to one request: a response, or an ApiError."""


if TYPE_CHECKING:
    from typing import Protocol

    class CoordinatorRecord(Protocol):
        """A decoded record of an internal topic."""

        def encode(self) -> tuple[bytes, bytes | None]:
            """Return key and value as they are written to the log; a value of None makes a tombstone."""


class Moment(NamedTuple):
    """The current time of two clocks. Records contain wall-clock time. Deadlines use the monotonic clock, which never
    jumps.
    """

    wall_ms: int
    monotonic_ms: int


class LoadOrder(Enum):
    """Which records a coordinator replays, and in which order, when it is loaded from a partition of its topic."""

    LAST_OF_EACH_KEY = 1
    """Only the last committed record of each key. The records of transactions that are open at the end of the log
    follow after all others, as pending ones."""
    ALL_IN_ORDER = 2
    """All records in the order of the log, replayed as in live operation: the records of a transaction as pending ones,
    and then its end. For topics in which a record adds something to earlier records of its key."""


class Producer(NamedTuple):
    """A producer id and an epoch, as a request states them or an answer returns them."""

    producer_id: int
    epoch: int


class LogLine(NamedTuple):
    """A line for the broker's log: a text with placeholders, and the values of the placeholders, in the form that
    `logging` accepts.
    """

    text: str
    arguments: tuple[object, ...]


class Decision:
    """The outcome of one request, timer or sweep. It changes durable state only when its `records` are replayed."""

    __slots__ = ("awaited_offset", "batch", "effects", "lines", "producer", "records", "replies")

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        """Appended as one batch, then replayed into the core."""
        self.batch: bytearray | None = None
        """The batch of `records`, if it was encoded in advance, as for a commit of offsets; None if it is not encoded
        yet."""
        self.producer: Producer | None = None
        """The producer in whose open transaction the records are written; `batch` is then set, too. None means that
        the records take effect at once."""
        self.replies: list[tuple[Reply, Any]] = []
        """Functions that send answers, each with the answer that it sends. They are called when `records` and all
        records below `awaited_offset` are committed."""
        self.effects: list[Any] = []
        """Values that describe work outside of the core, for example markers to write. The work begins when
        `records` and all records below `awaited_offset` are committed. If the coordinator is loaded again before this
        time, the new core decides about the same work again."""
        self.lines: list[LogLine] = []
        """Written after the records have been replayed."""
        self.awaited_offset = 0
        """The log must be committed up to this offset (exclusive end) before the replies are sent, because the answers
        also depend on records of earlier decisions."""

    def reply(self, to: Reply, answer: Any) -> None:
        self.replies.append((to, answer))

    def log(self, text: str, *arguments: object) -> None:
        self.lines.append(LogLine(text, arguments))
