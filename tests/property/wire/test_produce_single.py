"""Requests that are recognized by their first bytes are answered, and change the log, like all others."""

import errno
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from log_harness import NOW_MS, LogOnDisk, leads_alone, make_batch
from tidelog.api.produce_single import PREFIX_BYTES_MAX, SINCE_VERSION, ProduceTemplates
from tidelog.api.registry import find_route
from tidelog.broker.connection import ServerConnection
from tidelog.broker.pipelining import Pipelining
from tidelog.replication.partition import Partition
from tidelog.runtime.turns import Turns
from tidelog.simulation.disk import SimDisk
from tidelog.wire.errors import UnknownTopicId, UnknownTopicOrPartition
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire_harness import encode_request

TOPICS = {b"1" * 16: "t", b"2" * 16: "other"}


class Partitions:
    """The part of `replication.partitions.Partitions` that produce needs."""

    def __init__(self) -> None:
        self.appending = False
        self.woken = 0
        flusher: Any = SimpleNamespace(dirty={}, request=lambda _: None)
        clock: Any = SimpleNamespace(now_ms=lambda: NOW_MS, monotonic=lambda: 0.0)
        tasks: Any = None
        self.table = {}
        self.disks: list[SimDisk] = []
        for topic_id, topic in TOPICS.items():
            for index in range(2):
                # One takes 500 bytes at the most, one acknowledges what is on the disk, which never comes.
                limits = {"max_message_bytes": 500} if index else {}
                on = LogOnDisk(durability="fsync" if topic == "other" and index else "interval", **limits)
                log = on.log
                self.disks.append(on.disk)
                self.table[topic, index] = Partition(
                    topic,
                    topic_id,
                    index,
                    log,
                    replica=leads_alone(log),
                    internal=False,
                    clock=clock,
                    tasks=tasks,
                    flusher=flusher,
                )

    def find(self, topic: str, index: int) -> Partition | None:
        return self.table.get((topic, index))

    def get(self, topic: str, index: int) -> Partition:
        found = self.find(topic, index)
        if found is None:
            raise UnknownTopicOrPartition("no such partition")
        return found

    def topic_name(self, topic_id: bytes) -> str:
        if topic_id not in TOPICS:
            raise UnknownTopicId("no such topic")
        return TOPICS[topic_id]

    def wake_fetches(self) -> None:
        assert self.appending
        self.appending = False
        self.woken += 1


class Stream:
    peer = "10.0.0.1:4000"
    local = "10.0.0.2:9092"
    backlog_bytes = 0

    def __init__(self) -> None:
        self.sent = b""
        self.ended = False

    def write(self, pieces: list[bytes]) -> None:
        self.sent += b"".join(pieces)

    def abort(self) -> None:
        self.ended = True


class Broker:
    """Connections that share the partitions of one broker."""

    def __init__(self, connections: int) -> None:
        timer = SimpleNamespace(cancel=lambda: None)
        tasks: Any = SimpleNamespace(call_later=lambda *_: timer, call_soon=lambda *_: None)
        clock: Any = SimpleNamespace(monotonic=lambda: 0.0)
        self.partitions = Partitions()
        services: Any = SimpleNamespace(
            partitions=self.partitions,
            followers=None,
            quotas=SimpleNamespace(active=False),
            runtime=SimpleNamespace(clock=clock, tasks=tasks),
            turns=Turns(clock, tasks),
        )
        listener: Any = SimpleNamespace(
            buffer=memoryview(bytearray(1 << 16)),
            pipelining=Pipelining(tasks),
            request_bytes_max=1 << 20,
            opened=lambda _: None,
            client_disconnected=lambda _: None,
            ended=lambda _: None,
            name="PLAINTEXT",
            accepts_brokers=False,
        )
        self.buffer = listener.buffer
        self.streams = [Stream() for _ in range(connections)]
        self.connections = [ServerConnection(listener, services) for _ in range(connections)]
        for connection, stream in zip(self.connections, self.streams, strict=True):
            connection.connected(stream)  # type: ignore[arg-type]

    def feed(self, number: int, frame: bytes) -> None:
        if not self.streams[number].ended:  # nothing comes from a socket that was closed
            self.buffer[: len(frame)] = frame
            self.connections[number].received(len(frame))

    def fill_disks(self, full: bool) -> None:
        for disk in self.partitions.disks:
            if full:
                disk.fail("write", "*.log", errno.ENOSPC)
            else:
                disk.repair()

    @property
    def outcome(self) -> Any:
        logs = {
            key: [bytes(partition.log.segments.active.file.pread(partition.log.size_bytes, 0)), partition.in_dirty_set]
            for key, partition in self.partitions.table.items()
        }
        return [(stream.sent, stream.ended) for stream in self.streams], logs


def frame_of(version: int, topics: list[TopicProduceData], client_id: str | None = "c", **fields: Any) -> bytes:
    return bytes(encode_request(ProduceRequest(timeout_ms=1000, topic_data=topics, **fields), version, 3, client_id))


plain_frames = st.builds(
    lambda version, topic_id, index, size, acks: frame_of(
        version,
        [TopicProduceData(TOPICS[topic_id], topic_id, [PartitionProduceData(index, bytes(make_batch(b"v" * size)))])],
        acks=acks,
    ),
    st.sampled_from([7, 8, 9, 10, 13]),
    st.sampled_from([*TOPICS]),
    st.integers(0, 1),
    st.sampled_from([1, 40, 100, 600]),
    st.sampled_from([1, -1]),
)


@st.composite
def odd_frames(draw: st.DrawFn) -> bytes:
    version = draw(st.sampled_from([6, 7, 8, 9, 9, 10, 12, 13, 13]))
    topics = []
    for _ in range(draw(st.sampled_from([1, 1, 1, 1, 2]))):
        data = []
        for _ in range(draw(st.sampled_from([1, 1, 1, 1, 0, 2]))):
            batch = make_batch(b"v" * draw(st.sampled_from([1, 40, 100, 600])))
            if draw(st.integers(0, 9)) == 0:
                batch[draw(st.integers(0, len(batch) - 1))] ^= 1 << draw(st.integers(0, 7))
            elif draw(st.integers(0, 9)) == 0:
                batch += batch[: draw(st.integers(0, len(batch)))]
            records = None if draw(st.integers(0, 19)) == 0 else bytes(batch)
            data.append(PartitionProduceData(draw(st.sampled_from([0, 0, 1, 5])), records))
        topic_id = draw(st.sampled_from([*TOPICS, b"3" * 16]))
        topics.append(TopicProduceData(TOPICS.get(topic_id, "no"), topic_id, data))
    frame = frame_of(
        version,
        topics,
        draw(st.sampled_from(["c", "c", None, "", "é" * PREFIX_BYTES_MAX])),
        transactional_id=draw(st.sampled_from([None, None, None, "tx"])),
        acks=draw(st.sampled_from([1, 1, -1, -1, 0, 2])),
    )
    if version >= 9 and draw(st.integers(0, 4)) == 0:  # a tagged field at the end that nobody knows
        frame = struct.pack(">i", len(frame) - 4 + 3) + frame[4:-1] + b"\x01\x63\x01\x00"
    return frame


def spoilt(frame: bytes) -> st.SearchStrategy[bytes]:
    """The same, with one bit of its batch the other way round."""
    return st.tuples(st.integers(1, 60), st.integers(0, 7)).map(
        lambda bit: frame[: -bit[0]] + bytes([frame[-bit[0]] ^ 1 << bit[1]]) + frame[len(frame) - bit[0] + 1 :]
    )


frames = plain_frames | odd_frames() | plain_frames.flatmap(lambda frame: st.just(frame) | spoilt(frame))
"""Few different ones of the plain ones: what is known is met again."""


@settings(max_examples=300, deadline=None)
@given(
    st.lists(frames, min_size=1, max_size=4),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 1), st.sampled_from([False, False, False, True])),
        min_size=3,
        max_size=20,
    ),
)
def test_what_is_known_again_makes_no_difference(known: list[bytes], order: list[tuple[int, int, bool]]) -> None:
    quick, plain = Broker(2), Broker(2)
    for number, connection, full in order:
        frame = known[number % len(known)]
        for broker in (quick, plain):
            broker.fill_disks(full)
        quick.feed(connection, frame)
        plain.connections[connection]._prefix_end = 0
        plain.feed(connection, frame)
        assert quick.outcome == plain.outcome


@pytest.mark.parametrize("version", range(SINCE_VERSION, ProduceRequest.max_version + 1))
@pytest.mark.parametrize("value", [b"v", b"v" * 200, b"v" * 20_000])
def test_a_request_like_the_last_one_is_known(version: int, value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(1)
    for correlation_id in range(3):
        topic = TopicProduceData("t", b"1" * 16, [PartitionProduceData(0, bytes(make_batch(value)))])
        broker.feed(0, bytes(encode_request(ProduceRequest(None, 1, 1000, [topic]), version, correlation_id, "c")))
        # The first one may have told all there is to know to an earlier test's broker.
        monkeypatch.setattr(find_route(0, version), "handle", None)
    assert broker.partitions.table["t", 0].log_end_offset == 3
    assert broker.partitions.woken == 3


def test_the_number_of_known_beginnings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.api.produce_single.TEMPLATES_MAX", 3)
    singles = ProduceTemplates(SINCE_VERSION)
    for number in range(10):
        topic = TopicProduceData(f"t{number}", partition_data=[PartitionProduceData(0, bytes(make_batch(b"v")))])
        frame = memoryview(encode_request(ProduceRequest(None, 1, 1000, [topic]), SINCE_VERSION, 1, "c"))[4:]
        request, _ = ProduceRequest.decode(frame, 11, SINCE_VERSION)
        assert singles.learn(frame, request)
        assert 1 <= len(singles._templates) <= 3
