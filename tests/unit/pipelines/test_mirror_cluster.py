"""How long a mirror waits for records that must be there."""

from typing import Any, cast

import pytest

from tidelog.client.operations import THROTTLED, Fetched
from tidelog.model.ids import TopicPartition
from tidelog.pipelines import mirror_cluster
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.mirror_cluster import MirrorCluster
from tidelog.wire.records import Record, encode_batch

PARTITION = TopicPartition("sales", 0)
TIMEOUT_S = 60.0
NOTHING = Fetched(memoryview(b""), 9, 9, 0, [])


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s


class Client:
    """Answers fetches one after another, the last one again and again. Each takes 25 s."""

    def __init__(self, clock: Clock, answers: list[Fetched]) -> None:
        self.clock = clock
        self.answers = answers

    def deadline(self) -> float:
        return self.clock.now_s + TIMEOUT_S

    def fetch(self, partition: TopicPartition, offset: int, limits: Any) -> Fetched:
        self.clock.now_s += 25.0
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def offsets(monkeypatch: pytest.MonkeyPatch, *answers: Fetched) -> list[int]:
    clock = Clock()
    monkeypatch.setattr(mirror_cluster, "time", clock)
    cluster = MirrorCluster(cast(Any, Client(clock, [*answers])))
    return [record.offset for record in cluster.records(PARTITION, 0, 3)]


def fetched(offset: int) -> Fetched:
    return Fetched(memoryview(encode_batch([Record(value=b"v")], base_offset=offset)), 9, 9, 0, [])


def test_the_wait_begins_again_after_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [answer for offset in range(3) for answer in (NOTHING, THROTTLED, fetched(offset))]
    assert offsets(monkeypatch, *answers) == [0, 1, 2]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (NOTHING, "sales-0 has no committed records from offset 1 on, but they are expected up to offset 3"),
        (THROTTLED, "sales-0 cannot be read from offset 1 on, because the client is over its fetch quota"),
    ],
)
def test_the_error_names_the_reason(answer: Fetched, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineError, match=message):
        offsets(monkeypatch, fetched(0), answer)
