"""What commands ask of a cluster, as plain values: partitions with their offsets, settings with their origins."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.cli.connection import ANSWER_S, WAIT_S, answer, answers, silent
from tidelog.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka.admin import AdminClient, OffsetSpec


TOPIC, DEFAULT = "topic", "default"
"""Origins of settings; the others are a broker's."""
START = "broker's start settings"
"""A file, the environment or the command line: the protocol does not tell which."""


class PartitionState(NamedTuple):
    partition: int
    leader: int
    """-1 while there is none."""
    replicas: list[int]
    isr: list[int]


class TopicState(NamedTuple):
    name: str
    topic_id: str
    internal: bool
    partitions: list[PartitionState]


class Offsets(NamedTuple):
    earliest: int
    latest: int
    """Exclusive: the offset of the next record."""

    @property
    def records(self) -> int:
        """At most so many: compaction and transaction markers leave holes."""
        return self.latest - self.earliest


class Setting(NamedTuple):
    name: str
    value: str
    origin: str
    """topic, broker, default ..."""
    sensitive: bool
    effect: bool
    """False when the broker stores it and does nothing with it yet."""


def topic_names(admin: "AdminClient") -> list[str]:
    return sorted(admin.list_topics(timeout=ANSWER_S).topics)


def describe(admin: "AdminClient", names: Sequence[str], *, missing_too: bool = False) -> list[TopicState]:
    """The topics in the order of `names`. Raises CommandError for one that is not there, with the nearest name; with
    `missing_too` it is left out.
    """
    from confluent_kafka import KafkaException, TopicCollection

    if not names:
        return []
    if "" in names:
        raise UsageError("a topic's name is empty")  # librdkafka does not even ask
    found = []
    asked = TopicCollection(list(dict.fromkeys(names)))
    for name, future in admin.describe_topics(asked, request_timeout=ANSWER_S).items():
        try:
            topic = future.result(WAIT_S)
        except KafkaException as error:
            if unknown_topic(error):
                if missing_too:
                    continue
                raise no_such_topic(name, topic_names(admin)) from error
            topic = answer(future, f"topic {name}")
        except TimeoutError as error:
            raise silent(f"topic {name}") from error
        partitions = [
            PartitionState(
                part.id, part.leader.id if part.leader else -1, [n.id for n in part.replicas], [n.id for n in part.isr]
            )
            for part in topic.partitions
        ]
        found.append(TopicState(topic.name, topic_id_text(topic.topic_id), topic.is_internal, partitions))
    return found


def unknown_topic(error: Exception) -> bool:
    from confluent_kafka import KafkaError, KafkaException

    codes = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
    return isinstance(error, KafkaException) and error.args[0].code() in codes


def no_such_topic(name: str, known: Iterable[str]) -> CommandError:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    remedy = f"did you mean {near[0]}?" if near else "tidelog topic list shows all"
    return CommandError(f"no such topic: {name}; {remedy}")


def topic_id_text(topic_id: object) -> str:
    """As Kafka and the files write it; librdkafka uses the other base64 alphabet."""
    return str(topic_id).replace("+", "-").replace("/", "_")


def offsets(
    admin: "AdminClient", topics: Iterable[TopicState], *, committed: bool = False, missing_too: bool = False
) -> dict[tuple[str, int], Offsets]:
    """Earliest and latest offset of every partition that can tell: one whose log is offline is left out, with
    `missing_too` also one whose topic has gone.

    `committed`: the latest is where a consumer that reads committed records ends, before the first open transaction.
    """
    from confluent_kafka.admin import OffsetSpec

    options: dict[str, bool] = {"skip_offline": True, "missing_too": missing_too}

    wanted = [(topic.name, part.partition) for topic in topics for part in topic.partitions if part.leader >= 0]
    earliest = list_offsets(admin, wanted, OffsetSpec.earliest(), **options)
    latest = list_offsets(admin, wanted, OffsetSpec.latest(), committed=committed, **options)
    return {key: Offsets(earliest[key], latest[key]) for key in wanted if key in earliest and key in latest}


def list_offsets(
    admin: "AdminClient",
    wanted: Sequence[tuple[str, int]],
    spec: "OffsetSpec",
    *,
    skip_offline: bool = False,
    missing_too: bool = False,
    committed: bool = False,
) -> dict[tuple[str, int], int]:
    """One offset for each partition, one request a leader. Raises CommandError, but for what is left out as `offsets`
    does.
    """
    from confluent_kafka import IsolationLevel, KafkaError, TopicPartition

    if not wanted:
        return {}
    isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    futures = admin.list_offsets(
        {TopicPartition(*key): spec for key in wanted}, isolation_level=isolation, request_timeout=ANSWER_S
    )
    left_out = [KafkaError.KAFKA_STORAGE_ERROR] * skip_offline + [KafkaError.UNKNOWN_TOPIC_OR_PART] * missing_too
    if left_out:
        futures = {part: future for part, future in futures.items() if error_code(future) not in left_out}
    results = answers(futures, lambda part: f"{part.topic}-{part.partition}")
    return {(part.topic, part.partition): result.offset for part, result in results.items()}


def error_code(future: "Future[Any]") -> int | None:
    """What the broker answered; None when all is well."""
    from confluent_kafka import KafkaException

    try:
        error = future.exception(WAIT_S)
    except TimeoutError as late:
        raise silent() from late
    return error.args[0].code() if isinstance(error, KafkaException) else None


def settings(admin: "AdminClient", topic: str) -> list[Setting]:
    """All settings of a topic, sorted by name."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = answer(admin.describe_configs([resource], request_timeout=ANSWER_S)[resource], f"topic {topic}")
    idle = settings_without_effect() if is_tidelog(entries) else ()
    return [
        Setting(
            name,
            entry.value if entry.value is not None else "",
            origin(entry.source),
            entry.is_sensitive,
            name not in idle,
        )
        for name, entry in sorted(entries.items())
    ]


def is_tidelog(entries: Iterable[str]) -> bool:
    """Whether these setting names come from Tidelog, which alone has `durability`."""
    return "durability" in entries


def settings_without_effect() -> dict[str, None]:
    """Names of settings that Tidelog stores and does nothing with yet."""
    from tidelog.config.keys import TOPIC_KEYS

    return {key.name: None for key in TOPIC_KEYS.values() if not key.effect}


def origin(source: int) -> str:
    """Where a value comes from, as DescribeConfigs numbers it (KIP-226)."""
    names = {1: TOPIC, 2: "broker", 3: "all brokers", 4: START, 5: DEFAULT, 6: "broker logger"}
    return names.get(int(source), "unknown")
