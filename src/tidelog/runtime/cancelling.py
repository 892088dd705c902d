"""Cancel a task and wait for its end."""

import asyncio
from typing import Any


async def cancel_and_wait(task: "asyncio.Task[Any] | None") -> None:
    """Cancel the task, and return when it has ended. An exception of the task is not raised. If `task` is None, nothing
    happens.
    """
    if task is not None:
        task.cancel()
        await asyncio.wait((task,))
