"""The at-least-once sink: a batch that is sent again is appended once."""

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidelog import idempotent, writer
from pyspark_tidelog.idempotent import Producers
from pyspark_tidelog.options import write_options
from tidelog.client.blocking import Client
from tidelog.client.operations import FetchLimits
from tidelog.model.ids import TopicPartition
from tidelog.testing import Broker
from tidelog.wire.batches import TRANSACTIONAL_BIT, BatchHeader
from tidelog.wire.errors import ApiError, ErrorCode

T0 = TopicPartition("t", 0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> Producers:
    new = Producers()
    monkeypatch.setattr(writer, "PRODUCERS", new)
    return new


def write(broker: Broker, *values: str, **options: str) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": "t", "kafka.batch.size": "1", **options}
    rows = (pa.record_batch({"value": pa.array([value.encode()])}) for value in values)
    assert writer.write_rows(write_options(given), rows).records == len(values)


def headers(broker: Broker) -> list[BatchHeader]:
    with Client(broker.bootstrap) as client:
        data = client.start_fetch(T0, 0, FetchLimits()).result().records
    found: list[BatchHeader] = []
    position = 0
    while position < len(data):
        found.append(BatchHeader(data, position))
        position += found[-1].size
    return found


@pytest.mark.usefixtures("producers")
def test_the_tasks_of_a_process_use_one_producer_id_and_continue_its_sequence_numbers(broker: Broker) -> None:
    write(broker, "a", "b")
    write(broker, "c")
    found = headers(broker)
    assert [header.base_sequence for header in found] == [0, 1, 2]
    assert len({header.producer_id for header in found}) == 1
    assert all(header.producer_id >= 0 and not header.attributes & TRANSACTIONAL_BIT for header in found)
    assert all(header.crc_ok() for header in found)


@pytest.mark.usefixtures("producers")
@pytest.mark.parametrize("options", [{"kafka.enable.idempotence": "false"}, {"kafka.acks": "1"}])
def test_a_write_that_is_not_idempotent_has_no_producer_id(broker: Broker, options: dict[str, str]) -> None:
    write(broker, "a", **options)
    [header] = headers(broker)
    assert header.producer_id == header.base_sequence == -1


@pytest.mark.usefixtures("producers")
def test_a_batch_whose_answer_is_lost_is_appended_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = iter([True])
    start = Client.start_produce

    def start_twice(client: Client, batches: Any, acks: int = -1) -> Any:
        if next(lost, False):
            start(client, batches, acks).result()  # the answer that is lost
        return start(client, batches, acks)

    monkeypatch.setattr(Client, "start_produce", start_twice)
    write(broker, "a", "b")
    assert [(header.base_offset, header.base_sequence) for header in headers(broker)] == [(0, 0), (1, 1)]


def test_a_failed_task_gives_its_producer_id_up(
    broker: Broker, producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(broker, "a")
    with monkeypatch.context() as patch, pytest.raises(ApiError, match="planted"):

        def fail(*_: object) -> Any:
            raise ApiError("planted", ErrorCode.UNKNOWN_SERVER_ERROR)

        patch.setattr(Client, "start_produce", fail)
        write(broker, "b")
    write(broker, "c")
    first, second = headers(broker)
    assert first.producer_id != second.producer_id
    assert second.base_sequence == 0


def test_a_forked_process_gets_producers_of_its_own(
    broker: Broker, producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(broker.bootstrap) as client:
        parent = producers.acquire(client, broker.bootstrap)
        assert producers.acquire(client, broker.bootstrap) is parent
        child = os.getpid() + 1
        monkeypatch.setattr(idempotent.os, "getpid", lambda: child)
        assert producers.acquire(client, broker.bootstrap).producer_id != parent.producer_id
