"""Images and settings for tests of the controller."""

from collections.abc import Callable, Sequence

from tidelog.config.broker_config import BrokerConfig, Setting
from tidelog.config.endpoints import Endpoint
from tidelog.metadata.image import EMPTY_IMAGE, ImageBuilder, MetadataImage
from tidelog.metadata.records import (
    BrokerRegistered,
    ClusterNamed,
    ControllerElected,
    JournalRecord,
    TopicCreated,
    new_partition,
)
from tidelog.model.ids import TopicId


def settings(**given: str) -> BrokerConfig:
    """Return a configuration: `num_partitions="3"` stands for num.partitions=3."""
    return BrokerConfig({name.replace("_", "."): Setting(text, "test") for name, text in given.items()})


def topic_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


def ids(first: int = 100) -> Callable[[], TopicId]:
    """Return a function that makes predictable new ids."""
    numbers = iter(range(first, first + 1_000_000))
    return lambda: topic_id(next(numbers))


def topic(name: str, number: int, replicas: Sequence[Sequence[int]] = ((1,),), **config: str) -> TopicCreated:
    states = tuple(new_partition(r) for r in replicas)
    return TopicCreated(name, topic_id(number), states, {k.replace("_", "."): v for k, v in config.items()})


def broker(number: int) -> BrokerRegistered:
    return BrokerRegistered(number, 0, f"run-{number}", (Endpoint("PLAINTEXT", f"broker-{number}", 9092),), None)


def image(*records: JournalRecord, brokers: Sequence[int] = (1,)) -> MetadataImage:
    """Return the image of a cluster with these brokers, controlled by the first, after these records."""
    base: list[JournalRecord] = [ClusterNamed("test-cluster"), ControllerElected(brokers[0] if brokers else -1, 1)]
    builder = ImageBuilder(EMPTY_IMAGE).apply([*base, *(broker(b) for b in brokers)])
    for record in records:
        builder.apply([record])
    return builder.build()
