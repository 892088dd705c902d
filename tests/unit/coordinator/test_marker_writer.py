"""Which markers are sent again, which are not any more, and which do not wait for others."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.coordinator.marker_writer import RETRY_DELAY_S, MarkerWriter
from tidelog.coordinator.transaction.markers import MarkersToWrite
from tidelog.runtime.tasks import LoopTasks
from tidelog.simulation.loop import SimLoop
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

NODE_ID = 1
PARTITIONS = 300
MARKERS = MarkersToWrite("mover", 7, 0, True, (("orders", 0),), 0)


class Core:
    def __init__(self) -> None:
        self.written: list[Any] = []

    def markers_written(self, markers: MarkersToWrite, partitions: Any, _now: Any) -> None:
        self.written += partitions


class Coordinator:
    is_open = is_loaded = True
    leader_epoch = 3

    def __init__(self) -> None:
        self.core = Core()

    def now(self) -> None: ...

    def apply(self, _decision: None) -> None: ...


class Stage:
    """A marker writer, one coordinator, and the answers of this broker to the requests for markers."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        state = SimpleNamespace(leader=NODE_ID)
        broker = SimpleNamespace(fenced=False)
        topic = SimpleNamespace(partitions=[state] * PARTITIONS)
        self.image = image = SimpleNamespace(topics={"orders": topic}, brokers={NODE_ID: broker})
        self.codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        """Answers to the next markers. After these, every marker is written, except in the partitions `refusing`."""
        self.refusing: set[int] = set()
        self.requests = 0
        self.coordinator: Any = Coordinator()
        runtime: Any = SimpleNamespace(
            tasks=LoopTasks(self.loop), clock=SimpleNamespace(monotonic=lambda: self.loop.time())
        )
        metadata: Any = SimpleNamespace(newest=image)
        self.writer = MarkerWriter(runtime, NODE_ID, metadata, self._write, None)

    async def _write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.requests += 1
        return WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(
                    marker.producer_id,
                    [
                        WritableTxnMarkerTopicResult(
                            topic.name,
                            [
                                WritableTxnMarkerPartitionResult(index, self._code(index))
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    def _code(self, index: int) -> ErrorCode:
        if index in self.refusing:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return self.codes.pop(0) if self.codes else ErrorCode.NONE

    def begin(self, markers: MarkersToWrite = MARKERS) -> None:
        self.loop.call_soon(self.writer.begin, self.coordinator, markers)
        self.run(0.01)

    def run(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))


def test_a_marker_is_sent_again_until_it_is_written() -> None:
    stage = Stage()
    stage.begin()
    assert stage.coordinator.core.written == []
    stage.run(RETRY_DELAY_S * 2)
    assert stage.coordinator.core.written == [("orders", 0)]


def test_a_marker_is_not_sent_again_for_a_core_that_was_replaced() -> None:
    """The new core has written it. With version 1 it would end the producer's next transaction."""
    stage = Stage()
    stage.begin()
    stage.coordinator.core = Core()
    stage.run(RETRY_DELAY_S * 2)
    assert stage.requests == 1
    assert stage.coordinator.core.written == []


def test_an_answer_does_not_count_for_another_core() -> None:
    stage = Stage()
    stage.codes = []
    stage.loop.call_soon(stage.writer.begin, stage.coordinator, MARKERS)
    stage.loop.call_soon(setattr, stage.coordinator, "core", Core())
    stage.run(RETRY_DELAY_S * 2)
    assert stage.coordinator.core.written == []


def test_a_coordinator_whose_log_has_failed_begins_nothing() -> None:
    stage = Stage()
    stage.coordinator.is_loaded = False
    stage.begin()
    assert stage.requests == 0


def test_a_broken_write_or_refusals_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """One line of each kind in a minute, although markers are sent ten times a second."""
    stage = Stage()

    async def fail(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        raise RuntimeError("planted")

    stage.writer._write_locally = fail
    stage.begin()
    stage.run(30)
    stage.writer._write_locally = stage._write
    stage.codes = [ErrorCode.INVALID_PRODUCER_EPOCH] * 20
    for _ in range(20):
        stage.begin()
        stage.run(1)
    assert stage.codes == []
    assert Counter(record.msg.partition(",")[0] for record in caplog.records) == {
        "markers not written": 1,
        "markers refused": 1,
    }


@pytest.mark.parametrize("index", [-1, PARTITIONS])
def test_a_partition_that_does_not_exist_needs_no_marker(index: int) -> None:
    """Not even if the record of another program names it."""
    stage = Stage()
    markers = MARKERS._replace(partitions=(("orders", index),))
    stage.loop.call_soon(stage.writer.begin, stage.coordinator, markers)
    stage.run(1)
    assert stage.requests == 0
    assert stage.coordinator.core.written == [("orders", index)]


def test_markers_do_not_wait_for_the_pause_of_other_markers() -> None:
    stage = Stage()
    stage.codes = []
    stage.refusing = {1}
    stage.begin(MARKERS._replace(producer_id=8, partitions=(("orders", 1), ("orders", 2))))
    assert stage.coordinator.core.written == [("orders", 2)]
    stage.begin()
    assert stage.coordinator.core.written == [("orders", 2), ("orders", 0)], "at once"
    stage.refusing = set()
    stage.run(RETRY_DELAY_S * 2)
    assert stage.coordinator.core.written == [("orders", 2), ("orders", 0), ("orders", 1)]


def test_markers_without_a_leader_are_sent_when_there_is_one() -> None:
    stage = Stage()
    stage.codes = []
    stage.image.brokers[NODE_ID].fenced = True
    stage.begin()
    stage.run(RETRY_DELAY_S * 3)
    assert stage.requests == 0
    stage.image.brokers[NODE_ID].fenced = False
    stage.run(RETRY_DELAY_S * 2)
    assert stage.coordinator.core.written == [("orders", 0)]


def test_an_exception_repeats_only_the_markers_that_were_not_answered() -> None:
    """With version 1, a marker that is sent again after its transaction is complete would end the next one."""
    stage = Stage()
    stage.codes = []
    apply = stage.coordinator.apply
    answered: list[int] = []

    def fail_once(decision: None) -> None:
        answered.append(len(answered))
        if len(answered) == 2:
            raise RuntimeError("the second of two markers")
        apply(decision)

    stage.coordinator.apply = fail_once
    other = MARKERS._replace(producer_id=8, partitions=(("orders", 1),))
    stage.loop.call_soon(stage.writer.begin, stage.coordinator, MARKERS)
    stage.begin(other)
    stage.run(RETRY_DELAY_S * 2)
    assert stage.requests == 2
    assert stage.coordinator.core.written == [("orders", 0), ("orders", 1), ("orders", 1)]


def test_the_work_for_a_transaction_grows_with_its_partitions() -> None:
    hashes = 0

    class Topic(str):
        def __hash__(self) -> int:
            nonlocal hashes
            hashes += 1
            return super().__hash__()

    stage = Stage()
    stage.codes = []
    stage.begin(MARKERS._replace(partitions=tuple((Topic("orders"), index) for index in range(PARTITIONS))))
    assert len(stage.coordinator.core.written) == PARTITIONS
    assert hashes < 20 * PARTITIONS
