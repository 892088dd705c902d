"""The reading loop of `tidelog consume --group`: partitions that cannot be read fail the command."""

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ConsumerPartition

from tidelog.cli.connection import ConnectionOptions
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.interrupts import ENDING_SIGNALS, Interrupts, record_interrupts, restore_handlers
from tidelog.cli.reading import GroupMember, TopicReader
from tidelog.cli.records import IncomingRecord
from tidelog.client.each import Failure
from tidelog.client.operations import EARLIEST, LATEST, Fetched, ListedOffset
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import ErrorCode, error_for

LOST = error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no leader")


class Consumer:
    """The part of librdkafka's consumer that a member uses."""

    def __init__(self) -> None:
        self.on_assign: Callable[..., None]
        self.on_revoke: Callable[..., None]
        self.refusal: int | None = None

    def subscribe(self, topics: list[str], on_assign: Callable[..., None], on_revoke: Callable[..., None]) -> None:
        self.on_assign, self.on_revoke = on_assign, on_revoke

    def poll(self, timeout: float) -> None: ...

    def assignment(self) -> list[ConsumerPartition]:
        return []

    def store_offsets(self, offsets: list[ConsumerPartition]) -> None:
        if self.refusal is not None:
            raise KafkaException(KafkaError(self.refusal))

    def assign(self, *partitions: int) -> None:
        self.on_assign(self, [ConsumerPartition("orders", number) for number in partitions])

    def revoke(self, *partitions: int) -> None:
        self.on_revoke(self, [ConsumerPartition("orders", number) for number in partitions])


class Client:
    """A cluster whose partitions contain no records. `failures` has the partitions whose offsets cannot be listed, by
    the requested timestamp.
    """

    def __init__(self) -> None:
        self.failures: dict[tuple[int, int], Failure] = {}

    def stable_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> dict[TopicPartition, int]:
        return {}

    def list_offsets_each(
        self, timestamps: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, ListedOffset | Failure]:
        return {
            tp: self.failures.get((timestamp, tp.partition)) or ListedOffset(0, -1)
            for tp, timestamp in timestamps.items()
        }

    def fetch_each(self, positions: Mapping[TopicPartition, int], limits: Any) -> dict[TopicPartition, Fetched]:
        return {tp: Fetched(memoryview(b""), 0, 0, 0, []) for tp in positions}


class Sink:
    def check(self) -> None: ...

    def write(self, records: Sequence[IncomingRecord]) -> None: ...


class Stage:
    """A member of the group `g` that reads the topic `orders`."""

    def __init__(self, *, until_end: bool) -> None:
        self.client = Client()
        self.consumer = consumer = Consumer()

        class Options(ConnectionOptions):
            def consumer(self, settings: Mapping[str, Any]) -> Any:
                return consumer

        connection = Options("localhost:9092", {})
        client: Any = self.client
        self.reader = TopicReader(connection, client, "orders", Sink(), None, until_end)
        self.member = GroupMember(connection, client, "g", "orders", "earliest", committed_only=True)
        self.reader.member = self.member

    def run(self) -> str:
        """Return the error with which the reader ends; empty if it ends without an error."""
        try:
            self.reader.run(Interrupts())
        except CommandError as error:
            return str(error)
        return ""


def test_a_partition_without_a_start_fails_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    stage = Stage(until_end=True)
    stage.client.failures[EARLIEST, 1] = LOST
    stage.consumer.assign(0, 1)
    assert stage.run() == "orders-1: no leader (NOT_LEADER_OR_FOLLOWER)"
    assert "no leader (NOT_LEADER_OR_FOLLOWER). The partition is not read." in capfd.readouterr().err


def test_a_member_that_can_read_no_partition_stops() -> None:
    stage = Stage(until_end=False)
    stage.client.failures[EARLIEST, 0] = LOST
    stage.consumer.assign(0)
    assert stage.run() == "orders-0: no leader (NOT_LEADER_OR_FOLLOWER)"


def test_a_start_that_is_known_after_the_next_assignment_is_no_failure() -> None:
    stage = Stage(until_end=True)
    stage.client.failures[EARLIEST, 1] = LOST
    stage.consumer.assign(0, 1)
    stage.reader.step(Interrupts(), 0.0)
    stage.consumer.revoke(0, 1)
    stage.client.failures.clear()
    stage.consumer.assign(0, 1)
    assert stage.run() == ""


def test_an_offline_partition_does_not_hide_the_failures_of_others(capfd: pytest.CaptureFixture[str]) -> None:
    for timestamp in (EARLIEST, LATEST):
        stage = Stage(until_end=True)
        for number in (1, 2):
            stage.client.failures[timestamp, number] = LOST
        stage.reader.report_offline([1])
        stage.consumer.assign(0, 1, 2)
        assert stage.run().split("; ") in (
            ["partition 1 of orders could not be read to the end", "orders-2: no leader (NOT_LEADER_OR_FOLLOWER)"],
            ["orders-2: no leader (NOT_LEADER_OR_FOLLOWER)", "partition 1 of orders could not be read to the end"],
        )
    assert "Offline: partition 1 of orders." in capfd.readouterr().err


def test_the_policy_error_of_librdkafka_is_not_taken_for_the_end() -> None:
    stage = Stage(until_end=True)
    stage.member.reset = "error"
    stage.consumer.assign(0, 1)
    assert stage.run() == (
        "group g has no committed offset for partitions 0-1 of orders, and auto.offset.reset=error does not"
        " select another offset; tidelog group reset-offsets sets a committed offset"
    )


def test_only_a_revoked_partition_may_lose_its_commit() -> None:
    stage = Stage(until_end=True)
    stage.consumer.refusal = KafkaError._STATE
    stage.member.store(0, 7)
    stage.consumer.refusal = KafkaError._INVALID_ARG
    with pytest.raises(CommandError, match="group g: the offset of a printed record is not committed"):
        stage.member.store(0, 7)


def test_handlers_that_python_did_not_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python cannot install them again, so the signals get the default of the system."""
    kept = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    try:
        with monkeypatch.context() as patched:
            patched.setattr(signal, "getsignal", lambda number: None)
            with record_interrupts() as interrupts:
                signal.raise_signal(signal.SIGINT)
                assert interrupts()
        assert [signal.getsignal(number) for number in ENDING_SIGNALS] == [signal.SIG_DFL] * 3
    finally:
        restore_handlers(kept)


@pytest.mark.parametrize("name", ["group.id", "enable.auto.offset.store"])
def test_settings_that_would_commit_elsewhere_or_nothing_are_refused(name: str) -> None:
    client: Any = Client()
    reader = TopicReader(ConnectionOptions("localhost:9092", {name: "true"}), client, "orders", Sink(), None, True)
    with pytest.raises(UsageError, match=f"-X {name} cannot be used with --group"):
        reader.join("g", "earliest")
