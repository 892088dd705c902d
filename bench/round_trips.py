#!/usr/bin/env python3
"""Compares servers by the round trips of single requests. It finds differences of some percent on a busy machine.

    bench/round_trips.py [--turns N] [--json FILE] NAME[=COMMAND] NAME[=COMMAND] ...

A COMMAND has {port} and {data} in it, as for bench/compare.py; `tidelog` without a command is this checkout's broker.
To compare two versions of the source, start both in the same way:

    run='start --listen 127.0.0.1:{port} --data {data}'
    bench/round_trips.py before="env PYTHONPATH=OLD/src python -m tidelog $run" \
                         now="env PYTHONPATH=src python -m tidelog $run" \
                         before-again="env PYTHONPATH=OLD/src python -m tidelog $run"

All servers run at once. Each row sends one request after another on one connection, to one server after the other in a
random order, in several turns. A turn's figure is the 5th percentile of its round trips in microseconds, and the
table shows the least figure of all turns: other processes can only make a round trip longer. The same command under
two names shows how far the figures differ by chance. The data is on /dev/shm.
"""

import argparse
import json
import os
import pathlib
import random
import socket
import struct
import sys
import tempfile
import time
from typing import NamedTuple

from compare import BUILT_IN_COMMANDS, Server, create_topic

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "src"))

from tidelog.wire.checksums import crc32c
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

WRITTEN, READ = "written", "read"
READ_BATCHES = 1000
PORT = 21600


class Row(NamedTuple):
    name: str
    frames: bytes
    answers: int
    """Number of answers to `frames`: one for each request."""
    repeats: int


def batch(count: int, value_bytes: int) -> bytes:
    """Return a record batch of `count` records without keys."""
    now_ms = int(time.time() * 1000)
    records = b""
    for offset_delta in range(count):
        record = b"\0\0" + varint(offset_delta) + varint(-1) + varint(value_bytes) + os.urandom(value_bytes) + b"\0"
        records += varint(len(record)) + record
    fields = struct.pack(">hiqqqhii", 0, count - 1, now_ms, now_ms, -1, -1, -1, count) + records
    content = struct.pack(">ibI", 0, 2, crc32c(fields)) + fields
    return struct.pack(">qi", 0, len(content)) + content


def varint(number: int) -> bytes:
    rest = number << 1 ^ number >> 63
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


def frame(api_key: int, version: int, body: bytes) -> bytes:
    client_id = b"round-trips"
    header = struct.pack(">hhih", api_key, version, 1, len(client_id)) + client_id + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def produce(topic: str, records: bytes) -> bytes:
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, records)])]
    return frame(0, 9, ProduceRequest(acks=1, timeout_ms=5000, topic_data=data).encode(9))


def fetch(offset: int, bytes_max: int) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
    topics = [FetchTopic(topic=READ, partitions=[partition])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=bytes_max, session_epoch=-1, topics=topics)
    return frame(1, 12, request.encode(12))


def make_rows() -> list[Row]:
    small = produce(WRITTEN, batch(1, 100))
    metadata = frame(3, 12, MetadataRequest(topics=[MetadataRequestTopic(name=WRITTEN)]).encode(12))
    return [
        Row("produce 1 record of 100 B", small, 1, 1500),
        Row("produce 16 records of 1 KB", produce(WRITTEN, batch(16, 1000)), 1, 600),
        Row("20 produce requests at once", small * 20, 20, 150),
        Row("fetch one batch", fetch(0, 100), 1, 1500),
        Row("fetch 64 KB", fetch(0, 65536), 1, 600),
        Row("fetch at the end", fetch(READ_BATCHES, 100), 1, 800),
        Row("metadata of one topic", metadata, 1, 600),
    ]


def receive(connection: socket.socket, answers: int) -> None:
    for _ in range(answers):
        (left,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        while left:
            left -= len(connection.recv(min(left, 1 << 20)))


def measure(connection: socket.socket, row: Row) -> float:
    """Return the 5th percentile of the row's round trips, in microseconds."""
    times = []
    for _ in range(row.repeats):
        began = time.perf_counter_ns()
        connection.sendall(row.frames)
        receive(connection, row.answers)
        times.append(time.perf_counter_ns() - began)
    times.sort()
    return times[len(times) // 20] / 1000


def connect(server: Server) -> socket.socket:
    for topic in (WRITTEN, READ):
        create_topic(server.port, topic, 1)
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    filling = produce(READ, batch(1, 100))
    for _ in range(READ_BATCHES):
        connection.sendall(filling)
        receive(connection, 1)
    return connection


def show(rows: list[Row], names: list[str], least: dict[str, dict[str, float]]) -> None:
    print(f"{'least 5th percentile, us':30}" + "".join(f"{name:>20}" for name in names))
    for row in rows:
        first = least[row.name][names[0]]
        cells = (f"{least[row.name][name]:11.1f} ({least[row.name][name] / first:.3f})" for name in names)
        print(f"{row.name:30}" + "".join(f"{cell:>20}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="NAME[=COMMAND]")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    chosen = parser.parse_args()
    rows = make_rows()
    servers: list[Server] = []
    least: dict[str, dict[str, float]] = {row.name: {} for row in rows}
    with tempfile.TemporaryDirectory(prefix="round-trips-", dir="/dev/shm") as directory:
        try:
            for number, text in enumerate(chosen.servers):
                name, _, command = text.partition("=")
                data = pathlib.Path(directory) / name
                servers.append(Server(name, command or BUILT_IN_COMMANDS[name], PORT + number, data, True))
            connections = {server.name: connect(server) for server in servers}
            for _ in range(chosen.turns):
                for row in rows:
                    for name in random.sample(list(connections), len(connections)):
                        taken = measure(connections[name], row)
                        least[row.name][name] = min(taken, least[row.name].get(name, taken))
        finally:
            for server in servers:
                server.stop()
    show(rows, [server.name for server in servers], least)
    if chosen.json:
        pathlib.Path(chosen.json).write_text(json.dumps(least, indent=2))


if __name__ == "__main__":
    main()
