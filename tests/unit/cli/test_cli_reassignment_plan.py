"""Plans of `tidelog cluster reassign` and `drain`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.cluster_state import PartitionReplicas
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.reassignment_plan import (
    PlannedMove,
    lead_elsewhere,
    moves_from_document,
    plan_document,
    plan_drain,
    plan_moves,
)


def partitions(*replicas: Sequence[int]) -> list[PartitionReplicas]:
    return [
        PartitionReplicas("orders", number, each[0], list(each), list(each)) for number, each in enumerate(replicas)
    ]


def after(before: Sequence[PartitionReplicas], moves: Sequence[PlannedMove]) -> list[list[int]]:
    changed = {move.partition: move.after for move in moves}
    return [changed.get(part.partition, part.replicas) for part in before]


def test_a_plan_that_changes_nothing_is_empty() -> None:
    assert plan_moves(partitions([1, 2], [2, 3], [3, 1]), [1, 2, 3], {}) == []


def test_a_new_broker_gets_its_share_and_no_more_moves_than_needed() -> None:
    before = partitions(*[[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2]] * 2)
    moves = plan_moves(before, [1, 2, 3, 4], {})
    counts = Counter(broker for replicas in after(before, moves) for broker in replicas)
    assert counts == {1: 6, 2: 6, 3: 6, 4: 6}
    assert sum(len(move.adding) for move in moves) == 6
    leaders = Counter(replicas[0] for replicas in after(before, moves))
    assert max(leaders.values()) - min(leaders.values()) <= 1


def test_a_broker_that_is_not_named_is_left() -> None:
    before = partitions([1, 2], [2, 3], [3, 1])
    result = after(before, plan_moves(before, [1, 2, 4], {}))
    assert all(3 not in replicas and len(set(replicas)) == 2 for replicas in result)


def test_more_and_fewer_replicas() -> None:
    before = partitions([1], [2], [3])
    more = after(before, plan_moves(before, [1, 2, 3], {}, 3, balance=False))
    assert [sorted(replicas) for replicas in more] == [[1, 2, 3]] * 3
    assert [replicas[0] for replicas in more] == [1, 2, 3], "the leaders stay"
    fewer = after(partitions([1, 2, 3]), plan_moves(partitions([1, 2, 3]), [1, 2, 3], {}, 1, balance=False))
    assert fewer == [[1]]


def test_replicas_are_spread_over_the_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    before = partitions([1, 2], [2, 1], [1, 2], [2, 1])
    result = after(before, plan_moves(before, [1, 2, 3, 4], racks))
    assert all(len({racks[broker] for broker in replicas}) == 2 for replicas in result)


def test_too_few_brokers() -> None:
    with pytest.raises(
        CommandError, match=r"partition orders-0 needs 3 brokers for its replicas, and only 2 may be used"
    ):
        plan_moves(partitions([1, 2, 3]), [1, 2], {})


@given(
    st.lists(st.permutations([1, 2, 3, 4, 5]).map(lambda brokers: brokers[:3]), min_size=1, max_size=30),
    st.sets(st.integers(1, 7), min_size=3),
    st.dictionaries(st.integers(1, 7), st.sampled_from(["a", "b", "c"])),
)
def test_every_plan_is_legal_and_balanced(
    replicas: list[list[int]], brokers: set[int], racks: dict[int, str | None]
) -> None:
    before = partitions(*replicas)
    moves = plan_moves(before, sorted(brokers), racks)
    result = after(before, moves)
    for each in result:
        assert len(set(each)) == 3
        assert set(each) <= brokers
    if not racks:
        counts = Counter(broker for each in result for broker in each)
        assert max(counts.values()) - min(counts[broker] for broker in brokers) <= 1
    again = [part._replace(replicas=each) for part, each in zip(before, result, strict=True)]
    assert plan_moves(again, sorted(brokers), racks) == [], "a second plan finds nothing to do"


def test_draining_replaces_the_broker_in_its_place() -> None:
    before = partitions([3, 1], [1, 3], [1, 2])
    moves = plan_drain(before, 3, [1, 2], {})
    assert after(before, moves) == [[2, 1], [1, 2], [1, 2]]


def test_draining_spreads_the_replicas_over_the_other_brokers() -> None:
    before = partitions([5], [5], [5], [5], [1], [2])
    result = after(before, plan_drain(before, 5, [1, 2, 3, 4], {}))
    assert result == [[3], [4], [1], [2], [1], [2]]


def test_draining_without_a_free_broker() -> None:
    with pytest.raises(
        CommandError, match="broker 3 cannot be emptied: no other active broker is free for its replica"
    ):
        plan_drain(partitions([1, 2, 3]), 3, [1, 2], {})
    assert plan_drain(partitions([1, 2]), 3, [1, 2], {}) == []


def test_leading_elsewhere_moves_no_data() -> None:
    moves = lead_elsewhere(partitions([2, 1, 3], [1, 2], [2]), 2)
    assert [(move.partition, move.after, move.adding) for move in moves] == [(0, [1, 3, 2], [])]


def test_a_plan_survives_its_document() -> None:
    before = partitions([1, 2], [2, 3])
    moves = plan_moves(before, [1, 3, 4], {})
    document = plan_document(moves)
    assert document["version"] == 1
    assert moves_from_document(document, before) == moves
    undone = [part._replace(replicas=each) for part, each in zip(before, after(before, moves), strict=True)]
    assert after(undone, moves_from_document(plan_document(moves, before=True), undone)) == [[1, 2], [2, 3]]


def plan(**fields: object) -> dict[str, Any]:
    """Return a plan for one partition with these fields."""
    return {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 3]} | fields]}


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ([], "the plan is not of the form"),
        ({"version": 2, "partitions": []}, "the plan has version 2, not 1"),
        ({"version": 1, "partitions": [{"topic": "orders"}]}, "the plan is not of the form"),
        ({"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 1]}]}, "different brokers"),
        (
            {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": ["1"]}]},
            "different brokers",
        ),
        (plan(replicas=[True, 2]), r"different brokers, not \[true, 2\]"),
        (plan(replicas=[-1]), "different brokers"),
        (plan(replicas=[]), r"one or more different brokers, not \[\]"),
        (plan(replicas="12"), "the plan is not of the form"),
        (plan(replicas={"1": 2}), "the plan is not of the form"),
        (plan(topic=["orders"]), "the plan is not of the form"),
        (plan(partition=[0]), r'the plan is not of the form .*: TypeError in {"topic": "orders", "partition": \[0\]'),
        (plan(partition=True), "the plan is not of the form"),
        ({"version": 1, "partitions": 3}, "the plan is not of the form"),
        ({"version": 1, "partitions": ["orders"]}, "the plan is not of the form"),
        (
            {"version": 1, "partitions": plan()["partitions"] + plan(replicas=[2])["partitions"]},
            "the plan contains orders-0 2 times",
        ),
        (plan(log_dirs=["any", "/disk2"]), "the plan for orders-0 has log_dirs, which are not supported"),
    ],
)
def test_malformed_plans(document: object, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        moves_from_document(document, partitions([1, 2]))


def test_plans_of_kafkas_tool() -> None:
    [move] = moves_from_document(plan(log_dirs=["any", "any"]), partitions([1, 2]))
    assert move.after == [1, 3]


def test_a_plan_for_an_unknown_partition() -> None:
    document = {"version": 1, "partitions": [{"topic": "orders", "partition": 9, "replicas": [1]}]}
    with pytest.raises(CommandError, match="there is no partition orders-9"):
        moves_from_document(document, partitions([1, 2]))
