"""The named list of what may differ between the recorded answers and a broker's: `allowed.txt`.

One rule a line, five columns between bars:

    CLASS | API VERSIONS | FIELD PATH | HOW | REASON

CLASS is `varies` (differs between any two runs, even of Kafka) or `differs` (Tidelog does it otherwise, on purpose).
VERSIONS: all, N, N- or N-M. The path has no indexes: `topics[].partitions[].leader_id`; a setting may be named, as in
`configs[name=log.dirs].value`; `@outcome` is no field, but whether an answer came or the connection was closed. In
front of the path may stand `in CONVERSATION:` (a shell pattern), to allow it there only. HOW:

    bound NAME        each value of the recording stands for one value of the broker, the same wherever it is seen
                      under NAME; 0, -1, "" and null stand for themselves
    time              both are clock times within their own run
    worded            both a text, each in its own words
    explained         the broker has a text, whatever was recorded
    from A to B       both numbers in that range
    order FIELD ..    a list that is compared by FIELD, or by several of them, in any order
    order             a list of plain values, in any order
    subset FIELD; A, B    what the broker lists is a part of what was recorded, in any order, by FIELD; A and B at least
    extra FIELD; A, B     the broker lists A and B too, in any order, by FIELD
    value A -> B      the recording has A where the broker has B
    any               not compared; of a list (`topics[].partitions[]`): how many items there are
"""

import fnmatch
import re
from pathlib import Path
from typing import NamedTuple

from .conversation import ADVERTISED
from .values import BadText

FILE = Path(__file__).parent / "allowed.txt"
LINE = re.compile(r"(?:in (?P<conversation>\S+): )?(?P<path>\S+)")
WHOLE = re.compile(r"@.*|[^.]*\[\]")
HOWS = ("bound", "time", "worded", "explained", "from", "order", "subset", "extra", "value", "any")


class Rule(NamedTuple):
    line: int
    kind: str  # varies, differs
    api: str
    versions: range
    conversation: str  # pattern
    path: str
    how: str  # the first word of HOW
    argument: str  # the rest
    reason: str

    def __str__(self) -> str:
        return f"allowed.txt:{self.line}: {self.api} {self.path}: {self.how} {self.argument}".rstrip()


class Rules:
    """The rules, found by API, version, conversation and path."""

    def __init__(self, rules: list[Rule]) -> None:
        self.all = rules
        self.name_items = any("=" in rule.path for rule in rules)
        self._by_place: dict[tuple[str, str], list[Rule]] = {}
        for rule in rules:
            self._by_place.setdefault((rule.api, rule.path), []).append(rule)

    def find(self, api: str, version: int, conversation: str, path: str) -> list[Rule]:
        """Those that apply, in the order of the file."""
        return [
            rule
            for rule in self._by_place.get((api, path), ())
            if version in rule.versions and fnmatch.fnmatchcase(conversation, rule.conversation)
        ]

    def of_kind(self, kind: str) -> "Rules":
        return Rules([rule for rule in self.all if rule.kind == kind])


def load(path: Path = FILE) -> Rules:
    return parse(path.read_text())


def parse(text: str) -> Rules:
    """Raises BadText with the line number."""
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            rules.append(_rule(number, line))
    return Rules(rules)


def _rule(number: int, line: str) -> Rule:
    columns = [c.strip() for c in line.split("|")]
    if len(columns) != 5 or not all(columns):
        raise BadText(f"allowed.txt:{number}: five columns, please: {line!r}")
    kind, where, path, how, reason = columns
    place = LINE.fullmatch(path)
    api, _, span = where.partition(" ")
    if kind not in ("varies", "differs") or place is None or (api not in ADVERTISED and api != "-"):
        raise BadText(f"allowed.txt:{number}: cannot be read: {line!r}")
    word, _, argument = how.partition(" ")
    if word == "any" and WHOLE.fullmatch(place["path"]):
        raise BadText(f"allowed.txt:{number}: never a whole answer")
    if word not in HOWS:
        raise BadText(f"allowed.txt:{number}: {word!r} is not one of {', '.join(HOWS)}")
    versions = range(-1, 1000) if api == "-" else _span(api, span, number)
    return Rule(
        number, kind, api, versions, place["conversation"] or "*", place["path"], word, argument.strip(), reason
    )


def _span(api: str, span: str, number: int) -> range:
    first, last = ADVERTISED[api]
    if span == "all":
        return range(first, last + 1)
    match = re.fullmatch(r"(\d+)(-)?(\d+)?", span)
    if match is None:
        raise BadText(f"allowed.txt:{number}: versions are all, N, N- or N-M, not {span!r}")
    low = int(match[1])
    high = int(match[3]) if match[3] else last if match[2] else low
    if low < first or high > last:
        raise BadText(f"allowed.txt:{number}: {api} has versions {first}-{last}")
    return range(low, high + 1)
