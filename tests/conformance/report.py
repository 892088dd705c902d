"""Texts about the result of a comparison. Differences that are equal except for their place are one line."""

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from . import messages
from .compare import Difference, Tally
from .exchange import Outcome, Transcript
from .rules import CLUSTER_FILE, Rule, Rules

VALUE_LETTERS_MAX = 300
VARYING_TEXTS = (
    (re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"(?<=')[\w-]{21}[AQgw](?=')"), "<id>"),
    (re.compile(r"\b1[78]\d{11}\b"), "<time>"),
    (re.compile(r"\btook \d+"), "took N"),
)


class DifferenceGroup(NamedTuple):
    api: str
    place: str
    recorded: str
    ours: str


def differences_text(differences: Iterable[Difference], examples: int = 3) -> str:
    """Return the differences grouped by API, field and values, with versions, count and the first places."""
    groups: dict[DifferenceGroup, list[Difference]] = {}
    for d in differences:
        group = DifferenceGroup(d.api, d.place, _value(d, d.recorded), _value(d, d.ours))
        groups.setdefault(group, []).append(d)
    lines = []
    for group, members in sorted(groups.items(), key=lambda g: (g[0].api, g[0].place)):
        versions = ranges(sorted({d.version for d in members}))
        lines.append(
            f"{group.api} v{versions} {group.place}: recorded {group.recorded}, ours {group.ours}  [{len(members)}x]"
        )
        places = dict.fromkeys(f"{d.run} line {d.line} ({d.case})" for d in members)
        lines += [f"    {place}" for place in list(places)[:examples]]
        if len(places) > examples:
            lines.append(f"    and {len(places) - examples} more")
    return "\n".join(lines)


def summary_text(runs: int, tally: Tally, differences: int, seconds: float) -> str:
    return (
        f"{runs} conversations, {tally.cases} cases, {tally.fields} fields compared in {seconds:.1f} s; "
        f"{differences} differences; {len(tally.used)} exceptions used {sum(tally.used.values())} times"
    )


def unused(rules: Rules, tally: Tally, *, of_cluster: Sequence[str] = ()) -> list[Rule]:
    """Return the rules that no answer needed.

    `of_cluster` has the names of the conversations, if they were held with a cluster. Such a comparison does not need
    the rules of `allowed.txt`, those for values that are equal by chance, and those for other conversations.
    """
    return [
        rule
        for rule in rules.all
        if rule not in tally.used
        and not (of_cluster and (rule.file != CLUSTER_FILE.name or rule.kind == "varies"))
        and not (of_cluster and not fnmatch.filter(of_cluster, rule.conversation))
    ]


def ranges(numbers: list[int]) -> str:
    """Return a text of ranges: [1, 2, 3, 7] -> "1-3,7"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def transcript_text(transcript: Transcript, cases: list[str]) -> str:
    """Return a transcript as text, decoded. `cases` has the name of the case of each step."""
    lines = [f"== {transcript.run}"]
    case = ""
    for outcome in transcript.outcomes:
        if cases[outcome.step] != case:
            case = cases[outcome.step]
            lines.append(f"-- {case}")
        lines += _outcome_lines(outcome)
    lines += [f"!! {text}" for text in transcript.failed_conditions]
    if transcript.stop_reason:
        lines.append(f"!! stopped: {transcript.stop_reason}")
    return "\n".join(lines)


def _outcome_lines(outcome: Outcome) -> list[str]:
    name = messages.API_NAMES.get(outcome.api_key, str(outcome.api_key))
    try:
        asked = _compact(messages.decode_request(outcome.request)[2])
    except Exception:  # the request is malformed on purpose
        asked = outcome.request.hex()
    lines = [f"> {name} v{outcome.version} {asked[:1500]}"]
    if outcome.can_be_decoded:
        answer = messages.decode_answer(outcome.api_key, outcome.version, outcome.answer)
        lines.append(f"< {_compact(answer)} ({outcome.took_ms} ms)")
    else:
        lines.append(f"< {outcome.kind} {outcome.answer.hex()} ({outcome.took_ms} ms)")
    return lines


def _compact(tree: object, field: str = "") -> str:
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{k}={_compact(v, k)}" for k, v in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(_compact(v) for v in tree) + "]"
    if field == "error_code" and isinstance(tree, int):
        return messages.error_name(tree)
    if isinstance(tree, bytes):
        return f"<{len(tree)} bytes {tree[:24].hex()}>"
    return repr(tree) if isinstance(tree, str) else str(tree)


def _value(difference: Difference, value: object) -> str:
    """Return a value as text. Parts that vary with the run are replaced, so that equal differences have equal texts."""
    if difference.place.endswith("error_code") and isinstance(value, int):
        return f"{messages.error_name(value)} ({value})"
    text = repr(value).replace(difference.run, "$run")
    for pattern, name in VARYING_TEXTS:
        text = pattern.sub(name, text)
    return text if len(text) <= VALUE_LETTERS_MAX else text[:VALUE_LETTERS_MAX] + "..."
