"""Ctrl-C where librdkafka calls back: Python's exception for it gets lost there, or ends in a traceback. And what else
asks a program to end (a service manager, a terminal that closes): a consumer leaves its group then, too.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Whether Ctrl-C was typed, or the program was asked to end. Call it to ask."""

    def __init__(self) -> None:
        self.count = 0
        self.asked: int | None = None
        """The signal that did, other than Ctrl-C's."""
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
    have stopped reading. SIGTERM and SIGHUP are noted the same way, and end the program after the block.
    """
    noted = Interrupts()

    def note(number: int, frame: object) -> None:
        noted.count += 1
        if number != signal.SIGINT:
            noted.asked = number
        if noted.raising or (second_raises and noted.count > 1):
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # a shell's background job ignores them
            signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if noted.asked is not None:
            signal.raise_signal(noted.asked)
