"""The Spark data source of Tidelog: `spark.read.format("tidelog")`, `readStream`, `write` and `writeStream`.

Spark finds the data source by this module's name, in the driver and in the workers, and registers `DefaultSource`.
Options and columns are those of Spark's own Kafka source, so a job only changes the name of the format. To learn the
code, begin with the module `source`, and continue with `stream_reader` and `reading`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_tidelog.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    """Import the data source when `DefaultSource` is first used, so that the decoding modules work without PySpark."""
    if name == "DefaultSource":
        from pyspark_tidelog.source import TidelogDataSource

        return TidelogDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
