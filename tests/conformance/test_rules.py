"""The rules of allowed.txt: their format, and to which fields they apply."""

import fnmatch

import pytest

from . import conversation
from .command import CONVERSATIONS
from .rules import Rules, load, load_for_cluster, parse
from .values import BadText

LINE = "differs | Fetch 7-12 | in fetch-*: responses[].partitions[].records[] | any | because"


def test_a_line() -> None:
    (rule,) = parse(f"# comment\n\n{LINE}\n").all
    assert (rule.line, rule.kind, rule.api, rule.versions, rule.reason) == (
        3,
        "differs",
        "Fetch",
        range(7, 13),
        "because",
    )
    assert (rule.conversation, rule.path, rule.how) == ("fetch-*", "responses[].partitions[].records[]", "any")


def test_a_rule_is_found_where_it_belongs_only() -> None:
    rules = parse(LINE)
    path = "responses[].partitions[].records[]"
    assert rules.find("Fetch", 12, "fetch-session", path)
    assert not rules.find("Fetch", 13, "fetch-session", path)
    assert not rules.find("Fetch", 12, "produce", path)
    assert not rules.find("Fetch", 12, "fetch-session", "responses[].partitions[]")
    assert not rules.find("Produce", 12, "fetch-session", path)
    assert not rules.of_kind("varies").all


@pytest.mark.parametrize(
    "line",
    [
        "differs | Fetch all | x | any",
        "differs | Fetch all | x | any | ",
        "sometimes | Fetch all | x | any | because",
        "differs | Nothing all | x | any | because",
        "differs | Fetch 1-99 | x | any | because",
        "differs | Fetch | x | any | because",
        "differs | Fetch all | x | perhaps | because",
        "differs | Fetch all | @outcome | any | because",
        "differs | Fetch all | responses[] | any | because",
    ],
)
def test_refuses(line: str) -> None:
    with pytest.raises(BadText, match=r"allowed.txt:1"):
        parse(line)


def test_the_list_can_be_read() -> None:
    rules = load()
    assert isinstance(rules, Rules)
    assert len({(r.api, r.versions, r.conversation, r.path, r.how, r.argument) for r in rules.all}) == len(rules.all)


def test_every_rule_is_for_a_conversation() -> None:
    names = [one.name for one in conversation.load_all(CONVERSATIONS)]
    assert [str(rule) for rule in load_for_cluster().all if not fnmatch.filter(names, rule.conversation)] == []
