"""One broker and one Spark for all tests of this directory: a session takes seconds to start."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from interop_harness.target import ROOT, NoKafka, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # registered already: the interop tests run too
        parser.addoption("--against", default="tidelog", metavar="tidelog|kafka|HOST:PORT")


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of our own broker, or of the one that `--against` names."""
    try:
        with started(str(request.config.getoption("against"))) as target:
            yield target.bootstrap
    except NoKafka as missing:
        pytest.skip(f"Apache Kafka cannot run here: {missing}")


@pytest.fixture(scope="session")
def spark_kafka_jars() -> str:
    """Those of Spark's own Kafka source, for `spark.jars`; empty where they cannot be had."""
    try:
        command = [sys.executable, str(ROOT / "script/spark-kafka")]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


@pytest.fixture(scope="session")
def spark(spark_kafka_jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    from pyspark_tidelog.java import NoJava, ensure_java
    from pyspark_tidelog.session import local_session
    from tidelog.pipelines.session import SETTINGS as PIPELINE_SETTINGS

    try:
        ensure_java()
    except NoJava as missing:
        pytest.skip(str(missing))
    warehouse = tmp_path_factory.mktemp("warehouse")
    settings = PIPELINE_SETTINGS | {
        "spark.sql.warehouse.dir": str(warehouse),
        # Tests are short: the JVM's second compiler would take more time than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    if spark_kafka_jars:
        settings["spark.jars"] = spark_kafka_jars
    session = local_session("tests", cores=2, settings=settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def format_kafka(spark_kafka_jars: str) -> None:
    """Skips a test that needs Spark's own Kafka source, with the reason."""
    if not spark_kafka_jars:
        missing = "no mvn" if shutil.which("mvn") is None else "script/spark-kafka fails"
        pytest.skip(f"the jars of Spark's own Kafka source are not here: {missing}")
