"""Takes over a data directory that Apache Kafka wrote: what is in it, and the records that a new journal begins with.

Topic ids, partitions and leader epochs come from the directories and checkpoints. Kafka's own metadata log is neither
read nor touched, so the topics' settings are not known: they get the defaults, but nothing is deleted by its age.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.config.broker_config import BrokerConfig, ConfigError
from tidelog.config.properties import parse_properties
from tidelog.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    parse_epochs,
    read_offsets,
    read_partition_metadata,
)
from tidelog.log.errors import CorruptLog
from tidelog.log.file_kinds import METADATA_STORE, OF_SEGMENT, Kind, file_kind
from tidelog.metadata.image import CLUSTER_METADATA
from tidelog.metadata.internal_topics import internal_settings
from tidelog.metadata.records import JournalRecord, PartitionState, ProducerIdsAllocated, TopicCreated, new_partition
from tidelog.metadata.topic_names import name_refusal
from tidelog.model.ids import NO_TOPIC_ID, TopicId, TopicPartition, uuid_text
from tidelog.runtime.interfaces import Disk

CHECKPOINTS = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS, CLEANER_OFFSETS)
PARTITIONS_MAX = 100_000
"""Of one topic. A higher number in a name is a mistake, and would be that many new directories."""
OF_A_LOG = (*OF_SEGMENT, Kind.PRODUCERS, Kind.EPOCHS, Kind.PARTITION, Kind.METADATA_SNAPSHOT)
SHOWN_MAX = 3
"""Names of what is found, in an error."""
LEFT_BEHIND = ("-delete", "-stray", "-future")
"""Ends of the names of directories that are no partitions any more, or not yet."""
KEEP_ALL = {"retention.ms": "-1"}
PRODUCER_IDS_BITS = 40
"""The logs remember producers by their ids. New ids begin beyond all that a Kafka cluster can have counted to."""


class AdoptionError(Exception):
    """The directory cannot be taken over. One line: the path, and what is wrong there."""


class Identity(NamedTuple):
    """What `meta.properties` says."""

    cluster_id: str | None
    node_id: int | None


class FoundPartition(NamedTuple):
    topic_id: TopicId
    """Zero when the directory has none, as before Kafka 2.8."""
    last_leader_epoch: int
    """-1: none."""


class Found(NamedTuple):
    """The partitions of a directory."""

    partitions: Mapping[TopicPartition, FoundPartition]
    checkpointed: Sequence[TopicPartition]
    """Those that the checkpoints name."""
    left_behind: Sequence[str]


class Adoption(NamedTuple):
    records: list[JournalRecord]
    notices: list[str]
    """Lines for the log and the operator."""


def refuse_foreign(disk: Disk, directories: Sequence[str]) -> None:
    """Raise AdoptionError for a directory with things in it of which none is a broker's. Blocks; writes nothing.

    Hidden files and `lost+found` do not count: they are what mount points and repositories have.
    """
    for directory in directories:
        try:
            names = [n for n in disk.list(directory) if not n.startswith(".") and n != "lost+found"]
        except OSError:
            continue  # not there yet; or whoever opens it says what is wrong
        ours = (META_PROPERTIES, METADATA_STORE, *CHECKPOINTS)
        if names and not any(n in ours or _holds_log(disk, f"{directory}/{n}") for n in names):
            shown = ", ".join(sorted(names)[:SHOWN_MAX]) + (", ..." if len(names) > SHOWN_MAX else "")
            raise AdoptionError(
                f"{directory} is not empty, and neither Tidelog's nor Kafka's: it has {shown}; "
                "choose an empty or a new directory (--data)"
            )


def _holds_log(disk: Disk, path: str) -> bool:
    """Whether it is a directory with a file of a partition in it; its name alone says nothing."""
    return disk.is_dir(path) and any(file_kind(name).kind in OF_A_LOG for name in disk.list(path))


def read_identity(disk: Disk, directory: str) -> Identity:
    """Blocks. Raises AdoptionError, OSError. Both fields are None in a new directory."""
    path = f"{directory}/{META_PROPERTIES}"
    if not disk.exists(path):
        return Identity(None, None)
    try:
        properties = {p.name: p.value.strip() for p in parse_properties(disk.read(path).decode())}
        number = properties.get("node.id", properties.get("broker.id"))
        return Identity(properties.get("cluster.id") or None, None if number is None else int(number))
    except ValueError as error:
        raise AdoptionError(f"{path}: {error}") from None


def read_identities(disk: Disk, directories: Sequence[str]) -> Identity:
    """What several data directories say together. Blocks. Raises AdoptionError, also when they contradict each
    other.
    """
    cluster_id: str | None = None
    node_id: int | None = None
    for directory in directories:
        identity = read_identity(disk, directory)
        if None not in (cluster_id, identity.cluster_id) and cluster_id != identity.cluster_id:
            raise AdoptionError(
                f"{directory} belongs to cluster {identity.cluster_id}, {directories[0]} to {cluster_id}"
            )
        if None not in (node_id, identity.node_id) and node_id != identity.node_id:
            raise AdoptionError(f"{directory} belongs to node {identity.node_id}, {directories[0]} to {node_id}")
        cluster_id, node_id = cluster_id or identity.cluster_id, identity.node_id if node_id is None else node_id
    return Identity(cluster_id, node_id)


def take_node_id(identity: Identity, config: BrokerConfig, directory: str) -> None:
    """Make `config` the settings of the directory's node. Raises ConfigError when they say that it is another."""
    if identity.node_id is None or identity.node_id == config.node_id:
        return
    if "node.id" in config.static:
        raise ConfigError(
            f"node.id is {config.node_id}, but {directory} belongs to node {identity.node_id} ({META_PROPERTIES}): "
            "leave node.id out, or use another directory"
        )
    config.take_node_id(identity.node_id)


def read_partitions(disk: Disk, directory: str) -> Found:
    """Blocks. Raises AdoptionError, OSError."""
    try:
        return _read_partitions(disk, directory)
    except CorruptLog as error:
        raise AdoptionError(str(error)) from None


def read_all_partitions(disk: Disk, directories: Sequence[str]) -> Found:
    """As `read_partitions`, of all data directories of one broker."""
    found = [read_partitions(disk, directory) for directory in directories]
    partitions = {key: partition for each in found for key, partition in each.partitions.items()}
    checkpointed = dict.fromkeys(key for each in found for key in each.checkpointed)
    return Found(partitions, list(checkpointed), [name for each in found for name in each.left_behind])


def _read_partitions(disk: Disk, directory: str) -> Found:
    checkpointed: dict[TopicPartition, None] = {}
    for name in CHECKPOINTS:
        for named in read_offsets(disk, f"{directory}/{name}") or ():
            if named.topic != CLUSTER_METADATA:
                checkpointed[named] = None
    partitions: dict[TopicPartition, FoundPartition] = {}
    left_behind: list[str] = []
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        if not disk.is_dir(path):
            continue
        if name.endswith(LEFT_BEHIND):
            left_behind.append(name)
            continue
        topic_partition = _directory_partition(name)
        if topic_partition is not None and (topic_partition in checkpointed or _holds_log(disk, path)):
            partitions[topic_partition] = _read_partition(disk, path)
    return Found(partitions, list(checkpointed), left_behind)


def adopt(found: Found, config: BrokerConfig, new_id: Callable[[], TopicId], directory: str) -> Adoption:
    """The topics of the directory as records. Raises AdoptionError when a topic's partitions contradict each other."""
    counts: dict[str, int] = {}
    for topic, partition in sorted([*found.partitions, *found.checkpointed]):
        if partition >= PARTITIONS_MAX:
            raise AdoptionError(f"{directory}: partition {partition} of topic {topic} is more than a topic can have")
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    records: list[JournalRecord] = []
    notices: list[str] = []
    for topic, count in counts.items():
        present = {i: p for i in range(count) if (p := found.partitions.get(TopicPartition(topic, i))) is not None}
        topic_id = _topic_id(topic, present.values(), directory) or new_id()
        # A new leader epoch: that the broker's restart begins one is what its clients expect (KIP-320).
        states: list[PartitionState] = [
            new_partition((config.node_id,), present[i].last_leader_epoch + 1 if i in present else 0)
            for i in range(count)
        ]
        settings = internal_settings(topic, config) or KEEP_ALL
        records.append(TopicCreated(topic, topic_id, tuple(states), settings))
        notices.append(_notice(topic, topic_id, count, present, settings))
    if found.left_behind:
        notices.append(f"left as they are: {', '.join(found.left_behind)}")
    if records:
        # Not always the same: ids given here before, by a journal that is gone, are not to be given again either.
        first_id = (1 + int.from_bytes(new_id()[:2], "big")) << PRODUCER_IDS_BITS
        records.append(ProducerIdsAllocated(config.node_id, first_id))
        notices.append(
            f"{directory} was written by Apache Kafka and is Tidelog's from now on: "
            "a Kafka broker that is started in it again would not know what happened since"
        )
    return Adoption(records, notices)


def _directory_partition(name: str) -> TopicPartition | None:
    topic, dash, number = name.rpartition("-")
    if not dash or not number.isascii() or not number.isdigit() or name_refusal(topic) or topic == CLUSTER_METADATA:
        return None
    return TopicPartition(topic, int(number))


def _read_partition(disk: Disk, path: str) -> FoundPartition:
    topic_id = read_partition_metadata(disk, path)
    epochs = f"{path}/{LEADER_EPOCHS}"
    entries = parse_epochs(disk.read(epochs), epochs) if disk.exists(epochs) else []
    return FoundPartition(
        NO_TOPIC_ID if topic_id is None else TopicId(topic_id), max((epoch for epoch, _ in entries), default=-1)
    )


def _topic_id(topic: str, partitions: Iterable[FoundPartition], directory: str) -> TopicId | None:
    ids = dict.fromkeys(p.topic_id for p in partitions if p.topic_id != NO_TOPIC_ID)
    if len(ids) > 1:
        raise AdoptionError(
            f"{directory}: the partitions of topic {topic} have different ids in partition.metadata: "
            + ", ".join(uuid_text(i) for i in ids)
        )
    return next(iter(ids), None)


def _notice(
    topic: str, topic_id: TopicId, count: int, present: Mapping[int, FoundPartition], settings: Mapping[str, str]
) -> str:
    missing = count - len(present)
    own = ", ".join(f"{name}={value}" for name, value in settings.items())
    return (
        f"topic {topic}: id {uuid_text(topic_id)}, {count} partitions"
        + (f" of which {missing} were not here and are empty" if missing else "")
        + f"; settings are the defaults and {own}"
    )
