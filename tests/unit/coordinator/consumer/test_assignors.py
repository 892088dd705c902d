"""Assignors: every partition is assigned once, evenly, and no partition moves without need."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.coordinator.consumer.assignors import ASSIGNORS, AssigningMember, assign_range, assign_uniform
from tidelog.coordinator.consumer.member import Target

T, U, V = b"t" * 16, b"u" * 16, b"v" * 16
COUNTS = {T: 6, U: 6, V: 2}


def members(subscriptions: dict[str, str], before: dict[str, Target] | None = None) -> dict[str, AssigningMember]:
    """`subscriptions`: member id -> topics as letters, "tu"."""
    known = {
        letters: frozenset({"t": T, "u": U, "v": V}[letter] for letter in letters) for letters in ["tuv", "tu", "tuv"]
    }
    return {
        name: AssigningMember(
            known.get(letters, frozenset({"t": T, "u": U, "v": V}[letter] for letter in letters)),
            (before or {}).get(name, {}),
            name,
        )
        for name, letters in subscriptions.items()
    }


def pairs(targets: dict[str, Target]) -> dict[tuple[bytes, int], str]:
    """Partition -> member. Asserts that none has two."""
    owners: dict[tuple[bytes, int], str] = {}
    for name, target in targets.items():
        for topic_id, partitions in target.items():
            assert partitions, "no topic is empty"
            assert list(partitions) == sorted(partitions)
            for partition in partitions:
                assert (topic_id, partition) not in owners
                owners[topic_id, partition] = name
    return owners


def counts_of(subscribed: dict[str, AssigningMember]) -> dict[bytes, int]:
    return {topic: COUNTS[topic] for member in subscribed.values() for topic in sorted(member.topic_ids)}


def test_uniform_gives_everybody_as_much() -> None:
    targets = assign_uniform(members({"a": "tu", "b": "tu", "c": "tu", "d": "tu", "e": "tu"}), {T: 6, U: 6})
    assert sorted(Counter(pairs(targets).values()).values()) == [2, 2, 2, 3, 3]


def test_uniform_moves_one_share_to_a_newcomer_and_spreads_what_a_leaver_had() -> None:
    counts = {T: 6, U: 6}
    three = assign_uniform(members(dict.fromkeys("abc", "tu")), counts)
    four = assign_uniform(members(dict.fromkeys("abcd", "tu"), three), counts)
    moved = {p for p, owner in pairs(four).items() if pairs(three)[p] != owner}
    assert {pairs(four)[p] for p in moved} == {"d"}
    assert len(moved) == 3
    again = assign_uniform(members(dict.fromkeys("acd", "tu"), four), counts)
    assert all(pairs(again)[p] == owner for p, owner in pairs(four).items() if owner != "b")


def test_what_does_not_change_is_the_same_object() -> None:
    for assignor in ASSIGNORS.values():
        first = assignor(members(dict.fromkeys("ab", "tu")), {T: 6, U: 6})
        second = assignor(members(dict.fromkeys("ab", "tu"), first), {T: 6, U: 6})
        assert all(second[name] is first[name] for name in "ab")


def test_range_keeps_equal_partitions_of_equal_topics_together() -> None:
    counts = {T: 6, U: 6}
    targets = assign_range(members(dict.fromkeys("abcd", "tu")), counts)
    assert all(target[T] == target[U] for target in targets.values())
    assert targets["a"][T] == (0, 1)
    fewer = assign_range(members(dict.fromkeys("acd", "tu"), targets), counts)
    assert all(target[T] == target[U] for target in fewer.values())
    assert set(targets["a"][T]) <= set(fewer["a"][T])


def test_range_cuts_each_topic_by_its_own_readers() -> None:
    targets = assign_range(members({"a": "tv", "b": "t", "c": "v"}), {T: 6, V: 2})
    assert targets == {"a": {T: (0, 1, 2), V: (0,)}, "b": {T: (3, 4, 5)}, "c": {V: (1,)}}


def test_uniform_evens_out_what_different_subscriptions_allow() -> None:
    targets = assign_uniform(members({"a": "t", "b": "tu", "c": "u"}), {T: 6, U: 6})
    loads = Counter(pairs(targets).values())
    assert max(loads.values()) - min(loads.values()) <= 1
    assert assign_uniform(members({"a": "t", "b": "u"}), {T: 6, U: 6}) == {
        "a": {T: tuple(range(6))},
        "b": {U: tuple(range(6))},
    }


def test_nobody_and_nothing() -> None:
    assert assign_uniform({}, {}) == assign_range({}, {}) == {}
    assert assign_uniform(members({"a": ""}), {}) == assign_range(members({"a": ""}), {}) == {"a": {}}


subscriptions = st.dictionaries(
    st.sampled_from("abcdefgh"), st.sampled_from(("t", "u", "tu", "tuv", "v", "")), max_size=8
)


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@settings(max_examples=150, deadline=None)
@given(steps=st.lists(subscriptions, min_size=1, max_size=4))
def test_through_any_changes_every_partition_has_one_reader(name: str, steps: list[dict[str, str]]) -> None:
    targets: dict[str, Target] = {}
    for step in steps:
        subscribed = members(step, targets)
        counts = counts_of(subscribed)
        targets = ASSIGNORS[name](subscribed, counts)
        assert targets.keys() == subscribed.keys()
        owners = pairs(targets)
        assert len(owners) == sum(counts.values())
        assert all(topic in subscribed[owner].topic_ids for (topic, _), owner in owners.items())
        if name == "range":
            for topic, count in counts.items():
                readers = [m for m, member in subscribed.items() if topic in member.topic_ids]
                sizes = [len(targets[m].get(topic, ())) for m in readers]
                assert max(sizes) - min(sizes) <= 1
                assert sum(sizes) == count
        else:
            loads = {m: sum(map(len, target.values())) for m, target in targets.items()}
            for (topic, _), owner in owners.items():
                readers = [m for m, member in subscribed.items() if topic in member.topic_ids]
                assert loads[owner] - min(loads[m] for m in readers) <= 1, "one move would even it out"


@settings(max_examples=100, deadline=None)
@given(before=st.integers(1, 40), after=st.integers(1, 40), count=st.integers(1, 100))
def test_uniform_moves_only_what_must_move(before: int, after: int, count: int) -> None:
    """What a member holds above its new share must go, and what leavers held; nothing else does."""
    names = [f"m{number:02}" for number in range(max(before, after))]
    ids = frozenset({T})
    first = assign_uniform({n: AssigningMember(ids, {}, n) for n in names[:before]}, {T: count})
    second = assign_uniform({n: AssigningMember(ids, first.get(n, {}), n) for n in names[:after]}, {T: count})
    moved = sum(1 for p, owner in pairs(second).items() if pairs(first)[p] != owner)
    least, more = divmod(count, after)
    held = sorted((len(first.get(n, {}).get(T, ())) for n in names[:after]), reverse=True)
    kept = sum(min(size, least + (place < more)) for place, size in enumerate(held))
    assert moved == count - kept
