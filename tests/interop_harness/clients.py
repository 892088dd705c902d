"""Every client with the same interface: write a few records to partition 0, and read them from its start."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as Partition

from interop_harness.java_tools import JavaTools
from interop_harness.suite import LIMIT_S

Headers: TypeAlias = tuple[tuple[str, bytes], ...]

NULL = "NIL"
"""The text that means null in tools that read and write lines."""


class Sent(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


Write: TypeAlias = Callable[[str, str, list[Sent]], None]
"""Called with (topic, codec, records)."""
Read: TypeAlias = Callable[[str, int], list[Sent]]
"""Called with (topic, count)."""


class Client(NamedTuple):
    write: Write
    read: Read


def confluent(bootstrap: str) -> Client:
    def write(topic: str, codec: str, records: list[Sent]) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20})
        for sent in records:
            producer.produce(topic, sent.value, sent.key, 0, headers=list(sent.headers))
        assert producer.flush(LIMIT_S) == 0

    def read(topic: str, count: int) -> list[Sent]:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            found = [consumer.poll(LIMIT_S) for _ in range(count)]
        finally:
            consumer.close()
        assert all(message is not None and message.error() is None for message in found)
        return [Sent(m.key(), m.value(), _headers(m)) for m in found if m is not None]

    return Client(write, read)


def _headers(message: Message) -> Headers:
    pairs = message.headers() or []
    assert isinstance(pairs, list)
    return tuple((name, value) for name, value in pairs if isinstance(value, bytes))


def kafka_python(bootstrap: str) -> Client:
    def write(topic: str, codec: str, records: list[Sent]) -> None:
        compression = None if codec == "none" else codec
        producer: Any = KafkaProducer(bootstrap_servers=bootstrap, compression_type=compression, linger_ms=20)
        try:
            futures = [
                producer.send(topic, sent.value, sent.key, partition=0, headers=list(sent.headers)) for sent in records
            ]
            for future in futures:
                future.get(LIMIT_S)
        finally:
            producer.close()

    def read(topic: str, count: int) -> list[Sent]:
        wait_ms = int(LIMIT_S * 1000)
        consumer: Any = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=wait_ms)
        try:
            consumer.assign([Partition(topic, 0)])
            consumer.seek(Partition(topic, 0), 0)
            return [Sent(m.key, m.value, tuple(m.headers)) for _, m in zip(range(count), consumer, strict=False)]
        finally:
            consumer.close()

    return Client(write, read)


def aiokafka(bootstrap: str) -> Client:
    async def write_records(topic: str, codec: str, records: list[Sent]) -> None:
        compression = None if codec == "none" else codec
        producer: Any = AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=compression, linger_ms=20)
        await producer.start()
        try:
            for sent in records:
                await producer.send(topic, sent.value, sent.key, 0, headers=list(sent.headers))
            await producer.flush()
        finally:
            await producer.stop()

    async def read_records(topic: str, count: int) -> list[Sent]:
        consumer: Any = AIOKafkaConsumer(bootstrap_servers=bootstrap, check_crcs=True)
        await consumer.start()
        try:
            consumer.assign([Partition(topic, 0)])
            consumer.seek(Partition(topic, 0), 0)
            found = [await asyncio.wait_for(consumer.getone(), LIMIT_S) for _ in range(count)]
        finally:
            await consumer.stop()
        return [Sent(m.key, m.value, tuple(m.headers)) for m in found]

    return Client(
        lambda topic, codec, records: asyncio.run(write_records(topic, codec, records)),
        lambda topic, count: asyncio.run(read_records(topic, count)),
    )


def run_kcat(program: str, bootstrap: str, *arguments: str, input: bytes = b"", code: int = 0) -> bytes:
    """Run kcat, and return its output. Raises AssertionError if its exit code is not `code`."""
    ran = subprocess.run(
        [program, "-b", bootstrap, *arguments], input=input, capture_output=True, timeout=2 * LIMIT_S, check=False
    )
    assert ran.returncode == code, ran.stderr.decode()
    return ran.stdout if code == 0 else ran.stderr


def kcat(program: str, bootstrap: str) -> Client:
    def write(topic: str, codec: str, records: list[Sent]) -> None:
        for sent in records:  # kcat has the headers of all records of a run on its command line
            words = [word for name, value in sent.headers for word in ("-H", f"{name}={value.decode()}")]
            words += [] if sent.key is None else ["-K", "\t"]
            line = (b"" if sent.key is None else sent.key + b"\t") + (sent.value or b"")
            run_kcat(program, bootstrap, "-P", "-t", topic, "-p", "0", "-z", codec, "-Z", *words, input=line + b"\n")

    def read(topic: str, count: int) -> list[Sent]:
        words = ("-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count), "-q", "-J")
        return [_parse_kcat_line(line) for line in run_kcat(program, bootstrap, *words).splitlines()]

    return Client(write, read)


def _parse_kcat_line(line: bytes) -> Sent:
    document = json.loads(line)
    pairs = document.get("headers", [])
    headers = tuple((name, value.encode()) for name, value in zip(pairs[::2], pairs[1::2], strict=True))
    key, value = (None if document[name] is None else document[name].encode() for name in ("key", "payload"))
    return Sent(key, value, headers)


def java(tools: JavaTools, bootstrap: str) -> Client:
    def write(topic: str, codec: str, records: list[Sent]) -> None:
        properties = ("parse.key=true", "parse.headers=true", f"null.marker={NULL}")
        words = [word for one in properties for word in ("--reader-property", one)]
        lines = ["\t".join([_headers_line(s.headers), _line(s.key), _line(s.value)]) for s in records]
        where = ("--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", codec)
        tools.run("console-producer", *where, *words, input="\n".join(lines).encode())

    def read(topic: str, count: int) -> list[Sent]:
        properties = ("print.key=true", "print.headers=true", f"null.literal={NULL}")
        words = [word for one in properties for word in ("--formatter-property", one)]
        where = ("--bootstrap-server", bootstrap, "--topic", topic, "--partition", 0, "--offset", "earliest")
        ran = tools.run("console-consumer", *where, "--max-messages", count, "--timeout-ms", 30_000, *words)
        return [_parse_console_line(line) for line in ran.lines]

    return Client(write, read)


def _line(part: bytes | None) -> str:
    return NULL if part is None else part.decode()


def _headers_line(headers: Headers) -> str:
    return ",".join(f"{name}:{value.decode()}" for name, value in headers) or NULL


def _parse_console_line(line: str) -> Sent:
    headers_text, key, value = line.split("\t")
    pairs = [] if headers_text == "NO_HEADERS" else [one.split(":") for one in headers_text.split(",")]
    headers = tuple((name, text.encode()) for name, text in pairs)
    return Sent(None if key == NULL else key.encode(), None if value == NULL else value.encode(), headers)
