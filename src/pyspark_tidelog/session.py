"""Start a Spark session on this machine, for pipelines, demonstrations and tests."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_tidelog.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def local_session(
    name: str = "tidelog", *, cores: int | None = None, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """Start Spark in this process's own JVM, or return the session that runs already.

    Find Java (`java.ensure_java`, raises NoJava) and let Spark's workers run this Python. Shuffles use one partition
    for each of `cores`, which is the machine's number of cores by default (2 if it is unknown). `settings` override
    the defaults. The log level stays WARN; change it with `session.sparkContext.setLogLevel("ERROR")`.
    """
    os.environ["JAVA_HOME"] = str(ensure_java())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    cores = cores or os.cpu_count() or 2
    builder = SparkSession.Builder().appName(name).master(f"local[{cores}]")
    chosen = SETTINGS | {"spark.sql.shuffle.partitions": str(cores)} | dict(settings or {})
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
