"""Computations in steps: generators that yield after every little, so that others can have their turn in between.

A step is some fifty microseconds of work. The result is what the generator returns. `runtime.turns` runs them.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

R = TypeVar("R")

Steps: TypeAlias = Generator[None, None, R]
"""`yield from` takes the steps of one within another; `at_once` takes all of them."""


def at_once(steps: Steps[R]) -> R:
    """Every step, and the result: for what is known to be short, and for tests."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: R = end.value
        return result
