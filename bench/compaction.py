"""Measures compaction: how many MB/s a pass processes, and how much it slows producers: medians of rounds on this
machine.

    .venv/bin/python bench/compaction.py [--rounds N] [--mib N] [--data DIR] [--json]

Each round fills a compacted topic (100-byte values, one key for every ten records) and measures small produce
requests to another topic at a steady pace. Then the pass begins, and the requests are measured again during the
pass. The result is the ratio of the two measurements of a round, because both run under the same conditions. `MB/s`
is the size of the log divided by the time of its pass.
"""

import argparse
import json
import random
import re
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path

from tidelog.testing import Broker
from tidelog.wire.apis import APIS
from tidelog.wire.frames import encode_request_header
from tidelog.wire.message import Message
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.wire.records import Record, encode_batch

SETTINGS = {"log.cleaner.backoff.ms": 20, "log.segment.delete.delay.ms": 0, "log.retention.check.interval.ms": 500}
PACE_S = 0.002
CALM_S = 4.0
RECORDS_PER_BATCH = 500
LINE = re.compile(r"log cleaned partition=(\S+) .* bytes_before=(\d+) bytes_after=(\d+) .*seconds=([\d.]+)")
BAR = 1.5


class Client:
    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0

    def ask(self, request: Message, response: type[Message], version: int) -> Message:
        self._number += 1
        key = request.api_key
        head = encode_request_header(key, version, self._number, "bench")
        body = head + request.encode(version)
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", self._read(4))
        answer = self._read(size)
        skip = 5 if version >= APIS[key].flexible_from else 4
        return response.decode(memoryview(answer), skip, version)[0]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the broker closed the connection"
            data += part
        return data

    def create(self, name: str, **configs: str) -> None:
        settings = [CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in configs.items()]
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=settings)
        answer = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), CreateTopicsResponse, 7)
        assert isinstance(answer, CreateTopicsResponse)
        assert answer.topics[0].error_code == 0, answer

    def set_ratio(self, topic: str, ratio: str) -> None:
        entry = AlterableConfig(name="min.cleanable.dirty.ratio", config_operation=0, value=ratio)
        resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[entry])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        self.ask(request, IncrementalAlterConfigsResponse, 1)

    def produce(self, topic: str, batch: bytearray) -> None:
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
        answer = self.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]), ProduceResponse, 9)
        assert isinstance(answer, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer


def fill(client: Client, topic: str, mib: int, rng: random.Random) -> None:
    count = (mib << 20) // 120
    keys = count // 10
    for _ in range(count // RECORDS_PER_BATCH):
        records = [
            Record(b"key-%010d" % rng.randrange(keys), rng.randbytes(90), 1_700_000_000_000)
            for _ in range(RECORDS_PER_BATCH)
        ]
        client.produce(topic, encode_batch(records))


def latencies(client: Client, topic: str, seconds: float, until: "Log | None" = None) -> list[float]:
    """Return the latencies, in ms, of small requests at a steady pace for `seconds`, or `until` a pass has ended."""
    batch = encode_batch([Record(b"k", bytes(100), 1_700_000_000_000)])
    latencies_ms = []
    began = next_request = time.perf_counter()
    while time.perf_counter() - began < seconds:
        if until is not None and len(latencies_ms) % 50 == 0 and until.has_passed():
            break
        sent = time.perf_counter()
        client.produce(topic, bytearray(batch))
        latencies_ms.append((time.perf_counter() - sent) * 1000)
        next_request = max(next_request + PACE_S, time.perf_counter())
        time.sleep(max(next_request - time.perf_counter(), 0))
    return latencies_ms


class Log:
    """Finds the log line of a finished pass over one topic."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self.passed: tuple[int, int, float] | None = None

    def has_passed(self) -> bool:
        for partition, before, after, seconds in LINE.findall(self._broker.log()):
            if partition == f"{self._topic}-0":
                self.passed = int(before), int(after), float(seconds)
        return self.passed is not None


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def one_round(broker: Broker, client: Client, number: int, mib: int) -> dict[str, float]:
    topic = f"table-{number}"
    client.create(topic, cleanup_policy="compact", min_cleanable_dirty_ratio="1.0", segment_bytes=str(16 << 20))
    fill(client, topic, mib, random.Random(number))
    # Wait until the filled log is synced. A pass begins only after that, and the sync must not be measured.
    time.sleep(2.5)
    calm = latencies(client, "small", CALM_S)
    log = Log(broker, topic)
    client.set_ratio(topic, "0.01")
    busy = latencies(client, "small", 60.0, log)
    while not log.has_passed():
        time.sleep(0.01)
    assert log.passed is not None
    before, after, seconds = log.passed
    return {
        "MB/s": before / seconds / 1e6,
        "bytes left": after / before,
        "p50 calm, ms": statistics.median(calm),
        "p50 cleaning, ms": statistics.median(busy),
        "p99 calm, ms": p99(calm),
        "p99 cleaning, ms": p99(busy),
        "p50 ratio": statistics.median(busy) / statistics.median(calm),
        "p99 ratio": p99(busy) / p99(calm),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=64, help="size of the log that each round compacts")
    parser.add_argument("--data", help="where to put the data directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = []
    with (
        tempfile.TemporaryDirectory(dir=options.data) as directory,
        Broker(process=True, data=Path(directory) / "data", settings=SETTINGS) as broker,
    ):
        client = Client(broker.host, broker.port)
        client.create("small")
        for number in range(options.rounds):
            rounds.append(one_round(broker, client, number, options.mib))
            if not options.json:
                print(f"round {number}: " + ", ".join(f"{k} {v:.2f}" for k, v in rounds[-1].items()), flush=True)
    medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    if options.json:
        print(json.dumps(medians))
        return
    for name, value in medians.items():
        print(f"{name:20} {value:8.2f}")
    print(f"produce p99 while cleaning: {'within' if medians['p99 ratio'] <= BAR else 'beyond'} {BAR} x")


if __name__ == "__main__":
    main()
