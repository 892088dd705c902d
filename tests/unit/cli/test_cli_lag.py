"""The ages of the oldest records that groups have not committed, while some partitions do not answer."""

from typing import Any

import pytest

from tidelog.cli import lag
from tidelog.cli.lag import Ages, Lag
from tidelog.client.cluster import Address
from tidelog.client.errors import BrokerUnreachable


class Fetches:
    """Replaces the fetch of a timestamp. `unreachable` has the partitions whose broker does not answer."""

    def __init__(self) -> None:
        self.unreachable: set[int] = set()
        self.asked: list[int] = []

    def __call__(self, client: object, topic: str, partition: int, offset: int) -> int:
        self.asked.append(partition)
        if partition in self.unreachable:
            raise BrokerUnreachable(Address("far", 1), "no answer in time")
        return 0


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Fetches:
    fetches = Fetches()
    monkeypatch.setattr(lag, "batch_timestamp_ms", fetches)
    return fetches


def lags(partitions: int, committed: int = 0) -> list[Lag]:
    return [Lag("g", "orders", number, committed, 100, "") for number in range(partitions)]


def known(ages: Ages, measured: list[Lag]) -> list[int]:
    """The partitions whose age is known after one more measurement."""
    return [each.partition for each in ages.add_to(measured) if each.behind_ms is not None]


def ages_of_a_fake_client() -> Ages:
    client: Any = None
    return Ages(client)


def test_a_partition_that_never_answers_does_not_hide_the_others(fetches: Fetches) -> None:
    fetches.unreachable = {1, 3}
    ages = ages_of_a_fake_client()
    assert known(ages, lags(6)) == [0]
    (problem,) = ages.problems
    assert problem.startswith(
        "not every value of Behind is known: orders-1: no answer from the cluster (broker far:1 cannot be"
    )
    assert known(ages, lags(6)) == [0, 2]
    assert known(ages, lags(6)) == [0, 2, 4, 5]
    # The group commits: all timestamps must be fetched again, those that failed last.
    assert known(ages, lags(6, committed=1)) == [0, 2, 4, 5]
    assert fetches.asked[-5:-1] == [0, 2, 4, 5]
    fetches.unreachable.clear()
    assert known(ages, lags(6, committed=1)) == [0, 1, 2, 3, 4, 5]
    assert ages.problems == []


def test_all_partitions_get_their_turn(fetches: Fetches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "FETCHES_MAX", 2)
    ages = ages_of_a_fake_client()
    assert known(ages, lags(3, committed=1)) == [0, 1]
    assert ages.problems == [
        "not every value of Behind is known: one measurement reads at most 2 values; with --watch, later measurements "
        "read the others"
    ]
    assert known(ages, lags(3, committed=2)) == [0, 2]
    assert known(ages, lags(3, committed=3)) == [1, 2]
