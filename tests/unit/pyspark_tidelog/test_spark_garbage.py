"""The garbage collections between tasks do not examine the objects of imported modules."""

import gc
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_tidelog import batch_reader, reading, writer
from pyspark_tidelog.options import read_options, write_options
from pyspark_tidelog.plan import OffsetRange

SCRIPT = """
import gc

import pyspark
from pyspark_tidelog.garbage import exempt_imported_objects

{prelude}
exempt_imported_objects("read")
first = gc.get_freeze_count()
later = [[] for _ in range(1000)]
exempt_imported_objects("read")
second = gc.get_freeze_count()
exempt_imported_objects("write")
print(first, second, gc.get_freeze_count())
"""


def freeze_counts(prelude: str) -> list[int]:
    """Return how many objects are exempt after the first read, a second read and the first write. This runs in a new
    process, because exempt objects would hide leaks from other tests.
    """
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(prelude=prelude)], check=True, capture_output=True, text=True
    )
    return [int(count) for count in result.stdout.split()]


def test_the_first_task_of_each_action_exempts_the_objects_that_exist() -> None:
    in_task = "pyspark.TaskContext._taskContext = pyspark.TaskContext()"
    first, second, third = freeze_counts(in_task)
    assert first > 1000
    assert second <= first  # a later task keeps its own objects in the collections
    assert third >= second + 1000


def test_nothing_is_exempt_outside_a_task() -> None:
    assert freeze_counts("") == [0, 0, 0]


def test_other_tests_run_without_exempt_objects() -> None:
    assert gc.get_freeze_count() == 0


def test_each_task_that_reads_or_writes_makes_the_exemption_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class NoRows:
        def __init__(self, *_: Any) -> None:
            pass

        def arrow_batches(self) -> list[pa.RecordBatch]:
            events.append("rows")
            return []

    for module in (batch_reader, writer):
        monkeypatch.setattr(module, "exempt_imported_objects", events.append)
    monkeypatch.setattr(batch_reader, "connect", lambda _: nullcontext())
    monkeypatch.setattr(reading, "RangeReader", NoRows)
    monkeypatch.setattr(writer, "write_rows", lambda *_: events.append("rows") or writer.WriteResult(0))
    options = {"kafka.bootstrap.servers": "127.0.0.1:1"}
    source = read_options({**options, "subscribe": "t"}, streaming=False)
    assert (
        list(batch_reader.read_partition(source, ("value",), batch_reader.RangePartition(OffsetRange("t", 0, 0, 1))))
        == []
    )
    schema = StructType([StructField("value", BinaryType())])
    writer._Writer(write_options({**options, "topic": "t"}), schema).write(iter([]))
    assert events == ["rows", "read", "rows", "write"]
