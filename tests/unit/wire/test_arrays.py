"""Long arrays in parts: the parts hold every item, and the arrays stay unchanged."""

from itertools import chain

from tidelog.model.steps import run_all
from tidelog.wire.arrays import PART_ITEMS, parts_of
from tidelog.wire.messages.fetch import AbortedTransaction, FetchableTopicResponse, FetchResponse, PartitionData
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics


def test_what_is_short_has_no_parts() -> None:
    assert run_all(parts_of(FindCoordinatorRequest(coordinator_keys=["k"] * PART_ITEMS))) == []
    assert run_all(parts_of(FetchResponse())) == []


def test_a_long_array_in_parts_of_its_order() -> None:
    keys = [f"key-{number}" for number in range(3 * PART_ITEMS + 5)]
    request = FindCoordinatorRequest(coordinator_keys=keys)
    parts = run_all(parts_of(request))
    assert [*chain(*parts)] == keys
    assert [len(part) for part in parts] == [PART_ITEMS] * 3 + [5]
    for part in parts:
        part.clear()
    assert len(request.coordinator_keys) == len(keys)


def test_long_arrays_are_found_within_short_ones_and_in_each_other() -> None:
    count = PART_ITEMS + 1
    aborted = [AbortedTransaction(producer_id=number) for number in range(count)]
    data = [PartitionData(index) for index in range(count)]
    data[7].aborted_transactions = aborted
    response = FetchResponse(responses=[FetchableTopicResponse("short"), FetchableTopicResponse("t", partitions=data)])
    held = {id(thing) for thing in chain(*run_all(parts_of(response)))}
    assert held == {id(thing) for thing in [*aborted, *data]}


def test_arrays_of_numbers_and_absent_ones() -> None:
    numbers = list(range(PART_ITEMS + 1))
    groups = [
        OffsetFetchRequestGroup("all", topics=None),
        OffsetFetchRequestGroup("some", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=numbers)]),
    ]
    assert [*chain(*run_all(parts_of(OffsetFetchRequest(groups=groups))))] == numbers


def test_it_takes_steps_whatever_is_many() -> None:
    many = FindCoordinatorRequest(coordinator_keys=["k"] * (100 * PART_ITEMS))
    assert sum(1 for _ in parts_of(many)) == 100
    topics = [FetchableTopicResponse(f"{number}") for number in range(PART_ITEMS)]
    assert sum(1 for _ in parts_of(FetchResponse(responses=topics))) >= 4
