"""Retry file operations that fail because no file descriptor is free."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.log.segment import NOT_OPENED

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Tasks

T = TypeVar("T")

RETRY_S: Final = 0.25
"""Delay before the next attempt, in seconds."""


def lacks_descriptor(error: BaseException | None) -> bool:
    """Return whether the error or its cause says that no file descriptor is free."""
    if error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return isinstance(error, OSError) and error.errno in NOT_OPENED


async def retry_without_descriptor(
    tasks: "Tasks", may_retry: Callable[[], bool], step: Callable[..., T], *args: object, lane: str = ""
) -> T:
    """Run a blocking `step`, and repeat it while no file descriptor is free and `may_retry` returns True.

    Raises the step's exceptions. A repeated call of `step` must be able to continue where the failed call ended.
    """
    while True:
        try:
            return await tasks.run_blocking(step, *args, lane=lane)
        except OSError as error:
            if not lacks_descriptor(error) or not may_retry():
                raise
        await tasks.sleep(RETRY_S)
