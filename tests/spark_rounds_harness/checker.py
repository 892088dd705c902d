"""Compares the output of a query with its input."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from spark_rounds_harness.keys import key_of, last_versions

SHOWN = 10


class NotExactlyOnce(AssertionError):
    """The output differs from the input."""


def check(values: Iterable[str], count: int) -> str:
    """Raise NotExactlyOnce unless `values` are the numbers below `count`, each exactly once, in any order. Return a
    text that says what was checked.
    """
    counts = Counter(values)
    lost = [number for number in range(count) if str(number) not in counts]
    doubled = [value for value, times in counts.items() if times > 1]
    foreign = [value for value in counts if not value.isdecimal() or not 0 <= int(value) < count]
    _raise_problems(
        f"of {count} records", {"lost": lost, "written more than once": doubled, "not in the input": foreign}
    )
    return f"{count} records exactly once"


def check_versions(rows: Iterable[tuple[Any, Any]], count: int) -> str:
    """Raise NotExactlyOnce unless `rows`, pairs of a key and a version, are each key of the first `count` records with
    its last version, each exactly once, in any order. Return a text that says what was checked.
    """
    found = defaultdict(list)
    for key, version in rows:
        found[key].append(version)
    last = last_versions(count)
    pairs = [(key, version) for key, versions in found.items() for version in versions]
    in_input = {pair for pair in pairs if pair[1] in range(count) and key_of(pair[1]) == pair[0]}
    problems = {
        "without a row": [key for key in last if key not in found],
        "with several rows": [key for key, versions in found.items() if len(versions) > 1],
        "with an old version": [
            f"{key}: {version}, not {last[key]}" for key, version in sorted(in_input) if version != last[key]
        ],
        "with a row that is not in the input": [pair for pair in pairs if pair not in in_input],
    }
    _raise_problems(f"of {len(last)} keys of {count} records", problems)
    return f"{count} records, {len(last)} keys, each with one row and its last version"


def _raise_problems(place: str, found: dict[str, list[Any]]) -> None:
    """Raise NotExactlyOnce if one of the lists is not empty."""
    problems = [f"{len(some)} {name}, such as {some[:SHOWN]}" for name, some in found.items() if some]
    if problems:
        raise NotExactlyOnce(f"{place}: " + "; ".join(problems))
