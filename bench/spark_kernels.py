#!/usr/bin/env python3
"""Measures the Python code of the Spark source and sink without Spark: CPU time for a record, and for a task.

    .venv/bin/python bench/spark_kernels.py [--sizes 100,1024]

- decode: records of a fetched response to the buffers of Arrow columns
- encode: rows of an Arrow column to records
- batches: the same with partitions, checksums and copies, as the sink does it
- task: a task that reads one record, with its connection to a broker, which runs in another process

CPU time depends less on other work of the machine than wall time. The first call of each function, which loads compiled
code, is not counted. The table shows the lowest of five rounds.
"""

import argparse
import struct
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pyspark_tidelog import encode_kernel
from pyspark_tidelog.batch_reader import RangePartition, read_partition
from pyspark_tidelog.decode import Payload
from pyspark_tidelog.decode_compiled import decode
from pyspark_tidelog.decode_kernel import WANT_KEY, WANT_VALUE
from pyspark_tidelog.options import read_options, write_options
from pyspark_tidelog.outgoing import BatchEncoder, records_of
from pyspark_tidelog.plan import OffsetRange
from pyspark_tidelog.writer import write_rows
from tidelog.testing import Broker
from tidelog.wire.batches import HEADER_BYTES, BatchHeader, Codec

ROWS = 10_000
ROUNDS = 5
CALLS = 10
BATCH_BYTES = 65_536
RECORD_OVERHEAD_BYTES = 20
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def cpu_s(call: Callable[[], object], calls: int = CALLS) -> float:
    """Return the CPU time of one call of this process, in seconds."""
    call()
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(calls):
            call()
        times.append((time.process_time() - began) / calls)
    return min(times)


def encoder() -> BatchEncoder:
    return BatchEncoder("t", lambda _: 1, lambda: 0, batch_bytes=BATCH_BYTES, codec=Codec.NONE, first_partition=0)


def payloads(rows: pa.RecordBatch) -> list[Payload]:
    """Return the batches of the rows as a fetched response has them."""
    fetched, positions, next_offset = bytearray(), [], 0
    (batches,) = encoder().batches(rows).values()
    for batch in batches:
        struct.pack_into(">q", batch, 0, next_offset)
        next_offset += BatchHeader(batch, 0).count
        positions.append(len(fetched))
        fetched += batch
    data = np.frombuffer(fetched, np.uint8)
    data.flags.writeable = False
    headers = [BatchHeader(memoryview(fetched), position) for position in positions]
    return [Payload(header, data, header.position + HEADER_BYTES, header.position + header.size) for header in headers]


def figures_of(size: int) -> dict[str, float]:
    """Return the nanoseconds of CPU time for a record with a value of `size` bytes."""
    values = pa.array([str(number).ljust(size, "x").encode() for number in range(ROWS)], pa.binary())
    rows = pa.RecordBatch.from_arrays([values], names=["value"])
    received, records = payloads(rows), records_of({"value": values}, lambda: 0)
    order, target = np.arange(ROWS), np.empty(ROWS * (size + RECORD_OVERHEAD_BYTES), np.uint8)
    sink = encoder()
    calls: dict[str, Callable[[], object]] = {
        "decode": lambda: decode(received, 0, ROWS, WANT_KEY | WANT_VALUE),
        "encode": lambda: encode_kernel.encode(records, order, 0, target, 0),
        "batches": lambda: sink.batches(rows),
    }
    return {name: cpu_s(call) / ROWS * 1e9 for name, call in calls.items()}


def task_ms() -> float:
    """Return the milliseconds of CPU time of a task that reads one record."""
    with Broker(process=True) as broker:
        options = {"kafka.bootstrap.servers": broker.bootstrap}
        rows = pa.RecordBatch.from_arrays([pa.array([b"x"], pa.binary())], names=["value"])
        write_rows(write_options({**options, "topic": "t"}), iter([rows]))
        source = read_options({**options, "subscribe": "t"}, streaming=False)
        partition = RangePartition(OffsetRange("t", 0, 0, 1))
        return cpu_s(lambda: list(read_partition(source, COLUMNS, partition))) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", default="100,1024", help="bytes of a value, separated by commas")
    arguments = parser.parse_args()
    for size in map(int, arguments.sizes.split(",")):
        figures = ", ".join(f"{name} {value:.0f} ns" for name, value in figures_of(size).items())
        print(f"record of {size} bytes: {figures}", flush=True)
    print(f"task that reads one record: {task_ms():.1f} ms")


if __name__ == "__main__":
    main()
