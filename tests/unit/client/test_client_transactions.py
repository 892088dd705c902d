"""Our own client's operations on transactions, with a broker."""

import time
from collections.abc import Iterator

import pytest

from tidelog.client.blocking import Client
from tidelog.client.transactions import ActiveProducer, TransactionFilter
from tidelog.model.ids import TopicPartition
from tidelog.testing import Broker
from tidelog.wire.errors import ApiError, ErrorCode
from transaction_harness.raw_producer import RawProducer

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """A broker with a transaction that is open, one that has ended, and a producer that has not begun one."""
    with Broker() as broker:
        with Client(broker.bootstrap) as client:
            client.topics(["orders"], create=True)
        with RawProducer(broker.bootstrap, "ended") as ended, RawProducer(broker.bootstrap, "idle") as idle:
            ended.initialize()
            ended.transaction([("orders", 0, b"a")])
            idle.initialize()
        with RawProducer(broker.bootstrap, "open") as producer:
            producer.initialize()
            producer.initialize()  # now with the epoch 1
            assert producer.add("orders", 0) == ErrorCode.NONE
            assert producer.write("orders", 0, b"b") == ErrorCode.NONE
        yield broker.bootstrap


def listed(client: Client, wanted: TransactionFilter) -> list[str]:
    listing = client.list_transactions(wanted)
    assert listing.failures == {}
    return [each.transactional_id for each in listing.transactions]


def test_the_duration_filter_of_a_broker_passes_what_is_not_open(bootstrap: str) -> None:
    """As in Kafka: an ended transaction keeps its start, and a transactional id without one has the start -1."""
    with Client(bootstrap) as client:
        assert listed(client, TransactionFilter()) == ["ended", "idle", "open"]
        assert listed(client, TransactionFilter(duration_ms=3_600_000)) == ["idle"]
        deadline = time.monotonic() + 30
        while listed(client, TransactionFilter(duration_ms=0)) != ["ended", "idle", "open"]:
            assert time.monotonic() < deadline
        assert client.list_transactions(TransactionFilter(states=["Odd", "Ongoing"])).unknown_states == ["Odd"]


def test_producers_are_described_at_the_leader_and_at_a_broker(bootstrap: str) -> None:
    with Client(bootstrap) as client:
        for broker_id in (None, 1):
            producers = client.describe_producers([ORDERS], broker_id)[ORDERS]
            assert isinstance(producers, list)
            assert [each.start_offset for each in sorted(producers)] == [None, 2]
        with pytest.raises(ApiError, match="there is no broker 7; the cluster has 1"):
            client.describe_producers([ORDERS], 7)
        missing = client.describe_producers([TopicPartition("orders", 9)])[TopicPartition("orders", 9)]
        assert isinstance(missing, Exception)
        assert "the topic has 1 partitions" in str(missing)


def test_refusals_of_a_marker(bootstrap: str) -> None:
    with Client(bootstrap) as client:
        producers = client.describe_producers([ORDERS])[ORDERS]
        assert isinstance(producers, list)
        [opened] = [each for each in producers if each.start_offset is not None]
        with pytest.raises(ApiError, match="orders-0: INVALID_PRODUCER_EPOCH"):
            client.abort_in_partition(ORDERS, opened._replace(producer_epoch=0))
        client.abort_in_partition(ORDERS, ActiveProducer(opened.producer_id, opened.producer_epoch, 0, 0, -1, 2))
