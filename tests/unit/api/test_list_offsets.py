"""ListOffsets: a partition named more than once, and a search by time in steps during which the partition's log may
be replaced.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from log_harness import NOW_MS, LogOnDisk
from tidelog.api.list_offsets import LATEST, MAX_TIMESTAMP, handle
from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import run_all
from tidelog.wire.errors import ErrorCode, UnknownTopicOrPartition
from tidelog.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic


def log_of(count: int) -> LogOnDisk:
    on = LogOnDisk(segment_bytes=1000)
    for number in range(count):
        on.append(b"%d" % number, timestamps=[NOW_MS + number])
    return on


def test_a_partition_that_is_named_twice_is_refused_once() -> None:
    def find(topic: str, index: int, epoch: int) -> Any:
        raise UnknownTopicOrPartition(topic)

    services: Any = SimpleNamespace(partitions=SimpleNamespace(leader=find))
    context: Any = SimpleNamespace(api_version=1)
    entries = [("t", [0]), ("u", []), ("t", [1, 0]), ("v", [0]), ("t", [2, 2]), ("v", [1])]
    topics = [ListOffsetsTopic(name, [ListOffsetsPartition(i, -1, LATEST) for i in each]) for name, each in entries]
    answer = run_all(handle(services, context, ListOffsetsRequest(-1, 0, topics)))
    twice, unknown = ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [(t.name, [(p.partition_index, p.error_code) for p in t.partitions]) for t in answer.topics] == [
        ("t", [(0, twice), (1, unknown), (2, twice)]),
        ("v", [(0, unknown), (1, unknown)]),
    ]


@pytest.mark.parametrize(("timestamp", "offset"), [(NOW_MS + 90, 90), (MAX_TIMESTAMP, 99)])
def test_a_log_that_moves_to_another_directory_meanwhile(timestamp: int, offset: int) -> None:
    old, new = log_of(100), log_of(100)
    old.restart()  # its files are opened when they are read
    partition = SimpleNamespace(
        log=old.log,
        high_watermark=100,
        leader_epoch=0,
        check_online=lambda: None,
    )
    services = SimpleNamespace(partitions=SimpleNamespace(leader=lambda topic, index, epoch: partition))
    asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(0, -1, timestamp)])
    steps = handle(
        cast(Services, services),
        cast(RequestContext, SimpleNamespace(api_version=11)),
        ListOffsetsRequest(-1, 0, [asked]),
    )
    for _ in range(5):
        next(steps)
    old.log.close(clean=False)
    for name in old.files():
        old.disk.remove(f"{old.log.directory}/{name}")
    partition.log = new.log
    [answer] = run_all(cast("Any", steps)).topics[0].partitions
    assert (answer.error_code, answer.offset) == (0, offset)
    assert old.log.failure is None
