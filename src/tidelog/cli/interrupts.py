"""Ctrl-C where librdkafka calls back: Python's exception for it gets lost there, or ends in a traceback."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Interrupts:
    """Whether Ctrl-C was typed. Call it to ask."""

    def __init__(self) -> None:
        self.count = 0
        self.raising = False
        """Raise KeyboardInterrupt at once: where nothing of librdkafka runs, and a call may wait for long."""

    def __call__(self) -> bool:
        return self.count > 0

    def during(self, call: Callable[[], T]) -> T:
        """What `call` returns; Ctrl-C ends it with KeyboardInterrupt, and so does one that was typed before."""
        self.raising = True
        try:
            if self.count:
                raise KeyboardInterrupt
            return call()
        finally:
            self.raising = False


@contextmanager
def interrupts_noted(*, second_raises: bool = True) -> Iterator[Interrupts]:
    """Ctrl-C in the block is noted, no exception. With `second_raises` a second one is: whoever reads our output may
    have stopped reading.
    """
    noted = Interrupts()

    def note(number: int, frame: object) -> None:
        noted.count += 1
        if noted.raising or (second_raises and noted.count > 1):
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
