"""Runs the programs of examples/pipelines, and reads the topics and tables that they write."""

import contextlib
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/pipelines"
DATA = EXAMPLES / "data"


def load_program(path: Path) -> ModuleType:
    """Import a file that is in no package."""
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_topic(bootstrap: str, topic: str) -> list[Any]:
    """Return the committed messages of a topic, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests-of-pipelines",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    partitions = sorted(consumer.list_topics(topic, 30).topics[topic].partitions)
    messages: list[Any] = []
    for partition in partitions:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None, f"partition {partition} of {topic} does not end"
            if message.error() is not None:
                break
            messages.append(message)
    consumer.close()
    return messages


def read_json(bootstrap: str, topic: str) -> list[Any]:
    """Return the values of a topic, decoded from JSON."""
    return [json.loads(message.value()) for message in read_topic(bootstrap, topic)]


class Example:
    """One folder of examples/pipelines, run once in a directory: its data is loaded, and its pipelines process it."""

    def __init__(self, name: str, spark: "SparkSession", bootstrap: str, directory: Path) -> None:
        from tidelog.pipelines.loading import load
        from tidelog.pipelines.running import run

        self.name = name
        self.bootstrap = bootstrap
        self.directory = directory
        with contextlib.chdir(directory):  # the paths of tables are relative
            load_program(EXAMPLES / "load.py").load(name, bootstrap)
            pipelines = load(str(EXAMPLES / name / "pipeline.py"))
            # One after another: Spark gives up on a Python source that does not start within ten seconds, and on a busy
            # machine several of them that start at once take longer.
            for pipeline in pipelines:
                statuses = run(pipeline, bootstrap=bootstrap, state=directory / "state", spark=spark, timeout_s=280)
                # A restart would hide a failure of the first attempt.
                assert [(each.restarts, each.error) for each in statuses.values()] == [(0, None)], pipeline.name

    def table(self, path: str) -> "pandas.DataFrame":
        """Return the rows of a Delta table. Its times have no zone: they are UTC."""
        from deltalake import DeltaTable

        rows = DeltaTable(self.directory / path).to_pandas()
        for column in rows.select_dtypes("datetimetz"):
            rows[column] = rows[column].dt.tz_localize(None).astype("datetime64[ns]")
        return rows

    def batch_ends(self, pipeline: str, sink: str, topic: str) -> list[int]:
        """Return the end offset of each micro-batch of a query in partition 0 of a topic."""
        [folder] = self.directory.glob(f"state/{pipeline}/*/{sink}/offsets")
        files = sorted((int(file.name), file) for file in folder.iterdir() if file.name.isdecimal())
        ends = []
        for _, file in files:
            sources = [json.loads(line) for line in file.read_text().splitlines()[2:]]
            ends += [source[topic]["0"] for source in sources if topic in source]
        return ends

    def stated(self) -> dict[str, float]:
        """Return the numbers that the README states: rows `| name | number |` of its tables."""
        text = (EXAMPLES / self.name / "README.md").read_text()
        rows = re.findall(r"^\| ([^|]+) \| ([\d,.]+) \|$", text, re.MULTILINE)
        return {name: float(number.replace(",", "")) for name, number in rows}
