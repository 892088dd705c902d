"""The answer to a produce whose batches are not durable yet: sent once, complete, in time."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tidelog.api.produce import _Acknowledgement
from tidelog.replication.waiters import Mark
from tidelog.wire.errors import ApiError, ErrorCode, StorageError
from tidelog.wire.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse

CommitListener = Callable[[ApiError | None], None]


class Partition:
    """Answers when the test says so, or at once with `error`."""

    def __init__(self, error: ApiError | None = None) -> None:
        self.error = error
        self.listeners: list[CommitListener] = []

    def wait(self, mark: Mark, next_offset: int, listener: CommitListener) -> None:
        if self.error is not None:
            listener(self.error)
        else:
            self.listeners.append(listener)


def acknowledge(*partitions: Partition) -> tuple[Any, list[PartitionProduceResponse], list[Any], list[Any]]:
    """The acknowledgement, its answers, what has been sent, and its timers."""
    timers: list[Any] = []

    def call_later(delay_s: float, callback: Callable[[], None]) -> Any:
        timers.append(callback)
        return SimpleNamespace(cancel=timers.clear)

    services = SimpleNamespace(runtime=SimpleNamespace(tasks=SimpleNamespace(call_later=call_later)))
    answers = [PartitionProduceResponse(index=i, base_offset=10) for i in range(len(partitions))]
    waiting = [(p, 11, a) for p, a in zip(partitions, answers, strict=True)]
    made = _Acknowledgement(services, waiting, [], ProduceRequest(acks=-1, timeout_ms=1000), ProduceResponse())  # type: ignore[arg-type]
    sent: list[Any] = []
    made.pending.listen(sent.append)
    return made, answers, sent, timers


def test_it_waits_for_every_partition() -> None:
    first, second = Partition(), Partition()
    _, answers, sent, timers = acknowledge(first, second)
    first.listeners[0](None)
    assert not sent
    second.listeners[0](StorageError("offline"))
    assert len(sent) == 1
    assert [a.error_code for a in answers] == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
    assert (answers[0].base_offset, answers[1].base_offset) == (10, -1)
    assert timers == []


def test_a_batch_that_is_not_replicated_in_time_is_named_so() -> None:
    _, answers, sent, timers = acknowledge(Partition())
    timers[0]()
    assert len(sent) == 1
    assert answers[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "not known to be replicated and durable" in (answers[0].error_message or "")


def test_a_partition_that_fails_at_once_does_not_answer_for_the_others() -> None:
    failed, slow = Partition(StorageError("offline")), Partition()
    _, answers, sent, _ = acknowledge(failed, slow)
    assert not sent
    slow.listeners[0](None)
    assert len(sent) == 1
    assert answers[1].error_code == ErrorCode.NONE


def test_the_clients_timeout_answers_what_is_left_and_later_news_is_ignored() -> None:
    done, slow = Partition(), Partition()
    _, answers, sent, timers = acknowledge(done, slow)
    done.listeners[0](None)
    timers[0]()
    assert len(sent) == 1
    assert [a.error_code for a in answers] == [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]
    slow.listeners[0](None)
    assert len(sent) == 1
