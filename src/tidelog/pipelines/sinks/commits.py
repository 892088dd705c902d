"""Retries a commit to a table when it fails because other writers have changed the table."""

import random
import time
from collections.abc import Callable

from tidelog.pipelines.declarations import TemporaryError

ATTEMPTS_MAX = 20
"""Upper bound on the attempts to commit a micro-batch while other writers change the table."""
BACKOFF_MAX_S = 1.0
"""Longest pause between two attempts, in seconds."""


def commit(attempt: Callable[[], None], conflict: type[Exception], sink: str) -> None:
    """Call `attempt` until it does not raise `conflict`. Each call must load the newest version of the table.

    Raises TemporaryError after ATTEMPTS_MAX attempts. A later attempt may succeed, when the other writers pause.
    """
    for number in range(ATTEMPTS_MAX):
        try:
            attempt()
        except conflict as error:
            if number == ATTEMPTS_MAX - 1:
                raise TemporaryError(
                    f"{sink}: other writers changed the table during each of {ATTEMPTS_MAX} attempts to commit: {error}"
                ) from error
            time.sleep(random.uniform(0, min(BACKOFF_MAX_S, 0.02 * 2**number)))  # noqa: S311  # not a secret
        else:
            return
