"""How `tidelog bench` uses the reports of librdkafka."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from tidelog.cli.errors import CommandError
from tidelog.cli.measure import measure_produce


class FakeProducer:
    """Its broker refuses one record, which is told with the flush."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.told: list[Callable[[KafkaError | None, FakeMessage], None]] = []

    def produce(self, topic: str, value: bytes, on_delivery: Any) -> None:
        self.told.append(on_delivery)

    def poll(self, seconds: float) -> None: ...

    def purge(self) -> None: ...

    def flush(self, seconds: float) -> int:
        for number, tell in enumerate(self.told):
            tell(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS) if number == self.refused else None, FakeMessage())
        return 0

    def __len__(self) -> int:
        return 0


class FakeMessage:
    def latency(self) -> float:
        return 0.002


class FakeConnection:
    def __init__(self, refused: int) -> None:
        self.fake = FakeProducer(refused)

    def producer(self, settings: dict[str, Any]) -> FakeProducer:
        return self.fake


def measured(refused: int) -> Any:
    connection: Any = FakeConnection(refused)
    return measure_produce(connection, "t", 150, b"12345", {}, lambda point: None)


@pytest.mark.parametrize("refused", [0, 1, 99, 100, 149])
def test_no_refusal_is_overlooked(refused: int) -> None:
    with pytest.raises(CommandError, match="NOT_ENOUGH_REPLICAS"):
        measured(refused)


def test_a_sample_of_the_acknowledgements_is_timed() -> None:
    result = measured(-1)
    assert (result.records, result.size_bytes, result.latencies_ms) == (150, 750, [2.0, 2.0])
