"""Compares the output of a query with its input."""

from collections import Counter
from collections.abc import Iterable

SHOWN = 10


class NotExactlyOnce(AssertionError):
    """The output differs from the input."""


def check(values: Iterable[str], count: int) -> None:
    """Raise NotExactlyOnce unless `values` are the numbers below `count`, each exactly once, in any order."""
    counts = Counter(values)
    lost = [number for number in range(count) if str(number) not in counts]
    doubled = [value for value, times in counts.items() if times > 1]
    foreign = [value for value in counts if not value.isdecimal() or not 0 <= int(value) < count]
    problems = [
        f"{len(some)} {name}, such as {some[:SHOWN]}"
        for name, some in (("lost", lost), ("written more than once", doubled), ("not in the input", foreign))
        if some
    ]
    if problems:
        raise NotExactlyOnce(f"of {count} records: " + "; ".join(problems))
