"""Start a Spark session on this machine, for pipelines, demonstrations and tests."""

import os
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_tidelog.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Each task of a source or sink in Python exchanges several messages with the JVM. The messages take less time over
    # Unix domain sockets, to which only their owner can connect. Java has these sockets on every system,
    # but Python does not have them on Windows.
    "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def local_session(
    name: str = "tidelog", *, cores: int | None = None, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """Start Spark in a JVM that belongs to this process. If a session is already running, return it.

    Spark runs on the Java that `java.ensure_java` finds (raises NoJava), and its workers run this Python. Shuffles
    use `cores` partitions. The default of `cores` is the machine's number of cores, or 2 if it is unknown.
    `settings` override the defaults. The log level is WARN; change it with
    `session.sparkContext.setLogLevel("ERROR")`.
    """
    os.environ["JAVA_HOME"] = str(ensure_java())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    cores = cores or os.cpu_count() or 2
    builder = SparkSession.Builder().appName(name).master(f"local[{cores}]")
    spark_settings = SETTINGS | {"spark.sql.shuffle.partitions": str(cores)} | dict(settings or {})
    for key, value in spark_settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
