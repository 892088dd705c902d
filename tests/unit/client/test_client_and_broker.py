"""The client with a real Tidelog broker: it reads the same batches that it wrote, also after a restart."""

import threading

import pytest

from tidelog.client.blocking import Client, ClientConfig
from tidelog.client.operations import EARLIEST, LATEST, THROTTLED, Backoff, FetchLimits
from tidelog.model.ids import TopicPartition
from tidelog.testing import Broker
from tidelog.wire.errors import OffsetOutOfRange, RecordTooLarge, UnknownTopicOrPartition
from tidelog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LIMITS = FetchLimits(max_wait_ms=10)
CONFIG = ClientConfig(backoff=Backoff(10, 50))


def values(client: Client, partition: TopicPartition) -> list[bytes | None]:
    records = client.fetch(partition, 0, LIMITS).records
    return [record.value for header in batches_in(records) for record in decode_records(records, header.position)]


def test_batches_that_go_in_come_out() -> None:
    with Broker(settings={"num.partitions": 2}) as broker, Client(broker.bootstrap, CONFIG) as client:
        with pytest.raises(UnknownTopicOrPartition):
            client.topics(["t"])
        assert list(client.topics(["t"], create=True)["t"].leaders) == [0, 1]
        one, two = ([Record(value=b"%s %d" % (name, i), timestamp=i) for i in range(10)] for name in (b"one", b"two"))
        first = client.produce({T0: encode_batch(one), T1: encode_batch(two)})
        second = client.produce({T1: encode_batch(one)})
        assert [first[T0].base_offset, first[T1].base_offset, second[T1].base_offset] == [0, 0, 10]
        assert values(client, T0) == [record.value for record in one]
        assert values(client, T1) == [record.value for record in two + one]
        assert client.list_offsets({T0: LATEST, T1: LATEST})[T1].offset == 20
        assert client.list_offsets({T0: EARLIEST, T1: 5})[T1] == (5, 5)
        assert len(client.fetch(T0, 10, LIMITS).records) == 0
        with pytest.raises(OffsetOutOfRange):
            client.fetch(T0, 11, LIMITS)
        with pytest.raises(RecordTooLarge, match="t-0: "):
            client.produce({T0: encode_batch([Record(value=bytes(2 << 20))])})


def test_a_restart_is_waited_for() -> None:
    with Broker(process=True) as broker, Client(broker.bootstrap, CONFIG) as client:
        client.topics(["t"], create=True)
        client.produce({T0: encode_batch([Record(value=b"before")])})
        broker.kill()
        restart = threading.Thread(target=broker.restart)
        restart.start()
        try:
            client.produce({T0: encode_batch([Record(value=b"after")])})
        finally:
            restart.join()
        assert values(client, T0) == [b"before", b"after"]


def test_a_consumer_quota_is_kept_and_everything_comes() -> None:
    """However often the broker has nothing to give for a while."""
    entity = [EntityData(entity_type="client-id", entity_name=CONFIG.client_id)]
    quota = EntryData(entity=entity, ops=[OpData(key="consumer_byte_rate", value=100_000.0)])
    limits = FetchLimits(max_wait_ms=10, partition_max_bytes=150_000)
    settings = {"quota.window.num": 2}
    with Broker(settings=settings) as broker, Client(broker.bootstrap, CONFIG) as client:
        client.topics(["t"], create=True)
        sent = [b"%d" % number + bytes(50_000) for number in range(8)]
        for value in sent:
            client.produce({T0: encode_batch([Record(value=value)])})
        answer = client.ask_any(AlterClientQuotasRequest(entries=[quota]), client.deadline())
        assert isinstance(answer, AlterClientQuotasResponse)
        assert answer.entries[0].error_code == 0
        came: list[bytes | None] = []
        held_back = 0
        while len(came) < len(sent):
            fetched = client.fetch(T0, len(came), limits)
            held_back += fetched is THROTTLED
            for header in batches_in(fetched.records):
                came += [record.value for record in decode_records(fetched.records, header.position)]
        assert came == sent
        assert held_back
