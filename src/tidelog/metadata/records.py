"""The records of the metadata journal and their encoding: one line of JSON per entry, readable with any tool.

An entry holds the records of one decision and is appended atomically:
`{"v":1,"epoch":3,"records":[{"kind":"topic",...},...]}`. A reader ignores fields that it does not know. A change that
older brokers must not ignore needs a new record kind or a higher version, both of which they refuse.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tidelog.config.endpoints import Endpoint
from tidelog.model.ids import TopicId, uuid_from_text, uuid_text
from tidelog.model.steps import Steps, run_all
from tidelog.quotas.entities import Entity

FORMAT_VERSION = 1


class JournalError(Exception):
    """An entry cannot be decoded: it is damaged or was written by a newer Tidelog. The text names entry and cause."""


class ClusterNamed(NamedTuple):
    """The first record of every journal."""

    cluster_id: str


class ControllerElected(NamedTuple):
    """A broker acquired the controller lease. No entry of a lower epoch may follow."""

    broker_id: int
    epoch: int


class BrokerRegistered(NamedTuple):
    """A broker started, with the addresses of its listeners. Replaces the broker's earlier registration."""

    broker_id: int
    epoch: int
    """Higher than in every earlier registration."""
    incarnation: str
    """Identifies this run of the broker's process."""
    endpoints: tuple[Endpoint, ...]
    rack: str | None


class LeadershipRenewed(NamedTuple):
    """Begin a new leader epoch for every partition that the broker leads.

    The broker restarted, and the last records of the old epoch may be lost. A client that has read them asks where the
    old epoch ended, and so detects the loss (KIP-320).
    """

    broker_id: int


class PartitionState(NamedTuple):
    """The replicas of one partition, its leader and its in-sync replicas (ISR)."""

    leader: int
    """Broker id, or -1 without a leader."""
    leader_epoch: int
    replicas: tuple[int, ...]
    """Broker ids; the first one is the preferred leader."""
    isr: tuple[int, ...]
    partition_epoch: int
    """Incremented by every change of this state."""


class TopicCreated(NamedTuple):
    """A topic with its partitions: new, adopted from a Kafka directory, or part of a snapshot."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, str] = {}
    """The settings that were set for this topic, as the client wrote them."""


class PartitionsAdded(NamedTuple):
    """New partitions of an existing topic, numbered from `first`."""

    topic_id: TopicId
    first: int
    replicas: tuple[tuple[int, ...], ...]


class PartitionChanged(NamedTuple):
    """A change of leader, ISR or replicas; None means no change. A record with a leader begins a new leader epoch, even
    if the leader stays the same."""

    topic_id: TopicId
    partition: int
    leader: int | None = None
    """Broker id, or -1 for no leader."""
    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None


class TopicDeleted(NamedTuple):
    topic_id: TopicId


class TopicConfigChanged(NamedTuple):
    topic_id: TopicId
    setting: str
    value: str | None
    """None removes the setting, so that the default applies."""


class BrokerConfigChanged(NamedTuple):
    broker: str
    """A broker id, or "" for all brokers."""
    setting: str
    value: str | None


class GroupConfigChanged(NamedTuple):
    group: str
    setting: str
    value: str | None
    """None removes the setting, so that the broker's value applies."""


class ClientQuotaChanged(NamedTuple):
    entity: Entity
    key: str
    value: float | None
    """None removes the quota."""


class ClientMetricsConfigChanged(NamedTuple):
    """A setting of a client metrics subscription (KIP-714). A subscription exists while it has at least one setting."""

    subscription: str
    setting: str
    value: str | None
    """None removes the setting, so that the default applies."""


class ProducerIdsAllocated(NamedTuple):
    """A broker received a block of producer ids, which ends before `next_id`."""

    broker_id: int
    next_id: int
    """Exclusive."""


JournalRecord: TypeAlias = (
    ClusterNamed
    | ControllerElected
    | BrokerRegistered
    | LeadershipRenewed
    | TopicCreated
    | PartitionsAdded
    | PartitionChanged
    | TopicDeleted
    | TopicConfigChanged
    | BrokerConfigChanged
    | GroupConfigChanged
    | ClientQuotaChanged
    | ClientMetricsConfigChanged
    | ProducerIdsAllocated
)

_KINDS: dict[str, type[Any]] = {
    "cluster": ClusterNamed,
    "controller": ControllerElected,
    "broker": BrokerRegistered,
    "leadership": LeadershipRenewed,
    "topic": TopicCreated,
    "partitions": PartitionsAdded,
    "partition": PartitionChanged,
    "topic-deleted": TopicDeleted,
    "topic-config": TopicConfigChanged,
    "broker-config": BrokerConfigChanged,
    "group-config": GroupConfigChanged,
    "client-quota": ClientQuotaChanged,
    "client-metrics-config": ClientMetricsConfigChanged,
    "producer-ids": ProducerIdsAllocated,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def new_partition(replicas: Sequence[int], leader_epoch: int = 0) -> PartitionState:
    """Return the state of a new partition: the first replica leads, and all replicas are in sync."""
    return PartitionState(replicas[0], leader_epoch, tuple(replicas), tuple(replicas), 0)


def new_partitions(replicas: Iterable[Sequence[int]]) -> tuple[PartitionState, ...]:
    """Call `new_partition` for each partition. Partitions with equal replicas share one object."""
    states_by_replicas: dict[tuple[int, ...], PartitionState] = {}
    states: list[PartitionState] = []
    for partition_replicas in map(tuple, replicas):
        if partition_replicas not in states_by_replicas:
            states_by_replicas[partition_replicas] = new_partition(partition_replicas)
        states.append(states_by_replicas[partition_replicas])
    return tuple(states)


def _runs(states: Sequence[PartitionState]) -> list[list[Any]]:
    """Run-length encode the states: the number of equal neighbours, then the fields of `_row`."""
    runs: list[list[Any]] = []
    previous: PartitionState | None = None
    for state in states:
        if state == previous:
            runs[-1][0] += 1
        else:
            runs.append([1, *_row(state)])
        previous = state
    return runs


def _row(state: PartitionState) -> list[Any]:
    """Return replicas, leader epoch, partition epoch, leader and ISR, without trailing default values."""
    if state.isr != state.replicas or state.leader != state.replicas[0]:
        return [state.replicas, state.leader_epoch, state.partition_epoch, state.leader, state.isr]
    if state.partition_epoch:
        return [state.replicas, state.leader_epoch, state.partition_epoch]
    return [state.replicas, state.leader_epoch] if state.leader_epoch else [state.replicas]


def _states(runs: list[list[Any]]) -> tuple[PartitionState, ...]:
    """Decode `_runs`. Partitions with equal states share one object."""
    states: list[PartitionState] = []
    for count, *row in runs:
        replicas = tuple(row[0])
        leader_epoch, partition_epoch, leader, isr = row[1:] + [0, 0, replicas[0], replicas][len(row) - 1 :]
        states += [PartitionState(leader, leader_epoch, replicas, tuple(isr), partition_epoch)] * count
    return tuple(states)


def encode(epoch: int, records: Iterable[JournalRecord]) -> bytes:
    """Encode one entry, written by the controller of `epoch`."""
    return run_all(encode_in_steps(epoch, records))


def encode_in_steps(epoch: int, records: Iterable[JournalRecord]) -> Steps[bytes]:
    """Encode one entry in steps; see `encode`."""
    parts = []
    for record in records:
        parts.append(json.dumps(_encode_record(record), separators=(",", ":")))
        yield
    return f'{{"v":{FORMAT_VERSION},"epoch":{epoch},"records":[{",".join(parts)}]}}'.encode()


def _encode_record(record: JournalRecord) -> dict[str, Any]:
    defaults: dict[str, Any] = record._field_defaults
    fields: dict[str, Any] = {"kind": _NAMES[type(record)]}
    for name, value in zip(record._fields, record, strict=True):
        if name not in defaults or value != defaults[name]:
            encoder = _ENCODERS.get((type(record), name))
            fields[name] = value if encoder is None else encoder(value)
    return fields


class JournalEntry(NamedTuple):
    epoch: int
    records: list[JournalRecord]


def decode(data: bytes, position: int) -> JournalEntry:
    """Decode the entry at `position`. Raises JournalError."""
    try:
        entry = json.loads(data)
        version = entry["v"]
        if version > FORMAT_VERSION:
            raise JournalError(f"metadata entry {position} has version {version}, unknown here: upgrade this broker")
        return JournalEntry(entry["epoch"], [_decode_record(fields, position) for fields in entry["records"]])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalError(f"metadata entry {position} is damaged: {error!r}") from None


def _decode_record(fields: dict[str, Any], position: int) -> JournalRecord:
    kind = _KINDS.get(fields["kind"])
    if kind is None:
        raise JournalError(
            f"metadata entry {position} has a {fields['kind']!r} record, unknown here: upgrade this broker"
        )
    values: dict[str, Any] = {}
    for name in kind._fields:
        if name in fields:
            decoder = _DECODERS.get((kind, name))
            values[name] = fields[name] if decoder is None else decoder(fields[name])
    record: JournalRecord = kind(**values)
    return record


def _optional_tuple(items: list[int] | None) -> tuple[int, ...] | None:
    return None if items is None else tuple(items)


_TOPIC_ID_IN = (TopicCreated, PartitionsAdded, PartitionChanged, TopicDeleted, TopicConfigChanged)
_ENCODERS: dict[tuple[type[Any], str], Callable[[Any], Any]] = {
    **{(kind, "topic_id"): uuid_text for kind in _TOPIC_ID_IN},
    (TopicCreated, "partitions"): _runs,
}
_DECODERS: dict[tuple[type[Any], str], Callable[[Any], Any]] = {
    **{(kind, "topic_id"): uuid_from_text for kind in _TOPIC_ID_IN},
    (ClientQuotaChanged, "entity"): lambda parts: tuple((kind, name) for kind, name in parts),
    (BrokerRegistered, "endpoints"): lambda items: tuple(Endpoint(*item) for item in items),
    (TopicCreated, "partitions"): _states,
    (PartitionsAdded, "replicas"): lambda lists: tuple(tuple(item) for item in lists),
    (PartitionChanged, "isr"): _optional_tuple,
    (PartitionChanged, "replicas"): _optional_tuple,
}
