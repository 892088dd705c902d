"""The runtime as one value."""

import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from tidelog.runtime.interfaces import Runtime

Run: TypeAlias = Callable[[Callable[[Runtime], Coroutine[Any, Any, None]]], None]


def test_ids_are_random_and_never_reserved(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        ids = {runtime.new_uuid() for _ in range(1000)}
        assert len(ids) == 1000
        for raw in ids:
            assert (len(raw), raw[6] >> 4, raw[8] >> 6) == (16, 4, 2)

    run(test)


def test_the_clocks_are_the_machine_s(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        assert abs(runtime.clock.now_ms() - time.time() * 1000) < 1000
        assert abs(runtime.clock.monotonic() - time.monotonic()) < 1

    run(test)


def test_randomness_has_the_shape_that_the_product_uses(run: Run) -> None:
    async def test(runtime: Runtime) -> None:
        random = runtime.random
        assert 0 <= random.random() < 1
        assert all(0 <= random.randrange(3) < 3 and 5 <= random.randrange(5, 7) < 7 for _ in range(100))
        assert 1.0 <= random.uniform(1.0, 2.0) <= 2.0
        assert len(random.randbytes(7)) == 7

    run(test)
