"""One broker and one Spark for all tests of this directory: a session takes seconds to start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from interop_harness.target import started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.driver.memory": "1g",
    # The sessions are short: compiling with optimisations takes more time than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    with started("tidelog") as target:
        yield target.bootstrap


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    from pyspark_tidelog.session import local_session

    settings = SETTINGS | {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = local_session("examples", cores=2, settings=settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
