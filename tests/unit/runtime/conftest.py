"""The two event loops that the runtime supports."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import pytest
import uvloop

from tidelog.runtime.interfaces import Runtime
from tidelog.runtime.real import real_runtime

RunOnRuntime: TypeAlias = Callable[[Callable[[Runtime], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> RunOnRuntime:
    """Run `test(runtime)` on a loop of its own; whatever reaches the loop's exception handler fails the test."""

    def run_test(test: Callable[[Runtime], Awaitable[None]]) -> None:
        async def main() -> None:
            escaped: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _loop, context: escaped.append(context))
            runtime = real_runtime()
            try:
                async with asyncio.timeout(30):
                    await test(runtime)
            finally:
                await runtime.close()
            assert escaped == []

        loop = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())

    return run_test
