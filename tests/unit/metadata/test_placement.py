"""Where partitions are put."""

from collections import Counter

import pytest

from metadata_harness.builders import image, topic
from tidelog.metadata.placement import place


def test_a_single_broker_has_everything() -> None:
    assert place(image(), 3, 1) == [(1,)] * 3


@pytest.mark.parametrize(("brokers", "factor"), [(2, 1), (3, 2), (3, 3), (5, 3), (7, 2)])
def test_replicas_are_distinct_and_evenly_spread(brokers: int, factor: int) -> None:
    rounds = 4 * brokers * max(brokers - 1, 1)
    placed = place(image(brokers=range(brokers)), rounds, factor)
    assert all(len(dict.fromkeys(replicas)) == factor for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    held = Counter(broker for replicas in placed for broker in replicas)
    assert len(set(leaders.values())) == 1
    assert len(set(held.values())) == 1


def test_a_leaders_followers_are_not_always_the_same() -> None:
    placed = place(image(brokers=[0, 1, 2, 3]), 12, 2)
    assert {replicas[1] for replicas in placed if replicas[0] == 0} == {1, 2, 3}


def test_many_small_topics_spread_as_one_big_one() -> None:
    now = image(brokers=[1, 2, 3])
    leaders = []
    for number in range(6):
        (replicas,) = place(now, 1, 1)
        leaders.append(replicas[0])
        now = image(*(topic(f"t{i}", i) for i in range(number + 1)), brokers=[1, 2, 3])
    assert Counter(leaders) == {1: 2, 2: 2, 3: 2}
