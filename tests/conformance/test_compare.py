"""The comparison: which differences are reported, which are allowed, and that a wrong value of any field is found."""

import copy
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from . import messages, recording, rules
from .batches import decode_batches
from .command import CONVERSATIONS
from .compare import Bindings, Comparison, Difference, Tally, compare_runs, leaves, select_items, without_indexes
from .conversation import ADVERTISED, Run, load_all, parse, runs_of
from .exchange import Outcome, Transcript
from .messages import ZERO_ID, Tree
from .report import differences_text, ranges, unused

NONE = rules.parse("")
RUN = runs_of(parse("file", "conversation c\nMetadata/12 topics=[]\n  only topics name [a, b]")[0])[0]


def transcript(*outcomes: Outcome, failed_conditions: tuple[str, ...] = (), stop_reason: str = "") -> Transcript:
    return Transcript("c", "", 1_000_000, 1_000_100, outcomes, failed_conditions, stop_reason, {})


def compare_answers(
    api: str, recorded: Tree, ours: Tree, text: str = "", bindings: Bindings | None = None
) -> tuple[list[Difference], Tally]:
    """Compare two answers of the highest version with the rules in `text`. Return the differences and the tally."""
    outcome = Outcome(0, "answer", messages.API_KEYS[api], ADVERTISED[api][1], 0, b"", b"")
    comparison = Comparison(
        RUN, RUN.conversation.steps[0], outcome, transcript(), transcript(), rules.parse(text), bindings or Bindings()
    )
    tally = Tally()
    differences = comparison.compare_trees(copy.deepcopy(recorded), copy.deepcopy(ours))
    tally.add(comparison.fields, comparison.used)
    return differences, tally


def test_equal_answers() -> None:
    tree = {"error_code": 0, "members": [{"member_id": "m", "metadata": b"x"}]}
    differences, tally = compare_answers("JoinGroup", tree, tree)
    assert (differences, tally.fields, tally.cases) == ([], 3, 1)


@pytest.mark.parametrize(
    ("recorded", "ours"), [(0, 1), (None, ""), ("", "x"), (0, False), (b"", None), ([], [1]), ([1, 2], [2, 1])]
)
def test_each_kind_of_difference_is_told(recorded: Any, ours: Any) -> None:
    differences, _ = compare_answers("JoinGroup", {"a": {"b": recorded}}, {"a": {"b": ours}})
    assert {d.path.split("[")[0] for d in differences} == {"a.b"}


def test_a_field_that_one_lacks() -> None:
    (difference,) = compare_answers("JoinGroup", {"a": 1}, {"a": 1, "b": 2})[0]
    assert (difference.path, difference.recorded, difference.ours) == ("b", "no such field", 2)


def test_bound_values_stand_for_each_other_one_for_one() -> None:
    rule = "varies | JoinGroup all | leader | bound id | random\nvaries | JoinGroup all | member_id | bound id | random"
    bindings = Bindings()
    assert (
        compare_answers(
            "JoinGroup", {"leader": "a", "member_id": "b"}, {"leader": "x", "member_id": "y"}, rule, bindings
        )[0]
        == []
    )
    assert (
        compare_answers(
            "JoinGroup", {"leader": "b", "member_id": ""}, {"leader": "y", "member_id": ""}, rule, bindings
        )[0]
        == []
    )
    for recorded, ours in (("a", "y"), ("c", "x"), ("", "x"), ("a", ""), ("b", "b")):
        assert compare_answers("JoinGroup", {"leader": recorded}, {"leader": ours}, rule, bindings)[0] != []
    assert compare_answers("JoinGroup", {"leader": ZERO_ID}, {"leader": ZERO_ID}, rule, bindings)[0] == []


@pytest.mark.parametrize(
    ("how", "same", "other"),
    [
        ("time", [(1_000_050, 1_000_000), (5, 5)], [(1_000_050, 5), (-1, 1_000_000)]),
        ("worded", [("a", "b"), (None, None), ("", "")], [("a", ""), ("", "a"), (None, "a"), ("a", None)]),
        ("explained", [("a", "b"), (None, "b"), ("", "b"), (None, None)], [("a", ""), ("a", None)]),
        ("from 0 to 9", [(0, 9), (5, 4)], [(0, 10), (-1, 3), ("1", 3)]),
        ("value 3 -> 5", [(3, 5), (4, 4)], [(3, 4), (5, 3), (4, 5)]),
        ("value x ->", [("x", "")], [("y", ""), ("x", "z")]),
        ("any", [(1, "x")], []),
    ],
)
def test_what_rules_allow(how: str, same: list[tuple[Any, Any]], other: list[tuple[Any, Any]]) -> None:
    rule = f"varies | JoinGroup all | a.b | {how} | because"
    for recorded, ours in same:
        assert compare_answers("JoinGroup", {"a": {"b": recorded}}, {"a": {"b": ours}}, rule)[0] == []
    for recorded, ours in other:
        assert len(compare_answers("JoinGroup", {"a": {"b": recorded}}, {"a": {"b": ours}}, rule)[0]) == 1


def tree_of_names(*names: str) -> Tree:
    return {"entries": [{"name": n, "value": n.upper()} for n in names]}


def test_lists_by_a_field() -> None:
    order = "varies | Fetch all | entries[] | order name | because"
    assert compare_answers("Fetch", tree_of_names("a", "b"), tree_of_names("b", "a"))[0] != []
    assert compare_answers("Fetch", tree_of_names("a", "b"), tree_of_names("b", "a"), order)[0] == []
    assert compare_answers("Fetch", tree_of_names("a", "b"), tree_of_names("a"), order)[0] != []
    wrong = tree_of_names("b", "a")
    wrong["entries"][1]["value"] = "other"
    assert [d.path for d in compare_answers("Fetch", tree_of_names("a", "b"), wrong, order)[0]] == ["entries[0].value"]


def test_items_that_have_the_same_name_are_paired_in_their_order() -> None:
    order = "varies | Fetch all | entries[] | order name | because"

    def valued(*entries: tuple[str, int]) -> Tree:
        return {"entries": [{"name": name, "value": value} for name, value in entries]}

    recorded = valued(("a", 1), ("b", 1), ("a", 2))
    assert compare_answers("Fetch", recorded, valued(("b", 1), ("a", 1), ("a", 2)), order)[0] == []
    assert compare_answers("Fetch", recorded, valued(("b", 1), ("a", 2), ("a", 1)), order)[0] != []
    assert compare_answers("Fetch", recorded, valued(("b", 1), ("a", 1)), order)[0] != []
    assert compare_answers("Fetch", recorded, valued(("b", 1), ("a", 1), ("a", 2), ("a", 2)), order)[0] != []
    assert compare_answers("Fetch", recorded, valued(("b", 1), ("a", 1), ("b", 2)), order)[0] != []
    by_both = "varies | Fetch all | entries[] | order name value | because"
    assert compare_answers("Fetch", recorded, valued(("a", 2), ("a", 1), ("b", 1)), by_both)[0] == []
    assert compare_answers("Fetch", recorded, valued(("a", 2), ("a", 2), ("b", 1)), by_both)[0] != []


def test_lists_with_more_or_fewer_items() -> None:
    subset = "varies | Fetch all | entries[] | subset name; a | because"
    assert compare_answers("Fetch", tree_of_names("a", "b"), tree_of_names("a"), subset)[0] == []
    assert compare_answers("Fetch", tree_of_names("a", "b"), tree_of_names("b"), subset)[0] != []
    assert compare_answers("Fetch", tree_of_names("a", "b"), tree_of_names("a", "c"), subset)[0] != []
    extra = "varies | Fetch all | entries[] | extra name; c | because"
    assert compare_answers("Fetch", tree_of_names("a", "b"), tree_of_names("c", "b", "a"), extra)[0] == []
    assert compare_answers("Fetch", tree_of_names("a", "b"), tree_of_names("a", "c"), extra)[0] != []
    assert compare_answers("Fetch", tree_of_names("a"), tree_of_names("a", "d"), extra)[0] != []


def test_lists_of_plain_values_in_any_order() -> None:
    rule = "varies | Fetch all | ids[] | order | because"
    assert compare_answers("Fetch", {"ids": [3, 1]}, {"ids": [1, 3]}, rule)[0] == []
    assert compare_answers("Fetch", {"ids": [3, 1]}, {"ids": [1, 4]}, rule)[0] != []


def test_a_rule_may_name_a_setting() -> None:
    rule = "differs | DescribeConfigs all | configs[name=a].value | any | because"
    recorded = {"configs": [{"name": "a", "value": 1}, {"name": "b", "value": 1}]}
    ours = {"configs": [{"name": "a", "value": 2}, {"name": "b", "value": 2}]}
    assert [d.place for d in compare_answers("DescribeConfigs", recorded, ours, rule)[0]] == ["configs[name=b].value"]


def test_a_rule_counts_as_used_only_where_it_was_needed() -> None:
    rule = rules.parse("varies | JoinGroup all | a | any | because")
    assert (
        unused(rule, compare_answers("JoinGroup", {"a": 1}, {"a": 1}, "varies | JoinGroup all | a | any | because")[1])
        == rule.all
    )
    assert (
        unused(rule, compare_answers("JoinGroup", {"a": 1}, {"a": 2}, "varies | JoinGroup all | a | any | because")[1])
        == []
    )


def test_a_comparison_with_a_cluster_needs_only_the_rules_for_its_conversations() -> None:
    lines = (
        "differs | JoinGroup all | in one-*: a | any | because\ndiffers | JoinGroup all | in other: a | any | because"
    )
    of_cluster = rules.parse(lines, rules.CLUSTER_FILE.name)
    assert unused(of_cluster, Tally()) == of_cluster.all
    assert unused(of_cluster, Tally(), of_cluster=["one-1", "two"]) == of_cluster.all[:1]
    assert unused(rules.parse(lines), Tally(), of_cluster=["one-1"]) == []


def test_only_some_items_of_a_list() -> None:
    recorded, ours = ({"topics": tree_of_names(*names)["entries"]} for names in (("a", "other"), ("more", "a")))
    assert compare_answers("Metadata", recorded, ours)[0] == []


def test_outcomes_conditions_and_ends_are_compared() -> None:
    answer, closed = (Outcome(0, kind, 999, 0, 0, b"", b"\0\0\0\1xx") for kind in ("answer", "closed"))
    other = answer._replace(answer=b"\0\0\0\2xy")

    def paths(recorded: Transcript, ours: Transcript) -> list[str]:
        return [d.path for d in compare_runs(RUN, recorded, ours, NONE, Bindings(), Tally())]

    assert paths(transcript(answer), transcript(answer._replace(answer=b"\0\0\0\2xx"))) == []
    assert paths(transcript(answer), transcript(closed)) == ["@outcome"]
    assert paths(transcript(answer), transcript(other)) == ["@bytes"]
    assert paths(transcript(answer), transcript(answer, failed_conditions=("late",))) == ["@condition"]
    assert paths(transcript(answer), transcript(stop_reason="gone")) == ["@stopped"]


def test_an_answer_that_cannot_be_decoded() -> None:
    good = Outcome(0, "answer", 12, 0, 0, b"", b"\0\0\0\1\0\0")
    (difference,) = compare_runs(
        RUN, transcript(good), transcript(good._replace(answer=b"\0\0\0\1\0\0\0")), NONE, Bindings(), Tally()
    )
    assert difference.path == "@bytes"


def test_differences_that_are_alike_are_told_once() -> None:
    one = Difference("c-v1", "case", 3, "Fetch", 1, "a[0].error_code", 0, 3, "a[].error_code")
    text = differences_text([one, one._replace(run="c-v2", version=2, path="a[1].error_code")])
    assert text.splitlines()[0] == (
        "Fetch v1-2 a[].error_code: recorded NONE (0), ours UNKNOWN_TOPIC_OR_PARTITION (3)  [2x]"
    )
    assert ranges([1, 2, 3, 5]) == "1-3,5"
    assert without_indexes("a[12].b[0]") == "a[].b[]"


# ---- Wrong values in recorded answers


@functools.cache
def samples(api: str) -> dict[int, list[tuple[Run, Outcome, Transcript]]]:
    """Return the recorded answers of an API by version."""
    answers: dict[int, list[tuple[Run, Outcome, Transcript]]] = {}
    for file, runs in runs_by_file().items():
        transcripts = recording.read(file)
        for run in runs:
            for outcome in transcripts[run.name].outcomes:
                if outcome.api_key == messages.API_KEYS[api] and outcome.can_be_decoded:
                    answers.setdefault(outcome.version, []).append((run, outcome, transcripts[run.name]))
    return answers


@functools.cache
def runs_by_file() -> dict[str, list[Run]]:
    by_file: dict[str, list[Run]] = {}
    for one in load_all(CONVERSATIONS):
        by_file.setdefault(one.file, []).extend(runs_of(one))
    return by_file


class Place(NamedTuple):
    """A field of an API's answers, and an answer that has the field."""

    text: str
    segments: tuple[Any, ...]
    tree: Tree
    run: Run
    outcome: Outcome
    transcript: Transcript


def places(answers: list[tuple[Run, Outcome, Transcript]]) -> Iterator[Place]:
    """Yield each field of these answers once."""
    seen: set[str] = set()
    for run, outcome, of in answers:
        tree = messages.decode_answer(outcome.api_key, outcome.version, outcome.answer)
        select_items(tree, run.conversation.steps[outcome.step], of.variables)
        for topic in tree["responses"] if outcome.api_key == messages.API_KEYS["Fetch"] else []:
            for partition in topic["partitions"]:
                partition["records"] = decode_batches(partition["records"])
        for text, path, _ in leaves(tree):
            if without_indexes(text) not in seen:
                seen.add(without_indexes(text))
                yield Place(without_indexes(text), path.segments, tree, run, outcome, of)


def wrong_value(value: Any) -> Any:
    """Return another value of the same type, which no rule allows in place of `value`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1 if value not in (-1, 0) else value + 7
    if isinstance(value, str):
        return value[:-2] + ("Aw" if value[-2:] != "Aw" else "QQ") if value else "planted"
    return b"planted" if value is None or isinstance(value, bytes) else None


def plant_wrong_value(tree: Tree, segments: tuple[Any, ...]) -> Tree:
    changed = copy.deepcopy(tree)
    holder = changed
    for segment in segments[:-1]:
        holder = holder[segment]
    holder[segments[-1]] = wrong_value(holder[segments[-1]])
    return changed


@pytest.mark.parametrize("api", ADVERTISED)
def test_a_wrong_field_planted_anywhere_is_found(api: str) -> None:
    """Change each field of each version, one at a time, and compare with all rules."""
    allowed = rules.load()
    free = {r.path for r in allowed.all if r.api == api and r.how in HOWS_WITHOUT_VALUES}
    for version, answers in samples(api).items():
        reported = 0
        for place in places(answers):
            bindings = Bindings()
            assert not differences_of(place, place.tree, allowed, bindings), "equal to itself"
            differences = differences_of(place, plant_wrong_value(place.tree, place.segments), allowed, bindings)
            assert differences or place.text in free, (
                f"{api} v{version} {place.text}: the change is not reported, and no rule allows it"
            )
            reported += bool(differences)
        assert reported, f"{api} v{version}"


HOWS_WITHOUT_VALUES = ("any", "worded", "explained", "from", "time")


def differences_of(place: Place, ours: Tree, allowed: rules.Rules, bindings: Bindings) -> list[Difference]:
    step = place.run.conversation.steps[place.outcome.step]
    of = place.transcript
    comparison = Comparison(place.run, step, place.outcome, of, of, allowed, bindings)
    return comparison.compare_trees(copy.deepcopy(place.tree), copy.deepcopy(ours))


@pytest.mark.parametrize("api", ADVERTISED)
def test_a_list_that_is_empty_instead_is_found(api: str) -> None:
    allowed = rules.load()
    for version, answers in samples(api).items():
        trees = [messages.decode_answer(o.api_key, version, o.answer) for _, o, _ in answers]
        lists = [key for key, value in trees[0].items() if isinstance(value, list)]
        for name in lists:
            found = any(
                compare_with_empty(name, tree, run, outcome, transcript_, allowed)
                for tree, (run, outcome, transcript_) in zip(trees, answers, strict=True)
            )
            assert found or not any(tree[name] for tree in trees) or name in ALLOWED_EMPTY, f"{api} v{version} {name}"


ALLOWED_EMPTY = ("finalized_features", "supported_features", "nodes")
"""Lists that may be empty by a rule, and the nodes of DescribeQuorum: the conversation leaves them out."""


def compare_with_empty(name: str, tree: Tree, run: Run, outcome: Outcome, of: Transcript, allowed: rules.Rules) -> bool:
    step = run.conversation.steps[outcome.step]
    comparison = Comparison(run, step, outcome, of, of, allowed, Bindings())
    return bool(comparison.compare_trees(copy.deepcopy(tree), copy.deepcopy(tree) | {name: []}))
