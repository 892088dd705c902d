"""The broker that is killed in the middle of the sale."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaException

from tidelog.demo import brokers
from tidelog.demo.brokers import KILL_AT_PERCENT, BrokerFault, Takeover
from tidelog.demo.orders import EVENTS, ORDERS
from tidelog.testing import Broker, Cluster


class FakeCluster(Cluster):
    """A cluster without processes. `leaders` has the answers to requests for metadata; the last one is repeated."""

    def __init__(self, leaders: list[dict[str, list[int]] | None]) -> None:
        super().__init__(3)
        self.leaders = leaders
        self.up = [1, 2, 3]

    @property
    def bootstrap(self) -> str:
        return "127.0.0.1:1"

    @property
    def running(self) -> list[int]:
        return self.up

    def kill(self, number: int) -> None:
        self.up.remove(number)

    def start(self, number: int | None = None) -> None:
        assert number is not None
        self.up.append(number)

    def list_topics(self, topic: str, timeout: float) -> Any:
        answer = self.leaders[0]
        if topic == EVENTS and len(self.leaders) > 1:
            del self.leaders[0]
        if answer is None:
            raise KafkaException("no broker answers")
        partitions = {number: SimpleNamespace(leader=leader) for number, leader in enumerate(answer[topic])}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=partitions)})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time in seconds; a pause lets it pass."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(brokers.time, "monotonic", lambda: now.s)
    monkeypatch.setattr(brokers.time, "sleep", lambda seconds: setattr(now, "s", now.s + seconds))
    return now


def fault_of(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> BrokerFault:
    monkeypatch.setattr(brokers, "AdminClient", lambda settings: cluster)
    return BrokerFault(cluster, {})


def test_the_busiest_broker_is_killed_and_started_again(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {ORDERS: [1, 2, 2], EVENTS: [2, 3, 1]}
    cluster = FakeCluster(
        [
            before,
            before,  # no broker knows of it yet
            None,
            {ORDERS: [1, -1, -1], EVENTS: [3, 3, 1]},
            {ORDERS: [1, 3, 1], EVENTS: [3, 3, 1]},
        ]
    )
    fault = fault_of(cluster, monkeypatch)
    assert fault.step(KILL_AT_PERCENT - 0.1) == ""
    assert fault.takeover is None
    assert fault.states() == {"1": "works", "2": "works", "3": "works"}
    line = fault.step(KILL_AT_PERCENT)
    assert fault.takeover == Takeover(2, {1: 1, 3: 2}, pytest.approx(3 * brokers.POLL_S))
    assert line == "broker 2 killed with -9: 3 leaders moved in 0.1 s (1 to broker 1, 2 to broker 3)"
    assert fault.states() == {"1": "works", "2": "killed", "3": "works"}
    assert fault.step(90) == ""
    assert not fault.is_over
    clock.s += brokers.DOWN_S
    assert fault.step(90) == "broker 2 started again"
    assert fault.is_over
    assert fault.step(100) == ""


def test_no_broker_is_killed_while_the_leaders_are_not_known(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {ORDERS: [1, 2, 2], EVENTS: [2, 3, 1]}
    without_events = {ORDERS: [1, 2, 2], EVENTS: []}
    cluster = FakeCluster([None, without_events, known, {ORDERS: [1, 1, 3], EVENTS: [3, 3, 1]}])
    fault = fault_of(cluster, monkeypatch)
    for _ in range(2):
        assert fault.step(KILL_AT_PERCENT) == ""
        assert cluster.up == [1, 2, 3]
    assert fault.step(KILL_AT_PERCENT).startswith("broker 2 killed with -9: 3 leaders moved")


def test_partitions_that_get_no_leader(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = {ORDERS: [3], EVENTS: [3]}
    fault = fault_of(FakeCluster([leaders]), monkeypatch)
    with pytest.raises(TimeoutError, match="partitions of broker 3 still have no new leader after 30 s"):
        fault.step(100)


def test_a_single_broker_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "AdminClient", lambda settings: None)
    fault = BrokerFault(cast(Broker, SimpleNamespace(bootstrap="127.0.0.1:1")), {})
    assert fault.is_over
    assert fault.states() == {}
    assert fault.step(100) == ""
