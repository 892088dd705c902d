"""Play the transcripts with a live broker, and print where its replies differ from those in the files.

    .venv/bin/python tests/scenarios/groups/against_kafka.py --port 9092 [--set NAME=VALUE ...] [FILE ...]

`--set` states a setting with which the broker was started. Files that need other settings are left out. The default
is the settings that most files need: group.initial.rebalance.delay.ms=300 and group.min.session.timeout.ms=100. A
line with `# kafka:` describes a deliberate difference: the replies after the next line are not compared.
"""

import argparse
import difflib
import re
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from conversation import TOPICS, Conversation, Fields, settings_of
from message_fields import MODULES, request_of

from tidelog.coordinator.group.hashing import partition_of
from tidelog.wire.apis import APIS
from tidelog.wire.frames import encode_request_header, response_header_version
from tidelog.wire.records import batches_in, decode_records

API_KEYS = {info.name: key for key, info in APIS.items()}
DEFAULTS = {"group.initial.rebalance.delay.ms": "300", "group.min.session.timeout.ms": "100"}
QUIET_S = 0.025
PATIENCE_S = 2.0
TIME = re.compile(r"(?<=^    )\d+|(?<= at=)\d+|(?<= since=)\d+|(?<= expires=)\d+")
MARKED = re.compile(r"<(\d+)>")
RECORD_LINE = re.compile(r"    (offset|group) ")
TOLERANCE_MS = 200
RECORD_TOLERANCE_MS = 1000
"""Longest delay of a live broker's record that is accepted, because the requests of one moment are sent one after
another."""


class Connection:
    """The blocking connection of one client. Replies arrive in the order of the requests."""

    def __init__(self, port: int, client_id: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.waiting: list[tuple[str, int, Callable[[Any], None]]] = []
        self._client_id = client_id
        self._count = 0

    def send(self, api: str, version: int, fields: Fields, reply: Callable[[Any], None]) -> None:
        self._count += 1
        head = encode_request_header(API_KEYS[api], version, self._count, self._client_id)
        frame = head + request_of(api, fields).encode(version)
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        self.waiting.append((api, version, reply))

    def receive(self) -> None:
        """Receive one whole response, which must be on its way."""
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        api, version, reply = self.waiting.pop(0)
        start = 5 if response_header_version(API_KEYS[api], version) else 4
        response = getattr(import_module(f"tidelog.wire.messages.{MODULES[api]}"), f"{api}Response")
        reply(response.decode(frame, start, version)[0])

    def call(self, api: str, version: int, fields: Fields) -> Any:
        answers: list[Any] = []
        self.send(api, version, fields, answers.append)
        self.receive()
        return answers[0]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker hung up")
            data += part
        return data


class LiveBroker:
    """A broker on this machine, in real time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connections: dict[str, Connection] = {}
        self._selector = selectors.DefaultSelector()
        admin = Connection(port, "admin")
        topics = [{"name": n, "num_partitions": p, "replication_factor": 1} for n, p in TOPICS.items()]
        admin.call("CreateTopics", 4, {"topics": topics, "timeout_ms": 5000})
        while admin.call("FindCoordinator", 0, {"key": "g"}).error_code:
            time.sleep(0.1)
        some_of_each_partition = {"groups": [f"group-{number}" for number in range(500)]}
        while any(group.error_code for group in admin.call("DescribeGroups", 0, some_of_each_partition).groups):
            time.sleep(0.1)
        self._ids = {topic.name: topic.topic_id for topic in admin.call("Metadata", 12, {"topics": None}).topics}
        self._admin = admin
        self._began = time.monotonic()
        self._began_wall_ms = round(time.time() * 1000)

    def topic_id(self, name: str) -> bytes:
        return self._ids.get(name, name.encode()[:16].ljust(16, b"\1"))

    def send(self, client: str, api: str, version: int, fields: Fields, reply: Callable[[Any], None]) -> None:
        connection = self._connections.get(client)
        if connection is None:
            connection = self._connections[client] = Connection(self._port, client)
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send(api, version, fields, reply)

    def settle(self, complete: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not complete() and time.monotonic() < end:
            self._take_until(time.monotonic() + QUIET_S)
        self._take_until(time.monotonic() + QUIET_S)

    def advance_to(self, time_ms: int) -> None:
        self._take_until(self._began + time_ms / 1000)

    def elapsed_ms(self) -> int:
        return round((time.monotonic() - self._began) * 1000)

    def began_wall_ms(self) -> int:
        return self._began_wall_ms

    def records(self, group_id: str) -> list[tuple[bytes, bytes | None]]:
        topic = self._admin.call("Metadata", 1, {"topics": [{"name": "__consumer_offsets"}]}).topics[0]
        index = partition_of(group_id, len(topic.partitions))
        found: list[tuple[bytes, bytes | None]] = []
        offset = 0
        while True:
            asked = {"partition": index, "fetch_offset": offset, "partition_max_bytes": 10_000_000}
            topics = [{"topic": "__consumer_offsets", "partitions": [asked]}]
            fetch = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 10_000_000, "topics": topics}
            (answer,) = self._admin.call("Fetch", 4, fetch).responses[0].partitions
            batches = list(batches_in(bytes(answer.records or b"")))
            if not batches:
                return found
            for batch in batches:
                found += [(record.key or b"", record.value) for record in decode_records(batch.buffer, batch.position)]
            offset = batches[-1].next_offset

    def _take_until(self, end: float) -> None:
        while True:
            left = end - time.monotonic()
            ready = self._selector.select(max(left, 0))
            for key, _ in ready:
                key.data.receive()
            if left <= 0 and not ready:
                return


def compared(text: str) -> list[str]:
    """Return the lines of a transcript without the replies that are known to differ."""
    lines = []
    excused = False
    for line in text.splitlines():
        if not line.startswith(" "):
            excused = bool(lines) and lines[-1].startswith("# kafka:")
        if not (excused and line.startswith(" ")):
            lines.append(line)
    return lines


def with_equal_times(wanted: list[str], received: list[str]) -> list[str]:
    """Return `received`, with the times of `wanted` in the lines that differ only in a short time."""
    known: dict[str, list[list[int]]] = {}
    for line in wanted:
        known.setdefault(TIME.sub("#", line), []).append([int(found[0]) for found in TIME.finditer(line)])
    lines = []
    for line in received:
        times = [int(found[0]) for found in TIME.finditer(line)]
        tolerance_ms = RECORD_TOLERANCE_MS if RECORD_LINE.match(line) else TOLERANCE_MS
        near = [
            others
            for others in known.get(TIME.sub("#", line), [])
            if all(abs(one - other) <= tolerance_ms for one, other in zip(times, others, strict=True))
        ]
        nearest = min(
            near, key=lambda others: sum(abs(a - b) for a, b in zip(times, others, strict=True)), default=times
        )
        for known_ms in nearest:
            line = TIME.sub(f"<{known_ms}>", line, count=1)
        lines.append(MARKED.sub(r"\1", line))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("files", nargs="*", type=Path)
    asked = parser.parse_args()
    settings = DEFAULTS | dict(setting.split("=", 1) for setting in asked.set)
    replies = differ = 0
    for path in asked.files or sorted(Path(__file__).parent.glob("*.txt")):
        expected = path.read_text()
        if DEFAULTS | settings_of(expected) != settings:
            print(f"{path.stem}: left out, it needs other settings")
            continue
        suffix = f"~{time.time_ns() // 1000 % 10**9}"
        happened = Conversation(LiveBroker(asked.port), group_suffix=suffix).run(expected)
        wanted, received = compared(expected), compared(happened)
        received = with_equal_times(wanted, received)
        replies += sum(line.startswith(" ") for line in received)
        difference = list(difflib.unified_diff(wanted, received, "the file", "the broker", lineterm="", n=2))
        differ += bool(difference)
        print(f"{path.stem}: {'differs' if difference else 'the same'}")
        print("\n".join(difference))
    print(f"{replies} replies compared, {differ} files differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
