"""Files with random damage: a log never crashes, serves no broken chain of batches, and reports what it drops."""

import random
from collections.abc import Iterator
from contextlib import suppress

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from log_harness import DIRECTORY, NOW_MS, LogOnDisk
from tidelog.log.dump import dump
from tidelog.log.errors import CorruptLog
from tidelog.log.partition_log import PartitionLog
from tidelog.log.times import find_max_timestamp, find_timestamp
from tidelog.log.verify import verify
from tidelog.model.steps import run_all
from tidelog.simulation.disk import SimDisk
from tidelog.wire.errors import StorageError
from tidelog.wire.primitives import MalformedMessage
from tidelog.wire.records import batches_in, decode_records

VALUES = [b"%03d:" % number + b"z" * (number * 37 % 150) for number in range(30)]


def written(*, clean: bool) -> LogOnDisk:
    on = LogOnDisk(segment_bytes=1200, index_interval_bytes=100)
    for number, value in enumerate(VALUES):
        on.append(
            value,
            timestamps=[NOW_MS + number],
            leader_epoch=number // 10,
            producer_id=3,
            producer_epoch=0,
            base_sequence=number,
        )
        if number == 20:
            on.flush()
    if clean:
        on.log.close(clean=True)
        on.persisted_recovery_point = len(VALUES)
    return on


def harm(disk: SimDisk, rng: random.Random, kind: str) -> None:
    name = rng.choice(disk.list(DIRECTORY))
    path = f"{DIRECTORY}/{name}"
    data = bytearray(disk.read(path))
    at = rng.randrange(len(data) + 1)
    if kind == "flip" and data:
        data[at % len(data)] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "zeros":
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    elif kind == "noise":
        data[at : at + 50] = rng.randbytes(50)
    elif kind == "insert":
        data[at:at] = rng.randbytes(rng.randrange(100))
    elif kind == "repeat":
        data += data[at:]
    elif kind == "remove":
        disk.remove(path)
        return
    disk.write_atomic(path, bytes(data))


def served(log: PartitionLog, bytes_max: int) -> Iterator[bytes]:
    """Values in the order of offsets. What a consumer finds wrong by its CRC is passed over: it is sealed damage."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read(offset, bytes_max, log.log_end_offset)
        if not part.size:
            return
        assert part.file is not None
        data = part.file.pread(part.size, part.position)
        headers = list(batches_in(data))
        assert sum(header.size for header in headers) == len(data), "a chain of whole batches"
        for header in headers:
            assert header.next_offset > offset
            if header.crc_ok():
                yield from (record.value or b"" for record in decode_records(data, header.position))
            offset = header.next_offset


@given(
    kinds=st.lists(
        st.sampled_from(["flip", "flip", "cut", "zeros", "noise", "insert", "repeat", "remove"]), min_size=1, max_size=3
    ),
    was_closed=st.booleans(),
    said_clean=st.booleans(),
    bytes_max=st.sampled_from([1, 300, 1 << 20]),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=settings().max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_harm_is_found_or_harmless(
    kinds: list[str], was_closed: bool, said_clean: bool, bytes_max: int, seed: int
) -> None:
    rng = random.Random(seed)
    on = written(clean=was_closed)
    for kind in kinds:
        harm(on.disk, rng, kind)
    result = verify(on.disk, DIRECTORY)
    for entry in dump(on.disk, DIRECTORY, records=True):
        assert entry["kind"]
    try:
        log = on.open(clean=said_clean and was_closed)
    except CorruptLog:
        return
    values = []
    try:
        for value in served(log, bytes_max):
            values.append(value)
        for when in range(-1, 31, 5):
            run_all(find_timestamp(log, NOW_MS + when))
        run_all(find_max_timestamp(log))
    except StorageError:
        assert log.failure is not None
        return
    except MalformedMessage:
        raise AssertionError("a batch whose checksum holds and that cannot be decoded") from None
    known = {value: number for number, value in enumerate(VALUES)}
    numbers = [known[value] for value in values]
    if "repeat" not in kinds and "insert" not in kinds:
        assert numbers == sorted(set(numbers)), "in order, once"
    if len(values) < len(VALUES):
        # Something is missing: it was reported, cut where a crash may cut, or is sealed damage that verify finds.
        assert log.recovery.truncated_bytes or log.log_end_offset < len(VALUES) or result.findings
    with suppress(StorageError):  # a leader epoch lies outside the checksum: a false one is found by the next leader
        on.append(b"goes on", leader_epoch=9)
