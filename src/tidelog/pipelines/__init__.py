"""Data pipelines on Spark: plain PySpark functions with declared sources and sinks.

    from tidelog.pipelines import json, pipeline, topic

The names are loaded at their first use, so that importing this package imports neither PySpark nor a database.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidelog.pipelines.declarations import PipelineError, pipeline

if TYPE_CHECKING:
    from tidelog.pipelines.mirror import mirror as mirror
    from tidelog.pipelines.topics import topic

__all__ = ["PipelineError", "pipeline", "topic"]

MODULES = {
    "topic": "tidelog.pipelines.topics",
    "mirror": "tidelog.pipelines.mirror",
    "json": "pyspark_tidelog.formats",
    "csv": "pyspark_tidelog.formats",
    "avro": "pyspark_tidelog.formats",
    "protobuf": "pyspark_tidelog.formats",
    "delta": "tidelog.pipelines.sinks.delta",
    "iceberg": "tidelog.pipelines.sinks.iceberg",
    "parquet": "tidelog.pipelines.sinks.parquet",
    "sql": "tidelog.pipelines.sinks.sql",
    "file": "tidelog.pipelines.sinks",
    "http": "tidelog.pipelines.sinks",
}
"""The module of each public name that is loaded at its first use."""


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
