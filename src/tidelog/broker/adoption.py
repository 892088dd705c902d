"""Adopt data directories of Apache Kafka: read their partitions, and create the first records of a new journal.

Topic ids, partitions and leader epochs come from the directories and checkpoints. Kafka's own metadata log is
neither read nor changed. The topics' settings are therefore unknown: internal topics get the settings of Tidelog's
internal topics, and other topics get the defaults, except that retention by time is off.
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
from tidelog.log.file_kinds import METADATA_STORE, METADATA_STORE_MARK, SEGMENT_FILE_KINDS, Kind, file_kind
from tidelog.metadata.image import CLUSTER_METADATA
from tidelog.metadata.internal_topics import internal_settings
from tidelog.metadata.records import JournalRecord, PartitionState, ProducerIdsAllocated, TopicCreated, new_partition
from tidelog.metadata.topic_names import name_refusal
from tidelog.model.ids import NO_TOPIC_ID, TopicId, TopicPartition, uuid_text
from tidelog.runtime.interfaces import Disk

CHECKPOINTS = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS, CLEANER_OFFSETS)
PARTITIONS_PER_TOPIC_MAX = 100_000
"""Upper bound on the partitions of one topic. A higher number in a directory's name is a mistake. It would make the
broker create that number of directories."""
LOG_FILE_KINDS = (*SEGMENT_FILE_KINDS, Kind.PRODUCERS, Kind.EPOCHS, Kind.PARTITION, Kind.METADATA_SNAPSHOT)
"""A directory that contains a file of one of these kinds belongs to a partition."""
NAMES_SHOWN_MAX = 3
"""Upper bound on the number of names in the error about a foreign directory."""
IGNORED_SUFFIXES = ("-delete", "-stray", "-future")
"""Suffixes of directories that are ignored: deleted partitions, stray partitions, and unfinished copies."""
KEEP_FOREVER = {"retention.ms": "-1"}
PRODUCER_IDS_BITS = 40
"""The first producer id is a multiple of 2 to this power. Logs remember producers by their ids, so new ids must be
higher than every id that the Kafka cluster can have allocated."""


class AdoptionError(Exception):
    """Raised if a directory cannot be adopted. The message is one line: the path and the problem."""


class Identity(NamedTuple):
    """The content of `meta.properties`."""

    cluster_id: str | None
    node_id: int | None


class FoundPartition(NamedTuple):
    """One partition of Kafka, as its directory describes it."""

    topic_id: TopicId
    """NO_TOPIC_ID if the directory contains no topic id: versions before Kafka 2.8 did not store it."""
    last_leader_epoch: int
    """-1 if the partition has no leader epoch."""


class FoundPartitions(NamedTuple):
    """The partitions of one or more data directories."""

    partitions: Mapping[TopicPartition, FoundPartition]
    checkpointed: Sequence[TopicPartition]
    """Partitions whose names are in the checkpoint files."""
    ignored_directories: Sequence[str]


class Adoption(NamedTuple):
    """The result of `adopt`."""

    records: list[JournalRecord]
    notices: list[str]
    """Lines for the broker's log. The broker writes the word "adopted" before each of them."""

    @property
    def topics(self) -> set[str]:
        """The names of the topics that are adopted."""
        return {record.name for record in self.records if isinstance(record, TopicCreated)}


def refuse_foreign(disk: Disk, directories: Sequence[str]) -> None:
    """Raise AdoptionError if a directory contains files, but no files of a broker. Blocks; writes nothing.

    Hidden files and `lost+found` are ignored, since mount points and repositories contain them. A crash in the
    first start may leave only the `.tmp` file of one of the broker's files, so such a file counts as a broker's file.
    """
    for directory in directories:
        try:
            names = [n for n in disk.list(directory) if not n.startswith(".") and n != "lost+found"]
        except OSError:
            continue  # the directory does not exist yet, or the code that opens it reports the error
        written = (META_PROPERTIES, METADATA_STORE_MARK, *CHECKPOINTS)
        known_names = (METADATA_STORE, *written, *(f"{name}.tmp" for name in written))
        if names and not any(n in known_names or _contains_log(disk, f"{directory}/{n}") for n in names):
            shown_names = ", ".join(sorted(names)[:NAMES_SHOWN_MAX]) + (", ..." if len(names) > NAMES_SHOWN_MAX else "")
            raise AdoptionError(
                f"{directory} is not empty, and has no data of Tidelog or Kafka: it contains {shown_names}; "
                "choose an empty or a new directory (--data)"
            )


def _contains_log(disk: Disk, path: str) -> bool:
    """Return whether `path` is a directory that contains a file of a partition. The directory's name alone proves
    nothing.
    """
    return disk.is_dir(path) and any(file_kind(name).kind in LOG_FILE_KINDS for name in disk.list(path))


def read_identity(disk: Disk, directory: str) -> Identity:
    """Read the identity of one directory. Both fields are None in a new directory. Blocks. Raises AdoptionError,
    OSError.
    """
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
    """Read the common identity of several data directories. Blocks. Raises OSError. Raises AdoptionError if a
    `meta.properties` cannot be parsed, or if the directories belong to different clusters or nodes.
    """
    cluster_ids: dict[str, str] = {}
    """Cluster id -> the first directory that has this id."""
    node_ids: dict[int, str] = {}
    """Node id -> the first directory that has this id."""
    for directory in directories:
        identity = read_identity(disk, directory)
        if identity.cluster_id is not None:
            cluster_ids.setdefault(identity.cluster_id, directory)
        if identity.node_id is not None:
            node_ids.setdefault(identity.node_id, directory)
        if len(cluster_ids) > 1:
            (first, first_directory), (other, _) = cluster_ids.items()
            raise AdoptionError(f"{directory} belongs to cluster {other}, but {first_directory} to cluster {first}")
        if len(node_ids) > 1:
            (number, first_directory), (other_number, _) = node_ids.items()
            raise AdoptionError(f"{directory} belongs to node {other_number}, but {first_directory} to node {number}")
    return Identity(next(iter(cluster_ids), None), next(iter(node_ids), None))


def use_node_id(identity: Identity, config: BrokerConfig, directory: str) -> None:
    """Set the directory's node id in `config`. Raises ConfigError if `node.id` was set to another number."""
    if identity.node_id is None or identity.node_id == config.node_id:
        return
    if "node.id" in config.static:
        raise ConfigError(
            f"node.id is {config.node_id}, but {directory} belongs to node {identity.node_id} ({META_PROPERTIES}): "
            "leave node.id out, or use another directory"
        )
    config.use_node_id(identity.node_id)


def read_partitions(disk: Disk, directory: str) -> FoundPartitions:
    """Read the partitions of one data directory. Blocks. Raises AdoptionError, OSError."""
    try:
        return _read_partitions(disk, directory)
    except CorruptLog as error:
        raise AdoptionError(str(error)) from None


def read_all_partitions(disk: Disk, directories: Sequence[str]) -> FoundPartitions:
    """Read the partitions of all data directories of one broker; see `read_partitions`."""
    per_directory = [read_partitions(disk, directory) for directory in directories]
    partitions = {
        key: partition for in_directory in per_directory for key, partition in in_directory.partitions.items()
    }
    checkpointed = dict.fromkeys(key for in_directory in per_directory for key in in_directory.checkpointed)
    ignored_directories = [name for in_directory in per_directory for name in in_directory.ignored_directories]
    return FoundPartitions(partitions, list(checkpointed), ignored_directories)


def _read_partitions(disk: Disk, directory: str) -> FoundPartitions:
    checkpointed: dict[TopicPartition, None] = {}
    for name in CHECKPOINTS:
        for checkpointed_partition in read_offsets(disk, f"{directory}/{name}") or ():
            if checkpointed_partition.topic != CLUSTER_METADATA:
                checkpointed[checkpointed_partition] = None
    partitions: dict[TopicPartition, FoundPartition] = {}
    ignored_directories: list[str] = []
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        if not disk.is_dir(path):
            continue
        if name.endswith(IGNORED_SUFFIXES):
            ignored_directories.append(name)
            continue
        topic_partition = _directory_partition(name)
        if topic_partition is not None and (topic_partition in checkpointed or _contains_log(disk, path)):
            partitions[topic_partition] = _read_partition(disk, path)
    return FoundPartitions(partitions, list(checkpointed), ignored_directories)


def adopt(found: FoundPartitions, config: BrokerConfig, new_id: Callable[[], TopicId], directory: str) -> Adoption:
    """Return journal records that create the topics of the directory, and lines for the broker's log. Raises
    AdoptionError if the partitions of a topic have different topic ids, or if a partition's number is too high.
    """
    counts: dict[str, int] = {}
    for topic, partition in sorted([*found.partitions, *found.checkpointed]):
        if partition >= PARTITIONS_PER_TOPIC_MAX:
            raise AdoptionError(
                f"{directory}: partition {partition} of topic {topic} is not allowed: a topic has at most "
                f"{PARTITIONS_PER_TOPIC_MAX} partitions, and the first one has the number 0"
            )
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    records: list[JournalRecord] = []
    notices: list[str] = []
    for topic, count in counts.items():
        existing = {i: p for i in range(count) if (p := found.partitions.get(TopicPartition(topic, i))) is not None}
        topic_id = _topic_id(topic, existing.values(), directory) or new_id()
        # Begin a new leader epoch, since clients expect this after a broker's restart (KIP-320).
        states: list[PartitionState] = [
            new_partition((config.node_id,), existing[i].last_leader_epoch + 1 if i in existing else 0)
            for i in range(count)
        ]
        settings = internal_settings(topic, config) or KEEP_FOREVER
        records.append(TopicCreated(topic, topic_id, tuple(states), settings))
        notices.append(_notice(topic, topic_id, count, existing, settings))
    if found.ignored_directories:
        notices.append(f"nothing from these directories: {', '.join(found.ignored_directories)}")
    if records:
        # An earlier journal of this directory may have been deleted. Ids that it contained must not be allocated again,
        # so start at a random id.
        first_id = (1 + int.from_bytes(new_id()[:2], "big")) << PRODUCER_IDS_BITS
        records.append(ProducerIdsAllocated(config.node_id, first_id))
        notices.append(
            f"directory {directory} of Apache Kafka. Do not start a Kafka broker in it again: Kafka would not know the "
            "changes that Tidelog makes"
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
    topic: str, topic_id: TopicId, count: int, existing: Mapping[int, FoundPartition], settings: Mapping[str, str]
) -> str:
    missing = count - len(existing)
    set_values = ", ".join(f"{name}={value}" for name, value in settings.items())
    return (
        f"topic {topic}: id {uuid_text(topic_id)}, {count} partitions"
        + (f" of which {missing} had no directory and are empty" if missing else "")
        + f"; settings are the defaults and {set_values}"
    )
