"""The path of a batch into a topic that stores batches unchanged does not load the code for compression."""

import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

from log_harness import LogOnDisk, leads_alone, make_batch
from tidelog.api.produce import handle
from tidelog.api.produce_single import ProduceTemplates
from tidelog.api.services import Peer, RequestContext
from tidelog.replication.partition import Partition
from tidelog.wire.batches import Codec
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire_harness import encode_request

ON_THE_WAY = [
    "handle",
    "Partitions.get",
    "_append",
    "check_produced",
    "BatchHeader.__init__",
    "Partition.append",
    "PartitionLog.append",
    "SegmentList.active",
    "BatchHeader.assign",
    "Replica.appended_alone",
    "Partitions.wake_fetches",
]
ON_THE_SHORT_WAY = [
    "ProduceTemplates.handle",
    "ProduceTemplates._records",
    "Partitions.find",
    "Partitions.get",  # of this test's partitions only
    *ON_THE_WAY[ON_THE_WAY.index("check_produced") :],
    "_Template.success",
]
"""Each function of the product that runs, in order, but for the making of answers that are no template's."""


class Partitions:
    """The part of `replication.partitions.Partitions` that produce needs."""

    def __init__(self, partition: Partition) -> None:
        self.appending = False
        self.partition = partition

    def get(self, topic: str, index: int) -> Partition:
        del topic, index
        return self.partition

    def find(self, topic: str, index: int) -> Partition:
        return self.get(topic, index)

    def wake_fetches(self) -> None:
        self.appending = False


def made(disk: LogOnDisk) -> Partition:
    nothing: Any = None
    clock: Any = SimpleNamespace(now_ms=int(disk.now_ms).__int__, monotonic=float)
    flusher: Any = SimpleNamespace(dirty={})
    return Partition(
        "t",
        bytes(16),
        0,
        disk.log,
        replica=leads_alone(disk.log),
        internal=False,
        clock=clock,
        tasks=nothing,
        flusher=flusher,
    )


def produce(partition: Partition, batch: bytearray) -> ProduceResponse:
    services: Any = SimpleNamespace(partitions=Partitions(partition), followers=None)
    context: Any = RequestContext(0, 9, 1, "client", SimpleNamespace())  # type: ignore[arg-type]
    data = PartitionProduceData(index=0, records=memoryview(batch))
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])])
    answer = handle(services, context, request)
    assert isinstance(answer, ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return answer


def called(act: Callable[[], object]) -> list[str]:
    """The functions of the product that run, but for the making of answers and the simulated disk."""
    passed: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        del argument
        if event == "call":
            name = frame.f_code.co_qualname
            file = frame.f_code.co_filename
            if "Response" not in name and "simulation" not in file and "log_harness" not in file:
                passed.append(name)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return passed


def test_the_path_of_a_topic_that_keeps_batches_as_they_come() -> None:
    disk = LogOnDisk()
    partition = made(disk)
    assert partition.appends_directly
    produce(partition, make_batch(b"first"))
    batch = make_batch(*(b"v" * 100 for _ in range(50)), codec=Codec.LZ4)
    sent = bytes(batch)
    passed = called(lambda: produce(partition, batch))
    assert passed[passed.index("handle") :] == ON_THE_WAY
    part = disk.log.read(1, 1 << 20, disk.log.log_end_offset)
    assert part.file is not None
    stored = part.file.pread(part.size, part.position)
    assert stored[16:] == sent[16:], "but for offset and leader epoch it is what was sent"


def test_the_path_of_a_request_that_is_known_again() -> None:
    partition = made(LogOnDisk())
    services: Any = SimpleNamespace(partitions=Partitions(partition), followers=None)
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=make_batch(b"v"))])
    frame = memoryview(bytearray(encode_request(ProduceRequest(None, 1, 1000, [topic]), 9, 1, "client")))[4:]
    request, _ = ProduceRequest.decode(frame, 17, 9)
    singles = ProduceTemplates(9)
    end = singles.learn(frame, request)
    assert partition.append_batch(make_batch(b"first")).next_offset == 1
    passed = called(lambda: singles.handle(services, frame, end, Peer("client", 1, "host", 2)))
    assert passed[passed.index("ProduceTemplates.handle") :] == ON_THE_SHORT_WAY
    assert partition.log_end_offset == 2
