"""Record the signals that should end the program, instead of raising an exception at once.

A KeyboardInterrupt that is raised in a callback of librdkafka is lost or printed as a traceback. SIGTERM (from a
service manager) and SIGHUP (from a closed terminal) are recorded, too, so that a consumer can leave its group.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """The received signals that should end the program. Calling the object returns whether a signal was received."""

    def __init__(self) -> None:
        self.count = 0
        """Number of signals so far."""
        self.termination_signal: int | None = None
        """The last SIGTERM or SIGHUP that was received; None if neither was received."""
        self.raises_at_once = False
        """Whether even the first signal raises KeyboardInterrupt. True during a call that may block and does not run
        librdkafka."""

    def __call__(self) -> bool:
        return self.count > 0

    def call_interruptibly(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which must not use librdkafka.

        Raises KeyboardInterrupt if a signal arrives during the call or has arrived before.
        """
        self.raises_at_once = True
        try:
            if self.count:
                raise KeyboardInterrupt
            return call()
        finally:
            self.raises_at_once = False


Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None
"""A handler as `signal.getsignal` returns it. None means that it was installed before Python started."""


def restore_handlers(handlers: Mapping[signal.Signals, Handler]) -> None:
    """Install these handlers of signals again. Python cannot install a handler that is not its own (None). In this
    case, the signal gets the system's default handler, which ends the process.
    """
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def record_interrupts(*, second_raises: bool = True) -> Iterator[Interrupts]:
    """During the block, record each of ENDING_SIGNALS instead of raising KeyboardInterrupt.

    With `second_raises`, a second signal raises KeyboardInterrupt, because the block may be stuck: perhaps the reader
    of its output has stopped reading. After the block, the last SIGTERM or SIGHUP is raised again to end the program.
    """
    interrupts = Interrupts()

    def record(number: int, frame: object) -> None:
        interrupts.count += 1
        if number != signal.SIGINT:
            interrupts.termination_signal = number
        if interrupts.raises_at_once or (second_raises and interrupts.count > 1):
            raise KeyboardInterrupt

    previous_handlers = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number, handler in previous_handlers.items():
        if handler is not signal.SIG_IGN:  # for example SIGINT in a shell's background job: it remains ignored
            signal.signal(number, record)
    try:
        yield interrupts
    finally:
        restore_handlers(previous_handlers)
        if interrupts.termination_signal is not None:
            signal.raise_signal(interrupts.termination_signal)
