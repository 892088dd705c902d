"""Measures groups: commits per second, rebalances by members and protocol, thousands of groups on one broker.

    .venv/bin/python bench/groups.py [--groups N] [--members N,N,...] [--seconds S] [--json]

The broker runs in a separate process, and every member has its own connection. `rebalance` is the time from the first
request of one more member until every member has its final assignment; with the consumer protocol a new assignment is
computed at most once per second (group.consumer.assignment.interval.ms). `waits` is the longest time of a request of
another client (ApiVersions, every two milliseconds, from a third process) in the same time, and while the group is
created. It shows how long work on groups blocks the broker's event loop.
"""

import argparse
import asyncio
import json
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidelog.wire.apis import APIS
from tidelog.wire.frames import encode_request_header, response_header_version
from tidelog.wire.message import Message
from tidelog.wire.messages.api_versions import ApiVersionsRequest
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

TIDELOG = [sys.executable, "-m", "tidelog"]
SETTINGS = {
    "group.initial.rebalance.delay.ms": 1000,  # all members join the first generation
    "group.consumer.min.heartbeat.interval.ms": 1000,
}
COMMITTERS = 32
PARTITIONS = 10
"""Number of partitions in which each of the many groups has committed."""
PROBE_S = 0.002
HEARTBEAT_INTERVAL_S = 0.05
"""Time between two heartbeats of a member of the consumer protocol; real clients wait seconds."""


class Peer:
    """A connection with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, address: str) -> Self:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def call(self, request: Message, version: int) -> Any:
        key = type(request).api_key
        frame = encode_request_header(key, version, 1, "bench") + request.encode(version)
        self._writer.write(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        body = await self._reader.readexactly(size)
        start = 5 if response_header_version(key, version) else 4
        module = __import__(f"tidelog.wire.messages.{APIS[key].module}", fromlist=["_"])
        return getattr(module, f"{APIS[key].name}Response").decode(body, start, version)[0]

    def close(self) -> None:
        self._writer.close()


class Broker:
    """`tidelog start` in a separate process, for a `with` block."""

    def __init__(self, data: str) -> None:
        self._data = data

    def __enter__(self) -> Self:
        words = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
        command = [*TIDELOG, "start", "--listen", "127.0.0.1:0", "--data", self._data, "--log-level", "error", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split(" listening on ")[1].split()[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait()

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) / 1024


class Probe:
    """Sends requests as another client while a `with` block runs. `longest_ms` is the time of the slowest request."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.longest_ms = 0.0

    def __enter__(self) -> Self:
        command = [sys.executable, __file__, "--probe", self._address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # the probe has begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        output, _ = self._process.communicate("\n")
        self.longest_ms = float(output)


def probe(address: str) -> None:
    """Send requests until a line arrives on stdin, then print the longest time in milliseconds."""
    import select

    host, _, port = address.rpartition(":")
    request = encode_request_header(18, 0, 1, None) + ApiVersionsRequest().encode(0)
    longest = 0.0
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        print("begun", flush=True)
        while not select.select([sys.stdin], [], [], PROBE_S)[0]:
            began = time.perf_counter()
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", stream.read(4))
            stream.read(size)
            longest = max(longest, time.perf_counter() - began)
    print(longest * 1000)


async def prepare(address: str, topics: dict[str, int]) -> None:
    peer = await Peer.connect(address)
    topics_to_create = [CreatableTopic(name, partitions, 1) for name, partitions in topics.items()]
    await peer.call(CreateTopicsRequest(topics=topics_to_create, timeout_ms=30_000), 5)
    while (await peer.call(FindCoordinatorRequest(key="g"), 1)).error_code:
        await asyncio.sleep(0.05)
    peer.close()


def commit_request(group: str, partitions: int, offset: int) -> OffsetCommitRequest:
    parts = [OffsetCommitRequestPartition(index, offset, -1, "") for index in range(partitions)]
    topic = OffsetCommitRequestTopic(name="t", partitions=parts)
    return OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=[topic]
    )


async def commits(address: str, seconds: float) -> float:
    """Return the commits per second, with one offset each, by clients that wait for each answer."""
    peers = [await Peer.connect(address) for _ in range(COMMITTERS)]
    until = time.perf_counter() + seconds
    committed = 0

    async def commit(number: int, peer: Peer) -> None:
        nonlocal committed
        offset = 0
        while time.perf_counter() < until:
            offset += 1
            answer = await peer.call(commit_request(f"commits-{number}", 1, offset), 8)
            assert answer.topics[0].partitions[0].error_code == 0
            committed += 1

    began = time.perf_counter()
    await asyncio.gather(*(commit(number, peer) for number, peer in enumerate(peers)))
    rate = committed / (time.perf_counter() - began)
    for peer in peers:
        peer.close()
    return rate


class ClassicMember:
    def __init__(self, peer: Peer, group: str, number: int) -> None:
        self.peer, self.group = peer, group
        self.instance = f"m{number}"
        self.member_id = ""
        self.generation = -1

    async def join(self) -> Any:
        protocols = [JoinGroupRequestProtocol("range", b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\xff\xff\xff\xff")]
        request = JoinGroupRequest(self.group, 60_000, 60_000, self.member_id, self.instance, "consumer", protocols)
        answer = await self.peer.call(request, 5)
        assert answer.error_code == 0, answer.error_code
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    async def round(self) -> None:
        """Join, and send or receive the assignment; start again if another rebalance begins."""
        while True:
            joined = await self.join()
            assignments = [SyncGroupRequestAssignment(member.member_id, b"a" * 40) for member in joined.members]
            request = SyncGroupRequest(
                self.group, self.generation, self.member_id, self.instance, "consumer", "range", assignments
            )
            answer = await self.peer.call(request, 3)
            if answer.error_code == 0:
                return
            assert answer.error_code in (22, 27), answer.error_code  # the next generation has begun

    async def rejoin(self) -> None:
        """Rejoin in the same way as a client: when the answer to a heartbeat says that a rebalance has begun."""
        request = HeartbeatRequest(self.group, self.generation, self.member_id, self.instance)
        while (code := (await self.peer.call(request, 3)).error_code) != 27:
            assert code == 0, code
        await self.round()


async def classic_rebalance(address: str, count: int) -> float:
    group = f"classic-{count}"
    members = [ClassicMember(await Peer.connect(address), group, number) for number in range(count + 1)]
    await asyncio.gather(*(member.round() for member in members[:count]))
    began = time.perf_counter()
    await asyncio.gather(members[count].round(), *(member.rejoin() for member in members[:count]))
    seconds = time.perf_counter() - began
    assert len({member.generation for member in members}) == 1
    for member in members:
        member.peer.close()
    return seconds


class ConsumerMember:
    def __init__(self, peer: Peer, group: str, number: int) -> None:
        self.peer, self.group, self.member_id = peer, group, f"m{number}"
        self.epoch = 0
        self.owned: list[TopicPartitions] = []

    async def beat(self, topic: str) -> None:
        request = ConsumerGroupHeartbeatRequest(self.group, self.member_id, self.epoch)
        request.topic_partitions = self.owned
        if self.epoch == 0:
            request.rebalance_timeout_ms, request.subscribed_topic_names = 60_000, [topic]
        answer = await self.peer.call(request, 1)
        assert answer.error_code == 0, answer.error_message
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = [
                TopicPartitions(part.topic_id, part.partitions) for part in answer.assignment.topic_partitions
            ]

    @property
    def count(self) -> int:
        return sum(len(part.partitions) for part in self.owned)


async def consumer_rebalance(address: str, count: int, topic: str) -> float:
    """Return the time of a rebalance. The topic has a partition for each member, and one more for the new member."""
    members = [ConsumerMember(await Peer.connect(address), f"consumer-{count}", number) for number in range(count + 1)]

    async def settle(joined: list[ConsumerMember]) -> None:
        while (
            sum(m.count for m in joined) < count + 1
            or len({m.epoch for m in joined}) > 1
            or not all(m.epoch for m in joined)
        ):
            await asyncio.gather(*(member.beat(topic) for member in joined))
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    await settle(members[:count])
    began = time.perf_counter()
    await settle(members)
    seconds = time.perf_counter() - began
    for member in members:
        member.peer.close()
    return seconds


async def make_groups(address: str, count: int) -> None:
    peers = [await Peer.connect(address) for _ in range(COMMITTERS)]

    async def make_some(first: int, peer: Peer) -> None:
        for number in range(first, count, COMMITTERS):
            await peer.call(commit_request(f"group-{number:06}", PARTITIONS, number), 8)

    await asyncio.gather(*(make_some(first, peer) for first, peer in enumerate(peers)))
    for peer in peers:
        peer.close()


async def list_groups(address: str, count: int) -> float:
    """Ask until all groups are listed. Return the time of the answer that listed all of them."""
    peer = await Peer.connect(address)
    while True:
        began = time.perf_counter()
        answer = await peer.call(ListGroupsRequest(), 4)
        seconds = time.perf_counter() - began
        if not answer.error_code and len(answer.groups) >= count:
            peer.close()
            return seconds
        await asyncio.sleep(0.005)


def measure(groups: int, members: list[int], seconds: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="tidelog-groups-") as directory:
        with Broker(directory + "/data") as broker:
            topics = {"t": PARTITIONS} | {f"t{count}": count + 1 for count in members}
            asyncio.run(prepare(broker.address, topics))
            asyncio.run(commits(broker.address, 0.5))  # compile the codecs, which happens at their first use
            with Probe(broker.address) as other_client:
                figures["commits a second"] = asyncio.run(commits(broker.address, seconds))
            figures["commits: waits, ms"] = other_client.longest_ms
            for count in members:
                with Probe(broker.address) as other_client:
                    took = asyncio.run(classic_rebalance(broker.address, count))
                figures[f"classic, {count} members: rebalance, ms"] = took * 1000
                figures[f"classic, {count} members: waits, ms"] = other_client.longest_ms
                with Probe(broker.address) as other_client:
                    took = asyncio.run(consumer_rebalance(broker.address, count, f"t{count}"))
                figures[f"consumer, {count} members: rebalance, ms"] = took * 1000
                figures[f"consumer, {count} members: waits, ms"] = other_client.longest_ms
        with Broker(directory + "/many") as broker:
            asyncio.run(prepare(broker.address, {"t": PARTITIONS}))
            asyncio.run(commits(broker.address, 0.5))
            before = broker.resident_mib()
            with Probe(broker.address) as other_client:
                asyncio.run(make_groups(broker.address, groups))
                figures[f"{groups} groups: ListGroups, ms"] = asyncio.run(list_groups(broker.address, groups)) * 1000
            figures[f"{groups} groups: waits, ms"] = other_client.longest_ms
            figures[f"{groups} groups: memory, MiB"] = broker.resident_mib() - before
        with Broker(directory + "/many") as broker:
            began = time.perf_counter()
            asyncio.run(list_groups(broker.address, groups))
            figures[f"{groups} groups: known after the ready line, ms"] = (time.perf_counter() - began) * 1000
            figures[f"{groups} groups: resident after a restart, MiB"] = broker.resident_mib()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--groups", type=int, default=5000, help="how many groups with commits (5000)")
    parser.add_argument("--members", default="10,100,500", help="sizes of groups that rebalance (10,100,500)")
    parser.add_argument("--seconds", type=float, default=5, help="seconds in which commits are counted (5)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--probe", metavar="HOST:PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        probe(options.probe)
        return
    figures = measure(options.groups, [int(count) for count in options.members.split(",")], options.seconds)
    if options.json:
        print(json.dumps({name: round(value, 2) for name, value in figures.items()}, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:48} {value:10,.1f}")


if __name__ == "__main__":
    main()
