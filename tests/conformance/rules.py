"""The rules of `allowed.txt`. They say which differences between the recorded answers and a broker's are allowed.

`allowed_cluster.txt` has further rules, which are only for conversations with a cluster.

Each line is one rule, with five columns separated by bars:

    CLASS | API VERSIONS | FIELD PATH | HOW | REASON

CLASS is `varies` (differs between any two runs, even of Kafka) or `differs` (Tidelog differs from Kafka on purpose).
VERSIONS is all, N, N- or N-M. The path has no indexes, for example `topics[].partitions[].leader_id`. It may name a
setting: `configs[name=log.dirs].value`. `@outcome` is not a field: it says whether there was an answer or the
connection was closed. `in CONVERSATION: PATH` applies the rule only to conversations that match the shell pattern. HOW:

    bound NAME        The values may differ, but the same recorded value must always have the same value of the broker,
                      and the other way round, in all fields that are bound to NAME. 0, -1, "" and null may not differ.
    time              Both values are times between the begin and the end of their own run.
    worded            Both values are texts, or neither is. The texts may differ.
    explained         The broker has a text, which is not empty. The recorded value may be anything.
    from A to B       Both values are numbers from A to B.
    order FIELD ..    The items of the list may be in any order. They are identified by these fields.
    order             The values of the list, which are not structs, may be in any order.
    subset FIELD; A, B    Items that were recorded may be missing, but not A and B. Any order; identified by FIELD.
    extra FIELD; A, B     The broker may have the items A and B in addition. Any order; identified by FIELD.
    value A -> B      The recorded value is A, and the broker's value is B.
    any               The values may differ. For a list (`topics[].partitions[]`): the number of items may differ.
"""

import fnmatch
import re
from pathlib import Path
from typing import NamedTuple

from .conversation import ADVERTISED
from .values import BadText

FILE = Path(__file__).parent / "allowed.txt"
CLUSTER_FILE = Path(__file__).parent / "allowed_cluster.txt"
LINE = re.compile(r"(?:in (?P<conversation>\S+): )?(?P<path>\S+)")
WHOLE = re.compile(r"@.*|[^.]*\[\]")
HOWS = ("bound", "time", "worded", "explained", "from", "order", "subset", "extra", "value", "any")


class Rule(NamedTuple):
    file: str
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
        return f"{self.file}:{self.line}: {self.api} {self.path}: {self.how} {self.argument}".rstrip()


class Rules:
    """All rules. `find` looks them up by API, version, conversation and path."""

    def __init__(self, rules: list[Rule]) -> None:
        self.all = rules
        self.name_items = any("=" in rule.path for rule in rules)
        self._by_place: dict[tuple[str, str], list[Rule]] = {}
        for rule in rules:
            self._by_place.setdefault((rule.api, rule.path), []).append(rule)

    def find(self, api: str, version: int, conversation: str, path: str) -> list[Rule]:
        """Return the rules that apply, in the order of the file."""
        return [
            rule
            for rule in self._by_place.get((api, path), ())
            if version in rule.versions and fnmatch.fnmatchcase(conversation, rule.conversation)
        ]

    def of_kind(self, kind: str) -> "Rules":
        return Rules([rule for rule in self.all if rule.kind == kind])


def load(path: Path = FILE) -> Rules:
    return parse(path.read_text(), path.name)


def load_for_cluster() -> Rules:
    """Return the rules for conversations with a cluster: those of `allowed_cluster.txt`, and then all others."""
    return Rules(load(CLUSTER_FILE).all + load().all)


def parse(text: str, file: str = FILE.name) -> Rules:
    """Parse the text of `allowed.txt`. Raises BadText with the line number."""
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            rules.append(_rule(file, number, line))
    return Rules(rules)


def _rule(file: str, number: int, line: str) -> Rule:
    columns = [c.strip() for c in line.split("|")]
    if len(columns) != 5 or not all(columns):
        raise BadText(f"{file}:{number}: a rule has five columns: {line!r}")
    kind, where, path, how, reason = columns
    place = LINE.fullmatch(path)
    api, _, span = where.partition(" ")
    if kind not in ("varies", "differs") or place is None or (api not in ADVERTISED and api != "-"):
        raise BadText(f"{file}:{number}: unknown class, API or path: {line!r}")
    word, _, argument = how.partition(" ")
    if word == "any" and WHOLE.fullmatch(place["path"]):
        raise BadText(f"{file}:{number}: 'any' cannot be used for a whole answer")
    if word not in HOWS:
        raise BadText(f"{file}:{number}: {word!r} is not one of {', '.join(HOWS)}")
    versions = range(-1, 1000) if api == "-" else _span(api, span, file, number)
    return Rule(
        file, number, kind, api, versions, place["conversation"] or "*", place["path"], word, argument.strip(), reason
    )


def _span(api: str, span: str, file: str, number: int) -> range:
    first, last = ADVERTISED[api]
    if span == "all":
        return range(first, last + 1)
    match = re.fullmatch(r"(\d+)(-)?(\d+)?", span)
    if match is None:
        raise BadText(f"{file}:{number}: versions must be all, N, N- or N-M, not {span!r}")
    low = int(match[1])
    high = int(match[3]) if match[3] else last if match[2] else low
    if low < first or high > last:
        raise BadText(f"{file}:{number}: {api} has versions {first}-{last}")
    return range(low, high + 1)
