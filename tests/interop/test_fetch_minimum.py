"""`fetch.min.bytes` counts all available bytes, even if they do not fit the answer: no fetch waits while data
exists.
"""

import os
import time
from collections.abc import Iterator

import pytest

from interop_harness.suite import NewTopicNamed
from process_harness.raw import FETCH_BY_NAME, RawConnection
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

PATIENCE_MS = 20_000
AT_ONCE_S = PATIENCE_MS / 1000 / 2
SHORT_MS = 300
BATCH_BYTES = 600_000


@pytest.fixture
def client(bootstrap: str) -> Iterator[RawConnection]:
    host, _, port = bootstrap.rpartition(":")
    with RawConnection((host, int(port))) as connected:
        yield connected


def fetch(
    client: RawConnection, topic: str, partitions: int, min_bytes: int, part_bytes: int, max_wait_ms: int
) -> tuple[float, list[int]]:
    """The seconds that the answer took, and the bytes that came of each partition."""
    wanted = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=part_bytes) for number in range(partitions)
    ]
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=10_000_000,
        topics=[FetchTopic(topic=topic, partitions=wanted)],
    )
    began = time.monotonic()
    answer = client.ask(request, FETCH_BY_NAME)
    took_s = time.monotonic() - began
    assert isinstance(answer, FetchResponse)
    return took_s, [len(data.records or b"") for data in answer.responses[0].partitions]  # type: ignore[arg-type]


def filled(client: RawConnection, topic: str, partition: int = 0, batches: int = 2) -> None:
    for _ in range(batches):
        assert client.produce(topic, partition, [os.urandom(BATCH_BYTES)]).error_code == 0


def test_a_minimum_that_only_a_part_of_the_next_batch_would_fill(
    client: RawConnection, new_topic: NewTopicNamed
) -> None:
    topic = new_topic("minimum")
    filled(client, topic)
    took_s, [size] = fetch(client, topic, 1, 1_000_000, 1_000_000, PATIENCE_MS)
    assert size > BATCH_BYTES
    assert took_s < AT_ONCE_S


def test_a_minimum_beyond_the_end_of_an_older_segment(client: RawConnection, new_topic: NewTopicNamed) -> None:
    topic = new_topic("minimum", **{"segment.bytes": str(1 << 20)})
    filled(client, topic)
    took_s, [size] = fetch(client, topic, 1, 2_000_000, 10_000_000, PATIENCE_MS)
    assert size > BATCH_BYTES
    assert took_s < AT_ONCE_S


def test_a_minimum_over_several_partitions(client: RawConnection, new_topic: NewTopicNamed) -> None:
    topic = new_topic("minimum", partitions=2)
    for partition in range(2):
        filled(client, topic, partition)
    took_s, sizes = fetch(client, topic, 2, 1_500_000, 800_000, PATIENCE_MS)
    assert min(sizes) > BATCH_BYTES
    assert took_s < AT_ONCE_S


def test_a_minimum_that_is_not_there_is_waited_for(client: RawConnection, new_topic: NewTopicNamed) -> None:
    topic = new_topic("minimum")
    filled(client, topic, batches=1)
    took_s, [size] = fetch(client, topic, 1, 700_000, 10_000_000, SHORT_MS)
    assert size > BATCH_BYTES
    assert took_s >= SHORT_MS / 1000
