"""What a load tells a core, in both orders, and what live operation tells it."""

from typing import Any

import pytest

from group_harness.memory import MemoryPartition
from tidelog.coordinator.decision import LoadOrder, Producer
from tidelog.coordinator.loading import Loader
from tidelog.log.errors import CorruptLog
from tidelog.runtime.tasks import LoopTasks
from tidelog.simulation.loop import SimLoop
from tidelog.wire.control_batches import marker_batch
from tidelog.wire.primitives import MalformedMessage
from tidelog.wire.records import Record, encode_batch


class Listener:
    """A core that notes what it is told. Records are texts; the key `?` is of an unknown kind, and `!` is damaged."""

    def __init__(self, load_order: LoadOrder) -> None:
        self.load_order = load_order
        self.calls: list[tuple[Any, ...]] = []

    def decode(self, key: bytes, value: bytes | None) -> str | None:
        if key == b"!":
            raise MalformedMessage("damaged")
        return None if key == b"?" else f"{key.decode()}={'' if value is None else value.decode()}"

    def replay(self, record: str, next_offset: int) -> None:
        self.calls.append((record, next_offset))

    def replay_pending(
        self, record: str, next_offset: int, producer: Producer, record_offset: int, *, is_superseded: bool
    ) -> None:
        self.calls.append(("pending", record, next_offset, producer, record_offset, is_superseded))

    def end_transaction(self, producer: Producer, next_offset: int, *, is_commit: bool) -> None:
        self.calls.append(("commit" if is_commit else "abort", next_offset, producer))


def load(load_order: LoadOrder, *batches: bytearray) -> list[tuple[Any, ...]]:
    partition = MemoryPartition("__share_group_state", 0)
    for batch in batches:
        partition.append_batch(bytearray(batch), partition.leader_epoch)
    core, loop = Listener(load_order), SimLoop()
    loader = Loader("p", partition.log, core, LoopTasks(loop))

    async def run() -> None:
        await loader.run(lambda: True)

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    assert loader.next_offset == partition.log.log_end_offset
    return core.calls


def plain(*texts: str) -> bytearray:
    return encode_batch(records(texts))


def transactional(producer: Producer, *texts: str) -> bytearray:
    return encode_batch(
        records(texts), producer_id=producer.producer_id, producer_epoch=producer.epoch, is_transactional=True
    )


def records(texts: tuple[str, ...]) -> list[Record]:
    pairs = [text.encode().partition(b"=") for text in texts]
    return [Record(key, value or None, 1, offset=delta) for delta, (key, _, value) in enumerate(pairs)]


ONE, TWO = Producer(7, 3), Producer(8, 0)
HISTORY = (
    plain("a=1", "b=1"),
    transactional(ONE, "a=2", "c=2"),
    plain("b=3", "?=3"),
    transactional(TWO, "d=4"),
    marker_batch(7, 4, 0, is_commit=True, timestamp=1),  # with transaction version 2, it has the next epoch
    plain("b="),
    transactional(Producer(7, 4), "a=5"),
    marker_batch(8, 0, 0, is_commit=False, timestamp=1),
)


def test_the_last_record_of_each_key() -> None:
    assert load(LoadOrder.LAST_OF_EACH_KEY, *HISTORY) == [
        ("a=2", 11),
        ("c=2", 11),
        ("pending", "a=5", 11, Producer(7, 4), 9, False),
    ]


def test_all_records_in_order() -> None:
    assert load(LoadOrder.ALL_IN_ORDER, *HISTORY) == [
        ("a=1", 2),
        ("b=1", 2),
        ("pending", "a=2", 4, ONE, 2, False),
        ("pending", "c=2", 4, ONE, 3, False),
        ("b=3", 6),
        ("pending", "d=4", 7, TWO, 6, False),
        ("commit", 8, Producer(7, 4)),
        ("b=", 9),
        ("pending", "a=5", 10, Producer(7, 4), 9, False),
        ("abort", 11, TWO),
    ]


@pytest.mark.parametrize("load_order", LoadOrder)
def test_a_damaged_record_is_named(load_order: LoadOrder) -> None:
    with pytest.raises(CorruptLog, match="damaged"):
        load(load_order, plain("a=1"), plain("!=1"))
