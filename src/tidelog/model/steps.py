"""Long computations as generators that yield after each step, so that the event loop can do other work in between.

A step takes about fifty microseconds. The generator's return value is the result. `runtime.turns` runs the generators.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

R = TypeVar("R")

Steps: TypeAlias = Generator[None, None, R]
"""A computation in steps. `yield from` runs a computation inside another one; `run_all` runs a computation to its
end."""


def run_all(steps: Steps[R]) -> R:
    """Run all steps now and return the result. For computations that are known to be short, and for tests."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: R = end.value
        return result
