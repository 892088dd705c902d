"""Work on files that must come to its end: when there are no descriptors it waits until there are some."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.log.segment import NOT_OPENED

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Tasks

T = TypeVar("T")

AGAIN_S: Final = 0.25
"""After something for which a descriptor was wanting."""


def wants_descriptor(error: BaseException | None) -> bool:
    """Whether it, or what it came from, says that a file could not be opened for want of descriptors."""
    if error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return isinstance(error, OSError) and error.errno in NOT_OPENED


async def patiently(
    tasks: "Tasks", wanted: Callable[[], bool], step: Callable[..., T], *args: object, lane: str = ""
) -> T:
    """Run a step that blocks, again and again while descriptors are wanting and it is `wanted`. Raises what it raises.

    The step must be one that can go on where it was broken off.
    """
    while True:
        try:
            return await tasks.run_blocking(step, *args, lane=lane)
        except OSError as error:
            if not wants_descriptor(error) or not wanted():
                raise
        await tasks.sleep(AGAIN_S)
