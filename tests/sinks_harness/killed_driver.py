"""A driver that writes one micro-batch to an object store and ends as by `kill -9` at a chosen step.

Arguments: the kind of sink (`delta`, `iceberg`, `parquet`), its location as JSON, and the step.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines.sinks import bucket
from tidelog.pipelines.sinks.bucket import BucketTarget
from tidelog.pipelines.sinks.delta import OpenedDelta, delta
from tidelog.pipelines.sinks.iceberg import OpenedIceberg, iceberg
from tidelog.pipelines.sinks.parquet import parquet


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at_second_copy(store: Any) -> Any:
    publish = publisher(store)
    return lambda entry: die() if entry["name"].endswith("00001.parquet") else publish(entry)


publisher = bucket.publisher
STEPS: dict[str, tuple[Any, str, Any]] = {
    "before the commit": (OpenedDelta, "_add_files", die),
    "before the catalog": (OpenedIceberg, "_commit", die),
    "before the manifest": (BucketTarget, "_decide", die),
    "between two copies": (bucket, "publisher", dies_at_second_copy),
    "before the clean-up": (BucketTarget, "_remove_attempts", die),
}


def main() -> None:
    kind, location, step = sys.argv[1:]
    owner, name, planted = STEPS[step]
    setattr(owner, name, planted)
    make: Any = {"delta": delta, "iceberg": iceberg, "parquet": parquet}[kind]
    path, options = json.loads(location)
    opened(make(path, **options), None).write(Rows.numbers(10, 30, tasks=2), 1)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
