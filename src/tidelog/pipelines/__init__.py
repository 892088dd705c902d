"""Data pipelines on Spark: plain PySpark functions with declared sources and sinks.

    from tidelog.pipelines import json, pipeline, topic

`pipeline` and `PipelineError` are loaded when this package is imported, all other names at their first use. So an
import of this package imports neither PySpark nor the libraries of the sinks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidelog.pipelines.declarations import PipelineError, pipeline

if TYPE_CHECKING:
    from pyspark_tidelog.formats import avro, csv, json, protobuf
    from tidelog.pipelines.mirrors import mirror
    from tidelog.pipelines.sinks.delta import delta
    from tidelog.pipelines.sinks.file import file
    from tidelog.pipelines.sinks.http import http
    from tidelog.pipelines.sinks.iceberg import iceberg
    from tidelog.pipelines.sinks.parquet import parquet
    from tidelog.pipelines.sinks.sql import sql
    from tidelog.pipelines.topics import topic

__all__ = [
    "PipelineError", "avro", "csv", "delta", "file", "http", "iceberg",
    "json", "mirror", "parquet", "pipeline", "protobuf", "sql", "topic",
]  # fmt: skip

MODULES = {
    "topic": "tidelog.pipelines.topics",
    "mirror": "tidelog.pipelines.mirrors",
    "json": "pyspark_tidelog.formats",
    "csv": "pyspark_tidelog.formats",
    "avro": "pyspark_tidelog.formats",
    "protobuf": "pyspark_tidelog.formats",
    "delta": "tidelog.pipelines.sinks.delta",
    "iceberg": "tidelog.pipelines.sinks.iceberg",
    "parquet": "tidelog.pipelines.sinks.parquet",
    "sql": "tidelog.pipelines.sinks.sql",
    "file": "tidelog.pipelines.sinks.file",
    "http": "tidelog.pipelines.sinks.http",
}
"""Public name -> its module, for the names that are loaded at their first use."""


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
