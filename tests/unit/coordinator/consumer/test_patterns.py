"""Subscription by regular expression: refusals, matches, and that no expression blocks the event loop."""

import time

import pytest

from consumer_harness.members import ConsumerMember
from consumer_harness.stage import Stage
from group_harness.invariants import check_core
from tidelog.coordinator.consumer import patterns
from tidelog.coordinator.consumer.settings import PATTERN_LENGTH_MAX, ConsumerSettings
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.wire.errors import ApiError, ErrorCode


def stage(**topics: int) -> Stage:
    consumer = ConsumerSettings(assignment_interval_ms=0)
    return Stage(GroupSettings(initial_rebalance_delay_ms=0, consumer=consumer), topics)


def reader(on: Stage, member_id: str, pattern: str) -> ConsumerMember:
    member = ConsumerMember(on, "g", member_id, [])
    member.pattern = pattern
    return member


def names(member: ConsumerMember) -> list[str]:
    by_id = {topic.topic_id: topic.name for topic in member.stage.image.topics.values()}
    return sorted(by_id[topic] for topic, partitions in member.owned.items() if partitions)


def beat_until(member: ConsumerMember, wanted: list[str], rounds: int = 50) -> None:
    for _ in range(rounds):
        member.beat()
        if names(member) == wanted:
            return
        member.stage.pass_time(5)
    assert names(member) == wanted


@pytest.mark.parametrize(
    "pattern", ["(", "a(?=b)", r"(\w)\1", "[", "a" * (PATTERN_LENGTH_MAX + 1), r"\C", "(?<n>a)(?<n>b)"]
)
def test_what_re2_does_not_take_is_refused(pattern: str) -> None:
    on = stage(t=1)
    answer = reader(on, "m", pattern).beat()
    assert isinstance(answer, ApiError)
    assert answer.code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert on.core.consumers.find("g") is None
    assert on.log == []


def test_counts_that_re2_would_not_take_are_taken() -> None:
    on = stage(**{"rx-a": 1, "rx-arx-aa": 1, "rx-b": 1})
    beat_until(reader(on, "m", "(rx-a{0,1000}){0,1000}"), ["rx-a", "rx-arx-aa"])
    beat_until(reader(on, "n", "((a{100}){100}){100}"), [])


def test_an_expression_means_whole_names_and_topics_that_come_later() -> None:
    on = stage(orders=2, reorders=1, other=1)
    member = reader(on, "m", "orders.*")
    beat_until(member, ["orders"])
    on.change_topics({"orders": 2, "orders-eu": 1, "reorders": 1, "other": 1})
    beat_until(member, ["orders", "orders-eu"])
    on.change_topics({"orders-eu": 1, "other": 1})
    beat_until(member, ["orders-eu"])
    on.restart()
    on.change_topics({"orders-eu": 1, "orders-us": 3})
    beat_until(member, ["orders-eu", "orders-us"])
    check_core(on.core)


def test_the_last_member_with_an_expression_takes_it_along() -> None:
    on = stage(t=1, u=1)
    one, two = reader(on, "m1", "t"), reader(on, "m2", "t")
    beat_until(one, ["t"])
    two.beat()
    group = on.core.consumers.find("g")
    assert group is not None
    assert list(group.resolved) == ["t"]
    one.leave()
    assert list(group.resolved) == ["t"]
    two.pattern, two.topics, two.sends_all_fields = "", ["u"], True
    two.beat()
    assert group.resolved == {}
    beat_until(two, ["u"])


def test_a_hostile_expression_costs_no_more_than_a_turn() -> None:
    """Python's own engine would take years for the first of these."""
    on = Stage(
        GroupSettings(initial_rebalance_delay_ms=0, consumer=ConsumerSettings(assignment_interval_ms=0)),
        {"a" * 200 + f"-{number}": 1 for number in range(3000)},
    )
    hostile = ["(a+)+b", "(a|aa|aaa)*b", "(.*)(.*)(.*)(.*)(.*)b", "(a?){150}a{150}b", "(x+x+)+y" * 20]
    for number, pattern in enumerate(hostile):
        reader(on, f"m{number}", pattern).beat()
    turns = 0
    slowest_s = 0.0
    while (due_ms := on.core.next_deadline_ms()) is not None and due_ms <= on.time_ms + 5:
        on.time_ms = max(due_ms, on.time_ms)
        began = time.process_time()
        on.apply_all(on.core.expire(on.now))
        slowest_s = max(slowest_s, time.process_time() - began)
        turns += 1
    group = on.core.consumers.find("g")
    assert group is not None
    assert {pattern: resolved.topics for pattern, resolved in group.resolved.items()} == dict.fromkeys(hostile, ())
    assert turns > 10
    assert slowest_s < 0.5


def test_without_the_package_the_client_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns.compile_pattern.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "re2", None)
    answer = reader(stage(t=1), "m", "t").beat()
    assert isinstance(answer, ApiError)
    assert answer.code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "google-re2" in answer.message
    patterns.compile_pattern.cache_clear()
