"""Requests of a fuzzer: every API and version, likely and unlikely values, whole or with broken bytes."""

import importlib
import random
from functools import cache
from typing import Any, NamedTuple, cast

from tidelog.api.registry import TABLE
from tidelog.wire.apis import APIS
from tidelog.wire.decoding import struct_named
from tidelog.wire.fields import NO_VERSIONS, Field, fields_from_lines
from tidelog.wire.frames import encode_request_header
from tidelog.wire.message import Message, Struct
from tidelog.wire.records import Record, encode_batch

TOPICS = [f"fuzz-{number}" for number in range(8)]
GROUPS = [f"group-{number}" for number in range(4)]
SETTINGS = ["retention.ms", "segment.bytes", "cleanup.policy", "max.message.bytes", "durability", "no.such.setting"]
STRINGS = ["", "a", "consumer", "range", "1", "4", "-1", "delete", "compact", "fsync", "ü" * 20, "..", "a/b", "x" * 300]
NAMES = [*TOPICS * 3, *GROUPS * 2, *SETTINGS, *STRINGS]
SMALL = [0, 0, 0, 1, 1, 2, 3, -1, -2, 5, 10, 100, 1000]
BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
COUNTS = {"num_partitions": [-1, 0, 1, 2, 3, 20, -7], "count": [0, 1, 2, 4, 8, -1]}
"""Fields that make that many directories; limits on them have a test of their own."""
MUTATED = 0.6
SERVED = [(key, version) for key, entry in TABLE.items() for version in range(entry.min_version, entry.max_version + 1)]
"""Every API and version."""


class Input(NamedTuple):
    name: str
    api_key: int
    version: int
    correlation_id: int
    whole: bool
    """Whether it is a request as the protocol has it, whatever its values."""
    frame: bytes
    """With its size in front, which is right but for a few."""


@cache
def request_class(api_key: int) -> type[Message]:
    info = APIS[api_key]
    module = importlib.import_module(f"tidelog.wire.messages.{info.module}")
    return cast("type[Message]", getattr(module, f"{info.name}Request"))


_fields = cache(fields_from_lines)


def fields_of(kind: type[Struct]) -> list[Field]:
    return _fields(kind.FIELDS)


class Inputs:
    """All that it makes follows from its seed."""

    def __init__(self, seed: int, topic_ids: list[bytes]) -> None:
        self._rng = random.Random(seed)
        self._topic_ids = topic_ids
        self._batches = [self._batch() for _ in range(50)]
        self._made = 0

    def next(self) -> Input:
        rng = self._rng
        api_key, version = SERVED[self._made % len(SERVED)]
        self._made += 1
        kind = request_class(api_key)
        body = self._struct(kind, version).encode(version)
        correlation_id = rng.randrange(-(1 << 31), 1 << 31)
        header = encode_request_header(api_key, version, correlation_id, rng.choice((None, "", "fuzz")))
        content = header + body
        whole = rng.random() >= MUTATED
        size = len(content)
        if not whole:
            content = self._mutated(content)
            size = len(content) if rng.random() < 0.9 else max(size + rng.choice((-3, -1, 1, 5)), 0)
        frame = size.to_bytes(4, "big") + content
        return Input(APIS[api_key].name, api_key, version, correlation_id, whole, frame)

    # Values

    def _struct(self, kind: type[Struct], version: int) -> Any:
        values = {f.attribute: self._value(kind, f, version) for f in fields_of(kind) if version in f.versions}
        return kind(**values)

    def _value(self, kind: type[Struct], field: Field, version: int) -> Any:
        rng = self._rng
        nullable = field.nullable != NO_VERSIONS and version in field.nullable
        if nullable and rng.random() < 0.2:
            return None
        if not field.is_array:
            return self._single(kind, field, version)
        count = rng.choice((0, 1, 1, 1, 2, 3, 3, 40 if not field.is_struct else 4))
        return [self._single(kind, field, version) for _ in range(count)]

    def _single(self, kind: type[Struct], field: Field, version: int) -> Any:
        rng = self._rng
        if field.is_struct:
            return self._struct(struct_named(kind, field.type), version)
        if field.attribute in COUNTS:
            return rng.choice(COUNTS[field.attribute])
        match field.type:
            case "bool":
                return rng.random() < 0.5
            case "float64":
                return rng.random()
            case "uuid":
                return rng.choice([bytes(16), *self._topic_ids, rng.randbytes(16)])
            case "string":
                return rng.choice(NAMES)
            case "bytes":
                return rng.choice((b"", b"\0\1\0\0\0\0", rng.randbytes(rng.randrange(100))))
            case "records":
                return self._records()
        bits = BITS[field.type]
        signed = not field.type.startswith("uint")
        if rng.random() < 0.8:
            number = rng.choice(SMALL)
        else:
            number = rng.choice((1 << bits - 1, -(1 << bits - 1), (1 << bits - 1) - 1, rng.getrandbits(bits)))
        low = -(1 << bits - 1) if signed else 0
        return (number - low) % (1 << bits) + low

    def _records(self) -> bytes:
        rng = self._rng
        batch = bytearray(rng.choice(self._batches))
        draw = rng.random()
        if draw < 0.5:
            return bytes(batch)
        if draw < 0.6:
            return bytes(batch + rng.choice(self._batches))
        if draw < 0.7:
            return rng.randbytes(rng.randrange(200))
        return self._mutated(bytes(batch))

    def _batch(self) -> bytes:
        rng = self._rng
        records = [
            Record(
                key=rng.choice((None, b"", b"key")),
                value=rng.choice((None, b"", rng.randbytes(rng.randrange(300)))),
                timestamp=rng.choice((0, -1, 1_700_000_000_000, 1 << 62)),
                headers=[("h", None)] * rng.choice((0, 0, 1, 3)),
            )
            for _ in range(rng.choice((1, 1, 2, 10)))
        ]
        producer_id, epoch, sequence = rng.choice(((-1, -1, -1), (1, 0, 0), (5, 2, 7), (1000, 0, 2_147_483_647)))
        return bytes(
            encode_batch(
                records, codec=rng.randrange(5), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )
        )

    # Broken bytes

    def _mutated(self, content: bytes) -> bytes:
        rng = self._rng
        data = bytearray(content)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            if not data:
                break
            # Not the key and version, which choose what is tested: both get their share elsewhere.
            at = rng.randrange(min(4, len(data) - 1), len(data)) if rng.random() < 0.97 else rng.randrange(len(data))
            match rng.randrange(6):
                case 0:
                    data[at] ^= 1 << rng.randrange(8)
                case 1:
                    data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
                case 2:
                    del data[at : at + rng.choice((1, 2, 4, 100))]
                case 3:
                    data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 30)))
                case 4:
                    data[at : at + 4] = rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", bytes(4)))
                case 5:
                    data[at:at] = data[at : at + rng.choice((1, 8, 61))]
        return bytes(data)
