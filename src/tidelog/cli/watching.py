"""Looking at a cluster again and again, also while it is away for a while: one thread looks, the caller's shows.

A look waits for an answer for up to `ANSWER_MS`; so the caller waits here instead, can say how long there has been no
answer, and leaves at once.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar

from tidelog.cli.connection import in_our_words
from tidelog.cli.errors import CommandError, NoAnswerError

T = TypeVar("T")

PATIENCE_S = 3.0
"""A look that takes longer is told of, unless the one before took half of that already."""


class Seen(NamedTuple, Generic[T]):
    what: T
    at_s: float
    """On the monotonic clock, when the look ended."""


class Away(NamedTuple):
    """Looks fail, or one has been going on for too long."""

    since_s: float
    """The last look that did not fail, on the monotonic clock."""
    error: CommandError | None
    """Why the last one failed; None while it goes on."""

    def text(self, bootstrap: str, seconds: str) -> str:
        """`seconds` says how long."""
        if self.error is None or isinstance(self.error, NoAnswerError):
            return f"No answer from {bootstrap} for {seconds}; still trying."
        return f"{self.error}; for {seconds}, still trying."


class Looker(Generic[T]):
    """The results of `look`, called every `interval_s`."""

    def __init__(self, look: Callable[[], T], interval_s: float) -> None:
        self._look = look
        self._interval_s = interval_s
        self._results: SimpleQueue[Seen[T] | Exception] = SimpleQueue()
        self._stop = threading.Event()
        self._began_s: float | None = None
        self._last_took_s = 0.0
        self._good_s: float | None = None
        self._error: CommandError | None = None

    def run(self) -> None:
        while not self._stop.is_set():
            began_s = self._began_s = time.monotonic()
            try:
                found = self._look()
            except Exception as error:
                self._began_s = None
                self._results.put(error)
            else:
                now_s = time.monotonic()
                self._last_took_s = now_s - began_s
                self._began_s = None
                self._results.put(Seen(found, now_s))
            self._stop.wait(self._interval_s)

    def stop(self) -> None:
        self._stop.set()

    def next(self, timeout_s: float) -> Seen[T] | None:
        """A new result; None where there is none yet, or where a look failed as it may while the cluster is away.

        Raises what the very first look raised, and whatever is no error of the cluster's.
        """
        try:
            found = self._results.get(timeout=timeout_s)
        except Empty:
            return None
        if isinstance(found, Seen):
            self._good_s, self._error = found.at_s, None
            return found
        told = in_our_words(found)
        if told is None or self._good_s is None:
            raise found
        self._error = told
        return None

    def away(self) -> Away | None:
        """Whether there is something to say of the looks; None before the first result."""
        if self._good_s is None:
            return None
        began_s = self._began_s
        patience_s = max(PATIENCE_S, 2 * self._last_took_s)
        if self._error is None and (began_s is None or time.monotonic() - began_s < patience_s):
            return None
        return Away(self._good_s, self._error)


@contextmanager
def looking(look: Callable[[], T], interval_s: float) -> Iterator[Looker[T]]:
    """Looks during the block. A look that hangs is left behind at its end: it ends with the process."""
    looker = Looker(look, interval_s)
    threading.Thread(target=looker.run, name="looks", daemon=True).start()
    try:
        yield looker
    finally:
        looker.stop()
