"""The records of the metadata journal and their encoding: one line of JSON per entry, readable with any tool.

An entry contains the records of one decision, or a part of them if the store limits the size of an entry. It is
appended atomically. Its form is `{"v":1,"epoch":3,"records":[{"kind":"topic",...},...]}`. A reader ignores fields that
it does not know. A change that older brokers must not ignore needs a new kind of record or a higher version; older
brokers refuse both.

The kinds that this module defines after `FeatureLevelChanged` are written only while the finalized level of
`tidelog.metadata.version` says that every registered broker can read them (`metadata/features.py`). This level is 0
until a `FeatureLevelChanged` record of this feature raises it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NewType, TypeAlias

from tidelog.config.endpoints import Endpoint
from tidelog.model.ids import TopicId, uuid_from_text, uuid_text
from tidelog.model.steps import Steps, run_all
from tidelog.quotas.entities import Entity

FORMAT_VERSION = 1
RECOVERED, RECOVERING = 0, 1
DirectoryId = NewType("DirectoryId", bytes)
"""The id of a data directory: 16 raw bytes."""


class JournalError(Exception):
    """The journal cannot be used, for example because an entry is missing, damaged or written by a newer version of
    Tidelog. The text names the cause, and the entry if there is one.
    """


class ClusterNamed(NamedTuple):
    """The first record of every journal."""

    cluster_id: str


class ControllerElected(NamedTuple):
    """A broker has acquired the controller lease. All later entries have this epoch or a higher one."""

    broker_id: int
    epoch: int


class BrokerRegistered(NamedTuple):
    """A broker has registered the addresses of its listeners, after its start or after a change of the addresses. This
    replaces its earlier registration.
    """

    broker_id: int
    epoch: int
    """The broker epoch. It is higher than the epochs of the broker's earlier runs."""
    incarnation: str
    """Identifies this run of the broker's process."""
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool = False
    """Whether the broker must first follow the journal up to this registration before it may lead partitions."""
    in_controlled_shutdown: bool = False
    boot_id: str = ""
    """Identifies the run of the broker's operating system; empty if it is unknown."""
    directories: tuple[DirectoryId, ...] = ()
    """The ids of the broker's data directories."""
    features: Mapping[str, tuple[int, int]] = {}
    """The lowest and the highest level that the broker supports, for each feature."""
    records_epoch: int = -1
    """If the broker certainly still had every record that it had acknowledged, this is the broker epoch that its
    directories contained when it registered. Otherwise this field is -1, and the controller uses `epoch` instead. The
    image also sets this field to -1 when the broker is unfenced.

    The runs of this broker with an epoch above `records_epoch`, up to `epoch`, were never unfenced, so they have
    acknowledged nothing. If such a run ends before it has written its epoch to the directories, the next run finds an
    earlier epoch there, but has every record. `registration.py` has the rule. An older controller ignores this field
    and treats the stop of such a run as unclean.
    """
    records_synced: bool = False
    """Whether all records of the runs up to `records_epoch` are synced. False if `records_epoch` is -1."""


class LeadershipRenewed(NamedTuple):
    """A new leader epoch begins for every partition that the broker leads.

    The broker was restarted, and the last records of the old epoch may be lost. A client that has read these records
    asks where the old epoch ended, and so detects the loss (KIP-320).
    """

    broker_id: int


class PartitionState(NamedTuple):
    """The replicas of one partition, its leader and its in-sync replicas (ISR)."""

    leader: int
    """The id of the leading broker, or -1 if there is no leader."""
    leader_epoch: int
    replicas: tuple[int, ...]
    """Broker ids. The first broker is the preferred leader."""
    isr: tuple[int, ...]
    partition_epoch: int
    """Incremented by every change of this state."""
    elr: tuple[int, ...] = ()
    """The eligible leader replicas (KIP-966): replicas that have left the ISR but have every committed record."""
    last_known_elr: tuple[int, ...] = ()
    """The last leader of a partition whose ISR is empty."""
    adding: tuple[int, ...] = ()
    """The replicas that a reassignment adds (KIP-455). They are part of `replicas`."""
    removing: tuple[int, ...] = ()
    """The replicas that a reassignment removes when it is complete. They are part of `replicas` until then."""
    recovery: int = RECOVERED
    """Kafka's leader recovery state. It is RECOVERING after an unclean election, until the leader reports that it has
    recovered."""
    directories: tuple[DirectoryId, ...] = ()
    """The data directory of each replica, in the order of `replicas`; empty if the directories are unknown."""


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
    isrs: tuple[tuple[int, ...], ...] = ()
    """The ISR of each partition. Its first member is the leader. Empty if all replicas of all partitions are in
    sync."""


class PartitionChanged(NamedTuple):
    """A change of leader, ISR or replicas. The value None means no change. A record that names a leader begins a new
    leader epoch, even if the leader is the same as before.
    """

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
    """The controller has allocated a block of producer ids to a broker. The block ends before `next_id`."""

    broker_id: int
    next_id: int
    """The exclusive end of the block: the next block begins here."""


class FeatureLevelChanged(NamedTuple):
    """The finalized level of a feature of the cluster (KIP-584) has changed. Level 0 means that the feature is off."""

    feature: str
    level: int


class BrokerStateChanged(NamedTuple):
    """A broker was fenced or unfenced, or has begun a controlled shutdown. The value None means no change."""

    broker_id: int
    epoch: int
    """The epoch of the registration that this record changes."""
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None


class BrokerUnregistered(NamedTuple):
    broker_id: int
    epoch: int


class StateChange(NamedTuple):
    """The same change of the states of several partitions. The value None means no change."""

    partitions: Mapping[TopicId, tuple[int, ...]]
    """The numbers of the partitions by topic."""
    leader: int | None = None
    """Broker id, or -1 for no leader. If it is not None, a new leader epoch begins, even if the leader is the same as
    before."""
    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    recovery: int | None = None
    directories: tuple[DirectoryId, ...] | None = None


class PartitionStatesChanged(NamedTuple):
    """Changes of many partitions, for example of all partitions of a broker that has stopped.

    Each partition is in only one of the changes. Partitions with equal changes share one `StateChange`, so the record
    has only a few bytes for each partition.
    """

    changes: tuple[StateChange, ...]


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
    | FeatureLevelChanged
    | BrokerStateChanged
    | BrokerUnregistered
    | PartitionStatesChanged
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
    "feature-level": FeatureLevelChanged,
    "broker-state": BrokerStateChanged,
    "broker-unregistered": BrokerUnregistered,
    "partition-states": PartitionStatesChanged,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def new_partition(replicas: Sequence[int], leader_epoch: int = 0, isr: Sequence[int] | None = None) -> PartitionState:
    """Return the state of a new partition. The first member of its ISR is its leader. Without `isr`, all replicas are
    in sync.
    """
    in_sync = tuple(replicas if isr is None else isr)
    return PartitionState(in_sync[0], leader_epoch, tuple(replicas), in_sync, 0)


def new_partitions(replicas: Iterable[Sequence[int]], isrs: Sequence[Sequence[int]] = ()) -> tuple[PartitionState, ...]:
    """Call `new_partition` for each partition. Partitions with equal replicas and ISR share one object."""
    known_states: dict[tuple[tuple[int, ...], tuple[int, ...]], PartitionState] = {}
    states: list[PartitionState] = []
    for number, partition_replicas in enumerate(map(tuple, replicas)):
        isr = tuple(isrs[number]) if isrs else partition_replicas
        state = known_states.get((partition_replicas, isr))
        if state is None:
            state = known_states[partition_replicas, isr] = new_partition(partition_replicas, isr=isr)
        states.append(state)
    return tuple(states)


def _runs(states: Sequence[PartitionState]) -> list[list[Any]]:
    """Run-length encode the states. Each run is the number of equal neighbours, followed by the fields of `_row`."""
    runs: list[list[Any]] = []
    previous: PartitionState | None = None
    for state in states:
        if state == previous:
            runs[-1][0] += 1
        else:
            runs.append([1, *_row(state)])
        previous = state
    return runs


STATE_FIELDS_MAX = 11
"""Number of fields in the longest row of a state."""


def _row(state: PartitionState) -> list[Any]:
    """Return the fields of a state in this order: replicas, leader epoch, partition epoch, leader, ISR, ELR, last known
    ELR, adding, removing, recovery, directories. Default values at the end are omitted.

    The fields after the ISR have values other than their defaults only if the level of `tidelog.metadata.version`
    allows this. A broker that does not know these fields refuses the longer row.
    """
    extension = [*state[5:10], _uuid_texts(state.directories)]  # [5:10]: from the ELR to the recovery state
    while extension and not extension[-1]:
        extension.pop()
    if extension or state.isr != state.replicas or state.leader != state.replicas[0]:
        return [state.replicas, state.leader_epoch, state.partition_epoch, state.leader, state.isr, *extension]
    if state.partition_epoch:
        return [state.replicas, state.leader_epoch, state.partition_epoch]
    return [state.replicas, state.leader_epoch] if state.leader_epoch else [state.replicas]


def _states(runs: list[list[Any]]) -> tuple[PartitionState, ...]:
    """Decode the result of `_runs`. The partitions of one run share one object."""
    states: list[PartitionState] = []
    for count, *row in runs:
        states += [_state(row)] * count
    return tuple(states)


def _state(row: list[Any]) -> PartitionState:
    """Decode the result of `_row`."""
    if len(row) > STATE_FIELDS_MAX:
        raise ValueError(f"the state of a partition has {len(row)} fields; this version knows {STATE_FIELDS_MAX}")
    replicas = tuple(row[0])
    defaults: tuple[Any, ...] = (0, 0, replicas[0], replicas, (), (), (), (), RECOVERED, ())
    fields = [*row[1:], *defaults[len(row) - 1 :]]
    leader_epoch, partition_epoch, leader, *lists, recovery, directories = fields
    isr, elr, last_known_elr, adding, removing = map(tuple, lists)
    return PartitionState(
        leader,
        leader_epoch,
        replicas,
        isr,
        partition_epoch,
        elr,
        last_known_elr,
        adding,
        removing,
        recovery,
        _directory_ids(directories),
    )


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
    return {"kind": _NAMES[type(record)], **_encode_fields(record)}


def _encode_fields(record: Any) -> dict[str, Any]:
    """Encode the fields of a named tuple that do not have their default values."""
    defaults: dict[str, Any] = record._field_defaults
    fields: dict[str, Any] = {}
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
            raise JournalError(
                f"metadata entry {position} has version {version}, which is unknown here: upgrade this broker"
            )
        return JournalEntry(entry["epoch"], [_decode_record(fields, position) for fields in entry["records"]])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise JournalError(f"metadata entry {position} is damaged: {error!r}") from None


def _decode_record(fields: dict[str, Any], position: int) -> JournalRecord:
    kind = _KINDS.get(fields["kind"])
    if kind is None:
        raise JournalError(
            f"metadata entry {position} has a {fields['kind']!r} record, which is unknown here: upgrade this broker"
        )
    record: JournalRecord = _decode_fields(kind, fields)
    return record


def _decode_fields(kind: type[Any], fields: dict[str, Any]) -> Any:
    """Decode the result of `_encode_fields` into a named tuple of the type `kind`. Unknown fields are ignored."""
    values: dict[str, Any] = {}
    for name in kind._fields:
        if name in fields:
            decoder = _DECODERS.get((kind, name))
            values[name] = fields[name] if decoder is None else decoder(fields[name])
    return kind(**values)


def _optional_tuple(items: list[int] | None) -> tuple[int, ...] | None:
    return None if items is None else tuple(items)


def _tuples(lists: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(item) for item in lists)


def _uuid_texts(ids: Iterable[bytes]) -> list[str]:
    return [uuid_text(raw) for raw in ids]


def _directory_ids(texts: Iterable[str]) -> tuple[DirectoryId, ...]:
    return tuple(DirectoryId(uuid_from_text(text)) for text in texts)


_KINDS_WITH_TOPIC_ID = (TopicCreated, PartitionsAdded, PartitionChanged, TopicDeleted, TopicConfigChanged)
_ENCODERS: dict[tuple[type[Any], str], Callable[[Any], Any]] = {
    **{(kind, "topic_id"): uuid_text for kind in _KINDS_WITH_TOPIC_ID},
    (BrokerRegistered, "directories"): _uuid_texts,
    (TopicCreated, "partitions"): _runs,
    (PartitionStatesChanged, "changes"): lambda changes: [_encode_fields(change) for change in changes],
    (StateChange, "partitions"): lambda partitions: {uuid_text(raw): numbers for raw, numbers in partitions.items()},
    (StateChange, "directories"): _uuid_texts,
}
_DECODERS: dict[tuple[type[Any], str], Callable[[Any], Any]] = {
    **{(kind, "topic_id"): uuid_from_text for kind in _KINDS_WITH_TOPIC_ID},
    (ClientQuotaChanged, "entity"): lambda parts: tuple((kind, name) for kind, name in parts),
    (BrokerRegistered, "endpoints"): lambda items: tuple(Endpoint(*item) for item in items),
    (BrokerRegistered, "directories"): _directory_ids,
    (BrokerRegistered, "features"): lambda ranges: {name: (low, high) for name, (low, high) in ranges.items()},
    (TopicCreated, "partitions"): _states,
    (PartitionsAdded, "replicas"): _tuples,
    (PartitionsAdded, "isrs"): _tuples,
    (PartitionChanged, "isr"): _optional_tuple,
    (PartitionChanged, "replicas"): _optional_tuple,
    (PartitionStatesChanged, "changes"): lambda changes: tuple(_decode_fields(StateChange, c) for c in changes),
    (StateChange, "partitions"): lambda partitions: {
        TopicId(uuid_from_text(text)): tuple(numbers) for text, numbers in partitions.items()
    },
    **{(StateChange, name): tuple for name in ("isr", "replicas", "elr", "last_known_elr", "adding", "removing")},
    (StateChange, "directories"): _directory_ids,
}
