"""A fetch that reads a partition again reports its new state, and nothing of the old one."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.api.fetch import Fetch
from tidelog.api.fetch_sessions import FetchContext, FetchItem
from tidelog.api.services import RequestContext, Services
from tidelog.replication.partition import READ_COMMITTED
from tidelog.wire.errors import ApiError, ErrorCode, StorageError
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest


class Partition:
    """Each read gives the next of `finds`: a size, or an error."""

    def __init__(self, *finds: int | ApiError) -> None:
        self.finds = list(finds)
        self.deleted = self.topic_deleted = False
        self.high_watermark = self.last_stable_offset = 100
        aborted = [SimpleNamespace(producer_id=7, first_offset=3)]
        self.log = SimpleNamespace(
            log_start_offset=0,
            last_stable_offset_below=lambda high_watermark: high_watermark,
            aborted_transactions=lambda start, end, batches: aborted,
        )

    def read(self, _start: int, _bytes_max: int, _isolation: int, _from_follower: bool) -> Any:
        found = self.finds.pop(0)
        if isinstance(found, ApiError):
            raise found
        return SimpleNamespace(size=found, readable=found, file=SimpleNamespace(path="/f"), position=0)


def fetch_of(*partitions: Partition, bytes_max: int = 1000) -> tuple[Fetch, list[FetchItem]]:
    items = []
    for index, partition in enumerate(partitions):
        item = FetchItem("t", FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000))
        item.partition = cast("Any", partition)
        items.append(item)
    fetching = SimpleNamespace(items=items, session=None, session_id=0, incremental=False)
    request = FetchRequest(isolation_level=READ_COMMITTED, max_bytes=bytes_max, min_bytes=5000, max_wait_ms=0)
    services = SimpleNamespace(config=SimpleNamespace(fetch_max_bytes=1 << 20, node_id=1), selects_replicas=False)
    context = SimpleNamespace(api_version=12, meter=None)
    fetch = Fetch(
        cast(Services, services),
        cast(RequestContext, context),
        request,
        cast(FetchContext, fetching),
        from_follower=False,
    )
    return fetch, items


def told(fetch: Fetch) -> list[tuple[int, int, list[int]]]:
    """Of each partition: the error, the size, and whose transactions were aborted."""
    return [
        (data.error_code, getattr(data.records, "size", 0), [t.producer_id for t in data.aborted_transactions or []])
        for topic in fetch._response()[0].responses
        for data in topic.partitions
    ]


@pytest.mark.parametrize(
    ("finds", "expected"),
    [
        ((10, 20), (0, 20, [7])),
        ((10, 0), (0, 0, [])),
        ((StorageError("it was"), 20), (0, 20, [7])),
        ((10, StorageError("it is")), (ErrorCode.KAFKA_STORAGE_ERROR, 0, [])),
    ],
)
def test_the_last_look_counts(finds: tuple[int | ApiError, ...], expected: tuple[int, int, list[int]]) -> None:
    fetch, [item] = fetch_of(Partition(*finds))
    fetch._read(item)
    fetch._slices.pop(item, None)
    fetch.found_bytes = 0
    fetch._read(item)
    assert told(fetch) == [expected]


def test_aborted_transactions_are_told_of_records_that_are_told() -> None:
    fetch, items = fetch_of(Partition(80), Partition(30), bytes_max=100)
    for item in items:
        fetch._read(item)
    assert told(fetch) == [(0, 80, [7]), (0, 0, [])]
