"""Where partitions are put."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_harness.builders import broker, image, topic
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.placement import first_isr, place_in_steps
from tidelog.metadata.records import BrokerStateChanged
from tidelog.model.steps import run_all
from tidelog.wire.errors import ApiError, ErrorCode


def place(image: MetadataImage, partitions: int, replication_factor: int, first: int = 0) -> list[tuple[int, ...]]:
    return run_all(place_in_steps(image, partitions, replication_factor, first))


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


def in_racks(*racks: str | None) -> MetadataImage:
    """Return an image of the brokers 0, 1, ... in these racks."""
    return image(*(broker(number)._replace(rack=rack) for number, rack in enumerate(racks)), brokers=[])


RACKS = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=8)


@given(RACKS, st.integers(1, 40), st.data())
def test_racks_then_leaders_then_replicas_are_spread(
    racks: list[str | None], partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    placed = place(in_racks(*racks), partitions, factor, data.draw(st.integers(0, 10)))
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({racks[number] for number in replicas}) == min(factor, len(set(racks)))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(number, 0) for number in range(len(racks))) <= 1


@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 60), st.data())
def test_replicas_are_balanced_over_racks_of_equal_size(
    racks: int, brokers_per_rack: int, partitions: int, data: st.DataObject
) -> None:
    count = racks * brokers_per_rack
    factor = data.draw(st.integers(1, count))
    placed = place(in_racks(*(f"r{number % racks}" for number in range(count))), partitions, factor)
    replica_counts = Counter(number for replicas in placed for number in replicas)
    assert max(replica_counts.values()) - min(replica_counts.get(number, 0) for number in range(count)) <= 3


def test_the_same_image_gives_the_same_placement() -> None:
    cluster = in_racks("a", "b", "a", "c", None)
    assert place(cluster, 20, 3, 7) == place(cluster, 20, 3, 7)


def test_brokers_that_are_not_active_are_used_last_and_never_lead() -> None:
    cluster = image(
        BrokerStateChanged(1, 0, fenced=True),
        BrokerStateChanged(2, 0, in_controlled_shutdown=True),
        brokers=[1, 2, 3, 4],
    )
    assert {broker for replicas in place(cluster, 6, 2) for broker in replicas} == {3, 4}
    assert place(cluster, 2, 3) == [(3, 4, 1), (4, 3, 1)]
    assert first_isr(cluster, 0, (1, 3, 2, 4)) == (3, 4)
    with pytest.raises(ApiError) as caught:
        first_isr(cluster, 7, (1, 2))
    assert caught.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "partition 7" in caught.value.message
