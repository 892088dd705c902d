"""A produce request that names a partition more than once. The expectations are Kafka 4.3.1's answers."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from log_harness import NOW_MS, LogOnDisk, leads_alone, make_batch
from tidelog.api import produce
from tidelog.api.services import CloseConnection, RequestContext
from tidelog.model.steps import run_all
from tidelog.replication.partition import Partition
from tidelog.wire.errors import ErrorCode, UnknownTopicOrPartition
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

Entries = list[tuple[str, list[tuple[int, bytes]]]]
GOOD, OTHER = bytes(make_batch(b"good")), bytes(make_batch(b"first", b"second"))
DAMAGED = bytes([*GOOD[:17], GOOD[17] ^ 1, *GOOD[18:]])  # its checksum
NONE, TWO = b"", GOOD + GOOD
FRAMED = (GOOD, OTHER, DAMAGED)
PARTITIONS = 3


class Partitions:
    """The part of `replication.partitions.Partitions` that produce needs."""

    def __init__(self) -> None:
        self.appending = False
        self.logs: dict[tuple[str, int], LogOnDisk] = {}
        self.known: dict[tuple[str, int], Partition] = {}
        nothing: Any = None
        clock: Any = SimpleNamespace(now_ms=lambda: NOW_MS, monotonic=float)
        flusher: Any = SimpleNamespace(dirty={})
        for topic in ("t", "u"):
            for index in range(PARTITIONS):
                log = self.logs[topic, index] = LogOnDisk()
                self.known[topic, index] = Partition(
                    topic,
                    bytes(16),
                    index,
                    log.log,
                    replica=leads_alone(log.log),
                    internal=False,
                    clock=clock,
                    tasks=nothing,
                    flusher=flusher,
                )

    def get(self, topic: str, index: int) -> Partition:
        if (topic, index) not in self.known:
            raise UnknownTopicOrPartition("none")
        return self.known[topic, index]

    def wake_fetches(self) -> None:
        self.appending = False

    def ends(self) -> dict[tuple[str, int], int]:
        return {place: partition.log.log_end_offset for place, partition in self.known.items()}


def asked(entries: Entries, acks: int) -> ProduceRequest:
    topics = [
        TopicProduceData(
            name=name,
            partition_data=[PartitionProduceData(i, memoryview(bytearray(batch))) for i, batch in partitions],  # type: ignore[arg-type]
        )
        for name, partitions in entries
    ]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics)


def produced(entries: Entries, *, wide: bool, acks: int = 1) -> tuple[Partitions, Any]:
    """The partitions afterwards, and the response; what a connection does for a short or for a long request."""
    services: Any = SimpleNamespace(partitions=Partitions(), followers=None)
    context: Any = RequestContext(0, 9, 1, "client", SimpleNamespace())  # type: ignore[arg-type]
    request = asked(entries, acks)
    if not wide:
        return services.partitions, produce.handle(services, context, request)
    answers: list[Any] = []
    run_all(produce._handle_in_steps(services, context, request)).listen(answers.append)
    response = run_all(answers[0]) if acks else answers[0]
    return services.partitions, response


def told(response: Any) -> dict[str, dict[int, tuple[int, int]]]:
    """Error and base offset of each partition; no partition may come twice."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for topic in response.responses:
        assert topic.name not in found
        found[topic.name] = {p.index: (p.error_code, p.base_offset) for p in topic.partition_responses}
        assert len(found[topic.name]) == len(topic.partition_responses)
    return found


REFUSED, CORRUPT = (ErrorCode.INVALID_RECORD, -1), (ErrorCode.CORRUPT_MESSAGE, -1)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("batches", "answer", "end"),
    [
        ([GOOD, OTHER], (0, 0), 2),
        ([OTHER, GOOD, OTHER, GOOD], (0, 0), 1),
        ([DAMAGED, GOOD], (0, 0), 1),
        ([GOOD, DAMAGED], CORRUPT, 0),
        ([NONE, GOOD], REFUSED, 1),  # appended, though it is not what the client hears
        ([GOOD, NONE], REFUSED, 1),
        ([OTHER, TWO, GOOD], REFUSED, 1),
        ([OTHER, GOOD, TWO], REFUSED, 1),
        ([OTHER, TWO, NONE], REFUSED, 2),
        ([NONE, TWO], REFUSED, 0),
        ([TWO, DAMAGED], REFUSED, 0),
        ([DAMAGED, TWO], REFUSED, 0),
    ],
)
def test_the_last_batch_is_appended(
    batches: list[bytes], answer: tuple[int, int], end: int, *, apart: bool, wide: bool
) -> None:
    entries = [("t", [(1, batch)]) for batch in batches] if apart else [("t", [(1, batch) for batch in batches])]
    partitions, response = produced(entries, wide=wide)
    assert told(response) == {"t": {1: answer}}
    assert partitions.ends()["t", 1] == end


@pytest.mark.parametrize("wide", [False, True])
def test_entries_around_others(*, wide: bool) -> None:
    entries: Entries = [
        ("t", [(1, OTHER), (0, OTHER)]),
        ("u", [(0, GOOD)]),
        ("t", [(2, GOOD), (1, GOOD), (9, GOOD)]),
        ("no", [(0, GOOD), (0, NONE)]),
        ("u", [(1, GOOD), (9, GOOD)]),
        ("t", []),
        ("t", [(9, GOOD)]),
    ]
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    partitions, response = produced(entries, wide=wide)
    assert told(response) == {
        "t": {1: (0, 0), 0: (0, 0), 2: (0, 0), 9: unknown},
        "u": {0: (0, 0), 1: (0, 0), 9: unknown},
        "no": {0: unknown},
    }
    assert partitions.ends() == {("t", 0): 2, ("t", 1): 1, ("t", 2): 1, ("u", 0): 1, ("u", 1): 1, ("u", 2): 0}


@pytest.mark.parametrize("wide", [False, True])
def test_without_acknowledgement(*, wide: bool) -> None:
    partitions, answer = produced([("t", [(1, OTHER)]), ("t", [(1, GOOD)])], wide=wide, acks=0)
    assert answer is None
    assert partitions.ends()["t", 1] == 1
    partitions, answer = produced([("t", [(1, OTHER), (1, NONE)])], wide=wide, acks=0)
    assert isinstance(answer, CloseConnection)
    assert partitions.ends()["t", 1] == 2


def test_any_request_answers_as_kafka_does_in_one_part_and_in_steps() -> None:
    rng = random.Random(7)
    for _ in range(150):
        entries: Entries = [
            (
                rng.choice(("t", "u", "no")),
                [(rng.choice((0, 1, 2, 9)), rng.choice((*FRAMED, NONE, TWO))) for _ in range(rng.randrange(5))],
            )
            for _ in range(rng.randrange(1, 6))
        ]
        expected: dict[str, dict[int, tuple[int, int]]] = {}
        ends = dict.fromkeys(Partitions().known, 0)
        for name, partitions in entries:
            for index, _ in partitions:
                batches = [b for n, each in entries if n == name for i, b in each if i == index]
                framed = [b for b in batches if b in FRAMED]
                if (name, index) not in ends:
                    answer = (int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), -1)
                elif len(framed) < len(batches):
                    answer = REFUSED
                else:
                    answer = CORRUPT if framed[-1] == DAMAGED else (0, 0)
                expected.setdefault(name, {})[index] = answer
                if (name, index) in ends and framed:
                    ends[name, index] = {GOOD: 1, OTHER: 2, DAMAGED: 0}[framed[-1]]
        for wide in (False, True):
            after, response = produced(entries, wide=wide)
            assert told(response) == expected, entries
            assert after.ends() == ends, entries
