"""Compare a broker's answers with the recorded ones, field by field. Report differences that no rule allows."""

import re
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import messages
from .batches import decode_batches
from .conversation import Run, Step, TreePath
from .exchange import Outcome, Transcript, find
from .messages import Tree
from .rules import Rule, Rules
from .values import evaluate

UNBOUND_VALUES: tuple[Any, ...] = (
    0,
    -1,
    "",
    b"",
    None,
    messages.ZERO_ID,
)  # `bound` rules allow no other value for these
CLOCK_SLACK_MS = 2_000  # a `time` rule allows times this long before the begin and after the end of the run
KEY_FIELDS = ("name", "api_key", "group_id", "key")  # the first of these that is unique identifies the items of a list
SETTING = re.compile(r"configs\[\d+\]$")  # items that a rule may name
LIST_HOWS = ("order", "subset", "extra")
ITEM = re.compile(r"\[\d+\]")
RECORD_FIELDS = {("Fetch", "responses[].partitions[].records")}


class Difference(NamedTuple):
    """One field that differs from the recording, which no rule allows."""

    run: str
    case: str
    line: int
    api: str
    version: int
    path: str  # with indexes
    recorded: object
    ours: object
    place: str = ""  # the path in the form of a rule, without indexes


class Bindings:
    """A one-to-one relation between recorded values and the broker's values, for each name of a `bound` rule."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours: dict[tuple[str, object], object] = {}
        self._recorded: dict[tuple[str, object], object] = {}

    def agree(self, name: str, recorded: object, ours: object) -> bool:
        if recorded in UNBOUND_VALUES or ours in UNBOUND_VALUES:
            return recorded == ours
        with self._lock:
            return (
                self._ours.setdefault((name, recorded), ours) == ours
                and self._recorded.setdefault((name, ours), recorded) == recorded
            )

    def ours_for(self, name: str, recorded: object) -> object:
        """Return the broker's value for a recorded value, or the recorded value itself if none is known yet."""
        with self._lock:
            return self._ours.get((name, recorded), recorded)


class Tally:
    """The number of compared cases and fields, and how often each rule was needed."""

    def __init__(self) -> None:
        self.cases = 0
        self.fields = 0
        self.used: dict[Rule, int] = {}
        self._lock = threading.Lock()

    def add(self, fields: int, used: dict[Rule, int]) -> None:
        with self._lock:
            self.cases += 1
            self.fields += fields
            for rule, times in used.items():
                self.used[rule] = self.used.get(rule, 0) + times


def without_indexes(path: str) -> str:
    """Return a path without its indexes: `topics[3].name` -> `topics[].name`."""
    out, depth = [], 0
    for character in path:
        depth -= character == "]"
        if depth == 0:
            out.append(character)
        depth += character == "["
    return "".join(out)


def compare_runs(
    run: Run, recorded: Transcript, ours: Transcript, rules: Rules, bindings: Bindings, tally: Tally
) -> list[Difference]:
    """Return every difference between two transcripts of one run."""
    steps = run.conversation.steps
    differences: list[Difference] = []
    for theirs, mine in zip(recorded.outcomes, ours.outcomes, strict=False):
        comparison = Comparison(run, steps[theirs.step], theirs, recorded, ours, rules, bindings)
        differences += comparison.compare(mine)
        tally.add(comparison.fields, comparison.used)
    for text in ours.failed_conditions:
        differences.append(Difference(run.name, "", 0, "-", -1, "@condition", "held", text, "@condition"))
    if ours.stop_reason or len(ours.outcomes) != len(recorded.outcomes):
        reached = f"{len(ours.outcomes)} answers: {ours.stop_reason}"
        differences.append(
            Difference(run.name, "", 0, "-", -1, "@stopped", f"{len(recorded.outcomes)} answers", reached, "@stopped")
        )
    return differences


class Comparison:
    """The comparison of one recorded outcome with the broker's outcome."""

    def __init__(
        self,
        run: Run,
        step: Step,
        recorded: Outcome,
        theirs: Transcript,
        ours: Transcript,
        rules: Rules,
        bindings: Bindings,
    ) -> None:
        self.run = run
        self.step = step
        self.recorded = recorded
        self.theirs = theirs
        self.ours = ours
        self.rules = rules
        self.bindings = bindings
        self.api = messages.API_NAMES.get(recorded.api_key, "-")
        self.fields = 0
        self.used: dict[Rule, int] = {}
        self.differences: list[Difference] = []
        self._item_names: dict[str, str] = {}  # path of an item of a list -> the text by which a rule may name it

    def compare(self, mine: Outcome) -> list[Difference]:
        self._compare_leaf("@outcome", self.recorded.kind, mine.kind)
        if self.recorded.kind != "answer" or mine.kind != "answer":
            return self.differences
        if not self.recorded.can_be_decoded:
            self._compare_leaf("@bytes", self.recorded.answer[4:].hex(), mine.answer[4:].hex())
            return self.differences
        key, version = self.recorded.api_key, self.recorded.version
        try:
            answer = messages.decode_answer(key, version, mine.answer)
        except messages.Undecodable as error:
            self._add_difference("@bytes", "an answer of the schema", str(error))
            return self.differences
        self.compare_trees(messages.decode_answer(key, version, self.recorded.answer), answer)
        return self.differences

    def compare_trees(self, recorded: Tree, ours: Tree) -> list[Difference]:
        """Return every difference of two decoded answers. The step's `only` is applied to both first, in place."""
        select_items(recorded, self.step, self.theirs.variables)
        select_items(ours, self.step, self.ours.variables)
        self._compare_values("", recorded, ours)
        return self.differences

    def _compare_values(self, path: str, recorded: Tree, ours: Tree) -> None:
        if SETTING.search(path) and isinstance(recorded, dict) and "name" in recorded:
            self._item_names[path] = f"[name={recorded['name']}]"
        if (
            (self.api, without_indexes(path)) in RECORD_FIELDS
            and isinstance(recorded, bytes)
            and isinstance(ours, bytes)
        ):
            recorded, ours = decode_batches(recorded), decode_batches(ours)
        if isinstance(recorded, dict) and isinstance(ours, dict):
            for field in dict.fromkeys([*recorded, *ours]):
                below = f"{path}.{field}" if path else field
                self._compare_values(below, recorded.get(field, "no such field"), ours.get(field, "no such field"))
        elif isinstance(recorded, list) and isinstance(ours, list):
            self._compare_lists(path, recorded, ours)
        else:
            self._compare_leaf(path, recorded, ours)

    def _compare_lists(self, path: str, recorded: list[Tree], ours: list[Tree]) -> None:
        rule = next((r for r in self._rules(path + "[]") if r.how in LIST_HOWS), None)
        field = _key_field(recorded, ours) if rule is None else rule.argument.partition(";")[0].strip()
        if field:
            recorded, ours = self._pair_items(rule, field, path, recorded, ours)
        elif rule is not None and recorded != ours:
            self._count_use(rule)
            recorded, ours = sorted(recorded, key=repr), sorted(ours, key=repr)
        if len(recorded) != len(ours):
            any_length = next((r for r in self._rules(path + "[]") if r.how == "any"), None)
            if any_length is None:
                self._add_difference(path + "[]", _list_text(recorded), _list_text(ours))
            else:
                self._count_use(any_length)
        for index, (theirs, mine) in enumerate(zip(recorded, ours, strict=False)):
            self._compare_values(f"{path}[{index}]", theirs, mine)

    def _pair_items(
        self, rule: Rule | None, field: str, path: str, recorded: list[Tree], ours: list[Tree]
    ) -> tuple[list[Tree], list[Tree]]:
        """Return the items that are in both lists, in the order of the recording.

        Add a difference for items that are in one list only, and for another order, unless the rule allows it. Several
        items with the same key are paired in their order: the first with the first, the second with the second.
        """
        names = field.split()
        keys = _positions_by_key([[self._translate(f"{path}[].{n}", item[n]) for n in names] for item in recorded])
        own_keys = _positions_by_key([[item[n] for n in names] for item in ours])
        if list(keys) == list(own_keys):
            return recorded, ours
        if rule is not None:
            self._count_use(rule)
        missing = [key for key in keys if key not in own_keys]
        extra = [key for key in own_keys if key not in keys]
        listed = [w.strip() for w in rule.argument.partition(";")[2].split(",")] if rule else []
        if rule is not None and rule.how == "subset":
            missing = [key for key in missing if key.text in listed]
        if rule is not None and rule.how == "extra":
            extra = [key for key in extra if key.text not in listed]
        if missing:
            self._add_difference(path + "[]", f"{field} {_texts(missing)}", "missing")
        if extra:
            self._add_difference(path + "[]", "missing", f"{field} {_texts(extra)}")
        common = [key for key in keys if key in own_keys]
        own_common = [key for key in own_keys if key in keys]
        if rule is None and own_common != common:
            self._add_difference(path + "[]", f"order {_texts(common)}", f"order {_texts(own_common)}")
        return [recorded[keys[key]] for key in common], [ours[own_keys[key]] for key in common]

    def _translate(self, path: str, value: Any) -> Any:
        for rule in self._rules(path):
            if rule.how == "bound":
                return self.bindings.ours_for(rule.argument, value)
        return value

    def _compare_leaf(self, path: str, recorded: Any, ours: Any) -> None:
        self.fields += 1
        same = recorded == ours and type(recorded) is type(ours)
        rules = self._rules(path)
        bound = recorded not in UNBOUND_VALUES and any(rule.how == "bound" for rule in rules)
        if same and not bound:
            return
        for rule in rules:
            if self._allows(rule, recorded, ours):
                self._count_use(rule)
                return
        if not same or bound:
            self._add_difference(path, recorded, ours)

    def _allows(self, rule: Rule, recorded: Any, ours: Any) -> bool:
        if rule.how == "bound":
            return self.bindings.agree(rule.argument, recorded, ours)
        if rule.how == "time":
            return _within(recorded, self.theirs) and _within(ours, self.ours)
        if rule.how == "worded":
            return isinstance(recorded, str) and isinstance(ours, str) and bool(recorded) == bool(ours)
        if rule.how == "explained":
            return isinstance(ours, str) and bool(ours)
        if rule.how == "from":
            low, _, high = rule.argument.partition(" to ")
            return all(isinstance(v, int) and int(low) <= v <= int(high) for v in (recorded, ours))
        if rule.how == "value":
            before, _, after = rule.argument.partition("->")
            return str(recorded) == before.strip() and str(ours) == after.strip()
        return rule.how == "any"

    def _rules(self, path: str) -> list[Rule]:
        version, conversation = self.recorded.version, self.run.conversation.name
        rules = self.rules.find(self.api, version, conversation, without_indexes(path))
        if not self.rules.name_items:
            return rules
        return self.rules.find(self.api, version, conversation, self._path_with_names(path)) + rules

    def _path_with_names(self, path: str) -> str:
        """Return a path with the names of items: `configs[3].value` -> `configs[name=retention.ms].value`."""
        out, position = "", 0
        for match in ITEM.finditer(path):
            out += path[position : match.start()] + self._item_names.get(path[: match.end()], "[]")
            position = match.end()
        return out + path[position:]

    def _count_use(self, rule: Rule) -> None:
        self.used[rule] = self.used.get(rule, 0) + 1

    def _add_difference(self, path: str, recorded: object, ours: object) -> None:
        step = self.step
        self.differences.append(
            Difference(
                self.run.name,
                step.case,
                step.line,
                self.api,
                self.recorded.version,
                path,
                recorded,
                ours,
                self._path_with_names(path),
            )
        )


class ItemKey(NamedTuple):
    """The key of a list's item: the values of its key fields, and the number of earlier items with the same values."""

    fields: str
    before: int
    text: str


def _positions_by_key(keys: list[list[Any]]) -> dict[ItemKey, int]:
    """Return the positions of a list's items by their keys."""
    positions: dict[ItemKey, int] = {}
    seen: dict[str, int] = {}
    for position, fields in enumerate(keys):
        text = ", ".join(map(str, fields))
        key = ItemKey(repr(fields), seen.get(repr(fields), 0), text)
        seen[key.fields] = key.before + 1
        positions[key] = position
    return positions


def _texts(keys: list[ItemKey]) -> list[str]:
    return [key.text for key in keys]


def _within(value: Any, transcript: Transcript) -> bool:
    return (
        isinstance(value, int) and transcript.began_ms - CLOCK_SLACK_MS <= value <= transcript.ended_ms + CLOCK_SLACK_MS
    )


def select_items(tree: Tree, step: Step, variables: dict[str, Any]) -> None:
    """Remove the items that the step's `only` does not name from an answer's lists, in place."""
    for selection in step.only:
        wanted = evaluate(selection.values, variables, {})
        for items in find(tree, selection.path, variables):
            if items is not None:
                items[:] = [item for item in items if item[selection.field] in wanted]


def _key_field(recorded: list[Tree], ours: list[Tree]) -> str:
    """Return the field that identifies the items of both lists, or "" if there is none."""
    for field in KEY_FIELDS:
        both = [[item.get(field) for item in items if isinstance(item, dict)] for items in (recorded, ours)]
        if all(None not in keys and len(set(keys)) == len(keys) > 0 for keys in both):
            return field
    return ""


def _list_text(items: list[Tree]) -> str:
    return f"{len(items)} items: {items!r}"


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, TreePath, Any]]:
    """Yield (path text, path, value) of each leaf of an answer."""
    yield from _leaves(tree, path, ())


def _leaves(tree: Tree, text: str, segments: tuple[Any, ...]) -> Iterator[tuple[str, TreePath, Any]]:
    if isinstance(tree, dict):
        for field, value in tree.items():
            yield from _leaves(value, f"{text}.{field}" if text else field, (*segments, field))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{text}[{index}]", (*segments, index))
    else:
        yield text, TreePath(text, segments), tree
