"""Loads the programs of examples/pipelines, and reads the topics that they write."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from confluent_kafka import Consumer, TopicPartition

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/pipelines"
DATA = EXAMPLES / "data"


def load_example(path: str) -> ModuleType:
    """Import a file of examples/pipelines, as in `logs/pipeline.py`. Its name is that of folder and file.

    Spark's workers cannot import it, so its functions are sent to them by value, as those of a program are.
    """
    from pyspark import cloudpickle

    file = EXAMPLES / path
    name = f"{file.parent.name}_{file.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        cloudpickle.register_pickle_by_value(module)
    return sys.modules[name]


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
